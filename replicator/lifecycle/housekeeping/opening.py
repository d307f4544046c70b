"""The store of a root's items, opened: to read, alone, or as a copy to try something out with."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from cmroot.lease import acquire, patiently
from cmroot.pins import seconds
from cmroot.root import ChangeRoot, open_existing
from cmroot.store.place import join, scratch
from replicator.errors import UsageError
from replicator.lifecycle.housekeeping.run import JOB
from replicator.lifecycle.housekeeping.store import ItemStore, store_url


@contextmanager
def opened(root: str, url: str | None, connections: int = 0) -> Iterator[ItemStore]:
    """The store at `url`, else the root's own. connections: as `Database`. Raises UsageError where it has none,
    ConfigError for a wrong URL."""
    with ItemStore(store_url(root, url), connections) as store:
        yield store


@contextmanager
def alone(cmroot: str, url: str | None) -> Iterator[ItemStore]:
    """The store, while no run is at work; LeaseHeld when one is for longer than a minute."""
    root = open_existing(cmroot)
    with ExitStack() as stack:
        store = stack.enter_context(opened(root.place, url))
        store.check()
        take = functools.partial(acquire, join(root.place, JOB), "change items of housekeeping")
        stack.enter_context(patiently(take, timedelta(minutes=1)))
        yield store


@contextmanager
def copy_of(store: ItemStore, root: ChangeRoot) -> Iterator[ItemStore]:
    """Items to try something out with; the store is only read."""
    with ExitStack() as stack:
        here = stack.enter_context(scratch("rehearsal"))
        copy = stack.enter_context(store.copied(here / "items.sqlite"))
        copy.prepare(root)
        yield copy


def time_of(text: str) -> int:
    """Seconds since 1970 of an ISO 8601 time. Raises UsageError."""
    try:
        return int(seconds(text))
    except ValueError as error:
        raise UsageError(str(error), hint="write an ISO 8601 time such as 2027-01-31T12:00:00Z") from error
