"""Verification that goes with a policy's runs: within its budget, reported wherever somebody looks, never a false
alarm."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest
from command_line import command
from following import Following
from lab import Lab
from waiting import CEILING, eventually

import replicator
from replicator.policies.memory import Compared
from replicator.policies.replicas import Background, compare_now

TABLES = ("one", "three", "two")


@pytest.fixture
def pair(pair: Lab) -> Lab:
    pair.keys |= {"verify": {"objects": 2}}
    for name in TABLES:
        pair.db("a").table(name, {"f": name})
    return pair


def by_bytes(pair: Lab) -> list[str]:
    """The configuration, with a budget that a file of these tests can hold."""
    pair.keys["verify"] = {"bytes": "1MB"}
    return ["--config", str(pair.config())]


def test_each_run_compares_its_budget_and_in_the_end_all(pair: Lab) -> None:
    found = [pair.sync().compared for _ in range(3)]
    assert [each and (each.tables, each.sampled, each.never, each.differing) for each in found] == [
        (3, 2, 1, ()),
        (3, 2, 0, ()),
        (3, 2, 0, ()),
    ]
    last = pair.memory.runs().last
    assert last and last.compared and last.compared.sampled == 2 and "verify" in last.steps
    assert (pair.here / "target/.cmroot/policies" / pair.name / "verified").is_dir()
    del pair.keys["verify"]
    assert pair.sync().compared is None


def test_a_replica_that_somebody_wrote_to_is_told_everywhere_until_it_is_repaired(pair: Lab) -> None:
    config = by_bytes(pair)
    assert command(*config, "sync", pair.name).code == 0
    (pair.replica("a").home / "two/f").write_text("owt")
    pair.replica("a").alter("one", somebody="was here")
    names = [f"{pair.name}_a.one", f"{pair.name}_a.two"]

    answer = command(*config, "sync", pair.name)
    assert (answer.code, answer.output["status"], sorted(answer.output["compared"]["differing"])) == (
        4,
        "nothing",
        names,
    )
    for output in (answer.output, command(*config, "lag", pair.name).output):
        assert any(all(name in text for name in names) and "repair" in text for text in output["warnings"])
    (finding,) = [f for f in command(*config, "check", pair.name).output["findings"] if f["name"] == "verified"]
    assert finding["health"] == "critical" and names[0] in finding["text"]
    (last,) = command(*config, "history", pair.name, "--limit", "1").output["runs"]
    assert sorted(last["compared"]["open"]) == names

    repaired = replicator.repair(
        source=pair.source_uri,
        target=pair.target_uri,
        cmroot=pair.keys["cmroot"],
        db=f"{pair.name}_a",
        target_cmroot=pair.keys["target_cmroot"],
        warehouse=pair.keys["warehouse"],
    )
    assert repaired.status == "repaired" and repaired.files_copied == 1
    answer = command(*config, "sync", pair.name)
    assert (answer.code, answer.output["compared"]["open"], answer.output["warnings"]) == (0, [], [])
    pair.are_same()


def test_what_was_different_is_looked_at_again_at_once(pair: Lab) -> None:
    while (pair.sync().compared or Compared(never=1)).never:
        pass
    (pair.replica("a").home / "two/f").write_text("owt")
    while not (found := pair.sync().compared) or not found.differing:
        pass
    assert (again := pair.sync().compared) and again.differing == (f"{pair.name}_a.two",) and again.sampled == 2
    (pair.replica("a").home / "two/f").write_text("two")
    assert (healed := pair.sync().compared) and (healed.differing, healed.open) == ((), ())


def test_a_change_without_an_event_is_no_difference_even_when_the_run_did_not_scan(pair: Lab) -> None:
    pair.keys["verify"] = {"objects": 10}
    pair.sync()
    pair.db("a").write("two", {"more": "more"})
    run = pair.sync(scan=False)
    assert run.compared and (run.compared.differing, run.compared.behind, run.files_copied) == ((), 1, 0)
    run = pair.sync()
    assert run.compared and (run.compared.differing, run.compared.behind, run.files_copied) == ((), 0, 1)
    pair.are_same()


def test_a_database_that_a_load_is_at_work_on_is_not_judged(pair: Lab) -> None:
    pair.sync()
    database = pair.target.metastore.database(f"{pair.name}_a")
    begun = {**database.parameters, "replicator.loading": "some-dump"}
    pair.target.metastore.alter_database(database.name, msgspec.structs.replace(database, parameters=begun))

    def now() -> Compared | None:
        return compare_now(pair.sides(), pair.memory)

    assert now() is None
    pair.target.metastore.alter_database(database.name, database)
    assert now() is not None


def test_beside_following_a_difference_is_found_and_recorded_without_a_change_at_the_source(pair: Lab) -> None:
    by_bytes(pair)
    pair.sync()
    with Following(pair) as following:
        (pair.replica("a").home / "two/f").write_text("owt")

        def recorded() -> bool:
            return any(run.compared and run.compared.differing for run in pair.memory.runs().runs)

        eventually(recorded, following.reported)
        pair.db("a").write("one", {"more": "more"})
        eventually((pair.replica("a").home / "one/more").exists, following.reported)
        output: dict[str, Any] = following.end()
    assert output["sampled"] > 0 and any(f"{pair.name}_a.two" in text for text in output["warnings"])


def test_what_verifies_beside_tries_again_after_a_failure_and_tells_of_it() -> None:
    tries: list[int] = []
    failed, done = threading.Event(), threading.Event()

    def once(enough: object) -> Compared | None:
        tries.append(1)
        if len(tries) == 1:
            failed.set()
            raise OSError("gone")
        done.set()
        return Compared(sampled=1, differing=("a.t",))

    background = Background(once, pause=0.05)
    with background.running():
        assert failed.wait(CEILING) and done.wait(CEILING)
    eventually(lambda: background.has_news)
    assert background.error == ""
    assert background.take() == background.last == Compared(sampled=1, differing=("a.t",))
    assert background.take() is None and not background.has_news
