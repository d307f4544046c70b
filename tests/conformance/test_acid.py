"""Transactional tables, full and insert-only: a replica has the source's rows with their ids. Hive itself writes and
compacts on the source, and reads both sides."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gobblin_examples as examples
import msgspec
import pytest
from acid_tables import COMPACTING_4, INSERT_ONLY, AcidLab, acid_sides
from command_line import command
from faults import Fault, run_with
from hive_metastore import ttypes
from hive_objects import FULL_ACID, hive_client
from hive_sql import HiveSql, leave_open
from metastores import shared
from names import WORKER
from pool import Pool
from waiting import eventually, pause, repeating

from cmroot.root import create_or_open
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.manifest import open_manifest
from replicator.core.engine import AutoEngine, LocalEngine
from replicator.core.formats.transactional_table import TRANSACTIONAL, UNREPLAYED, TransactionalTable
from replicator.core.runtime import Runtime
from replicator.metastore.client import Metastore
from replicator.metastore.embedded.running import Running
from replicator.policies.drill import DrillSettings, QueryEngine, drill
from replicator.policies.role_changes.switchover import switchover
from replicator.policies.role_changes.switchover_steps import SwitchoverSettings

Sides = tuple[Running, Running, HiveSql, HiveSql]


@pytest.fixture(scope="module")
def sides(pool: Pool) -> Iterator[Sides]:
    with acid_sides(pool) as found:
        yield found


@pytest.fixture
def acid(sides: Sides, tmp_path: Path) -> AcidLab:
    made = AcidLab(*sides, tmp_path)
    made.source.create()
    return made


def left_open(lab: AcidLab, statement: str) -> None:
    leave_open(lab.hive.uri, Path(lab.hive.warehouse), statement.replace("{db}", lab.side))


def allocated(thrift: Any, db: str) -> int:
    """Returns an open transaction that has the next write id of table `t`."""
    own = int(thrift.open_txns(ttypes.OpenTxnRequest(num_txns=1, user="q", hostname="h")).txn_ids[0])
    thrift.allocate_table_write_ids(ttypes.AllocateTableWriteIdsRequest(dbName=db, tableName="t", txnIds=[own]))
    return own


# ---- states -------------------------------------------------------------------------------------------------------


def test_rows_and_their_ids_are_the_sources_beside_aborted_and_open_transactions(acid: AcidLab) -> None:
    acid.make()
    acid.insert(1, 2, 3)
    acid.run("update {db}.t set name = 'B' where id = 2", "delete from {db}.t where id = 3")
    acid.rolled_back("insert into {db}.t values (90, 'aborted')")
    acid.insert(4)
    left_open(acid, "insert into {db}.t values (80, 'was open')")
    acid.insert(5)
    acid.replicate()
    acid.is_equal()
    assert acid.ids() == [1, 2, 4, 5]
    hidden = {f"delta_000000{each}_000000{each}_0000" for each in (4, 6)}
    assert hidden <= set(acid.directories())
    assert hidden.isdisjoint(acid.directories(replica=True))

    acid.end_open()
    acid.run("update {db}.t set name = 'no longer' where id = 80")
    acid.rolled_back("insert into {db}.t values (91, 'aborted')")
    acid.replicate()
    acid.is_equal()
    wanted = acid.rows()
    with acid.without_source():
        assert acid.shown() == wanted
    assert acid.ids() == [1, 2, 4, 5, 80]


def test_an_open_transaction_that_is_aborted_leaves_nothing(acid: AcidLab) -> None:
    acid.make()
    acid.insert(1)
    left_open(acid, "insert into {db}.t values (80, 'was open')")
    acid.replicate()
    acid.end_open(commit=False)
    acid.insert(2)
    acid.replicate()
    acid.is_equal()
    assert acid.ids() == [1, 2]


def test_compactions_of_the_source_replace_what_they_have_compacted(acid: AcidLab) -> None:
    acid.make()
    for each in range(1, 4):
        acid.insert(each)
    acid.rolled_back("insert into {db}.t values (90, 'aborted')")
    acid.run("delete from {db}.t where id = 2")
    acid.replicate()
    acid.compact("minor")
    acid.replicate()
    acid.is_equal()
    assert acid.directories(replica=True) == ["delete_delta_0000001_0000005", "delta_0000001_0000005"]
    acid.compact("major")
    acid.insert(4)
    for left in (".acid-base_0000004/bucket_00000", ".acid-base_0000005/bucket_00009"):  # by loads of other dumps
        (acid.target.home / "t" / left).parent.mkdir()
        (acid.target.home / "t" / left).write_text("of a killed load")
    acid.replicate()
    acid.is_equal()
    assert acid.directories(replica=True) == ["base_0000005", "delta_0000006_0000006_0000"]
    assert [path.name for path in acid.target.home.glob("t/.*")] == []


def test_a_replica_that_lags_answers_though_the_source_has_compacted(acid: AcidLab) -> None:
    acid.make()
    acid.insert(1)
    acid.insert(2)
    assert acid.dump().code == 0
    wanted = acid.rows()
    acid.compact("major")
    for path in (acid.source.home / "t").glob("delta_*/*"):  # the cleaner's work, which comes later
        path.unlink(missing_ok=True)
    assert acid.capture().code == 0
    loaded = acid.load()
    assert (loaded.code, loaded.output["files_from_cmroot"] > 0) == (0, True), loaded
    assert acid.shown() == wanted


def test_insert_only_and_partitioned_tables(acid: AcidLab) -> None:
    acid.make("io", INSERT_ONLY)
    acid.make("p", keys="partitioned by (day string)")
    acid.insert(1, 2, name="io")
    acid.run("insert into {db}.p partition (day) values (1, 'a', 'x'), (2, 'b', 'y')")
    acid.replicate()
    acid.run("insert overwrite table {db}.io values (3, 'over')", "insert into {db}.io values (4, 'n')")
    acid.run("insert into {db}.p partition (day) values (3, 'c', 'z')", "delete from {db}.p where id = 1")
    acid.rolled_back("insert into {db}.io values (90, 'aborted')")
    with hive_client(acid.hive) as client:
        client.thrift.drop_partition_by_name(acid.name, "p", "day=y", True)
    acid.replicate()
    acid.is_equal("p")
    assert acid.shown("io", "*") == acid.rows("io", "*") == [["3", "over"], ["4", "n"]]


def test_retention_drops_partitions_beside_queries_and_the_replica_follows(acid: AcidLab) -> None:
    acid.make("p", keys="partitioned by (datepartition string)")
    acid.run(
        "insert into {db}.p partition (datepartition) values (1, 'a', '2020-01-01-00'), (2, 'b', '2099-01-01-00')",
        "delete from {db}.p where id = 1",
        "insert into {db}.p partition (datepartition) values (3, 'c', '2020-01-01-00'), (4, 'd', '2020-01-02-00')",
    )
    acid.replicate()
    job = acid.here / "job.conf"
    job.write_text(f"{examples.HIVE}hive.dataset.whitelist = {acid.side}\n")
    retention = [*("retention", "run", str(job), "--metastore", acid.source_uri, "--cmroot", str(acid.here / "kept"))]
    retention += ["--set", "gobblin.retention.hive.shouldDeleteData=true"]
    with hive_client(acid.hive) as client:
        lock = client.read_lock(acid.side, "p", "datepartition=2020-01-01-00")
        answer = command(*retention)
        assert (answer.code, answer.output["dropped"], acid.rows("p", "id")) == (3, 1, [["2"], ["3"]]), answer
        client.unlock(lock)
    answer = command(*retention)
    assert (answer.code, answer.output["dropped"], acid.rows("p", "id")) == (0, 1, [["2"]]), answer
    acid.run("update {db}.p set name = 'later' where id = 2")
    acid.replicate()
    acid.is_equal("p")


def test_what_users_do_to_a_table(acid: AcidLab) -> None:
    acid.run(
        "set hive.auto.convert.join=false",
        "create table {db}.t (id int, name string) partitioned by (p string) clustered by (id) into 2 buckets "
        'stored as orc tblproperties("transactional"="true")',
        "create table {db}.changes stored as orc as select 1 as id, 'merged' as name, 'a' as p union all "
        "select 9, 'new', 'c'",
    )
    acid.run("insert into {db}.t partition (p) values (1, 'n', 'a'), (2, 'n', 'a'), (3, 'n', 'b')")
    acid.replicate()
    for statement in (
        "insert overwrite table {db}.t partition (p='a') select 4, 'over'",
        "merge into {db}.t using {db}.changes c on t.id = c.id when matched then update set name = c.name "
        "when not matched then insert values (c.id, c.name, c.p)",
        "alter table {db}.t add columns (extra int)",
        "insert into {db}.t partition (p='a') values (5, 'n', 7)",
        "alter table {db}.t partition (p='b') rename to partition (p='d')",
        "truncate table {db}.t partition (p='a')",
        "insert into {db}.t partition (p='a') values (6, 'n', 8)",
        "truncate table {db}.t",
        "insert into {db}.t partition (p='d') values (7, 'n', 8)",
    ):
        acid.run(statement)
        assert acid.dump(since=acid.last).code == 0
        loaded = acid.load(None, "--allow-removals")
        assert loaded.code == 0, (statement, loaded)
        assert acid.shown() == acid.rows(), statement
        assert acid.verified().code == 0, (statement, acid.verified())


def test_a_table_that_becomes_transactional_and_one_that_is_renamed(acid: AcidLab) -> None:
    acid.run("create table {db}.t (id int, name string) stored as orc", "insert into {db}.t values (1, 'plain')")
    acid.make("u")
    acid.insert(1, name="u")
    acid.replicate()
    acid.run("alter table {db}.t set tblproperties ('transactional' = 'true')")
    acid.insert(2)
    acid.run("update {db}.t set name = 'changed' where id = 1", "alter table {db}.u rename to {db}.v")
    acid.insert(2, name="v")
    acid.replicate()
    acid.is_equal("t", "v")
    acid.run("drop table {db}.v")
    acid.replicate()
    assert acid.target.metastore.table_names(acid.name) == ["t"]


def test_a_dump_with_data_is_all_that_a_replica_needs(acid: AcidLab) -> None:
    acid.make()
    acid.insert(1, 2)
    acid.run("delete from {db}.t where id = 1")
    wanted = acid.rows()
    assert acid.dump("--with-data").code == 0
    with acid.without_source():
        loaded = acid.load()
        assert loaded.code == 0, loaded
        assert acid.shown() == wanted


# ---- order --------------------------------------------------------------------------------------------------------


def test_transactions_commit_in_the_sources_order_and_over_tables_together(acid: AcidLab) -> None:
    """A load is killed between two commits: readers see the source as it was between them."""
    both = "from (select {0} as id, 'm' as name) q insert into table {{db}}.{1} select id, name"
    acid.make("t")
    acid.make("u")
    acid.insert(1, name="u")  # its write ids are others
    acid.replicate()
    for number in (2, 3):
        acid.run(both.format(number, "t") + " insert into table {db}.u select id, name")
    assert acid.dump(since=acid.last).code == 0
    assert run_with(Fault("after", "thrift", "end transaction", 1), acid.load_arguments(acid.last)).killed
    assert (acid.ids("t"), acid.ids("u")) == ([2], [1, 2])
    assert acid.load().code == 0
    acid.is_equal("t", "u")


KILLS = (
    Fault("after", "rename", r"/delta_[^/]*/bucket_00000$", 1),
    Fault("before", "rename", r"/base_[0-9]*$", 1),
    Fault("after", "rename", r"/base_[0-9]*$", 1),
    Fault("before", "thrift", "open transactions", 1),
    Fault("after", "thrift", "allocate write ids", 1),
    Fault("after", "thrift", "end transaction", 1),
    Fault("after", "rename", r"incoming/recycle", 1),
)


def waits_for_the_next_load(acid: AcidLab) -> None:
    """Queries that begin while a load removes files wait, also for one that was killed. The query is a job: others of
    Hive 3.1 read after their transaction has ended (HIVE-25976)."""
    acid.run_there("set hive.fetch.task.conversion=none")
    with hive_client(acid.target_running) as client, ThreadPoolExecutor(1) as pool:
        assert client.locks(acid.side)
        query = pool.submit(acid.ids)
        eventually(lambda: len(client.locks(acid.side)) == 2)
        assert acid.load().code == 0 and query.result() == sorted(int(row[0]) for row in acid.rows(what="id"))
        assert client.locks(acid.side) == []
    acid.run_there("set hive.fetch.task.conversion=more")
    acid.is_equal()


def test_a_load_that_is_killed_anywhere_shows_a_state_and_is_completed_by_the_next(acid: AcidLab) -> None:
    acid.make()
    acid.insert(100)
    acid.replicate()
    for number, fault in enumerate(KILLS, 1):
        before = [int(row[0]) for row in acid.rows(what="id")]
        acid.insert(number)
        if "base" in fault.pattern or "recycle" in fault.pattern:
            acid.compact("major")
        acid.insert(10 + number)
        assert acid.dump(since=acid.last).code == 0
        assert run_with(fault, acid.load_arguments(acid.last)).killed, fault
        if "recycle" in fault.pattern:
            waits_for_the_next_load(acid)
            continue
        assert acid.ids() in (sorted(before), sorted([*before, number]), sorted([*before, number, 10 + number])), fault
        assert acid.load().code == 0, fault
        acid.is_equal()


def test_a_load_waits_for_queries_before_it_removes_what_they_may_read(acid: AcidLab) -> None:
    acid.make()
    acid.insert(1)
    acid.insert(2)
    acid.replicate()
    acid.compact("major")
    assert acid.dump(since=acid.last).code == 0
    with hive_client(acid.target_running) as client:
        query = client.thrift.open_txns(ttypes.OpenTxnRequest(num_txns=1, user="q", hostname="h")).txn_ids[0]
        loading = threading.Thread(target=acid.load)
        loading.start()
        eventually(lambda: "base_0000002" in acid.directories(replica=True))
        pause(1.0, "a load that does not wait removes at once")
        both = {"base_0000002", "delta_0000001_0000001_0000", "delta_0000002_0000002_0000"}
        assert set(acid.directories(replica=True)) == both
        reading = client.read_lock(acid.side, "t")
        client.thrift.commit_txn(ttypes.CommitTxnRequest(txnid=query))
        pause(1.0, "a load that takes no lock removes at once")
        assert set(acid.directories(replica=True)) == both
        client.unlock(reading)
        loading.join()
        assert client.locks(acid.side) == []
    assert acid.directories(replica=True) == ["base_0000002"]
    acid.is_equal()


def test_captures_beside_a_writer_are_states_of_the_source(acid: AcidLab, sides: Sides) -> None:
    """A writer inserts into two tables at once and compacts; each load shows both tables at the same moment."""
    acid.make("t")
    acid.make("u")
    acid.insert(0, name="t")
    acid.insert(0, name="u")
    acid.replicate()
    into = f"insert into table {acid.side}"
    both = f"from (select {{}} as id, 'm' as name) q {into}.t select id, name {into}.u select id, name"
    with HiveSql(acid.hive.uri, Path(acid.hive.warehouse)) as own:

        def write(number: int) -> None:
            own(both.format(number))
            if number % 3 == 0:
                own(f'alter table {acid.side}.t compact "major"')

        with repeating(write):
            for _ in range(6):
                acid.replicate()
                shown = acid.ids("t")
                assert shown == acid.ids("u") == list(range(len(shown)))
    acid.replicate()
    acid.is_equal("t", "u")


def test_committed_rows_that_share_files_with_open_transactions_are_named(acid: AcidLab) -> None:
    """A streaming writer leaves several write ids in one directory."""
    acid.make()
    acid.insert(1)
    acid.insert(2)
    with hive_client(acid.hive) as client:
        open_ = allocated(client.thrift, acid.name)
        home = acid.source.home / "t"
        (home / "delta_0000002_0000002_0000").rename(home / "delta_0000002_0000003")
        dumped = acid.dump()
        assert dumped.code == 3, dumped
        assert "delta_0000002_0000003" in dumped.output["not_replicated"][0]["reason"]
        assert acid.load().code == 3
        assert acid.ids() == [1]
        assert acid.verified().code == 3
        client.thrift.commit_txn(ttypes.CommitTxnRequest(txnid=open_))
    acid.replicate()
    acid.is_equal()
    assert acid.ids() == [1, 2]


def test_a_truncate_that_was_rolled_back_hides_no_row(acid: AcidLab) -> None:
    acid.make()
    acid.insert(1)
    with hive_client(acid.hive) as client:
        aborted = allocated(client.thrift, acid.name)
        base = acid.source.home / "t/base_0000002"
        base.mkdir()
        (base / "_metadata_acid").write_text('{"thisFileVersion": "0", "dataFormat": "truncated"}')
        client.thrift.abort_txn(ttypes.AbortTxnRequest(txnid=aborted))
    acid.replicate()
    assert acid.ids() == [1]
    assert acid.verified().code == 0
    (base / "_metadata_acid").write_text("damaged")
    damaged = acid.verified()
    assert (damaged.code, damaged.output["error"]) == (1, "FormatError"), damaged
    acid.insert(2)
    dumped = acid.dump(since=acid.last)
    assert dumped.code == 3, dumped
    assert "base_0000002/_metadata_acid cannot be read" in str(dumped.output["not_replicated"]), dumped
    assert acid.load().code == 3
    assert acid.ids() == [1]  # the last state that is whole
    (base / "_metadata_acid").unlink()
    base.rmdir()
    acid.replicate()
    acid.is_equal()


def test_a_table_of_ten_thousand_deltas(acid: AcidLab) -> None:
    acid.make(kind=INSERT_ONLY)
    acid.source.metastore.set_write_ids(acid.name, "t", 10_000)
    for number in range(1, 10_001):
        place = acid.source.home / f"t/delta_{number:07}_{number:07}_0000"
        place.mkdir()
        (place / "000000_0").write_text(f"{number}\x01n\n")
    acid.replicate()
    assert acid.verified().code == 0
    acid.insert(10_001)
    acid.replicate()
    assert acid.ids() == list(range(1, 10_002))
    assert acid.verified().code == 0


# ---- writers of the target ------------------------------------------------------------------------------------------


def test_writes_of_others_on_the_replica_are_refused_and_repaired(acid: AcidLab) -> None:
    acid.make()
    acid.insert(1)
    acid.replicate()
    acid.run_there("insert into {db}.t values (66, 'foreign')", "insert into {db}.t values (67, 'foreign')")
    assert acid.verified().code == 4
    acid.insert(2)
    assert acid.dump(since=acid.last).code == 0
    refused = acid.load()
    assert (refused.code, refused.output["error"]) == (6, "Refused"), refused
    assert "another writer" in refused.output["message"]
    assert acid.ids() == [1, 66, 67]
    assert acid.repaired().output["tables"] == ["t"]
    assert acid.ids() == [1]
    assert acid.load().code == 0
    acid.is_equal()


def test_a_write_id_that_the_target_has_aborted_is_named_and_repaired(acid: AcidLab) -> None:
    acid.make()
    acid.insert(1)
    acid.replicate()
    with HiveSql(acid.target_uri, acid.warehouse) as there:
        there.rolled_back(f"insert into {acid.name}.t values (66, 'foreign')")
    acid.insert(2)
    assert acid.dump(since=acid.last).code == 0
    refused = acid.load()
    assert (refused.code, refused.output["error"]) == (6, "Refused"), refused
    assert "does not show the writes [2]" in refused.output["message"]
    assert acid.repaired().output["tables"] == ["t"]
    assert acid.ids() == [1]
    assert acid.load().code == 0
    acid.is_equal()


# ---- past states, roles -------------------------------------------------------------------------------------------


def test_a_past_state_is_restored_beside_the_table_and_in_its_place(acid: AcidLab) -> None:
    acid.make()
    acid.insert(1, 2)
    acid.run("delete from {db}.t where id = 1")
    assert acid.capture().code == 0
    event, wanted = acid.source.metastore.current_event_id(), acid.rows()
    acid.insert(3)
    acid.compact("major")
    assert acid.capture().code == 0
    into = f"{acid.name}_old"
    arguments = ["restore", "--cmroot", str(acid.cmroot), "--db", acid.name, "--to", str(event), "--engine", "local"]
    for more in (["--into", into], ["--into", acid.name, "--force"]):
        restored = command(*arguments, *more, "--target", acid.source_uri)
        assert restored.code == 0, restored
        assert acid.run(f"select row__id, * from {more[1]}.t") == wanted
    acid.run(f"insert into {into}.t values (4, 'new')")
    acid.insert(4)
    assert len(acid.run(f"select * from {into}.t")) == len(acid.rows()) == len(wanted) + 1


def test_a_restore_over_the_time_at_which_a_table_became_transactional(acid: AcidLab) -> None:
    acid.run("create table {db}.t (id int, name string) stored as orc", "insert into {db}.t values (1, 'plain')")
    events = []
    for statements in ([], ["alter table {db}.t set tblproperties ('transactional' = 'true')"]):
        if statements:
            acid.run(*statements, "insert into {db}.t values (2, 'n')", "delete from {db}.t where id = 1")
        assert acid.capture().code == 0
        events.append((acid.source.metastore.current_event_id(), acid.rows(what="*")))
    arguments = ["restore", "--cmroot", str(acid.cmroot), "--db", acid.name, "--engine", "local"]
    for event, wanted in events:
        into = f"{acid.name}_{event}"
        restored = command(*arguments, "--to", str(event), "--into", into, "--target", acid.source_uri)
        assert restored.code == 0, restored
        assert acid.run(f"select * from {into}.t") == wanted


def test_writes_that_are_not_yet_replicated_are_lag(acid: AcidLab) -> None:
    acid.of_policy()
    acid.make()
    acid.insert(1)
    assert acid.sync().status == "synced"
    config = ["--config", str(acid.config())]
    assert command(*config, "lag", acid.policy.name).output["tables"] == []
    acid.insert(2)
    waiting = command(*config, "lag", acid.policy.name).output["tables"]
    assert [each["table"] for each in waiting] == [f"{acid.side}.t"]


def test_a_drill_names_them(acid: AcidLab) -> None:
    acid.of_policy()
    acid.make()
    acid.insert(1)
    assert acid.sync().status == "synced"

    def nobody(metastore: Metastore) -> QueryEngine:
        raise AssertionError("no query was to be asked")

    done = drill(acid.policy, acid.source.metastore, acid.target.metastore, nobody, DrillSettings(sample=0))
    assert done.skipped == {f"{acid.side}.t": TRANSACTIONAL.no_shadow} and done.tables == 0


def test_a_policy_turns_round_and_both_sides_write(acid: AcidLab) -> None:
    acid.of_policy()
    acid.make()
    acid.insert(1, 2)
    left_open(acid, "insert into {db}.t values (80, 'open')")
    acid.insert(3)
    assert acid.sync().status == "synced"
    assert acid.ids() == [1, 2, 3]
    acid.end_open(commit=False)
    assert switchover(acid.sides(), SwitchoverSettings()).status == "done"
    acid.run_there("insert into {db}.t values (4, 'of the new primary')", "delete from {db}.t where id = 1")
    assert acid.sync().status == "synced"
    assert acid.rows() == acid.shown()
    assert acid.ids() == [2, 3, 4]
    assert switchover(acid.sides(), SwitchoverSettings()).status == "done"
    acid.insert(5)
    assert acid.sync().status == "synced"
    assert acid.rows() == acid.shown()


def test_a_failover_ends_what_the_old_primary_had_open_and_the_way_back_brings_both_sides_writes(acid: AcidLab) -> None:
    acid.of_policy()
    acid.make()
    acid.insert(1)
    left_open(acid, "insert into {db}.t values (80, 'open')")
    acid.insert(2)
    assert acid.sync().status == "synced"
    name = acid.side
    there = acid.target.metastore
    assert there.write_ids([(name, "t")], there.snapshot())[name, "t"].open == (2,)
    assert there.table(name, "t").parameters["no_auto_compaction"] == "true"
    config = ["--config", str(acid.config())]
    assert command(*config, "failover", acid.policy.name, "--force").code == 0
    assert there.write_ids([(name, "t")], there.snapshot())[name, "t"].open == ()
    assert "no_auto_compaction" not in there.table(name, "t").parameters
    acid.run_there("insert into {db}.t values (3, 'of the new primary')")
    acid.end_open()  # and is lost, like all that the old primary did since
    assert command(*config, "failback", acid.policy.name).code == 0
    assert acid.ids() == [1, 2, 3]
    assert acid.rows() == acid.shown()


def test_a_policy_brings_tables_that_an_earlier_release_left_out(acid: AcidLab) -> None:
    """Though they have not changed since."""
    acid.of_policy()
    acid.make()
    acid.insert(1)
    with pytest.MonkeyPatch().context() as earlier:
        earlier.setattr(TransactionalTable, "problems", lambda *about: iter([UNREPLAYED]))
        run = acid.sync()
        assert [(each.object, each.reason) for each in run.not_replicated] == [(f"{acid.side}.t", UNREPLAYED)]
    assert acid.sync().not_replicated == []
    assert acid.ids() == [1]
    assert acid.sync().status == "nothing"


# ---- other servers ------------------------------------------------------------------------------------------------


def test_compactions_of_hive_4_have_names_that_the_target_reads(pool: Pool, sides: Sides, tmp_path: Path) -> None:
    """`base_N_vT`: the transaction T of the source's compactor means nothing on the target."""
    _, target, _, there = sides
    with shared(pool) as metastore:
        source = metastore("acid-source-4", hive="4.0", settings=COMPACTING_4)
        with HiveSql(source.uri, Path(source.warehouse)) as here:
            lab = AcidLab(source, target, here, there, tmp_path)
            lab.source.create()
            with hive_client(source) as client:
                client.table(lab.name, "t", FULL_ACID, columns=(("id", "int"), ("name", "string")))
            lab.insert(1, 2)
            lab.run("delete from {db}.t where id = 1")
            lab.replicate()
            lab.is_equal()
            wanted = lab.rows()
            lab.compacted_by_hive_4()
            lab.replicate()
            assert lab.shown() == wanted
            assert lab.directories(replica=True) == ["base_0000002"]
            assert lab.verified().code == 0
            lab.insert(3)
            lab.compacted_by_hive_4()
            lab.replicate()
            assert lab.ids() == [2, 3]
            assert lab.verified().code == 0


@pytest.fixture
def newer(request: pytest.FixtureRequest, pool: Pool, sides: Sides, tmp_path: Path) -> Iterator[AcidLab]:
    """A target of Hive 4, whose tables Hive 3.1 reads."""
    source, _, here, _ = sides
    with shared(pool) as metastore:
        target = metastore(f"acid-target-{request.param}-{WORKER}", hive=request.param)
        with HiveSql(target.uri, Path(target.warehouse)) as there:
            lab = AcidLab(source, target, here, there, tmp_path)
            lab.source.create()
            yield lab


@pytest.mark.parametrize("newer", ["4.0", "4.2"], indirect=True)
def test_newer_servers_as_targets(newer: AcidLab) -> None:
    newer.make()
    newer.insert(1, 2)
    left_open(newer, "insert into {db}.t values (80, 'was open')")
    newer.insert(3)
    newer.replicate()
    newer.is_equal()
    newer.end_open()
    newer.run("update {db}.t set name = 'changed' where id = 2")
    newer.run("analyze table {db}.t compute statistics for columns")
    newer.make("p", keys="partitioned by (day int)")
    newer.run("insert into {db}.p partition (day = 7) values (1, 'n')")
    newer.compact("major")
    newer.replicate()
    newer.is_equal("t", "p")
    newer.run("insert into {db}.p partition (day = 7) values (5, 'n')")
    newer.run("update {db}.t set id = 7 where id = 2", "analyze table {db}.t compute statistics for columns id")
    newer.replicate()
    newer.is_equal("t", "p")
    sides = [side.metastore.table_statistics(newer.name, "t", ["id", "name"]) for side in (newer.source, newer.target)]
    assert sides[0] is not None and sides[0] == sides[1]

    there, name = newer.target.metastore, newer.name
    known = [msgspec.structs.replace(sides[0], table="p", partition="day=7")]
    [[partition]] = there.partitions(name, "p", ["day=7"])
    exact = partition.parameters | {"COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}'}
    there.alter_partitions(name, "p", [msgspec.structs.replace(partition, parameters=exact)])
    there.set_partition_statistics(known)
    assert there.partition_statistics(name, "p", ["id", "name"], ["day=7"]) == known
    there.drop_statistics(name, "p", "day=7", "id", None)
    [left] = there.partition_statistics(name, "p", ["id"], ["day=7"])
    assert {"i64": 7} not in left.columns[0].data["2"]["rec"].values()
    [[partition]] = there.partitions(name, "p", ["day=7"])
    assert "COLUMN_STATS_ACCURATE" not in partition.parameters
    assert "COLUMN_STATS" in there.table(name, "t").parameters["COLUMN_STATS_ACCURATE"]
    there.drop_statistics(name, "t", "", "id", None)
    assert "COLUMN_STATS_ACCURATE" not in there.table(name, "t").parameters


@pytest.mark.parametrize("newer", ["4.0", "4.2"], indirect=True)
def test_a_table_that_is_made_again_has_its_own_write_ids_on_newer_servers(newer: AcidLab) -> None:
    """They keep those of a table that is dropped without its data."""
    newer.make()
    newer.insert(1)
    newer.insert(2)
    newer.replicate()
    newer.run("drop table {db}.t")
    newer.make()
    newer.insert(3)
    assert newer.dump(since=newer.last).code == 0
    forgetting = Fault("after", "thrift", f"create table {newer.name}.t", 1)  # for a moment, to be dropped with its ids
    assert run_with(forgetting, newer.load_arguments(newer.last)).killed
    assert newer.load().code == 0
    newer.is_equal()
    assert newer.ids() == [3]
    assert [path.name for path in newer.target.home.iterdir()] == ["t"]

    written_by_others(newer)
    newer.insert(4)
    assert newer.dump(since=newer.last).code == 0
    refused = newer.load()
    assert (refused.code, refused.output["error"]) == (6, "Refused"), refused
    assert run_with(forgetting, newer.repair_arguments()).killed
    assert newer.repaired().output["tables"] == ["t"]
    assert newer.load().code == 0
    newer.is_equal()
    assert [path.name for path in newer.target.home.iterdir()] == ["t"]


@pytest.mark.parametrize("newer", ["4.0", "4.2"], indirect=True)
def test_open_transactions_of_the_source_end_on_newer_servers(newer: AcidLab) -> None:
    newer.make()
    newer.insert(1)
    left_open(newer, "insert into {db}.t values (80, 'open')")
    newer.replicate()
    there, name = newer.target.metastore, (newer.name, "t")
    before = there.database(newer.name).parameters
    assert there.write_ids([name], there.snapshot())[name].open == (2,)
    assert there.abort_replicated(newer.name) == 1
    ids = there.write_ids([name], there.snapshot())[name]
    assert (ids.open, ids.aborted) == ((), (2,))
    assert there.abort_replicated(newer.name) == 0
    assert there.database(newer.name).parameters == before
    newer.end_open(commit=False)
    newer.insert(2)
    newer.replicate()
    newer.is_equal()


def test_write_ids_are_asked_for_where_they_may_have_changed(
    acid: AcidLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, asked = ["t", "u", "v"], list[tuple[str, str]]()
    for name in names:
        acid.make(name)
    source, root = acid.source.metastore, create_or_open(str(tmp_path / "in-process"))
    ask = source.write_ids
    monkeypatch.setattr(source, "write_ids", lambda tables, at: asked.extend(tables) or ask(tables, at))

    def captured(**settings: Any) -> list[str]:
        asked.clear()
        about = CaptureSettings([acid.name], **settings)
        capture(source, root, about, Runtime(AutoEngine(LocalEngine(1), LocalEngine(1), choice="local")))
        with open_manifest(root) as manifest:
            known = {name: manifest.write_ids(acid.name, name) for name in names}
        found = ask([(acid.name, name) for name in names], source.snapshot())
        assert [each and each.ids for each in known.values()] == [found[acid.name, name] for name in names]
        return sorted({name for _, name in asked})

    assert captured() == names
    paced = {"scan_time": timedelta(0)}
    eventually(lambda: captured(**paced) == [])  # directories that were just changed are listed again
    acid.insert(1, name="t")
    assert captured(**paced) == ["t"]
    left_open(acid, "insert into {db}.v values (80, 'open')")
    eventually(lambda: captured(**paced) == ["v"])
    assert captured(**paced) == ["v"], "as long as the transaction is open"
    acid.end_open()
    assert captured(**paced) == ["v"], "without an event of the table's own"
    eventually(lambda: captured(**paced) == [])
    place = Path(urlsplit(str(source.table(acid.name, "u").location)).path)
    (place / "_new").mkdir()
    assert captured(**paced) == ["u"], "its directory has changed without an event"
    assert captured(paced=False) == names


def written_by_others(lab: AcidLab) -> None:
    """Another program commits two write ids of the replica's table."""
    with hive_client(lab.target_running) as client:
        for _ in range(2):
            client.thrift.commit_txn(ttypes.CommitTxnRequest(txnid=allocated(client.thrift, lab.name)))
