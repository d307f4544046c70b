"""Iceberg tables of a `Lab`, written and read by PyIceberg."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from command_line import Answer, command
from lab import Lab
from pyiceberg.avro.file import AvroFile
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import snapshot
from pyiceberg.typedef import Record

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)


def catalog(uri: str, **more: str) -> HiveCatalog:
    return HiveCatalog("tests", uri=uri, **{"hive.hive2-compatible": "true", **more})


def make(lab: Lab, name: str = "t", db: str | None = None, **properties: str) -> Table:
    """A new table of the source. db: of a policy's databases."""
    database = lab.db(db) if db else lab.source
    return catalog(lab.source_uri).create_table(
        f"{database.name}.{name}",
        SCHEMA,
        location=f"file://{database.home}/{name}",
        properties={"format-version": "2", **properties},
    )


def aged(lab: Lab, snapshots: int, *, like: int = -1, name: str = "t") -> None:
    """Gives a table more snapshots, as years of commits do, without PyIceberg, which takes a millisecond for each that
    a table has. Each has a list of manifests of its own, a copy of that of `like`."""
    there = lab.source.metastore.table(lab.name, name)
    metadata = json.loads(_read(urlsplit(there.parameters["metadata_location"]).path))
    known, logged = metadata["snapshots"], metadata["snapshot-log"]
    own, data = str(known[like]["snapshot-id"]), _read(urlsplit(known[like]["manifest-list"]).path)
    first = 10 ** (len(own) - 1) + len(known)
    for id in range(first, first + snapshots):
        place = f"{metadata['location']}/metadata/snap-{id}.avro"
        with open(urlsplit(place).path, "wb") as file:
            file.write(data.replace(own.encode(), str(id).encode(), 1))
        before = known[-1]
        at, sequence = before["timestamp-ms"] + 1, before["sequence-number"] + 1
        more = {"snapshot-id": id, "sequence-number": sequence, "timestamp-ms": at, "manifest-list": place}
        known.append({**known[like], **more, "parent-snapshot-id": before["snapshot-id"]})
        logged.append({"snapshot-id": id, "timestamp-ms": at})
    last = known[-1]
    metadata |= {"last-sequence-number": last["sequence-number"], "last-updated-ms": last["timestamp-ms"]}
    metadata |= {"current-snapshot-id": id, "refs": {"main": {"snapshot-id": id, "type": "branch"}}}
    place = f"{metadata['location']}/metadata/{len(known):05}-{uuid.uuid4()}.metadata.json"
    with open(urlsplit(place).path, "w") as text:
        json.dump(metadata, text)
    parameters = {**there.parameters, "metadata_location": place}
    lab.source.metastore.alter_table(lab.name, name, msgspec.structs.replace(there, parameters=parameters))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"n{each}" for each in ids]}, schema=SCHEMA)


def shown(table: Table, **scan: Any) -> list[int]:
    """The ids in a table, in order."""
    return sorted(table.scan(**scan).to_arrow()["id"].to_pylist())


def states(table: Table) -> dict[int, list[int]]:
    """The ids in every snapshot."""
    return {each.snapshot_id: shown(table, snapshot_id=each.snapshot_id) for each in table.metadata.snapshots}


def replica(lab: Lab, name: str = "t", db: str | None = None) -> Table:
    return catalog(lab.target_uri).load_table(f"{lab.replica(db).name if db else lab.name}.{name}")


def replicated(lab: Lab, *more: str) -> None:
    """Dumps everything, or the changes since the last dump, and loads it."""
    before = lab.last if lab.dumps else None
    for answer in (lab.dump(*more, since=before), lab.load()):
        assert answer.code == 0, answer


def verified(lab: Lab, *more: str) -> Answer:
    sides = ["--source", lab.source_uri, "--target", lab.target_uri, "--db", lab.name]
    return command("verify", *sides, "--engine", "local", *more)


def is_same(lab: Lab) -> None:
    found = verified(lab)
    assert (found.code, found.output["status"]) == (0, "same"), found
    assert naming_source(lab) == []


def data_file(table: Table) -> str:
    """One of a table's data files."""
    return str(table.inspect.data_files()["file_path"][0].as_py())


def delete_rows(
    table: Table, file: str | Sequence[str], positions: Sequence[int], directory: str | None = None
) -> Table:
    """Commits a position-delete file, as engines with merge-on-read do. file: of all positions, or of each. directory:
    where it is, if not in the table."""
    files = sorted([file] * max(1, len(positions)) if isinstance(file, str) else file)
    location = f"{directory or f'{table.location()}/data'}/{uuid.uuid4()}-deletes.parquet"
    path = urlsplit(location).path
    pq.write_table(pa.table([files[: len(positions)], list(positions)], schema=DELETES), path, store_schema=False)
    found = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(positions),
        file_size_in_bytes=os.path.getsize(path),
        lower_bounds={2147483546: files[0].encode()},
        upper_bounds={2147483546: files[-1].encode()},
        split_offsets=[4],
        sort_order_id=None,
        spec_id=table.spec().spec_id,
    )
    with table.transaction() as transaction, _Deletes(Operation.DELETE, transaction, table.io) as update:
        update.added = found
    return table.refresh()


class _DeleteWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _Deletes(snapshot._FastAppendFiles):
    added: DataFile

    def _manifests(self) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        writer = _DeleteWriter(
            metadata.spec(), self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression
        )
        entry = ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=self.added
        )
        with writer as opened:
            opened.add(entry)
        return [writer.to_manifest_file(), *self._existing_manifests()]


def reachable(table: Table) -> set[str]:
    """The files of a table's snapshots, and its metadata files, as local paths."""
    found = {table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)}
    for each in table.metadata.snapshots:
        found.add(each.manifest_list)
        for manifest in each.manifests(table.io):
            found.add(manifest.manifest_path)
            found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    return {urlsplit(each).path for each in found}


def expire(table: Table) -> Table:
    """Expires all snapshots but the current one, then removes their files, as Iceberg does."""
    before = reachable(table)
    current = table.metadata.current_snapshot_id
    old = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id != current]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    table = table.refresh()
    for path in before - reachable(table):
        os.unlink(path)
    return table


def naming_source(lab: Lab, db: str | None = None, *others: os.PathLike[str]) -> list[str]:
    """Files of the replica that contain the source's directory, or others. Blocks of Avro are unpacked. The names of
    files from outside of a table, in the directory `outside` of its replica, contain their former paths."""
    places = [os.fsencode(each) for each in (lab.db(db).home if db else lab.source.home, *others)]
    found = re.compile(b"|".join(b"(?<!/outside/file)" + re.escape(each) for each in places))
    home = lab.replica(db).home if db else lab.target.home
    return [str(path) for path in home.rglob("*") if path.is_file() and found.search(_unpacked(str(path)))]


def _unpacked(path: str) -> bytes:
    data = _read(path)
    if path.endswith(".avro"):
        with AvroFile[Record](PyArrowFileIO().new_input(path)) as reader:
            return data + repr(list(reader)).encode()
    if path.endswith(".parquet"):
        return data + repr(pq.read_table(path).to_pydict()).encode()
    return data
