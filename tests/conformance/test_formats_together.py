"""Plain, Delta, Iceberg and transactional tables in one database: a replica shows them at one moment, and a name may
change its format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import deltalake
import hudi_tables
import pytest
from acid_tables import AcidLab, acid_lab
from command_line import command
from hive_sql import HiveSql
from iceberg_tables import catalog, make, replica, rows, shown
from plain_tables import PlainDatabase
from pool import Pool
from waiting import repeating

from cmroot.log.captured import segments
from replicator.captures.write_ids import Transactions
from replicator.core.formats import format_of
from replicator.core.model import EXTERNAL


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

    def delta() -> None:
        db.table("x", kind=EXTERNAL)
        db.alter("x", **{"spark.sql.sources.provider": "delta"})
        deltalake.write_deltalake(str(db.home / "x"), rows(3))

    def hudi() -> None:
        hudi_tables.append(hudi_tables.make_small(db, "x"), 4)

    def dropped() -> None:
        db.drop("x")

    kinds = {plain: "plain", iceberg: "iceberg", transactional: "acid", delta: "delta", hudi: "hudi"}

    def is_last(side: PlainDatabase, uri: str, hive: Callable[..., list[list[str]]], step: Callable[[], None]) -> None:
        """Readers of its format find its rows."""
        there = side.metastore.table(side.name, "x")
        place = urlsplit(str(there.location)).path
        assert format_of(there).name == kinds[step]
        if step is iceberg:
            assert shown(catalog(uri).load_table(f"{side.name}.x")) == [1]
        elif step is transactional:
            assert hive(f"select id from {side.name}.x") == [["2"]]
        elif step is delta:
            assert deltalake.DeltaTable(place).to_pyarrow_table()["id"].to_pylist() == [3]
        elif step is hudi:
            assert hudi_tables.ids(place) == [4]
        else:
            assert [path.name for path in Path(place).iterdir()] == ["a"]

    plain()
    acid.replicate()
    i, d, t, p, h = iceberg, delta, transactional, plain, hudi
    order = (i, p, d, p, t, i, d, i, t, d, t, p, h, i, h, d, h, t, h, p)
    each = [(step,) for step in order]  # from each format to each other
    positions = dict[int, Callable[[], None]]()
    for steps in (*each, (i, p), (d, t), (t, i), (i, d), (p, t), (t, d), (d, h), (h, p)):
        for step in steps:
            dropped()
            step()
        acid.replicate()
        is_last(acid.target, acid.target_uri, acid.run_there, steps[-1])
        if steps[-1] is transactional:
            acid.is_equal("x")
        assert acid.verified().code == 0, steps
        positions[segments(str(acid.cmroot))[-1].last] = steps[-1]
    for position, step in positions.items():
        into = f"{acid.name}_at_{position}"
        arguments = ["--cmroot", str(acid.cmroot), "--db", acid.name, "--to", f"@{position}", "--into", into]
        answer = command("restore", *arguments, "--target", acid.source_uri, "--engine", "local")
        assert answer.code == 0, answer
        is_last(PlainDatabase(db.metastore, into, db.home.parent), acid.source_uri, acid.run, step)
