"""Sampling, against two real metastores: round and round over all tables, within a budget."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from engines import local_runtime
from names import unique
from plain_tables import SERVERS_OWN, PlainDatabase

from cmroot.lease import acquire
from cmroot.root import ChangeRoot, create_or_open
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.dumps.dump import Dumped, DumpSettings, write_dump
from replicator.cli.main import run
from replicator.compare.both_sides import Comparison
from replicator.compare.sampling import (
    Budget,
    Sampled,
    TableMemory,
    VerifiedTables,
    memory_of,
    read_memory,
    verify_sample,
    write_memory,
)
from replicator.errors import LeaseHeld
from replicator.metastore.embedded.running import Running
from replicator.metastore.events.scope import Patterns
from replicator.metastore.thrift import connect
from replicator.replay.apply.load import load
from replicator.replay.apply.planning import LoadSettings

RUNTIME = local_runtime()
TABLES = ("a", "b", "c", "d", "e")
_memories = itertools.count()


@dataclass
class Replica:
    """A database of five tables, a hundred bytes each, and its replica. `place`: where this test's runs remember."""

    source: PlainDatabase
    target: PlainDatabase
    root: ChangeRoot
    work: Path
    place: str = ""
    now: float = 1_000_000.0
    dumps: list[Dumped] = field(default_factory=list)

    def catch_up(self) -> None:
        capture(self.source.metastore, self.root, CaptureSettings([self.source.name]), RUNTIME)
        place, since = str(self.work / f"dump{len(self.dumps)}"), self.dumps[-1].dump if self.dumps else None
        dumped = write_dump(
            self.root, place, DumpSettings(self.source.metastore.uri, [self.source.name], since=since), RUNTIME
        )
        self.dumps.append(dumped)
        options = LoadSettings(cmroot=str(self.work / "target-cmroot"), rename=[(self.source.name, self.target.name)])
        load(place, self.target.metastore, options, RUNTIME)

    def sample(self, tables: int | None = None, size: int | None = None, **how: Any) -> Sampled:
        """One run, a minute after the last."""
        self.now += 60
        both = Comparison(self.source.metastore, self.target.metastore, [(self.source.name, self.target.name)], **how)
        runtime = replace(RUNTIME, clock=lambda: self.now)
        return verify_sample(both, [self.source.name], Budget(tables, size), self.place, runtime)

    def remembered(self) -> dict[str, TableMemory]:
        return read_memory(self.place, self.target.name)[0].tables

    def last(self) -> set[str]:
        """Tables that the last run compared."""
        return {name for name, about in self.remembered().items() if about.verified == self.now}


@pytest.fixture(scope="module")
def replicated(
    source_metastore: Running, target_metastore: Running, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Replica]:
    work = tmp_path_factory.mktemp("sampling")
    with connect(source_metastore.uri) as here, connect(target_metastore.uri) as there:
        source = PlainDatabase(here, name := unique("shop"), source_metastore.warehouse)
        source.create()
        for name in TABLES:
            source.table(name, {"f": name * 100})
        made = Replica(
            source,
            PlainDatabase(there, f"{name}copy", target_metastore.warehouse),
            create_or_open(str(work / "cmroot")),
            work,
        )
        made.catch_up()
        yield made


@pytest.fixture
def replica(replicated: Replica) -> Replica:
    """The replica, with nothing remembered."""
    replicated.place = str(replicated.work / f"memory{next(_memories)}")
    return replicated


def test_runs_go_round_over_all_tables(replica: Replica) -> None:
    seen: list[set[str]] = []
    for _ in range(5):
        report = replica.sample(2)
        assert (report.status, report.sampled, report.tables) == ("same", 2, 5)
        seen.append(replica.last())
    assert seen == [{"a", "b"}, {"c", "d"}, {"e", "a"}, {"b", "c"}, {"d", "a"}]


def test_a_run_tells_what_was_never_compared_and_what_waits_longest(replica: Replica) -> None:
    first = replica.sample(3)
    assert (first.never, first.oldest) == (2, 0.0)
    second = replica.sample(3)
    assert (second.never, second.oldest) == (0, 60.0)


def test_what_is_new_comes_first_and_what_went_is_forgotten(replica: Replica) -> None:
    replica.sample(5)
    for side in (replica.source, replica.target):
        side.table("new", {"f": "new" * 10})
    made = replica.source.metastore.table(replica.source.name, "new").parameters[SERVERS_OWN]
    replica.target.alter("new", **{SERVERS_OWN: made})
    try:
        assert replica.sample(1).never == 0
        assert replica.last() == {"new"}
    finally:
        for side in (replica.source, replica.target):
            side.drop("new")
    replica.sample(1)
    assert sorted(replica.remembered()) == [*TABLES]


def test_bytes_end_a_run(replica: Replica) -> None:
    report = replica.sample(size=250)
    assert (report.sampled, report.bytes) == (2, 200)
    assert (replica.sample(size=250).sampled, replica.sample(size=250).sampled) == (2, 2)
    assert replica.last() == {"e", "a"}


def test_a_table_larger_than_the_budget_is_read_in_shares_and_wholly_in_the_end(replica: Replica) -> None:
    replica.source.table("large", {f"f{number:02}": f"{number:02}" * 50 for number in range(20)})
    replica.catch_up()
    rotten = replica.target.home / "large/f07"
    rotten.write_text("r" + rotten.read_text()[1:])
    patterns = Patterns.parse(["large"])
    try:
        found = [replica.sample(size=500, patterns=patterns) for _ in range(4)]
        assert [each.partly for each in found] == [1, 1, 1, 1]
        assert all(each.files == 20 for each in found)  # names and sizes, each time
        kinds = [difference.field for each in found for difference in each.differences if difference.field == "f07"]
        assert kinds == ["f07"]
        (replica.target.home / "large/f00").unlink()
        fields = {each.field for each in replica.sample(size=500, patterns=patterns).differences}
        assert "f00" in fields
    finally:
        replica.source.drop("large")
        replica.catch_up()


def test_a_difference_is_found_told_and_remembered_until_it_is_gone(replica: Replica) -> None:
    file = replica.target.home / "c/f"
    file.write_text("C" * 100)
    assert replica.sample(2).status == "same"
    found = replica.sample(2)
    assert (found.status, found.differing, found.open) == ("different", [f"{replica.source.name}.c"], 1)
    assert replica.sample(1).open == 1  # known, though not compared now
    file.write_text("c" * 100)
    assert [replica.sample(5).open, replica.sample(5).status] == [0, "same"]


def test_a_table_that_only_lags_is_no_difference_and_keeps_nobody_from_its_turn(replica: Replica) -> None:
    replica.source.alter("a", colour="red")
    report = replica.sample(2)
    assert (report.status, report.behind, report.sampled, report.never) == ("same", [f"{replica.source.name}.a"], 1, 4)
    assert replica.sample(3).behind == []
    assert replica.last() == {"c", "d", "e"}
    replica.catch_up()
    replica.sample(1)
    assert replica.last() == {"a"}


def test_tables_of_one_side_and_the_databases_own_properties_are_compared(replica: Replica) -> None:
    replica.target.table("mine")
    replica.target.function("mine")
    try:
        report = replica.sample(6)
        assert sorted(each.kind for each in report.differences) == ["function extra", "table extra"]
    finally:
        replica.target.drop("mine")
        replica.target.metastore.drop_function(replica.target.name, "mine")


def test_a_damaged_memory_is_told_and_begun_anew(replica: Replica) -> None:
    replica.sample(5)
    file = Path(replica.place) / f"{replica.target.name}.parquet"
    file.write_bytes(file.read_bytes()[:100])
    report = replica.sample(1)
    assert "never compared" in report.warnings[0] and report.never == 4
    assert replica.sample(1).warnings == []


def test_a_run_that_fails_in_the_middle_remembers_what_it_did(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes limit batches to one table each; the third one's answer does not come."""
    asked = []
    ask = replica.source.metastore.tables

    def fails(db: str, names: Any, *more: Any) -> Any:
        asked.append(names)
        if len(asked) == 6:  # each table is listed once for its size, too
            raise KeyboardInterrupt
        return ask(db, names, *more)

    monkeypatch.setattr(replica.source.metastore, "tables", fails)
    with pytest.raises(KeyboardInterrupt):
        replica.sample(size=1000)
    monkeypatch.undo()
    assert replica.last() == {"a", "b"}
    assert replica.sample(3).never == 0


def test_two_runs_exclude_each_other(replica: Replica) -> None:
    with acquire(replica.place, "verify a sample"), pytest.raises(LeaseHeld):
        replica.sample(1)


def test_a_clock_that_went_back_makes_no_age_negative(replica: Replica) -> None:
    replica.sample(5)
    replica.now -= 10_000
    assert replica.sample(1).oldest == 0.0


def test_a_million_tables_are_one_small_file(tmp_path: Path) -> None:
    names = [f"a_table_of_the_warehouse_{number}" for number in range(100_000)]
    memory = VerifiedTables({name: TableMemory(1.7e9 + number, "same", number, 0) for number, name in enumerate(names)})
    write_memory(str(tmp_path), "db", memory)
    assert [each.name for each in tmp_path.iterdir()] == ["db.parquet"]
    assert (tmp_path / "db.parquet").stat().st_size < 30 * len(names)
    assert read_memory(str(tmp_path), "db") == (memory, "")


def test_the_command_samples(replica: Replica, capsys: pytest.CaptureFixture[str]) -> None:
    root = create_or_open(str(replica.work / "target-cmroot")).place
    sides = ["--source", replica.source.metastore.uri, "--target", replica.target.metastore.uri]
    db, copy = replica.source.name, replica.target.name
    asked = ["verify", *sides, "--db", db, "--rename-db", f"{db}={copy}", "--sample", "2"]
    assert run(asked) == 2
    assert "--target-cmroot" in capsys.readouterr().err
    assert run([*asked, "--cmroot", root, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert (reported["status"], reported["sampled"], reported["never"], reported["tables"]) == ("same", 2, 3, 5)
    assert Path(memory_of(root), f"{copy}.parquet").exists()
    assert run([*asked, "--sample-bytes", "1kB", "--cmroot", root]) == 0
    assert "sampled: 2 of 5 tables; 1 never compared" in capsys.readouterr().out
