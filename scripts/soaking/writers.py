"""Who writes to the source: one over thrift, with files of its own, and one over Spark SQL. Each has a database.

Both go on when the metastore is killed under them: what an operation did then is looked up, not guessed.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.error import URLError

from hmsclient.genthrift.hive_metastore import ttypes
from plain_tables import PlainDatabase, remove_tree

from replicator.commands.demos.spark_sql import SparkSql
from replicator.core.model import ColumnStatistic, Statistics
from replicator.errors import Error
from replicator.metastore.codecs import struct_to_tjson
from replicator.metastore.thrift import ThriftMetastore
from soaking.constraining import PARENT, Constrainer
from soaking.watching import METADATA, PARTITION, SPARK, Marks

PLACES = [f"t{number}" for number in range(12)]  # names of tables that come and go
KEPT_DAYS = 200  # marked partitions of one table; the oldest go
REFUSALS = (Error, RuntimeError, URLError, ConnectionError, TimeoutError)  # of a metastore, Spark, or HDFS
PLAIN_SHARES = {
    "mark": 30,
    "day": 15,
    "create": 6,
    "alter": 9,
    "add": 12,
    "alter a partition": 8,
    "overwrite": 8,
    "write": 4,
    "drop a partition": 4,
    "rename": 2,
    "drop": 2,
    "analyze": 4,
    "function": 2,
}
NEWER_SHARES = {"analyze a partition": 4, "constrain": 5, "unconstrain": 3}  # that servers since 4.0 tell by events
SQL_SHARES = {"insert": 45, "overwrite": 15, "create": 10, "append": 15, "drop a partition": 5, "drop": 5, "rename": 5}


class Writer(threading.Thread):
    """Writes until it is asked to end. `made`: operations that the metastore confirmed; `refused`: those that
    failed."""

    def __init__(self, name: str, shares: dict[str, int], dice: random.Random) -> None:
        super().__init__(name=name, daemon=True)
        self._shares, self._dice = shares, dice
        self.over = threading.Event()
        self.made: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.over.is_set():
                operation = self._dice.choices(list(self._shares), list(self._shares.values()))[0]
                try:
                    self.operate(operation)
                    self.made[operation] += 1
                except REFUSALS as error:
                    self.refused[type(error).__name__] += 1
                    self._recover()
                self.over.wait(self.pause())
        except BaseException as error:  # reported by who waits for the end
            self.error = error

    def end(self) -> None:
        self.over.set()
        self.join()
        if self.error:
            raise self.error

    def operate(self, operation: str) -> None:
        raise NotImplementedError

    def look(self) -> None:
        """Reads what there is."""
        raise NotImplementedError

    def pause(self) -> float:
        raise NotImplementedError

    def _recover(self) -> None:
        while not self.over.is_set():
            with contextlib.suppress(*REFUSALS):
                return self.look()
            self.over.wait(0.2)
        return None


class PlainWriter(Writer):
    """`rate`: of time since the beginning, operations a second; newer: on a server since Hive 4.0."""

    def __init__(
        self,
        metastore: ThriftMetastore,
        db: str,
        warehouse: Any,
        marks: Marks,
        rate: Callable[[float], float],
        dice: random.Random,
        *,
        newer: bool = False,
    ) -> None:
        super().__init__("thrift writer", PLAIN_SHARES | (NEWER_SHARES if newer else {}), dice)
        self._db = PlainDatabase(metastore, db, warehouse)
        self._constraints = Constrainer(metastore.uri, db, newer=newer)
        self._marks, self._rate = marks, rate
        self._number = 0
        self._days: list[int] = []
        self._tables: dict[str, set[str]] = {}
        self._functions: list[str] = []
        self._began = self._next = time.monotonic()

    def begin(self) -> None:
        self._db.create()
        self._db.table("marks")
        self._db.table(PARENT)
        self._constraints.begin()
        self._db.partitioned("days", {})
        self._began = self._next = time.monotonic()

    def pause(self) -> float:
        """What is behind by up to a second is made up for."""
        now = time.monotonic()
        self._next = max(self._next + 1 / self._rate(now - self._began), now - 1)
        return max(0.0, self._next - now)

    def operate(self, operation: str) -> None:
        self._number += 1
        number, name = self._number, self._dice.choice(PLACES)
        content = {f"f{number}": f"{number}\n" * self._dice.randint(1, 50)}
        parts = self._tables.get(name)
        part = self._dice.choice(sorted(parts)) if parts else None
        match operation:
            case "mark":
                self._db.alter("marks", mark=str(number))
                self._marks.committed(METADATA, number)
            case "day":
                self._db.add("days", {str(number): {f"day-{number}": str(number)}})
                self._marks.committed(PARTITION, number)
                self._days.append(number)
                if len(self._days) > KEPT_DAYS:
                    self._drop_day()
            case "function" if self._functions and self._dice.random() < 0.4:
                self._db.metastore.drop_function(self._db.name, self._functions.pop())
            case "function":
                self._db.function(f"function{number}")
                self._functions.append(f"function{number}")
            case _ if parts is None:
                self._db.partitioned(name, {str(number): content})
                self._tables[name] = {str(number)}
            case "alter" | "create":
                self._db.alter(name, comment=str(number))
            case "add":
                self._db.add(name, {str(number): content})
                parts.add(str(number))
            case "rename":
                free = self._dice.choice(PLACES)
                if free not in self._tables:
                    self._db.rename(name, free)
                    self._constraints.renamed(name, free)
                    self._tables[free] = self._tables.pop(name)
            case "drop":
                self._db.drop(name)
                self._constraints.gone(name)
                del self._tables[name]
            case "constrain":
                self._constraints.add(name, number, self._dice)
            case "unconstrain":
                self._constraints.drop(name, self._dice)
            case "analyze":
                self._db.metastore.set_table_statistics(self._statistics("days"))
            case _ if part is None:
                return
            case "analyze a partition":
                self._db.metastore.set_partition_statistics([self._statistics(name, f"p={part}")])
            case "alter a partition":
                self._db.alter_partition(name, part, note=str(number))
            case "write":  # a file that nothing announces
                self._db.write(f"{name}/p={part}", content)
            case "overwrite":
                self._db.write(f"{name}/p={part}", {"same": str(number)})
                self._db.alter_partition(name, part, numRows=str(number))
            case "drop a partition":
                self._db.drop_partitions(name, [part])
                parts.remove(part)

    def _statistics(self, table: str, partition: str | None = None) -> Statistics:
        longs = ttypes.LongColumnStatsData(lowValue=1, highValue=self._number, numNulls=0, numDVs=2)
        data = struct_to_tjson(ttypes.ColumnStatisticsData(longStats=longs))
        columns = (ColumnStatistic(column="a", type="int", data=data),)
        return Statistics(self._db.name, table, partition, columns, last_analyzed=1)

    def _drop_day(self) -> None:
        day = self._days.pop(0)
        self._marks.withdraw(PARTITION, day)
        self._db.drop_partitions("days", [str(day)])

    def look(self) -> None:
        names = self._db.metastore.table_names(self._db.name)
        found = {name: self._values(name) for name in names if name in PLACES}
        self._days = sorted(int(value) for value in self._values("days"))
        self._tables = found
        self._functions = [each.name for each in self._db.metastore.functions(self._db.name)]
        self._constraints.look(found)
        for leftover in {each.name for each in self._db.home.iterdir()} - {*names}:
            remove_tree(self._db.home / leftover)  # of a drop that was made, and not answered

    def _values(self, name: str) -> set[str]:
        return {part.removeprefix("p=") for part in self._db.metastore.partition_names(self._db.name, name)}


class SqlWriter(Writer):
    """Spark SQL: tables of Parquet, one statement after the other."""

    def __init__(self, spark: SparkSql, db: str, marks: Marks, seconds: float, dice: random.Random) -> None:
        """`seconds`: from one statement to the next."""
        super().__init__("Spark's writer", SQL_SHARES, dice)
        self._spark, self._db, self._marks, self._seconds = spark, db, marks, seconds
        self._number = 0
        self._days: list[int] = []
        self._tables: list[str] = []

    def begin(self) -> None:
        self._spark.run(
            f"CREATE DATABASE {self._db}",
            f"USE {self._db}",
            "CREATE TABLE days (a INT, b STRING, p INT) USING PARQUET PARTITIONED BY (p)",
        )

    def pause(self) -> float:
        return self._seconds

    def operate(self, operation: str) -> None:
        self._number += 1
        number = self._number
        rows = f"SELECT {number} AS a, 'row {number}' AS b"
        table = self._dice.choice(self._tables) if self._tables else None
        match operation:
            case "insert":
                self._spark.run(f"INSERT INTO days PARTITION (p = {number}) {rows}")
                self._marks.committed(SPARK, number)
                self._days.append(number)
            case "overwrite" if self._days:
                self._spark.run(f"INSERT OVERWRITE days PARTITION (p = {self._dice.choice(self._days)}) {rows}")
            case "drop a partition" if len(self._days) > 5:
                day = self._days.pop(0)
                self._marks.withdraw(SPARK, day)
                self._spark.run(f"ALTER TABLE days DROP IF EXISTS PARTITION (p = {day})")
            case "append" if table:
                self._spark.run(f"INSERT INTO {table} {rows}")
            case "rename" if table:
                self._spark.run(f"ALTER TABLE {table} RENAME TO s{number}")
                self._tables[self._tables.index(table)] = f"s{number}"
            case "drop" if table and len(self._tables) > 3:
                self._spark.run(f"DROP TABLE {table}")
                self._tables.remove(table)
            case _:
                self._spark.run(f"CREATE TABLE s{number} USING PARQUET AS {rows}")
                self._tables.append(f"s{number}")

    def look(self) -> None:
        tables = [str(row[1]) for row in self._spark.run(f"SHOW TABLES IN {self._db}")]
        self._spark.run("REFRESH TABLE days")
        days = [str(row[0]) for row in self._spark.run("SHOW PARTITIONS days")]
        self._tables = [name for name in tables if name != "days"]
        self._days = sorted(int(day.removeprefix("p=")) for day in days)
