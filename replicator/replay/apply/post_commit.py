"""The check after the commit and before the checkpoint: the target's metastore has the tables that the load made, and
not those it dropped.

A 2.3 server may answer a change as done and have rolled it back: its handler ignores what the commit of its transaction
returns (HiveMetaStore.drop_table_core, create_table_core). One call a database tells.
"""

from __future__ import annotations

from contextlib import suppress

from replicator.errors import CommitOutcomeUnknown, ObjectNotFound
from replicator.metastore.client import Metastore
from replicator.replay.plan.plan import Plan
from replicator.text.quantity import count_text


def prove(plan: Plan, target: Metastore) -> None:
    """Drops again what is there still. Raises CommitOutcomeUnknown for a table that is not as planned; the same load
    again puts it right."""
    made = {step.name for step in plan.tables if step.table is not None}
    dropped = {(table.db, table.name) for table in plan.drops} - made
    there = _names(target, {db for db, _ in made | dropped})
    for db, name in sorted(dropped & there):
        with suppress(ObjectNotFound):
            target.drop_table(db, name)
    wrong = made - there
    if dropped & there:
        wrong |= dropped & _names(target, {db for db, _ in dropped & there})
    if wrong:
        some = ", ".join(sorted(".".join(name) for name in wrong)[:5])
        raise CommitOutcomeUnknown(
            f"{target.uri} said that it had made or dropped {count_text(len(wrong), 'table')}, and has not: {some}",
            hint="the checkpoint was not written; run the same load again",
        )


def _names(target: Metastore, databases: set[str]) -> set[tuple[str, str]]:
    found = set()
    for db in databases:
        with suppress(ObjectNotFound):
            found |= {(db, name) for name in target.table_names(db)}
    return found
