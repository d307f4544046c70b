"""Write ids of transactional tables in a load. On the driver.

Files come first: a directory of a new write id has no readers before its transaction commits on the target. Then
transactions that stand for the source's get the ids, and end in the order in which the source's ended: readers see one
commit of the source after another, over all tables of the load. Those that are open at the source stay open here until
a later load ends them. Every step may run twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import repeat

from replicator.captures.dumps.layout import BOOTSTRAP
from replicator.core.formats import is_transactional
from replicator.core.model import Name, Part, WriteIds
from replicator.errors import Refused
from replicator.metastore.client import Metastore, MetastoreReader
from replicator.metastore.exclusive_locks import IN_USE, ExclusiveLocks
from replicator.metastore.transactions import not_shown, policy_of, unnamed
from replicator.replay.plan import Plan, TablePlan

NONE = WriteIds(0)
PATIENCE, LOCKING, PAUSE = 60.0, 10.0, 0.25  # seconds
MOST = 1_000_000  # write ids that one load gives to a table: each costs two calls, so these take a day


@dataclass
class Ending:
    """A transaction to end. `order`: the event of its end at the source; 0: unknown."""

    commit: bool
    order: int = 0


@dataclass
class WriteIdPlan:
    """The changes that bring write ids of the tables of one database to the source's. `first`: by table, the ids stated
    at once; `allocated`: by table, (transaction, id) pairs, in the order of the ids; `opened`: transactions to open;
    `ended`: transactions to end."""

    first: dict[Name, int] = field(default_factory=dict)
    allocated: dict[Name, list[tuple[int, int]]] = field(default_factory=dict)
    opened: dict[int, None] = field(default_factory=dict)
    ended: dict[int, Ending] = field(default_factory=dict)


def plan_write_ids(steps: Iterable[TablePlan], there: Mapping[Name, WriteIds]) -> dict[str, WriteIdPlan]:
    """Decides the changes of write ids, by database of the target. there: the ids now."""
    plans: dict[str, WriteIdPlan] = {}
    for step in steps:
        wanted, now = step.lineage.write_ids, there.get(step.name, NONE)
        if wanted is None:
            continue
        plan, high = plans.setdefault(step.name[0], WriteIdPlan()), now.high
        if high == 0:  # those before the first whose transaction is open, or named by an event: at once
            high = min((*wanted.open, *step.lineage.written, wanted.high + 1)) - 1
            if high:
                plan.first[step.name] = high
        if (lacking := wanted.high - high) > MOST:
            raise Refused(
                f"table {'.'.join(step.name)} of the target lacks {lacking:,} write ids: a load adds at most {MOST:,}",
                hint="a bootstrap of this table states them at once: drop it on the target, then bootstrap it",
            )
        for each in (*range(high + 1, wanted.high + 1), *now.open):
            known = step.lineage.written.get(each)
            transaction = known.transaction if known else unnamed(step.name, each)
            if each > high:
                plan.opened[transaction] = None
                plan.allocated.setdefault(step.name, []).append((transaction, each))
            if each <= wanted.high and each not in wanted.open:
                plan.ended[transaction] = Ending(each not in wanted.aborted, known.commit if known else 0)
    return plans


def end_transactions(plan: Plan, target: Metastore) -> None:
    """Brings the write ids of a load's transactional tables to the source's. Raises Refused if rows of the source stay
    invisible: the target has ended a transaction otherwise."""
    steps = _steps(plan)
    changes = plan_write_ids(steps, _write_ids(target, steps)) if steps else {}
    ended = list[tuple[int, int, str, bool]]()
    for database, each in changes.items():
        policy = policy_of(plan.metadata.root_id, database)
        for (db, name), high in each.first.items():
            target.set_write_ids(db, name, high)
        own = target.open_replicated(policy, list(each.opened))
        for (db, name), pairs in each.allocated.items():
            for some in runs(pairs, own):
                target.allocate_write_ids(db, name, policy, some)
        ended += [(ending.order, number, policy, ending.commit) for number, ending in each.ended.items()]
    for _, transaction, policy, commit in sorted(ended):  # those of unknown order first
        target.end_replicated(policy, transaction, commit=commit)
    there = _write_ids(target, steps) if steps else {}
    for step in steps:
        if hidden := _hidden(step, there):
            raise _never_shown(step, hidden)


@contextmanager
def without_readers(
    plan: Plan, target: Metastore, late: Container[Name | None], wait: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Keeps queries of the target away while a load removes files of transactional tables, which they may have listed:
    waits for those that have begun before, as Hive's own cleaner does, for at most PATIENCE seconds, and then locks the
    tables until the end of the block. A table that is in use for LOCKING seconds more stays unlocked. late: tables of
    whose files the source has removed some."""
    parts: list[Part] = [
        (*step.name, "")
        for step in plan.tables
        if (step.exists or step.begins_again) and step.table and is_transactional(step.table)
        if plan.transactions and (step.name in late or step.prune)
    ]
    with ExitStack() as stack:
        if parts:
            _await_readers(target, wait)
            locks = ExclusiveLocks(target, stack, plan.metadata.root_id)
            for pause in repeat(PAUSE, round(LOCKING / PAUSE)):
                locks.take(parts)
                parts = [part for part, why in locks.unlocked.items() if why == IN_USE]
                if not parts:
                    break
                locks.unlocked.clear()
                wait(pause)
            stack.enter_context(locks.beating())
        yield


def _await_readers(target: MetastoreReader, wait: Callable[[float], None]) -> None:
    before = target.readers_open()
    for pause in repeat(PAUSE, round(PATIENCE / PAUSE)):
        if not before or not (before := before & target.readers_open()):
            return
        wait(pause)


def runs(pairs: Iterable[tuple[int, int]], own: Mapping[int, int]) -> Iterator[list[tuple[int, int]]]:
    """Yields pairs that one call may allocate: a server gives ids to transactions in the order of its own ids."""
    some: list[tuple[int, int]] = []
    for each in pairs:
        if some and own[some[-1][0]] > own[each[0]]:
            yield some
            some = []
        some.append(each)
    if some:
        yield some


def end_left_locks(plan: Plan, target: Metastore) -> None:
    """Ends the locks of `without_readers` that a killed load has left: queries wait for them."""
    if any(loading for _, loading in plan.seen.values()) and (steps := _steps(plan)):
        target.end_locks(plan.metadata.root_id, {step.name for step in steps})


def begin_again(plan: Plan, target: MetastoreReader) -> None:
    """Marks the existing transactional tables whose write ids on the target can never become the source's: their
    metadata is dropped and created again, and so begins with new ids. Raises Refused unless the load may replace what
    others have written: they have taken ids that the source will take."""
    steps = [step for step in _steps(plan) if step.exists]
    there = _write_ids(target, steps) if steps else {}
    for step in steps:
        wanted, now = step.lineage.write_ids, there.get(step.name, NONE)
        ahead = wanted is not None and now.high > wanted.high
        if wanted is not None and ahead and not plan.replaces_commits:
            raise Refused(
                f"another writer has written to the transactional table {'.'.join(step.name)} of the target: its write "
                f"ids reach {now.high}, those of the source {wanted.high}",
                hint="--overwrite, or a repair of the table, replaces it (its files are moved to the target's $cmroot);"
                " to keep its rows, write them at the source",
            )
        aborted = sorted(set(now.aborted) & set(_hidden(step, there)))
        step.begins_again = bool(aborted or (ahead and not plan.exact)) and plan.metadata.kind == BOOTSTRAP
        if aborted and not step.begins_again:
            raise _never_shown(step, aborted)


def _never_shown(step: TablePlan, ids: Sequence[int]) -> Refused:
    return Refused(
        f"table {'.'.join(step.name)} of the target does not show the writes {list(ids[:5])} of the source, which are "
        "committed: its metastore has aborted them, or another program has these write ids",
        hint="a repair of the table replaces it: `replicator repair`",
    )


def _hidden(step: TablePlan, there: Mapping[Name, WriteIds]) -> list[int]:
    ids = step.lineage.write_ids
    return not_shown(ids, there[step.name]) if ids and step.name in there else []


def _steps(plan: Plan) -> list[TablePlan]:
    return [
        step
        for step in plan.tables
        if step.table and step.lineage.write_ids and is_transactional(step.table) and plan.transactions
    ]


def _write_ids(target: MetastoreReader, steps: Iterable[TablePlan]) -> dict[Name, WriteIds]:
    return target.write_ids([step.name for step in steps], target.snapshot())
