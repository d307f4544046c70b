"""Drill: a rehearsal of a failover, with the replica shown in shadow databases next to it, while replication continues.

A drill takes no lease of the policy and writes nothing to the replica. It creates databases whose tables show the
replica's files (`shadows`), runs smoke queries on them, measures the times, removes everything, and writes a record
(`drill_record`). The record is written before the first database is created, and a database is created with its stamp,
so that the next drill, or `clean`, finds and sweeps the shadows of a killed one.
"""

from __future__ import annotations

import os
import time as clocks
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import isfinite
from random import Random
from typing import Any, Protocol

import msgspec

from cmroot.root import create_or_open
from replicator.core.audit import who
from replicator.core.logging import step as told_step
from replicator.core.model import Database
from replicator.core.policy import Policy, matching_databases
from replicator.core.roles import Role, is_shadow, mark_of
from replicator.core.runtime import Progress, Silent
from replicator.core.spark import SparkEngine, hive_settings
from replicator.core.text import quoted_name
from replicator.errors import Error, MetastoreError, ObjectExists, ObjectNotFound, Refused, UsageError
from replicator.metastore.client import Metastore, MetastoreReader
from replicator.metastore.events.scope import behind
from replicator.metastore.java import find_java, spark_environment
from replicator.metastore.newer_servers import refuse_for_spark
from replicator.policies.drill_record import Asked, Drill, DrillPlan, Drills, Standing
from replicator.policies.memory import Memory, iso
from replicator.policies.shadows import Shadows, build, row_count, sweep, tear_down
from replicator.replay.replica import LAST_ID, LOADING, POSITION
from replicator.replay.server_rules import not_understood
from replicator.replay.target import default_warehouse

# ---- queries ---------------------------------------------------------------------------------------------------------
# Smoke queries: the queries of a drill on its shadows, and the evaluation of the answers.
#
# By default: the row counts of some tables, compared with statistics that are marked as exact, and the first row of
# some views. Each drill draws a new sample.


ROWS = 10  # rows of an answer that are recorded
TEXT = 1000  # characters of a value, or of an error


class QueryEngine(Protocol):
    """An engine for read-only queries: `engine.SparkEngine`."""

    def answer(self, query: str, rows: int) -> list[list[Any]]:
        """Returns the first rows. Raises Error."""
        ...


@contextmanager
def spark_on(
    metastore: Metastore, master: str | None = None, settings: Mapping[str, str] | None = None, session: Any = None
) -> Iterator[QueryEngine]:
    """Yields Spark with a metastore's tables, for the length of a block: that of `session`, of this process, or a new
    one. Raises Error if it does not start, or has another catalog."""

    def environment() -> Mapping[str, str]:
        return spark_environment(find_java(os.environ))

    given = dict(settings or {})
    known = hive_settings(metastore.config, default_warehouse(metastore), given)
    engine = SparkEngine(master, known | given, environment, session)
    try:
        engine.answer("SELECT 1", 1)
        yield engine
    finally:
        engine.stop()


@dataclass(frozen=True)
class SmokeQuery:
    """A query; `expected`: the number that it returns, if known; `replica`: the database that it reads, if there is
    one."""

    query: str
    expected: int | None = None
    replica: str = ""


def smoke_queries(
    metastore: MetastoreReader, shadows: Shadows, names: Mapping[str, Sequence[str]], sample: int, own: Sequence[str]
) -> list[SmokeQuery]:
    """Returns the queries, the user's own first. `names`: tables shown, by shadow database. sample: how many of them
    are queried. own: queries on the replica, as users write them; they run on the shadows."""
    found = [SmokeQuery(shadows.query(text.strip().rstrip(";"))) for text in own]
    replicas = {shadow: replica for replica, shadow in shadows.names.items()}
    everything = [(shadow, name) for shadow, tables in sorted(names.items()) for name in sorted(tables)]
    chosen = Random(shadows.id).sample(everything, min(sample, len(everything)))
    for shadow in sorted(names):
        replica = replicas[shadow]
        for table in metastore.tables(replica, sorted(name for db, name in chosen if db == shadow)):
            what = quoted_name(shadow, table.name)
            if table.is_view:
                found.append(SmokeQuery(f"SELECT * FROM {what} LIMIT 1", replica=replica))
            else:
                found.append(SmokeQuery(f"SELECT count(*) FROM {what}", row_count(table), replica))
    return found


def ask(asking: QueryEngine, query: SmokeQuery, changed: Callable[[str], bool]) -> Asked:
    """Runs a query and evaluates the answer. `changed(replica)`: returns True if replication has changed a database (no
    name: any) since its shadow was created; called only if the answer is not good."""
    began = clocks.monotonic()
    try:
        rows = [list(map(_plain, row)) for row in asking.answer(query.query, ROWS)]
        wrong = query.expected is not None and rows != [[query.expected]]
        asked = Asked(query=query.query, outcome="different" if wrong else "good", rows=rows, expected=query.expected)
    except Error as error:
        said = "; ".join(filter(None, (error.message, error.hint)))
        asked = Asked(query=query.query, outcome="failed", expected=query.expected, error=said[:TEXT])
    if asked.outcome != "good" and changed(query.replica):
        asked = msgspec.structs.replace(asked, outcome="changed")
    return msgspec.structs.replace(asked, seconds=round(clocks.monotonic() - began, 3))


def _plain(value: Any) -> Any:
    number = isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value))
    return value if value is None or number else str(value)[:TEXT]


# ---- drill -----------------------------------------------------------------------------------------------------------


PREFIX = "drill_"
RUNS = 20  # runs of the history, among which the last good one lists what the replica is missing
LONGEST_NAME = 128  # of a database, in the metastore's own tables


@dataclass(frozen=True)
class DrillSettings:
    """The options of a drill. databases: only these, by their names on the replica's side; empty: all. queries: the
    user's own, as on the replica. sample: additional tables to query. prefix: of the shadows' names. keep: retain the
    shadows until the next drill or `clean`. jobs: parallel tables. progress: receives tables and queries."""

    databases: Sequence[str] = ()
    queries: Sequence[str] = ()
    sample: int = 20
    prefix: str = PREFIX
    keep: bool = False
    jobs: int = 4
    progress: Progress = field(default_factory=Silent)


@dataclass(frozen=True)
class Replicas:
    """The side of a policy that is currently the replica: its metastore, the other one, and the databases with a
    completed load. `unready`: those without a checkpoint."""

    metastore: Metastore
    other: MetastoreReader
    reverse: bool
    databases: list[Database] = field(default_factory=list)
    unready: list[str] = field(default_factory=list)


def find_replicas(policy: Policy, source: Metastore, target: Metastore) -> Replicas:
    """Finds the replicas: at the target or, only if roles were exchanged, at the source, as the policy names them."""
    there = _databases(policy, target, {replica: name for name, replica in policy.rename_db.items()})
    reverse = any(mark_of(each.parameters, each.name).role is Role.PRIMARY for each in there)
    if reverse:
        there = _databases(policy, source, {})
    found = Replicas(source, target, reverse) if reverse else Replicas(target, source, reverse)
    for each in there:
        if each.parameters.get(POSITION, "").isdigit() and each.parameters.get(LAST_ID, "").isdigit():
            found.databases.append(each)
        else:
            found.unready.append(each.name)
    return found


def _databases(policy: Policy, metastore: MetastoreReader, original: dict[str, str]) -> list[Database]:
    """Returns the policy's databases of one side; `original`: names that differ from the policy's -> the policy's."""
    back = {original.get(name, name): name for name in metastore.database_names()}
    found = [metastore.database(back[name]) for name in matching_databases(policy, back)]
    return [each for each in found if not is_shadow(each)]


def plan(policy: Policy, source: Metastore, target: Metastore, options: DrillSettings) -> DrillPlan:
    """Returns the databases that a drill would create, and how many tables they have. Changes nothing."""
    replicas = find_replicas(policy, source, target)
    drill = _begin(policy, replicas, options, clocks.time)
    tables = sum(len(replicas.metastore.table_names(name)) for name in drill.databases)
    return DrillPlan(**msgspec.structs.asdict(drill) | {"tables": tables, "status": "planned"})


def drill(
    policy: Policy,
    source: Metastore,
    target: Metastore,
    asking: Callable[[Metastore], QueryEngine],
    options: DrillSettings,
    *,
    clock: Callable[[], float] = clocks.time,
) -> Drill:
    """Runs one drill. asking: returns the engine for queries on the replica's side; called once, before the first
    query.

    May be killed at any step: the replica is unchanged, and the next drill sweeps the shadows. Raises LeaseHeld while
    another drill of the policy is running, Refused if there is no replica yet."""
    drills = Drills(Memory(create_or_open(policy.target_cmroot), policy.name))
    with drills.lease():
        began = clocks.monotonic()
        replicas = find_replicas(policy, source, target)
        record = _begin(policy, replicas, options, clock)
        last = Memory(create_or_open(policy.target_cmroot), policy.name).runs(RUNS).last_done
        record = msgspec.structs.replace(record, not_replicated=list(last.not_replicated) if last else [])
        swept = sweep(
            policy, replicas.metastore, drills, prefixes=(PREFIX, options.prefix), jobs=options.jobs, now=clock
        )
        run = _Run(replicas, drills, record, began, clock)
        run.warn(*(f"removed {name}, left over from an earlier drill" for name in swept.dropped), *swept.warnings)
        return run.to_its_end(asking, policy, options)


def _begin(policy: Policy, replicas: Replicas, options: DrillSettings, clock: Callable[[], float]) -> Drill:
    """Returns the record of a drill that is about to begin. Raises Refused, UsageError."""
    if options.sample or options.queries or policy.smoke:
        refuse_for_spark(replicas.metastore)
    chosen = {name.lower() for name in options.databases}
    unknown = sorted(chosen - {each.name for each in replicas.databases})
    if unknown:
        raise UsageError(
            f"policy {policy.name} has no replica {', '.join(unknown)} in {replicas.metastore.uri}",
            hint=f"replicas: {', '.join(each.name for each in replicas.databases) or '(none)'}",
        )
    if not replicas.databases:
        raise Refused(
            f"policy {policy.name}: no database in {replicas.metastore.uri} is a complete replica yet",
            hint=f"run `replicator sync {policy.name}` first",
        )
    id = uuid.uuid4().hex[:6]
    shown = [each for each in replicas.databases if not chosen or each.name in chosen]
    names = {each.name: f"{options.prefix}{id}_{each.name}".lower() for each in shown}
    long = [name for name in names.values() if len(name) > LONGEST_NAME]
    if long:
        raise UsageError(f"{long[0]} is too long for a database name", hint="give a shorter --prefix")
    shadows = Shadows(id, policy.name, names)
    return Drill(
        id=id,
        policy=policy.name,
        started=iso(clock()),
        by=who(),
        metastore=replicas.metastore.uri,
        reverse=replicas.reverse,
        databases=names,
        kept=options.keep,
        homes={each.name: shadows.database(each).location or "" for each in shown},
        checkpoint={each.name: _standing(each) for each in shown},
        warnings=[f"{name} is not a complete replica yet, and is left out of the drill" for name in replicas.unready]
        + [f"{each.name} is being loaded" for each in shown if each.parameters.get(LOADING)]
        + [
            f"run on the replica itself, because its SQL could not be parsed: {query}"
            for query in (*policy.smoke, *options.queries)
            if not_understood(names, query)
        ],
    )


class _Run:
    """One running drill, and its record so far."""

    def __init__(
        self, replicas: Replicas, drills: Drills, record: Drill, began: float, clock: Callable[[], float]
    ) -> None:
        self._replicas, self._metastore, self._drills = replicas, replicas.metastore, drills
        self._record, self._began, self._clock = record, began, clock

    def to_its_end(self, asking: Callable[[Metastore], QueryEngine], policy: Policy, options: DrillSettings) -> Drill:
        shadows = Shadows(self._record.id, policy.name, self._record.databases)
        self._drills.write(self._record)
        try:
            try:
                with self._timed("databases"):
                    self._databases(shadows)
                with self._timed("tables"):
                    names = self._tables(shadows, options)
                self._set(ready_seconds=self._elapsed(), lag_seconds=self._lag())
                self._ask(asking, shadows, names, policy.smoke, options)
                good = all(each.outcome in ("good", "changed") for each in self._record.queries)
                self._set(status="done" if good else "incomplete")
            finally:
                if not options.keep:
                    with self._timed("tear down"):
                        self._tear_down(options.jobs)
        except BaseException as error:
            self._end(status="failed", error=f"{type(error).__name__}: {error}")
            raise
        return self._end()

    def _databases(self, shadows: Shadows) -> None:
        for replica in shadows.names:
            with suppress(ObjectExists):
                self._metastore.create_database(shadows.database(self._metastore.database(replica)))

    def _tables(self, shadows: Shadows, options: DrillSettings) -> dict[str, list[str]]:
        total = sum(len(self._metastore.table_names(name)) for name in shadows.names)
        with options.progress.task("shadow tables", total=total) as advance:
            built = build(self._metastore, shadows, advance, jobs=options.jobs)
        self._set(
            tables=built.tables,
            views=built.views,
            partitions=built.partitions,
            functions=built.functions,
            skipped=built.skipped,
        )
        return built.names

    def _ask(
        self,
        asking: Callable[[Metastore], QueryEngine],
        shadows: Shadows,
        names: dict[str, list[str]],
        smoke: Sequence[str],
        options: DrillSettings,
    ) -> None:
        asked = smoke_queries(self._metastore, shadows, names, options.sample, [*smoke, *options.queries])
        if not asked:
            return
        with self._timed("engine"):
            answering = asking(self._metastore)
        with self._timed("queries"), options.progress.task("queries", total=len(asked)) as advance:
            for query in asked:
                answer = ask(answering, query, self._changed)
                self._set(queries=[*self._record.queries, answer])
                if answer.outcome == "good" and self._record.first_answer_seconds is None:
                    self._set(first_answer_seconds=self._elapsed())
                advance(1)

    def _changed(self, replica: str) -> bool:
        """Returns True if replication has changed a database (no name: any) since its shadow was begun."""
        for name in [replica] if replica else self._record.databases:
            there = self._find(name)
            if there is None or there.parameters.get(LOADING) or _standing(there) != self._record.checkpoint[name]:
                return True
        return False

    def _find(self, name: str) -> Database | None:
        try:
            return self._metastore.database(name)
        except ObjectNotFound:
            return None

    def _lag(self) -> float | None:
        """Returns the lag of the replica that is farthest behind."""
        event = min(standing.event for standing in self._record.checkpoint.values())
        try:
            return behind(self._replicas.other, event, self._clock)
        except MetastoreError as error:
            self.warn(f"the lag is unknown: {error}")
            return None

    def _tear_down(self, jobs: int) -> None:
        staying: list[str] = []
        for replica, shadow in self._record.databases.items():
            staying += tear_down(self._metastore, shadow, self._record.homes[replica], jobs=jobs)
        self._set(staying=staying, torn_down=not staying)

    def _end(self, **changes: Any) -> Drill:
        """Completes the record, with the replicas that have moved since the start, if that can be determined."""
        self._set(**changes, ended=iso(self._clock()), seconds=self._elapsed())
        with suppress(MetastoreError):
            there = {name: self._find(name) for name in self._record.databases}
            moved = [name for name, db in there.items() if db is None or _standing(db) != self._record.checkpoint[name]]
            self._set(moved=moved)
        self._drills.write(self._record)
        return self._record

    def _elapsed(self) -> float:
        return round(clocks.monotonic() - self._began, 3)

    def _set(self, **changes: Any) -> None:
        self._record = msgspec.structs.replace(self._record, **changes)

    def warn(self, *texts: str) -> None:
        self._set(warnings=[*self._record.warnings, *texts])

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        began = clocks.monotonic()
        try:
            with told_step(step):
                yield
        finally:
            self._set(steps={**self._record.steps, step: round(clocks.monotonic() - began, 3)})


def _standing(replica: Database) -> Standing:
    return Standing(int(replica.parameters.get(LAST_ID, "0")), int(replica.parameters.get(POSITION, "0")))
