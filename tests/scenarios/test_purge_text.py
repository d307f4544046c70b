"""Text of tables that a purge reads: none of it becomes a statement's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from purges import DESCRIPTOR, Warehouse

from replicator.cli.main import run
from replicator.core.model import Column
from replicator.core.text import quoted_name, quoted_text
from replicator.lifecycle.purge.matching import struct_fields
from replicator.lifecycle.purge.options import onboard

SECRET = "the diary of somebody else"


@pytest.fixture(scope="module")
def warehouse(warehouse: Warehouse) -> Warehouse:
    warehouse.sql(
        "CREATE TABLE default.diary (line STRING)",
        f"INSERT INTO default.diary VALUES ('{SECRET}')",
        "CREATE DATABASE h",
        "CREATE TABLE h.gone AS SELECT '2026-01-01' AS member, '2026-01-01' AS `mem``ber`",
    )
    return warehouse


def schema(type_: Any) -> dict[str, str]:
    fields = [{"name": "id", "type": type_, "nullable": True, "metadata": {}}]
    return {"spark.sql.sources.schema": json.dumps({"type": "struct", "fields": fields})}


def change(warehouse: Warehouse, name: str, properties: dict[str, str]) -> None:
    table = warehouse.metastore.table("h", name)
    parameters = {**table.parameters, **properties}
    warehouse.metastore.alter_table("h", name, msgspec.structs.replace(table, parameters=parameters))


def test_no_table_reads_another_by_its_types_and_names(warehouse: Warehouse) -> None:
    """What their own statements read would be reported: as an id that does not fit, or as an error of Spark."""
    type_ = "date) AS key FROM replicator_purge_ids UNION ALL SELECT line, CAST(null AS date) FROM diary -- "
    column = "line` as key from diary t where raise_error(line) is null) m group by 1, 2 -- "
    quoted = "`" + column.replace("`", "``") + "`"
    warehouse.sql(
        f"CREATE TABLE h.type (id STRING) USING parquet TBLPROPERTIES ({DESCRIPTOR})",
        "CREATE TABLE h.column (id STRING) STORED AS PARQUET TBLPROPERTIES"
        f" ('dataset.descriptor'='{json.dumps({'privacy': {'column': quoted}})}')",
    )
    change(warehouse, "type", schema(type_))
    table = warehouse.metastore.table("h", "column")
    storage = msgspec.structs.replace(table.storage, columns=(Column(column, "string"),))  # type: ignore[type-var]
    warehouse.metastore.alter_table("h", "column", msgspec.structs.replace(table, storage=storage))

    done = warehouse.purge(warehouse.root("hostile"), "h.gone:member", "h.type|column")

    assert SECRET not in msgspec.json.encode(done).decode()
    assert [(gap["table"], gap["invalid"]) for gap in done.gaps] == [("h.type", True)]
    assert [(table.table, table.error) for table in done.tables] == [("h.column", "")]
    warehouse.metastore.drop_table("h", "type")


def test_a_schema_that_is_none_is_a_gap_of_its_table_alone(warehouse: Warehouse) -> None:
    warehouse.sql(f"CREATE TABLE h.s (id STRING) USING parquet TBLPROPERTIES ({DESCRIPTOR})")
    parts = {"spark.sql.sources.schema": "", "spark.sql.sources.schema.numParts": "2"}
    for wrong in (
        schema({"type": "struct"}),
        schema(["long"]),
        schema("long> --"),
        schema("variant"),
        {"spark.sql.sources.schema": "{"},
        {"spark.sql.sources.schema": '"text"'},
        parts,
        {**parts, "spark.sql.sources.schema.numParts": "many"},
    ):
        change(warehouse, "s", wrong)
        gap = onboard(warehouse.metastore.table("h", "s"), "privacy.column")
        assert getattr(gap, "invalid", False), (wrong, gap)
    warehouse.metastore.drop_table("h", "s")


def test_quoted_text_is_what_it_was(warehouse: Warehouse) -> None:
    """Whatever letters it has, and whatever its Spark is set to."""
    odd = "a`b'c\"d\\e${spark.app.name}\n\t\x01\U000e0001\U0001f600é -- /* */ ;"
    settings = {
        "spark.sql.parser.escapedStringLiterals": "true",
        "spark.sql.parser.quotedRegexColumnNames": "true",
        "spark.sql.variable.substitute": "true",
    }
    for key, value in settings.items():
        warehouse.session.conf.set(key, value)
    root = warehouse.root("quoted")
    warehouse.sql(
        f"CREATE TABLE h.q (id STRING) USING parquet TBLPROPERTIES ({DESCRIPTOR})", "INSERT INTO h.q VALUES ('2026')"
    )
    warehouse.purge(root, "h.gone:mem`ber", "h.q")
    assert warehouse.sql(f"SELECT {quoted_text(odd)} AS {quoted_name(odd)}") == [(odd,)]
    assert warehouse.session.sql(f"SELECT 1 AS {quoted_name(odd)}").columns == [odd]
    assert list(struct_fields("`a``:,<b`:int,c d:struct<x:decimal(3,1),`y`:int>, E :array<int>")) == [
        ("a`:,<b", "int"),
        ("c d", "struct<x:decimal(3,1),`y`:int>"),
        ("E", "array<int>"),
    ]


def test_a_job_of_the_old_tool_names_the_tables_that_it_named(
    warehouse: Warehouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its properties are Java's; its versions are tables with exact names, and others are tables as any."""
    names = [
        "orders_1",
        "orders_x",
        "customers",
        "orders_staging_2",
        "customers_backup_of_may",
        "a_trash_b",
        "h__orders_1_backup_1600000000000",
    ]
    warehouse.sql("CREATE DATABASE j")
    for name in names:
        warehouse.sql(
            f"CREATE TABLE j.{name} (id STRING) USING parquet TBLPROPERTIES ({DESCRIPTOR})",
            f"INSERT INTO j.{name} VALUES ('2026-01-01'), ('stays')",
        )
    job = tmp_path / "job.properties"
    job.write_bytes(
        b"! \xe9: not UTF-8\r\n# a comment \\\ngobblin.compliance.purger.complianceIdTable:h\\.gone  \n"
        b"  gobblin.compliance.purger.complianceId\\\n   = mem\\u0062er\n"
        b"gobblin.compliance.dataset.whitelist=j.orders_\\\\d+|customers\\\n\t|.*_staging_.*|\\\n\n"
        b"gobblin.compliance.dataset.descriptor.fieldPath privacy.column\n"
    )
    arguments = [
        "purge",
        "run",
        "--metastore",
        warehouse.running.uri,
        "--cmroot",
        warehouse.root("job").place,
        "--properties",
        str(job),
        "--json",
        "--master",
        "local[2]",
    ]

    def purge(*more: str) -> tuple[int, dict[str, Any]]:
        code = run([*arguments, *more])
        return code, json.loads(capsys.readouterr().out)

    code, done = purge()
    assert code == 0, done
    assert [table["table"] for table in done["tables"]] == ["j.customers", "j.orders_1", "j.orders_staging_2"]
    code, done = purge("--table-whitelist", "j")
    assert [table["table"] for table in done["tables"]] == [f"j.{name}" for name in sorted(names[:-1])]
    assert code == 0 and done["rows_erased"] == 3
    assert warehouse.rows("j.h__orders_1_backup_1600000000000") == [("2026-01-01",), ("stays",)]

    job.write_text("gobblin.compliance.dataset.whitelist=\\u12")
    assert run(arguments) == 2 and "line 1" in capsys.readouterr().out


def lines_at(warehouse: Warehouse, table: str) -> list[str]:
    (path,) = Path(warehouse.home_of(table)).glob("*.csv")
    return path.read_text().splitlines()


def test_headers_and_footers_stay_where_hive_skips_them(warehouse: Warehouse, tmp_path: Path) -> None:
    """Spark reads them as rows, and finds ids in them."""
    warehouse.sql("CREATE TABLE h.people AS SELECT explode(array('7', 'id')) AS member")
    texts = {"header": "id,name\n7,ann\n8,bob\ntotal,2\n", "person": "7,ann\n7,eve\n8,bob\nend,1\n"}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.csv").write_text(text)
        warehouse.sql(
            f"CREATE TABLE h.{name} (id STRING, name STRING) ROW FORMAT DELIMITED FIELDS TERMINATED BY ','"
            f" LOCATION '{tmp_path / name}' TBLPROPERTIES ({DESCRIPTOR},"
            " 'skip.header.line.count'='1', 'skip.footer.line.count'='1')"
        )
    warehouse.sql("CREATE TABLE h.sevens AS SELECT '7' AS member")

    done = warehouse.purge(warehouse.root("around"), "h.sevens:member", "h.header")
    assert done.status == "done" and done.rows_erased == 1, done
    assert lines_at(warehouse, "h.header") == ["id,name", "8,bob", "total,2"]
    parameters = warehouse.metastore.table("h", "header").parameters
    assert parameters["numRows"] == "1", "as Hive counts them"

    for ids, table in (("h.people:member", "h.header"), ("h.sevens:member", "h.person")):
        before = lines_at(warehouse, table)
        done = warehouse.purge(warehouse.root("around"), ids, table)
        (unit,) = done.tables[0].units
        assert unit["state"] == "SKIPPED" and "a line of its header or footer" in unit["reason"], unit
        assert lines_at(warehouse, table) == before
