"""The two doors: a command and its Python function do the same, and say the same."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from command_line import command
from lab import Lab

import replicator
from replicator.captures.recording import Captured
from replicator.core.config import parse_config
from replicator.errors import NotReached, Refused, UsageError

TEXT = "1\x01one\n"


@pytest.fixture
def fixture(fixture: Lab) -> Lab:
    """A source with a dump that is not loaded."""
    fixture.source.table("t", {"one": TEXT, "two": TEXT * 2})
    fixture.source.partitioned("p", {"a": {"f": TEXT}, "b": {"f": TEXT * 3}})
    assert fixture.dump().code == 0
    return fixture


def names(fixture: Lab, **more: Any) -> Any:
    """A configuration that calls the two metastores prod and dr."""
    uris = {"prod": {"uri": fixture.source_uri}, "dr": {"uri": fixture.target_uri}}
    return parse_config({"metastores": uris, **more}, "test")


def of_load(fixture: Lab) -> dict[str, Any]:
    return {
        "dump": str(fixture.last),
        "target": "dr",
        "warehouse": str(fixture.warehouse),
        "engine": "local",
        "config": names(fixture),
    }


def test_a_plan_of_a_load_says_what_dry_run_prints(fixture: Lab) -> None:
    plan = replicator.load(**of_load(fixture), dry_run=True, rename_db={fixture.name: f"{fixture.name}_copy"})
    output = fixture.load(None, "--dry-run", "--rename-db", f"{fixture.name}={fixture.name}_copy").output
    assert json.loads(str(plan)) == output == plan.to_dict()
    assert list(output)[:3] == ["status", "dump", "skipped"] and plan.create_tables == [
        f"{fixture.name}_copy.p",
        f"{fixture.name}_copy.t",
    ]
    assert not fixture.target.exists()


def test_the_configuration_guards_a_load_from_python_too(fixture: Lab, tmp_path: Path) -> None:
    assert replicator.load(**of_load(fixture)).status == "loaded"
    (fixture.source.home / "t" / "one").unlink()
    assert fixture.dump(since=fixture.last).code == 0
    guarded = of_load(fixture) | {"config": names(fixture, guard={"max_share": 0.01})}
    with pytest.raises(Refused, match="would be removed"):
        replicator.load(**guarded)
    with pytest.raises(Refused, match="would be removed"):
        replicator.load(**of_load(fixture), max_bytes=1)
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("k" * 32)
    with pytest.raises(Refused, match="not signed"):
        replicator.load(**of_load(fixture) | {"config": names(fixture, dumps={"key_file": str(keys)})})
    assert replicator.load(**guarded, brake=None).files_removed == 1
    fixture.is_same()


def test_a_following_ends_with_an_exception_of_who_is_told(fixture: Lab) -> None:
    reported: list[Captured] = []

    def tell(captured: Captured) -> None:
        reported.append(captured)
        fixture.source.write("t", {f"more{len(reported)}": TEXT})
        if len(reported) == 3:
            raise KeyboardInterrupt

    given = {"source": "prod", "cmroot": str(fixture.cmroot), "engine": "local", "config": names(fixture)}
    with pytest.raises(KeyboardInterrupt):
        replicator.capture(**given, follow=True, interval=timedelta(milliseconds=1), reported=tell)
    assert [each.files for each in reported] == [0, 1, 1]
    assert replicator.capture(**given).files == 1


def test_databases_are_not_compared_with_themselves_and_samples_are_remembered(fixture: Lab) -> None:
    assert replicator.load(**of_load(fixture)).status == "loaded"
    given = {"source": "prod", "target": "dr", "db": fixture.name, "engine": "local", "config": names(fixture)}
    output = command(
        "verify", "--source", fixture.source_uri, "--target", fixture.target_uri, "--db", fixture.name
    ).output
    report = replicator.verify(**given)
    assert report.to_dict() | {"seconds": 0} == output | {"seconds": 0}
    with pytest.raises(UsageError, match="are the same metastore"):
        replicator.verify(**given | {"target": fixture.source_uri})
    with pytest.raises(UsageError, match="remember"):
        replicator.verify(**given, sample=1)
    left = [replicator.verify(**given, sample=1, target_cmroot=str(fixture.target_cmroot)).never for _ in range(2)]
    assert left == [1, 0]


def test_plans_of_a_repair_and_of_a_restore_say_what_dry_run_prints(fixture: Lab, tmp_path: Path) -> None:
    assert replicator.load(**of_load(fixture)).status == "loaded"
    (fixture.target.home / "t" / "one").write_text("x")
    report = tmp_path / "verify.json"
    sides = ("--source", fixture.source_uri, "--target", fixture.target_uri, "--db", fixture.name)
    report.write_text(json.dumps(command("verify", *sides).output))
    given = {
        "target": "dr",
        "cmroot": str(fixture.cmroot),
        "db": fixture.name,
        "engine": "local",
        "config": names(fixture),
    }
    repair = given | {"source": "prod", "target_cmroot": str(fixture.target_cmroot), "report": report}
    arguments = ("--cmroot", str(fixture.cmroot), "--target-cmroot", str(fixture.target_cmroot), "--from", str(report))
    plan, output = replicator.repair(**repair, dry_run=True), command("repair", *sides, *arguments, "--dry-run").output
    assert json.loads(str(plan)) == output and (plan.status, plan.files_to_copy, plan.found) == ("planned", 1, None)
    assert list(output)[:6] == ["status", "db", "event", "position", "found", "tables"]
    with pytest.raises(UsageError, match="not a report of verify"):
        replicator.repair(**repair | {"report": fixture.last / "_finished_dump"})
    assert replicator.repair(**repair).status == "repaired"
    fixture.is_same()

    restore = given | {"to": plan.event, "table": f"{fixture.name}.t", "warehouse": str(tmp_path / "restored")}
    arguments = ("--cmroot", str(fixture.cmroot), "--to", str(plan.event), "--table", "t", *sides[2:])
    arguments += ("--warehouse", str(tmp_path / "restored"), "--dry-run")
    planned, output = replicator.restore(**restore, dry_run=True), command("restore", *arguments).output
    assert json.loads(str(planned)) == output and (planned.status, planned.files_to_copy) == ("planned", 2)
    assert list(output)[:5] == ["status", "db", "into", "location", "event"]
    with pytest.raises(UsageError, match="is not a table of"):
        replicator.restore(**restore | {"table": "other.t"})
    assert replicator.restore(**restore).files_copied == 2


def test_what_is_shown_and_waited_for_is_what_the_commands_print(fixture: Lab) -> None:
    shown = replicator.show(str(fixture.last), files=True)
    output = command("show", str(fixture.last), "--files").output
    assert json.loads(str(shown)) == output and list(output)[-2:] == ["records", "files"] and len(output["files"]) == 4
    assert [each.position for each in shown.records()] == [each["position"] for each in output["records"]]
    log = replicator.show(str(fixture.cmroot))
    assert "files" not in log.to_dict()
    assert shown.to_arrow()["path"].to_pylist() == [each["path"] for each in output["files"]]
    table = log.to_arrow()
    assert table["position"].to_pylist() == [each.position for each in log.records()]
    assert set(table["kind"].to_pylist()) >= {"create_table"} and f"{fixture.name}.t" in table["object"].to_pylist()

    assert replicator.load(**of_load(fixture)).status == "loaded"
    given = {
        "target": "dr",
        "db": fixture.name.upper(),
        "until_event": output["end"]["event"],
        "config": names(fixture),
    }
    assert replicator.wait(**given).event == output["end"]["event"]
    late = given | {"source": "prod", "until_event": output["end"]["event"] + 10_000}
    with pytest.raises(NotReached):
        replicator.wait(**late, timeout=timedelta())


def test_the_status_is_what_the_command_prints(fixture: Lab) -> None:
    assert replicator.load(**of_load(fixture)).status == "loaded"
    given = {
        "target": "dr",
        "db": fixture.name,
        "source": "prod",
        "cmroot": str(fixture.cmroot),
        "config": names(fixture),
    }
    report = replicator.status(**given)
    arguments = ("--target", fixture.target_uri, "--db", fixture.name, "--cmroot", str(fixture.cmroot))
    output = command("status", *arguments, "--source", fixture.source_uri).output
    assert json.loads(str(report)) == report.to_dict()
    assert report.to_dict() | {"lag_seconds_bound": 0} == output | {"lag_seconds_bound": 0}
    assert isinstance(report.time, int) and output["time"].endswith("Z") and report.lag_events == 0
    with pytest.raises(UsageError, match="needs a policy"):
        replicator.status(target="dr", config=names(fixture))
