"""Tables that no load replicates, because of their format or of a file of their log: by name, with the reason.

The manifest determines most of them. Of a Delta or Iceberg table the files of its log must be read, each once; of a
transactional one its write ids must be known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import BinaryIO

import msgspec
import pyarrow as pa

from cmroot.errors import FormatError
from cmroot.keep.content import locate
from cmroot.keep.versions import open_version
from cmroot.store import iceberg
from cmroot.store.delta import LOG, names_outside
from cmroot.store.place import Place, join, located, name_of, relative
from replicator.captures.inventory import KnownFile
from replicator.captures.manifest import Manifest
from replicator.core.named_files import NAMED, resource_file
from replicator.core.not_replicated import (
    ACID,
    DELTA,
    FORMATS,
    ICEBERG,
    ICEBERG_VIEW,
    NO_POINTER,
    NO_WRITE_IDS,
    OUTSIDE,
    TRANSACTIONAL_VIEW,
    Format,
    NotReplicated,
    iceberg_pointer,
    is_transactional,
    reason_of,
    view_pointer,
)


def left_out(
    manifest: Manifest, root: str, databases: Iterable[str], holds: Callable[[tuple[str, str]], bool] = lambda _: True
) -> dict[str, str]:
    """Returns the tables of some databases at the manifest's position that are not replicated: "db.table" -> the
    reason. `root`: the `$cmroot` that retains the bytes of their logs; `holds`: selects tables (db, name)."""
    found = {}
    for db in databases:
        for name, format in manifest.formats(db).items():
            if holds((db, name)):
                reason = reason_of(format)
                if format in _LOGS:
                    reason = next(_LOGS[format](manifest, root, db, name), "")
                if reason:
                    found[f"{db}.{name}"] = reason
    return found


def transactional(
    manifest: Manifest, databases: Iterable[str], holds: Callable[[tuple[str, str]], bool] = lambda _: True
) -> list[str]:
    """Returns the transactional tables that are replicated if the target has write ids, as "db.table"."""
    return [
        f"{db}.{name}"
        for db in databases
        for name, format in manifest.formats(db).items()
        if format == ACID and holds((db, name)) and manifest.write_ids(db, name) is not None
    ]


def gaps(manifest: Manifest, tables: dict[str, str]) -> list[NotReplicated]:
    """Converts the result of `left_out` for reports."""
    return [NotReplicated(name, why, bytes=manifest.size_of(*name.split(".", 1))) for name, why in tables.items()]


def _delta_problems(manifest: Manifest, root: str, db: str, name: str) -> Iterator[str]:
    """Yields why a Delta table is left out, for each file of its log that names files outside of the table."""
    table = manifest.table(db, name)
    location = (table.location if table else None) or ""
    for path, file, known in manifest.log_files(db, name, LOG):
        if _problem(manifest, root, location, path, file, known, _named_outside):
            yield OUTSIDE


def _named_outside(path: str, location: str, stream: BinaryIO) -> str:
    try:
        return OUTSIDE if names_outside(join(location, path), stream) else ""
    except (msgspec.DecodeError, pa.ArrowException, KeyError, TypeError, ValueError):
        return ""  # treated as an ordinary file


def _iceberg_problems(manifest: Manifest, root: str, db: str, name: str) -> Iterator[str]:
    """Yields why an Iceberg table is left out: its metadata file, or a list or manifest, cannot be translated."""
    table = manifest.table(db, name)
    if table is None or table.location is None:
        return
    pointer, said = iceberg_pointer(table), f"{FORMATS[ICEBERG].said}: "
    if not pointer:
        yield NO_POINTER.format(FORMATS[ICEBERG].said)
        return
    own = relative(pointer, table.location)
    if not own:
        yield f"{said}its metadata file {pointer} is outside of its location"
        return
    files = {path: (file, known) for path, file, known in manifest.log_files(db, name, iceberg.DIRECTORY, own)}
    if not iceberg.in_tree(own):
        yield f"{said}its metadata file {pointer} is not in the directory {iceberg.DIRECTORY} of its location"
    elif own not in files:
        yield f"{said}its metadata file {pointer} was not found"
    for path, (file, known) in files.items():
        if path != own and (iceberg.is_metadata(path) or not iceberg.in_tree(path)):
            continue
        if problem := _problem(manifest, root, table.location, path, file, known, _not_translatable):
            yield said + problem


def _view_problems(manifest: Manifest, root: str, db: str, name: str) -> Iterator[str]:
    """Yields why an Iceberg view is left out: its metadata file cannot be translated."""
    table, database, said = manifest.table(db, name), manifest.database(db), f"{FORMATS[ICEBERG_VIEW].said}: "
    if table is None or table.location is None or database is None or database.location is None:
        return
    pointer = view_pointer(table)
    if not pointer:
        yield NO_POINTER.format(FORMATS[ICEBERG_VIEW].said)
        return
    if relative(table.location, database.location) is None:
        yield f"{said}its location {table.location} is outside of its database's"
    file, own = resource_file(database.location, pointer), relative(pointer, table.location)
    if file is None or (not own and NAMED not in pointer):
        yield f"{said}its metadata file {pointer} is outside of its location"
    elif (found := manifest.view_file(db, file.path, table.location)) is None:
        yield f"{said}its metadata file {pointer} was not found"
    elif problem := _problem(manifest, root, table.location, own or name_of(pointer), *found, _no_view):
        yield said + problem


def _writes_outside(path: str, data: bytes, location: str) -> str:
    places = (place for place in iceberg.locations_of(path, data) if relative(place, location) is None)
    outside = next(places, "")
    return f"its writers write to {outside}, which is outside of its location" if outside else ""


def _no_view(path: str, location: str, stream: BinaryIO) -> str:
    try:
        data = stream.read()
        iceberg.translated_view(path, data, *[lambda text: text] * 3)
        return _writes_outside(path, data, location)
    except FormatError as error:
        return error.message


def _not_translatable(path: str, location: str, stream: BinaryIO) -> str:
    try:
        data = stream.read()
        if iceberg.is_metadata(path) and (outside := _writes_outside(path, data, location)):
            return outside
        for each in iceberg.references(path, data):
            if problem := iceberg.problem_of(each):
                return f"{each.path}: {problem}"
            own = relative(each.path, location)
            if own is None:
                return f"its file {each.path} is outside of its location"
            if iceberg.in_tree(own) != (each.kind in ("list", "manifest")):  # only those there are translated so
                return f"its file {each.path} is not where its kind is expected"
    except FormatError as error:
        return error.message
    return ""


def _acid_problems(manifest: Manifest, root: str, db: str, name: str) -> Iterator[str]:
    """Yields why a transactional table is left out: no capture could read its write ids, or it is a view's."""
    table = manifest.table(db, name)
    if table is not None and not is_transactional(table):
        yield TRANSACTIONAL_VIEW
    elif manifest.write_ids(db, name) is None:
        yield NO_WRITE_IDS


_LOGS: dict[Format, Callable[[Manifest, str, str, str], Iterator[str]]] = {
    DELTA: _delta_problems,
    ICEBERG: _iceberg_problems,
    ICEBERG_VIEW: _view_problems,
    ACID: _acid_problems,
}


def _problem(
    manifest: Manifest,
    root: str,
    location: str,
    path: str,
    file: KnownFile,
    known: str | None,
    examine: Callable[[str, str, BinaryIO], str],
) -> str:
    """Returns why a file of a log makes a copy of its table no copy; empty if it does not, or if its bytes are gone.
    Each content is examined once at a location."""
    if known is not None or file.checksum is None:
        return known or ""
    for open_file in _openings(join(location, path), file, root):
        with suppress(FileNotFoundError), open_file() as stream:
            found = examine(path, location, stream)
            manifest.remember_log_file(file.checksum, location, found)
            return found
    return ""


def _openings(place: str, file: KnownFile, root: str) -> Iterator[Callable[[], BinaryIO]]:
    assert file.checksum is not None and file.size is not None
    kept = locate(root, file.checksum, file.size)
    yield lambda: Place(kept).open_read()
    yield lambda: located(place).open_read()
    if version := file.version:
        yield lambda: open_version(place, version, file.size)
