"""docs/tutorial.md, command by command; what Spark does there, Spark does in the long form."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from plain_tables import PlainDatabase
from runbooks import play, run_words, steps

from replicator.metastore.embedded import running
from replicator.metastore.thrift import ThriftMetastore, connect

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


class Plain:
    """The statements of the page by calls of the metastore, in place of Spark's: the same files and events."""

    def __init__(self, client: ThriftMetastore, warehouse: Path) -> None:
        self._client, self._db = client, PlainDatabase(client, "shop", warehouse)

    def run(self, statement: str) -> list[str]:
        match statement.split():
            case ["CREATE", "DATABASE", "shop"]:
                self._db.create()
            case ["CREATE", "TABLE", "shop.orders", *_]:
                self._db.table("orders", {})
            case ["INSERT", "INTO", "shop.orders", *_]:
                for id, item in re.findall(r"\((\d+), '(\w+)'\)", statement):
                    self._db.write("orders", {f"part-{id}": f"{id}\x01{item}\n"})
            case ["DROP", "TABLE", "shop.orders"]:
                self._db.drop("orders")
            case ["SHOW", "TABLES", "IN", db]:
                return list(self._client.table_names(db))
            case ["SELECT", "*", "FROM", table, "ORDER", "BY", "id"]:
                place = Path((self._client.table(*table.split(".")).location or "").removeprefix("file:"))
                texts = [each.read_text() for each in place.iterdir() if each.name.startswith("part-")]
                return sorted(text.strip().replace("\x01", " ") for text in texts)
            case _:
                raise AssertionError(f"{statement}: not known")
        return []


@pytest.mark.parametrize("writer", ["plain", pytest.param("spark", marks=pytest.mark.long)])
def test_the_tutorial_shows_what_is_printed(writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source, target = free_ports()
    text = PAGE.read_text().replace("9083", str(source)).replace("9084", str(target))
    page = tmp_path / "tutorial.md"
    page.write_text(text.replace("--to EVENT", "--to {event}"))
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "sql.py").write_text(code)
    values: dict[str, object] = {}
    uris = {"source": f"thrift://127.0.0.1:{source}", "target": f"thrift://127.0.0.1:{target}"}

    def by(words: Sequence[str]) -> tuple[int, str]:
        if words[0] == "replicator":
            code, output = run_words(words[1:])
            if words[1] == "status":
                values["event"] = re.findall(r"^event +(\d+)", output, re.MULTILINE)[0]
            return code, output
        if writer == "spark":
            done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True)
            return done.returncode, done.stdout + done.stderr
        _, _, side, *statements = words
        with connect(uris[side]) as client:
            rows = [Plain(client, tmp_path / side / "warehouse").run(each) for each in statements]
        return 0, "\n".join(rows[-1])

    try:
        played = play(page, values, by=by, programs=("replicator", "python"))
    finally:
        for side in uris:
            running.stop(tmp_path / side)
    shown = [step for step in played if step.output]
    silent = [step.command for step in played if not step.output]
    assert len(shown) > 12 and all(re.search(r"INSERT|DROP|SHOW TABLES", each) for each in silent)
    assert len(steps(PAGE)) == len(played)
