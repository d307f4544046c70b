"""The schema of a landing table: its columns, and whether a source's new ones may replace them. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

import msgspec

from replicator.core.model import EXTERNAL, Column, Serde, Storage, Table
from replicator.core.text.quantity import parse_duration
from replicator.errors import Error
from replicator.ingestion.ingestion_request import Asset, Format, Request, SchemaPolicy
from replicator.lifecycle.housekeeping.settings import REMOVE_EXPIRED, REMOVE_UNREFERENCED, UNREFERENCED_PERIOD
from replicator.lifecycle.purge.swapping import PURGED, WRITTEN

PREFIX = "replicator.ingestion."
"""Of the parameters in which a landing table names its origin."""

JOB, FENCE, ASSET, SOURCE, SCHEMA_HASH, WATERMARK, FILES, SINCE, SEAL = (
    PREFIX + each for each in ("job", "fence", "asset", "source", "schema-hash", "watermark", "files", "since", "seal")
)
LOAD = Column("landed", "bigint", "the job that brought the rows")
"""The partition key of a table to which jobs append: a job's rows appear with its partition, at once."""

DESCRIPTOR = "dataset.descriptor"
"""In which a purge looks for the column of people."""

_LIFECYCLE = (DESCRIPTOR, REMOVE_UNREFERENCED, UNREFERENCED_PERIOD)
_SEALED = (ASSET, SOURCE, *_LIFECYCLE, REMOVE_EXPIRED)

_FORMATS: dict[Format, tuple[str, str, str]] = {
    "parquet": (
        "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat",
        "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat",
        "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe",
    ),
    "orc": (
        "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat",
        "org.apache.hadoop.hive.ql.io.orc.OrcOutputFormat",
        "org.apache.hadoop.hive.ql.io.orc.OrcSerde",
    ),
}


class SchemaRefused(Error):
    """The source's columns differ from the landing table's in a way that the request does not allow."""


class RowsRefused(Error):
    """Rows of the source cannot be landed as it was asked; the message says which."""


def landed_columns(found: Sequence[Column]) -> tuple[Column, ...]:
    """A source's columns as a landing table has them: a metastore keeps names in lower case. Raises SchemaRefused for
    two names that would be one, and for the name of the partition key."""
    seen: dict[str, str] = {}
    for column in found:
        name = column.name.lower()
        if name in seen or name == LOAD.name:
            other = seen.get(name, "the landing table's own partition key")
            raise SchemaRefused(
                f"column {column.name!r} has the name of {other!r}", hint="names differ by more than their case here"
            )
        seen[name] = column.name
    return tuple(Column(column.name.lower(), column.type, column.comment) for column in found)


def schema_hash(columns: Sequence[Column], format: Format, appended: bool) -> str:
    """Of all that counts as the schema: names, types, format, partition key. Comments and nullability do not."""
    said = [[column.name, column.type] for column in columns], format, appended
    return hashlib.blake2s(msgspec.json.encode(said), digest_size=16).hexdigest()


def settled_columns(now: Sequence[Column], wanted: Sequence[Column], policy: SchemaPolicy) -> tuple[Column, ...]:
    """The columns that a landing table has from now on, in their order. Raises SchemaRefused, naming columns."""
    types = {column.name: column.type for column in now}
    asked = {column.name: column.type for column in wanted}
    if types == asked:
        return tuple(now)
    if policy == "recreate":
        return tuple(wanted)
    changed = [_change(name, types[name], asked.get(name)) for name in types if asked.get(name) != types[name]]
    added = [column for column in wanted if column.name not in types]
    if changed or policy == "fail":
        said = [*changed, *(f"{column.name} {column.type} is new" for column in added)]
        hint = "ask with schema_policy recreate" if changed else "ask with schema_policy add_columns or recreate"
        raise SchemaRefused(f"the source's columns changed: {'; '.join(said)}", hint=hint)
    return (*now, *added)


def _change(name: str, was: str, is_now: str | None) -> str:
    return f"{name} is gone" if is_now is None else f"{name} was {was} and is {is_now}"


def landing_table(
    asset: Asset, request: Request, columns: Sequence[Column], location: str, key: Column = LOAD
) -> Table:
    """A landing table that is not there yet. location: of its rows, or of a table whose partitions, by `key`, hold
    them."""
    db, name = request.target
    parameters = {"EXTERNAL": "TRUE", ASSET: asset.name, SOURCE: request.place}
    return Table(
        db=db,
        name=name,
        kind=EXTERNAL,
        owner=asset.owner,
        storage=stored_as(request.format, columns, location),
        partition_keys=(key,) if request.mode == "append" else (),
        parameters=with_lifecycle(parameters, asset, columns),
    )


def seal_of(parameters: Mapping[str, str]) -> str:
    """Of the properties by which purge and housekeeping know a landing table."""
    said = {key: parameters[key] for key in _SEALED if key in parameters}
    return hashlib.blake2s(msgspec.json.encode(said, order="sorted"), digest_size=8).hexdigest()


def sealed(parameters: Mapping[str, str]) -> dict[str, str]:
    return {**parameters, SEAL: seal_of(parameters)}


def with_lifecycle(parameters: Mapping[str, str], asset: Asset, columns: Sequence[Column]) -> dict[str, str]:
    """A table's properties, sealed, with those of its asset as it is now: by which housekeeping removes versions that
    were replaced, and after how long, and by which a purge knows the column of people."""
    found = {key: value for key, value in parameters.items() if key not in _LIFECYCLE} | {REMOVE_UNREFERENCED: "true"}
    if asset.retention is not None:
        found[UNREFERENCED_PERIOD] = f"PT{int(parse_duration(asset.retention).total_seconds())}S"
    if asset.erasure_column and asset.erasure_column.lower() in {column.name for column in columns}:
        found[DESCRIPTOR] = msgspec.json.encode({"privacy": {"column": asset.erasure_column.lower()}}).decode()
    return sealed(found)


def stored_as(format: Format, columns: Sequence[Column], location: str) -> Storage:
    """Rows of these columns in files of a format."""
    input_format, output_format, serde = _FORMATS[format]
    return Storage(
        columns=tuple(columns),
        location=location,
        input_format=input_format,
        output_format=output_format,
        serde=Serde(library=serde, parameters={"serialization.format": "1"}),
    )


def format_of(table: Table) -> Format | None:
    """The format of a landing table; None for another one."""
    found = table.storage.input_format if table.storage else None
    return next((name for name, classes in _FORMATS.items() if classes[0] == found), None)


def marked(parameters: dict[str, str]) -> tuple[int, int]:
    """The job and the fencing number that a table or a partition was published with; (0, 0) for one that was not."""
    try:
        return int(parameters.get(JOB, "0")), int(parameters.get(FENCE, "0"))
    except ValueError:
        return 0, 0


def written_text(files: int, size: int) -> str:
    """What a publication wrote, as it stands in parameters: others who write there update `numFiles`, and not this."""
    return f"{files} files, {size} bytes"


def written_sizes(parameters: Mapping[str, str], purged: bool) -> tuple[int, int] | None:
    """Files and bytes of `written_text`, purged: as a purge wrote it anew; None where it is not said."""
    end = PURGED if purged else f"({PURGED})?"  # what it was before, where a purge was undone
    found = re.fullmatch(rf"(\d+) files, (\d+) bytes{end}", parameters.get(WRITTEN, ""), re.ASCII)
    return (int(found[1]), int(found[2])) if found else None
