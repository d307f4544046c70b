"""A database that another client drops while all databases are read is left out, and the others are read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from names import unique
from plain_tables import PlainDatabase

from replicator.lifecycle.purge.backups import old_versions
from replicator.lifecycle.purge.options import PurgeOptions, RetainOptions, WhiteList
from replicator.lifecycle.purge.run import described
from replicator.lifecycle.retention.datasets import parse_names, tables_of
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.policies.roles import roles_of


class Dropping:
    """A metastore whose first database has been dropped since they were listed."""

    def __init__(self, metastore: ThriftMetastore, mine: str) -> None:
        self._metastore, self._mine = metastore, mine

    def database_names(self) -> list[str]:
        return [f"{self._mine}_dropped", self._mine]

    def everywhere(self) -> Dropping:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metastore, name)


@pytest.fixture(scope="module")
def dropping(source_metastore: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dropping]:
    with connect(source_metastore.uri) as metastore:
        mine = PlainDatabase(metastore, unique("mine"), tmp_path_factory.mktemp("mine"))
        mine.create()
        mine.table("t", {"f": "1"})
        yield Dropping(metastore, mine.name)


READERS: dict[str, Callable[[Any], Any]] = {
    "roles": lambda metastore: roles_of(metastore, lambda _: True).databases == [],
    "tables of a purge": lambda metastore: described(metastore, WhiteList(), PurgeOptions("ids.gone:id")),
    "old versions of a purge": lambda metastore: list(old_versions(metastore, RetainOptions(), time.time())) == [],
    "tables of a retention": lambda metastore: (
        [each.name for each in tables_of(metastore, parse_names("", ""), None)] == ["t"]
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_all_databases_are_read_but_the_dropped_one(reader: str, dropping: Dropping) -> None:
    assert READERS[reader](dropping)
