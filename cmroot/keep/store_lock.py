"""Mutual exclusion between the gateway, which stores bytes without the lease, and an expiry, which deletes them.

Filing finds a content name in `files/` and relies on it; expiry could remove that name a moment later. So whoever files
without the lease does it inside `store_lock`, from the first look at `files/` until the entries are in `taken/`, and
expiry removes a batch at a time inside `removing`, after reading `taken/` again. Captures and loads hold the lease
instead."""

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
"""How long an expiry waits for who files, before it gives up for now; the lease is held meanwhile."""

_STEP = 0.01
_LOCK, _WAITING = ".filing", ".filing-waiting"

REMOVING_FOR = timedelta(seconds=60)
"""How long a batch on an object store may take. Who files waits that much for an expiry that was killed."""


@contextlib.contextmanager
def store_lock(root: str, *, now: Callable[[], float] = time.time) -> Iterator[None]:
    """Several may file at once; waits for the batch of removals that is under way. On an object store `taking/<id>/`
    must be there before: expiry looks for it."""
    if Place(root).local:
        with _locked(root, _WAITING, fcntl.LOCK_SH) as waiting:  # an expiry that sees it lets us go first
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
    """Under the lease, for one batch. Raises Filing when somebody files for longer than `patience`."""
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
    """Whether a batch of removals is under way on an object store."""
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
    """Only when nobody waits: the kernel gives a lock to whoever asks first after it is freed, which is us."""
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
            f"{root}: bytes are being filed by a gateway, and have been for long",
            hint="run the same command again later; if no gateway runs, start it once: it ends what was interrupted",
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
