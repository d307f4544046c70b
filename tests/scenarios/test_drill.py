"""Drills: the replica shown in shadow databases, asked, and taken down; nothing of it is touched, and nothing waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import command, command_with_progress
from engines import local_runtime
from faults import Fault, run_with
from lab import Lab
from plain_tables import PlainDatabase
from raw_thrift import RawClient

import replicator
from cmroot.log.captured import segments
from cmroot.root import create_or_open
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.manifest import read_records
from replicator.core.model import VIEW, Column, Storage, Table
from replicator.core.roles import Role, RoleMark
from replicator.errors import Error, Refused, UsageError
from replicator.metastore.client import Metastore
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.policies.checks.check import check
from replicator.policies.drill import DrillSettings, QueryEngine, drill, spark_on
from replicator.policies.drill_record import Drill, Drills
from replicator.policies.roles import read_role, set_role
from replicator.policies.shadows import Shadows, cannot_show, may_drop

ROW = "1\x01one\n"  # two columns, as a text table has them
QUIET = DrillSettings(sample=0)


@pytest.fixture
def pair(pair: Lab) -> Lab:
    """A replica with a table of each kind, in step with its source."""
    a = pair.db("a")
    a.table("t", {"first": ROW * 3})
    exact = {"numRows": "3", "COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}'}
    a.alter("t", **exact, **{"beekeeper.remove.unreferenced.data": "true"})
    a.table("outside", {"x": ROW}, kind="EXTERNAL_TABLE")
    a.partitioned("parts", {"x": {"f": ROW}, "y": {"f": ROW * 2}})
    a.function("f")
    pair.sync()
    return pair


def view(db: PlainDatabase, name: str, text: str) -> None:
    columns = (Column("a", "int"), Column("b", "string"))
    storage = Storage(columns=columns)
    made = Table(db=db.name, name=name, kind=VIEW, storage=storage, view_original=text, view_expanded=text)
    db.metastore.create_table(made)


@pytest.fixture(scope="module")
def spark(target_metastore: Running) -> Iterator[QueryEngine]:
    with connect(target_metastore.uri) as metastore, spark_on(metastore, "local[2]") as asking:
        yield asking


def nobody(metastore: Metastore) -> QueryEngine:
    raise AssertionError("no query was to be asked")


def rehearse(pair: Lab, options: DrillSettings = QUIET, asking: Any = nobody) -> Drill:
    return drill(pair.policy, pair.source.metastore, pair.target.metastore, asking, options)


def shadows_there(pair: Lab) -> list[str]:
    ours = f"_{pair.name}_"
    found = [name for name in pair.target.metastore.database_names() if name.startswith("drill_") and ours in name]
    return found + [path.name for path in (pair.here / "target").glob("drill_*") if path.stem not in found]


def test_a_drill_shows_the_replica_asks_it_and_leaves_nothing(pair: Lab, spark: QueryEngine) -> None:
    name = f"{pair.name}_a"
    view(pair.db("a"), "v", f"SELECT t.a, p.b FROM {name}.t JOIN {name}.parts p ON t.a = p.a")
    pair.sync()
    before = pair.replica().everything()
    own = f"SELECT max(b) FROM {name}.parts WHERE p = 'y';"
    seen: dict[str, Any] = {}

    def asking(metastore: Metastore) -> QueryEngine:
        (shadow,) = shadows_there(pair)
        seen["t"], seen["v"] = metastore.table(shadow, "t"), metastore.table(shadow, "v")
        (seen["parts"],) = metastore.partitions(shadow, "parts", ["p=x", "p=y"])
        seen["functions"] = metastore.function_names(shadow)
        return spark

    done = rehearse(pair, DrillSettings(queries=[own]), asking)

    assert (done.status, done.torn_down, done.skipped, done.staying) == ("done", True, {}, [])
    assert (done.tables, done.views, done.partitions, done.functions) == (3, 1, 2, 1)
    answers = {each.query.rpartition("`.")[2] or each.query: (each.outcome, each.rows) for each in done.queries}
    shadow = done.databases[name]
    assert done.queries[0].query == own.replace(name, shadow).rstrip(";")
    assert answers | {"": 0} == {
        done.queries[0].query: ("good", [["one"]]),
        "`t`": ("good", [[3]]),
        "`outside`": ("good", [[1]]),
        "`parts`": ("good", [[3]]),
        "`v` LIMIT 1": ("good", [[1, "one"]]),
        "": 0,
    }
    assert done.ready_seconds and done.first_answer_seconds and done.ready_seconds < done.first_answer_seconds
    assert list(done.steps) == ["databases", "tables", "engine", "queries", "tear down"]
    checkpoint = pair.target.metastore.database(name).parameters
    assert [str(done.checkpoint[name].event), str(done.checkpoint[name].position)] == [
        checkpoint["repl.last.id"],
        checkpoint["replicator.position"],
    ]
    assert done.lag_seconds == 0 and "@" in done.by

    t = seen["t"]
    assert (t.kind, t.parameters["external.table.purge"], t.parameters["replicator.drill"]) == (
        "EXTERNAL_TABLE",
        "false",
        done.id,
    )
    assert t.location == f"file:{pair.replica().home}/t"
    assert not {"replicator.position", "beekeeper.remove.unreferenced.data"} & t.parameters.keys()
    assert seen["v"].view_expanded == seen["v"].view_original
    assert f"FROM {shadow}.t JOIN {shadow}.parts p" in seen["v"].view_expanded
    assert [each.location for each in seen["parts"]] == [f"file:{pair.replica().home}/parts/p={p}" for p in "xy"]
    assert seen["functions"] == ["f"]

    assert shadows_there(pair) == []
    assert pair.replica().everything() == before
    assert Drills(pair.memory).read() == ([done], [])


def test_replication_goes_on_during_a_drill_and_what_it_changes_is_told_apart(pair: Lab, spark: QueryEngine) -> None:
    def asking(metastore: Metastore) -> QueryEngine:
        source = pair.db("a")
        source.drop("t")
        source.drop_partitions("parts", ["x"])
        source.alter("outside", owner_note="altered")
        source.table("later", {"f": ROW})
        assert pair.sync().status == "synced"
        return spark

    done = rehearse(pair, DrillSettings(), asking)
    outcomes = {each.query.rpartition("`.")[2]: each.outcome for each in done.queries}
    assert outcomes["`outside`"] == "good" and outcomes["`t`"] == "changed"
    assert (done.status, done.moved, done.torn_down) == ("done", [f"{pair.name}_a"], True)
    pair.are_same()
    pair.db("a").table("t", {"again": ROW})  # in the places that the drill showed
    pair.db("a").add("parts", {"x": {"f": ROW}})
    pair.sync()
    pair.are_same()


def test_queries_that_fail_change_something_or_contradict_statistics_make_it_incomplete(
    pair: Lab, spark: QueryEngine
) -> None:
    pair.db("a").alter("t", numRows="4")
    pair.sync()
    before = pair.replica().everything()
    table = f"{pair.name}_a.t"
    queries = [
        f"INSERT INTO {table} VALUES (1, 'more')",
        f"WITH n AS (SELECT 1) INSERT INTO {table} SELECT 1, 'x'",
        f"DROP TABLE {table}",
        f"SELECT 1) LIMIT 1; DROP TABLE {table} --",
        f"SELECT nothing FROM {table}",
        f"WITH n AS (SELECT a FROM {table}) SELECT count(*) FROM n -- a comment",
    ]
    done = rehearse(pair, DrillSettings(queries=queries), lambda metastore: spark)
    assert [each.outcome for each in done.queries[:6]] == ["failed"] * 5 + ["good"]
    (wrong,) = [each for each in done.queries if each.outcome == "different"]
    assert (wrong.rows, wrong.expected) == ([[3]], 4)
    assert (done.status, done.torn_down) == ("incomplete", True)
    assert pair.replica().everything() == before


def test_a_query_of_a_format_that_spark_lacks_names_its_package(pair: Lab, spark: QueryEngine) -> None:
    pair.db("a").alter("t", **{"spark.sql.sources.provider": "delta"})
    pair.sync()
    done = rehearse(pair, DrillSettings(queries=[f"SELECT * FROM {pair.name}_a.t"]), lambda metastore: spark)
    assert done.queries[0].outcome == "failed"
    assert "spark.jars.packages=io.delta:delta-spark" in (done.queries[0].error or ""), done.queries[0]


def test_whoever_drops_a_shadow_drops_no_data_and_the_next_drill_tidies_up(pair: Lab) -> None:
    before = pair.replica().everything()
    kept = rehearse(pair, DrillSettings(sample=0, keep=True))
    (shadow,) = kept.databases.values()
    assert not kept.torn_down and shadow in shadows_there(pair)
    with RawClient(pair.target_uri) as client:  # with data, cascading: as a person's client does
        for arguments in (
            ("drop_table", shadow, "t", True),
            ("drop_partition_by_name", shadow, "parts", "p=x", True),
            ("drop_database", shadow, True, True),
        ):
            output = client.call(*arguments)
            assert not output.failed, output.message
    assert pair.replica().everything() == before

    again = rehearse(pair, DrillSettings(sample=0, keep=True))
    assert again.status == "done"
    third = rehearse(pair)
    assert any(again.databases[f"{pair.name}_a"] in text for text in third.warnings)
    assert shadows_there(pair) == [] and pair.replica().everything() == before
    assert {each.torn_down for each in Drills(pair.memory).read()[0]} == {True}


def test_what_somebody_made_in_a_kept_shadow_stays_and_is_told(pair: Lab) -> None:
    kept = rehearse(pair, DrillSettings(sample=0, keep=True))
    (shadow,) = kept.databases.values()
    mine = PlainDatabase(pair.target.metastore, shadow, pair.here / "target")
    mine.table("mine", {"own": "own"})
    answer = command("--config", str(pair.config()), "drill", pair.name, "--clean")
    assert (answer.code, answer.output["status"], answer.output["staying"]) == (3, "staying", [f"{shadow}.mine"])
    assert pair.target.metastore.table_names(shadow) == ["mine"] and (mine.home / "mine/own").exists()
    mine.drop("mine")
    answer = command("--config", str(pair.config()), "drill", pair.name, "--clean")
    assert (answer.code, answer.output["dropped"]) == (0, [shadow])
    assert shadows_there(pair) == []


@pytest.mark.parametrize(
    ("kind", "pattern", "number"),
    [
        ("rename", "drills/.*json", 1),
        ("thrift", "create database", 1),
        ("thrift", "create table", 2),
        ("thrift", "add 2 partitions", 1),
        ("thrift", "drop table", 3),
        ("thrift", "drop database", 1),
        ("rename", "drills/.*json", 2),
    ],
)
def test_a_drill_that_is_killed_anywhere_is_swept_by_the_next(
    drilled: Lab, kind: str, pattern: str, number: int
) -> None:
    before = drilled.replica().everything()
    arguments = ["--config", str(drilled.config()), "drill", drilled.name, "--sample", "0"]
    assert run_with(Fault("after", kind, pattern, number), arguments).killed
    assert drilled.replica().everything() == before
    assert drilled.sync().status == "nothing"
    before = drilled.replica().everything()  # a run may advance the checkpoint
    done = rehearse(drilled)
    assert done.status == "done" and shadows_there(drilled) == []
    records = Drills(drilled.memory).read()[0]
    assert records[1].status in ("killed", "done") and records[1].torn_down
    assert drilled.replica().everything() == before


@pytest.fixture(scope="module")
def drilled(source_metastore: Running, target_metastore: Running, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    pair = Lab(source_metastore, target_metastore, tmp_path_factory.mktemp("drilled"))
    pair.db("a").table("t", {"first": ROW})
    pair.db("a").table("u", {"first": ROW})
    pair.db("a").partitioned("parts", {"x": {"f": ROW}, "y": {"f": ROW}})
    pair.db("a").function("f")
    pair.sync()
    return pair


def test_shadows_are_part_of_no_policy_whichever_way_it_runs(pair: Lab) -> None:
    pair.keys["databases"] = [f"{pair.name}_.*", f"drill_.*_{pair.name}_.*"]
    kept = rehearse(pair, DrillSettings(sample=0, keep=True))
    (shadow,) = kept.databases.values()
    run = pair.sync()
    assert (run.status, run.databases, run.left) == ("nothing", [f"{pair.name}_a"], [])
    everything = create_or_open(str(pair.here / "everything"))
    capture(pair.target.metastore, everything, CaptureSettings(), local_runtime())
    captured = {record.change.touched_db for each in segments(everything.place) for record in read_records(each)}
    assert f"{pair.name}_a" in captured and shadow not in captured
    for metastore, role, more in ((pair.source.metastore, Role.REPLICA, 1), (pair.target.metastore, Role.PRIMARY, 2)):
        mark = read_role(metastore, f"{pair.name}_a")
        set_role(
            metastore, f"{pair.name}_a", RoleMark(role, mark.epoch + more), expect=mark, settle=timedelta(0), force=True
        )
    run = pair.sync()
    assert (run.reverse, run.databases) == (True, [f"{pair.name}_a"])
    assert shadow not in pair.source.metastore.database_names()

    backwards = rehearse(pair)  # the source's side is the replica now
    assert (backwards.reverse, backwards.metastore, backwards.status) == (True, pair.source_uri, "done")
    answer = command("--config", str(pair.config()), "drill", pair.name, "--clean")
    assert (answer.code, answer.output["dropped"]) == (0, [shadow])


class Racing:
    """The target's metastore, whose replica changes just after something was read of it: `after` is a method of the
    reading side, `change` is done once."""

    def __init__(self, metastore: Metastore, after: str, change: Callable[[], object]) -> None:
        self._metastore, self._after, self._change = metastore, after, change
        self.changed = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._metastore, name)
        if name != self._after:
            return method

        def read(*arguments: Any) -> Any:
            found = method(*arguments)
            found = list(found) if name == "all_partitions" else found
            self.changed += 1
            if self.changed == 1:
                self._change()
            return found

        return read


@pytest.mark.parametrize("after", ["tables", "all_partitions"])
def test_what_goes_away_while_it_is_shown_leaves_no_directory_in_the_replicas_way(pair: Lab, after: str) -> None:
    def change() -> None:
        pair.db("a").drop("t") if after == "tables" else pair.db("a").drop_partitions("parts", ["x"])
        assert pair.sync().status == "synced"

    racing: Any = Racing(pair.target.metastore, after, change)
    done = drill(pair.policy, pair.source.metastore, racing, nobody, QUIET)
    assert racing.changed and (done.status, done.torn_down) == ("done", True)
    home, name = pair.replica().home, f"{pair.name}_a"
    if after == "tables":
        assert (done.tables, done.skipped) == (2, {f"{name}.t": "it was dropped or moved concurrently"})
        assert not (home / "t").exists()
        pair.db("a").table("u", {"f": ROW})
        pair.db("a").rename("u", "t")  # to the place that the server had recreated
    else:
        assert done.partitions == 1 and not (home / "parts/p=x").exists()
        pair.db("a").add("parts", {"x": {"f": ROW}})
    pair.sync()
    pair.are_same()


def test_the_last_call_of_a_killed_drill_may_come_through_while_it_is_swept(drilled: Lab) -> None:
    kept = rehearse(drilled, DrillSettings(sample=0, keep=True))
    (shadow,) = kept.databases.values()
    made = drilled.target.metastore.table(shadow, "u")
    drilled.target.metastore.drop_table(shadow, "u")
    racing: Any = Racing(
        drilled.target.metastore, "function_names", lambda: drilled.target.metastore.create_table(made)
    )
    assert drill(drilled.policy, drilled.source.metastore, racing, nobody, QUIET).status == "done"
    assert racing.changed > 1 and shadows_there(drilled) == []


def test_a_drill_needs_no_source(drilled: Lab, tmp_path: Path) -> None:
    config = tmp_path / "alone.toml"
    config.write_text(drilled.config().read_text().replace(drilled.source_uri, "thrift://127.0.0.1:1"))
    answer, told = command_with_progress("--config", str(config), "drill", drilled.name, "--sample", "0")
    assert told["shadow tables"]["steps"] == told["shadow tables"]["of_steps"] == answer.output["tables"] == 3
    assert (answer.code, answer.output["status"], answer.output["lag_seconds"]) == (0, "done", None)
    assert any("lag is unknown" in text for text in answer.output["warnings"])


def test_what_cannot_be_drilled_is_refused(drilled: Lab) -> None:
    pair = drilled
    config = ["--config", str(pair.config())]
    with Drills(pair.memory).lease():
        assert command(*config, "drill", pair.name, "--sample", "0").code == 7
    answer = command(*config, "drill", pair.name, "--db", "nosuch")
    assert (answer.code, answer.error) == (1, "ObjectNotFound") and f"{pair.name}_a" in str(answer.output["hint"])
    with pytest.raises(UsageError, match="too long"):
        rehearse(pair, DrillSettings(sample=0, prefix="d" * 120))
    assert command(*config, "drill", pair.name, "--prefix", "Bad-").code == 2
    other = Lab.beside(pair)
    with pytest.raises(Refused, match=r"is a complete replica yet"):
        rehearse(other)
    assert shadows_there(pair) == []


def test_a_dry_run_says_what_would_be_shown_and_the_list_what_was(drilled: Lab) -> None:
    config = ["--config", str(drilled.config())]
    before = command(*config, "drill", drilled.name, "--list").output["drills"]
    planned = command(*config, "drill", drilled.name, "--dry-run")
    assert (planned.code, planned.output["status"], planned.output["tables"]) == (0, "planned", 3)
    assert shadows_there(drilled) == []
    done = replicator.drill(drilled.name, config=drilled.config(), sample=0)
    (found,) = [f for f in check(drilled.policy).findings if f.name == "drill"]
    assert found.health == "ok" and "the last successful drill" in found.text
    listed = command(*config, "drill", drilled.name, "--list")
    assert listed.output["drills"] == [msgspec.to_builtins(done), *before]


def test_a_drill_that_fails_takes_its_shadows_down_and_says_why(drilled: Lab) -> None:
    pair = drilled

    def broken(metastore: Metastore) -> QueryEngine:
        raise Error("Spark did not start")

    with pytest.raises(Error, match="did not start"):
        rehearse(pair, DrillSettings(), broken)
    (found,) = [f for f in check(pair.policy).findings if f.name == "drill"]
    assert found.health == "warning" and "did not start" in found.text
    record = Drills(pair.memory).read()[0][0]
    assert (record.status, record.torn_down) == ("failed", True) and "did not start" in record.error
    assert shadows_there(pair) == []


def test_only_what_can_lie_in_two_databases_is_shown_and_only_the_drills_own_is_dropped() -> None:
    table = Table(db="d", name="t", parameters={"transactional": "true"})
    assert "transactional" in cannot_show(table, {})
    assert "MATERIALIZED" in cannot_show(Table(db="d", name="m", kind="MATERIALIZED_VIEW"), {})
    assert not cannot_show(Table(db="d", name="t"), {})
    shown = Shadows("id", "p", {"d": "s"}).table(Table(db="d", name="t", parameters={"external.table.purge": "TRUE"}))
    assert may_drop(shown) and not shown.owns_data
    purging = msgspec.structs.replace(shown, parameters={**shown.parameters, "external.table.purge": "true"})
    assert not may_drop(purging) and not may_drop(Table(db="s", name="own"))
