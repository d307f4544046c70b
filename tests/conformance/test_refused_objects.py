"""Objects that the target's metastore does not take: skipped by name, tried again, and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from policies import Replication
from replication_fixture import command

from replicator.metastore.embedded.running import Running
from replicator.policies.run import SyncRun

ODD = "odd-name"  # a name for 4.x, none for 3.1
ANSWER = f"InvalidObjectException: {ODD} is not a valid object name"


@pytest.fixture
def story(hives: Callable[..., Running], tmp_path: Path) -> Iterator[Replication]:
    yield Replication(hives("4.2"), hives("3.1", "target"), tmp_path)


def named(run: SyncRun) -> list[str]:
    return [each.name.split(".")[1] for each in run.not_replicated]


def external(story: Replication, name: str) -> None:
    story.db("a").table(name, {"first": "1"}, kind="EXTERNAL_TABLE")


def test_one_that_is_refused_is_named_until_it_is_taken(story: Replication) -> None:
    database, replica = story.db("a"), story.replica("a")
    for name in ("one", ODD, "two"):
        external(story, name)
    database.function("f")
    first = story.sync()
    assert (first.status, named(first)) == ("incomplete", [ODD])
    assert ANSWER in first.not_replicated[0].reason
    assert sorted(story.target.table_names(replica.name)) == ["one", "two"]
    assert story.target.function_names(replica.name) == ["f"]

    database.write("one", {"second": "2"})  # a range that says nothing of it
    assert named(story.sync()) == [ODD]
    database.write(ODD, {"second": "2"})  # one that says a part
    again = story.sync()
    assert named(again) == [ODD]
    answer = command("--config", str(story.config()), "verify", story.name)
    assert ODD in [each["object"].split(".")[1] for each in answer.output["not_replicated"]]
    assert ODD not in str(answer.output["differences"])
    answer = command("--config", str(story.config()), "status", story.name)
    assert ODD in str(answer.output)

    database.rename(ODD, "even")
    assert named(story.sync()) == []
    assert sorted(story.target.table_names(replica.name)) == ["even", "one", "two"]
    assert replica.shown()["even"]["files"] == database.shown()["even"]["files"]


def test_one_that_is_dropped_is_forgotten(story: Replication) -> None:
    for name in ("one", ODD):
        external(story, name)
    assert named(story.sync()) == [ODD]
    story.db("a").drop(ODD)
    assert named(story.sync()) == []
