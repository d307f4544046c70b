"""A transactional, an Iceberg and a plain table in one database: a replica shows all of them at one moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from acid_tables import AcidLab, acid_lab
from hive_sql import HiveSql
from iceberg_tables import catalog, make, replica, rows, shown
from pool import Pool
from waiting import repeating

from replicator.captures.write_ids import Transactions
from replicator.core.formats import format_of


@pytest.fixture
def acid(pool: Pool, tmp_path: Path) -> Iterator[AcidLab]:
    with acid_lab(pool, tmp_path) as made:
        yield made


class Writer:
    """Adds one row after another: to the transactional table, then to Iceberg's, then to the plain one."""

    def __init__(self, lab: AcidLab, hive: HiveSql) -> None:
        self._lab, self._hive = lab, hive
        lab.make()
        make(lab, "i")
        lab.source.table("p")
        self._table = catalog(lab.source_uri).load_table(f"{lab.name}.i")

    def __call__(self, number: int) -> None:
        self._hive(f"insert into {self._lab.side}.t values ({number}, 'n')")
        self._table.refresh().append(rows(number))
        self._lab.source.write("p", {f"{number:04}": "row"})
        self._lab.source.alter("p", last=str(number))


def last_rows(lab: AcidLab) -> list[int]:
    """The last row of each table of the replica, in the order of the writer."""
    plain = len(list((lab.target.home / "p").glob("0*")))
    return [max([0, *lab.ids()]), max([0, *shown(replica(lab, "i"))]), plain]


def test_a_replica_has_tables_of_all_formats_at_one_moment(acid: AcidLab) -> None:
    with HiveSql(acid.hive.uri, Path(acid.hive.warehouse)) as own, repeating(Writer(acid, own)):
        for _ in range(4):
            acid.replicate()
            found = last_rows(acid)
            assert found == sorted(found, reverse=True) and found[0] - found[-1] <= 1, found
    acid.replicate()
    acid.is_equal("t")
    assert shown(replica(acid, "i")) == acid.ids()


def test_commits_within_a_capture_are_all_in_it_or_none(acid: AcidLab, monkeypatch: pytest.MonkeyPatch) -> None:
    with HiveSql(acid.hive.uri, Path(acid.hive.warehouse)) as own:
        write, look = Writer(acid, own), Transactions.look
        waiting = [1]

        def looked(self: Transactions, *, again: bool = False) -> None:
            look(self, again=again)
            while waiting:
                write(waiting.pop())

        monkeypatch.setattr(Transactions, "look", looked)
        acid.replicate()
        assert last_rows(acid) == [1, 1, 1]
        acid.is_equal("t")


def test_a_name_whose_format_changes_in_one_range(acid: AcidLab) -> None:
    db = acid.source

    def plain() -> None:
        db.table("x", {"a": "row"})

    def iceberg() -> None:
        make(acid, "x").append(rows(1))

    def transactional() -> None:
        acid.make("x")
        acid.insert(2, name="x")

    def dropped() -> None:
        db.drop("x")

    kinds = {plain: "plain", iceberg: "iceberg", transactional: "acid"}
    plain()
    acid.replicate()
    for steps in (
        (iceberg,),
        (transactional,),
        (iceberg, plain),
        (transactional, iceberg),
        (plain, transactional),
        (plain,),
    ):
        for step in steps:
            dropped()
            step()
        acid.replicate()
        there = acid.target.metastore.table(acid.name, "x")
        assert format_of(there).name == kinds[steps[-1]]
        if steps[-1] is iceberg:
            assert shown(replica(acid, "x")) == [1]
        elif steps[-1] is transactional:
            acid.is_equal("x")
            assert acid.ids("x") == [2]
        else:
            assert [path.name for path in (acid.target.home / "x").iterdir()] == ["a"]
        assert acid.verified().code == 0, steps
