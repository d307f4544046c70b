"""The log of ingestion as a table of the warehouse: a row for each change of a job's state, for auditors and SQL.

The store numbers the rows and returns them in batches that it records: a batch that is appended again writes the same
files with the same names. Corrections are new rows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.store.hdfs import BY_RPC, SCHEMES
from cmroot.store.place import Place, give_rights, inherit, join, name_of
from cmroot.store.spelling import hadoop_place, scheme
from replicator.core.engine import AutoEngine
from replicator.core.model import EXTERNAL, Column, Database, Partition, Table
from replicator.core.source_config import IngestionConfig, SourceConfig
from replicator.core.text import SETTINGS, quoted_name
from replicator.errors import Error, ObjectExists, ObjectNotFound, UsageError
from replicator.ingestion.ingestion_request import Asset, Claimed, Format, PartRequest, Request, places_of
from replicator.ingestion.landing.landing_schema import PREFIX, RowsRefused, landed_columns, marked, stored_as
from replicator.ingestion.landing.publishing import Landed, columns_of, landing_of
from replicator.metastore.client import Metastore

# ---- landing work ----------------------------------------------------------------------------------------------------
# A claimed job in execution, with all resources of its steps.


Facts = dict[str, Any]
"""Results of a job's steps so far: JSON."""


class CopyDiffers(Error):
    """The rows that arrived differ from those of the source."""

    exit_code = 75
    transient = True


@dataclass(frozen=True)
class Work:
    """A claimed job, with all resources of its steps. session: a Spark session on the landing warehouse, used by this
    job only. remembered: facts of the newest published job of the same request. kept: returns, for another job by its
    number, the directories to retain after it has ended; None: all of them."""

    claimed: Claimed
    asset: Asset
    config: IngestionConfig
    metastore: Metastore
    engines: AutoEngine
    session: Any
    remembered: Facts
    kept: Callable[[int], frozenset[str] | None]

    @property
    def request(self) -> Request:
        return self.claimed.request

    @property
    def home(self) -> str:
        """The directory of the landing table."""
        return join(self.config.landing, self.asset.name.lower(), self.request.schema.lower(), self.request.target[1])

    @property
    def settles(self) -> bool:
        """True if rows are transformed between copy and publication."""
        joins = (
            self.request.late is not None
            or self.request.backfill is not None
            or (self.request.schema_policy == "recreate" and not self.request.rebuild)
        )
        return (
            self.request.mode == "merge"
            or (self.request.mode == "append" and joins)
            or bool(self.asset.erasure_ids and self.asset.erasure_column)
        )

    @property
    def source(self) -> SourceConfig:
        return self.config.sources[self.request.source]

    def part(self, name: str) -> Work:
        """Returns the same work for a table into which nested rows were flattened."""
        table = f"{self.request.table}__{name}".lower()
        given = msgspec.structs.asdict(self.request) | {"table": table}
        asked = PartRequest(**given, whole=self.request.table, part=name.lower())
        return replace(self, claimed=replace(self.claimed, request=asked))

    def directory(self, kind: str) -> str:
        """Returns a directory of this claim: "v" for published rows, "in" for rows as copied, "st" for nested rows
        before they are flattened."""
        return join(self.home, f"{kind}-{self.claimed.job}-{self.claimed.fence}")


def sizes_of(directory: str) -> dict[str, int]:
    """Returns the number of files below a directory, and their bytes, without files that readers ignore."""
    files = bytes_ = 0
    for child in Place(directory).children():
        name = name_of(child.path)
        if name.startswith(("_", ".")):
            continue
        if child.is_directory:
            below = sizes_of(join(directory, name))
            files, bytes_ = files + below["files"], bytes_ + below["bytes"]
        else:
            files, bytes_ = files + 1, bytes_ + child.size
    return {"files": files, "bytes": bytes_}


class RightsTask(msgspec.Struct, frozen=True):
    """A new directory, and the one that it replaces. first: it replaces none, and `old` is its table's."""

    old: str
    new: str
    first: bool = False


def run_rights_task(task: RightsTask) -> str:
    """Gives a new directory the rights of the one that it replaces, and its files those of a file there; a partition's
    first one group and mode of its table's. Returns a text about what it lacks. May run twice."""
    old, new = Place(task.old), Place(task.new)
    if not all(each.local or scheme(each.text) in SCHEMES for each in (old, new)) or not old.exists():
        return ""
    if task.first:
        return _lacking(task, inherit(task.new, task.old))
    model = next((each.path for each in old.children() if not each.is_directory and _is_read(each.path)), None)
    files = (each.path for each in new.children() if model and not each.is_directory and _is_read(each.path))
    texts = [give_rights(model or "", file, BY_RPC) for file in files]
    return _lacking(task, next(filter(None, [give_rights(task.old, task.new, BY_RPC), *texts]), ""))


def carry_rights(work: Work, landed: Landed, days: Collection[str]) -> str:
    """Gives the directories that are about to be published the rights of those that they replace. days: those of
    partitions. Returns a text about what one of them lacks. May run twice."""
    table = landing_of(work.metastore, work.asset, work.request)
    tasks = list(_replaced(work.metastore, table, landed, days)) if table else []
    found = work.engines.for_work(len(tasks)).run(run_rights_task, tasks) if tasks else ()
    return next(filter(None, list(found)), "")


def _replaced(metastore: Metastore, table: Table, landed: Landed, days: Collection[str]) -> Iterator[RightsTask]:
    if not table.location or not table.is_partitioned:
        if table.location and not landed.lies_at(table.location):
            yield RightsTask(table.location, landed.location)
        return
    key, values = table.partition_keys[0].name, list(days) or [str(landed.job)]
    names = [f"{key}={value}" for value in values]
    some = [each for page in metastore.partitions(table.db, table.name, names) for each in page]
    there = {each.values[0]: each.location for each in some}
    for name, value in zip(names, values, strict=True):
        new, old = join(landed.location, name) if days else landed.location, there.get(value)
        if Place(new).exists() and not (old and Place(old) == Place(new)):
            yield RightsTask(old or table.location, new, first=old is None)


def _lacking(task: RightsTask, text: str) -> str:
    return f"{task.new} lacks {text} of {task.old}" if text else ""


def _is_read(path: str) -> bool:
    return not name_of(path).startswith(("_", "."))


def columns_for(work: Work, found: Sequence[Column]) -> list[list[str]]:
    """Returns the columns that the landing table will have, derived from those of its source. Raises SchemaRefused, and
    RowsRefused if a column named by the request or the asset does not exist."""
    wanted = landed_columns(found)
    names = {column.name for column in wanted}
    erased = work.asset.erasure_column if work.asset.erasure_ids else None
    request = work.request
    guarded = (*request.not_null, *(name for names in request.uniques for name in names))
    for name in filter(None, (*request.key, request.watermark, erased, *guarded)):
        if name.lower() not in names:
            told = f"{work.request.schema}.{work.request.table} has no column {name}"
            raise RowsRefused(told, hint=f"it has {', '.join(sorted(names))}")
    table = landing_of(work.metastore, work.asset, work.request)
    return [[column.name, column.type] for column in columns_of(table, wanted, work.request)]


def prepare(session: Any) -> None:
    """Configures the session so that Spark does not interpret quoted text, which may come from outside."""
    for key, value in SETTINGS.items():
        session.conf.set(key, value)


def read(session: Any, place: str, format: Format, columns: Sequence[Column]) -> Any:
    """Returns a DataFrame of a directory's rows, with these columns: null where its files have none of that name.
    Without files there are no rows: Spark writes no file for zero rows if each day has a directory."""
    if not sizes_of(place)["files"]:
        return session.createDataFrame([], ", ".join(f"{quoted_name(each.name)} {each.type}" for each in columns))
    frame = session.read.format(format).load(hadoop_place(place))
    there = {name.lower() for name in frame.columns}
    return frame.selectExpr(
        *(
            f"CAST({quoted_name(column.name) if column.name in there else 'NULL'} AS {column.type})"
            f" AS {quoted_name(column.name)}"
            for column in columns
        )
    )


def read_all(session: Any, places: Sequence[str], format: Format, columns: Sequence[Column]) -> Any:
    """Returns a DataFrame of the rows of several directories, whose files have these columns, or lack them."""
    schema = ", ".join(f"{quoted_name(each.name)} {each.type}" for each in columns)
    if not places:
        return session.createDataFrame([], schema)
    return session.read.schema(schema).format(format).load([*map(hadoop_place, places)])


# ---- cleaning --------------------------------------------------------------------------------------------------------


_OF_A_CLAIM = re.compile(r"(?:v|(in|st))-(?P<job>\d+)-\d+(?(1)(?:-\d+)?)")
"""Directories that are written only by steps before the publication."""


def clean(work: Work, facts: Facts) -> Facts:
    """Deletes directories of this job's other claims, and of earlier jobs of this table that have ended: copies that
    were never published, including those of holders that resumed late. Directories that may have been published are
    left to housekeeping."""
    mine = frozenset(places_of(facts))
    _remove(work, lambda job: mine if job == work.claimed.job else work.kept(job) if job < work.claimed.job else None)
    return {}


def discard(work: Work) -> None:
    """Deletes all directories of a job that ends before its publication."""
    _remove(work, lambda job: frozenset() if job == work.claimed.job else None)


def _remove(work: Work, kept: Callable[[int], frozenset[str] | None]) -> None:
    """Deletes directories of the table, and of the tables into which its rows were flattened. kept: directories of a
    job to retain; None: all. Locations of a table or a partition are always retained: another store, such as a lost
    one, may have had jobs with the same numbers."""
    own = Place(work.home)
    homes = [own]
    if work.source.path and own.parent.exists():
        homes += [own.parent / name for name in own.parent.list() if name.startswith(f"{own.name}__")]
    for home in homes:
        left = [home / name for name in home.list() if _is_left(home / name, kept)]
        used = _used(work.metastore, work.request.target[0], home.name) if left else []
        for place in left:
            if not any(each == place or each.is_below(place) for each in used):
                place.remove_tree()


def _is_left(place: Place, kept: Callable[[int], frozenset[str] | None]) -> bool:
    found = _OF_A_CLAIM.fullmatch(place.name)
    stay = kept(int(found["job"])) if found else None
    return stay is not None and place not in map(Place, stay)


def _used(metastore: Metastore, db: str, name: str) -> list[Place]:
    """Returns the locations of a table's rows according to the metastore."""
    try:
        table = metastore.table(db, name)
    except ObjectNotFound:
        return []
    some = metastore.all_partitions(db, name) if table.is_partitioned else ()
    locations = [table.location, *(part.location for parts in some for part in parts)]
    return [Place(each) for each in locations if each]


# ---- landing log -----------------------------------------------------------------------------------------------------


COLUMNS = (
    Column("id", "bigint", "the order of changes"),
    Column("at", "timestamp", "UTC"),
    Column("job", "bigint"),
    Column("attempt", "int"),
    Column("asset", "string"),
    Column("source", "string"),
    Column("target", "string", "db.table"),
    Column("requester", "string"),
    Column("approver", "string"),
    Column("actor", "string", "who or what changed the state"),
    Column("mode", "string"),
    Column("state", "string"),
    Column("step", "string", "the next step"),
    Column("rows", "bigint"),
    Column("bytes", "bigint"),
    Column("files", "bigint"),
    Column("splits", "int"),
    Column("consistent", "boolean", "whether all rows were read at the same point in time"),
    Column("erased_rows", "bigint", "rows of erased data subjects, which the source still has"),
    Column("schema_hash", "string"),
    Column("checksum", "string", "of counts and sums of the columns at the source"),
    Column("event_id", "bigint", "the newest event of the metastore after publishing"),
    Column("error_kind", "string"),
    Column("error_text", "string"),
)
DAY = Column("day", "string", "UTC")
LOG = PREFIX + "log"

_ARROW = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_SCHEMA = pa.schema([(column.name, _ARROW[column.type]) for column in COLUMNS])


def append(metastore: Metastore, directory: str, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Appends a batch to "db.table". May run twice with the same batch. rows: keyed by the names of `COLUMNS`; `at` in
    seconds since 1970. Raises Error if the table is not a log of ingestion."""
    db, _, table = name.partition(".")
    log = _table(metastore, directory, db, table)
    days: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        days.setdefault(time.strftime("%Y-%m-%d", time.gmtime(row["at"])), []).append(row)
    for day, some in days.items():
        place = join(directory, f"{DAY.name}={day}")
        _write(place, some)
        _announce(metastore, log, day, place)


def _table(metastore: Metastore, directory: str, db: str, name: str) -> Table:
    with suppress(ObjectNotFound):
        found = metastore.table(db, name)
        if LOG not in found.parameters:
            raise Error(
                f"{db}.{name} exists, but is not a log of ingestion", hint="name another table in ingestion.log"
            )
        return found
    with suppress(ObjectExists):
        metastore.create_database(Database(name=db))
    with suppress(ObjectExists):
        metastore.create_table(
            Table(
                db=db,
                name=name,
                kind=EXTERNAL,
                storage=stored_as("parquet", COLUMNS, directory),
                partition_keys=(DAY,),
                parameters={"EXTERNAL": "TRUE", LOG: "1"},
            )
        )
    return metastore.table(db, name)


def _write(place: str, rows: Sequence[Mapping[str, Any]]) -> None:
    values = [{**{key: row.get(key) for key in _SCHEMA.names}, "at": int(row["at"] * 1e6)} for row in rows]
    Place(place).mkdirs()
    with (Place(place) / f"changes-{rows[0]['id']}-{rows[-1]['id']}.parquet").open_write() as file:
        pq.write_table(pa.Table.from_pylist(values, _SCHEMA), file)


def _announce(metastore: Metastore, log: Table, day: str, place: str) -> None:
    """Adds the partition, or updates its statistics: either creates an event."""
    assert log.storage is not None
    files = bytes_ = 0
    for child in Place(place).children():
        files, bytes_ = files + 1, bytes_ + child.size
    figures = {"numFiles": str(files), "totalSize": str(bytes_), "transient_lastDdlTime": str(int(time.time()))}
    found = [each for some in metastore.partitions(log.db, log.name, [f"{DAY.name}={day}"]) for each in some]
    if found:
        part = msgspec.structs.replace(found[0], parameters={**found[0].parameters, **figures})
        metastore.alter_partitions(log.db, log.name, [part])
        return
    storage = msgspec.structs.replace(log.storage, location=place)
    with suppress(ObjectExists):
        metastore.add_partitions(log.db, log.name, [Partition(values=(day,), storage=storage, parameters=figures)])


# ---- in doubt --------------------------------------------------------------------------------------------------------
# A job that was cancelled while it published: only the metastore determines whether readers see it.


def is_there(work: Work, facts: Facts) -> bool:
    """Returns True if any of the job's rows are published, in its table or in one into which nested rows were
    flattened, or if a table is missing that it may have dropped in order to recreate it. Changes nothing."""
    before = work.remembered.get("parts", {})
    parts = {name: name in before for name in facts.get("parts", ())}
    return _is_there(work, bool(work.remembered)) or any(_is_there(work.part(name), had) for name, had in parts.items())


def _is_there(work: Work, had: bool) -> bool:
    """had: True if the table existed before the job."""
    db, name = work.request.target
    try:
        table = work.metastore.table(db, name)
    except ObjectNotFound:
        return had and (work.request.rebuild or work.request.schema_policy == "recreate")
    if not table.is_partitioned:
        return marked(table.parameters)[0] == work.claimed.job
    some = work.metastore.all_partitions(db, name)
    return any(marked(part.parameters)[0] == work.claimed.job for parts in some for part in parts)


# ---- granting --------------------------------------------------------------------------------------------------------
# Grants: consumers of an asset may read its landing tables. They are granted after each publication, and verified.


_KINDS = {"group": "GROUP", "user": "USER", "role": "ROLE"}


class GrantMissing(Error):
    """The metastore accepted a grant but does not list it, or accepted a revocation but still lists the grant."""

    transient = True


def principals(consumers: Sequence[str]) -> list[tuple[str, str]]:
    """Returns pairs of GROUP, USER or ROLE and a name, parsed from texts such as "analysts", "user:ann",
    "role:readers". Raises UsageError for another kind."""
    found = []
    for each in consumers:
        kind, colon, name = each.partition(":")
        if colon and (kind not in _KINDS or not name):
            raise UsageError(f"{each!r} is not a valid consumer", hint="write a group's name, user:NAME or role:NAME")
        found.append((_KINDS[kind], name) if colon else ("GROUP", each))
    return found


def grant(
    metastore: Metastore, db: str, table: str, consumers: Sequence[str], by: str, former: Sequence[str] = ()
) -> list[str]:
    """Grants SELECT to consumers without it, and revokes it from `former` consumers that are none any more. Returns the
    names that were granted now. May run twice. Raises GrantMissing."""
    wanted = principals(consumers)
    readers = metastore.readers(db, table)
    if leaving := [each for each in principals(former) if each in readers and each not in wanted]:
        metastore.revoke_select(db, table, leaving, by)
        if kept := [name for kind, name in set(leaving) & metastore.readers(db, table)]:
            raise GrantMissing(
                f"{db}.{table}: SELECT is still granted to {', '.join(sorted(kept))}",
                hint="check the metastore's server",
            )
    lacking = [each for each in wanted if each not in readers]
    if lacking:
        metastore.grant_select(db, table, lacking, by)
        if missing := [name for kind, name in set(wanted) - metastore.readers(db, table)]:
            raise GrantMissing(
                f"{db}.{table}: SELECT is not granted to {', '.join(sorted(missing))}",
                hint="check the metastore's server",
            )
    return [name for _, name in lacking]
