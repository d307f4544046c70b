"""What no load brings: tables in formats of which a copy of the files is no copy of the table, and data connectors.

Which tables tells the manifest; only of a Delta table the log has to be read, each of its files once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import BinaryIO

import msgspec
import pyarrow as pa

from cmroot.keep.content import locate
from cmroot.keep.versions import open_version
from cmroot.store.place import Place
from cmroot.store.resolve import located
from replicator.captures.inventory import KnownFile
from replicator.captures.manifest import Manifest
from replicator.core.delta_log import names_outside
from replicator.core.not_replicated import CONNECTOR, NO_CONNECTOR, NotReplicated
from replicator.core.shadow import is_shadow
from replicator.core.table_format import DELTA, OUTSIDE, reason_of
from replicator.errors import ObjectNotFound
from replicator.metastore.client import MetastoreReader

DEFAULT = "default"  # the database that every metastore has
_KEY = "connectors"  # state of a manifest


def left_out(
    manifest: Manifest, root: str, databases: Iterable[str], holds: Callable[[tuple[str, str]], bool] = lambda _: True
) -> dict[str, str]:
    """Tables of some databases at the manifest's position: "db.table" -> why it is not replicated. `root`: the
    `$cmroot` that keeps their logs' bytes; `holds`: whether a table (db, name) is asked for."""
    found = {}
    for db in databases:
        for name, format in manifest.formats(db).items():
            if holds((db, name)):
                reason = reason_of(format)
                if format == DELTA and any(_outside(manifest, root, db, name)):
                    reason = OUTSIDE
                if reason:
                    found[f"{db}.{name}"] = reason
    return found


def gaps(tables: dict[str, str]) -> list[NotReplicated]:
    """What `left_out` found, as reports name it."""
    return [NotReplicated(name, reason) for name, reason in tables.items()]


def data_connectors(source: MetastoreReader, databases: Collection[str]) -> list[NotReplicated]:
    """The data connectors of a metastore, where these are all of its databases, but for a `default` without tables and
    those of drills: they are in none."""
    names = source.data_connectors()
    if not names or not all(_is_aside(source, name) for name in source.database_names() if name not in databases):
        return []
    return [NotReplicated(f"{CONNECTOR}{name}", NO_CONNECTOR) for name in sorted(names)]


def _is_aside(source: MetastoreReader, db: str) -> bool:
    try:
        return is_shadow(source.database(db)) or (db == DEFAULT and not source.table_names(db))
    except ObjectNotFound:
        return True


def remember_connectors(manifest: Manifest, found: Sequence[NotReplicated]) -> None:
    """What a capture found, for dumps."""
    if found or manifest.recall(_KEY):
        manifest.remember(_KEY, msgspec.json.encode(found).decode())


def remembered_connectors(manifest: Manifest, databases: Collection[str]) -> list[NotReplicated]:
    """What the last capture found, if these are all databases that are captured."""
    if not {each.name for each in manifest.databases()}.issubset({DEFAULT, *databases}):
        return []
    return msgspec.json.decode(manifest.recall(_KEY) or "[]", type=list[NotReplicated])


def _outside(manifest: Manifest, root: str, db: str, name: str) -> Iterator[bool]:
    """For each file of a Delta table's log, whether it names files outside of the table."""
    for place, file, known in manifest.delta_log(db, name):
        if known is None and file.checksum is not None:
            known = _names_outside(place, file, root)
            if known is not None:
                manifest.remember_delta_log(file.checksum, known)
        yield bool(known)


def _names_outside(place: str, file: KnownFile, root: str) -> bool | None:
    """None where its bytes are not to be had any more. One that cannot be understood is a file like any other."""
    for open_file in _openings(place, file, root):
        try:
            with open_file() as stream:
                return names_outside(place, stream)
        except FileNotFoundError:
            continue
        except (msgspec.DecodeError, pa.ArrowException, KeyError, TypeError, ValueError):
            return False
    return None


def _openings(place: str, file: KnownFile, root: str) -> Iterator[Callable[[], BinaryIO]]:
    assert file.checksum is not None and file.size is not None
    kept = locate(root, file.checksum, file.size)
    yield lambda: Place(kept).open_read()
    yield lambda: located(place).open_read()
    if version := file.version:
        yield lambda: open_version(place, version, file.size)
