"""Leases: one writer per root, with an epoch that grows at each acquisition.

Local: an flock on `<root>/lease`, freed by the kernel when its holder dies. Elsewhere: objects `<root>/lease/<epoch>`,
each created by a conditional write, with an expiry that the holder renews. A publication takes the next epoch by the
same conditional write that a take-over requires, so one of the two fails. See docs/cmroot-format.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Protocol, Self, TypeVar

import msgspec

from cmroot.errors import UNREADABLE, FormatError, LeaseHeld, NotWritable
from cmroot.store.listing import file_state
from cmroot.store.local import LocalStore, staging_name, sync_directory
from cmroot.store.place import Place
from cmroot.store.spelling import STAGING, naming

# ---- holder ----------------------------------------------------------------------------------------------------------
# The holder of a lease: identity, rights, and the error that names it.


class Publication(msgspec.Struct, frozen=True):
    """A file that a holder has decided to publish: its name below the root, and its bytes (base64 in JSON)."""

    name: str
    data: bytes


class Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """The current or last holder of a lease: the content of the lease file. `expires` is in seconds since the epoch by
    the store's clock, because clocks of two hosts may differ; 0 for an flock. `publishes`: a publication that was
    decided but may not have been written yet; the next holder of the lease completes it."""

    version: int
    epoch: int
    host: str
    pid: int
    since: str
    purpose: str
    token: str = ""
    expires: float = 0
    released: bool = False
    publishes: Publication | None = None


class Lease(Protocol):
    """The right to write, from `acquire` to the end of the `with` block or the death of the process."""

    @property
    def epoch(self) -> int: ...

    @property
    def holder(self) -> Holder: ...

    def check(self) -> None:
        """Raises LeaseHeld when the lease was lost. Call it before each write that others will rely on, and before each
        batch of removals."""

    def publish(self, name: str, data: bytes) -> None:
        """Writes a file below the root only if the lease was not taken over, however late the write arrives. Raises
        LeaseHeld if nothing was published, nor will be. After any other error the next holder may publish it."""

    def release(self) -> None:
        """Releases the lease. May run twice."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def new_holder(epoch: int, purpose: str, now: float, token: str = "", expires: float = 0) -> Holder:
    """Returns this process as the holder of a lease acquired at `now` (seconds since the epoch)."""
    since = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    return Holder(1, epoch, socket.gethostname(), os.getpid(), since, purpose, token, expires)


def held_by(root: str, holder: Holder | None) -> LeaseHeld:
    """Returns the error that names the holder of the lease; None: not known yet."""
    if holder is None:
        return LeaseHeld(f"{root}: another run is acquiring the lease", hint="wait for it to end, then run again")
    return LeaseHeld(
        f"{root}: held by process {holder.pid} on {holder.host} since {holder.since} to {holder.purpose}",
        hint=f"wait for it to end; if it hangs, kill process {holder.pid} on {holder.host}: the lease is then released",
    )


def decode_holder(data: bytes, path: str) -> Holder | None:
    """Returns the content of a lease file; None for an empty one. Raises FormatError naming `path`."""
    if not data:
        return None
    try:
        holder = msgspec.json.decode(data, type=Holder)
    except UNREADABLE as error:
        raise FormatError(
            f"{path}: {error}", hint="make sure that no run holds the lease, then remove this file"
        ) from error
    if holder.version != 1:
        raise FormatError(f"{path}: version {holder.version}, this release knows 1", hint="use the newer release")
    return holder


class Block(ABC):
    """The `with` block that both kinds of lease share."""

    @abstractmethod
    def release(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


# ---- lease -----------------------------------------------------------------------------------------------------------


TTL = timedelta(seconds=60)
"""How long an object-store lease is valid without renewal; it is renewed at a third of this."""

SKEW = timedelta(seconds=30)
"""How long after its expiry a lease may be taken over: the maximum delay of a renewal on its way to the store."""


def acquire(
    root: str, purpose: str, *, ttl: timedelta = TTL, now: Callable[[], float] = time.time, renew: bool = True
) -> Lease:
    """Acquires the lease as the only writer of a root. Raises LeaseHeld naming the holder; does not wait.

    `ttl`, `now` and `renew` (a background thread) concern object stores only.
    """
    place = Place(root)
    return _acquire_local(place, purpose, now) if place.local else _acquire_object(place, purpose, ttl, now, renew)


def held_at(root: str, epoch: int) -> bool:
    """Returns True if the lease of a root still has this epoch and is held. Acquires nothing. Raises FormatError for a
    lease that cannot be read, OSError for a root that does not respond."""
    place = Place(root)
    if place.local:
        return _held_local((place / "lease").local, epoch)
    if _epochs(place)[-1:] != [epoch]:
        return False
    try:
        holder = _read_holder(place, epoch)
    except FileNotFoundError:  # superseded concurrently
        return False
    if holder is None or holder.released:
        return False
    return time.time() - _probe(place, time.time) < holder.expires + SKEW.total_seconds()


def _held_local(path: str, epoch: int) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        holder = decode_holder(os.pread(descriptor, 1 << 16, 0), path)
        if holder is None or holder.epoch != epoch or not _still_named(descriptor, path):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # held only until the descriptor is closed
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


# Local


class LocalLease(Block):
    """An flock on an open file. A process forked from the holder shares it and may still be writing, so the lease is
    free only when the last such process has ended. (A program started with exec does not share it.)"""

    def __init__(self, path: str, descriptor: int, holder: Holder) -> None:
        self.holder = holder
        self._path = path
        self._descriptor: int | None = descriptor

    @property
    def epoch(self) -> int:
        return self.holder.epoch

    def check(self) -> None:
        if self._descriptor is None or not _still_named(self._descriptor, self._path):
            raise LeaseHeld(f"{self._path}: the lease of epoch {self.epoch} was lost", hint="run the command again")

    def publish(self, name: str, data: bytes) -> None:
        self.check()
        (Place(self._path).parent / name).write_bytes(data)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _acquire_local(root: Place, purpose: str, now: Callable[[], float]) -> LocalLease:
    """Replaces the file, never writes it in place: the next lock reads a complete epoch, this or the one before."""
    path = (root / "lease").local
    with naming(path):
        old = _lock(path)
        try:
            before = decode_holder(os.pread(old, 1 << 16, 0), path)
            holder = new_holder(before.epoch + 1 if before else 1, purpose, now())
            new = _write_locked(path, msgspec.json.encode(holder) + b"\n")
        finally:
            os.close(old)
    return LocalLease(path, new, holder)


def _lock(path: str) -> int:
    """Locks the file that has the name now; the file just opened may have been replaced before it was locked."""
    LocalStore().mkdirs(os.path.dirname(path))
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not _try_lock(descriptor):
                raise held_by(os.path.dirname(path), decode_holder(os.pread(descriptor, 1 << 16, 0), path))
            if _still_named(descriptor, path):
                return descriptor
        except BaseException:  # also after an error of the store: an open descriptor would hold the lease
            os.close(descriptor)
            raise
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _still_named(descriptor: int, path: str) -> bool:
    try:
        named, ours = os.stat(path), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)


def _write_locked(path: str, data: bytes) -> int:
    staged = staging_name(path)
    descriptor = os.open(staged, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before it gets the name that others look up
        os.write(descriptor, data)
        os.fsync(descriptor)
        os.replace(staged, path)
        sync_directory(os.path.dirname(path))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(staged)
        os.close(descriptor)
        raise
    return descriptor


# Object stores


class ObjectLease(Block):
    """An object that only this holder rewrites. Lost when a higher epoch exists or it could not be renewed in time."""

    def __init__(self, root: Place, holder: Holder, ttl: timedelta, now: Callable[[], float], renew: bool) -> None:
        self.holder = holder
        self._root, self._ttl, self._now = root, ttl, now
        self._stop = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._renew_until_stopped, name="lease", daemon=True) if renew else None
        if self._thread:
            self._thread.start()

    @property
    def epoch(self) -> int:
        return self.holder.epoch

    def check(self) -> None:
        if self._stop.is_set() or self._now() >= self.holder.expires or _epochs(self._root)[-1:] != [self.epoch]:
            raise self._lost()

    def _lost(self) -> LeaseHeld:
        return LeaseHeld(
            f"{self._root}: the lease of epoch {self.epoch} was lost: not renewed in time, or taken over",
            hint="run the command again; what this run published is complete",
        )

    def publish(self, name: str, data: bytes) -> None:
        """Creates the next epoch with the publication in it; a take-over would have created that epoch itself. If this
        holder is suspended then, the next one completes the publication, and the late write has the same bytes."""
        with self._writing:
            self.check()
            before, expires = self.epoch, self._now() + self._ttl.total_seconds()
            ours = msgspec.structs.replace(
                self.holder, epoch=before + 1, expires=expires, publishes=Publication(name, data)
            )
            if not _take(self._root, ours):
                self._stop.set()
                raise self._lost()
            self.holder = ours  # retains the publication, also when released, until the file is known to exist
            (self._root / name).write_bytes(data)
            self.holder = msgspec.structs.replace(ours, publishes=None)
            _epoch_path(self._root, before).remove_own()

    def renew(self) -> None:
        """Extends the expiry. Raises LeaseHeld when it is too late."""
        with self._writing:
            self.check()
            renewed = msgspec.structs.replace(self.holder, expires=self._now() + self._ttl.total_seconds())
            _epoch_path(self._root, self.epoch).replace_own(msgspec.json.encode(renewed))
            self.holder = renewed

    def release(self) -> None:
        if self._stop.is_set():
            return
        with self._writing:
            with contextlib.suppress(LeaseHeld):
                self.check()
                ended = msgspec.structs.replace(self.holder, released=True)
                _epoch_path(self._root, self.epoch).replace_own(msgspec.json.encode(ended))
            self._stop.set()
        if self._thread:
            self._thread.join()

    def _renew_until_stopped(self) -> None:
        while not self._stop.wait(self._ttl.total_seconds() / 3):
            try:
                self.renew()
            except LeaseHeld:
                return  # check() reports it to the writer, which must stop
            except Exception:
                continue  # the store may respond the next time; the expiry decides


def _epoch_path(root: Place, epoch: int) -> Place:
    return root / "lease" / f"{epoch:020d}"


def _epochs(root: Place) -> list[int]:
    return sorted(int(name) for name in (root / "lease").list() if name.isdecimal())


def _read_holder(root: Place, epoch: int) -> Holder | None:
    path = _epoch_path(root, epoch)
    return decode_holder(path.read_bytes(), str(path))


def _acquire_object(root: Place, purpose: str, ttl: timedelta, now: Callable[[], float], renew: bool) -> ObjectLease:
    ahead = _probe(root, now)

    def store_time() -> float:
        return now() - ahead

    known = _epochs(root)
    last = known[-1] if known else 0
    pending: Publication | None = None
    if last:
        try:
            holder = _read_holder(root, last)
        except FileNotFoundError:  # superseded concurrently
            raise held_by(str(root), None) from None
        if holder and not holder.released and store_time() < holder.expires + SKEW.total_seconds():
            raise held_by(str(root), holder)
        pending = holder.publishes if holder else None
    path = root / pending.name if pending else None  # refused before an epoch is taken
    ours = new_holder(last + 1, purpose, now(), uuid.uuid4().hex, store_time() + ttl.total_seconds())
    ours = msgspec.structs.replace(ours, publishes=pending)  # until the file exists
    if not _take(root, ours):
        raise held_by(str(root), None)
    if pending and path and not path.exists():
        path.write_bytes(pending.data)
    for epoch in known:
        _epoch_path(root, epoch).remove_own()
    return ObjectLease(root, msgspec.structs.replace(ours, publishes=None), ttl, store_time, renew)


def _take(root: Place, ours: Holder) -> bool:
    """Creates an epoch for this holder, if it does not exist. A request sent twice may be refused by itself."""
    path, data = _epoch_path(root, ours.epoch), msgspec.json.encode(ours)
    if not path.create_exclusive(data):
        with contextlib.suppress(FileNotFoundError):
            return path.read_bytes() == data
        return False
    if _epochs(root)[-1] != ours.epoch:  # the listing was so old that our epoch was used and removed since then
        path.remove_own()
        return False
    return True


def _probe(root: Place, now: Callable[[], float]) -> float:
    """Returns how many seconds `now` is ahead of the store's clock; 0 where the store reports no times.

    Some S3-compatible stores ignore the condition of a write; a lease there would exclude no other writer."""
    probe = root / "lease" / f"{STAGING}probe-{uuid.uuid4().hex}"  # a probe left by a killed run is removed by expiry
    try:
        created, moment = probe.create_exclusive(b"1"), now()
        written = file_state(str(probe)).mtime_ns
        if not created or probe.create_exclusive(b"2"):
            raise NotWritable(
                f"{root}: the store accepts a conditional write twice, so a lease would exclude no other run",
                hint="use a store with conditional writes, or put $cmroot elsewhere",
            )
        return moment - written / 1e9 if written else 0.0
    finally:
        probe.remove_own()


# ---- waiting ---------------------------------------------------------------------------------------------------------
# Waiting for a lease that another run holds.


Result = TypeVar("Result")

PAUSE = timedelta(milliseconds=200)
"""The average pause between two attempts: short compared with the pauses between captures."""


def patiently(work: Callable[[], Result], patience: timedelta) -> Result:
    """Runs `work`, which takes the lease, again and again while another run holds it. Work done before the lease was
    found to be held is not undone. Raises LeaseHeld when the lease is held for longer than `patience`."""
    until = time.monotonic() + patience.total_seconds()
    while True:
        try:
            return work()
        except LeaseHeld:
            if time.monotonic() >= until:
                raise
        time.sleep(PAUSE.total_seconds() * random.uniform(0.5, 1.5))
