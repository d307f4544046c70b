"""Witnesses of what landed that share nothing with the product: the metastore's events by another project's bindings,
rows by pyarrow and by SQL, jobs by SQL, directories by the kernel. Each gives what is wrong, as texts."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
from constraints import client
from hive_metastore import ttypes
from thrift.protocol.TJSONProtocol import TJSONProtocol
from thrift.transport.TTransport import TMemoryBuffer

JOB, FENCE = "replicator.ingestion.job", "replicator.ingestion.fence"
ENDS = ("done", "superseded")


@dataclass
class Publications:
    """By job. appeared: locations that readers saw for the first time, an event each; marked: events that wrote a later
    fencing number beside the same location. named: every directory that was ever a table's or a partition's."""

    appeared: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    marked: Counter[int] = field(default_factory=Counter)
    named: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Job:
    """As its row says."""

    id: int
    target: str
    mode: str
    state: str
    attempt: int
    rows: int
    error: str


def path_of(location: str) -> str:
    return "/" + location.split(":", 1)[-1].lstrip("/").rstrip("/")


def publications(uri: str, databases: tuple[str, ...]) -> Publications:
    """Of all events of a metastore."""
    found, last = Publications(), 0
    with client(uri) as metastore:
        while events := metastore.get_next_notification(ttypes.NotificationEventRequest(last, 500)).events:
            last = events[-1].eventId
            for each in events:
                if each.dbName in databases:
                    _event(each.eventType, json.loads(each.message), found)
    return found


def _event(kind: str, said: dict[str, Any], found: Publications) -> None:
    match kind:
        case "CREATE_TABLE":
            changes = [(None, _struct(said["tableObjJson"], ttypes.Table))]
        case "ALTER_TABLE":
            one, other = (_struct(said[f"tableObj{side}Json"], ttypes.Table) for side in ("Before", "After"))
            changes = [(one, other)]
        case "ADD_PARTITION":
            changes = [(None, _struct(each, ttypes.Partition)) for each in said["partitionListJson"]]
        case "ALTER_PARTITION":
            one, other = (_struct(said[f"partitionObj{side}Json"], ttypes.Partition) for side in ("Before", "After"))
            changes = [(one, other)]
        case _:
            changes = []
    for before, after in changes:
        place = path_of(after.sd.location)
        found.named.add(place)
        job = int(after.parameters.get(JOB, 0))
        if not job:
            continue
        if before is None or path_of(before.sd.location) != place:
            found.appeared[job].append(place)
        elif before.parameters.get(FENCE) != after.parameters.get(FENCE):
            found.marked[job] += 1


def _struct(text: str, kind: Any) -> Any:
    made = kind()
    made.read(TJSONProtocol(TMemoryBuffer(text.encode())))
    return made


def jobs_of(store: str) -> list[Job]:
    with psycopg.connect(store) as connection:
        columns = "id, target, mode, state, attempt, facts::json->>'rows', error_text"
        rows = connection.execute(f"SELECT {columns} FROM ingestion_job ORDER BY id").fetchall()  # type: ignore[call-overload]
    return [Job(*row[:5], int(row[5] or 0), row[6]) for row in rows]


def wrong_publications(jobs: list[Job], found: Publications) -> Iterator[str]:
    """Jobs that did not end, or whose rows did not appear exactly once."""
    begun: set[str] = set()
    for job in jobs:
        times = len(found.appeared.get(job.id, []))
        about = f"job {job.id} of {job.target} ({job.mode}, {job.state}, {job.attempt} attempts)"
        if job.state not in ENDS:
            yield f"{about} has not ended: {job.error}"
        nothing_new = job.mode == "append" and not job.rows and job.target in begun
        wanted = 0 if job.state == "superseded" or nothing_new else 1
        if times != wanted:
            yield f"{about} with {job.rows} rows was published {times} times, not {wanted}"
        if job.state == "done":
            begun.add(job.target)
    if unknown := {*found.appeared} - {job.id for job in jobs}:
        yield f"published by nobody's job: {sorted(unknown)}"


def wrong_rows(uri: str, source: str, tables: dict[str, str]) -> Iterator[str]:
    """Landed tables whose rows are not those of the source; tables: the source's, by the landing table's name."""
    with client(uri) as metastore, psycopg.connect(source) as connection:
        for name, at_source in tables.items():
            db, _, table = name.partition(".")
            shown = metastore.get_table_req(ttypes.GetTableRequest(dbName=db, tblName=table)).table
            places = [shown.sd.location]
            if shown.partitionKeys:
                places = [each.sd.location for each in metastore.get_partitions(db, table, -1)]
            columns = [each.name for each in shown.sd.cols]
            landed = Counter(row for place in places for row in _rows(path_of(place), columns))
            asked = f"SELECT {', '.join(columns)} FROM {at_source}"
            wanted = Counter(connection.execute(asked).fetchall())  # type: ignore[call-overload]
            if landed != wanted:
                twice = [row for row, count in landed.items() if count > wanted[row]]
                yield (
                    f"{name}: {landed.total()} rows landed, {wanted.total()} are at the source;"
                    f" too many: {twice[:3]}, missing: {[*(wanted - landed)][:3]}"
                )


def wrong_marks(uri: str, source: str, tables: dict[str, str]) -> Iterator[str]:
    """Marks of appended tables up to which not exactly the source's rows had landed; its rows are never deleted."""
    with client(uri) as metastore, psycopg.connect(source) as connection:
        for name, at_source in tables.items():
            db, _, table = name.partition(".")
            there = {row[0] for row in connection.execute(f"SELECT id FROM {at_source}")}  # type: ignore[call-overload]
            parts = sorted(metastore.get_partitions(db, table, -1), key=lambda each: int(each.values[0]))
            landed: set[int] = set()
            for part in parts:
                landed |= {row[0] for row in _rows(path_of(part.sd.location), ["id"])}
                marked = part.parameters.get("replicator.ingestion.watermark")
                mark = int(json.loads(marked)[1]) if marked else 0
                if landed != (wanted := {each for each in there if each <= mark}):
                    yield (
                        f"at the mark {mark} of {name}, job {part.values[0]}: {len(landed)} rows had landed, of"
                        f" {len(wanted)}; missing: {sorted(wanted - landed)[:5]}"
                    )


def _rows(place: str, columns: list[str]) -> Iterator[tuple[Any, ...]]:
    for file in sorted(Path(place).glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            yield tuple(row.get(name) for name in columns)


def left_over(landing: Path, log: Path, named: set[str]) -> Iterator[str]:
    """Directories that no table and no partition was ever at."""
    for asset in landing.iterdir():
        if asset == log:
            continue
        for table in asset.glob("*/*"):
            yield from (f"left: {each}" for each in table.iterdir() if str(each) not in named)


def wrong_log(log: Path, store: str) -> Iterator[str]:
    """The warehouse's log has each change of the store once."""
    logged = Counter(row["id"] for file in log.glob("*/*.parquet") for row in pq.read_table(file).to_pylist())
    with psycopg.connect(store) as connection:
        changes = {row[0] for row in connection.execute("SELECT id FROM ingestion_change")}
    if {*logged} != changes:
        yield f"the log has {len(logged)} changes, the store {len(changes)}"
    if twice := [each for each, count in logged.items() if count > 1]:
        yield f"twice in the log: {len(twice)} changes, such as {twice[:5]}"
