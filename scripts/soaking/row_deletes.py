"""Iceberg tables that Spark writes and reads: appends, deletes and updates of rows as delete files (version 2 of the
specification) or deletion vectors (3), compaction and expiry. A state of a table is noted before Spark commits it."""

from __future__ import annotations

import itertools
import random

from iceberg_spark import IcebergSpark

VERSIONS = (2, 3)
KEPT = 3  # snapshots that an expiry keeps
ROWS = 3  # of an append
_BY_ROW = "'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read'"

State = frozenset[tuple[str, str]]


class Written:
    """A table of the source, and its states in their order. The first has no rows."""

    def __init__(self, source: IcebergSpark, db: str, version: int, place: str, chance: random.Random) -> None:
        self.name = f"{db}.s{version}"
        self.states: list[State] = [frozenset()]
        self.compactions = self.expiries = 0
        self._source, self._chance, self._rows = source, chance, dict[str, str]()
        self._ids, self._rounds = itertools.count(), itertools.count(1)
        source(
            f"create table c.{self.name} (id bigint, name string) using iceberg partitioned by (bucket(2, id))"
            f" location '{place}/s{version}' tblproperties ('format-version' = '{version}', {_BY_ROW})"
        )

    @property
    def commits(self) -> int:
        """Those that change rows."""
        return len(self.states) - 1

    def write(self) -> None:
        """A round of a writer: an append, and at times the other changes."""
        number, table = next(self._rounds), f"c.{self.name}"
        new = [str(next(self._ids)) for _ in range(ROWS)]
        values = ", ".join(f"({id}, 'n{id}')" for id in new)
        self._commit(f"insert into {table} values {values}", self._rows | {id: f"n{id}" for id in new})
        if number % 2 == 0:
            gone = self._chance.choice(list(self._rows))
            self._commit(f"delete from {table} where id = {gone}", {i: n for i, n in self._rows.items() if i != gone})
        if number % 3 == 0:
            id, name = self._chance.choice(list(self._rows)), f"round {number}"
            self._commit(f"update {table} set name = '{name}' where id = {id}", self._rows | {id: name})
        if number % 5 == 0:
            self._call("rewrite_data_files", "options => map('rewrite-all', 'true')")
            self.compactions += 1
        if number % 7 == 0:
            self._call("expire_snapshots", f"older_than => timestamp '2100-01-01 00:00:00', retain_last => {KEPT}")
            self.expiries += 1

    def _commit(self, statement: str, rows: dict[str, str]) -> None:
        self._rows = rows
        self.states.append(frozenset(rows.items()))
        self._source(statement)

    def _call(self, procedure: str, more: str) -> None:
        self._source(f"call c.system.{procedure}(table => '{self.name}', {more})")


class Seen:
    """A reader of a table's replica, which only ever shows a later state."""

    def __init__(self, target: IcebergSpark, written: Written) -> None:
        self._target, self._written, self._last = target, written, 0

    def fault(self) -> str:
        """Reads the replica once. Returns what is wrong with it. Raises AssertionError with Spark's answer."""
        found = rows(self._target, f"c.{self._written.name}")
        known = self._written.states
        later = next((at for at in range(self._last, len(known)) if known[at] == found), None)
        if later is None:
            return f"{self._written.name} shows {sorted(found)}, after state {self._last}"
        self._last = later
        return ""


def rows(spark: IcebergSpark, table: str, version: str = "") -> State:
    asked = f" version as of {version}" if version else ""
    return frozenset((id, name) for id, name in spark(f"select id, name from {table}{asked}"))


def same(source: IcebergSpark, target: IcebergSpark, written: Written) -> bool:
    """Both sides have the same snapshots, each with the same rows; the last one those that were written."""
    table = f"c.{written.name}"
    here, there = (sorted(side(f"select snapshot_id from {table}.snapshots")) for side in (source, target))
    if here != there or rows(target, table) != written.states[-1]:
        return False
    return all(rows(source, table, id) == rows(target, table, id) for (id,) in here)
