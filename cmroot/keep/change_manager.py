"""Native: the metastore's own change manager moves what it drops into a `$cmroot` of its own; we only note under which
checksum.

Its rules (Hive's ReplChangeManager): one flat directory; a file is named by HDFS's checksum of it, from Hive 3 on
`<name>_<checksum>`; its cleaner removes what is older than `hive.repl.cm.retain`. We read there and never write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, ClassVar

import msgspec

from cmroot.errors import KeepError
from cmroot.keep.content import ATTEMPTS, Kept, unsteady
from cmroot.keep.objects import read_object
from cmroot.store.hdfs.checksums import hdfs_checksum
from cmroot.store.hdfs.hdfs_store import SCHEMES, in_zone
from cmroot.store.listing import file_state
from cmroot.store.place import Place, join, name_of, scheme
from cmroot.store.spelling import normal, split_authority

MARK = "hive-cm:"
"""Begins a `version` that means: the metastore keeps it once it drops it. `hive-cm:<HDFS's checksum>@<its root>`."""

_LONGEST = 254
"""Bytes of a name in the metastore's root, which cuts longer ones."""


_IN_ZONE = "lies in an encryption zone, out of which the metastore cannot move files"


@dataclass(frozen=True)
class ChangeManager:
    """What a metastore says of its change manager. `place`: its root, without authority that of the metastore's default
    filesystem; `retain`: as it is set, such as `24h`; `why_not`: why it keeps nothing."""

    place: str = ""
    retain: str = ""
    why_not: str = ""

    def root_for(self, location: str) -> str:
        """Its root, on the store of a location where it names none."""
        if "://" in self.place:
            return self.place
        return join(split_authority(normal(location))[0], self.place.removeprefix("file:"))


def why_no_native(manager: ChangeManager | None, location: str) -> str:
    """Empty when the metastore keeps what it drops at a location, and we can read it; else the reason."""
    if scheme(location) not in SCHEMES:
        return "the metastore recognizes files by the checksums of HDFS, which other stores lack"
    if manager is None:
        return "no metastore was asked"
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
    except FileNotFoundError:  # no location yet
        return ""
    except OSError as error:
        return f"{error.filename or root}: {error.strerror or error}"
    return ""


def is_native(version: str | None) -> bool:
    return version is not None and version.startswith(MARK)


def native_size(path: str, version: str) -> int:
    """Bytes of a file that the metastore keeps, or that was not dropped yet. FileNotFoundError when it is neither."""
    return _found(path, version).size()


def open_native(path: str, version: str) -> BinaryIO:
    """Reads such a file. FileNotFoundError as above: its cleaner removed it, or somebody else removed the file."""
    return _found(path, version).open_stream()


@dataclass(frozen=True)
class NativeKeeper:
    """What the metastore itself keeps: bytes are read once, for their checksum, and never copied.

    Protects from what the metastore removes (drops; from Hive 3 on truncates and overwrites by Hive), for as long as
    its cleaner lets it. Not from what Spark or a shell removes.
    """

    manager_root: str
    name: ClassVar[str] = "native"

    def keep(self, path: str) -> Kept:
        if in_zone(path):  # one may begin below a location that was looked at
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
        raise FileNotFoundError(f"{path}: {root} does not have it, and it holds other bytes by now")
    return Place(path)
