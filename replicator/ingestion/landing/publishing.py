"""Publishing: the single metastore call that makes landed rows visible. Before it no reader sees them; after it they
are not withdrawn.

If the response of a call is lost, the outcome is determined by reading the metastore, so each call may run twice.
Published objects record their job and fencing number; a job that finds a greater one was overtaken and changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cmroot.store.place import Place
from replicator.core.model import Column, Database, Partition, Table
from replicator.core.text import count_text, quoted_name
from replicator.errors import CommitOutcomeUnknown, Error, MetastoreError, ObjectExists, ObjectNotFound
from replicator.ingestion.file_description import PARENT
from replicator.ingestion.ingestion_request import Asset, PartRequest, Request
from replicator.ingestion.landing.landing_schema import (
    ASSET,
    FENCE,
    JOB,
    LOAD,
    SCHEMA_HASH,
    SINCE,
    SOURCE,
    WATERMARK,
    RowsRefused,
    SchemaRefused,
    format_of,
    landed_until,
    landing_table,
    marked,
    schema_hash,
    settled_columns,
    stored_as,
    with_lifecycle,
    without_keys,
    written_text,
)
from replicator.lifecycle.purge.swapping import WRITTEN
from replicator.metastore.client import Metastore

ATTEMPTS = 5
"""Maximum number of attempts on a table that is changed concurrently."""


_REPLACED = ("COLUMN_STATS_ACCURATE", "rawDataSize", WATERMARK)


class Overtaken(Error):
    """A later job, or a later holder of this one, has published already."""

    exit_code = 75


class ForeignTable(Error):
    """The table exists, but is not a landing table of this asset."""


class BaseChanged(Error):
    """The existing rows on which an increment is based are not those of the table any more."""

    exit_code = 75
    transient = True


@dataclass(frozen=True)
class Landed:
    """Rows stored in their directory. figures: rows, files and bytes. base: the location whose rows they include
    (merge); None: there was no table. whole: they include all rows of a partitioned table, which they replace.
    watermark: see `landing_schema`. low, remembered: result and input of `landed_until` when they were copied."""

    job: int
    fence: int
    columns: tuple[Column, ...]
    location: str
    home: str
    rows: int
    files: int
    bytes: int
    base: str | None = None
    whole: bool = False
    watermark: str | None = None
    low: str | None = None
    remembered: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, facts: Mapping[str, Any], **about: Any) -> Landed:
        """Returns it by the facts of a job. about: the other fields."""
        columns = tuple(Column(*each) for each in facts["columns"])
        own: dict[str, Any] = {name: facts[name] for name in ("location", "rows", "files", "bytes")}
        may: dict[str, Any] = {name: facts.get(name) for name in ("base", "watermark", "low")}
        return cls(columns=columns, **own, **may, whole=facts.get("whole", False), **about)

    @property
    def parameters(self) -> dict[str, str]:
        return {
            JOB: str(self.job),
            FENCE: str(self.fence),
            "numRows": str(self.rows),
            "numFiles": str(self.files),
            "totalSize": str(self.bytes),
            WRITTEN: written_text(self.files, self.bytes),
            **({WATERMARK: self.watermark} if self.watermark else {}),
        }

    @property
    def mark(self) -> tuple[int, int]:
        return self.job, self.fence

    def is_at(self, part: Partition) -> bool:
        """Returns True if a partition is the publication of these rows."""
        return marked(part.parameters) == self.mark and self.lies_at(part.location)

    def lies_at(self, location: str | None) -> bool:
        """Returns True if a location equals that of these rows, regardless of path normalisation by the metastore."""
        return bool(location) and Place(location or "") == Place(self.location)


@dataclass(frozen=True)
class Publication:
    """The result of a publication. event: the newest event of the log afterwards. schema_changed: True if the table was
    created or its columns changed. empty: there was nothing to append."""

    event: int
    schema_changed: bool
    again: bool = False
    empty: bool = False


def landing_of(metastore: Metastore, asset: Asset, request: Request) -> Table | None:
    """Returns the landing table; None if it does not exist yet. Raises ForeignTable."""
    db, name = request.target
    try:
        table = metastore.table(db, name)
    except ObjectNotFound:
        return None
    if table.parameters.get(ASSET) != asset.name:
        raise ForeignTable(
            f"{db}.{name} exists, but is not a landing table of asset {asset.name}", hint="rename or drop that table"
        )
    if not _is_of(request, table):
        told = f"{db}.{name} is landed from {table.parameters.get(SOURCE)}, not from {request.place}"
        raise ForeignTable(told, hint="create a view with another name in the source, or drop that table")
    if table.is_partitioned != (request.mode == "append"):
        had = "was landed by append" if table.is_partitioned else "was not landed by append"
        raise SchemaRefused(f"{db}.{name} {had}", hint="drop it, or request the mode in which it was landed")
    return table


def _is_of(request: Request, table: Table) -> bool:
    """Returns True if a landing table has the rows of a request's source. Earlier releases named the source of a part
    like that of a table."""
    there = table.parameters.get(SOURCE, request.place)
    if isinstance(request, PartRequest) and table.storage and PARENT in {each.name for each in table.storage.columns}:
        return there in (request.place, f"{request.source}:{request.schema}.{request.table}")
    return there == request.place


def columns_of(table: Table | None, wanted: Sequence[Column], request: Request) -> tuple[Column, ...]:
    """Returns the columns that the landing table will have. Raises SchemaRefused."""
    if table is None or table.storage is None:
        return tuple(wanted)
    if format_of(table) != request.format and request.mode != "overwrite":
        raise SchemaRefused(f"{table.db}.{table.name} is not in format {request.format}", hint="request mode overwrite")
    if request.rebuild:
        return tuple(wanted)
    if request.mode == "append" and request.schema_policy == "recreate":
        try:  # older partitions show NULL in columns that are only added
            return settled_columns(table.storage.columns, wanted, "add_columns")
        except SchemaRefused:
            return tuple(wanted)
    return settled_columns(table.storage.columns, wanted, request.schema_policy)


def recreates(table: Table | None, columns: Sequence[Column], request: Request) -> bool:
    """Returns True if a partitioned table is to be replaced, with all its rows in one partition, because these columns
    have other types than landed ones, or lack some."""
    if table is None or table.storage is None or request.mode != "append" or request.schema_policy != "recreate":
        return False
    if request.rebuild:
        return False
    return not {(each.name, each.type) for each in table.storage.columns} <= {(one.name, one.type) for one in columns}


def make_database(metastore: Metastore, asset: Asset, request: Request, home: str) -> None:
    """Creates the database of the landing table. May run twice."""
    db, _ = request.target
    try:
        metastore.database(db)
    except ObjectNotFound:
        made = Database(name=db, location=home, owner=asset.owner, parameters={ASSET: asset.name})
        with contextlib.suppress(ObjectExists):
            metastore.create_database(made)


def publish(metastore: Metastore, asset: Asset, request: Request, landed: Landed) -> Publication:
    """Publishes landed rows as the table's rows, or as a partition of it. May run twice. Raises Overtaken,
    ForeignTable, BaseChanged, SchemaRefused; CommitOutcomeUnknown if the outcome cannot be determined."""
    for _ in range(ATTEMPTS):
        table = landing_of(metastore, asset, request)
        if table is not None and request.mode != "append":
            if landed.lies_at(table.location):
                return Publication(metastore.current_event_id(), False, again=True)
            _refuse_if_overtaken(marked(table.parameters), landed, request)
        try:
            if request.mode == "append":
                return _append(metastore, asset, request, table, landed)
            _refuse_other_rows(metastore, table, request, landed)
            if table is None:
                metastore.create_table(_made(asset, request, landed, landed.location))
                return Publication(metastore.current_event_id(), True)
            return _flip(metastore, asset, request, table, landed)
        except (CommitOutcomeUnknown, ObjectExists, ObjectNotFound):
            continue  # the next attempt reads the outcome
    raise CommitOutcomeUnknown(
        f"{'.'.join(request.target)}: the metastore does not confirm changes",
        hint="it is retried when the metastore responds",
    )


def _refuse_if_overtaken(there: tuple[int, int], landed: Landed, request: Request) -> None:
    if there > (landed.job, landed.fence):
        raise Overtaken(
            f"{'.'.join(request.target)}: job {there[0]} (fence {there[1]}) has already published",
            hint="nothing is lost",
        )


def _refuse_other_rows(metastore: Metastore, table: Table | None, request: Request, landed: Landed) -> None:
    """Raises BaseChanged if the existing rows are not those assumed when these were copied: because of a delayed call
    of another job, or a drop. Rows would be duplicated or missing."""
    if table is not None and marked(table.parameters)[0] == landed.job:
        return  # these rows are based on those of an earlier claim
    if landed_until(metastore, table, request, landed.columns, landed.job, landed.remembered) != landed.low:
        told = f"{'.'.join(request.target)} no longer has the rows that it had when the increment was copied"
        raise BaseChanged(told, hint="the increment is copied again")


def _made(asset: Asset, request: Request, landed: Landed, location: str) -> Table:
    table = landing_table(asset, request, landed.columns, location)
    said = schema_hash(landed.columns, request.format, request.mode == "append")
    mine: Mapping[str, str] = {SINCE: str(landed.job)} if request.mode == "append" else landed.parameters
    return msgspec.structs.replace(table, parameters={**table.parameters, **mine, SCHEMA_HASH: said})


def _flip(metastore: Metastore, asset: Asset, request: Request, table: Table, landed: Landed) -> Publication:
    """Switches the table's location to the landed rows; running readers keep the files that they have."""
    assert table.storage is not None
    if request.mode == "merge" and table.location != landed.base:
        raise BaseChanged(f"{table.db}.{table.name} is now located in {table.location}, not in {landed.base}")
    wanted = columns_of(table, landed.columns, request)
    made = msgspec.structs.replace(table, storage=stored_as(request.format, wanted, landed.location))
    said = schema_hash(wanted, request.format, False)
    changed = table.parameters.get(SCHEMA_HASH) != said
    kept = {key: value for key, value in table.parameters.items() if not _is_stale(key)}
    parameters = with_lifecycle({**kept, **landed.parameters, SCHEMA_HASH: said}, asset, wanted)
    new = msgspec.structs.replace(made, parameters=parameters)
    with without_keys(metastore, table, table.storage.columns != wanted):
        try:
            metastore.alter_table(table.db, table.name, new)
        except MetastoreError as error:
            may = request.rebuild or request.schema_policy == "recreate"
            if error.transient or not may or not _retyped(table.storage.columns, wanted):
                raise
            _recreate(metastore, table, new)
    return Publication(metastore.current_event_id(), changed)


def _retyped(before: Sequence[Column], after: Sequence[Column]) -> bool:
    """Returns True if a column position has another type: a server may refuse this, such as text to number."""
    return any(one.type != other.type for one, other in zip(before, after, strict=False))


def _recreate(metastore: Metastore, table: Table, new: Table) -> None:
    """Drops the table but not its rows, and creates one of the same name; restores the former one if that is
    refused."""
    metastore.drop_table(table.db, table.name)
    try:
        metastore.create_table(new)
    except MetastoreError as error:
        if not error.transient and not isinstance(error, ObjectExists):
            metastore.create_table(table)
        raise


def _is_stale(key: str) -> bool:
    """Returns True for a parameter that describes the rows that were replaced."""
    return key in _REPLACED or key.startswith("spark.sql.")


def _append(metastore: Metastore, asset: Asset, request: Request, table: Table | None, landed: Landed) -> Publication:
    there = _own_partition(metastore, table, landed) if table else None
    if there is not None and landed.is_at(there):
        return Publication(metastore.current_event_id(), False, again=True)
    if table is not None:
        _refuse_if_replaced(metastore, table, landed)
    if not landed.whole:
        _refuse_other_rows(metastore, table, request, landed)
    elif table is not None and table.parameters.get(SINCE) != str(landed.job):
        metastore.drop_table(table.db, table.name)  # not its rows; a claim that dies here creates the table, as below
        table = there = None
    is_new = table is None
    if table is None:
        table = _made(asset, request, landed, landed.home)
        metastore.create_table(table)
    table, changed = settle_table(metastore, asset, request, table, landed)
    made = is_new or changed
    if there is None and not landed.rows and not is_new:
        return Publication(metastore.current_event_id(), made, empty=True)
    assert table.storage is not None
    storage = msgspec.structs.replace(table.storage, location=landed.location)
    part = Partition(values=(str(landed.job),), storage=storage, parameters=landed.parameters)
    if there is None:
        metastore.add_partitions(table.db, table.name, [part])  # keeps one that another claim has added since then
    else:  # of an earlier claim, or of an earlier copy
        metastore.alter_partitions(table.db, table.name, [part])
    there = _own_partition(metastore, table, landed)
    if there is None or not landed.is_at(there):
        raise ObjectExists(f"{table.db}.{table.name}: another claim of job {landed.job} has changed its partition")
    return Publication(metastore.current_event_id(), made)


def settle_table(
    metastore: Metastore, asset: Asset, request: Request, table: Table, landed: Landed
) -> tuple[Table, bool]:
    """Updates a partitioned table with the columns of landed rows and the current properties of its asset. Returns the
    table, and True if its columns changed. May run twice. Raises SchemaRefused."""
    assert table.storage is not None
    wanted = columns_of(table, landed.columns, request)
    changed = wanted != table.storage.columns
    said = {SCHEMA_HASH: schema_hash(wanted, request.format, True)} if changed else {}
    parameters = with_lifecycle({**table.parameters, **said}, asset, wanted)
    if parameters == table.parameters and not changed:
        return table, False
    storage = msgspec.structs.replace(table.storage, columns=wanted)
    new = msgspec.structs.replace(table, storage=storage, parameters=parameters)
    with without_keys(metastore, table, changed):
        metastore.alter_table(table.db, table.name, new)
    return new, changed


def _refuse_if_replaced(metastore: Metastore, table: Table, landed: Landed) -> None:
    """Raises Overtaken if a later job has a partition: it starts after this one is over, and its rows include these, so
    a holder that continues after a pause is too late."""
    later = [name for name in metastore.partition_names(table.db, table.name) if _job_of(name) > landed.job]
    if later:
        raise Overtaken(f"{table.db}.{table.name}: {max(later, key=_job_of)} already exists", hint="nothing is lost")


def _job_of(partition: str) -> int:
    number = partition.rpartition("=")[2]
    return int(number) if number.isdecimal() else 0


def _own_partition(metastore: Metastore, table: Table, landed: Landed) -> Partition | None:
    """Returns the job's partition. Raises Overtaken if a later claim published it."""
    name = f"{LOAD.name}={landed.job}"
    found = [each for some in metastore.partitions(table.db, table.name, [name]) for each in some]
    there = marked(found[0].parameters)[1] if found else 0
    if there > landed.fence:
        raise Overtaken(f"{table.db}.{table.name}/{name} was published with fence {there}", hint="nothing is lost")
    return found[0] if found else None


def partitions_since(metastore: Metastore, table: Table | None, since: int, job: int) -> list[str]:
    """Returns the locations of rows that jobs have appended, beginning with the job `since`, without this job's own."""
    if table is None:
        return []
    found = []
    for some in metastore.all_partitions(table.db, table.name):
        by = ((int(part.values[0]), part.location) for part in some)
        found += [place for number, place in by if number >= since and number != job and place]
    return found


FEW_ROWS = 100
"""A smaller loss of rows is not judged, except if none are left."""


def refuse_loss(metastore: Metastore, request: Request, landing: Table | None, came: int, usual: float) -> None:
    """Raises RowsRefused if an overwrite or a rebuild would remove more of the landed rows than it may: an empty or
    suddenly much smaller source is usually a failed export. came: rows of the source, also those of people that are
    erased here. usual: the share that requests without one may remove."""
    replaces = request.rebuild or request.mode == "overwrite"
    landed = landed_rows(metastore, request) if landing is not None and replaces else 0
    share = usual if request.max_loss is None else request.max_loss
    if landed - came > share * landed and (landed - came >= FEW_ROWS or not came):
        raise RowsRefused(
            f"{request.place} has {came:,} rows, but {landed:,} have landed: nothing is published, as at most"
            f" {share:.0%} of them may be removed",
            hint="check the source; if its rows are gone on purpose, request it again with --max-loss 1",
        )


def refuse_rows(request: Request, rows: Any, landed: Any, total: int) -> None:
    """Raises RowsRefused if rows are not as the request demands: too few, without a value, or more than one with the
    same values. rows: to be published; landed: those to which they are appended, or None; total: of both."""
    about = ".".join(request.target)
    if request.least_rows is not None and total < request.least_rows:
        raise RowsRefused(
            f"{about} would have {total:,} rows, and must have {request.least_rows:,} at least: nothing is published",
            hint="check the source, or request it with fewer --least-rows",
        )
    names = [each.lower() for each in request.not_null]
    counts = rows.selectExpr(*(f"count_if({quoted_name(each)} IS NULL)" for each in names)).first() if names else ()
    for name, nulls in zip(names, counts, strict=True):
        if nulls:
            told = (
                f"{nulls:,} rows of {request.place} have NULL in {name}, which must have a value: nothing is published"
            )
            raise RowsRefused(told, hint="correct them at the source, or request it without --not-null")
    for some in request.uniques:
        values = [quoted_name(each) for each in some]
        whole = rows.select(*values) if landed is None else rows.select(*values).unionByName(landed.select(*values))
        filled = whole.where(" AND ".join(f"{each} IS NOT NULL" for each in values))
        repeated = filled.groupBy(*values).count().where("count > 1").selectExpr("count(*)", "sum(count)")
        shared, several = repeated.first()
        if shared:  # the values may be personal: they are not named
            told = f"{several:,} rows of {about} would share {count_text(shared, 'value')} of {', '.join(some)}"
            raise RowsRefused(
                f"{told}, which must be unique: nothing is published",
                hint="correct them at the source, or request it without --unique",
            )


def landed_rows(metastore: Metastore, request: Request, without: int = 0) -> int:
    """Returns the number of rows that have landed, as their publications recorded it. without: a job whose partition
    does not count."""
    table = metastore.table(*request.target)
    some = metastore.all_partitions(table.db, table.name) if table.is_partitioned else ([table],)
    others = (each for parts in some for each in parts if not without or marked(each.parameters)[0] != without)
    known = (each.parameters.get("numRows", "") for each in others)
    return sum(int(rows) for rows in known if rows.isdecimal())
