"""Mutual exclusion between the gateway, which stores bytes without the lease, and an expiry, which deletes them.

Filing a file relies on a content name found in `files/`, which expiry could remove immediately afterwards. So a process
that files without the lease does it inside `store_lock`, from its first lookup in `files/` until the entries are in
`taken/`. Expiry removes one batch at a time inside `removing`, after reading `taken/` again. Captures and loads hold
the lease instead."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import msgspec

from cmroot.errors import Filing
from cmroot.lease import SKEW
from cmroot.store.place import Place
from cmroot.store.spelling import naming

PATIENCE = timedelta(seconds=60)
"""How long an expiry waits for processes that file before it aborts for now; it holds the lease during that time."""

_STEP = 0.01
_LOCK, _WAITING = ".filing", ".filing-waiting"

REMOVING_FOR = timedelta(seconds=60)
"""The maximum duration of a batch on an object store. A process that files waits this long for a killed expiry."""


@contextlib.contextmanager
def store_lock(root: str, *, now: Callable[[], float] = time.time) -> Iterator[None]:
    """Holds the lock while files are filed; several processes may hold it at once. Waits for the current batch of
    removals. On an object store `taking/<id>/` must exist before: expiry looks for it."""
    if Place(root).local:
        with _locked(root, _WAITING, fcntl.LOCK_SH) as waiting:  # an expiry that sees it lets this process go first
            lock = _open(root, _LOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH)
                fcntl.flock(waiting, fcntl.LOCK_UN)
                yield
            finally:
                os.close(lock)
        return
    while _removed_from(root, now()):
        time.sleep(_STEP * 10)
    yield


@contextlib.contextmanager
def removing(root: str, *, now: Callable[[], float] = time.time, patience: timedelta = PATIENCE) -> Iterator[None]:
    """Excludes filing during one batch of removals; under the lease. Raises Filing after waiting for `patience`."""
    deadline = time.monotonic() + patience.total_seconds()
    if Place(root).local:
        with _exclusive(root, deadline):
            yield
        return
    marker = _marker(root)
    try:
        while True:
            until = now() + REMOVING_FOR.total_seconds()
            marker.replace_own(msgspec.json.encode(_Removing(1, until)))
            if not (Place(root) / "taking").list():  # either they see our marker, or we see theirs
                break
            marker.remove_own()
            _wait(root, deadline, _STEP * 10)
        yield
    finally:
        marker.remove_own()


class _Removing(msgspec.Struct, frozen=True):
    version: int
    expires: float


def _marker(root: str) -> Place:
    return Place(root) / "expiring" / "removing"


def _removed_from(root: str, moment: float) -> bool:
    """Returns True if a batch of removals is in progress on an object store."""
    try:
        found = msgspec.json.decode(_marker(root).read_bytes(), type=_Removing)
    except FileNotFoundError:
        return False
    except msgspec.DecodeError:  # being replaced
        return True
    return moment < found.expires + SKEW.total_seconds()


@contextlib.contextmanager
def _exclusive(root: str, deadline: float) -> Iterator[None]:
    lock = _open(root, _LOCK)
    try:
        while not _try(root, lock):
            _wait(root, deadline, _STEP)
        yield
    finally:
        os.close(lock)


def _try(root: str, lock: int) -> bool:
    """Locks only when no process waits: the kernel gives a freed lock to the first to request it, which would be us."""
    waiting = _open(root, _WAITING)
    try:
        fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(waiting)


def _wait(root: str, deadline: float, seconds: float) -> None:
    if time.monotonic() > deadline:
        raise Filing(
            f"{root}: a gateway has been storing files for a long time",
            hint="run the same command again later; if no gateway runs, start one once: it resolves interrupted drops",
        )
    time.sleep(seconds)


@contextlib.contextmanager
def _locked(root: str, name: str, how: int) -> Iterator[int]:
    descriptor = _open(root, name)
    try:
        fcntl.flock(descriptor, how)
        yield descriptor
    finally:
        os.close(descriptor)


def _open(root: str, name: str) -> int:
    path = (Place(root) / name).local
    with naming(path):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
