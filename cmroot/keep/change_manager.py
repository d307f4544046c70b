"""Native: the metastore's own change manager moves dropped files into a `$cmroot` of its own; the replicator only
records their checksums.

Its rules (Hive's ReplChangeManager): one flat directory; a file is named by its HDFS checksum, from Hive 3 on
`<name>_<checksum>`; its cleaner removes files older than `hive.repl.cm.retain`. The replicator only reads there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, ClassVar

import msgspec

from cmroot.errors import KeepError
from cmroot.keep.content import ATTEMPTS, Kept, unsteady
from cmroot.keep.remote_files import read_object
from cmroot.store.hdfs import SCHEMES, in_zone
from cmroot.store.hdfs_checksums import hdfs_checksum
from cmroot.store.listing import file_state
from cmroot.store.place import Place, join, name_of, scheme
from cmroot.store.spelling import normal, split_authority

MARK = "hive-cm:"
"""The prefix of a `version` that the metastore retains after a drop: `hive-cm:<HDFS's checksum>@<its root>`."""

_LONGEST = 254
"""Maximum length of a name in the metastore's root, in bytes; the metastore truncates longer names."""


_IN_ZONE = "is in an encryption zone, out of which the metastore cannot move files"


@dataclass(frozen=True)
class ChangeManager:
    """The configuration of a metastore's change manager. `place`: its root; without an authority, on the metastore's
    default filesystem. `retain`: as configured, such as `24h`; `why_not`: the reason why it retains nothing;
    `managed_only`: whether it retains nothing of external tables (since Hive 3)."""

    place: str = ""
    retain: str = ""
    why_not: str = ""
    managed_only: bool = False

    def root_for(self, location: str) -> str:
        """Returns its root; on the store of the location if the root has no authority."""
        if "://" in self.place:
            return self.place
        return join(split_authority(normal(location))[0], self.place.removeprefix("file:"))


def why_no_native(manager: ChangeManager | None, location: str) -> str:
    """Returns "" if the metastore retains files that it drops at a location and they can be read; else the reason."""
    if scheme(location) not in SCHEMES:
        return "the metastore recognizes files by HDFS checksums, which other stores do not have"
    if manager is None:
        return "no metastore was queried"
    if manager.why_not:
        return manager.why_not
    root = manager.root_for(location)
    if split_authority(normal(root))[0] != split_authority(normal(location))[0]:
        return f"hive.repl.cmrootdir is {root}, on another store: the metastore cannot move files there"
    try:
        if not Place(root).exists():
            return f"{root} (hive.repl.cmrootdir) does not exist"
        Place(root).list()
        if in_zone(location):
            return _IN_ZONE
    except FileNotFoundError:  # the location does not exist yet
        return ""
    except OSError as error:
        return f"{error.filename or root}: {error.strerror or error}"
    return ""


def is_native(version: str | None) -> bool:
    return version is not None and version.startswith(MARK)


def native_size(path: str, version: str) -> int:
    """Returns the bytes of a file retained by the metastore, or not dropped. Raises FileNotFoundError if neither."""
    return _found(path, version).size()


def open_native(path: str, version: str) -> BinaryIO:
    """Opens such a file. Raises FileNotFoundError as above: the cleaner or another process removed it."""
    return _found(path, version).open_stream()


@dataclass(frozen=True)
class NativeKeeper:
    """A keeper that relies on the metastore: bytes are read once, for their checksum, and never copied.

    Protects against removals by the metastore (drops; from Hive 3 on truncates and overwrites by Hive), until its
    cleaner removes the files. Does not protect against removals by Spark or a shell.
    """

    manager_root: str
    name: ClassVar[str] = "native"

    def keep(self, path: str) -> Kept:
        if in_zone(path):  # a zone may begin below a location that was checked
            raise KeepError(f"{path}: {_IN_ZONE}", hint="choose another keeper")
        for _ in range(ATTEMPTS):
            kept = read_object(path)
            checksum = hdfs_checksum(path)
            now = file_state(path)
            if (now.identity, now.mtime_ns, now.size) == (kept.identity, kept.mtime_ns, kept.size):
                return msgspec.structs.replace(kept, version=f"{MARK}{checksum}@{self.manager_root}")
        raise unsteady(path)


def _found(path: str, version: str) -> Place:
    checksum, _, root = version.removeprefix(MARK).partition("@")
    for name in (checksum, f"{name_of(path)}_{checksum}"[:_LONGEST]):
        place = Place(root) / name
        if place.exists():
            return place
    if hdfs_checksum(path) != checksum:
        raise FileNotFoundError(f"{path}: {root} does not have it, and its content has changed")
    return Place(path)
