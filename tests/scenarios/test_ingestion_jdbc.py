"""Databases of which only the JDBC driver is known: H2 and HSQLDB, whose jars come from Maven."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from landings import Landing
from postgres import Postgres
from purges import Warehouse
from waiting import CEILING, eventually

import replicator
from replicator.core.config import parse_config
from replicator.errors import ConfigError, Error
from replicator.ingestion.reading.source import PATIENT
from replicator.ingestion.reading.source_errors import Control, connect, give_drivers
from replicator.metastore.embedded.distributions import Artifact, fetch
from replicator.metastore.embedded.server_process import free_port
from replicator.metastore.java import cache_directory, find_java

SERVERS = {
    "h2": (
        Artifact("com.h2database:h2:2.3.232", "8dae62d22db8982c3dcb3826edb9c727c5d302063a67eef7d63d82de401f07d3"),
        "org.h2.Driver",
        "jdbc:h2:tcp://127.0.0.1:{port}/mem:x;DB_CLOSE_DELAY=-1",
        ("org.h2.tools.Server", "-tcp", "-ifNotExists", "-tcpPort", "{port}"),
    ),
    "hsqldb": (
        Artifact("org.hsqldb:hsqldb:2.7.4", "5fab2bb4384ac06b762638c8fa2740c944b8d080e4796c0c6c2af8b90dd4e5ad"),
        "org.hsqldb.jdbc.JDBCDriver",
        "jdbc:hsqldb:hsql://127.0.0.1:{port}/x",
        (
            "org.hsqldb.server.Server",
            "--database.0",
            "mem:x",
            "--dbname.0",
            "x",
            "--port",
            "{port}",
            "--silent",
            "true",
        ),
    ),
}


@dataclass
class Other:
    """A server, with its administrator's connection, and a landing whose source it is."""

    landing: Landing
    control: Control

    def land(self, table: str, **more: Any) -> Any:
        given = {"asset": self.landing.asset, "config": self.landing.config, "by": "paul", **more}
        replicator.ingest_request(f"crm:PUBLIC.{table}", **given)
        return self.landing.run()

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        name = f"{self.landing.asset}_public.{table.lower()}"
        return self.landing.warehouse.sql(f"REFRESH TABLE {name}", f"SELECT * FROM {name} ORDER BY 1")

    def verify(self, table: str) -> Any:
        given = {"config": self.landing.config, "spark": self.landing.warehouse.session}
        return replicator.ingest_verify(f"crm:PUBLIC.{table}", **given)


@pytest.fixture(params=sorted(SERVERS))
def other(request: pytest.FixtureRequest, postgres: Postgres, warehouse: Warehouse, tmp_path: Path) -> Iterator[Other]:
    artifact, driver, url, line = SERVERS[request.param]
    java, jars, port = find_java(os.environ), cache_directory(os.environ) / "jars", free_port()
    fetch([artifact], jars, java, os.environ, "this needs a Maven repository")
    jar, url = jars / artifact.file_name, url.format(port=port)
    with open(tmp_path / "log", "wb") as log:
        command = [java.executable, "-cp", str(jar), *(each.format(port=port) for each in line)]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path)
    landing = Landing(postgres, warehouse, tmp_path)
    landing.config = landing.configured(
        sources={"crm": {"url": url, "user": "sa", "driver": driver, "jar": str(jar)}}, recount="0s"
    )
    landing.create_asset()
    give_drivers(warehouse.session, [jar])

    def connected() -> Control | None:
        assert process.poll() is None, (tmp_path / "log").read_text()
        try:
            return connect(warehouse.session, driver, url, {"user": "sa"}, "crm", PATIENT)
        except Error:
            return None

    try:
        control = eventually(connected)
        assert control is not None
        yield Other(landing, control)
        control.close()
    finally:
        process.terminate()
        process.wait(timeout=CEILING)
        landing.source.close()


def test_a_database_of_another_kind_is_landed_and_compared_by_its_driver(other: Other) -> None:
    other.control.run(
        "CREATE TABLE t (id int PRIMARY KEY, b bigint, s smallint, n decimal(20, 4), d double, f boolean, c char(5),"
        ' v varchar(50), "two Words" varchar(9), born date, moment timestamp(6), bin varbinary(9))'
    )
    other.control.run(
        "INSERT INTO t VALUES (1, 9223372036854775807, -3, 1234567890123456.7891, 0.1, true, 'ab', 'é''\"%', 'x',"
        " DATE '0001-01-01', TIMESTAMP '2026-03-29 02:30:00.123456', x'00ff'),"
        " (2, 9223372036854775807, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),"
        " (3, 0, 0, 0, 0, false, '', '', '', DATE '9999-12-31', TIMESTAMP '1900-01-01 00:00:00', x'')"
    )
    done = other.land("T")
    assert (done.status, done.rows) == ("done", 3), done
    first, second, third = other.rows("T")
    assert [str(each) for each in first[:8]] == [
        *("1", "9223372036854775807", "-3", "1234567890123456.7891", "0.1", "True", "ab", "é'\"%")
    ]
    assert (first[8], str(first[9]), bytes(first[11])) == ("x", "0001-01-01", b"\x00\xff")
    at = other.landing.warehouse.sql(
        f"SELECT date_format(to_utc_timestamp(moment, current_timezone()), 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
        f" FROM {other.landing.asset}_public.t WHERE id = 1"
    )
    assert at == [("2026-03-29 02:30:00.123456",)]
    assert second[2:] == (None,) * 10 and (third[7], str(third[9])) == ("", "9999-12-31")
    (table,) = other.verify("T").tables
    assert not table.differs and any(each.startswith("column MOMENT") for each in table.not_compared), table
    other.control.run("UPDATE t SET v = 'other', s = 5 WHERE id = 2")
    other.control.run("DELETE FROM t WHERE id = 1")
    other.control.run("INSERT INTO t (id) VALUES (7)")
    (table,) = other.verify("T").tables
    kinds = {row.key[0]: row.kind for row in table.rows}
    assert kinds == {"1": "deleted", "2": "different", "7": "missing"}, table


def test_an_increment_of_another_kind_names_what_it_cannot_know(other: Other) -> None:
    other.control.run("CREATE TABLE log (id bigint PRIMARY KEY, moment timestamp, v varchar(9))")
    other.control.run("INSERT INTO log VALUES (1, TIMESTAMP '2026-01-01 00:00:00', 'a')")
    asked: dict[str, Any] = {"mode": "append", "watermark": "ID"}
    done = other.land("LOG", **asked)
    assert (done.status, done.rows) == ("partial", 1), done
    assert "does not show its transactions" in done.unguarded[0]
    other.control.run("INSERT INTO log VALUES (2, TIMESTAMP '2026-01-02 00:00:00', 'b')")
    done = other.land("LOG", **asked, late="10m", where="v = 'b' OR v = 'c'", masks={"V": "text:x"})
    assert (done.status, done.rows) == ("done", 1), done
    assert [row[0] for row in other.rows("LOG")] == [1, 2]
    other.control.run("CREATE TABLE state (id int PRIMARY KEY, moment timestamp, v varchar(9))")
    other.control.run("INSERT INTO state VALUES (1, TIMESTAMP '2026-01-01 00:00:00', 'a')")
    merge: dict[str, Any] = {"mode": "merge", "key": "ID", "watermark": "MOMENT", "late": "0s"}
    assert other.land("STATE", **merge).status == "done"
    other.control.run("UPDATE state SET v = 'b', moment = TIMESTAMP '2026-01-02 00:00:00'")
    assert other.land("STATE", **merge).rows == 1
    assert [row[2] for row in other.rows("STATE")] == ["b"]
    for wrong, told in (
        ({"split_column": "ID"}, "one connection reads a database of this kind"),
        ({"masks": {"V": "hash"}}, "no hash that is known"),
    ):
        refused = other.land("STATE", **wrong)
        assert refused.failed == 1 and told in refused.errors[0], refused
    refused = other.land("STATE", mode="merge", key="V")
    assert "column V of the key has the collation not known" in refused.errors[0], refused
    other.control.run("CREATE TABLE wide (id int, n decimal(60, 0))")
    assert "has the type" in other.land("WIDE").errors[0]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({"url": "jdbc:h2:mem:x"}, "are known"),
        ({"url": "jdbc:h2:mem:x", "driver": "org.h2.Driver"}, "not a class in a jar"),
        ({"url": "jdbc:h2:mem:x", "driver": "x; y", "jar": "/x.jar"}, "not a class in a jar"),
        (
            {"url": "jdbc:postgresql://x/y", "driver": "org.h2.Driver", "jar": "/x.jar"},
            "the driver of postgresql is known",
        ),
        ({"url": "jdbc:oracle:thin:scott/tiger@h:1521:x", "driver": "o.D", "jar": "/x.jar"}, "a user or a password"),
    ],
)
def test_a_source_of_another_kind_names_its_driver_and_jar(source: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_config({"ingestion": {"sources": {"x": source}}}, "test")
    allowed = {"url": "jdbc:oracle:thin:@//h:1521/x", "driver": "oracle.jdbc.OracleDriver", "jar": "/x.jar"}
    parse_config({"ingestion": {"sources": {"x": allowed}}}, "test")
