"""Scratch directories: one process works in one until it is done; what killed ones left goes with the next. Acts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def scratch(kind: str, directory: str | None = None) -> Iterator[Path]:
    """A new `replicator-<kind>-<host>-*`, private to this user, in a directory (None: the system's). Those that ended
    processes of this host left go before: a living process holds a lock on its own."""
    above = Path(directory or tempfile.gettempdir())
    head = f"replicator-{kind}-{socket.gethostname()}-"
    _sweep(above, head)
    place, lock = _made(above, head)
    try:
        yield Path(place.name)
    finally:
        place.cleanup()
        os.close(lock)


def _made(above: Path, head: str) -> tuple[tempfile.TemporaryDirectory[str], int]:
    while True:
        place = tempfile.TemporaryDirectory(prefix=head, dir=above)
        lock = os.open(place.name, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # a filesystem without locks: nobody sweeps there
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink and os.path.isdir(place.name):
            return place, lock
        os.close(lock)  # somebody's sweep came before the lock


def _sweep(above: Path, head: str) -> None:
    with contextlib.suppress(OSError):
        for entry in os.scandir(above):
            if entry.name.startswith(head) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):  # another user's, or gone
                    _remove_if_left(entry.path)


def _remove_if_left(path: str) -> None:
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
    finally:
        os.close(lock)
