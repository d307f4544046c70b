"""Ids in names: partitions whose value is an id go, with the names of their directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from lab import Lab
from purges import Warehouse

from cmroot.root import open_existing
from replicator.core.model import DEFAULT_PARTITION
from replicator.errors import FilesMissing, Refused
from replicator.lifecycle.purge.backup_actions import restore_backup
from replicator.lifecycle.purge.certify import Replica
from replicator.lifecycle.purge.file_names import IdTexts
from replicator.lifecycle.purge.options import BackupRestoreSettings, PurgeOptions, RetainOptions
from replicator.lifecycle.removal.job import Remover
from replicator.lifecycle.removal.removal import Limits
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

BY_KEY = """'dataset.descriptor'='{"privacy": {"column": "customer"}}'"""


def test_partitions_whose_value_is_an_id_go_also_from_replicas(
    warehouse: Warehouse, source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    lab = Lab(source_metastore, target_metastore, tmp_path)
    db = f"{lab.name}_a"
    warehouse.sql(
        f"CREATE DATABASE {db} LOCATION '{tmp_path}/source/{db}.db'",
        f"CREATE TABLE {db}.t (v STRING) PARTITIONED BY (customer BIGINT, day STRING) STORED AS PARQUET"
        f" TBLPROPERTIES ({BY_KEY})",
        f"INSERT INTO {db}.t SELECT concat('x', id % 15), id, day"
        " FROM range(0, 30, 5), (VALUES ('a:b'), ('c')) AS d(day)",
        f"ALTER TABLE {db}.t ADD PARTITION (customer = 90, day = 'empty')",
        f"INSERT INTO {db}.t VALUES ('null', NULL, 'a:b')",
        f"ALTER TABLE {db}.t ADD PARTITION (customer = 80, day = 'out') LOCATION '{tmp_path}/source/out'",
        f"INSERT INTO {db}.t VALUES ('outside', 80, 'out')",
    )
    (outside,) = (tmp_path / "source" / "out").glob("part-*")
    body = outside.read_bytes()
    lab.sync()
    there = connect(lab.policy.target)
    ((partition,),) = there.partitions(lab.replica().name, "t", ["customer=80/day=out"])
    place = (partition.location or "").removeprefix("file:")
    before, home = warehouse.rows(f"{db}.t"), Path(warehouse.home_of(f"{db}.t"))
    root, asked = open_existing(str(tmp_path / "cmroot")), PurgeOptions(warehouse.ids, db, "privacy.column")

    planned = warehouse.purge(root, warehouse.ids, db, dry_run=True)
    assert (planned.rows_erased, planned.tables[0].dropped, planned.gaps) == (7, 8, [])
    done = warehouse.purge(root, warehouse.ids, db, limits=Limits(max_share=0.9, max_bytes=1 << 30))
    assert (done.status, done.rows_erased, done.tables[0].dropped) == ("done", 7, 8), done.tables
    assert done.ids_never_found == 5, "of 0, 10, ... 90: all but 0, 10, 20, 80 and 90"
    left = [row for row in before if row[1] is None or row[1] % 10]
    assert warehouse.rows(f"{db}.t") == left and len(left) == 7
    names = {path.name for path in home.iterdir() if path.is_dir()}
    assert names == {"customer=5", "customer=15", "customer=25", "customer=__HIVE_DEFAULT_PARTITION__"}
    assert not warehouse.purge(root, warehouse.ids, db).rows_erased

    def certified() -> Any:
        return warehouse.certify(root, asked, Replica.of(lab.policy, there), expedited=True)

    behind = certified()
    assert behind.status == "remaining" and {each["what"] for each in behind.holding} >= {"replica"}
    lab.sync()
    assert {path.name for path in (lab.replica().home / "t").iterdir() if path.is_dir()} == names
    copies = [outside, Path(place) / outside.name]
    for copy in copies:
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(body)
    assert {each["path"] for each in certified().holding} == set(map(str, copies))
    for copy in copies:
        copy.unlink()
    found = certified()
    assert (found.status, found.erased, found.searched) == ("certified", {f"{db}.t": 7}, [f"{db}.t"]), found.holding


@pytest.mark.parametrize("stored", ["STORED AS TEXTFILE", "USING parquet", "STORED AS ORC"])
def test_a_dropped_partition_can_be_restored(warehouse: Warehouse, stored: str) -> None:
    db = f"keyed_{stored.rpartition(' ')[2].lower()}"
    by = "PARTITIONED BY (customer)" if "USING" in stored else "PARTITIONED BY (customer STRING)"
    columns = "v STRING, customer STRING" if "USING" in stored else "v STRING"
    declared = f"{stored} {by}" if "USING" in stored else f"{by} {stored}"
    warehouse.sql(
        f"CREATE DATABASE {db}",
        f"CREATE TABLE {db}.t ({columns}) {declared} TBLPROPERTIES ({BY_KEY})",
        f"INSERT INTO {db}.t VALUES ('one', 'ann b/c'), ('two', 'ann b/c'), ('three', 'bob')",
        f"CREATE TABLE {db}.gone AS SELECT 'ann b/c' AS member",
    )
    before, root = warehouse.rows(f"{db}.t"), warehouse.root(db)
    asked = BackupRestoreSettings(f"{db}.t", "customer=ann b%2Fc")
    done = warehouse.purge(root, f"{db}.gone:member", f"{db}.t")
    assert (done.status, done.rows_erased, done.ids_never_found) == ("done", 2, 0), done.tables
    warehouse.session.catalog.refreshTable(f"{db}.t")
    assert warehouse.rows(f"{db}.t") == [("three", "bob")]

    assert restore_backup(warehouse.metastore, root, asked, dry_run=True).status == "planned"
    back = restore_backup(warehouse.metastore, root, asked)
    assert (back.status, back.from_cmroot > 0) == ("restored", True) and "2 rows" in back.warnings[0]
    assert warehouse.rows(f"{db}.t") == before
    assert warehouse.purge(root, f"{db}.gone:member", f"{db}.t").rows_erased == 2
    warehouse.sql(f"INSERT INTO {db}.t VALUES ('new', 'ann b/c')")
    with pytest.raises(Refused, match="exists again"):
        restore_backup(warehouse.metastore, root, asked)
    assert warehouse.retain(root, RetainOptions()).status == "done"


def test_a_drop_that_gave_up_is_completed_by_the_next_run_and_can_be_undone(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse.sql(
        "CREATE DATABASE gave_up",
        f"CREATE TABLE gave_up.t (v STRING) PARTITIONED BY (customer INT) STORED AS PARQUET TBLPROPERTIES ({BY_KEY})",
        "INSERT INTO gave_up.t VALUES ('one', 1), ('two', 2)",
        "CREATE TABLE gave_up.gone AS SELECT 1 AS member",
    )
    before, root, ids = warehouse.rows("gave_up.t"), warehouse.root("gave_up"), "gave_up.gone:member"
    home = Path(warehouse.home_of("gave_up.t")) / "customer=1"
    (file,) = home.glob("part-*")
    body, remove = file.read_bytes(), Remover.remove

    def writes(remover: Remover, removals: Any) -> Any:
        removed = remove(remover, removals)
        home.mkdir(exist_ok=True)
        (home / "part-late").write_bytes(body)
        return removed

    with monkeypatch.context() as patched:
        patched.setattr(Remover, "remove", writes)
        tried = warehouse.purge(root, ids, "gave_up.t")
    assert (tried.status, tried.tables[0].units[0]["state"]) == ("partial", "EXHAUSTED")
    done = warehouse.purge(root, ids, "gave_up.t")
    assert (done.tables[0].dropped, done.rows_erased) == (1, 2), "of both files"
    restore_backup(warehouse.metastore, root, BackupRestoreSettings("gave_up.t", "customer=1"))
    assert warehouse.rows("gave_up.t") == sorted([*before, ("one", 1)])


@pytest.mark.parametrize("what", ["file is gone", "name is used twice", "partition came back"])
def test_a_dropped_partition_is_restored_whole_or_not_at_all(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    db = f"whole_{what.partition(' ')[0]}"
    warehouse.sql(
        f"CREATE DATABASE {db}",
        f"CREATE TABLE {db}.t (v STRING) PARTITIONED BY (customer INT) STORED AS PARQUET TBLPROPERTIES ({BY_KEY})",
        f"INSERT INTO {db}.t VALUES ('one', 1), ('other', 2)",
        f"INSERT INTO {db}.t VALUES ('two', 1)",
        f"CREATE TABLE {db}.gone AS SELECT 1 AS member",
    )
    before, root, ids = warehouse.rows(f"{db}.t"), warehouse.root(db), f"{db}.gone:member"
    home = Path(warehouse.home_of(f"{db}.t")) / "customer=1"
    first, second = sorted(home.glob("part-*"))
    (other,) = [path.read_bytes() for path in home.with_name("customer=2").glob("part-*")]
    remove, turns = Remover.remove, list[Any]()

    def writes(remover: Remover, removals: Any) -> Any:
        turns.append(1)
        if what == "file is gone" and len(turns) == 1:
            second.rename(home / "part-late")
            (home / "part-late").write_bytes(other)
        removed = remove(remover, removals)
        if what == "name is used twice" and len(turns) == 1:
            home.mkdir(exist_ok=True)
            first.write_bytes(other)
        return removed

    with monkeypatch.context() as patched:
        patched.setattr(Remover, "remove", writes)
        done = warehouse.purge(root, ids, f"{db}.t")
    assert (done.status, done.tables[0].dropped) == ("done", 1), done
    asked = BackupRestoreSettings(f"{db}.t", "customer=1", done.run)
    if what == "partition came back":
        warehouse.sql(f"INSERT INTO {db}.t VALUES ('new', 1)")
        assert warehouse.purge(root, ids, f"{db}.t").rows_erased == 1
        assert restore_backup(warehouse.metastore, root, asked).status == "restored"
        assert warehouse.rows(f"{db}.t") == before
        return
    with pytest.raises(FilesMissing, match="1 of 2 files" if "gone" in what else "2 files had the name"):
        restore_backup(warehouse.metastore, root, asked)
    assert warehouse.rows(f"{db}.t") == [("other", 2)] and not home.exists()


def test_a_file_that_comes_before_the_drop_goes_too(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse.sql(
        "CREATE DATABASE late_file",
        f"CREATE TABLE late_file.t (v STRING) PARTITIONED BY (customer INT) STORED AS PARQUET TBLPROPERTIES ({BY_KEY})",
        "INSERT INTO late_file.t VALUES ('one', 1), ('two', 2)",
        "CREATE TABLE late_file.gone AS SELECT 1 AS member",
    )
    root, ids = warehouse.root("late_file"), "late_file.gone:member"
    home = Path(warehouse.home_of("late_file.t")) / "customer=1"
    drop = type(warehouse.metastore).drop_partitions

    def writes(metastore: Any, db: str, table: str, names: Any) -> Any:
        home.mkdir(exist_ok=True)
        (home / "part-late").write_text("of a writer that had begun before")
        return drop(metastore, db, table, names)

    with monkeypatch.context() as patched:
        patched.setattr(type(warehouse.metastore), "drop_partitions", writes)
        assert warehouse.purge(root, ids, "late_file.t").tables[0].dropped == 1
    assert not home.exists()
    found = warehouse.certify(root, PurgeOptions(ids, "late_file.t", "privacy.column"))
    assert {Path(each["path"]).name.rpartition("-")[2] for each in found.holding} >= {"33"}, found.holding
    found = warehouse.certify(root, PurgeOptions(ids, "late_file.t", "privacy.column"), expedited=True)
    assert found.status == "certified"


def test_a_copy_that_no_reader_reads_does_not_prove_that_a_content_is_shared(warehouse: Warehouse) -> None:
    warehouse.sql(
        "CREATE DATABASE unproved",
        "CREATE TABLE unproved.t (v STRING, customer INT) USING parquet PARTITIONED BY (customer)"
        f" TBLPROPERTIES ({BY_KEY})",
        "INSERT INTO unproved.t VALUES ('a', 10), ('b', 20), ('c', 30), ('d', 40), ('d', 2), ('e', 3)",
    )
    root, home = warehouse.root("unproved"), Path(warehouse.home_of("unproved.t"))
    (home / "customer=10" / "_SUCCESS").touch()
    assert (home / "_SUCCESS").exists() and not (home / "_SUCCESS").stat().st_size
    copied = {10: "customer=2/_SUCCESS", 20: "customer=2/.part-0.crc", 30: "customer=3/of/part-0"}
    for customer, name in copied.items():
        (body,) = [path.read_bytes() for path in (home / f"customer={customer}").glob("part-*")]
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_bytes(body)
    asked = PurgeOptions(warehouse.ids, "unproved.t", "privacy.column")
    assert warehouse.purge(root, warehouse.ids, "unproved.t").tables[0].dropped == 4
    found = warehouse.certify(root, asked, expedited=True)
    assert (found.status, [each["table"] for each in found.gaps]) == ("remaining", ["unproved.t/customer=2"]), found
    assert "rows: .part-0.crc" in found.gaps[0]["reason"], "it is no checksum"
    assert {Path(each["path"]) for each in found.holding} == {home / name for name in copied.values()}
    for name in copied.values():
        (home / name).unlink()
    assert warehouse.certify(root, asked, expedited=True).status == "certified"


def test_a_content_that_one_table_shares_is_looked_for_in_another(warehouse: Warehouse) -> None:
    made = f"(v STRING, customer INT) USING parquet PARTITIONED BY (customer) TBLPROPERTIES ({BY_KEY})"
    warehouse.sql(
        "CREATE DATABASE shared",
        f"CREATE TABLE shared.t {made}",
        f"CREATE TABLE shared.u {made}",
        "INSERT INTO shared.t VALUES ('d', 40), ('d', 2)",
        "INSERT INTO shared.u VALUES ('d', 40), ('e', 3)",
    )
    root, homes = warehouse.root("shared"), [Path(warehouse.home_of(f"shared.{name}")) for name in "tu"]
    bodies = {path.read_bytes() for home in homes for path in home.glob("customer=40/part-*")}
    assert len(bodies) == 1
    assert warehouse.purge(root, warehouse.ids, "shared").rows_erased == 2
    asked, copy = PurgeOptions(warehouse.ids, "shared", "privacy.column"), homes[1] / "customer=3" / ".copy"
    copy.write_bytes(*bodies)
    found = warehouse.certify(root, asked, expedited=True)
    assert (found.status, [each["path"] for each in found.holding]) == ("remaining", [str(copy)]), found
    copy.unlink()
    assert warehouse.certify(root, asked, expedited=True).status == "certified"


@pytest.mark.parametrize("match", ["exact", "trim"])
def test_no_id_is_equal_to_a_partition_without_a_value(warehouse: Warehouse, match: str) -> None:
    db = f"without_{match}"
    said = f"""'dataset.descriptor'='{{"privacy": {{"column": "customer"}}, "ids": {{"match": "{match}"}}}}'"""
    warehouse.sql(
        f"CREATE DATABASE {db}",
        f"CREATE TABLE {db}.t (v STRING) PARTITIONED BY (customer STRING) STORED AS PARQUET TBLPROPERTIES ({said})",
        f"INSERT INTO {db}.t VALUES ('one', 'ann'), ('none', NULL)",
        f"CREATE TABLE {db}.u LIKE {db}.t",
        f"ALTER TABLE {db}.u SET TBLPROPERTIES ({said})",
        f"INSERT INTO {db}.u VALUES ('none', NULL)",
        f"CREATE TABLE {db}.gone AS SELECT * FROM VALUES ('ann'), (''), (' '), ('{DEFAULT_PARTITION}') AS ids(member)",
    )
    ((partition,),) = warehouse.metastore.all_partitions(db, "u")
    warehouse.metastore.drop_partitions(db, "u", [f"customer={DEFAULT_PARTITION}"])
    warehouse.metastore.add_partitions(db, "u", [msgspec.structs.replace(partition, values=("",))])
    done = warehouse.purge(warehouse.root(db), f"{db}.gone:member", f"{db}.t|u")
    assert {table.table: (table.dropped, table.rows_erased) for table in done.tables} == {
        f"{db}.t": (1, 1),
        f"{db}.u": (0, 0),
    }
    assert warehouse.rows(f"{db}.t") == [("none", None)]


NAMED = {
    "a file of data": "customer-20.parquet",
    "a directory": "of/id=20/part-0",
    "a mark": "_SUCCESS",
    "a long id": "export_471100_1.parquet",
    "a mark of another writer": "_committed_471100",
}


@pytest.mark.parametrize("what", NAMED)
def test_an_id_in_a_name_or_in_a_mark_is_a_gap_by_name(warehouse: Warehouse, what: str) -> None:
    db = f"named_{what}".replace(" ", "_")
    described = BY_KEY.replace("customer", "id" if "directory" in what else "customer")
    column = "id" if "directory" in what else "customer"
    warehouse.sql(
        f"CREATE DATABASE {db}",
        f"CREATE TABLE {db}.t ({column} BIGINT) PARTITIONED BY (day STRING) STORED AS PARQUET"
        f" TBLPROPERTIES ({described})",
        f"INSERT INTO {db}.t VALUES (1, '2026-03-20'), (2, '471101')",
        f"CREATE TABLE {db}.gone AS SELECT * FROM VALUES (20), (471100) AS ids(member)",
    )
    root, ids = warehouse.root(db), f"{db}.gone:member"
    clean = warehouse.purge(root, ids, f"{db}.t")
    assert (clean.status, clean.gaps) == ("done", [])
    home = Path(warehouse.home_of(f"{db}.t")) / "day=471101"
    place = (home if what != "a mark" else home.parent) / NAMED[what]
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.name.startswith("_"):
        place.write_text('{"files": ["customer=20/part-0"], "id": "x"}')
    else:
        place.write_bytes(next(home.glob("part-*")).read_bytes())
    done = warehouse.purge(root, ids, f"{db}.t")
    (gap,) = [gap for gap in done.gaps if "ids in names" in gap["reason"]]
    text = "471100" if "471100" in NAMED[what] else "20"
    assert gap["table"] == f"{db}.t" and f"{text} in " in gap["reason"] and NAMED[what] in gap["reason"], gap
    asked = PurgeOptions(ids, f"{db}.t", "privacy.column")
    assert warehouse.certify(root, asked, expedited=True).status == "gaps"


def test_a_mark_that_is_too_large_to_search_is_a_gap(warehouse: Warehouse) -> None:
    warehouse.sql(
        "CREATE DATABASE marks",
        f"CREATE TABLE marks.t (customer BIGINT) STORED AS PARQUET TBLPROPERTIES ({BY_KEY})",
        "INSERT INTO marks.t VALUES (1)",
    )
    (Path(warehouse.home_of("marks.t")) / "_SUCCESS").write_bytes(b"x" * ((1 << 20) + 1))
    done = warehouse.purge(warehouse.root("marks"), warehouse.ids, "marks")
    assert [gap["reason"] for gap in done.gaps] == ["not searched: the mark _SUCCESS, which is too large"]


def test_files_that_no_reader_reads_are_gaps_of_the_partitions_that_remain(warehouse: Warehouse) -> None:
    warehouse.sql(
        "CREATE DATABASE unread",
        f"CREATE TABLE unread.t (v STRING) PARTITIONED BY (customer INT) STORED AS PARQUET TBLPROPERTIES ({BY_KEY})",
        "INSERT INTO unread.t VALUES ('one', 10), ('two', 2), ('three', 3)",
    )
    home, root = Path(warehouse.home_of("unread.t")), warehouse.root("unread")
    for value in (10, 2):
        (home / f"customer={value}" / "_temporary").mkdir()
        (home / f"customer={value}" / "_temporary" / "part-0").write_text(f"of a job {value}")
    (home / "customer=3" / "_SUCCESS").write_bytes(b"x" * ((1 << 20) + 1))
    done = warehouse.purge(root, warehouse.ids, "unread.t")
    assert (done.tables[0].dropped, {gap["table"]: gap["reason"] for gap in done.gaps}) == (
        1,
        {
            "unread.t/customer=2": "not searched: files that no reader reads as rows: _temporary/part-0",
            "unread.t/customer=3": "not searched: the mark _SUCCESS, which is too large",
        },
    )
    found = warehouse.certify(root, PurgeOptions(warehouse.ids, "unread.t", "privacy.column"), expedited=True)
    assert found.status == "gaps" and [gap["table"] for gap in found.gaps] == [gap["table"] for gap in done.gaps]


LEFT = ("day=1/customer=4711/part-0", "customer=4711/day=1/part-0", ".hive-staging_x/part-0", "_temporary/0/part-0")


@pytest.mark.parametrize("left", [*LEFT, "day=1/part-0", "day=1/customer=20"])
def test_what_belongs_to_no_partition_is_a_gap(warehouse: Warehouse, left: str) -> None:
    db = f"left_{(*LEFT, 'day=1/part-0', left).index(left)}"
    warehouse.sql(
        f"CREATE DATABASE {db}",
        f"CREATE TABLE {db}.t (v STRING) PARTITIONED BY (day INT, customer INT) STORED AS PARQUET"
        f" TBLPROPERTIES ({BY_KEY})",
        f"INSERT INTO {db}.t VALUES ('one', 1, 1), ('two', 1, 20)",
    )
    root, home = warehouse.root(db), Path(warehouse.home_of(f"{db}.t"))
    asked = PurgeOptions(warehouse.ids, f"{db}.t", "privacy.column")
    assert warehouse.purge(root, warehouse.ids, f"{db}.t").tables[0].dropped == 1
    assert warehouse.certify(root, asked, expedited=True).status == "certified"
    if left.endswith("part-0"):
        (home / left).parent.mkdir(parents=True, exist_ok=True)
        (home / left).write_text("left by another")
    else:
        (home / left).mkdir()
    found = warehouse.certify(root, asked, expedited=True)
    named = left.removesuffix("/part-0") if left in LEFT else left
    assert found.status == "gaps" and named.removesuffix("/day=1").removesuffix("/0") in found.gaps[0]["reason"], found


def test_an_id_in_a_name_by_a_match_rule_is_a_gap(warehouse: Warehouse) -> None:
    described = BY_KEY.replace("}}", '}, "ids": {"match": "numeric"}}')
    warehouse.sql(
        "CREATE DATABASE ruled",
        f"CREATE TABLE ruled.t (customer STRING) STORED AS PARQUET TBLPROPERTIES ({described})",
        "INSERT INTO ruled.t VALUES ('1')",
        "CREATE TABLE ruled.gone AS SELECT 4711 AS member",
    )
    (file,) = Path(warehouse.home_of("ruled.t")).glob("part-*")
    file.rename(file.with_name("export_0004711.parquet"))
    (gap,) = warehouse.purge(warehouse.root("ruled"), "ruled.gone:member", "ruled.t").gaps
    assert "0004711 in " in gap["reason"]


def test_texts_of_names_are_their_parts_and_several_in_a_row() -> None:
    texts = IdTexts(1, 40, digits=False, columns=("customer",))
    uuid = "550e8400-e29b-41d4-a716-446655440000"
    assert uuid in set(texts.in_text(f"export_{uuid}.json"))
    assert {"ann@x.org", "x.org-2026"} <= set(texts.in_text("of-ann@x.org-2026.csv"))
    assert all("7" in set(texts.in_text(name)) for name in ("t/Customer-7.csv", "customer7", "a_customer=7"))
    assert "ann b" in set(texts.in_text("t/who=ann%20b/part-0")) | set(texts.in_text("customer=ann%20b"))
    assert not any(uuid in text for text in texts.in_text(f"part-00000-{uuid}.c000.snappy.parquet"))
    assert not any("7" in set(texts.in_text(name)) for name in ("t/7.csv", "noncustomer-7", "customers 7"))
    digits = IdTexts(1, 20, digits=True, columns=("customer",))
    for generated in ("part-00000-0e6ad0c2-0b0e.c000.snappy.parquet", "000000_0", "000001_0_copy_12", "bucket_00003"):
        assert not list(digits.in_text(generated)), generated
    assert "471100" in set(digits.in_text("471100_1.csv")) & set(digits.in_text("t/x_471100_1.csv"))
