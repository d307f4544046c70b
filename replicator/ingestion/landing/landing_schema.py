"""The schema of a landing table: its columns, and whether changed columns of the source may replace them. Pure."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec

from replicator.core.model import EXTERNAL, FOREIGN_KEY, PRIMARY_KEY, Column, Constraint, Serde, Storage, Table
from replicator.core.text import parse_duration
from replicator.errors import Error, MetastoreError, ObjectNotFound, Refused, UsageError
from replicator.ingestion.ingestion_request import Asset, Format, Request, SchemaPolicy
from replicator.ingestion.reading.source_table import SourceColumn, SourceTable
from replicator.lifecycle.housekeeping.settings import REMOVE_EXPIRED, REMOVE_UNREFERENCED, UNREFERENCED_PERIOD
from replicator.lifecycle.purge.swapping import PURGED, WRITTEN
from replicator.metastore.client import Metastore

PREFIX = "replicator.ingestion."
"""The prefix of the parameters by which a landing table records its origin."""

JOB, FENCE, ASSET, SOURCE, SCHEMA_HASH, WATERMARK, FILES, SINCE, SEAL = (
    PREFIX + each for each in ("job", "fence", "asset", "source", "schema-hash", "watermark", "files", "since", "seal")
)
LOAD = Column("landed", "bigint", "the job that landed the rows")
"""The partition key of a table to which jobs append: a job's rows become visible with its partition, atomically."""

DESCRIPTOR = "dataset.descriptor"
"""The parameter in which a purge finds the column that identifies data subjects."""

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
    """The source's columns differ from the landing table's in a way that the request does not permit."""


class RowsRefused(Error):
    """Rows of the source cannot be landed as requested; the message contains the reason."""


def landed_columns(found: Sequence[Column]) -> tuple[Column, ...]:
    """Returns a source's columns as columns of a landing table: a metastore stores names in lower case. Raises
    SchemaRefused for two names that would be equal, and for the name of the partition key."""
    seen: dict[str, str] = {}
    for column in found:
        name = column.name.lower()
        if name in seen or name == LOAD.name:
            other = seen.get(name, "the landing table's own partition key")
            raise SchemaRefused(
                f"column {column.name!r} has the same name as {other!r}", hint="names must differ in more than case"
            )
        seen[name] = column.name
    return tuple(Column(column.name.lower(), column.type, column.comment) for column in found)


def schema_hash(columns: Sequence[Column], format: Format, appended: bool) -> str:
    """Returns a hash of names, types, format and partition key. Comments and nullability are not part of the schema."""
    said = [[column.name, column.type] for column in columns], format, appended
    return hashlib.blake2s(msgspec.json.encode(said), digest_size=16).hexdigest()


def settled_columns(now: Sequence[Column], wanted: Sequence[Column], policy: SchemaPolicy) -> tuple[Column, ...]:
    """Returns the columns that a landing table has from now on, in order. Raises SchemaRefused, naming columns."""
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
        hint = "request schema_policy recreate" if changed else "request schema_policy add_columns or recreate"
        raise SchemaRefused(f"the source's columns changed: {'; '.join(said)}", hint=hint)
    return (*now, *added)


_EXACT = "decimal(38,18)"
_WIDER = ("bigint", "double", _EXACT, "string")
"""Types of values without a declared type, each for more values than the one before."""


def common_types(inferred: str, landed: str, *, widen: bool) -> list[str]:
    """Returns types that may have the values of an inferred type and those of a landed one, the best first. widen: also
    others than the landed one."""
    start = max(_WIDER.index(each) if each in _WIDER else _place_of(each) for each in (inferred, landed))
    also = [each for each in _WIDER[start:] if each != landed] if widen else []
    return [landed, *also]


def _place_of(type_: str) -> int:
    return _WIDER.index(_EXACT if type_.startswith("decimal") else "string")


def lossy(value: str, inferred: str, type_: str) -> str:
    """Returns SQL that is true if another type would change a value. Texts become no numbers: 007 is not 7."""
    if "string" in (inferred, type_) and inferred != type_:
        return f"{value} IS NOT NULL" if inferred == "string" else "false"
    if "boolean" in (inferred, type_):
        return f"{value} IS NOT NULL"
    return f"NOT try_cast(try_cast({value} AS {type_}) AS {inferred}) <=> {value}"


def _change(name: str, was: str, is_now: str | None) -> str:
    return f"{name} no longer exists" if is_now is None else f"{name} was {was} and is {is_now}"


def landing_table(
    asset: Asset, request: Request, columns: Sequence[Column], location: str, key: Column = LOAD
) -> Table:
    """Returns a new landing table. location: of its rows, or of a table whose partitions, by `key`, contain them."""
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
    """Returns a checksum of the properties by which purge and housekeeping recognise a landing table."""
    said = {key: parameters[key] for key in _SEALED if key in parameters}
    return hashlib.blake2s(msgspec.json.encode(said, order="sorted"), digest_size=8).hexdigest()


def sealed(parameters: Mapping[str, str]) -> dict[str, str]:
    return {**parameters, SEAL: seal_of(parameters)}


def with_lifecycle(parameters: Mapping[str, str], asset: Asset, columns: Sequence[Column]) -> dict[str, str]:
    """Returns a table's properties, sealed, with those of its asset as it is now: whether and after what period
    housekeeping deletes replaced versions, and the column by which a purge identifies data subjects."""
    found = {key: value for key, value in parameters.items() if key not in _LIFECYCLE} | {REMOVE_UNREFERENCED: "true"}
    if asset.retention is not None:
        found[UNREFERENCED_PERIOD] = f"PT{int(parse_duration(asset.retention).total_seconds())}S"
    if asset.erasure_column and asset.erasure_column.lower() in {column.name for column in columns}:
        rules = {"ids": {"match": asset.erasure_match}} if asset.erasure_match else {}
        about = {"privacy": {"column": asset.erasure_column.lower()}, **rules}
        found[DESCRIPTOR] = msgspec.json.encode(about).decode()
    return sealed(found)


def stored_as(format: Format, columns: Sequence[Column], location: str) -> Storage:
    """Returns the storage of rows with these columns in files of a format."""
    input_format, output_format, serde = _FORMATS[format]
    return Storage(
        columns=tuple(columns),
        location=location,
        input_format=input_format,
        output_format=output_format,
        serde=Serde(library=serde, parameters={"serialization.format": "1"}),
    )


def format_of(table: Table) -> Format | None:
    """Returns the format of a landing table; None for another table."""
    found = table.storage.input_format if table.storage else None
    return next((name for name, classes in _FORMATS.items() if classes[0] == found), None)


def marked(parameters: dict[str, str]) -> tuple[int, int]:
    """Returns the job and the fencing number with which a table or a partition was published; (0, 0) if it was not."""
    try:
        return int(parameters.get(JOB, "0")), int(parameters.get(FENCE, "0"))
    except ValueError:
        return 0, 0


def written_text(files: int, size: int) -> str:
    """Returns the size of a publication as recorded in parameters: other writers update `numFiles`, but not this."""
    return f"{files} files, {size} bytes"


def written_sizes(parameters: Mapping[str, str], purged: bool) -> tuple[int, int] | None:
    """Returns files and bytes of `written_text`, purged: as rewritten by a purge; None if they are not recorded."""
    end = PURGED if purged else f"({PURGED})?"  # the former text, if a purge was undone
    found = re.fullmatch(rf"(\d+) files, (\d+) bytes{end}", parameters.get(WRITTEN, ""), re.ASCII)
    return (int(found[1]), int(found[2])) if found else None


# ---- source keys -----------------------------------------------------------------------------------------------------
# Constraints of a source as those of its landing table. They are not enforced, but planners profit from those that hold
# (RELY).


log = logging.getLogger(__name__)


def constraints_of(source: SourceTable, request: Request, *, holds: bool = True) -> list[Constraint]:
    """Returns the constraints of a landing table: its primary key, and foreign keys to tables of the same source
    schema, which land next to it. An append table has none: a changed row occurs in it twice. A planner may rely on the
    primary key if all rows are replaced, or merged by it; it may not rely on foreign keys, because the other table
    lands at another time. holds: False: landed rows may have a key twice, and planners must not rely on it."""
    if request.mode == "append":
        return []
    db, table = request.target
    found = []
    if source.primary_key:
        columns = tuple(each.lower() for each in source.primary_key)
        by_it = request.mode == "overwrite" or {each.lower() for each in request.key} == set(columns)
        found.append(Constraint(kind=PRIMARY_KEY, name=f"{db}_{table}_pk", columns=columns, rely=by_it and holds))
    for number, key in enumerate(source.foreign_keys, 1):
        if key.schema == source.schema:
            found.append(
                Constraint(
                    kind=FOREIGN_KEY,
                    name=f"{db}_{table}_fk{number}",
                    columns=tuple(each.lower() for each in key.columns),
                    parent=(db, key.table.lower()),
                    parent_columns=tuple(each.lower() for each in key.references),
                )
            )
    return found


def key_holds(request: Request, facts: Mapping[str, Any], source: SourceTable) -> bool:
    """Returns True if the landed rows are known to have the source's primary key: a merge has counted its keys, and a
    copy of one moment has them as the source; a date that is no day has become NULL."""
    if request.mode == "merge":
        return bool(facts.get("key_holds"))
    figures = facts.get("figures")
    if figures is None:
        return bool(facts.get("consistent"))
    filled = all(figures["counts"].get(name, figures["rows"]) == figures["rows"] for name in source.primary_key)
    return filled and bool(facts.get("consistent") or facts.get("splits") == 1)


def keep_constraints(metastore: Metastore, request: Request, wanted: Sequence[Constraint]) -> list[str]:
    """Updates a table's constraints to the wanted ones. Returns those that its metastore refuses now, such as a foreign
    key to a table that has not landed yet. May run twice."""
    db, table = request.target
    there = metastore.constraints(db, [table]).get(table, ())
    refused = []
    for old in there:
        if _facts(old) not in map(_facts, wanted):
            metastore.drop_constraint(db, table, old.name)
    for new in wanted:
        if _facts(new) in map(_facts, there) or not _has_parent(metastore, new):
            continue
        try:
            metastore.add_constraint(db, table, new)
        except MetastoreError as error:
            if error.transient:
                raise
            refused.append(f"{new.name}: {error.message}")
    return refused


@contextmanager
def without_keys(metastore: Metastore, table: Table, changes: bool) -> Iterator[None]:
    """Drops keys inside the block. changes: True if the table's columns change in it: a metastore refuses that for a
    table that has keys, or is referenced by keys of others. Afterwards the others' keys are restored, where still
    possible, and the table's own if the change failed; otherwise a step after the publication creates those. Keys lost
    by a crash here are created by the next landing of their table."""
    dropped = list[tuple[str, Constraint]]()
    if changes:
        for name, found in metastore.constraints(table.db, metastore.table_names(table.db)).items():
            keys = [key for key in found if name == table.name or key.parent == (table.db, table.name)]
            for key in sorted(keys, key=lambda key: key.kind != FOREIGN_KEY):
                metastore.drop_constraint(table.db, name, key.name)
                dropped.append((name, key))
    changed = False
    try:
        yield
        changed = True
    finally:
        for name, key in reversed(dropped):
            if name != table.name or not changed:
                _put_back(metastore, table.db, name, key)


def _put_back(metastore: Metastore, db: str, table: str, key: Constraint) -> None:
    """Restores a key. If it is refused, the landing continues, and the table's next landing creates its keys."""
    try:
        metastore.add_constraint(db, table, key)
    except MetastoreError as error:
        log.warning("%s.%s: its key %s was not restored: %s", db, table, key.name, error.message)


def _has_parent(metastore: Metastore, constraint: Constraint) -> bool:
    if constraint.parent is None:
        return True
    try:
        metastore.table(*constraint.parent)
    except ObjectNotFound:
        return False
    return True


def _facts(one: Constraint) -> tuple[object, ...]:
    return one.kind, one.name, one.columns, one.parent, one.parent_columns, one.rely


# ---- watermarks ------------------------------------------------------------------------------------------------------
# Watermarks: the value up to which a table's rows have landed. It is stored in the metastore, atomically with the
# publication, so that a job killed after its publication, before it could record it, is not landed twice.


def watermark_text(request: Request, value: str | None) -> str | None:
    """Returns the column and its greatest landed value, as stored in parameters."""
    if request.watermark is None or value is None:
        return None
    return msgspec.json.encode([request.watermark.lower(), value]).decode()


def landed_until(
    metastore: Metastore,
    table: Table | None,
    request: Request,
    columns: Sequence[Column],
    job: int,
    remembered: Mapping[str, Any],
) -> str | None:
    """Returns the greatest landed value, ignoring this job's own partition; None: all rows are new, also for a merge
    into columns other than `columns`, where existing rows would have no value in a new one. remembered: facts of the
    newest published job of the same request, and its number as `job`. Raises RowsRefused if rows were appended by
    another column: it is unknown which of them have landed."""
    if table is None or table.storage is None or request.watermark is None:
        return None
    if request.mode == "merge" and _named(table.storage.columns) != _named(columns):
        return None
    said = table.parameters.get(WATERMARK)
    if request.mode == "append":
        names = metastore.partition_names(table.db, table.name)
        others = {int(name.partition("=")[2]) for name in names} - {job}
        said = _of_partition(metastore, table, max(others)) if others else _kept(table, remembered)
    if not said:
        return None
    column, value = msgspec.json.decode(said, type=tuple[str, str])
    if column == request.watermark.lower():
        return value
    if request.mode == "append":
        told = f"rows were appended to {table.db}.{table.name} by watermark {column}, not {request.watermark}"
        raise RowsRefused(told, hint=f"request the watermark {column}, or drop the table")
    return None


def _named(columns: Sequence[Column]) -> list[tuple[str, str]]:
    return [(column.name, column.type) for column in columns]


def _of_partition(metastore: Metastore, table: Table, job: int) -> str | None:
    found = [each for some in metastore.partitions(table.db, table.name, [f"{LOAD.name}={job}"]) for each in some]
    return found[0].parameters.get(WATERMARK) if found else None


def _kept(table: Table, remembered: Mapping[str, Any]) -> str | None:
    """Returns the watermark of a table whose partitions have expired; jobs of a table dropped before do not count."""
    since = table.parameters.get(SINCE, "")
    is_of_it = remembered.get("job", 0) >= (int(since) if since.isdecimal() else 0)
    return remembered.get("watermark") if is_of_it else None


def new_mark(column: SourceColumn, before: str | None, value: str | None, mode: str) -> str | None:
    """Returns the value for a watermark, None to remove it. before: the present one. Raises UsageError for a value that
    does not fit the column's type, and Refused for an earlier one of a table to which rows are appended: its landed
    rows would land twice."""
    if value is not None:
        try:
            _ordered(column, value)
        except (ValueError, ArithmeticError):
            raise UsageError(
                f"{value[:80]!r} is not a value of {column.name} ({column.source_type})",
                hint="write a number, or a time such as 2026-01-31 12:00:00",
            ) from None
    later = value is not None and column.type != "string" and before is not None
    if (
        mode == "append"
        and before is not None
        and not (later and _ordered(column, value or "") >= _ordered(column, before))
    ):
        raise Refused(
            f"rows up to {column.name} {before} have landed, and would land twice",
            hint="request it with --backfill VALUE, which reads rows again and lands them once, or with --rebuild",
        )
    return value


def _ordered(column: SourceColumn, text: str) -> Any:
    """Returns a value of a watermark by which it is ordered. Raises ValueError and ArithmeticError."""
    if column.type.startswith(("date", "timestamp")):
        found = datetime.fromisoformat(text)
        return found if found.tzinfo else found.replace(tzinfo=UTC)
    if column.type == "string":
        return text
    if not (number := Decimal(text)).is_finite():
        raise ValueError(text)
    return number


def write_mark(metastore: Metastore, table: Table, text: str | None) -> None:
    """Sets or removes the watermark of a landing table, or of the newest partition to which rows were appended. May run
    twice."""
    if not table.is_partitioned:
        parameters = {key: value for key, value in table.parameters.items() if key != WATERMARK}
        changed = {**parameters, **({WATERMARK: text} if text else {})}
        metastore.alter_table(table.db, table.name, msgspec.structs.replace(table, parameters=changed))
        return
    jobs = [int(name.partition("=")[2]) for name in metastore.partition_names(table.db, table.name)]
    newest = f"{LOAD.name}={max(jobs, default=0)}"
    for some in metastore.partitions(table.db, table.name, [newest]) if jobs else ():
        kept = ({key: value for key, value in each.parameters.items() if key != WATERMARK} for each in some)
        made = [{**each, **({WATERMARK: text} if text else {})} for each in kept]
        parts = [msgspec.structs.replace(each, parameters=new) for each, new in zip(some, made, strict=True)]
        metastore.alter_partitions(table.db, table.name, parts)
