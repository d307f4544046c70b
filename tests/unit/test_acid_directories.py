"""Directories of transactional tables: which belong to a state, and the write ids that a load gives to the target."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmroot.store.acid import State, chosen, parse, replica_path
from replicator.core.formats.transactional_table import TRANSACTIONAL
from replicator.core.model import Table, WriteIds
from replicator.errors import Refused
from replicator.metastore.events.facts import Written
from replicator.metastore.transactions import not_shown, parted, unnamed
from replicator.replay.apply.format_files import TableDirectories
from replicator.replay.apply.origins import Wanted
from replicator.replay.apply.transactional import MOST, plan_write_ids, runs
from replicator.replay.plan import TablePlan
from replicator.replay.squash import Called, Lineage

COMMITTED = State(9)


def names(*found: str, state: State = COMMITTED, compacted: tuple[str, ...] = ()) -> set[str]:
    return chosen(found, state, compacted.__contains__).names


@pytest.mark.parametrize(
    ("there", "wanted"),
    [
        (("delta_1_1_0", "delta_2_2_0"), {"delta_1_1_0", "delta_2_2_0"}),
        (("delta_2_2_0", "delete_delta_2_2_0"), {"delta_2_2_0", "delete_delta_2_2_0"}),
        (("delta_2_2_0", "delta_2_2_1"), {"delta_2_2_0", "delta_2_2_1"}),  # two statements of one transaction
        (("delta_1_1_0", "delta_2_2_0", "delta_1_2"), {"delta_1_2"}),
        (("delta_1_2", "delete_delta_1_2"), {"delta_1_2", "delete_delta_1_2"}),
        (("base_5", "delta_5_5_0", "delta_6_6_0"), {"base_5", "delta_6_6_0"}),
        (("base_3", "base_5"), {"base_5"}),
        (("base_5_v20", "base_5_v30"), {"base_5_v30"}),
        (("delta_1_2_v20", "delta_1_2_v30", "delta_1_1_0"), {"delta_1_2_v30"}),
        ((".hive-staging_1", "_tmp", "delta_1", "base_x"), set()),
    ],
)
def test_readers_take_the_newest_base_and_the_deltas_after_it(there: tuple[str, ...], wanted: set[str]) -> None:
    assert names(*there) == wanted


def test_nothing_of_an_open_or_aborted_id_is_taken() -> None:
    state = State(9, frozenset({6}), frozenset({4, 8}))
    assert names("delta_4_4_0", "delta_5_5_0", "delta_6_6_0", "delta_10_10_0", state=state) == {"delta_5_5_0"}
    assert names("base_8", state=state) == set()  # an INSERT OVERWRITE or a TRUNCATE that was rolled back
    assert names("base_5", state=state) == {"base_5"}
    found = chosen(["base_7", "base_7_v3", "base_12", "delta_6_7", "delta_1_12"], state)
    assert found.names == {"base_7"}  # of an INSERT OVERWRITE: an older writer may be open
    assert found.unclear == {"base_7_v3", "base_12", "delta_6_7", "delta_1_12"}
    assert chosen(["base_7"], state, {"base_7"}.__contains__).unclear == {"base_7"}  # of a compactor


def test_what_a_writer_in_several_transactions_has_committed_is_named_where_it_is_left_out() -> None:
    state = State(9, frozenset({6, 7, 10}), frozenset({4}))
    found = chosen(["delta_5_6", "delta_6_7", "delete_delta_8_10", "base_12", "base_6_v3"], state)
    assert found.names == set()
    assert found.left_out(state) == ["delete_delta_8_10", "delta_5_6"]
    assert chosen(["delta_3_5", "delta_4_4"], state, is_clean=lambda name: False).left_out(state) == ["delta_3_5"]


def test_a_compactor_may_have_left_out_aborted_rows_and_a_streaming_writer_has_them() -> None:
    state = State(9, aborted=frozenset({4, 9}))
    assert chosen(["delta_1_5"], state, is_clean=lambda name: True).names == {"delta_1_5"}
    streamed = chosen(["delta_1_5", "delta_6_6_0"], state, is_clean=lambda name: False)
    assert (streamed.names, streamed.mixed) == ({"delta_6_6_0"}, {"delta_1_5"})
    assert chosen(["delta_1_5", "base_5"], state, is_clean=lambda name: False).mixed == set()
    assert names("delta_1_5_v7", state=state) == {"delta_1_5_v7"}  # only compactors give such names
    assert names("base_9", state=state, compacted=("base_9",)) == {"base_9"}


def test_originals_count_until_there_is_a_base() -> None:
    assert chosen(["delta_1_1_0"], COMMITTED).originals
    assert not chosen(["base_1"], COMMITTED).originals


def test_names_on_a_replica_have_no_transaction_of_the_sources_compactor() -> None:
    assert replica_path("base_0000005_v0000023/bucket_00000") == "base_0000005/bucket_00000"
    assert replica_path("delta_0000001_0000005_v0000023/bucket_00000") == "delta_0000001_0000005/bucket_00000"
    for path in ("base_5/bucket_0", "000000_0_v1", "x_v1/000000_0", "delta_1_1_0000/x_v2"):
        assert replica_path(path) == path
    found = parse("delete_delta_0000002_0000003_0001")
    assert found and (found.kind, found.low, found.high, found.statement) == ("delete_delta", 2, 3, 1)


def step(ids: WriteIds, *written: Written, before: bool = True) -> TablePlan:
    name = ("d", "t")
    lineage = Lineage(before=name if before else None, names=[Called(0, *name, None)], table=Table(db="d", name="t"))
    lineage.write_ids, lineage.written = ids, {each.id: each for each in written}
    return TablePlan(name=name, lineage=lineage)


def test_a_new_tables_ids_are_stated_up_to_the_first_open_one() -> None:
    plan = plan_write_ids([step(WriteIds(5, open=(3,), aborted=(2, 5)), Written(3, 77), before=False)], {})["d"]
    assert plan.first == {("d", "t"): 2}
    later = [unnamed(("d", "t"), each) for each in (4, 5)]
    assert plan.allocated == {("d", "t"): [(77, 3), (later[0], 4), (later[1], 5)]}
    assert {each: ending.commit for each, ending in plan.ended.items()} == {later[0]: True, later[1]: False}


def test_ids_that_ended_since_end_and_a_hostile_number_is_refused() -> None:
    ids = WriteIds(4, open=(4,))
    plan = plan_write_ids([step(ids, Written(3, 77, 9), Written(4, 78))], {("d", "t"): WriteIds(3, open=(3,))})["d"]
    assert (plan.first, list(plan.ended), plan.ended[77].order) == ({}, [77], 9)
    assert plan.allocated == {("d", "t"): [(78, 4)]}
    with pytest.raises(Refused):
        plan_write_ids([step(WriteIds(MOST + 2))], {("d", "t"): WriteIds(1)})


def test_one_call_allocates_ids_in_the_order_of_the_servers_own() -> None:
    own = {1: 10, 2: 30, 3: 20, 4: 40}
    assert list(runs([(1, 1), (2, 2), (3, 3), (4, 4)], own)) == [[(1, 1), (2, 2)], [(3, 3), (4, 4)]]
    assert list(runs([], own)) == []


def test_bits_tell_aborted_from_open_ids() -> None:
    assert parted([3, 5, 9], b"\x05") == ([5], [3, 9])
    assert parted([3], None) == ([3], [])
    assert not_shown(WriteIds(6, aborted=(5,)), WriteIds(4, open=(2,), aborted=(3,))) == [2, 3, 6]


def test_a_directory_of_which_a_part_appeared_gets_the_rest_and_what_it_replaces_is_kept(tmp_path: Path) -> None:
    home = f"{tmp_path}/"
    for name, text in (
        ("base_5/a", "old"),
        (".acid-base_5/a", "new"),
        (".acid-base_5/b", "b"),
        (".acid-base_5/c", "c"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    files = [Wanted("", f"{home}base_5/{name}", 1, 0, "", 0) for name in ("a", "b")]
    kept = list[str]()
    TableDirectories({home: TRANSACTIONAL}).appear(files, kept.append)
    found = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"base_5/a": "new", "base_5/b": "b"}
    assert kept == [f"{home}base_5/{name}" for name in ("a", "b")]
