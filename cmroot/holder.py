"""The holder of a lease: identity, rights, and the error that names it."""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from types import TracebackType
from typing import Protocol, Self

import msgspec

from cmroot.errors import UNREADABLE, FormatError, LeaseHeld


class Publication(msgspec.Struct, frozen=True):
    """A file that a holder has decided to publish: its name below the root, and its bytes (base64 in JSON)."""

    name: str
    data: bytes


class Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who holds or held a lease: what the lease file says. `expires` is seconds since the epoch by the store's clock,
    as two hosts' clocks may differ; 0 for an flock. `publishes`: decided, and perhaps not yet there: who takes the
    lease next sees to it."""

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
        """Raises LeaseHeld when the lease was lost; ask before a write that others will rely on, and before each batch
        of removals."""

    def publish(self, name: str, data: bytes) -> None:
        """Write a file below the root only if nobody has taken the lease over, whenever the write arrives. Raises
        LeaseHeld, and then nothing was published, nor will be. Any other error: the next holder may publish it."""

    def release(self) -> None:
        """Safe to run twice."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def new_holder(epoch: int, purpose: str, now: float, token: str = "", expires: float = 0) -> Holder:
    """This process, as it takes a lease at `now` (seconds since the epoch)."""
    since = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    return Holder(1, epoch, socket.gethostname(), os.getpid(), since, purpose, token, expires)


def held_by(root: str, holder: Holder | None) -> LeaseHeld:
    """The refusal: who holds the lease; None: not known yet."""
    if holder is None:
        return LeaseHeld(f"{root}: another run is taking the lease", hint="wait for it to end, then run again")
    return LeaseHeld(
        f"{root}: held by process {holder.pid} on {holder.host} since {holder.since} to {holder.purpose}",
        hint=f"wait for it to end; if it hangs, end process {holder.pid} on {holder.host}: the lease frees itself",
    )


def decode_holder(data: bytes, path: str) -> Holder | None:
    """A lease file's content; None for an empty one. Raises FormatError naming `path`."""
    if not data:
        return None
    try:
        holder = msgspec.json.decode(data, type=Holder)
    except UNREADABLE as error:
        raise FormatError(f"{path}: {error}", hint="no run may hold the lease; then remove this file") from error
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
