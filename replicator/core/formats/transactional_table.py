"""Hive's transactional tables, full and insert-only: the directories of committed write ids, and the ids themselves.

A replica's own metastore decides which directories its readers see, so loads bring files first, then the write ids
(`replay/apply/transactional.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cmroot.store import acid
from replicator.core.formats.interface import FULL, INSERT_ONLY, Captured, Removals, Signs, TableFormat
from replicator.core.model import Table

NO_WRITE_IDS = "a transactional table: the source's metastore has no write ids, as before Hive 3"
NO_TRANSACTIONS = "a transactional table: the target's metastore has no write ids, as before Hive 3"
UNREPLAYED = "a transactional table: its rows depend on the source's transactions"  # of releases that replicated none
OF_VIEW = "a transactional table of a materialized view: rebuild the view on the target"


@dataclass(frozen=True)
class TransactionalTable(TableFormat):
    """The format."""

    def recognises(self, signs: Signs) -> bool:
        return signs.properties.get("transactional") == "true"

    def why_left_out(self, table: Table) -> str:
        return OF_VIEW if table.has_query else ""

    def problems(self, captured: Captured) -> Iterator[str]:
        yield from super().problems(captured)
        if not captured.has_write_ids:
            yield NO_WRITE_IDS

    def transactions(self, table: Table) -> str:
        if table.has_query:
            return ""
        given = Signs(table).properties.get("transactional_properties")
        return INSERT_ONLY if given == INSERT_ONLY else FULL

    def replica_path(self, path: str) -> str:
        return acid.replica_path(path)

    def whole(self, path: str) -> str:
        found = acid.directory_of(path)
        return found.name if found and found.is_wide else ""


TRANSACTIONAL = TransactionalTable(
    "acid",
    "a transactional table",
    "transactional",
    of_views=False,
    no_shadow="a transactional table cannot be external",
    no_unreferenced="a transactional table's files belong to transactions; its compactor removes them",
    removals=Removals.METADATA,
    paths=r"^(base|delta|delete_delta)_\d",
    special=True,
    switches_itself=True,
    rewrites=True,
    write_ids=True,
    managed=True,
)
