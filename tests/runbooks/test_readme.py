"""README.md: its one recorded terminal, command by command, with the output that it shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from metastores import MetastoreFactory
from plain_tables import PlainDatabase
from runbooks import play

from replicator.metastore.thrift import connect

PAGE = Path(__file__).parents[2] / "README.md"


def test_the_terminal_of_the_readme_shows_what_is_printed(
    metastore_factory: MetastoreFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source, target = metastore_factory("source"), metastore_factory("target")
    page = tmp_path / "readme.md"
    page.write_text(PAGE.read_text().replace("thrift://a:9083", source.uri).replace("thrift://b:9083", target.uri))
    with connect(source.uri) as client:
        shop = PlainDatabase(client, "shop", source.warehouse)
        shop.create()
        shop.table("orders", {"part-0": "1\x01tea\n2\x01cup\n"})
        shop.table("items", {"part-0": "1\x01tea\n"})
    play(page, {})
