"""An Iceberg table of many appends with the files that PyIceberg's leave: for each a manifest, a list of all manifests
and a metadata file. PyIceberg makes the first append; the others are written here, as PyIceberg takes longer with each.
"""

from __future__ import annotations

import io
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastavro
import msgspec
import pyarrow as pa
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import IdentityTransform

from benchmarks import ground
from replicator.metastore.thrift import ThriftMetastore

FILES = 10  # of an append, and rows: one in each
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])


def table(client: ThriftMetastore, db: str, appends: int) -> Table:
    """The table `t` of a new database."""
    catalog = HiveCatalog("bench", uri=client.uri, **{"hive.hive2-compatible": "true"})
    location = f"file://{ground.create_database(client, db)}/t"
    made = catalog.create_table(f"{db}.t", SCHEMA, location=location, properties={"format-version": "2"})
    with made.update_spec() as update:
        update.add_field("day", IdentityTransform())
    append(made, 0)
    _Appends(made).write(appends - 1)
    known = client.table(db, "t")
    newest = max(Path(urlsplit(location).path, "metadata").glob("*.metadata.json"))
    parameters = {**known.parameters, "metadata_location": f"file://{newest}"}
    client.alter_table(db, "t", msgspec.structs.replace(known, parameters=parameters))
    made = made.refresh()
    assert made.scan().count() == appends * FILES and len(made.metadata.snapshots) == appends
    return made


def append(made: Table, number: int) -> None:
    """One more append, by PyIceberg."""
    days = [f"d{each}" for each in range(FILES)]
    made.append(pa.table({"id": [number] * FILES, "day": days}, schema=SCHEMA))


class _Appends:
    """Appends like a table's only one."""

    def __init__(self, made: Table) -> None:
        self._metadata = json.loads(_read(made.metadata_location))
        self._before = made.metadata_location
        (first,) = self._metadata["snapshots"]
        self._list = _Avro(first["manifest-list"])
        self._manifest = _Avro(self._list.records[0]["manifest_path"])
        self._manifests = self._list.records
        self._place = f"{made.location()}/metadata"

    def write(self, count: int) -> None:
        first = self._metadata["current-snapshot-id"] // 2
        for number in range(2, count + 2):
            self._append(number, first + number)

    def _append(self, number: int, id: int) -> None:
        commit, before = str(uuid.uuid4()), self._metadata["snapshots"][-1]
        manifest, place = f"{self._place}/{commit}-m0.avro", f"{self._place}/snap-{id}-0-{commit}.avro"
        self._manifest.write(manifest, list(self._entries(id, commit)))
        own = {"manifest_path": manifest, "manifest_length": os.path.getsize(_path(manifest))}
        own |= {"added_snapshot_id": id, "sequence_number": number, "min_sequence_number": number}
        self._manifests = [{**self._manifests[-1], **own}, *self._manifests]
        ids = {"snapshot-id": id, "parent-snapshot-id": before["snapshot-id"], "sequence-number": number}
        self._list.write(place, self._manifests, **{key: str(value) for key, value in ids.items()})
        at = before["timestamp-ms"] + 1
        self._commit(number, {**before, **ids, "timestamp-ms": at, "manifest-list": place, **self._summary(number)})

    def _entries(self, id: int, commit: str) -> Iterator[dict[str, Any]]:
        """The entries of an append's manifest. Its data files are links to the first one's."""
        for number, entry in enumerate(self._manifest.records):
            file = entry["data_file"]
            place = f"{file['file_path'].rpartition('/')[0]}/00000-{number}-{commit}.parquet"
            os.link(_path(file["file_path"]), _path(place))
            yield {**entry, "snapshot_id": id, "data_file": {**file, "file_path": place}}

    def _summary(self, number: int) -> dict[str, Any]:
        found = dict(self._metadata["snapshots"][0]["summary"])
        for key in ("data-files", "records", "files-size"):
            found[f"total-{key}"] = str(number * int(found[f"added-{key}"]))
        return {"summary": found}

    def _commit(self, number: int, snapshot: dict[str, Any]) -> None:
        found, id, at = self._metadata, snapshot["snapshot-id"], snapshot["timestamp-ms"]
        log = [*found["metadata-log"], {"metadata-file": self._before, "timestamp-ms": found["last-updated-ms"]}]
        found["metadata-log"] = log[-TableProperties.METADATA_PREVIOUS_VERSIONS_MAX_DEFAULT :]
        found |= {"last-sequence-number": number, "last-updated-ms": at, "current-snapshot-id": id}
        found["refs"]["main"]["snapshot-id"] = id
        found["snapshots"].append(snapshot)
        found["snapshot-log"].append({"snapshot-id": id, "timestamp-ms": at})
        self._before = f"{self._place}/{number + 1:05}-{uuid.uuid4()}.metadata.json"
        Path(_path(self._before)).write_text(json.dumps(found, separators=(",", ":")))


class _Avro:
    """An Avro file of the first append, and others like it."""

    def __init__(self, place: str) -> None:
        reader = fastavro.reader(io.BytesIO(_read(place)))
        self.records: list[dict[str, Any]] = list(reader)  # type: ignore[arg-type]
        self._properties = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
        self._schema, self._codec = fastavro.parse_schema(reader.writer_schema), reader.codec

    def write(self, place: str, records: list[dict[str, Any]], **properties: str) -> None:
        with open(_path(place), "wb") as file:
            metadata = {**self._properties, **properties}
            fastavro.writer(file, self._schema, records, codec=self._codec, metadata=metadata)


def _read(place: str) -> bytes:
    return Path(_path(place)).read_bytes()


def _path(place: str) -> str:
    return urlsplit(place).path
