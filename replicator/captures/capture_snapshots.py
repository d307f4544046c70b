"""The snapshots of a capture on HDFS, and the objects there that need not be listed, because no difference of snapshots
names them.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from functools import cache

import msgspec

from cmroot.keep.hdfs_keepers import (
    CAPTURES_OPEN,
    DIRECTORY,
    Named,
    SnapshotKeeper,
    captures_open_files,
    differences,
    make_snapshot,
    snapshottable,
    sweep_snapshots,
)
from cmroot.store.place import scheme
from cmroot.store.spelling import normal, split_authority, upwards
from replicator.captures.manifest import Manifest
from replicator.captures.recording import Recording

# ---- capture snapshots -----------------------------------------------------------------------------------------------
# The snapshots of one capture on HDFS: at most one per snapshottable directory, created on first use.


_ODD = frozenset({".", "..", DIRECTORY})  # names that lead elsewhere


class CaptureSnapshots:
    """`silent`: stores that do not report their snapshottable directories, with the reason."""

    def __init__(self, root: str, after: int, *, keeps: bool) -> None:
        """after: the log's position before the capture; keeps: True if file entries may name these snapshots."""
        self._root, self._after, self._keeps = root, after, keeps
        self._made: dict[str, str] = {}
        self.silent: dict[str, OSError] = {}
        self._allowed = cache(self._asked)
        self._captures_open = cache(captures_open_files)

    def top(self, location: str) -> str:
        """Returns the snapshottable directory at or above a location; empty if there is none or it is unknown."""
        if scheme(location) != "hdfs":
            return ""
        store, path = split_authority(normal(location))
        if "//" in path or _ODD.intersection(path.split("/")):
            return ""
        allowed = self._allowed(store)
        return next((store + each for each in upwards(path) if each in allowed), "") if allowed else ""

    def why_not(self, top: str) -> str:
        """Returns the reason why snapshots of a directory cannot be compared; empty if they can."""
        return "" if self._captures_open(split_authority(top)[0]) else f"{CAPTURES_OPEN} is not true, or unknown"

    def of(self, top: str) -> str:
        """Returns the name of this capture's snapshot, creating it if necessary. Raises OSError if that fails."""
        if top not in self._made:
            self._made[top] = make_snapshot(self._root, top, self._after, keeps=self._keeps)
        return self._made[top]

    def keeper(self, location: str) -> SnapshotKeeper | str:
        """Returns the keeper of files at a location, or the reason why there is none."""
        top = self.top(location)
        if not top:
            silent = self.silent.get(split_authority(normal(location))[0])
            return f"{silent.strerror or silent}" if silent else "no directory above is snapshottable by this user"
        if reason := self.why_not(top):
            return reason
        try:
            return SnapshotKeeper(self._root, top, self.of(top))
        except OSError as error:
            return f"{error.strerror or error}"

    def _asked(self, store: str) -> Collection[str]:
        try:
            return frozenset(snapshottable(store))
        except OSError as error:
            self.silent[store] = error
            return ()


# ---- snapshot diff ---------------------------------------------------------------------------------------------------
# A base is a snapshot after which everything below its directory was listed, or known to be unchanged. It is stored in
# the manifest with the capture's position; the next capture requests the difference from it. In any doubt there is no
# difference, and everything is listed.


PROVED = timedelta(days=1)
"""The interval after which everything is listed again, regardless of differences."""

_STATE = "snapshots"


class Base(msgspec.Struct, frozen=True):
    """A base. listed: when everything below it was last listed, in seconds."""

    name: str
    listed: int


class SnapshotDiff:
    """The snapshot differences of one capture. Each directory is queried when the first object in it is checked, which
    is before any of them is listed."""

    def __init__(self, log: Recording, snapshots: CaptureSnapshots, *, begin: bool, prove: bool) -> None:
        """begin: everything not excluded by differences is listed, so that new bases may be created; prove: everything
        is listed."""
        self._log, self._snapshots, self._begin, self._prove = log, snapshots, begin, prove
        self._bases = bases(log.manifest)
        self._named: dict[str, Named | None] = {}

    def is_quiet(self, location: str, *, root: bool = False) -> bool:
        """Returns True if nothing has changed at a location since it was listed. root: as of a `DataObject`."""
        named = self._named_at(location)
        if named is None:
            return False
        path = split_authority(normal(location))[1] or "/"
        return not (named.has_of_root(path) if root else named.has(path))

    def is_known(self, location: str) -> bool:
        """Returns True if differences are available for a location."""
        return self._named_at(location) is not None

    def finish(self) -> None:
        """Stores the bases for the next capture. Bases of directories without objects are removed."""
        silent = self._snapshots.silent
        if self._begin:
            for top in [top for top in self._bases if top not in self._named]:
                if error := silent.get(split_authority(top)[0]):
                    self._tell(
                        top, "every directory below was listed: snapshottable directories cannot be queried", error
                    )
                else:
                    del self._bases[top]
        if self._bases or self._log.manifest.recall(_STATE):
            self._log.manifest.remember(_STATE, msgspec.json.encode(self._bases).decode())

    def _named_at(self, location: str) -> Named | None:
        top = self._snapshots.top(location)
        if top and top not in self._named:
            self._named[top] = self._asked(top)
        return self._named[top] if top else None

    def _asked(self, top: str) -> Named | None:
        """Returns the changes below a snapshottable directory; None: everything is to be listed. Creates the next base,
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
            self._tell(top, "every directory below was listed: its snapshots cannot be compared", error)
            return None

    def _advanced(self, top: str, base: Base | None, named: Named | None, now: int) -> Named | None:
        """Returns the changes up to the next base, or, without one, up to now."""
        if not (named or self._begin):
            return None
        if reason := self._snapshots.why_not(top):
            self._tell(top, f"its snapshots were not compared: {reason}")
            return named
        try:
            fresh = self._snapshots.of(top)
        except OSError as error:
            self._tell(top, "no snapshot of it could be created", error)
            return named
        if base and named is not None:
            named = self._since(top, base.name, fresh)
        if named is not None or self._begin:
            self._bases[top] = Base(fresh, base.listed if base and named is not None else now)
        return named

    def _tell(self, place: str, what: str, error: OSError | None = None) -> None:
        self._log.report.warnings.append(f"{place}: {what}" + (f": {error.strerror or error}" if error else ""))


def bases(manifest: Manifest) -> dict[str, Base]:
    """Returns the bases by snapshottable directory."""
    return msgspec.json.decode(manifest.recall(_STATE) or "{}", type=dict[str, Base])


def sweep_made(root: str, manifest: Manifest) -> list[str]:
    """Deletes the snapshots of a root that are neither a base nor named by file entries. Requires the lease. Returns
    the reasons why some could not be deleted."""
    return sweep_snapshots(root, {base.name for base in bases(manifest).values()}, manifest.position)
