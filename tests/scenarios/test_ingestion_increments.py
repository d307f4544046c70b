"""Increments of real databases: rows that become visible after greater values of the watermark have landed."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import mariadb
import psycopg
import pytest
from landings import Landing, impatient_landing, rows_at
from mariadb import MariaDb

import replicator
from replicator.errors import UsageError
from replicator.ingestion.landing.increments import Mark, OpenTransactions, match_of
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

APPEND: dict[str, Any] = {"mode": "append", "watermark": "id"}

landing = impatient_landing


def facts(landing: Landing) -> dict[str, Any]:
    """Those of the newest job."""
    (job, *_) = replicator.ingest_ls(config=landing.config).jobs
    return dict(replicator.ingest_show(job.job, config=landing.config).detail.facts)


def ids(landing: Landing, table: str) -> list[Any]:
    return sorted(row[0] for row in landing.rows(table))


def test_a_row_whose_transaction_commits_last_lands_in_its_turn(landing: Landing) -> None:
    landing.sql("CREATE TABLE log (id serial PRIMARY KEY, v text)")
    landing.sql("CREATE TABLE times (id int PRIMARY KEY, at timestamptz DEFAULT now())")
    landing.create_asset()
    with psycopg.connect(landing.url) as open_one:
        open_one.execute("INSERT INTO log (v) VALUES ('one')")
        open_one.execute("INSERT INTO times VALUES (1)")
        landing.sql("INSERT INTO log (v) VALUES ('two')")
        landing.sql("INSERT INTO times VALUES (2)")
        landing.request("times", mode="merge", key="id", watermark="at")
        landing.request("log", **APPEND)

        assert landing.run().status == "done"

        assert (ids(landing, "log"), ids(landing, "times")) == ([], []), "they may not be complete"
        late = facts(landing)["late"]
        assert (late["by"], late["held_back"], len(late["held_by"])) == ("transactions", 1, 1), late
        open_one.commit()
    landing.request("times", mode="merge", key="id", watermark="at")
    landing.request("log", **APPEND)
    done = landing.run()
    assert (done.status, done.rows) == ("done", 4), done
    assert (ids(landing, "log"), ids(landing, "times")) == ([1, 2], [1, 2])
    assert facts(landing)["counted"]["missing"] == 0


def test_rows_before_the_oldest_running_transaction_land(landing: Landing) -> None:
    """And readers, drawn numbers and prepared transactions are told apart."""
    landing.sql("CREATE TABLE log (id serial PRIMARY KEY, v text)")
    landing.sql("INSERT INTO log (v) VALUES ('one')")
    landing.create_asset()
    assert landing.land("log", **APPEND).rows == 1
    with psycopg.connect(landing.url) as reads, psycopg.connect(landing.url) as draws:
        reads.execute("SELECT * FROM log")
        landing.sql("INSERT INTO log (v) VALUES ('two')")
        assert landing.land("log", **APPEND).rows == 1, "who only reads draws no number"
        (drawn,) = draws.execute("SELECT nextval('log_id_seq')").fetchone() or ()
        landing.sql("INSERT INTO log (v) VALUES ('four')")
        assert landing.land("log", **APPEND).rows == 0
        draws.execute("INSERT INTO log VALUES (%s, 'three')", (drawn,))
        draws.commit()
        with psycopg.connect(landing.url) as later:
            later.execute("INSERT INTO log (v) VALUES ('five')")
            landing.sql("INSERT INTO log (v) VALUES ('six')")
            assert landing.land("log", **APPEND).rows == 2, "up to the mark of the landing before"
            assert ids(landing, "log") == [1, 2, 3, 4]
    assert landing.land("log", **APPEND).rows == 2
    assert ids(landing, "log") == [1, 2, 3, 4, 5, 6]


def of_mariadb(landing: Landing, server: MariaDb, monkeypatch: pytest.MonkeyPatch, user: str = "") -> str:
    """Makes MariaDB the source, and returns its database."""
    name = server.database()
    monkeypatch.setenv("REPLICATOR_TEST_MARIADB", mariadb.PASSWORD)
    given = {"url": server.url(name), "user": user or server.user, "password": "env:REPLICATOR_TEST_MARIADB"}
    landing.config = landing.configured(sources={"crm": given}, recount="0s")
    landing.create_asset()
    return name


def request(landing: Landing, db: str, table: str, **more: Any) -> Any:
    replicator.ingest_request(f"crm:{db}.{table}", asset=landing.asset, config=landing.config, by="paul", **more)
    return landing.run()


def landed(landing: Landing, db: str, table: str) -> list[int]:
    return [row[0] for row in landing.warehouse.sql(f"SELECT id FROM {landing.asset}_{db}.{table} ORDER BY id")]


class Session:
    """An open session of MariaDB's client."""

    def __init__(self, server: MariaDb, db: str) -> None:
        line = ["mariadb", "--no-defaults", f"--socket={server.socket}", "-uroot", "--batch", "-N", "--unbuffered", db]
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def sql(self, text: str) -> None:
        """Returns when the statements have been executed."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{text}; SELECT 'over';\n")
        self.process.stdin.flush()
        while self.process.stdout.readline().strip() != "over":
            assert self.process.poll() is None

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def test_innodb_rows_of_transactions_that_commit_late_land(
    landing: Landing, mariadb_server: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = of_mariadb(landing, mariadb_server, monkeypatch)
    mariadb_server.sql("CREATE TABLE log (id int AUTO_INCREMENT PRIMARY KEY, v text)", db)
    session = Session(mariadb_server, db)
    session.sql("BEGIN; INSERT INTO log (v) VALUES ('one')")
    mariadb_server.sql("INSERT INTO log (v) VALUES ('two')", db)

    done = request(landing, db, "log", **APPEND)

    assert (done.status, landed(landing, db, "log")) == ("done", []), done
    session.sql("COMMIT")
    session.close()
    done = request(landing, db, "log", **APPEND)
    assert (done.status, landed(landing, db, "log")) == ("done", [1, 2]), done


def test_a_source_that_hides_its_transactions_is_named_and_counted(
    landing: Landing, mariadb_server: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless its rows are read again: then those of the past land, too."""
    mariadb_server.sql(
        f"CREATE USER IF NOT EXISTS few@'%' IDENTIFIED BY '{mariadb.PASSWORD.replace(chr(39), chr(39) * 2)}'"
    )
    db = of_mariadb(landing, mariadb_server, monkeypatch, "few")
    mariadb_server.sql(
        f"CREATE TABLE log (id int AUTO_INCREMENT PRIMARY KEY, v text); GRANT SELECT ON {db}.* TO few@'%'", db
    )
    session = Session(mariadb_server, db)
    session.sql("BEGIN; INSERT INTO log (v) VALUES ('one')")
    mariadb_server.sql("INSERT INTO log (v) VALUES ('two')", db)

    done = request(landing, db, "log", **APPEND)

    assert done.status == "partial" and "PROCESS" in done.unguarded[0], done
    session.sql("COMMIT")
    session.close()
    done = request(landing, db, "log", **APPEND)
    assert landed(landing, db, "log") == [2] and "1 of the source's 2 rows up to 2" in done.missing[0], done
    done = request(landing, db, "log", late="10m", key="id", **APPEND)
    assert (done.status, done.missing, landed(landing, db, "log")) == ("done", [], [1, 2]), done
    mariadb_server.sql("INSERT INTO log (v) VALUES ('three')", db)
    assert request(landing, db, "log", late="10m", key="id", **APPEND).status == "done"
    assert landed(landing, db, "log") == [1, 2, 3], "each once"


def test_rows_of_tables_without_a_key_are_not_read_again(landing: Landing) -> None:
    landing.sql("CREATE TABLE log (id int, v text)")
    landing.sql("INSERT INTO log VALUES (1, 'one')")
    landing.create_asset()
    refused = landing.land("log", late="10m", **APPEND)
    assert refused.failed == 1 and "public.log has no primary key" in refused.errors[0], refused
    assert landing.land("log", late="10m", key="id", **APPEND).rows == 1
    landing.sql("INSERT INTO log VALUES (0, 'none'), (2, 'two')")
    assert landing.land("log", late="10m", key="id", **APPEND).rows == 2
    assert ids(landing, "log") == [0, 1, 2]
    with pytest.raises(UsageError, match="late: "):
        landing.request("log", late="soon", key="id", **APPEND)
    with pytest.raises(UsageError, match="late rows need a watermark"):
        landing.request("log", late="10m")


def test_transactions_block_marks_until_they_have_surely_ended() -> None:
    mark, on_standby = Mark("7", 0.0, 1, ("12-3/4",)), Mark("7", 0.0, 1, (), 100)
    found = {
        name: [each.block(mark), each.block(on_standby)]
        for name, each in {
            "the same": OpenTransactions(("12-3/4",)),
            "another": OpenTransactions(("12-3/5",)),
            "a prepared one, which has lost its name": OpenTransactions(("prepared 9",), prepared=True),
            "older ones on a standby": OpenTransactions((), False, 99, 120),
            "none that is older on a standby": OpenTransactions((), False, 100, 120),
        }.items()
    }
    assert found == {
        "the same": [True, True],
        "another": [False, True],
        "a prepared one, which has lost its name": [True, True],
        "older ones on a standby": [True, True],
        "none that is older on a standby": [True, False],
    }


# ---- keys by the source's rules --------------------------------------------------------------------------------------


def test_keys_are_merged_as_mariadb_compares_them(
    landing: Landing, mariadb_server: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = of_mariadb(landing, mariadb_server, monkeypatch)
    columns = "id int, k varchar(20) COLLATE utf8mb4_{} PRIMARY KEY"
    mariadb_server.sql(f"CREATE TABLE people ({columns.format('general_ci')})", db)
    mariadb_server.sql(f"CREATE TABLE exact ({columns.format('nopad_bin')})", db)
    mariadb_server.sql(f"CREATE TABLE turkish ({columns.format('turkish_ci')})", db)
    for name in ("people", "exact", "turkish"):
        mariadb_server.sql(f"INSERT INTO {name} VALUES (1, 'ann'), (2, 'bob'), (3, 'eve')", db)
    for name in ("people", "exact"):
        assert request(landing, db, name, mode="merge", key="k").status == "done"
        mariadb_server.sql(f"UPDATE {name} SET k = 'ANN' WHERE id = 1; UPDATE {name} SET k = 'bob ' WHERE id = 2", db)
        assert request(landing, db, name, mode="merge", key="k").status == "done"

    def shown(name: str) -> list[Any]:
        return landing.warehouse.sql(f"SELECT id, k FROM {landing.asset}_{db}.{name} ORDER BY id, k")

    assert shown("people") == [(1, "ANN"), (2, "bob "), (3, "eve")]
    assert shown("exact") == [(1, "ANN"), (1, "ann"), (2, "bob"), (2, "bob "), (3, "eve")]
    refused = request(landing, db, "turkish", mode="merge", key="k")
    assert "utf8mb4_turkish_ci" in refused.errors[0], refused
    mariadb_server.sql("INSERT INTO people VALUES (4, 'Zoë')", db)
    refused = request(landing, db, "people", mode="merge", key="k")
    assert "utf8mb4_general_ci" in refused.errors[0], refused
    assert len(shown("people")) == 3


def test_keys_are_merged_as_postgresql_compares_them(landing: Landing) -> None:
    landing.sql("CREATE EXTENSION citext")
    landing.sql("CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level1', deterministic = false)")
    landing.sql("CREATE DOMAIN label AS citext")
    landing.sql("CREATE TABLE people (id int, k label PRIMARY KEY)")
    landing.sql("CREATE TABLE blind (id int, k text COLLATE blind PRIMARY KEY)")
    landing.sql("INSERT INTO people VALUES (1, 'ann'), (2, 'bob')")
    landing.sql("INSERT INTO blind VALUES (1, 'ann')")
    landing.create_asset()
    asked: dict[str, Any] = {"mode": "merge", "key": "k"}
    assert landing.land("people", **asked).status == "done"
    landing.sql("UPDATE people SET k = 'ANN' WHERE id = 1; UPDATE people SET k = 'bob ' WHERE id = 2")
    assert landing.land("people", **asked).status == "done"
    assert landing.rows("people") == [(1, "ANN"), (2, "bob "), (2, "bob")], "blanks count"
    assert "the collation blind" in landing.land("blind", **asked).errors[0]


def test_ascii_compares_in_all_simple_collations_of_mariadb_as_assumed(mariadb_server: MariaDb) -> None:
    rows = mariadb_server.sql(
        "SELECT FULL_COLLATION_NAME, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
    ).splitlines()
    known = [row.split("\t") for row in rows if match_of(row.split("\t")[0])]
    assert len(known) > 20
    texts = [*map(chr, range(32, 127)), "a ", "A ", "ab", "aB", "ch", "Ch", "cH", "ae", "ss", "ij"]
    db = mariadb_server.database()
    values = ", ".join(f"(0x{text.encode().hex()})" for text in texts)
    mariadb_server.sql(f"CREATE TABLE ascii (v VARBINARY(9)); INSERT INTO ascii VALUES {values}", db)
    for collation, charset in known:
        rules = match_of(collation) or ()
        one, other = (f"CONVERT({each}.v USING {charset}) COLLATE {collation}" for each in "xy")
        found = mariadb_server.sql(f"SELECT HEX(x.v), HEX(y.v) FROM ascii x, ascii y WHERE {one} = {other}", db)
        equal = {tuple(bytes.fromhex(each).decode() for each in row.split("\t")) for row in found.splitlines()}
        assert equal == {(a, b) for a in texts for b in texts if folded(a, rules) == folded(b, rules)}, collation


def folded(text: str, rules: tuple[str, ...]) -> str:
    text = text.lower() if "casefold" in rules else text
    return text.rstrip(" ") if "trim" in rules else text


# ---- erased people and keys ------------------------------------------------------------------------------------------


def test_a_list_of_numbers_finds_people_whose_ids_are_texts_and_the_reverse(landing: Landing) -> None:
    landing.sql("CREATE TABLE texts (id text PRIMARY KEY, n int)")
    landing.sql("INSERT INTO texts VALUES ('7', 1), ('10000000', 2), ('8.50', 3), ('9', 4), ('x', 5)")
    landing.sql("CREATE TABLE numbers (id bigint PRIMARY KEY)")
    landing.sql("INSERT INTO numbers VALUES (7), (8), (9), (10000000)")
    db = f"{landing.asset}_gdpr"
    landing.warehouse.sql(f"CREATE DATABASE {db}")
    kept = {}
    for kind, ids in {
        "decimal(12,3)": "7, 8.5, 10000000",
        "double": "double(7), double(8.5), double(1e7)",
        "string": "'7.00', ' 8.5', '10000000'",
    }.items():
        landing.warehouse.sql(
            f"DROP TABLE IF EXISTS {db}.gone",
            f"CREATE TABLE {db}.gone AS SELECT CAST(id AS {kind}) AS id FROM (SELECT explode(array({ids})) AS id)",
        )
        given = {"erasure_ids": f"{db}.gone:id", "erasure_column": "id", "overwrite": bool(kept)}
        landing.create_asset(**given)
        for name in ("texts", "numbers"):
            landing.request(name)
        assert landing.run().status == "done"
        kept[kind] = ids_of(landing, "texts"), ids_of(landing, "numbers")
    assert kept == {
        "decimal(12,3)": (["9", "x"], [8, 9]),
        "double": (["9", "x"], [8, 9]),
        "string": (["7", "8.50", "9", "x"], [8, 9]),
    }


def ids_of(landing: Landing, table: str) -> list[Any]:
    return [row[0] for row in landing.warehouse.sql(f"SELECT id FROM {landing.asset}_public.{table} ORDER BY id")]


def test_planners_rely_on_no_key_that_a_landing_table_has_twice(
    landing: Landing, mariadb_server: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one whose rows an earlier release has merged by their bytes, or with days that are none."""
    db = of_mariadb(landing, mariadb_server, monkeypatch)
    mariadb_server.sql(
        "CREATE TABLE people (k varchar(9) COLLATE utf8mb4_general_ci PRIMARY KEY); INSERT INTO people VALUES ('bob');"
        "SET sql_mode = ''; CREATE TABLE days (d date PRIMARY KEY); INSERT INTO days VALUES ('0000-00-00')",
        db,
    )

    def relies(table: str) -> list[bool]:
        found = landing.warehouse.metastore.constraints(f"{landing.asset}_{db}", [table])
        return [each.rely for each in found[table]]

    assert request(landing, db, "people", mode="merge", key="k").status == "done"
    assert relies("people") == [True]
    place = landing.warehouse.metastore.table(f"{landing.asset}_{db}", "people").location or ""
    landing.warehouse.session.sql("SELECT explode(array('ann', 'ANN')) AS k").write.mode("append").parquet(place)
    assert request(landing, db, "people", mode="merge", key="k").status == "done"
    assert relies("people") == [False]
    assert request(landing, db, "days").status == "done"
    assert relies("days") == [False]


def test_a_job_continues_by_itself_once_a_rotated_password_is_right(
    landing: Landing, mariadb_server: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = of_mariadb(landing, mariadb_server, monkeypatch)
    mariadb_server.sql("CREATE TABLE people (id int PRIMARY KEY); INSERT INTO people VALUES (1)", db)
    monkeypatch.setenv("REPLICATOR_TEST_MARIADB", "the former one")
    done = request(landing, db, "people")
    assert done.failed == 1 and "continues by itself" in done.errors[0], done
    monkeypatch.delenv("REPLICATOR_TEST_MARIADB")
    assert landing.run_later().failed == 1, "the file is being replaced"
    monkeypatch.setenv("REPLICATOR_TEST_MARIADB", mariadb.PASSWORD)
    later = time.time() + 7200
    assert landing._controlled(lambda: later).done == 1
    assert landed(landing, db, "people") == [1]


# ---- changed columns -------------------------------------------------------------------------------------------------


def test_an_appended_and_a_merged_table_are_recreated_with_other_columns(
    landing: Landing, target_metastore: Running, tmp_path: Path
) -> None:
    db, uri, root = f"{landing.asset}_public", landing.warehouse.running.uri, str(tmp_path / "cmroot")
    asked: dict[str, Any] = {"log": APPEND, "state": {"mode": "merge", "key": "id"}}
    landing.create_asset()
    for name in asked:
        landing.sql(f"CREATE TABLE {name} (id int PRIMARY KEY, old text, n int)")
        landing.sql(f"INSERT INTO {name} VALUES (1, 'x', 1), (2, 'y', NULL)")
        landing.request(name, **asked[name])
    assert landing.run().status == "done"
    replicator.dump(source=uri, cmroot=root, db=db, out=str(tmp_path / "d1"))
    event = landing.warehouse.metastore.current_event_id()
    for name in asked:
        landing.sql(f"ALTER TABLE {name} DROP old, ALTER n TYPE bigint, ADD more text")
        landing.sql(f"DELETE FROM {name} WHERE id = 1; INSERT INTO {name} VALUES (3, 5000000000, 'z')")
    refused = landing.land("log", **asked["log"])
    assert "request schema_policy recreate" in refused.errors[0], refused
    landing.request("log", schema_policy="recreate", **asked["log"])
    landing.run_killed_in("publish")
    landing.request("state", schema_policy="recreate", **asked["state"])

    done = landing.run_later()

    assert (done.status, done.done) == ("done", 2), done
    expected = [(1, 1, None), (2, None, None), (3, 5000000000, "z")]
    for name in asked:
        found = landing.warehouse.sql(f"SELECT id, n, more FROM {db}.{name} ORDER BY id")
        assert found == expected, name
    assert replicator.ingest_watch(config=landing.config).status == "quiet"
    landing.sql("INSERT INTO log VALUES (4, 4, 'four')")
    assert landing.land("log", schema_policy="recreate", **asked["log"]).rows == 1
    replicator.dump(source=uri, cmroot=root, db=db, since=event, out=str(tmp_path / "d2"))
    replicator.restore(cmroot=root, db=db, to=event, target=target_metastore.uri, into=f"{db}_then")
    with connect(target_metastore.uri) as replica:
        for name in asked:
            table = replica.table(f"{db}_then", name)
            places = [table.location or ""]
            if table.is_partitioned:
                places = [part.location or "" for some in replica.all_partitions(table.db, name) for part in some]
            then = [row for place in places for row in rows_at(place, ("id", "old", "n"))]
            assert sorted(then) == [(1, "x", 1), (2, "y", None)], name


def test_landed_values_that_another_type_would_change_are_refused(landing: Landing) -> None:
    landing.sql("CREATE TABLE log (id int PRIMARY KEY, v text)")
    landing.sql("INSERT INTO log VALUES (1, 'word')")
    landing.create_asset()
    landing.land("log", **APPEND)
    landing.sql("ALTER TABLE log ALTER v TYPE int USING 7")
    refused = landing.land("log", schema_policy="recreate", **APPEND)
    assert "column v (string), such as 'word', do not fit int" in refused.errors[0], refused
    assert landing.rows("log") == [(1, "word")]


def test_a_dry_run_of_mariadb_finds_tables_types_and_what_is_wrong(
    landing: Landing, mariadb_server: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = of_mariadb(landing, mariadb_server, monkeypatch)
    mariadb_server.sql(
        "CREATE TABLE log (id int unsigned AUTO_INCREMENT PRIMARY KEY, kind enum('a', 'b') NOT NULL)", db
    )
    mariadb_server.sql("INSERT INTO log (kind) SELECT 'a' FROM seq_1_to_3000; CREATE TABLE places (p point)", db)
    given: dict[str, Any] = {"asset": landing.asset, "config": landing.config, "by": "paul", "dry_run": True}
    given["spark"] = landing.warehouse.session

    done = replicator.ingest_request(f"crm:{db}", **given)

    log, places = done.tables
    assert log.plan and (log.status, log.plan.rows, log.plan.readers, log.plan.split) == ("planned", 3000, 8, "id")
    assert [(each.source_type, each.type) for each in log.plan.columns] == [
        ("int(10) unsigned", "bigint"),
        ("enum('a','b')", "string"),
    ]
    assert places.status == "refused" and "ST_AsText" in places.hint
    (mark,) = replicator.ingest_request(f"crm:{db}.log", mode="append", watermark="kind", **given).tables
    assert mark.status == "refused" and "the watermark kind" in mark.error
    (wrong,) = replicator.ingest_request(f"crm:{db}.logs", **given).tables
    assert wrong.status == "refused" and wrong.hint == "did you mean log?"
    assert replicator.ingest_ls(config=landing.config).jobs == []
    queued = replicator.ingest_request(f"crm:{db}", exclude=["p.*"], **{**given, "dry_run": False})
    assert [each.table for each in queued.tables] == [f"crm:{db}.log"]
