"""Which objects on HDFS have changed, by the difference of snapshots: what it does not name need not be listed.

A base is a snapshot after which everything below its directory was listed, or known not to have changed. It is
remembered in the manifest, with the capture that got there; the next capture asks what differs from it. Where anything
is unsure there is no difference, and all is listed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import timedelta
from functools import cache

import msgspec

from cmroot.keep.snapshot_entries import make_snapshot
from cmroot.store.hdfs.snapshots import (
    CAPTURES_OPEN,
    DIRECTORY,
    Difference,
    captures_open_files,
    differences,
    snapshottable,
)
from cmroot.store.place import scheme
from cmroot.store.spelling import normal, split_authority
from replicator.captures.manifest import Manifest
from replicator.captures.recording import Recording

PROVED = timedelta(days=1)
"""After so long everything is listed again, whatever the differences say."""

_STATE = "snapshots"
_ODD = frozenset({".", "..", DIRECTORY})  # names that lead elsewhere


class Base(msgspec.Struct, frozen=True):
    """listed: when everything below was listed the last time, in seconds."""

    name: str
    listed: int


class Named:
    """What some differences say of places."""

    def __init__(self, found: Iterable[Difference]) -> None:
        self._inside: set[str] = set()  # something in them has changed
        self._whole: set[str] = set()  # all below them is something else
        for each in found:
            for path in (each.path, each.target):
                if path:
                    self._inside.update(_upwards(path))
                    if each.kind != "MODIFY":
                        self._whole.add(path)

    def __bool__(self) -> bool:
        return bool(self._inside)

    def has(self, path: str) -> bool:
        """Whether a file in the directory `path`, or the directory itself, may be another."""
        return path in self._inside or any(each in self._whole for each in _upwards(path))


class SnapshotDiff:
    """That of one capture. Asks each directory when the first object in it is looked at, which is before any of them is
    listed."""

    def __init__(self, log: Recording, root: str, *, begin: bool, prove: bool) -> None:
        """begin: everything that this does not leave out is listed, so that a base can be where none was; prove: all is
        listed."""
        self._log, self._root, self._begin, self._prove = log, root, begin, prove
        self._bases = bases(log.manifest)
        self._named: dict[str, Named | None] = {}
        self._allowed = cache(self._asked_for_tops)
        self._silent: set[str] = set()

    def is_quiet(self, location: str) -> bool:
        """Whether nothing has changed at a location since it was listed."""
        return (named := self._named_at(location)) is not None and not named.has(
            split_authority(normal(location))[1] or "/"
        )

    def is_known(self, location: str) -> bool:
        """Whether differences tell what has changed there."""
        return self._named_at(location) is not None

    def finish(self) -> None:
        """Remembers the bases for the next capture; where no object is any more, none is needed."""
        if self._begin:
            left = {
                top for top in self._bases if top not in self._named and split_authority(top)[0] not in self._silent
            }
            self._bases = {top: base for top, base in self._bases.items() if top not in left}
        if self._bases or self._log.manifest.recall(_STATE):
            self._log.manifest.remember(_STATE, msgspec.json.encode(self._bases).decode())

    def _named_at(self, location: str) -> Named | None:
        top = self._top(location)
        if top and top not in self._named:
            self._named[top] = self._asked(top)
        return self._named[top] if top else None

    def _asked(self, top: str) -> Named | None:
        """What has changed below a snapshottable directory; None: all of it is to be listed. Makes the next base,
        unless nothing has changed."""
        base, now = self._bases.get(top), self._log.now()
        named = None
        if base and not (self._begin and (self._prove or now - base.listed >= PROVED.total_seconds())):
            named = self._since(top, base.name)
        if (base or self._begin) and (named is None or named):
            named = self._advanced(top, base, named, now)
        return named

    def _since(self, top: str, base: str, until: str = "") -> Named | None:
        try:
            return Named(differences(top, base, until))
        except OSError as error:
            self._tell(top, "every directory below was listed, as its snapshots cannot be compared", error)
            return None

    def _advanced(self, top: str, base: Base | None, named: Named | None, now: int) -> Named | None:
        """What has changed up to the next base, or without one up to now."""
        if not (named or self._begin):
            return None
        if not captures_open_files(split_authority(top)[0]):
            self._tell(top, f"no snapshot was compared with the next: {CAPTURES_OPEN} is not true, or not known")
            return named
        try:
            fresh = make_snapshot(self._root, top, now)
        except OSError as error:
            self._tell(top, "no snapshot could be made of it", error)
            return named
        if base and named is not None:
            named = self._since(top, base.name, fresh)
        if named is not None or self._begin:
            self._bases[top] = Base(fresh, base.listed if base and named is not None else now)
        return named

    def _top(self, location: str) -> str:
        """The snapshottable directory at or above a location; empty where there is none, or one cannot tell."""
        if scheme(location) != "hdfs":
            return ""
        store, path = split_authority(normal(location))
        if "//" in path or _ODD.intersection(path.split("/")):
            return ""
        allowed = self._allowed(store)
        return next((store + each for each in _upwards(path) if each in allowed), "") if allowed else ""

    def _asked_for_tops(self, store: str) -> Collection[str]:
        try:
            return frozenset(snapshottable(store))
        except OSError as error:
            self._silent.add(store)
            self._tell(store, "every directory was listed, as it does not say which are snapshottable", error)
            return ()

    def _tell(self, place: str, what: str, error: OSError | None = None) -> None:
        self._log.report.warnings.append(f"{place}: {what}" + (f": {error.strerror or error}" if error else ""))


def needed_snapshots(manifest: Manifest) -> set[str]:
    """Those that the next capture compares with."""
    return {base.name for base in bases(manifest).values()}


def bases(manifest: Manifest) -> dict[str, Base]:
    """By snapshottable directory."""
    return msgspec.json.decode(manifest.recall(_STATE) or "{}", type=dict[str, Base])


def _upwards(path: str) -> Iterator[str]:
    """An absolute path and all above it."""
    while path not in ("", "/"):
        yield path
        path = path.rpartition("/")[0]
    yield "/"
