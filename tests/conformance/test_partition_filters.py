"""Policies with partition filters: what is outside is as if it did not exist, whatever happens to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from engines import local_runtime
from lab import Lab
from plain_tables import PlainDatabase

from cmroot.root import open_existing
from replicator.captures.capture import CaptureSettings, capture
from replicator.compare.both_sides import Comparison
from replicator.compare.repair import RepairSettings, repair
from replicator.compare.sampling import Budget, verify_sample
from replicator.compare.verify import verify
from replicator.core.model import partition_spec
from replicator.core.text import parse_partition_filter
from replicator.errors import UsageError
from replicator.metastore.embedded.running import Running
from replicator.metastore.events.scope import Patterns, matches_name
from replicator.policies.lag import lag
from replicator.policies.run import Remembering, look

WANTED = "p >= '2026'"


@pytest.fixture
def pair(pair: Lab) -> Lab:
    pair.keys["partitions"] = {f"{pair.name}_a.t": WANTED}
    pair.db("a").partitioned("t", {"2025": {"old": "old"}, "2026": {"new": "new"}})
    return pair


def partitions(db: PlainDatabase, table: str = "t") -> list[str]:
    return sorted(db.metastore.partition_names(db.name, table))


def replicated(pair: Lab, table: str = "t") -> dict[str, list[str]]:
    """Partition -> names of its files, of the replica."""
    shown = pair.replica("a").shown()
    return {
        key.partition("/")[2]: sorted(about["files"]) for key, about in shown.items() if key.startswith(f"{table}/")
    }


def rename_partition(db: PlainDatabase, old: str, new: str) -> None:
    (found,) = db.metastore.partitions(db.name, "t", [f"p={old}"])
    db.metastore.rename_partition(db.name, "t", (old,), msgspec.structs.replace(found[0], values=(new,)))


def test_only_wanted_partitions_come_and_verify_repair_and_samples_see_no_others(pair: Lab) -> None:
    first = pair.sync()
    assert (first.files_copied, replicated(pair)) == (1, {"p=2026": ["new"]})
    a = pair.db("a")
    a.write("t/p=2025", {"more": "more"})
    a.alter_partition("t", "2025", note="outside")
    a.add("t", {"2024": {"older": "older"}, "2027": {"newer": "newer"}})
    a.write("t/p=2026", {"more": "more"})
    run = pair.sync()
    assert (run.kind, run.files_copied) == ("incremental", 2)
    assert replicated(pair) == {"p=2026": ["more", "new"], "p=2027": ["newer"]}
    a.drop_partitions("t", ["2025", "2026"])
    run = pair.sync()
    assert (run.status, replicated(pair)) == ("synced", {"p=2027": ["newer"]})

    way = look(pair.sides(), None)
    both, runtime = Comparison(pair.source.metastore, pair.target.metastore, patterns=way.patterns), local_runtime()
    same = verify(both, [a.name], runtime)
    assert (same.status, same.difference_count) == ("same", 0)
    whole = replace(both, patterns=Patterns())
    assert verify(whole, [a.name], runtime).differences[0].kind == "partition missing"
    sampled = verify_sample(both, [a.name], Budget(tables=10), str(pair.here / "verified"), runtime)
    assert sampled.status == "same"
    damaged = pair.replica("a").home / "t" / "p=2027" / "newer"
    damaged.write_text("rotten")
    options = RepairSettings(a.name, cmroot=pair.keys["target_cmroot"])
    repaired = repair(open_existing(pair.keys["cmroot"]), both, pair.target.metastore, options, runtime)
    assert (repaired.status, repaired.files_copied, replicated(pair)) == ("repaired", 1, {"p=2027": ["newer"]})


def test_what_waits_outside_of_a_filter_is_no_lag(pair: Lab) -> None:
    pair.sync()
    a = pair.db("a")
    a.add("t", {"2020": {"big": "x" * 1000}})
    a.write("t/p=2026", {"small": "y"})
    root = open_existing(pair.keys["cmroot"])
    capture(pair.source.metastore, root, CaptureSettings([a.name]), local_runtime())
    (found,) = lag(pair.policy, pair.source.metastore, pair.target.metastore).tables
    assert (found.table, found.bytes) == (f"{a.name}.t", 1)


def test_what_is_announced_outside_of_a_filter_is_no_lag(pair: Lab) -> None:
    pair.sync()
    pair.db("a").add("t", {"2020": {"big": "x"}})
    assert lag(pair.policy, pair.source.metastore, pair.target.metastore).tables == []


def test_a_table_that_a_rename_brings_into_a_policy_is_lag(pair: Lab) -> None:
    pair.keys["include"] = ["t", "in_.*"]
    a = pair.db("a")
    a.table("out", {"f": "f"})
    pair.sync()
    a.rename("out", "in_now")
    announced = lag(pair.policy, pair.source.metastore, pair.target.metastore).tables
    capture(pair.source.metastore, open_existing(pair.keys["cmroot"]), CaptureSettings([a.name]), local_runtime())
    captured = lag(pair.policy, pair.source.metastore, pair.target.metastore).tables
    assert [(each.table, each.events) for each in announced + captured] == [(f"{a.name}.in_now", 1)] * 2


def test_partitions_that_a_rename_takes_over_the_border_come_and_go(pair: Lab) -> None:
    pair.sync()
    a = pair.db("a")
    rename_partition(a, "2026", "2023")
    pair.sync()
    assert replicated(pair) == {}
    rename_partition(a, "2025", "2028")
    a.write("t/p=2028", {"late": "late"})
    pair.sync()
    assert replicated(pair) == {"p=2028": ["late", "old"]}
    rename_partition(a, "2028", "2029")
    rename_partition(a, "2023", "2022")
    pair.sync()
    assert replicated(pair) == {"p=2029": ["late", "old"]}


def test_a_table_that_is_renamed_into_or_out_of_its_filter_is_whole_again(pair: Lab) -> None:
    pair.sync()
    a = pair.db("a")
    a.rename("t", "u")  # no filter is about u
    a.add("u", {"2021": {"added": "added"}})
    pair.sync()
    assert replicated(pair, "u") == {"p=2021": ["added"], "p=2025": ["old"], "p=2026": ["new"]}
    assert "t" not in pair.replica("a").shown()
    a.rename("u", "t")
    pair.sync()
    assert replicated(pair) == {"p=2026": ["new"]}
    a.rename("t", "x")  # there and back within one range
    a.rename("x", "t")
    a.write("t/p=2026", {"more": "more"})
    pair.sync()
    assert replicated(pair) == {"p=2026": ["more", "new"]}


def test_a_table_that_left_the_patterns_and_came_back_in_one_range_is_not_lost(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    pair = Lab(source_metastore, target_metastore, tmp_path, include="t.*")
    a = pair.db("a")
    a.partitioned("t", {"1": {"one": "1"}})
    pair.sync()
    a.rename("t", "elsewhere")
    a.add("elsewhere", {"2": {"two": "2"}})
    a.rename("elsewhere", "t")
    pair.sync()
    pair.are_same()


def test_an_edited_filter_brings_what_came_in_and_takes_what_left_with_consent(pair: Lab) -> None:
    pair.sync()
    name = f"{pair.name}_a.t"
    pair.keys["partitions"] = {name: "p >= '2025'"}
    wider = pair.sync()
    assert wider.bootstrapped and wider.files_copied == 1
    assert replicated(pair) == {"p=2025": ["old"], "p=2026": ["new"]}
    pair.keys["partitions"] = {name: WANTED}
    narrower = pair.sync()
    assert narrower.left == [f"{name} (1 partition)"] and "--drop-left" in " ".join(narrower.warnings)
    assert replicated(pair) == {"p=2025": ["old"], "p=2026": ["new"]}
    pair.db("a").write("t/p=2026", {"more": "more"})
    assert pair.sync().left == []  # reported once
    dropped = pair.sync(drop_left=True)
    assert (dropped.dropped, dropped.files_removed) == ([f"{name} (1 partition)"], 1)
    assert replicated(pair) == {"p=2026": ["more", "new"]}
    pair.keys["exclude"] = "t"
    assert pair.sync(drop_left=True).dropped == [name]
    assert "t" not in pair.replica("a").shown()


def test_a_filter_about_what_is_no_partition_key_stops_the_run(pair: Lab) -> None:
    pair.keys["partitions"] = {f"{pair.name}_a.t": "q = '1'"}
    with pytest.raises(UsageError, match="uses q: not partition keys of the table"):
        pair.sync()
    assert Remembering(pair.policy).memory.runs().runs[0].status == "failed"


def test_a_filter_reads_the_values_of_escaped_names() -> None:
    patterns = Patterns.parse(partitions={"a.t": parse_partition_filter("p = 'a/b=c%'")})
    wanted = patterns.filter_of("A", "T")
    assert wanted is not None and partition_spec("p=a%2Fb%3Dc%25/q=1") == (("p", "q"), ("a/b=c%", "1"))
    assert matches_name(wanted, "p=a%2Fb%3Dc%25/q=1")
    assert not matches_name(wanted, "q=1")
