"""What the log lines of this process are about: its run, command and policy. Of the process: all threads of a command
work for one run. A thread that works on something of its own, as on one of several jobs, adds that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

SERVICE_RUN = "REPLICATOR_SERVICE_RUN"
"""In the environment of a run that the service began: its id there."""

_about: dict[str, object] = {}
_mine: ContextVar[Mapping[str, object]] = ContextVar("mine", default={})  # noqa: B039 (never changed)


def about() -> Mapping[str, object]:
    """The fields that a line of this thread has now."""
    return {**_about, **_mine.get()}


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


@contextmanager
def own_lines_about(**fields: object) -> Iterator[None]:
    """Adds fields to the lines of this thread, for the length of a block."""
    before = _mine.set({**_mine.get(), **fields})
    try:
        yield
    finally:
        _mine.reset(before)
