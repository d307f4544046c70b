"""Transactional tables between metastores of which one has no write ids: named everywhere, replicated nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gobblin_examples as examples
import pytest
from command_line import command
from hive_objects import FULL_ACID, INSERT_ONLY, hive_client
from housekeeping import DROPS, EXPIRED, UNREFERENCED, LifecycleFixture
from lab import Lab
from names import unique

from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore

Hives = Callable[..., Running]
ACID = {"full": FULL_ACID, "inserts": INSERT_ONLY}


class Transactional(Lab):
    """A policy whose database has a plain table, and one of each kind that is not replicated."""

    def __init__(self, source: Running, target: Running, here: Path) -> None:
        super().__init__(source, target, here)
        self.hive = source
        self.database = self.db("a").name
        self.db("a").table("plain", {"first": "1"})
        with self.client() as client:
            for name, parameters in ACID.items():
                client.table(self.database, name, parameters)

    def client(self) -> Any:
        return hive_client(self.hive)

    def orc(self, *names: str, beside: str = "") -> None:
        """Tables that may become transactional. beside: added to the names of their directories."""
        for name in names:
            place = f"file:{self.db('a').home}/{name}{beside}"
            with self.client() as client:
                client.table(self.database, name, {"EXTERNAL": "TRUE"}, kind="EXTERNAL_TABLE", location=place)
            self.db("a").write(f"{name}{beside}", {"000000_0": "1"})  # a name that Hive gives files

    def run(self, *words: str) -> tuple[int, dict[str, Any]]:
        answer = command("--config", str(self.config()), *words)
        return answer.code, answer.output

    def named(self, output: dict[str, Any]) -> dict[str, str]:
        return {each["object"].split(".")[1]: each["reason"] for each in output["not_replicated"]}


@pytest.fixture(params=["3.1", "4.2"])
def story(request: pytest.FixtureRequest, hives: Hives, tmp_path: Path) -> Iterator[Transactional]:
    yield Transactional(hives(request.param), hives("2.3", "target"), tmp_path)


def test_they_are_named_everywhere_and_the_rest_goes_on(story: Transactional) -> None:
    plan = str(story.here / "plan.json")
    for words in (["check"], ["plan", "--out", plan], ["sync"], ["verify"]):
        code, output = story.run(words[0], story.name, *words[1:])
        found = output["policies"][0] if "policies" in output else output
        assert code == 3, (words, output)
        assert set(story.named(found)) == set(ACID), (words, output)
        assert all("transaction" in reason for reason in story.named(found).values())
    assert story.target.metastore.table_names(story.replica("a").name) == ["plain"]


def test_what_becomes_transactional_is_named_and_is_no_replica_that_seems_current(story: Transactional) -> None:
    source, replica = story.db("a"), story.replica("a")
    story.orc("turned", "moved", "replaced", "kept")
    story.run("sync", story.name)
    with story.client() as client:
        for name in ("turned", "moved"):
            client.make_transactional(story.database, name)
            source.write(f"{name}/delta_0000001_0000001", {"bucket_00000": "2"})
        source.drop("replaced")
        client.table(story.database, "replaced", FULL_ACID)
        for name in ACID:  # and the reverse
            client.drop(story.database, name)
    for name in ACID:
        source.table(name, {"plain": "3"}, kind="EXTERNAL_TABLE")
    source.write("kept", {"second": "2"})
    gaps = {"turned", "moved", "replaced"}
    code, output = story.run("sync", story.name)
    assert (code, set(story.named(output))) == (3, gaps), output
    assert set(story.target.metastore.table_names(replica.name)) == {"plain", "kept", "turned", "moved", *ACID}
    assert replica.shown()["turned"]["files"].keys() == {"000000_0"}
    assert "transaction" in story.target.metastore.table(replica.name, "turned").parameters["replicator.left.out"]
    code, output = story.run("verify", story.name)
    assert (code, set(story.named(output))) == (4, gaps), output
    assert {(each["object"].split(".")[1], each["kind"]) for each in output["differences"]} == {
        ("turned", "format"),
        ("moved", "format"),
    }
    for words in (["status"], ["lag"], ["check"]):
        assert gaps <= set(story.named(story.run(*words, story.name)[1])), words

    with story.client() as client:  # a rename, and a table in its old place
        client.rename(story.database, "moved", "elsewhere")
    story.orc("moved", beside="-again")  # Hive 4.2 leaves the directory of a renamed one where it is
    code, output = story.run("sync", story.name)
    assert (code, set(story.named(output))) == (3, {"turned", "elsewhere", "replaced"}), output
    assert replica.shown()["moved"] == source.shown()["moved"]

    with story.client() as client:
        for name in ("turned", "elsewhere", "replaced"):
            client.drop(story.database, name)
    source.table("turned", {"third": "3"}, kind="EXTERNAL_TABLE")
    assert story.run("sync", story.name)[0] == 0
    assert story.run("verify", story.name)[0] == 0


def test_a_renamed_one_leaves_no_replica_under_its_old_name(story: Transactional) -> None:
    replica = story.replica("a")
    story.orc("moved")
    story.run("sync", story.name)
    with story.client() as client:
        client.make_transactional(story.database, "moved")
        story.run("sync", story.name)
        client.rename(story.database, "moved", "elsewhere")
        assert set(story.named(story.run("sync", story.name)[1])) == {"elsewhere", *ACID}
        assert "moved" not in story.target.metastore.table_names(replica.name)
        for name in ("elsewhere", *ACID):
            client.drop(story.database, name)
    assert story.run("sync", story.name)[0] == 0
    assert not (replica.home / "moved" / "000000_0").exists()  # it was the source's to remove, too
    code, output = story.run("verify", story.name)
    assert code == 0, output


def test_retention_drops_partitions_that_nobody_uses(story: Transactional) -> None:
    home, old, tables = story.db("a").home, "datepartition=2020-01-01-00", [f"dated_{name}" for name in ACID]
    with story.client() as client:
        for name, parameters in ACID.items():
            client.table(story.database, f"dated_{name}", parameters, keys=("datepartition",))
            for day in ("2020-01-01-00", "2020-01-02-00"):
                client.partition(story.database, f"dated_{name}", day)
        lock = client.read_lock(story.database, "dated_full", old)
    job = f'{examples.HIVE}hive.dataset.whitelist = "{story.database}.dated*"\n'
    story.db("a").write("job", {"job.conf": job})

    def retained() -> tuple[int, dict[str, Any], list[list[str]]]:
        answer = command(
            *("retention", "run", str(home / "job" / "job.conf"), "--metastore", story.source_uri),
            *("--cmroot", str(story.here / "retention"), "--set", "gobblin.retention.hive.shouldDeleteData=true"),
        )
        names = [story.source.metastore.partition_names(story.database, table) for table in tables]
        return answer.code, answer.output, names

    code, output, names = retained()
    assert (code, names) == (3, [[old], []]), output
    assert [each["why"] for each in output["failed"]] == ["it is in use: a query or a writer has a lock on it"], output
    with story.client() as client:
        assert client.locks(story.database) == [lock], "its own locks are released"
        client.unlock(lock)
    code, output, names = retained()
    assert (code, names) == (0, [[], []]), output


@pytest.mark.parametrize("hive", ["3.1", "4.2"])
def test_housekeeping_drops_what_is_expired_and_not_used(hive: str, hives: Hives, tmp_path: Path) -> None:
    server = hives(hive)
    with ThriftMetastore(server.uri) as metastore, hive_client(server) as client:
        fixture = LifecycleFixture(metastore, unique("expired"), tmp_path)
        db = fixture.db.name
        client.table(db, "p", FULL_ACID | EXPIRED | UNREFERENCED, keys=("p",))
        client.table(db, "whole", INSERT_ONLY | EXPIRED | DROPS)
        whole, parts = (Path(urlsplit(client.get(db, name).sd.location).path) for name in ("whole", "p"))
        for value in ("1", "2"):
            client.partition(db, "p", value)
        for home in (whole, parts / "p=1", parts / "p=2"):
            (delta := home / "delta_0000001_0000001_0000").mkdir(parents=True)
            (delta / "bucket_00000").write_text(f"rows of {home.name}")
        scheduled = fixture.run()
        assert [each for each in scheduled.invalid if "compactor" in each] == scheduled.invalid != [], scheduled
        lock = client.read_lock(db, "p", "p=1")
        done = fixture.run(31)
        assert (fixture.values("p"), metastore.table_names(db)) == (["1"], ["p"]), done
        assert [each for each in done.refused if "in use" in each] == done.refused != [], done
        assert client.locks(db) == [lock], "its own locks are released"
        assert [(parts / each).exists() for each in ("p=1", "p=2")] == [True, False] and not whole.exists()
        client.unlock(lock)
        fixture.run(32)
        assert fixture.values("p") == [] and not (parts / "p=1").exists()
        assert all(map(fixture.keeps, ("rows of p=1", "rows of p=2", "rows of whole")))
