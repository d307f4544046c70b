"""A store whose calls fail now and then, before or after they took effect: the local filesystem's and those of fsspec.

`Faults` fails calls at places below one directory or URL while it is on. A lease may be taken over by another host
during such a call, as when the call took longer than the lease.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from cmroot.lease import Holder
from cmroot.store import remote
from cmroot.store.place import Place, is_local, local_path

ERRORS = (errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT)
_LOCAL = (
    "stat",
    "lstat",
    "open",
    "scandir",
    "listdir",
    "link",
    "symlink",
    "rename",
    "replace",
    "unlink",
    "mkdir",
    "rmdir",
    "chmod",
    "readlink",
)
_REMOTE = ("cat_file", "pipe_file", "put_file", "cp_file", "rm_file", "rm", "info", "ls", "find", "exists", "open")


class Faults:
    """Calls fail with a chance of `rate` while it is on. `failed`: how many did; `overtaken`: leases taken over."""

    def __init__(self, patch: pytest.MonkeyPatch, top: str, root: str, chance: random.Random, rate: float) -> None:
        self.top, self.root, self.chance, self.rate = top, root, chance, rate
        self.failed = self.overtaken = 0
        self._on = False
        if is_local(top):
            self._below = local_path(top) + "/"
            for name in _LOCAL:
                patch.setattr(os, name, self._failing(getattr(os, name), opens=name == "open"))
            patch.setattr(builtins, "open", self._failing(io.open, opens=True))
            patch.setattr(os, "fsync", self._failing(os.fsync, everywhere=True))
        else:
            real = remote.filesystem_of
            patch.setattr(remote, "filesystem_of", lambda *key: _Filesystem(real(*key), self))

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def around(self, call: Callable[[], Any], *, opens: bool = False) -> Any:
        if not self._on or self.chance.random() >= self.rate:
            return call()
        self._on = False  # one fault a time; what fails is tried again without
        self.failed += 1
        if not is_local(self.top) and self.chance.random() < 0.3:
            self._overtake()
            return call()
        if not opens and self.chance.random() < 0.5:
            call()  # it took effect, and the answer was lost
        code = self.chance.choice(ERRORS)
        raise OSError(code, os.strerror(code))

    def _failing(self, real: Callable[..., Any], *, everywhere: bool = False, opens: bool = False) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            here = everywhere or any(isinstance(each, str) and each.startswith(self._below) for each in given)
            return self.around(lambda: real(*given, **named), opens=opens) if here else real(*given, **named)

        return call

    def _overtake(self) -> None:
        """The call took longer than the lease: another host has it, and has let it go again."""
        place = Place(self.root) / "lease"
        epochs = [int(name) for name in place.list() if name.isdecimal()]
        if not epochs:
            return
        path = place / f"{max(epochs):020d}"
        holder = msgspec.json.decode(path.read_bytes(), type=Holder)
        if holder.released:
            return
        with expired(self.root):
            pass
        self.overtaken += 1


def lapse(root: str) -> None:
    """The store says of the lease that its holder has not been heard of for long. A local one does not lapse."""
    place = Place(root) / "lease"
    if not is_local(root) and (names := [name for name in place.list() if name.isdecimal()]):
        path = place / max(names)
        holder = msgspec.json.decode(path.read_bytes(), type=Holder)
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(holder, expires=1.0)))


@contextlib.contextmanager
def expired(root: str) -> Iterator[None]:
    """Another host takes the lease of a root whose holder has not been heard of for long, and lets it go."""
    from cmroot.lease import acquire

    lapse(root)
    with acquire(root, "take over", renew=False):
        yield


class _Filesystem:
    """fsspec's, with calls that fail."""

    def __init__(self, real: Any, faults: Faults) -> None:
        self._real, self._faults = real, faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name not in _REMOTE:
            return found
        return lambda *given, **named: self._faults.around(lambda: found(*given, **named))
