"""Where the bytes of a target's file may be: the target's own `$cmroot`, the source, the source's `$cmroot`, or a
version in the source's bucket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import msgspec

from cmroot.keep.content import is_kept, locate
from cmroot.keep.versions import open_version
from cmroot.store.resolve import located


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """One file of the target: where its bytes may be, what they must be, where it goes. checksum None: its bytes were
    never seen (they were gone before capture could read them). `at_version`: place and version id under which the
    source's bucket keeps them."""

    source: str
    target: str
    size: int | None
    mtime_ns: int | None
    checksum: str | None
    position: int
    at_version: tuple[str, str] | None = None


@dataclass(frozen=True)
class Roots:
    """The source's `$cmroot`, with kept bytes, and the target's, which takes replaced files and gives equal ones."""

    source: str
    target: str


class Origin(NamedTuple):
    """A place to take bytes from; `name` as in Placed."""

    name: str
    place: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.place} at version {self.version}" if self.version else self.place

    def open(self) -> BinaryIO:
        """Raises FileNotFoundError when it is not there."""
        if self.version:
            return open_version(self.place, self.version)
        return located(self.place).open_stream()


def origins(wanted: Wanted, checksum: str, size: int, roots: Roots, kept: frozenset[str]) -> Iterator[Origin]:
    first = checksum[:2] in kept
    if first and is_kept(roots.target, checksum, size):
        yield Origin("target", locate(roots.target, checksum, size))
    yield Origin("source", wanted.source)
    yield Origin("cmroot", locate(roots.source, checksum, size))
    if wanted.at_version:
        yield Origin("cmroot", *wanted.at_version)
    if not first and is_kept(roots.target, checksum, size):  # kept since the load began
        yield Origin("target", locate(roots.target, checksum, size))
