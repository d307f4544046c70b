"""Purges of Hive's transactional tables: Hive writes and compacts them, and reads what stays with its row ids; pyarrow
looks for the erased rows in all files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from acid_tables import INSERT_ONLY, ORC, AcidLab, acid_lab
from command_line import Answer, command
from engines import client_of_hive_4
from hive_metastore import ttypes
from hive_objects import FULL_ACID, HIVE, hive_client
from hive_sql import HiveSql, leave_open
from metastores import shared
from names import WORKER
from pool import Pool

from replicator.lifecycle.purge.transactional_files import COMPACTS

PERSONS = """'dataset.descriptor'='{"privacy": {"column": "id"}}'"""


@pytest.fixture
def acid(pool: Pool, tmp_path: Path) -> Iterator[AcidLab]:
    with acid_lab(pool, tmp_path) as made:
        made.run("create external table {db}.gone (id int) stored as textfile")
        yield made


def purge(lab: AcidLab, *more: str, ids: tuple[int, ...] = (2, 20), home: Path | None = None, uri: str = "") -> Answer:
    ((home or lab.source.home) / "gone" / "ids").write_text("".join(f"{each}\n" for each in ids))
    return in_a_process(lab, "run", *more, uri=uri)


def in_a_process(lab: AcidLab, verb: str, *more: str, uri: str = "") -> Answer:
    """Runs a command of a purge in a process of its own, as this one may have another Spark."""
    place = ["--metastore", uri or lab.source_uri, "--cmroot", str(lab.cmroot), "--ids", f"{lab.side}.gone:id"]
    words = ["purge", verb, *place, "--table-whitelist", lab.side, "--field-path", "privacy.column", *more]
    done = subprocess.run(
        [sys.executable, "-m", "replicator", *words, "--json"], capture_output=True, text=True, env=dict(os.environ)
    )
    return Answer(done.returncode, json.loads(done.stdout))


def what(name: str) -> str:
    return "*" if name == "p" else "row__id, *"


def person(name: str, row: list[str]) -> str:
    return row[0 if name == "p" else 1]


def clean(home: Path) -> None:
    """Removes what a compaction (MAJOR) has replaced, for want of Hive's cleaner: its metastore needs more jars."""
    for path in home.iterdir():
        if path.is_dir() and not path.name.startswith("base_"):
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()


def values(*homes: Path, backups: bool = False) -> list[int]:
    """All ids in all files of rows, whoever reads these."""
    found: list[int] = []
    for path in sorted(path for home in homes for path in home.rglob("*")):
        hidden = "/.hive-staging" in str(path) or (not backups and "/_purge-" in str(path))
        if hidden or not path.name.startswith(("bucket_", "000")):
            continue
        table: Any = (orc if path.read_bytes()[:3] == b"ORC" else pq).read_table(str(path))
        rows = table["row"].to_pylist() if "row" in table.column_names else table.to_pylist()
        found += [row["id"] for row in rows if row]
    return sorted(found)


def made(lab: AcidLab, name: str = "t", kind: str = ORC, keys: str = "") -> None:
    lab.make(name, kind, keys)
    lab.run(f"alter table {{db}}.{name} set tblproperties ({PERSONS})")


def test_rows_are_erased_from_all_directories_and_the_others_keep_their_ids(acid: AcidLab) -> None:
    made(acid)
    made(acid, "p", INSERT_ONLY.replace("textfile", "parquet"), "partitioned by (day int)")
    acid.insert(1, 2, 3, 20)
    acid.run("update {db}.t set name = 'B' where id in (2, 3)", "delete from {db}.t where id = 20")
    acid.rolled_back("insert into {db}.t values (2, 'aborted')")
    acid.insert(4, 2)
    acid.run("insert into {db}.p partition (day) values (1, 'n', 7), (2, 'n', 7), (3, 'n', 8)")
    acid.run("insert into {db}.p partition (day = 8) values (20, 'n')")
    acid.run("analyze table {db}.t compute statistics for columns")
    assert acid.source.metastore.table_statistics(acid.name, "t", ["id"]) is not None
    acid.replicate()
    before = {name: acid.rows(name, what(name)) for name in "tp"}
    wanted = {name: [row for row in rows if person(name, row) not in "2 20"] for name, rows in before.items()}
    assert [len(rows) for rows in wanted.values()] == [3, 2]

    done = purge(acid)
    assert done.code == 0, json.dumps(done.output, indent=1)
    assert done.output["rows_erased"] == 5 + 2  # of which queries saw three
    assert {name: acid.rows(name, what(name)) for name in "tp"} == wanted
    assert set(values(acid.source.home)) == {1, 3, 4}
    assert acid.source.metastore.table_statistics(acid.name, "t", ["id"]) is None
    acid.replicate()
    acid.is_equal("t", "p")
    assert set(values(acid.target.home)) == {1, 3, 4}
    expedited = ["--expedite", "--grace", "0s", "--replica-cmroot", str(acid.target_cmroot)]
    certified = in_a_process(acid, "certify", *expedited)
    assert {(each["what"], each["until"][:5]) for each in certified.output["holding"]} == {("$cmroot", "dump ")}
    assert certified.output["gaps"] == []
    assert sorted(certified.output["searched"]) == [f"{acid.side}.p", f"{acid.side}.t"]
    assert set(values(acid.source.home, acid.target.home, backups=True)) == {1, 3, 4}


def test_rows_of_open_transactions_and_rows_without_ids_are_named(acid: AcidLab) -> None:
    acid.run(f"create table {{db}}.t (name string, id int) {ORC}", "insert into {db}.t values ('n1', 1), ('n2', 2)")
    acid.run(f"alter table {{db}}.t set tblproperties ({PERSONS})", "alter table {db}.t add columns (city string)")
    acid.run("insert into {db}.t values ('n1', 1, 'c1'), ('n2', 2, 'c2')")
    leave_open(acid.hive.uri, Path(acid.hive.warehouse), f"insert into {acid.side}.t values ('was open', 3, 'c3')")
    made(acid, "raw", "stored as orc")
    acid.insert(1, 2, name="raw")
    acid.run("alter table {db}.raw set tblproperties ('transactional'='true')")
    acid.insert(2, 3, name="raw")
    done = purge(acid)
    assert done.code == 3
    assert done.output["partitions_failed"] == 0
    gaps = {gap["table"].partition(".")[2]: gap["reason"] for gap in done.output["gaps"]}
    assert gaps.keys() == {"t", "raw"}
    assert "transactions that are open" in gaps["t"] and "without row ids" in gaps["raw"]
    assert values(acid.source.home / "t") == [1, 1, 3]
    assert sorted(acid.run("select * from {db}.t")) == [["n1", "1", "NULL"], ["n1", "1", "c1"]]
    assert values(acid.source.home / "raw") == [1, 2, 3]


def test_partitions_that_a_compactor_is_to_rewrite_stay_as_they_are(acid: AcidLab) -> None:
    """The target's metastore has no compactor: what is queued stays queued."""
    acid.run_there("create database if not exists {db}", f"create table {{db}}.t (id int, name string) {ORC}")
    acid.run_there(
        f"alter table {{db}}.t set tblproperties ({PERSONS})", "insert into {db}.t values (1, 'n'), (2, 'n')"
    )
    acid.run_there('alter table {db}.t compact "major"', "create external table {db}.gone (id int) stored as textfile")
    before = values(acid.target.home / "t")
    planned = purge(acid, "--dry-run", home=acid.target.home, uri=acid.target_uri)
    assert planned.output["partitions_failed"] == 1 and COMPACTS in planned.output["tables"][0]["units"][0]["reason"]
    done = purge(acid, home=acid.target.home, uri=acid.target_uri)
    assert done.code == 3
    [unit] = done.output["tables"][0]["units"]
    assert (unit["state"], unit["reason"]) == ("EXHAUSTED", COMPACTS)
    assert values(acid.target.home / "t") == before == [1, 2]


@pytest.mark.long
def test_what_stays_after_a_purge_is_updated_compacted_and_restored(acid: AcidLab) -> None:
    made(acid)
    acid.insert(1, 2, 3, 4)
    acid.run("update {db}.t set name = 'B' where id in (2, 3)")
    before = acid.rows()
    assert purge(acid).code == 0
    wanted = acid.rows()
    place = ["--metastore", acid.source_uri, "--cmroot", str(acid.cmroot)]
    assert command("purge", "undo", f"{acid.side}.t", *place).code == 0
    assert acid.rows() == before
    assert purge(acid).code == 0
    assert acid.rows() == wanted
    acid.run("update {db}.t set name = 'C' where id = 4", "delete from {db}.t where id = 1")
    acid.compact("minor")
    acid.insert(5)
    acid.compact("major")
    assert [row[1:] for row in acid.rows()] == [["3", "B"], ["4", "C"], ["5", "n5"]]
    clean(acid.source.home / "t")
    assert set(values(acid.source.home / "t")) == {3, 4, 5}


@pytest.mark.long
def test_a_file_of_several_stripes_is_read_in_several_splits(acid: AcidLab) -> None:
    """Hive finds the rows of a split by the ids that a file names for each stripe."""
    kind = ORC.replace("(", '("orc.stripe.size"="65536", "orc.compress"="NONE", ', 1)
    acid.run(f"create table {{db}}.t (id int, name string) {kind}")
    acid.run(f"alter table {{db}}.t set tblproperties ({PERSONS})", "create external table {db}.many (id int)")
    (acid.source.home / "many" / "ids").write_text("".join(f"{each}\n" for each in range(200_000)))
    acid.run("insert into {db}.t select id, concat(reverse(cast(id * 7919 as string)), 'x') from {db}.many")
    acid.run("drop table {db}.many")
    acid.compact("major")
    clean(acid.source.home / "t")
    [base] = acid.source.home.glob("t/base_*/bucket_00000")
    assert orc.ORCFile(str(base)).nstripes > 2
    gone = tuple(range(0, 200_000, 3))
    done = purge(acid, ids=gone)
    assert done.code == 0, json.dumps(done.output, indent=1)
    acid.run("set mapreduce.input.fileinputformat.split.maxsize=500000", "set hive.exec.orc.split.strategy=BI")
    shown = acid.run("select id, row__id.rowid from {db}.t")
    assert len(shown) == 200_000 - len(gone)
    assert {int(row[0]) for row in shown}.isdisjoint(gone)
    acid.run("delete from {db}.t where id % 3 = 1")
    assert acid.run("select count(*), min(id % 3), max(id % 3) from {db}.t") == [[str(200_000 // 3), "2", "2"]]


@pytest.mark.parametrize("version", ["4.2", pytest.param("4.0", marks=pytest.mark.long)])
def test_a_table_of_hive_4_with_exact_statistics(pool: Pool, tmp_path: Path, version: str) -> None:
    with shared(pool) as metastore:
        source = metastore(f"acid-purged-{version}-{WORKER}", hive=version)
        with HiveSql(source.uri, Path(source.warehouse)) as here:
            lab = AcidLab(source, source, here, here, tmp_path)
            lab.source.create()
            descriptor = {"dataset.descriptor": '{"privacy": {"column": "id"}}'}
            with hive_client(source) as client:
                client.table(lab.name, "t", FULL_ACID | descriptor, columns=(("id", "int"), ("name", "string")))
                lab.insert(1, 2, 3)
                table = client.get(lab.name, "t")
                table.parameters |= {"COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}', "numRows": "3"}
                table.writeId = 1
                request = ttypes.AlterTableRequest(dbName=lab.name, tableName="t", table=table, writeId=1)
                request.validWriteIdList = f"{lab.name}.t:1:{2**63 - 1}::"
                request.processorCapabilities, request.processorIdentifier = HIVE, "hs2@test"
                request.environmentContext = ttypes.EnvironmentContext({"DO_NOT_UPDATE_STATS": "true"})
                client.thrift.alter_table_req(request)
                of_table = ttypes.ColumnStatisticsDesc(isTblLevel=True, dbName=lab.name, tableName="t")
                least = ttypes.ColumnStatisticsData(longStats=ttypes.LongColumnStatsData(1, 3, 0, 3))
                column = ttypes.ColumnStatisticsObj(colName="id", colType="int", statsData=least)
                stats = ttypes.ColumnStatistics(statsDesc=of_table, statsObj=[column], engine="hive")
                sent = ttypes.SetPartitionsStatsRequest(colStats=[stats], writeId=1, engine="hive")
                sent.validWriteIdList = f"{lab.name}.t:1:{2**63 - 1}::"
                client.thrift.update_table_column_statistics_req(sent)
            assert lab.source.metastore.table_statistics(lab.name, "t", ["id"]) is not None
            lab.run("create external table {db}.gone (id int) stored as textfile")
            done = purge(lab, *client_of_hive_4())
            assert done.code == 0, json.dumps(done.output, indent=1)
            assert [row[1] for row in lab.rows()] == ["1", "3"]
            after = lab.source.metastore.table(lab.name, "t").parameters
            assert after.keys().isdisjoint({"COLUMN_STATS_ACCURATE", "numRows"})
            left = lab.source.metastore.table_statistics(lab.name, "t", ["id", "name"])
            assert left is not None  # such a server deletes none
            least, most, *_ = left.columns[0].data["2"]["rec"].values()
            assert (least, most) == ({"i64": -(2**63)}, {"i64": 2**63 - 1})
