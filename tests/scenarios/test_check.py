"""`replicator check`: each finding provoked, on real metastores and real places."""

from __future__ import annotations

import json
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from names import unique
from plain_tables import PlainDatabase
from waiting import CEILING

import replicator
from cmroot.pins import Slot, create_slot, drop_slot, give_up_slot
from cmroot.root import create_or_open
from replicator.cli.main import run
from replicator.core.config import parse_config
from replicator.core.connections import MetastoreConfig
from replicator.core.model import Database, NotificationEvent
from replicator.core.policy import Policy
from replicator.core.roles import Role, RoleMark
from replicator.core.service_config import AlertConfig
from replicator.metastore.embedded.running import Running
from replicator.metastore.events.scope import Reach, event_life
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.policies.checks import NAGIOS, Figure, Finding, nagios_line, places, worst
from replicator.policies.checks.check import PolicyChecked, check
from replicator.policies.checks.metastores import judge_clock, judge_reach
from replicator.policies.checks.places import Probed, Room, clock_ahead, judge_store_clocks
from replicator.policies.checks.policy_health import judge_marks, judge_role_change, judge_runs
from replicator.policies.lag import lag
from replicator.policies.memory import Compared, History, Memory, RememberedScope, RoleChange, Run, Step
from replicator.service.alert_conditions import Condition, of_policies
from replicator.service.measuring import MeasuredLag

PLENTY = Room(total=1000, free=900)
NOW = 1_800_000_000.0


@dataclass
class Scene:
    """One policy on the module's two metastores, with a database, a root and places of the test's own."""

    here: Path
    source: Running
    target: Running
    db: str
    values: dict[str, Any]

    @property
    def policy(self) -> Policy:
        return parse_config({"policies": {"west": self.values}}, "test").policy("west")

    def check(self, **options: Any) -> PolicyChecked:
        def reach(uri: str) -> ThriftMetastore:
            return ThriftMetastore(uri, timeout=CEILING, retries=0)

        return check(self.policy, **{"connect": reach, "room": lambda _: PLENTY, **options})

    def finding(self, name: str, **options: Any) -> Finding:
        found = [finding for finding in self.check(**options).findings if finding.name == name]
        assert len(found) == 1, found
        return found[0]

    def replicate(self) -> None:
        """What the policy's first run does, as far as a check can see."""
        out = str(self.here / "dumps" / "west" / "1")
        replicator.dump(source=self.source.uri, cmroot=self.values["cmroot"], db=self.db, out=out, slot="west")
        warehouse, cmroot = self.values["warehouse"], self.values["target_cmroot"]
        replicator.load(out, target=self.target.uri, warehouse=warehouse, target_cmroot=cmroot)


@pytest.fixture
def scene(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Iterator[Scene]:
    db = unique("checked")
    with connect(source_metastore.uri) as metastore:
        plain = PlainDatabase(metastore, db, source_metastore.warehouse)
        plain.create()
        plain.table("t", {"a": "1"})
        plain.partitioned("p", {"x": {"a": "2"}})
    values = {
        "source": source_metastore.uri,
        "target": target_metastore.uri,
        "databases": db,
        "cmroot": str(tmp_path / "cm"),
        "target_cmroot": str(tmp_path / "tcm"),
        "dumps": str(tmp_path / "dumps"),
        "warehouse": str(tmp_path / "warehouse"),
    }
    yield Scene(tmp_path, source_metastore, target_metastore, db, values)


def healths(checked: PolicyChecked) -> dict[str, str]:
    return {finding.name: finding.health for finding in checked.findings if finding.health != "ok"}


def tree(place: Path) -> set[str]:
    return {str(path) for path in place.rglob("*")}


def test_single_user_mode_of_ingestion_is_a_warning(scene: Scene) -> None:
    found = scene.finding("ingestion", single_user=True)
    assert found.health == "warning" and "approve assets that they created" in found.text


# ---- all is well --------------------------------------------------------------------------------------------------


def test_a_policy_that_can_run_is_all_ok_and_the_check_leaves_nothing(scene: Scene) -> None:
    before = tree(scene.here), tree(scene.source.warehouse)

    checked = scene.check()

    assert (checked.status, healths(checked), checked.backwards) == ("ok", {}, False)
    assert (tree(scene.here), tree(scene.source.warehouse)) == before
    assert {
        "source",
        "target",
        "databases",
        "roles",
        "versions",
        "sides",
        "clock source",
        "clock target",
        "log",
        "events",
        "replicas",
        "slot",
        "lag",
        "overlap",
        "last run",
        "write cmroot",
        "write target_cmroot",
        "write dumps",
        "write warehouse",
        "clock stores",
    } <= {finding.name for finding in checked.findings}
    assert any(finding.text.startswith("link, for ") for finding in checked.findings)


def test_a_policy_that_has_run_is_all_ok(scene: Scene) -> None:
    scene.replicate()
    checked = scene.check()
    assert healths(checked) == {}
    texts = {finding.name: finding.text for finding in checked.findings}
    assert texts["events"].startswith("all events up to ")
    assert "at event" in texts["slot"]


# ---- metastores ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_metastore_that_is_away_is_critical_and_the_rest_is_looked_at(scene: Scene, side: str) -> None:
    scene.values[side] = "thrift://127.0.0.1:1"
    checked = scene.check()
    found = healths(checked)
    assert (checked.status, found[side]) == ("critical", "critical")
    assert "write cmroot" in {finding.name for finding in checked.findings}


def test_one_metastore_under_two_addresses_is_noticed_by_its_events(scene: Scene) -> None:
    scene.values["target"] = scene.source.uri.replace("127.0.0.1", "localhost")
    found = scene.finding("sides")
    assert found.health == "critical" and "one metastore" in found.text


def test_a_source_without_a_notification_log_is_critical(scene: Scene, without_log: Running) -> None:
    with connect(without_log.uri) as metastore:
        metastore.create_database(Database(name=scene.db, location=f"file:{without_log.warehouse}/{scene.db}.db"))
    scene.values["source"] = without_log.uri
    checked = scene.check()
    (log,) = [finding for finding in checked.findings if finding.name == "log"]
    assert log.health == "critical" and "no notification log" in log.text and "DbNotificationListener" in log.hint
    assert "clock source" in healths(checked)


def test_a_target_need_not_keep_a_notification_log(scene: Scene, without_log: Running) -> None:
    scene.values["target"] = without_log.uri
    assert healths(scene.check()) == {}


def test_a_root_that_captured_another_metastore_is_critical(scene: Scene) -> None:
    with connect(scene.source.uri) as source, connect(scene.target.uri) as target:
        plain = PlainDatabase(source, scene.db, scene.source.warehouse)
        while source.current_event_id() <= target.current_event_id() + 10:
            plain.alter("t", round=str(source.current_event_id()))
    replicator.capture(source=scene.source.uri, cmroot=scene.values["cmroot"], db=scene.db)
    scene.values["source"], scene.values["target"] = scene.target.uri, scene.source.uri
    found = scene.finding("events")
    assert found.health == "critical" and "another metastore" in found.text


# ---- clocks, room, rights, keepers --------------------------------------------------------------------------------


def test_clocks_ahead_of_ours_are_told_by_events_and_by_fresh_files(scene: Scene) -> None:
    found = healths(scene.check(clock=lambda: time.time() - 600))  # ours is ten minutes late
    assert found["clock source"] == found["clock stores"] == "warning"


@pytest.mark.parametrize(("free", "health"), [(500, "ok"), (50, "warning"), (5, "critical")])
def test_room_that_runs_out_is_told(scene: Scene, free: int, health: str) -> None:
    rooms = [f for f in scene.check(room=lambda _: Room(1000, free)).findings if f.name.startswith("room ")]
    assert {finding.health for finding in rooms} == {health}


@pytest.mark.parametrize("key", ["cmroot", "target_cmroot", "dumps", "warehouse", "external"])
def test_a_place_that_takes_no_file_is_critical(scene: Scene, key: str) -> None:
    scene.values[key] = "/proc/nothing-can-be-made-here"
    found = scene.finding(f"write {key}")
    assert found.health == "critical" and found.hint


def test_a_place_below_a_file_is_critical(scene: Scene) -> None:
    (scene.here / "file").write_text("")
    scene.values["dumps"] = str(scene.here / "file" / "dumps")
    assert scene.finding("write dumps").health == "critical"


@pytest.mark.parametrize("key", ["cmroot", "target_cmroot"])
def test_a_root_in_a_directory_of_something_else_is_critical(scene: Scene, key: str) -> None:
    place = Path(scene.values[key])
    place.mkdir()
    (place / "somebody's").write_text("")
    found = scene.finding(f"write {key}")
    assert found.health == "critical" and "no FORMAT" in found.text


def test_a_keeper_that_cannot_be_had_is_critical_and_none_a_warning(scene: Scene) -> None:
    scene.values["keeper"] = "version"
    assert [f.health for f in scene.check().findings if f.name.startswith("keeper ")] == ["critical"]
    scene.values["keeper"] = "none"
    assert [f.health for f in scene.check().findings if f.name.startswith("keeper ")] == ["warning"]


def test_what_a_trial_of_a_keeper_wrote_is_removed(scene: Scene) -> None:
    scene.values["keeper"] = "copy"
    before = tree(scene.here)
    assert healths(scene.check()) == {}
    assert tree(scene.here) == before


# ---- object stores ------------------------------------------------------------------------------------------------


def test_places_in_a_bucket_are_tried_and_left_as_they_were(scene: Scene, bucket: str) -> None:
    import s3fs

    scene.values |= {key: f"{bucket}/{key}" for key in ("cmroot", "target_cmroot", "dumps", "warehouse")}
    checked = scene.check()
    assert healths(checked) == {}
    assert next(f.text for f in checked.findings if f.name.startswith("keeper ")).startswith("copy, for ")
    assert s3fs.S3FileSystem(skip_instance_cache=True).find(bucket) == []


def test_a_bucket_that_is_not_there_is_critical(scene: Scene, bucket: str) -> None:
    scene.values |= {"cmroot": f"{bucket}-absent/cm", "dumps": f"{bucket}-absent/dumps"}
    found = healths(scene.check())
    assert found["write cmroot"] == found["write dumps"] == "critical"


# ---- scope --------------------------------------------------------------------------------------------------------


def test_a_policy_whose_databases_are_not_there_is_critical(scene: Scene) -> None:
    scene.values["databases"] = "no_such_.*"
    assert scene.finding("databases").health == "critical"


def test_names_that_are_not_at_the_source_are_told(scene: Scene) -> None:
    scene.values["databases"] = [scene.db, "gone"]
    scene.values["rename_db"] = {"gone": "gone2"}
    scene.values["partitions"] = {f"{scene.db}.nosuch": "p = 1", f"{scene.db}.p": "q = 1", f"{scene.db}.t": "p = 1"}
    found = healths(scene.check())
    assert found == {
        "rename_db": "warning",
        f"partitions {scene.db}.nosuch": "warning",
        f"partitions {scene.db}.p": "critical",
        f"partitions {scene.db}.t": "critical",
    }


def test_a_database_that_left_the_policy_is_told(scene: Scene) -> None:
    memory = Memory(create_or_open(scene.values["target_cmroot"]), "west")
    memory.write_scope(RememberedScope(databases={scene.db: scene.db, "left": "left"}, recorded="2027-01-15T08:00:00Z"))
    found = scene.finding("scope")
    assert found.health == "warning" and "left" in found.text and scene.db not in found.text


def test_a_filter_about_a_partition_key_is_fine(scene: Scene) -> None:
    scene.values["partitions"] = {f"{scene.db}.p": "p >= 'm'"}
    assert healths(scene.check()) == {}


def test_a_database_of_the_target_that_is_not_ours_is_told(scene: Scene, tmp_path: Path) -> None:
    with connect(scene.target.uri) as target:
        plain = PlainDatabase(target, scene.db, tmp_path / "theirs")
        plain.create()
        assert scene.finding("replicas").health == "ok"  # empty
        plain.table("t", {"theirs": "1"})
        found = scene.finding("replicas")
        assert found.health == "warning" and "--adopt" in found.hint


def test_a_replica_of_another_root_is_critical(scene: Scene) -> None:
    scene.replicate()
    scene.values["cmroot"] = str(scene.here / "another")
    found = scene.finding("replicas")
    assert found.health == "critical" and "another cmroot" in found.text


def test_policies_that_write_one_database_name_each_other(scene: Scene) -> None:
    other = msgspec.structs.replace(scene.policy, name="east", databases=(".*",))
    apart = msgspec.structs.replace(scene.policy, name="south", rename_db={scene.db: "elsewhere"})
    away = "thrift://127.0.0.1:1"
    north = msgspec.structs.replace(scene.policy, name="north", source=away, source_metastore=MetastoreConfig(away))
    found = scene.finding("overlap", others=[scene.policy, other, apart])
    assert found.health == "critical" and "west" in found.text and "east" in found.text
    found = scene.finding("overlap", others=[scene.policy, apart])
    assert found.health == "ok"
    found = scene.finding("overlap", others=[scene.policy, north])
    assert found.health == "unknown" and "north" in found.text


# ---- slot, lag, runs ----------------------------------------------------------------------------------------------


def test_slots_that_protect_nothing_are_told(scene: Scene) -> None:
    scene.replicate()
    root = scene.values["cmroot"]
    drop_slot(root, "west")
    assert scene.finding("slot").health == "warning"
    create_slot(root, Slot("west", 1, 1, created="2026-01-01T00:00:00+00:00", confirmed="2026-01-01T00:00:00+00:00"))
    assert scene.finding("slot").health == "ok"
    give_up_slot(root, "west", now=time.time)
    assert scene.finding("slot").health == "critical"


@pytest.mark.parametrize("name", ["west", "another"])
def test_a_damaged_pin_is_critical_whosever_it_is(scene: Scene, name: str) -> None:
    scene.replicate()
    (Path(scene.values["cmroot"]) / "slots" / name).write_text("{")
    found = scene.finding("pins")
    assert found.health == "critical" and name in found.text


def test_lag_is_measured_against_its_objective(scene: Scene) -> None:
    scene.replicate()
    with connect(scene.source.uri) as source:
        PlainDatabase(source, scene.db, scene.source.warehouse).alter("t", changed="1")
    assert scene.finding("lag").health == "ok"  # no objective
    scene.values["max_lag"] = "1h"
    assert scene.finding("lag").health == "ok"
    found = scene.finding("lag", clock=lambda: time.time() + 3000)
    assert found.health == "warning"
    found = scene.finding("lag", clock=lambda: time.time() + 7200)
    assert found.health == "critical" and found.figures[0].critical == 3600
    scene.values["schedule"] = "2h"
    assert "a run begins only" in scene.finding("lag").text


def test_events_that_wait_are_judged_by_how_long_the_server_keeps_them(scene: Scene) -> None:
    scene.replicate()
    with connect(scene.source.uri) as source:
        PlainDatabase(source, scene.db, scene.source.warehouse).alter("t", changed="1")
    day = 86_400  # as the server says
    ages = [(0.1, "ok"), (0.6, "warning"), (0.8, "critical")]
    found = [scene.finding("events", clock=lambda part=part: time.time() + part * day).health for part, _ in ages]
    assert found == [health for _, health in ages]


def test_the_history_of_runs_is_judged(scene: Scene) -> None:
    memory = Memory(create_or_open(scene.values["target_cmroot"]), "west")
    memory.write_run(Run(id="a", policy="west", started="2027-01-15T08:00:00+00:00", status="done"))
    assert scene.finding("last run", clock=lambda: NOW + 60).health == "ok"
    assert scene.finding("last run", clock=lambda: NOW + 11 * 60).health == "warning"
    assert scene.finding("last run", clock=lambda: NOW + 21 * 60).health == "critical"
    failed = Run(id="b", policy="west", started="2027-01-15T08:01:00+00:00", status="failed", error="no room")
    memory.write_run(failed)
    found = scene.finding("last run", clock=lambda: NOW + 60)
    assert found.health == "warning" and "no room" in found.text


def test_what_was_verified_ages_and_a_dead_follower_is_no_proof(scene: Scene) -> None:
    scene.values["verify"] = {"objects": 5}
    memory = Memory(create_or_open(scene.values["target_cmroot"]), "west")
    compared = Compared(tables=3, sampled=1, oldest=120.0, ended="2027-01-15T08:00:00+00:00")
    memory.write_run(Run(id="a", policy="west", started="2027-01-15T07:59:00+00:00", status="done", compared=compared))
    found = scene.finding("verified", clock=lambda: NOW + 60)
    assert found.health == "ok" and {each.label: each.value for each in found.figures}["longest_unverified"] == 180
    found = scene.finding("verified", clock=lambda: NOW + 86_400)
    assert found.health == "warning" and "nothing has been compared for 24.0 h" in found.text
    assert {each.label: each.value for each in found.figures}["longest_unverified"] == 86_520


def test_a_change_of_roles_that_was_interrupted_is_critical(scene: Scene) -> None:
    memory = Memory(create_or_open(scene.values["target_cmroot"]), "west")
    steps = (Step(name="fence", status="done"), Step(name="drain"))
    memory.write_role_change(
        RoleChange(id="x", policy="west", verb="switchover", started="2027-01-15T08:00:00+00:00", steps=steps)
    )
    found = scene.finding("turn")
    assert found.health == "critical" and "drain" in found.text and "replicator switchover" in found.hint


# ---- roles --------------------------------------------------------------------------------------------------------


def give(metastore: ThriftMetastore, db: str, mark: RoleMark) -> None:
    there = metastore.database(db)
    parameters = {**there.parameters, **mark.parameters()}
    metastore.alter_database(db, msgspec.structs.replace(there, parameters=parameters))


def test_two_primaries_are_critical_and_turned_roles_turn_the_check(scene: Scene) -> None:
    scene.replicate()
    with connect(scene.source.uri) as source, connect(scene.target.uri) as target:
        give(source, scene.db, RoleMark(Role.PRIMARY, 1))
        give(target, scene.db, RoleMark(Role.PRIMARY, 2))
        found = scene.finding(f"role {scene.db}")
        assert found.health == "critical" and "two primaries" in found.text
        measured = {"west": MeasuredLag(0.0, lag(scene.policy, source, target))}
        judged = [each for each in of_policies(["west"], measured, {}, AlertConfig()) if each.kind == "two-primaries"]
        assert [each.subject for each in judged if isinstance(each, Condition)] == [f"west/{scene.db}"]
        give(source, scene.db, RoleMark(Role.REPLICA, 2))
    checked = scene.check()
    assert checked.backwards and f"role {scene.db}" not in healths(checked)


def test_a_role_that_cannot_be_read_is_critical(scene: Scene) -> None:
    with connect(scene.source.uri) as source:
        there = source.database(scene.db)
        source.alter_database(scene.db, msgspec.structs.replace(there, parameters={"replicator.role": "emperor"}))
    assert scene.finding(f"role {scene.db}").health == "critical"


@pytest.mark.parametrize(
    ("here", "there", "health"),
    [
        ((Role.NONE, 0), (Role.NONE, 0), "ok"),
        ((Role.PRIMARY, 1), (Role.NONE, 0), "ok"),
        ((Role.PRIMARY, 1), (Role.REPLICA, 1), "ok"),
        ((Role.REPLICA, 2), (Role.PRIMARY, 2), "ok"),
        ((Role.FENCED, 1), (Role.PRIMARY, 2), "warning"),
        ((Role.PRIMARY, 1), (Role.REPLICA, 2), "critical"),
        ((Role.PRIMARY, 2), (Role.PRIMARY, 1), "critical"),
        ((Role.NONE, 0), (Role.PRIMARY, 1), "critical"),
        ((Role.FENCED, 2), (Role.REPLICA, 1), "critical"),
        ((Role.PRIMARY, 2), (Role.FENCED, 2), "critical"),
        ((Role.REPLICA, 1), (Role.REPLICA, 1), "critical"),
        ((Role.REPLICA, 1), (Role.NONE, 0), "critical"),
    ],
    ids=str,
)
def test_each_pair_of_roles_has_a_health(here: tuple[Role, int], there: tuple[Role, int], health: str) -> None:
    found, text, hint = judge_marks(RoleMark(*here), RoleMark(*there))
    assert found == health and text and bool(hint) == (health != "ok")


# ---- decisions ----------------------------------------------------------------------------------------------------


def event(number: int, age: float = 0) -> NotificationEvent:
    return NotificationEvent(id=number, time=int(NOW - age), type="ALTER_TABLE")


@pytest.mark.parametrize(
    ("reach", "health", "output"),
    [
        (Reach(9, event(1, 60), None, None, timedelta(days=1)), "ok", "nothing has been captured"),
        (Reach(0, None, None, None, timedelta(days=1)), "ok", "empty"),
        (Reach(9, event(1), 9, None, timedelta(days=1)), "ok", "all events up to 9 are captured"),
        (Reach(9, event(1), 12, None, timedelta(days=1)), "critical", "another metastore"),
        (Reach(9, event(7), 3, event(7), timedelta(days=1)), "critical", "events 4 to 6 were cleaned"),
        (Reach(9, None, 3, None, timedelta(days=1)), "critical", "events 4 to 9 were cleaned"),
        (Reach(9, event(1), 3, event(4, 60), None), "ok", "does not report"),
        (Reach(9, event(1), 3, event(4, 60), timedelta(minutes=8)), "warning", "a run begins only every 5 min"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_how_far_a_log_reaches_has_a_health(reach: Reach, health: str, output: str) -> None:
    found = judge_reach(reach, now=NOW, schedule=timedelta(minutes=5))
    assert (found.health, output in found.text) == (health, True), found


@pytest.mark.parametrize(
    ("text", "life"),
    [
        ("86400s", 86400),
        ("1d", 86400),
        ("2days", 172800),
        ("90", 90),
        ("1440min", 86400),
        ("500ms", 0.5),
        ("", None),
        ("0s", None),
        ("soon", None),
    ],
)
def test_the_life_of_events_is_read_as_hive_writes_it(text: str, life: float | None) -> None:
    assert event_life(text) == (None if life is None else timedelta(seconds=life))


def test_a_clock_is_proved_ahead_and_only_bounded_behind() -> None:
    assert judge_clock("source", event(1, age=-600), now=NOW).health == "warning"
    behind = judge_clock("source", event(1, age=600), now=NOW)
    assert behind.health == "ok" and "at most 10 min" in behind.text
    assert judge_clock("source", None, now=NOW).health == "ok"


def test_a_clock_of_a_store_is_measured_both_ways() -> None:
    assert clock_ahead(NOW, NOW - 0.5, NOW + 0.5) == 0
    assert clock_ahead(NOW + 100, NOW, NOW) == 100
    assert clock_ahead(NOW - 100, NOW, NOW) == -98  # whole seconds, and a filesystem's tick
    for ahead in (100, -100):
        assert judge_store_clocks([Probed("/a", 0), Probed("/b", ahead)]).health == "warning"
    assert judge_store_clocks([]).health == "unknown"


def test_runs_that_never_succeeded_are_critical_and_one_under_way_is_not() -> None:
    run = Run(id="a", policy="west", started="2027-01-15T08:00:00+00:00")
    failed = msgspec.structs.replace(run, status="failed")
    schedule = timedelta(minutes=5)
    assert judge_runs(History([run], []), schedule=schedule, now=NOW).health == "ok"
    assert judge_runs(History([failed], []), schedule=schedule, now=NOW).health == "critical"
    assert judge_runs(History([], ["x"]), schedule=schedule, now=NOW).health == "warning"


def test_a_turn_that_has_ended_is_no_finding() -> None:
    turn = RoleChange(
        id="x", policy="west", verb="drill", started="2027-01-15T08:00:00+00:00", ended="2027-01-15T08:01:00Z"
    )
    assert judge_role_change(turn) == [] == judge_role_change(None)


def test_the_worst_finding_decides_and_the_nagios_line_says_it_first() -> None:
    findings = [
        Finding("lag", "warning", "12 s | more", figures=(Figure("lag", 12.0, "s", 10, 60),)),
        Finding("source", "critical", "away\nfor good"),
        Finding("target", "ok", "well", figures=(Figure("target_answer", 0.25, "s"),)),
        Finding("overlap", "unknown", "not asked"),
    ]
    assert worst(finding.health for finding in findings) == "critical"
    assert worst(["warning", "unknown", "ok"]) == "unknown" and worst([]) == "ok"
    assert nagios_line("west", findings) == (
        "REPLICATOR CRITICAL - west: source: away for good; overlap: not asked; lag: 12 s / more"
        " | 'lag'=12s;10;60 'target_answer'=0.250s"
    )
    assert nagios_line("west", findings[2:3]) == "REPLICATOR OK - west: 1 checks passed | 'target_answer'=0.250s"
    assert sorted(NAGIOS.values()) == [0, 1, 2, 3]


# ---- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def configured(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """`configured(**values)` writes the scene's policy into the working directory's replicator.toml."""
    monkeypatch.chdir(scene.here)

    def write(**values: str) -> Path:
        lines = [f"{key} = {json.dumps(value)}" for key, value in (scene.values | values).items()]
        path = scene.here / "replicator.toml"
        path.write_text("\n".join(["[policies.west]", *lines, ""]))
        return path

    return write


def test_the_command_answers_people_programs_and_nagios(
    configured: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    DiskUsage = namedtuple("DiskUsage", "total used free")
    monkeypatch.setattr(places.shutil, "disk_usage", lambda _: DiskUsage(1000, 100, 900))
    configured()
    assert run(["check", "west"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("west: ok")
    assert run(["check", "west", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["status"] == "ok" and {"name", "health", "text", "hint"} <= set(answer["findings"][0])
    assert run(["check", "west", "--nagios"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("REPLICATOR OK - west: ") and out.count("\n") == 1


def test_the_python_function_answers_as_the_command(configured: Callable[..., Path]) -> None:
    path = configured(databases="nosuch")
    checked = replicator.check("west", config=path)
    assert checked.status == "critical" and json.loads(str(checked))["policy"] == "west"


def test_what_is_critical_ends_with_3_and_for_nagios_with_2(
    configured: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    configured(databases="nosuch")
    assert run(["check", "west", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["status"] == "critical"
    assert run(["check", "west", "--nagios"]) == 2
    assert capsys.readouterr().out.startswith("REPLICATOR CRITICAL - west: databases: ")


@pytest.mark.parametrize(
    "arguments", [["check", "nosuch"], ["check", "--no-such"], ["--config", "nosuch.toml", "check", "west"]]
)
def test_a_check_that_cannot_be_made_is_unknown_to_nagios(
    configured: Callable[..., Path], capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    configured()
    assert run([*arguments, "--nagios"]) == 3
    out = capsys.readouterr().out
    assert out.startswith("REPLICATOR UNKNOWN - ") and out.count("\n") == 1
    assert run([*arguments]) == 2


def test_a_run_of_a_clock_that_was_ahead_is_not_the_last_one() -> None:
    ahead = Run(id="a", policy="west", started="2027-03-01T08:00:00+00:00", status="done")
    found = judge_runs(History([ahead], []), schedule=timedelta(minutes=5), now=NOW)
    assert found.health == "warning" and "in the future" in found.text
