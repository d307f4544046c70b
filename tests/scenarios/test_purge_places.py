"""Where rows lie: escaped partitions, sub-directories, files that nobody reads, and files of no partition."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from purges import DESCRIPTOR, Warehouse

from replicator.lifecycle.purge.options import PurgeOptions

SERDES = {
    "text": "ROW FORMAT DELIMITED FIELDS TERMINATED BY ','",
    "avro": "STORED AS AVRO",
    "sequence": "STORED AS SEQUENCEFILE",
    "rcfile": "STORED AS RCFILE",
    "parquet": "STORED AS PARQUET",
    "orc": "STORED AS ORC",
}
DEEP = {
    "mapreduce.input.fileinputformat.input.dir.recursive": "true",
    "spark.sql.hive.convertMetastoreParquet": "false",
    "spark.sql.hive.convertMetastoreOrc": "false",
}
"""With which Spark reads sub-directories, as Hive on Tez does."""
ODD = ("a:b", "a%3Ab", "a/b", "a=b", "it''s", "50%", "a#b", "a?b", "a b", "ä", "100%25")
"""As literals of SQL; `a:b` and `a%3Ab` are neighbours when a name is unescaped once too often."""


@pytest.mark.long
def test_rows_of_partitions_with_escaped_names_go(warehouse: Warehouse) -> None:
    warehouse.sql("CREATE DATABASE odd")
    kinds = {**SERDES, "spark": None}
    for name, stored in kinds.items():
        columns = "(id BIGINT, v STRING, k STRING) USING parquet PARTITIONED BY (k)"
        definition = f"(id BIGINT, v STRING) PARTITIONED BY (k STRING) {stored}" if stored else columns
        warehouse.sql(f"CREATE TABLE odd.{name} {definition} TBLPROPERTIES ({DESCRIPTOR})")
        values = " UNION ALL ".join(f"SELECT {at} AS n, '{value}' AS k" for at, value in enumerate(ODD))
        warehouse.sql(
            f"INSERT INTO odd.{name} SELECT /*+ COALESCE(1) */ n * 10 + id, 'v', k FROM ({values})"
            " CROSS JOIN (SELECT explode(array(0, 1)) AS id)"
        )
    before = {name: warehouse.rows(f"odd.{name}") for name in kinds}

    done = warehouse.purge(warehouse.root("odd"), warehouse.ids, "odd")

    assert done.status == "done" and done.gaps == [], [table for table in done.tables if table.failed or table.error]
    for name in kinds:
        assert warehouse.rows(f"odd.{name}") == [row for row in before[name] if row[0] % 10 or row[0] >= 100], name
    assert done.rows_erased == 10 * len(kinds)


def test_rows_in_sub_directories_go(warehouse: Warehouse) -> None:
    """As Hive on Tez leaves them after UNION ALL, in each format."""
    warehouse.sql("CREATE DATABASE deep")
    for name, serde in SERDES.items():
        warehouse.sql(
            f"CREATE TABLE deep.{name} (id BIGINT, v STRING) PARTITIONED BY (k INT) {serde}"
            f" TBLPROPERTIES ({DESCRIPTOR})",
            f"INSERT INTO deep.{name} SELECT /*+ COALESCE(1) */ id, 'v', 1 FROM range(0, 100)",
        )
        home = Path(warehouse.home_of(f"deep.{name}")) / "k=1"
        below = home / "HIVE_UNION_SUBDIR_1"
        below.mkdir()
        for path in [path for path in home.iterdir() if path.is_file() and not path.name.startswith((".", "_"))]:
            path.rename(below / path.name)

    done = warehouse.purge(warehouse.root("deep"), warehouse.ids, "deep")

    assert (done.status, done.rows_erased, done.gaps) == ("done", 10 * len(SERDES), [])
    for conf, value in DEEP.items():
        warehouse.session.conf.set(conf, value)
    for name in SERDES:
        assert {row[0] for row in warehouse.rows(f"deep.{name}")} == {id for id in range(100) if id % 10}, name


def test_what_a_search_does_not_read_is_named(warehouse: Warehouse) -> None:
    warehouse.sql(
        "CREATE DATABASE unread",
        f"CREATE TABLE unread.t (id BIGINT, k INT) USING parquet PARTITIONED BY (k) TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO unread.t SELECT /*+ COALESCE(1) */ id, int(id DIV 50) FROM range(0, 200)",
    )
    home = Path(warehouse.home_of("unread.t"))
    for name, below in (("k=1", "deep"), ("k=2", ".hive-staging_1/deep"), ("k=3", "_temporary")):
        (home / name / below).mkdir(parents=True)
        (path,) = (home / name).glob("*.parquet")
        path.rename(home / name / below / path.name)
    (home / "k=0" / "_SUCCESS").write_bytes(b"")
    done = warehouse.purge(warehouse.root("unread"), warehouse.ids, "unread")
    assert {gap["table"] for gap in done.gaps} == {"unread.t/k=1", "unread.t/k=2", "unread.t/k=3"}
    assert "sub-directories" in done.gaps[0]["reason"] and "no reader" in done.gaps[1]["reason"]
    assert done.rows_erased == 5


def test_rows_in_files_that_are_named_like_sidecars_and_marks_are_named(warehouse: Warehouse) -> None:
    warehouse.sql(
        "CREATE DATABASE crc",
        f"CREATE TABLE crc.t (id BIGINT, k INT) USING parquet PARTITIONED BY (k) TBLPROPERTIES ({DESCRIPTOR})",
        "INSERT INTO crc.t SELECT /*+ COALESCE(1) */ id, int(id DIV 25) FROM range(0, 125)",
        f"CREATE TABLE crc.small (id BIGINT) STORED AS TEXTFILE TBLPROPERTIES ({DESCRIPTOR})",
    )
    home, small = Path(warehouse.home_of("crc.t")), Path(warehouse.home_of("crc.small"))
    names = "rows._COPYING_", "rows.crc", ".rows.crc", "_rows.crc", "_committed_1.parquet"
    for name, called in enumerate(names):
        (path,) = (home / f"k={name}").glob("part-*")
        path.rename(path.with_name(called))
    assert list(home.glob("k=2/.part-*.crc")), "of a file that is gone: no rows are in it"
    (small / "a.crc").write_text("10\n")
    root = warehouse.root("crc")
    done = warehouse.purge(root, warehouse.ids, "crc")
    assert done.rows_erased == 3 and {gap["table"]: gap["reason"].partition(": ")[2] for gap in done.gaps} == {
        "crc.t/k=0": "files in sub-directories, or named *._COPYING_, such as rows._COPYING_",
        "crc.t/k=2": "files that no reader reads as rows: .rows.crc",
        "crc.t/k=3": "files that no reader reads as rows: _rows.crc",
        "crc.t/k=4": "files that no reader reads as rows: _committed_1.parquet",
    }
    (small / ".old").write_text("10\n")
    found = warehouse.certify(root, PurgeOptions(warehouse.ids, "crc.small", "privacy.column"), expedited=True)
    assert [each["path"] for each in found.holding] == [str(small / ".old")], found


def test_files_of_which_readers_miss_rows_are_named(warehouse: Warehouse) -> None:
    """Hive's reader of RCFiles finds none in one that is packed with bzip2."""
    warehouse.sql(
        "CREATE DATABASE missed",
        f"CREATE TABLE missed.t (id BIGINT, v STRING) STORED AS RCFILE TBLPROPERTIES ({DESCRIPTOR})",
        "SET hive.exec.compress.output=true",
        "SET mapreduce.output.fileoutputformat.compress.codec=org.apache.hadoop.io.compress.BZip2Codec",
        "INSERT INTO missed.t SELECT /*+ COALESCE(1) */ id, 'v' FROM range(0, 12)",
        "RESET hive.exec.compress.output",
        "RESET mapreduce.output.fileoutputformat.compress.codec",
    )
    assert warehouse.rows("missed.t") == []
    done = warehouse.purge(warehouse.root("missed"), warehouse.ids, "missed")
    assert [gap["table"] for gap in done.gaps] == ["missed.t"] and "bzip2" in done.gaps[0]["reason"]


def test_a_table_that_is_one_file_is_told(warehouse: Warehouse) -> None:
    """Readers take a file for a location; a directory cannot take its place."""
    warehouse.sql(
        "CREATE DATABASE single",
        f"CREATE TABLE single.t (id BIGINT, v STRING) {SERDES['text']} TBLPROPERTIES ({DESCRIPTOR})",
    )
    file = warehouse.home / "single.csv"
    file.write_text("10,goes\n11,stays\n")
    table = warehouse.metastore.table("single", "t")
    assert table.storage
    storage = msgspec.structs.replace(table.storage, location=f"file:{file}")
    warehouse.metastore.alter_table("single", "t", msgspec.structs.replace(table, storage=storage))
    assert len(warehouse.rows("single.t")) == 2
    done = warehouse.purge(warehouse.root("single"), warehouse.ids, "single")
    ((unit,),) = (table.units for table in done.tables)
    assert done.status == "partial" and unit["state"] == "SKIPPED" and "a file" in unit["reason"], done.tables
    assert file.read_text() == "10,goes\n11,stays\n"


@pytest.mark.parametrize("stored", ["PARQUET", "RCFILE"])
def test_new_directories_have_the_rights_of_the_old_ones(warehouse: Warehouse, stored: str) -> None:
    warehouse.sql(
        f"CREATE DATABASE rights_{stored}",
        f"CREATE TABLE rights_{stored}.t (id BIGINT) PARTITIONED BY (k INT) STORED AS {stored}"
        f" TBLPROPERTIES ({DESCRIPTOR})",
        f"INSERT INTO rights_{stored}.t SELECT /*+ REPARTITION(2) */ id, 1 FROM range(0, 30)",
    )
    home = Path(warehouse.home_of(f"rights_{stored}.t"))
    files = [path for path in (home / "k=1").iterdir() if path.name.startswith("part-")]
    for path, mode in {home: 0o2770, home / "k=1": 0o2750, **dict.fromkeys(files, 0o640)}.items():
        os.chown(path, 4711, 4712)
        path.chmod(mode)
        os.setxattr(path, "user.team", b"risk")

    done = warehouse.purge(warehouse.root(f"rights_{stored}"), warehouse.ids, f"rights_{stored}")

    assert done.status == "done", done
    (unit,) = done.tables[0].units
    new, aside = (Path(unit[each].removeprefix("file:")) for each in ("new", "aside"))
    written = [path for path in new.iterdir() if path.name.startswith("part-")]
    assert written and new == home / "k=1" and aside.parent.parent == home
    assert {path.name for path in written} == {path.name for path in files}
    assert not [path for path in home.glob("_purge-*") if path != aside.parent]
    directories = {aside.parent: 0o2770, home: 0o2770, aside: 0o2750, new: 0o2750}
    for path, mode in {**directories, **dict.fromkeys([*written, *aside.glob("part-*")], 0o640)}.items():
        status = path.stat()
        found = (status.st_mode & 0o7777, status.st_uid, status.st_gid, os.getxattr(path, "user.team"))
        assert found == (mode, 4711, 4712, b"risk"), path
