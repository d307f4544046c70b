"""docs/tutorial.md, command by command; what Spark does there, Spark does in the long form."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from plain_tables import PlainDatabase
from runbooks import play, steps

from replicator.commands.demos.spark_sql import SparkSql
from replicator.metastore.embedded import running
from replicator.metastore.thrift import ThriftMetastore, connect

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def place_of(client: ThriftMetastore, db: str) -> Path:
    storage = client.table(db, "orders").storage
    assert storage is not None
    return Path(str(storage.location).removeprefix("file:"))


class Plain:
    """The shop by calls of the metastore, in place of Spark's statements."""

    def __init__(self, uri: str, here: Path) -> None:
        self._client = connect(uri)
        self._db = PlainDatabase(self._client, "shop", here / "source" / "warehouse")

    def create(self) -> None:
        self._db.create()
        self._db.table("orders", {"part-0": "1\x01tea\n2\x01cup\n"})

    def insert(self) -> None:
        self._db.write("orders", {"part-1": "3\x01pot\n"})

    def drop(self) -> None:
        self._db.drop("orders")


class BySpark:
    """The shop by the statements of the page."""

    def __init__(self, uri: str, text: str) -> None:
        self._uri = uri
        code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        assert len(code) == 1
        self._code = code[0]

    def create(self) -> None:
        exec(self._code, {})

    def insert(self) -> None:
        self._run("INSERT INTO shop.orders VALUES (3, 'pot')")

    def drop(self) -> None:
        self._run("DROP TABLE shop.orders")

    def _run(self, statement: str) -> None:
        assert f"`{statement}`" in PAGE.read_text()
        with SparkSql(self._uri, "source/warehouse") as spark:
            spark.run(statement)


@pytest.mark.parametrize("writer", ["plain", pytest.param("spark", marks=pytest.mark.long)])
def test_the_tutorial_works_as_it_stands(writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ports = free_ports()
    text = (
        PAGE.read_text()
        .replace("9083", str(ports[0]))
        .replace("9084", str(ports[1]))
        .replace("--to EVENT", "--to {event}")
    )
    page = tmp_path / "tutorial.md"
    page.write_text(text)
    played = steps(page)
    uri = f"thrift://127.0.0.1:{ports[0]}"
    values: dict[str, object] = {}
    shop: Plain | BySpark | None = None

    def at(command: str) -> int:
        return next(number for number, each in enumerate(played) if each.command.startswith(f"replicator {command}"))

    def create() -> None:
        nonlocal shop
        shop = Plain(uri, tmp_path) if writer == "plain" else BySpark(uri, text)
        shop.create()

    def insert() -> None:
        assert shop is not None
        shop.insert()

    def drop() -> None:
        assert shop is not None
        with connect(uri) as client:
            values["event"] = client.current_event_id()
            place = place_of(client, "shop")
        files.extend(each for each in place.iterdir() if each.name.startswith("part-"))
        shop.drop()

    def look() -> None:
        with connect(uri) as client:
            assert client.table_names("shop") == []
            place = place_of(client, "rescue")
        rows = [each for each in place.iterdir() if each.name.startswith("part-") and each.suffix != ".crc"]
        assert len(rows) == len(files) and files
        found.append(place)

    files: list[Path] = []
    found: list[Path] = []
    before: dict[int, Callable[[], object]] = {
        at("init"): create,
        at("lag"): insert,
        at("status") + 1: drop,
        at("metastore stop"): look,
    }
    try:
        play(page, values, before=before)
    finally:
        for side in ("source", "target"):
            running.stop(tmp_path / side)
    assert found
