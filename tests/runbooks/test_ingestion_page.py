"""The first page of docs/ingestion.md, command by command, as one user tries it: each in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest
from mariadb import MariaDb
from postgres import Postgres
from runbooks import play
from waiting import CEILING

from replicator.metastore.embedded import running
from replicator.metastore.embedded.server_process import free_port
from replicator.metastore.thrift import connect

TEXT = (Path(__file__).parents[2] / "docs" / "ingestion.md").read_text()
BEGIN, END = "## Try it", "## Words"
URL = "jdbc:postgresql://127.0.0.1:5432/crm"


def first_page() -> str:
    return TEXT[TEXT.index(BEGIN) : TEXT.index(END)]


def block(page: str, kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)
    return str(found)


def in_a_process(words: Sequence[str]) -> tuple[int, str]:
    """Exit code, and standard output followed by standard error."""
    line = [sys.executable, "-m", "replicator", *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=CEILING, check=False)
    return done.returncode, done.stdout + done.stderr


def write_page(here: Path, port: int, others: dict[str, str]) -> Path:
    """The page and its configuration, with other addresses."""
    page = first_page().replace("9083", str(port)).replace("/srv/try", str(here))
    for before, after in others.items():
        assert before in page, before
        page = page.replace(before, after)
    (here / "replicator.toml").write_text(block(page, "toml"))
    (here / "page.md").write_text(page)
    return here / "page.md"


def played(page: Path, port: int) -> list[str]:
    """Runs the page; the names of the columns of the table that lands."""
    found: list[str] = []

    def by(words: Sequence[str]) -> tuple[int, str]:
        if list(words[:2]) == ["metastore", "stop"]:
            with connect(f"thrift://127.0.0.1:{port}") as client:
                (db,) = (name for name in client.database_names() if name.startswith("crm_"))
                storage = client.table(db, "orders").storage
                assert storage is not None
                found.extend(column.name for column in storage.columns)
        return in_a_process(words)

    try:
        play(page, {}, by=by)
    finally:
        running.stop(page.parent / "hive")
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_user_tries_the_first_page(postgres: Postgres, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_PASSWORD", "x")
    with psycopg.connect(postgres.database(), autocommit=True) as source:
        source.execute(block(first_page(), "sql").encode())
        host, _, _ = postgres.jdbc()["javax.jdo.option.ConnectionURL"].rpartition("/")
        page = write_page(here, port := free_port(), {URL: f"{host}/{source.info.dbname}"})
    assert played(page, port) == ["id", "item", "price"]


@pytest.mark.long
def test_one_user_tries_it_with_mariadb(mariadb_server: MariaDb, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_PASSWORD", mariadb_server.password)
    database = mariadb_server.database()
    mariadb_server.sql(block(first_page(), "sql"), database)
    others = {URL: mariadb_server.url(database), '"postgres"': f'"{mariadb_server.user}"', "public": database}
    others |= {
        "id      bigint ": "id  bigint(20) ",
        "character varying(20)": "varchar(20)",
        " numeric(10,2) ": " decimal(10,2) ",
    }
    page = write_page(here, port := free_port(), others)
    assert played(page, port) == ["id", "item", "price"]
