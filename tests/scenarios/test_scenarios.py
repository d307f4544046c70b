"""Scenarios: what happens on the source, dump, load, and what the target must show. The stories are in tests/scenarios.

Each is run in a database of its own: `before`, a bootstrap, `after`, an incremental dump; then both sides must be
equal, the target must show the rows of `show`, and loading the last dump again must change nothing. `after` may be
several lists: several incremental dumps. A step is a SQL statement, or a table:

    {write = "place", text = "..."}      a file, written by someone who tells no metastore
    {remove = "place"}                   a file or directory, removed likewise
    {move = "place", to = "place"}
    {statistics = "t", column = "a", partition = "p=1", high = 9}      through thrift, as Hive's ANALYZE does

Places and statements may name {db}, {warehouse} (the database's directory), {outside} (a directory outside the
warehouse) and {mapped}, and the words that a scenario's `each` lists: it is run once for each of them.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import threading
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from warehouse import Pair, Sides, plain

from replicator.core.engine import AutoEngine, LocalEngine
from replicator.core.model import Column, ColumnStatistic, Partition, Serde, Statistics, Storage, Table
from replicator.core.spark import SparkEngine
from replicator.errors import FilesMissing, ObjectNotFound
from replicator.metastore.codecs import struct_to_tjson
from replicator.metastore.embedded.running import Running
from replicator.metastore.java import find_java, spark_environment

SCENARIOS = Path(__file__).parent
OPTIONS = {"name", "before", "after", "show", "each", "rename", "map", "include", "deep", "gone"}


def scenarios() -> Iterator[Any]:
    for path in sorted(SCENARIOS.glob("*.toml")):
        for scenario in tomllib.loads(path.read_text())["scenario"]:
            unknown = scenario.keys() - OPTIONS
            assert not unknown, f"{path.name}: {scenario['name']}: {unknown}"
            words = scenario.get("each", {})
            for chosen in itertools.product(*words.values()):
                given = dict(zip(words, chosen, strict=True))
                about = (
                    f"{scenario['name']} ({', '.join(each for each in chosen if each)})"
                    if any(chosen)
                    else scenario["name"]
                )
                others = sum(each != of[0] for each, of in zip(chosen, words.values(), strict=True))
                marks = [pytest.mark.long] if others > 1 else []  # one word after the other is tried always
                yield pytest.param(scenario, given, id=f"{path.stem}: {about}".replace("{outside}", ""), marks=marks)


@pytest.fixture(scope="module")
def sides(
    source_metastore: Running, target_metastore: Running, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sides]:
    sides = Sides(source_metastore, target_metastore, tmp_path_factory.mktemp("outside"))
    yield sides
    sides.close()


@pytest.mark.parametrize(("scenario", "words"), list(scenarios()))
def test_the_target_shows_what_the_source_has(sides: Sides, scenario: dict[str, Any], words: dict[str, str]) -> None:
    pair = sides.pair()
    if scenario.get("rename"):
        pair.rename = f"{pair.db}_{scenario['rename']}"
    pair.include = scenario.get("include", ())
    names = {
        "db": pair.db,
        "warehouse": str(pair.place("")).rstrip("/"),
        "outside": str(pair.outside),
        "mapped": str(pair.mapped),
    }
    names |= {key: _fill(word, names) for key, word in words.items()}
    pair.mappings = [(_fill(a, names), _fill(b, names)) for a, b in scenario.get("map", ())]
    deep = {"deep": True} if scenario.get("deep") else {}
    pair.create()
    _run(pair, scenario["before"], names)
    pair.bootstrap(**deep)
    assert pair.differences() == []
    after = scenario["after"]
    for steps in after if after and isinstance(after[0], list) else [after]:
        _run(pair, steps, names)
        pair.catch_up(**deep)
        assert pair.differences() == []
    for table, rows in scenario.get("show", {}).items():
        shown = [["NULL" if value is None else value for value in row] for row in pair.rows("target", table)]
        assert shown == rows, table
    for place in scenario.get("gone", ()):
        assert not (sides.target.running.warehouse / f"{pair.replica}.db" / _fill(place, names)).exists()
    pair.load_again_changes_nothing()


def _fill(text: str, names: Mapping[str, str]) -> str:
    for name, word in names.items():
        text = text.replace("{" + name + "}", word)
    return text


def _run(pair: Pair, steps: list[Any], names: Mapping[str, str]) -> None:
    """Runs the steps, statements in one go."""
    for are_sql, group in itertools.groupby(steps, lambda step: isinstance(step, str)):
        if are_sql:
            pair.sql(*(_fill(statement, names) for statement in group))
            continue
        for step in group:
            _act(pair, {key: _fill(value, names) if isinstance(value, str) else value for key, value in step.items()})


def _act(pair: Pair, step: dict[str, Any]) -> None:
    match step:
        case {"write": place, "text": text}:
            path = pair.place(place)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        case {"remove": place}:
            path = pair.place(place)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        case {"move": place, "to": to}:
            pair.place(place).rename(pair.place(to))
        case {"statistics": table, "column": column, "high": high}:
            _set_statistics(pair, table, column, step.get("partition"), high)
        case _:
            raise AssertionError(step)


def _set_statistics(pair: Pair, table: str, column: str, partition: str | None, high: int) -> None:
    from hmsclient.genthrift.hive_metastore import ttypes

    data = ttypes.ColumnStatisticsData(
        longStats=ttypes.LongColumnStatsData(lowValue=1, highValue=high, numNulls=0, numDVs=2)
    )
    statistic = ColumnStatistic(column=column, type="int", data=struct_to_tjson(data))
    statistics = Statistics(db=pair.db, table=table, partition=partition, columns=(statistic,), last_analyzed=1)
    if partition:
        pair.source.set_partition_statistics([statistics])
    else:
        pair.source.set_table_statistics(statistics)


# ---- rubber-banding -----------------------------------------------------------------------------------------------


def _three_acts(pair: Pair, *, capture_between: bool) -> int:
    """p=1 with A, dropped, p=1 with B at the same place; the event before the drop."""
    pair.create()
    pair.sql(
        "CREATE TABLE t (a STRING) PARTITIONED BY (p INT) STORED AS TEXTFILE",
        "CREATE TABLE other (a INT) STORED AS TEXTFILE",
    )
    pair.capture()
    pair.sql("INSERT INTO t PARTITION (p = 1) VALUES ('A')")
    before_the_drop = pair.source.current_event_id()
    for statement in ("ALTER TABLE t DROP PARTITION (p = 1)", "INSERT INTO t PARTITION (p = 1) VALUES ('B')"):
        if capture_between:
            pair.capture()
        pair.sql(statement)
    pair.capture()
    return before_the_drop


def test_a_dump_of_the_past_brings_the_bytes_of_the_past(sides: Sides) -> None:
    """What the source dropped and overwrote since is in $cmroot."""
    pair = sides.pair()
    event = _three_acts(pair, capture_between=True)
    past = pair.dump(until=str(event))
    loaded = pair.load(past)
    assert (past.to_event, loaded.files_from_cmroot) == (event, 1)
    assert pair.rows("target", "t") == [["A", 1]]
    pair.last = past
    assert pair.catch_up().files_copied >= 1
    assert pair.rows("target", "t") == [["B", 1]]
    assert pair.differences() == []
    pair.load_again_changes_nothing()


def test_bytes_that_were_never_seen_are_named_as_missing(sides: Sides) -> None:
    """One capture after all three acts: nobody has A, and no target shows B where A belongs."""
    pair = sides.pair()
    event = _three_acts(pair, capture_between=False)
    past = pair.dump(until=str(event))
    with pytest.raises(FilesMissing, match=f"{pair.replica}.db/t/p=1/part-") as caught:
        pair.load(past)
    assert caught.value.exit_code == 1
    with pytest.raises(ObjectNotFound):
        pair.target.table(pair.replica, "t")
    pair.bootstrap()
    assert pair.rows("target", "t") == [["B", 1]]
    assert pair.differences() == []


def test_bytes_that_were_never_seen_stay_missing_under_new_names(sides: Sides) -> None:
    """A table and its partition are renamed before they are dropped, all before the first look."""
    pair = sides.pair()
    pair.create()
    pair.sql("CREATE TABLE t (a STRING) PARTITIONED BY (p INT) STORED AS TEXTFILE")
    pair.capture()
    pair.sql(
        "INSERT INTO t PARTITION (p = 1) VALUES ('A')",
        "ALTER TABLE t PARTITION (p = 1) RENAME TO PARTITION (p = 2)",
        "ALTER TABLE t RENAME TO u",
    )
    event = pair.source.current_event_id()
    pair.sql("DROP TABLE u")
    pair.capture()
    with pytest.raises(FilesMissing, match=f"{pair.replica}.db/u/p=2/part-"):
        pair.load(pair.dump(until=str(event)))


# ---- other ways to run --------------------------------------------------------------------------------------------


def test_spark_copies_what_threads_would(sides: Sides) -> None:
    engine = AutoEngine(
        LocalEngine(2), SparkEngine("local[2]", environment=spark_environment(find_java(os.environ))), choice="spark"
    )
    pair = sides.pair(engine=engine)
    pair.create()
    pair.sql(
        "CREATE TABLE t (a INT) PARTITIONED BY (p INT) STORED AS TEXTFILE",
        "INSERT INTO t PARTITION (p) VALUES (1, 1), (2, 2)",
    )
    try:
        pair.bootstrap()
        assert pair.differences() == []
        pair.sql("INSERT INTO t PARTITION (p) VALUES (3, 1), (4, 3)", "ALTER TABLE t DROP PARTITION (p = 2)")
        pair.catch_up()
        assert pair.differences() == []
    finally:
        engine.stop()


def test_many_tables_are_committed_side_by_side(sides: Sides) -> None:
    """2.3 undoes alters at random when several arrive at once."""
    pair = sides.pair()
    pair.create()
    for number in range(30):
        pair.source.create_table(_plain_table(pair, f"t{number}"))
        (pair.place(f"t{number}") / "f").write_text(f"{number}\n")
    pair.bootstrap()
    for number in range(30):
        table = pair.source.table(pair.db, f"t{number}")
        pair.source.alter_table(
            pair.db, table.name, msgspec.structs.replace(table, parameters=table.parameters | {"k": "v"})
        )
    pair.last = pair.dump(since=pair.last.dump if pair.last else None)
    pair.load(pair.last, jobs=6)
    assert pair.differences() == []


# ---- a source that does not stand still ---------------------------------------------------------------------------


def _plain_table(pair: Pair, name: str, *, partitioned: bool = False) -> Table:
    return Table(
        db=pair.db,
        name=name,
        partition_keys=(Column(name="p", type="string"),) if partitioned else (),
        storage=Storage(
            columns=(Column(name="a", type="string"),),
            input_format="org.apache.hadoop.mapred.TextInputFormat",
            output_format="org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
            serde=Serde(name="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"),
        ),
    )


class Writer:
    """Changes a database without pause until it is asked to stop: tables, partitions, files."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self._pair, self._random = pair, random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.error: BaseException | None = None
        self.changes = 0

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self.error:
            raise self.error

    def _work(self) -> None:
        try:
            while not self._stopping.is_set():
                self._change()
                self.changes += 1
        except BaseException as error:
            self.error = error

    def _change(self) -> None:
        source, db, choose = self._pair.source, self._pair.db, self._random
        tables = source.table_names(db)
        name, free = choose.choice(tables or [""]), f"t{choose.randrange(1_000_000)}"
        match choose.randrange(10) if len(tables) > 3 else 0:
            case 0:
                partitioned = choose.random() < 0.7
                source.create_table(_plain_table(self._pair, free, partitioned=partitioned))
                if not partitioned:
                    self._write(source.table(db, free).location)
            case 1:
                table = source.table(db, name)
                shutil.rmtree(plain(table.location or ""))
                source.drop_table(db, name)
            case 2:
                source.alter_table(db, name, msgspec.structs.replace(source.table(db, name), name=free))
            case 3:
                table = source.table(db, name)
                source.alter_table(db, name, msgspec.structs.replace(table, parameters={"k": free}))
            case _:
                self._change_partitions(source.table(db, name))

    def _change_partitions(self, table: Table) -> None:
        source, choose = self._pair.source, self._random
        if not table.partition_keys:
            self._write(table.location)
            return
        names = source.partition_names(table.db, table.name)
        if len(names) < 3 or choose.random() < 0.4:
            value = str(choose.randrange(100))
            if f"p={value}" in names:
                return
            location = f"{table.location}/p={value}"
            self._write(location)
            storage = msgspec.structs.replace(table.storage, location=location)
            source.add_partitions(table.db, table.name, [Partition(values=(value,), storage=storage)])
            return
        partition = next(source.partitions(table.db, table.name, [choose.choice(names)]))[0]
        value = str(100 + choose.randrange(1_000_000))
        match choose.randrange(3):
            case 0:
                source.drop_partitions(table.db, table.name, [f"p={partition.values[0]}"])
                shutil.rmtree(plain(partition.location or ""))
            case 1:
                renamed = msgspec.structs.replace(partition, values=(value,))
                source.rename_partition(table.db, table.name, partition.values, renamed)
            case _:
                self._write(partition.location)

    def _write(self, location: str | None) -> None:
        """Replaces the files of a directory, as Spark's overwrite does: old ones go, then new ones come."""
        place = Path(plain(location or ""))
        place.mkdir(parents=True, exist_ok=True)
        for path in place.iterdir():
            path.unlink()
        (place / f"part-{self._random.randrange(3)}").write_text(str(self._random.random()))


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.long) for each in range(1, 4))])
def test_a_source_that_changes_all_the_time_is_caught_up_with(sides: Sides, seed: int) -> None:
    pair = sides.pair()
    pair.create()
    with Writer(pair, seed) as writer:
        pair.bootstrap()
        pair.catch_up()
        pair.catch_up()
        while writer.changes <= 20 and not writer.error:  # a busy machine gives it less time
            pair.catch_up()
    assert writer.changes > 20
    pair.catch_up()
    assert pair.differences() == []
