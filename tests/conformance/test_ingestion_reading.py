"""Databases as ingestion reads them: a real PostgreSQL and a real MariaDB, by their drivers in one Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import mariadb
import msgspec
import psycopg
import pyarrow.parquet as pq
import pytest
from mariadb import MariaDb
from postgres import Postgres
from pyspark import SparkContext
from waiting import CEILING, eventually

from replicator.core.engine import Engine, LocalEngine
from replicator.core.source_config import SourceConfig
from replicator.core.spark import SparkEngine, forget_dead_gateway, hive_settings
from replicator.errors import Error, SourceLocked, SourceRefused, SourceUnreachable, TypeRefused
from replicator.ingestion.ingestion_request import Split
from replicator.ingestion.reading.figures import differences, landed_figures
from replicator.ingestion.reading.source import SourceDatabase, opened
from replicator.ingestion.reading.source_errors import Patience, classify, driver_jars, said
from replicator.ingestion.reading.source_table import ONE, ForeignKey, Ranges, SourceColumn, SourceTable
from replicator.metastore.embedded.server_process import free_port
from replicator.metastore.java import find_java, spark_environment

PASSWORD = "REPLICATOR_TEST_SOURCE"
POSTGRES_PASSWORD = "not asked for, and not told"
PATIENCE = Patience(login=240, lock=240, answer=240)
IMPATIENT = Patience(login=240, lock=1, answer=240)
ROWS = 100_000


@pytest.fixture(scope="module")
def engine() -> Iterator[SparkEngine]:
    """In a JVM of its own: where another Spark has been, the driver cannot read what executors say of a source; and
    Sparks after it would have its settings."""
    end_jvm()
    java = find_java(os.environ)
    sources = [SourceConfig("jdbc:postgresql://h/d"), SourceConfig("jdbc:mysql://h/d")]
    jars = ",".join(map(str, driver_jars(sources, java, os.environ)))
    settings = {"spark.sql.session.timeZone": "America/Lima", "spark.sql.catalogImplementation": "in-memory"}
    spark = SparkEngine("local[2]", settings | {"spark.jars": jars}, spark_environment(java))
    yield spark
    spark.stop()
    end_jvm()


def end_jvm() -> None:
    if gateway := SparkContext._gateway:
        gateway.proc.kill()
        gateway.proc.wait()
        forget_dead_gateway()


@pytest.fixture(scope="module")
def session(engine: SparkEngine) -> Any:
    return engine._session()


class Pg:
    """A database of its own, as a source."""

    def __init__(self, server: Postgres) -> None:
        self.url = server.database()
        path, port = urlsplit(self.url), server.port
        self.source = SourceConfig(
            f"jdbc:postgresql://127.0.0.1:{port}{path.path}", "postgres", f"env:{PASSWORD}", fetch=1000
        )

    def sql(self, text: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(text)  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def pg(postgres: Postgres) -> Pg:
    if postgres.port is None:
        pytest.skip("somebody else's PostgreSQL")
    return Pg(postgres)


@pytest.fixture(scope="module")
def maria(mariadb_server: MariaDb) -> MariaDb:
    return mariadb_server


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, POSTGRES_PASSWORD)
    monkeypatch.setenv(PASSWORD + "_MARIADB", mariadb.PASSWORD)


def of_mariadb(server: MariaDb, db: str, kind: str = "mariadb") -> SourceConfig:
    return SourceConfig(server.url(db, kind), server.user, f"env:{PASSWORD}_MARIADB")


def landed(
    database: SourceDatabase,
    table: SourceTable,
    ranges: Ranges,
    place: Path,
    format_: str = "parquet",
    engine: Engine = LocalEngine(2),  # noqa: B008
) -> list[int]:
    """Writes the table, compares its figures, and returns how many rows each reader had."""
    with database.snapshot(table.schema, table.name) as snapshot:
        expected = database.figures(table, snapshot)
        frame = database.frame(table, ranges, snapshot)
        frame.write.format(format_).save(str(place))
    assert differences(expected, landed_figures(engine, str(place), table.columns, format_)) == []
    assert format_ == "orc" or frame.schema.simpleString() == f"struct<{','.join(map(described, table.columns))}>"
    return [pq.read_metadata(file).num_rows for file in place.glob("*.parquet")]


def described(column: SourceColumn) -> str:
    return f"{column.name}:{column.type}"


# ---- ranges -------------------------------------------------------------------------------------------------------


SKEWED = {
    "near": "CASE WHEN i = 7 THEN 0 ELSE 100 + round(((random() + random() + random() - 1.5) * 4)::numeric)::int END",
    "sentinel": "CASE WHEN random() < 0.3 THEN 0 ELSE (random() * 1e6)::int END",
    "real": "CASE WHEN i = 7 THEN 'NaN' ELSE 100 + random() END::float8",
    "label": "CASE WHEN i % 10 = 0 THEN NULL ELSE chr(97 + i % 3) || repeat('é''\\;', i % 2) || i % 50 END",
    "day": "CASE WHEN i % 3 = 0 THEN DATE '9999-12-31' ELSE DATE '2020-01-01' + i % 700 END",
    "code": "md5(i::text)::uuid",
}


def test_skewed_columns_are_read_in_equal_shares_each_row_once(
    session: Any, engine: SparkEngine, pg: Pg, tmp_path: Path
) -> None:
    columns = ", ".join(f"{sql} AS {name}" for name, sql in SKEWED.items())
    pg.sql(f"CREATE TABLE skewed AS SELECT i AS id, {columns} FROM generate_series(1, {ROWS}) i")
    pg.sql("ALTER TABLE skewed ADD PRIMARY KEY (id)")
    with opened(session, "crm", pg.source, PATIENCE) as database:
        table = database.table("public", "skewed")
        for name in ("id", *SKEWED):
            ranges = database.ranges(table, Split(name), 8)
            counts = counted(database, table, ranges)
            assert len(counts) == 8 and sum(counts) == ROWS, name
            assert max(counts) <= 1.5 * ROWS / 8, (name, counts)
        counts = landed(database, table, database.ranges(table, Split("near"), 8), tmp_path / "t", engine=engine)
        assert sum(counts) == ROWS and max(counts) <= 1.5 * ROWS / 8
        assert database.ranges(table, Split(), 8).column == "id"
        assert database.ranges(table, Split(readers=1), 8) == ONE
        assert database.ranges(table, Split("id"), 8, "id < 10") == ONE


def counted(database: SourceDatabase, table: SourceTable, ranges: Ranges) -> list[int]:
    """Rows of each predicate, by the database itself."""
    name = database.dialect.name
    asked = ", ".join(f"sum(CASE WHEN {predicate} THEN 1 ELSE 0 END)" for predicate in ranges.predicates)
    hidden = ", ".join(f"{sql} AS {name(alias)}" for alias, sql in ranges.hidden)
    (counts,) = database.control.rows(f"SELECT {asked} FROM (SELECT {hidden} FROM {name(table.schema, table.name)}) t")
    return [int(count or 0) for count in counts]


def test_mariadb_is_read_in_equal_shares_too_by_either_name(session: Any, maria: MariaDb, tmp_path: Path) -> None:
    db = maria.database()
    maria.sql(
        "CREATE TABLE skewed (id INT PRIMARY KEY, near INT, gross FLOAT, label VARCHAR(20) CHARACTER SET latin1,"
        " day DATE NOT NULL, at DATETIME(6)); SET sql_mode = '';"
        " INSERT INTO skewed SELECT seq, IF(seq = 7, 0, 100 + ROUND(4 * (RAND() + RAND() - 1))), RAND(),"
        " IF(seq % 10 = 0, NULL, CONCAT('é''\\\\', seq % 50)),"
        " IF(seq % 3 = 0, '0000-00-00', '2020-01-01' + INTERVAL seq DAY),"
        " IF(seq % 2, '9999-12-31', NOW(6) - INTERVAL seq MINUTE) FROM seq_1_to_20000;"
        " CREATE TABLE keyless AS SELECT * FROM skewed",
        db,
    )
    source = of_mariadb(maria, db, "mysql")
    with opened(session, "shop", source, PATIENCE) as database:
        for table in (database.table(db, "skewed"), database.table(db, "keyless")):
            for name in ("near", "gross", "label", "day", "at"):
                counts = counted(database, table, database.ranges(table, Split(name), 8))
                assert len(counts) == 8 and sum(counts) == 20_000, name
                assert max(counts) <= 1.5 * 20_000 / 8, (name, counts)
        table = database.table(db, "skewed")
        assert sum(landed(database, table, database.ranges(table, Split("near"), 4), tmp_path / "t")) == 20_000


# ---- one moment ---------------------------------------------------------------------------------------------------


def test_all_readers_and_figures_see_one_moment_of_postgresql(session: Any, pg: Pg, tmp_path: Path) -> None:
    pg.sql("CREATE TABLE moving AS SELECT i AS id, i AS amount FROM generate_series(1, 5000) i")
    with opened(session, "crm", pg.source, PATIENCE) as database:
        table = database.table("public", "moving")
        ranges = database.ranges(table, Split("id"), 4)
        with database.snapshot("public", "moving") as snapshot:
            assert snapshot.consistent
            before = database.figures(table, snapshot)
            pg.sql("UPDATE moving SET id = 5001 - id, amount = amount + 1")  # from each range to another
            pg.sql("INSERT INTO moving SELECT i, i FROM generate_series(-100, 9000, 7) i")
            assert database.figures(table, snapshot) == before
            database.frame(table, ranges, snapshot).write.parquet(str(tmp_path / "t"))
        copied = landed_figures(LocalEngine(2), str(tmp_path / "t"), table.columns)
        assert differences(before, copied) == []
        now = database.figures(table)
        assert differences(copied, now)[0] == f"5,000 rows in the source, {now.rows:,} in the copy"
        assert [text.split(":")[0] for text in differences(copied, now)[1:]] == ["column amount", "column id"]


@pytest.mark.parametrize(
    "statements",
    [
        ["TRUNCATE {t}", "INSERT INTO {t} SELECT i, i FROM generate_series(1, 5000) i"],
        ["CREATE TABLE {t}_new AS TABLE {t}", "ALTER TABLE {t} RENAME TO {t}_old", "ALTER TABLE {t}_new RENAME TO {t}"],
        ["ALTER TABLE {t} ALTER amount TYPE bigint"],
    ],
    ids=["emptied", "swapped", "rewritten"],
)
def test_a_table_that_another_transaction_replaces_is_read_as_it_is_then(
    session: Any, pg: Pg, statements: list[str], request: pytest.FixtureRequest
) -> None:
    t = f"reload_{request.node.callspec.id}"
    pg.sql(f"CREATE TABLE {t} AS SELECT i AS id, i AS amount FROM generate_series(1, 5000) i")
    if "ALTER" not in statements[0]:
        pg.sql(f"CREATE VIEW {t}_shown AS TABLE {t}")
    names = [t, *([f"{t}_shown"] if "TRUNCATE" in statements[0] else [])]
    for name in names:
        with psycopg.connect(pg.url) as other, ThreadPoolExecutor(1) as pool:
            for each in statements:
                other.execute(each.format(t=t))  # type: ignore[call-overload]

            def read(name: str = name) -> tuple[int, int]:
                with (
                    opened(session, "crm", pg.source, PATIENCE) as database,
                    database.snapshot("public", name) as snapshot,
                ):
                    table = database.table("public", name)
                    ranges = database.ranges(table, Split("id"), 4)
                    return database.figures(table, snapshot).rows, database.frame(table, ranges, snapshot).count()

            asked = pool.submit(read)
            _await(pg, "SELECT count(*) FROM pg_locks WHERE NOT granted")
            other.commit()
            assert asked.result() == (5000, 5000), name


def _await(pg: Pg, query: str) -> None:
    """Until it gives another number than 0."""
    with psycopg.connect(pg.url, autocommit=True) as connection:
        eventually(lambda: (connection.execute(query).fetchone() or (0,))[0], lambda: query)  # type: ignore[call-overload]


def test_rows_and_columns_that_its_user_does_not_see_are_an_error(
    session: Any, pg: Pg, maria: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    pg.sql("CREATE TABLE people AS SELECT i AS id, 'CH' AS country FROM generate_series(1, 9) i")
    pg.sql("DROP ROLE IF EXISTS seldom; CREATE ROLE seldom LOGIN; GRANT SELECT ON people TO seldom")
    pg.sql("ALTER TABLE people ENABLE ROW LEVEL SECURITY; CREATE POLICY few ON people USING (id < 5)")
    seldom = msgspec.structs.replace(pg.source, user="seldom")
    with opened(session, "crm", seldom, PATIENCE) as database, pytest.raises(SourceRefused, match="row-level security"):
        database.figures(database.table("public", "people"))
    with opened(session, "crm", pg.source, PATIENCE) as database:
        assert database.figures(database.table("public", "people")).rows == 9, "who sees all rows reads all"
    maria.sql(
        "CREATE DATABASE part; CREATE TABLE part.t (id INT, secret INT); "
        "CREATE USER seldom@'%' IDENTIFIED BY 'seldom'; GRANT SELECT (id) ON part.t TO seldom@'%'"
    )
    monkeypatch.setenv(PASSWORD + "_SELDOM", "seldom")
    few = msgspec.structs.replace(of_mariadb(maria, "part"), user="seldom", password=f"env:{PASSWORD}_SELDOM")
    with opened(session, "crm", few, PATIENCE) as database, pytest.raises(SourceRefused, match=r"(?i)denied"):
        database.table("part", "t")


def test_rows_of_a_view_are_cut_by_values_only(session: Any, pg: Pg) -> None:
    pg.sql("CREATE TABLE ev AS SELECT i AS id, 'n' || i AS name FROM generate_series(1, 5000) i")
    pg.sql("CREATE VIEW stamped AS SELECT 1 AS kind, id, name, clock_timestamp() AS read_at FROM ev")
    with opened(session, "crm", pg.source, PATIENCE) as database, database.snapshot("public", "stamped") as snapshot:
        table = database.table("public", "stamped")
        assert database.ranges(table, Split("kind"), 4) == ONE
        ranges = database.ranges(table, Split("id"), 4)
        assert len(ranges.predicates) == 4
        assert database.frame(table, ranges, snapshot).select("name").distinct().count() == 5000


def test_increments_are_those_behind_a_mark(session: Any, pg: Pg, maria: MariaDb) -> None:
    pg.sql("CREATE TABLE marked AS SELECT i AS id, timestamp '2020-01-01' + i * interval '1s' AS at,"
           " 'a\\'' b' || i AS word, (1234560 + i)::real AS part FROM generate_series(1, 9) i")  # fmt: skip
    db = maria.database()
    maria.sql(
        "CREATE TABLE marked (id INT, at DATETIME(3), word VARCHAR(20) COLLATE utf8mb4_unicode_ci, part FLOAT);"
        " INSERT INTO marked SELECT seq, '2020-01-01' + INTERVAL seq SECOND, CONCAT('a\\\\'' b', seq), 1234560 + seq"
        " FROM seq_1_to_9",
        db,
    )
    mysql = of_mariadb(maria, db)
    for source, schema in ((pg.source, "public"), (mysql, db)):
        with opened(session, "any", source, PATIENCE) as database:
            table = database.table(schema, "marked")
            for column in ("id", "at", "word", "part"):
                mark = database.greatest(table, column, "id < 7")
                assert mark is not None
                assert database.figures(table, where=database.after(table, column, mark)).rows == 3, mark
                assert database.figures(table, where=database.after(table, column, mark, same=True)).rows == 4, mark
            assert database.greatest(table, "id", "id > 99") is None


# ---- types --------------------------------------------------------------------------------------------------------

POSTGRES_TYPES: dict[str, tuple[str, str, str, object]] = {
    # declared, a value, in the warehouse, what arrives
    "a_small": ("smallint", "-32768", "smallint", -32768),
    "a_big": ("bigint", "9223372036854775807", "bigint", 2**63 - 1),
    "a_real": ("real", "'1e-7'", "float", "1.0E-7"),
    "a_double": ("double precision", "'NaN'", "double", "NaN"),
    "an_exact": ("numeric(12,3)", "-1.5", "decimal(12,3)", "-1.500"),
    "a_round": ("numeric(5,-2)", "12345", "decimal(7,0)", "12300"),
    "a_free": ("numeric", "12345678901234567890.000000000000000001", "decimal(38,18)",
               "12345678901234567890.000000000000000001"),
    "a_price": ("money", "'1234.56'", "decimal(19,2)", "1234.56"),
    "a_flag": ("boolean", "true", "boolean", "true"),
    "a_text": ("text", "E'\\\\ '' é'", "string", "\\ ' é"),
    "a_char": ("char(5)", "'ab'", "string", "ab"),
    "a_varchar": ("varchar(5)", "'ab '", "string", "ab "),
    "a_mood": ("mood", "'so so'", "string", "so so"),
    "a_domain": ("cents", "5", "decimal(10,2)", "5.00"),
    "an_id": ("uuid", "'00000000-0000-0000-0000-00000000000a'", "string", "00000000-0000-0000-0000-00000000000a"),
    "a_json": ("json", """'{"a": 1}'""", "string", '{"a": 1}'),
    "a_jsonb": ("jsonb", """'{"a":1}'""", "string", '{"a": 1}'),
    "some_bytes": ("bytea", "'\\x00ff'", "binary", "00FF"),
    "some_bits": ("bit(3)", "'101'", "string", "101"),
    "a_host": ("inet", "'10.0.0.1/8'", "string", "10.0.0.1/8"),
    "a_list": ("numeric[]", "'{{1,2},{3,NULL}}'", "string", "[[1,2],[3,null]]"),
    "a_range": ("int4range", "'[1,5)'", "string", "[1,5)"),
    "a_span": ("interval", "'1 day 2 hours'", "string", "P1DT2H"),
    "a_time": ("time", "'23:59:59.999999'", "string", "23:59:59.999999"),
    "a_zoned": ("timetz", "'12:00+02'", "string", "12:00:00+02"),
    "a_day": ("date", "'infinity'", "date", "9999-12-31"),
    "an_old_day": ("date", "'0001-01-01'", "date", "0001-01-01"),
    "an_hour": ("timestamp", "'1900-01-01 02:30:00.123456'", "timestamp", "1900-01-01 02:30:00.123456"),
    "no_end": ("timestamp", "'infinity'", "timestamp", "9999-12-31 23:59:59.999"),
    "a_moment": ("timestamptz", "'2020-06-01 00:00:00+02'", "timestamp", "2020-05-31 22:00:00"),
}  # fmt: skip


def values(frame: Any, columns: tuple[SourceColumn, ...]) -> list[tuple[str | None, ...]]:
    """As texts: times in UTC, bytes in hex."""
    wanted = []
    for column in columns:
        sql = {"timestamp": f"to_utc_timestamp({column.name}, 'America/Lima')", "binary": f"hex({column.name})"}
        wanted.append(f"cast({sql.get(column.type, column.name)} AS string)")
    return [tuple(row) for row in frame.selectExpr(*wanted).collect()]


def test_types_of_postgresql_are_landed_as_the_table_says(session: Any, pg: Pg, tmp_path: Path) -> None:
    pg.sql("CREATE TYPE mood AS ENUM ('so so', 'well'); CREATE DOMAIN cents AS numeric(10,2) CHECK (VALUE > 0)")
    pg.sql(f"CREATE TABLE kinds ({', '.join(f'{name} {each[0]}' for name, each in POSTGRES_TYPES.items())})")
    pg.sql(f"INSERT INTO kinds VALUES ({', '.join(each[1] for each in POSTGRES_TYPES.values())})")
    pg.sql("INSERT INTO kinds VALUES (NULL)")
    with opened(session, "crm", pg.source, PATIENCE) as database:
        table = database.table("public", "kinds")
        assert {column.name: column.type for column in table.columns} == {
            name: each[2] for name, each in POSTGRES_TYPES.items()
        }
        full, empty = values(database.frame(table, ONE, None), table.columns)
        arrived = dict(zip(POSTGRES_TYPES, full, strict=True))
        assert arrived == {name: str(each[3]) for name, each in POSTGRES_TYPES.items()}
        assert set(empty) == {None}
        for format_ in ("parquet", "orc"):
            landed(database, table, ONE, tmp_path / format_, format_)


MARIADB_TYPES: dict[str, tuple[str, str, str, object]] = {
    "a_tiny": ("tinyint(1)", "-7", "tinyint", -7),
    "a_tiny_plus": ("tinyint unsigned", "255", "smallint", 255),
    "an_int_plus": ("int unsigned", "4294967295", "bigint", 2**32 - 1),
    "a_big_plus": ("bigint unsigned", "18446744073709551615", "decimal(20,0)", 2**64 - 1),
    "an_exact": ("decimal(38,10)", "1.5", "decimal(38,10)", "1.5000000000"),
    "a_float": ("float", "16777215", "float", "1.6777215E7"),
    "a_double": ("double", "1e-300", "double", "1.0E-300"),
    "a_flag": ("bit(1)", "b'1'", "boolean", "true"),
    "some_bits": ("bit(3)", "b'101'", "bigint", 5),
    "all_bits": ("bit(64)", "~0", "decimal(20,0)", 2**64 - 1),
    "a_year": ("year", "2020", "int", 2020),
    "a_text": ("varchar(20)", "'é \\\\ \\''", "string", "é \\ '"),
    "a_latin": ("text character set latin1", "'é'", "string", "é"),
    "a_mood": ("enum('so so','well')", "'well'", "string", "well"),
    "a_json": ("json", """'{"a": 1}'""", "string", '{"a": 1}'),
    "some_bytes": ("varbinary(9)", "x'00ff'", "binary", "00FF"),
    "a_time": ("time", "'-838:59:59'", "string", "-838:59:59"),
    "a_day": ("date", "'1000-01-01'", "date", "1000-01-01"),
    "no_day": ("date", "'0000-00-00'", "date", None),
    "an_hour": ("datetime(6)", "'2021-03-28 02:30:00.123456'", "timestamp", "2021-03-28 02:30:00.123456"),
    "no_hour": ("datetime", "'2020-00-00'", "timestamp", None),
    "a_moment": ("timestamp null", "'2020-06-01 00:00:00'", "timestamp", "2020-05-31 22:00:00"),
}


def test_types_of_mariadb_are_landed_as_the_table_says(session: Any, maria: MariaDb, tmp_path: Path) -> None:
    db = maria.database()
    maria.sql(
        f"SET sql_mode = ''; SET time_zone = '+02:00';"
        f" CREATE TABLE kinds ({', '.join(f'{name} {each[0]}' for name, each in MARIADB_TYPES.items())});"
        f" INSERT INTO kinds VALUES ({', '.join(each[1] for each in MARIADB_TYPES.values())});"
        f" INSERT INTO kinds VALUES ({', '.join('NULL' for _ in MARIADB_TYPES)})",
        db,
    )
    with opened(session, "shop", of_mariadb(maria, db), PATIENCE) as database:
        table = database.table(db, "kinds")
        assert {column.name: column.type for column in table.columns} == {
            name: each[2] for name, each in MARIADB_TYPES.items()
        }
        full, empty = values(database.frame(table, ONE, None), table.columns)
        expected = {name: None if each[3] is None else str(each[3]) for name, each in MARIADB_TYPES.items()}
        assert dict(zip(MARIADB_TYPES, full, strict=True)) == expected
        assert set(empty) == {None}
        landed(database, table, ONE, tmp_path / "t")


def test_a_type_or_value_that_does_not_fit_is_refused_by_its_column(session: Any, pg: Pg, maria: MariaDb) -> None:
    pg.sql("CREATE TABLE wide (id int, huge numeric(50,2))")
    pg.sql("CREATE TABLE lossy (id int, free numeric, own numeric(5,2), day date)")
    with opened(session, "crm", pg.source, PATIENCE) as database:
        with pytest.raises(TypeRefused, match=r"column huge has the type numeric\(50,2\)") as refused:
            database.table("public", "wide")
        assert classify(refused.value) == "type" and "view" in refused.value.hint
        table = database.table("public", "lossy")
        for column, value in {
            "free": "1e30",
            "free ": "0.0000000000000000001",
            " free": "'NaN'",
            "own": "'NaN'",
            "day": "'0044-03-15 BC'",
        }.items():
            pg.sql(f"DELETE FROM lossy; INSERT INTO lossy (id, {column}) VALUES (1, {value})")
            with pytest.raises(TypeRefused, match=f"column {column.strip()} .* do not fit"):
                database.figures(table)
    db = maria.database()
    maria.sql("CREATE TABLE wide (id INT, huge DECIMAL(65,2)); CREATE TABLE drawn (id INT, place POINT)", db)
    source = of_mariadb(maria, db)
    with opened(session, "shop", source, PATIENCE) as database:
        for name, column in (("wide", "huge"), ("drawn", "place")):
            with pytest.raises(TypeRefused, match=f"column {column} has the type"):
                database.table(db, name)
        maria.sql("CREATE TABLE days (day DATE, hour DATETIME)", db)
        table = database.table(db, "days")
        for column in ("day", "hour"):
            values = "('2020-02-29', '2020-01-31 23:59:59'), (NULL, '0000-00-00'), ('2020-00-05', NULL)"
            maria.sql(f"DELETE FROM days; SET sql_mode = 'ALLOW_INVALID_DATES'; INSERT INTO days VALUES {values}", db)
            assert database.figures(table).counts == {"day": 1, "hour": 1}
            maria.sql(f"SET sql_mode = 'ALLOW_INVALID_DATES'; INSERT INTO days ({column}) VALUES ('2021-02-29')", db)
            with pytest.raises(TypeRefused, match=f"column {column} .* do not fit .*, such as 2021-02-29"):
                database.figures(table)


# ---- names, keys --------------------------------------------------------------------------------------------------


def test_names_are_only_names(session: Any, pg: Pg, maria: MariaDb, tmp_path: Path) -> None:
    odd = 'we"ird `x`; DROP TABLE t -- ? $1 {fn now()} é'
    table = '"' + odd.replace('"', '""') + '"'
    pg.sql(f"CREATE SCHEMA {table}; CREATE TABLE {table}.{table} ({table} text, amount int);"
           f" INSERT INTO {table}.{table} SELECT 'x' || i, i FROM generate_series(1, 2000) i")  # fmt: skip
    db, ticked = maria.database(), "`" + odd.replace("`", "``") + "`"
    maria.sql(f"CREATE TABLE {ticked} ({ticked} TEXT, amount INT); INSERT INTO {ticked}"
              " SELECT CONCAT('x', seq), seq FROM seq_1_to_2000", db)  # fmt: skip
    mysql = of_mariadb(maria, db)
    for source, schema in ((pg.source, odd), (mysql, db)):
        with opened(session, "any", source, PATIENCE) as database:
            found = database.table(schema, odd)
            ranges = database.ranges(found, Split(odd), 2)
            assert len(ranges.predicates) == 2
            assert sum(landed(database, found, ranges, tmp_path / source.kind)) == 2000


def test_keys_are_read_from_the_catalog(session: Any, pg: Pg, maria: MariaDb) -> None:
    made = (
        "CREATE TABLE parents (a INT, b INT NOT NULL, c INT UNIQUE, PRIMARY KEY (b, a));"
        "CREATE TABLE children (id INT NOT NULL, y INT, x INT,"
        " CONSTRAINT own FOREIGN KEY (x, y) REFERENCES parents (b, a))"
    )
    pg.sql(made)
    db = maria.database()
    maria.sql(made, db)
    mysql = of_mariadb(maria, db)
    for source, schema in ((pg.source, "public"), (mysql, db)):
        with opened(session, "any", source, PATIENCE) as database:
            parents, children = database.table(schema, "parents"), database.table(schema, "children")
            assert (parents.primary_key, parents.unique) == (("b", "a"), (("c",),))
            assert children.foreign_keys == (ForeignKey("own", ("x", "y"), schema, "parents", ("b", "a")),)
            assert [column.nullable for column in children.columns] == [False, True, True]


# ---- bad input ----------------------------------------------------------------------------------------------------


def test_what_is_wrong_with_a_request_is_told_apart(
    session: Any, pg: Pg, maria: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    pg.sql('CREATE TABLE plain (id int, doc json); CREATE TABLE twice (a int, "A" int)')
    with opened(session, "crm", pg.source, PATIENCE) as database:
        table = database.table("public", "plain")
        for wrong in (
            lambda: database.table("public", "Plain"),
            lambda: database.ranges(table, Split("nothing"), 4),
            lambda: database.ranges(table, Split("doc"), 4),
            lambda: database.table("public", "twice"),
            lambda: database.figures(table, where="nothing = 1"),
        ):
            with pytest.raises(SourceRefused) as refused:
                wrong()
            assert classify(refused.value) == "user"
        assert POSTGRES_PASSWORD not in repr(database) + repr(database.source)
    monkeypatch.setenv("WRONG", "wrong and secret")
    db = maria.database()
    strangers = (
        SourceConfig(maria.url(db), maria.user, "env:WRONG"),
        of_mariadb(maria, "nothing"),
        msgspec.structs.replace(pg.source, user="nobody else"),
        msgspec.structs.replace(pg.source, url=pg.source.url + "_not"),
    )
    for source in strangers:
        with pytest.raises((SourceRefused, SourceUnreachable)) as refused, opened(session, "any", source, PATIENCE):
            pass
        assert "wrong and secret" not in str(refused.value)
    away = SourceConfig(f"jdbc:postgresql://127.0.0.1:{free_port()}/x", "me")
    with pytest.raises(SourceUnreachable), opened(session, "any", away, PATIENCE):
        pass


def test_a_locked_table_is_waited_for_no_longer_than_asked(session: Any, pg: Pg, maria: MariaDb) -> None:
    pg.sql("CREATE TABLE locked AS SELECT 1 AS id")
    with opened(session, "crm", pg.source, IMPATIENT) as database, psycopg.connect(pg.url) as other:
        table = database.table("public", "locked")
        other.execute("LOCK TABLE locked IN ACCESS EXCLUSIVE MODE")
        for work in (lambda: database.figures(table), lambda: database.frame(table, ONE, None)):
            with pytest.raises(SourceLocked, match="lock timeout"):
                work()
    db = maria.database()
    maria.sql("CREATE TABLE locked (id INT)", db)
    source = of_mariadb(maria, db)
    with opened(session, "shop", source, IMPATIENT) as database, opened(session, "shop", source) as holder:
        table = database.table(db, "locked")
        holder.control.run("LOCK TABLES locked WRITE")
        with pytest.raises(SourceLocked):
            database.figures(table)


def test_a_source_that_dies_in_the_middle_is_a_failed_component(session: Any, pg: Pg, tmp_path: Path) -> None:
    pg.sql("CREATE TABLE dying AS SELECT i AS id FROM generate_series(1, 3000) i")
    with opened(session, "crm", pg.source, PATIENCE) as database:
        table = database.table("public", "dying")
        with database.snapshot("public", "dying") as snapshot, ThreadPoolExecutor(1) as pool:
            slow = database.frame(table, ONE, snapshot, "pg_sleep(0.02) IS NOT NULL")
            written = pool.submit(lambda: slow.write.parquet(str(tmp_path / "t")))
            with psycopg.connect(pg.url, autocommit=True) as other:
                asked = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(0%'"
                ended = asked + " AND pid <> pg_backend_pid()"
                eventually(lambda: other.execute(ended).fetchone() != (0,))  # type: ignore[call-overload]
            failure = written.exception(CEILING)
            assert failure is not None and classify(failure) == "component", said(failure)
            assert "terminating connection" in said(failure)
            pg.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'replicator'")
            with pytest.raises(SourceUnreachable):
                database.figures(table, snapshot)


def test_a_spark_without_a_metastore_is_not_taken_for_one_that_has_it(session: Any) -> None:
    with pytest.raises(Error, match="already running, with another catalog: in-memory"):
        SparkEngine(session=session).session(hive_settings("thrift://127.0.0.1:1", "/nowhere"))
