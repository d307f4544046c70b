"""Smoke queries: what a drill asks of its shadows, and how an answer is judged.

Without any of one's own: the number of rows of some tables, compared with statistics that say they are exact, and the
first row of some views. Which ones is drawn again by each drill.
"""

from __future__ import annotations

import os
import time as clocks
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from random import Random
from typing import Any, Protocol

import msgspec

from replicator.core.spark import SparkEngine, hive_settings
from replicator.core.text.sql_text import quoted_name
from replicator.errors import Error
from replicator.metastore.client import Metastore, MetastoreReader
from replicator.metastore.java import find_java, spark_environment
from replicator.policies.drills.build import Shadows, row_count
from replicator.policies.drills.drill_record import Asked
from replicator.replay.plan.target import default_warehouse

ROWS = 10  # of an answer that are kept
TEXT = 1000  # characters of a value, or of an error


class QueryEngine(Protocol):
    """What answers queries, reading only: `engine.SparkEngine`."""

    def answer(self, query: str, rows: int) -> list[list[Any]]:
        """The first rows. Raises Error."""
        ...


@contextmanager
def spark_on(
    metastore: Metastore, master: str | None = None, settings: Mapping[str, str] | None = None, session: Any = None
) -> Iterator[QueryEngine]:
    """Spark with a metastore's tables, for the length of a block: `session`'s, or this process's, or one that is
    started. Raises Error when it does not start, or has another catalog."""

    def environment() -> Mapping[str, str]:
        return spark_environment(find_java(os.environ))

    given = dict(settings or {})
    known = hive_settings(metastore.config, default_warehouse(metastore), given)
    engine = SparkEngine(master, known | given, environment, session)
    try:
        engine.answer("SELECT 1", 1)
        yield engine
    finally:
        engine.stop()


@dataclass(frozen=True)
class SmokeQuery:
    """A query; `expected`: its one number, where it is known; `replica`: the database that it asks of, where there is
    one."""

    query: str
    expected: int | None = None
    replica: str = ""


def smoke_queries(
    metastore: MetastoreReader, shadows: Shadows, names: Mapping[str, Sequence[str]], sample: int, own: Sequence[str]
) -> list[SmokeQuery]:
    """`names`: tables shown, by shadow database. sample: how many of them are asked. own: queries on the replica, as
    whoever uses it writes them; they are asked of the shadows. Own ones come first."""
    found = [SmokeQuery(shadows.query(text.strip().rstrip(";"))) for text in own]
    replicas = {shadow: replica for replica, shadow in shadows.names.items()}
    everything = [(shadow, name) for shadow, tables in sorted(names.items()) for name in sorted(tables)]
    chosen = Random(shadows.id).sample(everything, min(sample, len(everything)))
    for shadow in sorted(names):
        replica = replicas[shadow]
        for table in metastore.tables(replica, sorted(name for db, name in chosen if db == shadow)):
            what = quoted_name(shadow, table.name)
            if table.is_view:
                found.append(SmokeQuery(f"SELECT * FROM {what} LIMIT 1", replica=replica))
            else:
                found.append(SmokeQuery(f"SELECT count(*) FROM {what}", row_count(table), replica))
    return found


def ask(asking: QueryEngine, query: SmokeQuery, changed: Callable[[str], bool]) -> Asked:
    """`changed(replica)`: whether replication has changed a database (no name: any) since its shadow was made; asked
    only when the answer is not good."""
    began = clocks.monotonic()
    try:
        rows = [list(map(_plain, row)) for row in asking.answer(query.query, ROWS)]
        wrong = query.expected is not None and rows != [[query.expected]]
        asked = Asked(query=query.query, outcome="different" if wrong else "good", rows=rows, expected=query.expected)
    except Error as error:
        asked = Asked(query=query.query, outcome="failed", expected=query.expected, error=str(error)[:TEXT])
    if asked.outcome != "good" and changed(query.replica):
        asked = msgspec.structs.replace(asked, outcome="changed")
    return msgspec.structs.replace(asked, seconds=round(clocks.monotonic() - began, 3))


def _plain(value: Any) -> Any:
    number = isinstance(value, bool | int) or (isinstance(value, float) and isfinite(value))
    return value if value is None or number else str(value)[:TEXT]
