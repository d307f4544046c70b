"""Column statistics of several engines, and those that go without an event, between real servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_line import Answer, command
from counting_proxy import CountingProxy
from features import set_statistics, statistics_shown
from hive_home import Home, client_of
from hive_metastore import ttypes
from lab import Lab

from replicator.core.connections import MetastoreConfig
from replicator.core.model import Statistics
from replicator.lifecycle.purge.swapping import drop_column_statistics
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.replay.server_rules import ACCURATE, NO_STATISTICS

Hives = Callable[..., Running]
READING = ("get_table_statistics_req", "get_partitions_statistics_req")


class Analysed(Lab):
    """A database with the table `t` and the partitioned one `p`, on a source and a target."""

    def __init__(self, source: Running, target: Running, here: Path) -> None:
        super().__init__(source, target, here)
        self.running = (source, target)
        with self.at(0) as home:
            home.create()
            home.create_table("t", files={"f": "1,x\n"})
            home.create_table("p", keys=[("p", "int", None)])
            home.add_partitions("p", [("1",), ("2",)])

    def at(self, side: int) -> Any:
        running = self.running[side]
        context = client_of(running)

        class Opened:
            def __enter__(inner) -> Home:
                return Home(running, context.__enter__(), self.name)

            def __exit__(inner, *error: Any) -> None:
                context.__exit__(*error)

        return Opened()

    def shown(self, side: int, engines: Sequence[str] = ("hive",)) -> Any:
        with self.at(side) as home:
            return {
                engine: (
                    statistics_shown(home, "t", engine=engine),
                    statistics_shown(home, "p", engine=engine),
                    statistics_shown(home, "p", ("p=1", "p=2"), engine),
                )
                for engine in engines
            }

    def verify(self) -> Answer:
        return command(
            "verify", "--source", self.source_uri, "--target", self.target_uri, "--db", self.name, "--engine", "local"
        )

    def bring(self, *more: str) -> tuple[Answer, Answer]:
        """A dump since the last one, and its load."""
        since = self.last if self.dumps else None
        return self.dump(*more, since=since), self.load()


BOTH = ("hive", "impala")


@pytest.mark.timeout(300)
def test_statistics_of_other_engines_are_replicated(hives: Hives, tmp_path: Path) -> None:
    pair = Analysed(hives("4.2"), hives("4.0", "target"), tmp_path)
    with pair.at(0) as home:
        for number, engine in enumerate(BOTH, 1):
            set_statistics(home, "t", number, engine=engine)
            set_statistics(home, "p", 10 + number, "p=1", engine)
        set_statistics(home, "p", 20, engine="impala")
        set_statistics(home, "p", 30, "p=2", "impala")
    assert [each.code for each in pair.bring()] == [0, 0]
    assert pair.shown(1, BOTH) == pair.shown(0, BOTH)
    assert pair.shown(1, ["impala"])["impala"][1]
    assert pair.verify().code == 0

    with pair.at(0) as home:
        set_statistics(home, "t", 5, engine="impala")
        home.client.delete_table_column_statistics(home.db, "t", "b", "impala")
        home.client.delete_table_column_statistics(home.db, "t", "a", "hive")
        home.client.delete_partition_column_statistics(home.db, "p", "p=1", "a", "impala")
        for column in ("a", "b"):
            home.client.delete_table_column_statistics(home.db, "p", column, "impala")
            home.client.delete_partition_column_statistics(home.db, "p", "p=2", column, "impala")
    different = pair.verify()
    assert different.code == 4
    assert {each["object"] for each in different.output["differences"]} == {
        f"{pair.name}.{name}" for name in ("t", "p", "p/p=1", "p/p=2")
    }
    assert [each.code for each in pair.bring()] == [0, 0]
    assert pair.shown(1, BOTH) == pair.shown(0, BOTH)
    assert [name for name, _ in pair.shown(1, BOTH)["impala"][0]] == ["a"]
    assert [name for name, _ in pair.shown(1, BOTH)["hive"][0]] == ["b"]
    assert pair.verify().code == 0

    with pair.at(1) as home:
        set_statistics(home, "t", 9, engine="impala")
    different = pair.verify()
    assert {each["kind"] for each in different.output["differences"]} == {"statistics"}, different
    with CountingProxy(pair.source_uri) as proxy:
        assert pair.capture(source=proxy.uri).code == 0
    assert not proxy.count().keys() & {*READING}  # events would say


@pytest.mark.timeout(300)
def test_statistics_that_the_target_cannot_have_are_named(hives: Hives, tmp_path: Path) -> None:
    pair = Analysed(hives("4.2"), hives("2.3", "target"), tmp_path)
    with pair.at(0) as home:
        set_statistics(home, "t", 1)
        set_statistics(home, "p", 2, engine="impala")
    dumped, loaded = pair.bring()
    assert (dumped.code, loaded.code) == (0, 3)
    for answer in (loaded, pair.verify()):
        assert answer.code == 3, answer
        (named,) = answer.output["not_replicated"]
        assert named["object"] == f"{pair.name}.p"
        assert named["reason"].startswith(NO_STATISTICS)
    assert pair.shown(1) == pair.shown(0)

    with pair.at(0) as home:
        set_statistics(home, "t", 3)
        set_statistics(home, "p", 4, "p=1", "impala")
    assert [each.code for each in pair.bring()] == [0, 3]  # the table's are lacking still
    with pair.at(0) as home:
        for column in ("a", "b"):
            home.client.delete_table_column_statistics(home.db, "p", column, "impala")
    assert [each.code for each in pair.bring()] == [0, 0]
    assert pair.verify().code == 3
    with pair.at(0) as home:
        for column in ("a", "b"):
            home.client.delete_partition_column_statistics(home.db, "p", "p=1", column, "impala")
    assert [each.code for each in pair.bring()] == [0, 0]
    assert pair.verify().code == 0


def test_engines_are_those_of_the_configuration(hives: Hives, tmp_path: Path) -> None:
    pair = Analysed(hives("4.2"), hives("4.2"), tmp_path)
    with pair.at(0) as home:
        set_statistics(home, "t", 1, engine="third")
    with connect(pair.source_uri) as metastore:
        assert metastore.statistics_engines() == BOTH
        assert metastore.table_statistics(pair.name, "t", ["a"]) is None
    with connect(MetastoreConfig(pair.source_uri, statistics_engines=("third",))) as metastore:
        found = metastore.table_statistics(pair.name, "t", ["a", "b"])
        assert found is not None and not found.columns and [each.column for each in found.others["third"]] == ["a", "b"]
        metastore.drop_statistics(pair.name, "t", "", "a", "hive")
        assert metastore.table_statistics(pair.name, "t", ["a", "b"]) == found
        metastore.drop_statistics(pair.name, "t", "", "a", "third")
        left = metastore.table_statistics(pair.name, "t", ["a", "b"])
        assert isinstance(left, Statistics) and left.others == {"third": found.others["third"][1:]}


@pytest.mark.parametrize("hive", ["4.0", "4.2"])
def test_purged_parts_keep_statistics_of_no_engine(hives: Hives, tmp_path: Path, hive: str) -> None:
    pair = Analysed(hives(hive), hives(hive), tmp_path)
    engines = (*BOTH, "third")
    with pair.at(0) as home:
        for engine in engines:
            set_statistics(home, "t", 1, engine=engine)
            set_statistics(home, "p", 1, engine=engine)
            set_statistics(home, "p", 1, "p=1", engine)
        set_statistics(home, "p", 1, "p=2", "impala")
    with connect(pair.source_uri) as metastore:
        for name in ("t", "p"):
            drop_column_statistics(metastore, metastore.table(pair.name, name), ["p=1"])
    left = pair.shown(0, engines)
    assert [len(partitions) for _, _, partitions in left.values()] == [0, 1, 0]
    assert [(whole, partitioned) for whole, partitioned, _ in left.values()] == [([], [])] * 3
    assert list(left["impala"][2]) == ["p=2"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("hive", ["2.3", "3.1"])
def test_deep_finds_deleted_statistics(hives: Hives, tmp_path: Path, hive: str) -> None:
    pair = Analysed(hives(hive), hives(hive, "target"), tmp_path)
    with pair.at(0) as home:
        home.create_table("whole")
        for table, partition in (("t", None), ("whole", None), ("p", None), ("p", "p=1"), ("p", "p=2")):
            set_statistics(home, table, 1, partition)
    assert [each.code for each in pair.bring()] == [0, 0]
    assert pair.shown(1) == pair.shown(0)
    with pair.at(0) as home:
        for column in ("a", "b"):
            home.client.delete_table_column_statistics(home.db, "t", column, None)
            home.client.delete_table_column_statistics(home.db, "p", column, None)
            home.client.delete_partition_column_statistics(home.db, "p", "p=1", column, None)
        context = ttypes.EnvironmentContext({"DO_NOT_UPDATE_STATS": "true"})
        for name in ("t", "p"):
            table = home.table(name)
            del table.parameters[ACCURATE]
            home.client.alter_table_with_environment_context(home.db, name, table, context)
        part = home.client.get_partitions_by_names(home.db, "p", ["p=1"])[0]
        del part.parameters[ACCURATE]
        home.client.alter_partitions_with_environment_context(home.db, "p", [part], context)
    assert [each.code for each in pair.bring("--deep")] == [0, 0]
    whole, partitioned, partitions = pair.shown(0)["hive"]
    assert (whole, partitioned, list(partitions)) == ([], [], ["p=2"])
    assert pair.shown(1) == pair.shown(0)
    assert pair.verify().code == 0
    with pair.at(1) as home:
        assert len(statistics_shown(home, "whole")) == 2
