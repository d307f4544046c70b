"""What the log lines of this process are about: its run, command and policy. Of the process, not of a thread: all
threads of a command work for one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

SERVICE_RUN = "REPLICATOR_SERVICE_RUN"
"""In the environment of a run that the service began: its id there."""

_about: dict[str, object] = {}


def about() -> Mapping[str, object]:
    """The fields that every line has now."""
    return dict(_about)


def now_about(**fields: object) -> None:
    """Adds fields to every line, or replaces them, until the block of `lines_about` ends; None: leaves one as it is."""
    _about.update({name: value for name, value in fields.items() if value is not None})


@contextmanager
def lines_about(**fields: object) -> Iterator[None]:
    """The same for the length of a block."""
    before = dict(_about)
    now_about(**fields)
    try:
        yield
    finally:
        _about.clear()
        _about.update(before)
