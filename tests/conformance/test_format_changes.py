"""Tables whose format changes in their place and back: replayed on the replica, verified, and restored to the states
before and after. Delta's own Spark, Hive 3.1 and PyIceberg make the changes, and read both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from acid_tables import AcidLab, acid_sides
from command_line import Answer, command
from delta_spark import DeltaSpark
from hive_sql import HiveSql
from lab import Lab
from plain_tables import text_storage
from pool import Pool
from pyarrow.dataset import dataset

from replicator.core.formats import format_of
from replicator.core.model import EXTERNAL, Column, Serde, Table
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore

Rows = list[list[str]]
Sides = tuple[Running, Running, HiveSql, HiveSql]
IN_ONE = pytest.mark.parametrize("each_step", [True, False], ids=["replicated at each step", "in one range"])


class History:
    """The states of one table: after each step a capture, and, if `each_step`, a load that must be complete."""

    def __init__(self, lab: Lab, read: Callable[[str], Rows], there: Callable[[str], Rows], *, each_step: bool) -> None:
        """read, there: return the rows of the table of a database at the source and on the target."""
        self._lab, self._read, self._there, self._each_step = lab, read, there, each_step
        self._states = dict[int, tuple[str, Rows]]()  # by position: the format and the rows
        self._loaded: Path | None = None

    def step(self, *, last: bool = False) -> None:
        lab = self._lab
        captured = lab.capture()
        assert captured.code == 0, captured
        table = lab.source.metastore.table(lab.name, "t")
        self._states[captured.output["position"]] = format_of(table).name, self._read(lab.name)
        if self._each_step or last or self._loaded is None:
            self._replicate()

    def _replicate(self) -> None:
        lab = self._lab
        dumped = lab.dump(since=self._loaded)
        loaded, self._loaded = lab.load(None, "--allow-removals"), lab.last
        assert (dumped.code, loaded.code) == (0, 0), (dumped, loaded)
        format, rows = self._states[max(self._states)]
        assert format_of(lab.target.metastore.table(lab.name, "t")).name == format
        found = verified(lab)
        assert (found.code, found.output["status"]) == (0, "same"), found
        with lab.without_source():
            assert self._there(lab.name) == rows, format

    def restored(self) -> list[str]:
        """Restores each state, and returns their formats."""
        lab = self._lab
        for position, (format, rows) in self._states.items():
            into = f"{lab.name}_at_{position}"
            answer = restore(lab, position, "--into", into)
            assert answer.code == 0, answer
            assert format_of(lab.source.metastore.table(into, "t")).name == format
            assert self._read(into) == rows, (position, format)
        return [format for format, _ in self._states.values()]


def verified(lab: Lab) -> Answer:
    sides = ["--source", lab.source_uri, "--target", lab.target_uri, "--db", lab.name]
    return command("verify", *sides, "--engine", "local")


# ---- Delta ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@IN_ONE
def test_parquet_is_converted_to_delta_in_its_place_and_back(fixture: Lab, each_step: bool) -> None:
    name, place = f"{fixture.name}.t", fixture.source.home / "t"
    with ExitStack() as stack:
        sides = ((fixture.source_uri, fixture.source.home), (fixture.target_uri, fixture.target.home))
        source, target = (stack.enter_context(DeltaSpark(uri, Path(home).parent)) for uri, home in sides)

        def rows(spark: DeltaSpark, db: str) -> Rows:
            spark(f"refresh table {db}.t")
            return spark(f"select id, p from {db}.t order by all")

        history = History(fixture, lambda db: rows(source, db), lambda db: rows(target, db), each_step=each_step)
        source(f"create table {name} (id int, p string) using parquet location '{place}'")
        source(f"insert into {name} values (1, 'a'), (2, 'b')")
        history.step()
        source(f"convert to delta {name}")
        history.step()
        source(f"insert into {name} values (3, 'c')")
        source(f"delete from {name} where id = 1")
        history.step()
        source("set spark.databricks.delta.retentionDurationCheck.enabled = false")
        source(f"vacuum {name} retain 0 hours")
        source(f"drop table {name}")
        source(f"create table {name} (id int, p string) using parquet location '{place}'")
        history.step()
        source(f"insert into {name} values (4, 'a')")
        history.step(last=True)
        assert history.restored() == ["plain", "delta", "delta", "plain", "plain"]


def parquet(lab: Lab, name: str = "t", *, keys: tuple[Column, ...] = ()) -> Table:
    """A table that Spark and Hive read by Parquet's reader."""
    columns, place = (Column("id", "bigint"), Column("p", "string")), lab.source.home / name
    own = tuple(each for each in columns if each not in keys)
    reader = "org.apache.hadoop.hive.ql.io.parquet"
    storage = msgspec.structs.replace(
        text_storage(place, own),
        input_format=f"{reader}.MapredParquetInputFormat",
        output_format=f"{reader}.MapredParquetOutputFormat",
        serde=Serde(f"{reader}.serde.ParquetHiveSerDe"),
    )
    made = Table(
        db=lab.name, name=name, kind=EXTERNAL, storage=storage, partition_keys=keys, parameters={"EXTERNAL": "TRUE"}
    )
    lab.source.metastore.create_table(made)
    return lab.source.metastore.table(lab.name, name)


def rows_at(metastore: ThriftMetastore, db: str) -> Rows:
    """The rows of a table as a reader of its format sees them: delta-rs, or Arrow, which reads a directory of files."""
    table = metastore.table(db, "t")
    place = urlsplit(str(table.location)).path
    if format_of(table).log:
        found = deltalake.DeltaTable(place).to_pyarrow_table()
    else:
        found = dataset(place, format="parquet").to_table()  # without files that begin with an underscore
    return sorted([str(row["id"]), row["p"]] for row in found.to_pylist())


@IN_ONE
def test_a_table_becomes_deltas_by_its_log_and_is_plain_again(fixture: Lab, each_step: bool) -> None:
    """As CONVERT TO DELTA does, by delta-rs; back by a VACUUM and a change in the metastore, with the log in place."""
    plain, place = parquet(fixture), str(fixture.source.home / "t")
    metastore = fixture.source.metastore
    delta = msgspec.structs.replace(plain, parameters={**plain.parameters, "spark.sql.sources.provider": "delta"})
    history = History(
        fixture,
        lambda db: rows_at(metastore, db),
        lambda db: rows_at(fixture.target.metastore, db),
        each_step=each_step,
    )
    pq.write_table(rows(1, 2), f"{place}/old.parquet")
    history.step()
    for log in ("is made", "is still there"):
        if log == "is made":
            deltalake.convert_to_deltalake(place)
        metastore.alter_table(fixture.name, "t", delta)
        history.step()
        deltalake.write_deltalake(place, rows(3), mode="append")
        deltalake.DeltaTable(place).delete("id = 1")
        history.step()
        deltalake.DeltaTable(place).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        metastore.alter_table(fixture.name, "t", plain)
        history.step()
    pq.write_table(rows(7), f"{place}/new.parquet")
    history.step(last=True)
    assert history.restored() == ["plain", *["delta", "delta", "plain"] * 2, "plain"]


def test_a_converted_table_that_keeps_its_partitions_in_the_metastore_is_named(fixture: Lab) -> None:
    """Delta's log, and directories of partitions that it makes, are none of these partitions."""
    key = (Column("p", "string"),)
    plain, place, name = parquet(fixture, keys=key), fixture.source.home / "t", f"{fixture.name}.t"
    metastore = fixture.source.metastore
    (place / "p=a").mkdir()
    pq.write_table(rows(1).drop_columns(["p"]), place / "p=a/old.parquet")
    fixture.source.add("t", {"a": {}})
    assert (fixture.dump().code, fixture.load().code, verified(fixture).code) == (0, 0, 0)
    deltalake.convert_to_deltalake(
        str(place), partition_by=deltalake.Schema([deltalake.Field("p", "string")]), partition_strategy="hive"
    )
    delta = msgspec.structs.replace(plain, parameters={**plain.parameters, "spark.sql.sources.provider": "delta"})
    metastore.alter_table(fixture.name, "t", delta)
    deltalake.write_deltalake(str(place), rows(2), mode="append")
    dumped = fixture.dump(since=fixture.last)
    position = dumped.output["to_position"]
    for answer in (dumped, fixture.load(), restore(fixture, position, "--dry-run")):
        assert (answer.code, [each["object"] for each in answer.output["not_replicated"]]) == (3, [name]), answer
    found = verified(fixture)  # the replica is the table before
    assert (found.code, [each["kind"] for each in found.output["differences"]]) == (4, ["format"]), found.output
    assert not (fixture.target.home / "t/_delta_log").exists()
    metastore.drop_table(fixture.name, "t")
    metastore.create_table(msgspec.structs.replace(delta, partition_keys=()))
    dumped = fixture.dump(since=fixture.last)
    loaded, found = fixture.load(), verified(fixture)
    assert (dumped.code, loaded.code, found.code) == (0, 0, 0), (loaded, found)
    with fixture.without_source():
        assert rows_at(fixture.target.metastore, fixture.name) == [["1", "a"], ["2", "p2"]]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "p": [f"p{each}" for each in ids]})


def restore(lab: Lab, position: int, *more: str) -> Answer:
    arguments = ["--cmroot", str(lab.cmroot), "--db", lab.name, "--to", f"@{position}", "--target", lab.source_uri]
    return command("restore", *arguments, "--engine", "local", *more)


# ---- transactional tables -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sides(pool: Pool) -> Iterator[Sides]:
    with acid_sides(pool) as found:
        yield found


FULL = "'transactional' = 'true'"
INSERT_ONLY = f"{FULL}, 'transactional_properties' = 'insert_only'"


@IN_ONE
@pytest.mark.parametrize(
    ("stored", "keys", "properties"),
    [("orc", "", FULL), ("textfile", "", INSERT_ONLY), ("orc", "partitioned by (p string)", FULL)],
    ids=["full", "insert-only", "partitioned"],
)
def test_a_table_becomes_transactional_in_its_place_and_is_made_again_as_plain(
    sides: Sides, tmp_path: Path, stored: str, keys: str, properties: str, each_step: bool
) -> None:
    """Hive makes no transactional table plain again: its rows go to another table, which gets its name."""
    *_, here, there = sides
    lab = AcidLab(*sides, tmp_path)
    lab.source.create()
    into = "partition (p)" if keys else ""

    def values(*some: int) -> str:
        return ", ".join(f"({each}, 'n{each}'{f', {chr(39)}p{each % 2}{chr(39)}' if keys else ''})" for each in some)

    def rows(hive: HiveSql, db: str) -> Rows:
        return hive(f"select * from {db}.t")

    history = History(lab, lambda db: rows(here, db), lambda db: rows(there, db), each_step=each_step)
    made = f"(id int, name string) {keys} stored as {stored}"
    lab.run(f"create table {{db}}.t {made}", f"insert into {{db}}.t {into} values {values(1, 2)}")
    history.step()
    lab.run(f"alter table {{db}}.t set tblproperties ({properties})")
    history.step()
    lab.run(f"insert into {{db}}.t {into} values {values(3, 4)}")
    if properties == FULL:
        lab.run("delete from {db}.t where id = 1", "update {db}.t set name = 'changed' where id = 2")
    history.step()
    lab.run(
        f"create external table {{db}}.u {made}",
        f"insert into {{db}}.u {into} select * from {{db}}.t",
        "drop table {db}.t",
        "alter table {db}.u rename to {db}.t",
    )
    history.step()
    lab.run(f"insert into {{db}}.t {into} values {values(5)}")
    history.step(last=True)
    assert history.restored() == ["plain", "acid", "acid", "plain", "plain"]
