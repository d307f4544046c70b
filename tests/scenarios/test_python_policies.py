"""What a policy's commands do from Python: the options of the command line as arguments, and its JSON as the report."""

from __future__ import annotations

import json
import threading
from datetime import timedelta

import pytest
from command_line import command
from lab import Lab
from waiting import CEILING

import replicator
from replicator.commands.policies import LagOptions
from replicator.core.config import Config
from replicator.core.engine import LocalEngine
from replicator.core.roles import Role
from replicator.core.spark import SparkEngine
from replicator.errors import Refused, UsageError
from replicator.policies.run import SyncRun


@pytest.fixture
def pair(pair: Lab) -> Lab:
    pair.db("a").table("t", {"first": "1"})
    return pair


def output(pair: Lab, *arguments: str) -> dict[str, object]:
    return command("--config", str(pair.config()), *arguments).output


def test_lag_and_history_are_what_the_commands_print_and_tables_of_rows(pair: Lab) -> None:
    pair.sync()
    pair.db("a").write("t", {"second": "2"})
    pair.sync()
    path = pair.config()
    history = replicator.history(pair.name, config=path, limit=1)
    assert json.loads(str(history)) == output(pair, "history", pair.name, "--limit", "1")
    assert history.runs[0].events_of == pair.source.metastore.uri
    everything = replicator.history(pair.name, config=path, limit=None)
    table = everything.to_arrow()
    assert table["kind"].to_pylist() == ["incremental", "bootstrap"]
    assert table["steps"][0].as_py().keys() >= {"capture", "load"}
    lag = replicator.lag(pair.name, config=path)
    assert json.loads(str(lag)).keys() == output(pair, "lag", pair.name).keys() and lag.status == "current"


def test_roles_are_shown_and_set_by_a_configured_name(pair: Lab) -> None:
    pair.sync()
    path, db = pair.config(), f"{pair.name}_a"
    path.write_text(path.read_text() + f'[metastores.west]\nuri = "{pair.target.metastore.uri}"\n')
    show = ["role", "show", "--metastore", pair.target.metastore.uri]
    shown = replicator.role_show(metastore="west", db=db.upper(), config=path)
    assert [(each.db, each.role, each.epoch) for each in shown.databases] == [(db, Role.REPLICA, 1)]
    assert json.loads(str(shown)) == command(*show, "--db", db).output
    assert shown.to_arrow()["role"].to_pylist() == ["replica"]
    planned = replicator.role_set(metastore="west", db=db, role="primary", dry_run=True, config=path)
    assert (planned.status, planned.after.epoch) == ("planned", 2) and "changes will be lost" in planned.consequence
    with pytest.raises(Refused, match="changes will be lost"):
        replicator.role_set(metastore="west", db=db, role=Role.PRIMARY, config=path)
    with pytest.raises(UsageError, match="'owner' is not one of"):
        replicator.role_set(metastore="west", db=db, role="owner", config=path)
    done = replicator.role_set(metastore="west", db=db, role="fenced", config=path)
    assert (done.status, done.before.role, done.after.role) == ("set", Role.REPLICA, Role.FENCED)
    again = replicator.role_set(metastore="west", db=db, role="fenced", config=path)
    reported = command("role", "set", "--metastore", pair.target.metastore.uri, "--db", db, "--role", "fenced").output
    assert json.loads(str(again)) == reported and again.status == "unchanged"


def test_the_environment_still_names_what_options_were_called(pair: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.sync()
    monkeypatch.setenv("REPLICATOR_ROLE_SHOW_PLACE", pair.target.metastore.uri)
    assert output(pair, "role", "show", "--db", f"{pair.name}_a")["metastore"] == pair.target.metastore.uri


def test_a_drill_is_planned_listed_and_taken_down(pair: Lab) -> None:
    pair.sync()
    path = pair.config()
    planned = replicator.drill(pair.name, config=path, dry_run=True)
    assert (planned.status, planned.tables) == ("planned", 1)
    assert json.loads(str(planned)).keys() == output(pair, "drill", pair.name, "--dry-run").keys()
    listed = replicator.drill(pair.name, config=path, listing=True)
    assert json.loads(str(listed)) == output(pair, "drill", pair.name, "--list")
    swept = replicator.drill(pair.name, config=path, clean=True)
    assert json.loads(str(swept)) == output(pair, "drill", pair.name, "--clean")
    with pytest.raises(UsageError, match="exclude each other"):
        replicator.drill(pair.name, config=path, listing=True, clean=True)


def test_a_policy_is_turned_round_lost_and_taken_back(pair: Lab) -> None:
    pair.sync()
    path = pair.config()
    lost = replicator.failover(pair.name, config=path, look=True)
    assert lost.status == "refused" and lost.loss is not None and lost.loss["unseen"] == []
    ready = replicator.switchover(pair.name, config=path, dry_run=True)
    assert (ready.status, ready.primary) == ("ready", "target")
    reported: list[str] = []
    done = replicator.switchover(
        pair.name,
        config=path,
        to="target",
        drain_timeout=timedelta(seconds=CEILING),
        wait=timedelta(0),
        jobs=1,
        reported=lambda step: reported.append(step.name),
    )
    assert (done.status, done.primary) == ("done", "target") and reported == [step.name for step in done.steps]
    assert replicator.switchover(pair.name, config=path, to="target").status == "nothing"
    forced = replicator.failover(pair.name, config=path, force=True, read_timeout=timedelta(seconds=CEILING))
    assert forced.primary == "source"
    shown = replicator.loss(pair.name, config=path)
    assert json.loads(str(shown)) == output(pair, "loss", pair.name) and shown.turn == forced.turn
    back = replicator.failback(pair.name, config=path, switch=True)
    assert (back.verb, back.primary) == ("switchover", "target") and back.own is not None


def test_a_side_that_is_none_and_an_abort_for_show_are_refused(pair: Lab) -> None:
    pair.sync()
    with pytest.raises(UsageError, match="'west' is not one of"):
        replicator.switchover(pair.name, config=pair.config(), to="west")
    answer = command("--config", str(pair.config()), "switchover", pair.name, "--abort", "--dry-run")
    assert answer.code == 2 and "exclude each other" in str(answer.output["message"])


def test_a_policy_runs_and_a_plan_is_applied_as_a_value_or_a_file(pair: Lab) -> None:
    path, file = pair.config(), pair.here / "plan.json"
    done = replicator.sync(pair.name, config=path)
    assert (done.status, done.kind) == ("synced", "bootstrap")
    for number in (2, 3):
        pair.db("a").write("t", {f"more {number}": str(number)})
        planned = replicator.plan(pair.name, config=path, out=str(file))
        assert planned.cost.files == 1 and json.loads(str(planned))["status"] == "planned"
        applied = replicator.apply(planned if number == 2 else str(file), config=path, jobs=1)
        assert applied.files_copied == 1
    assert json.loads(file.read_bytes()).keys() >= {"format", "loads"}
    pair.are_same()
    assert json.loads(str(replicator.sync(pair.name, config=path))).keys() == output(pair, "sync", pair.name).keys()


def test_limits_of_removals_are_fields_and_the_guard_of_the_file_holds(pair: Lab) -> None:
    pair.db("a").write("t", {"second": "22"})
    replicator.sync(pair.name, config=pair.config())
    (pair.db("a").home / "t" / "second").unlink()
    path = pair.config()
    path.write_text(path.read_text() + "[guard]\nmax_bytes = 0\n")
    with pytest.raises(Refused, match="bytes"):
        replicator.sync(pair.name, config=path)
    with pytest.raises(Refused, match="bytes"):
        replicator.apply(replicator.plan(pair.name, config=path), config=path)
    assert replicator.sync(pair.name, config=path, max_bytes=1 << 30, max_share=1.0).files_removed == 1
    pair.are_same()


def test_a_policy_is_followed_until_somebody_says_stop(pair: Lab) -> None:
    path, stop, reported = pair.config(), threading.Event(), list[SyncRun]()

    def on_run(run: SyncRun) -> None:
        reported.append(run)
        stop.set() if len(reported) == 2 else pair.db("a").write("t", {"second": "2"})

    done = replicator.sync(
        pair.name, config=path, once=False, interval=timedelta(milliseconds=200), stop=stop, reported=on_run
    )
    assert (done.status, done.synced, done.failures) == ("stopped", 2, 0)
    assert [run.kind for run in reported] == ["bootstrap", "incremental"]
    with pytest.raises(UsageError, match="applies to one run"):
        replicator.sync(pair.name, config=path, once=False, empty=["a.t"])


def test_a_spark_of_our_own_has_the_settings_of_the_configuration() -> None:
    config = Config(spark={"spark.master": "local[1]", "spark.replicator.test": "as configured"})
    with LagOptions("west", config=config, engine="spark").engines() as work:
        spark = work.for_work(1)
        assert isinstance(spark, SparkEngine)
        assert spark.context.getConf().get("spark.replicator.test") == "as configured"


def test_the_engine_is_the_policys_unless_another_is_given() -> None:
    with replicator.engines() as auto, replicator.engines("local") as local:
        assert isinstance(auto.preferring("spark").for_work(1), SparkEngine)
        assert isinstance(local.preferring("spark").for_work(1), LocalEngine)
