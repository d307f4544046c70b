"""The snapshots of one capture on HDFS: at most one of each snapshottable directory, made when it is first wanted."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from cmroot.keep.snapshot_entries import make_snapshot
from cmroot.keep.snapshot_keeper import SnapshotKeeper
from cmroot.store.hdfs.snapshots import CAPTURES_OPEN, DIRECTORY, captures_open_files, snapshottable
from cmroot.store.place import scheme
from cmroot.store.spelling import normal, split_authority, upwards

_ODD = frozenset({".", "..", DIRECTORY})  # names that lead elsewhere


class CaptureSnapshots:
    """`silent`: stores that do not say which directories are snapshottable, with the reason."""

    def __init__(self, root: str, after: int, *, keeps: bool) -> None:
        """after: the log's position before the capture; keeps: whether file entries may name what it makes."""
        self._root, self._after, self._keeps = root, after, keeps
        self._made: dict[str, str] = {}
        self.silent: dict[str, OSError] = {}
        self._allowed = cache(self._asked)
        self._captures_open = cache(captures_open_files)

    def top(self, location: str) -> str:
        """The snapshottable directory at or above a location; empty where there is none, or one cannot tell."""
        if scheme(location) != "hdfs":
            return ""
        store, path = split_authority(normal(location))
        if "//" in path or _ODD.intersection(path.split("/")):
            return ""
        allowed = self._allowed(store)
        return next((store + each for each in upwards(path) if each in allowed), "") if allowed else ""

    def why_not(self, top: str) -> str:
        """Why snapshots of a directory tell nothing of the next; empty when they do."""
        return "" if self._captures_open(split_authority(top)[0]) else f"{CAPTURES_OPEN} is not true, or not known"

    def of(self, top: str) -> str:
        """The name of this capture's. OSError when it cannot be made."""
        if top not in self._made:
            self._made[top] = make_snapshot(self._root, top, self._after, keeps=self._keeps)
        return self._made[top]

    def keeper(self, location: str) -> SnapshotKeeper | str:
        """The keeper of files at a location, or why there is none."""
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
