"""Constraints that a writer makes and drops, through bindings that are independent of the product's."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from constraints import Constraints
from thrift.Thrift import TException

PARENT = "parent"  # a table with a primary key that stays; foreign keys refer to it
KINDS = ("pk", "fk", "uq", "nn", "df", "ck")


class Constrainer:
    """Of the tables of one database. Raises RuntimeError where the metastore refuses, or is gone."""

    def __init__(self, uri: str, db: str, *, newer: bool) -> None:
        """newer: the server has more than keys."""
        self._constraints, self._db = Constraints(uri, newer=newer), db
        self._there: dict[str, dict[str, str]] = {}  # kind -> name, by table

    def begin(self) -> None:
        self._constraints.primary(f"{self._db}.{PARENT}", f"pk_{self._db}_{PARENT}", "a")

    def add(self, table: str, number: int, dice: random.Random) -> None:
        """One of a kind that the table does not have yet, if there is one."""
        there = self._there.setdefault(table, {})
        if free := [kind for kind in KINDS if kind not in there]:
            kind = dice.choice(free)
            name = f"{kind}_{self._db}_{number}"
            self._call(kind, f"{self._db}.{table}", name)
            there[kind] = name

    def drop(self, table: str, dice: random.Random) -> None:
        if there := self._there.get(table):
            kind = dice.choice(sorted(there))
            with _told():
                self._constraints.drop(f"{self._db}.{table}", there[kind])
            del there[kind]

    def renamed(self, old: str, new: str) -> None:
        self._there[new] = self._there.pop(old, {})

    def gone(self, table: str) -> None:
        self._there.pop(table, None)

    def look(self, tables: Iterable[str]) -> None:
        """Reads what there is. Raises RuntimeError as long as the metastore is gone."""
        with _told():
            shown = {table: self._constraints.shown(f"{self._db}.{table}")[f"{self._db}.{table}"] for table in tables}
        named = {table: [str(each) for some in rows for each in some] for table, rows in shown.items()}
        self._there = {
            table: {text[:2]: text for text in texts if text[2:].startswith(f"_{self._db}_") and text[:2] in KINDS}
            for table, texts in named.items()
        }

    def _call(self, kind: str, table: str, name: str) -> None:
        made = self._constraints
        with _told():
            match kind:
                case "pk":
                    made.primary(table, name, "b")
                case "fk":
                    made.foreign(table, name, "a", f"{self._db}.{PARENT}", "a")
                case "uq":
                    made.unique(table, name, "b", "a")
                case "nn":
                    made.of_column("not_null", table, name, "b")
                case "df":
                    made.of_column("default", table, name, "b", "'none'")
                case "ck":
                    made.of_column("check", table, name, "a", "a > 0")


@contextmanager
def _told() -> Iterator[None]:
    """As RuntimeError, which a writer counts as refused."""
    try:
        yield
    except (TException, OSError) as error:
        raise RuntimeError(repr(error)) from error
