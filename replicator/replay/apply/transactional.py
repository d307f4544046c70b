"""Transactional tables in a load: the directories of their files, and write ids on the target.

Files come first. A directory of a new write id has no readers before its transaction commits on the target. One that a
compactor has made replaces others that have readers: its files are copied into a hidden directory, which is renamed
when it is complete. Object stores cannot rename: there such a directory appears file by file.
Then transactions that stand for the source's get the ids, and end in the order in which the source's ended: readers see
one commit of the source after another, over all tables of the load. Those that are open at the source stay open here
until a later load ends them. Every step may run twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from cmroot.store import acid
from cmroot.store.hdfs import SCHEMES
from cmroot.store.place import located
from cmroot.store.s3 import RENAMING
from cmroot.store.spelling import scheme
from replicator.core.model import WriteIds
from replicator.core.not_replicated import is_transactional
from replicator.errors import Refused
from replicator.metastore.client import Metastore
from replicator.metastore.transactions import not_shown, unnamed
from replicator.replay.apply.origins import Wanted, directory_of
from replicator.replay.plan import EntryKey, FileRules, Name, Plan, TablePlan

# ---- directories, on executors ---------------------------------------------------------------------------------------


HIDDEN = ".acid-"  # begin of the name of a directory that is not complete
PATTERN = r"^(base|delta|delete_delta)_\d"  # of the paths of files in directories of write ids
_CAN_RENAME = {"file", *SCHEMES, *RENAMING}


Homes = Mapping[str, EntryKey]
"""Directories of transactional tables and partitions on the target, ending with a slash."""


def acid_homes(homes: Mapping[str, EntryKey], rules: FileRules) -> Homes:
    """Returns those of transactional tables among the directories of objects (see `fold_entries`)."""
    found = ((directory, key, rules.rules_of(*key[:4])) for directory, key in homes.items())
    return {directory: key for directory, key, some in found if some is not None and some[0].acid}


def home_of(target: str, homes: Homes) -> str:
    """Returns the directory of the transactional table or partition that a file belongs to; "" for other files."""
    return directory_of(target, homes) if homes else ""


def wide_directory(target: str, homes: Homes) -> str:
    """Returns the directory that a file belongs to if that appears as a whole; "" for other files."""
    home = home_of(target, homes)
    found = acid.directory_of(target[len(home) :]) if home else None
    return f"{home}{found.name}" if found and found.is_wide and scheme(target) in _CAN_RENAME else ""


def hidden(directory: str) -> str:
    above, _, name = directory.rpartition("/")
    return f"{above}/{HIDDEN}{name}"


def in_hidden(files: Iterable[Wanted], homes: Homes) -> Iterator[Wanted]:
    """Yields files as they are copied: into hidden directories, where the whole does not exist yet."""
    is_new = lru_cache(maxsize=None)(lambda directory: not located(directory).exists())
    for file in files:
        directory = wide_directory(file.target, homes)
        if directory and is_new(directory):
            yield msgspec.structs.replace(file, target=hidden(directory) + file.target[len(directory) :])
        else:
            yield file


def appear(files: Sequence[Wanted], homes: Homes) -> None:
    """Gives hidden directories their names, when all of their files are in them. May run twice; after a repeated load
    of which a part appeared, files are moved one by one."""
    for directory in sorted({wide_directory(file.target, homes) for file in files} - {""}):
        place, staged = located(directory), located(hidden(directory))
        if not staged.exists():
            continue
        if place.exists():
            for path in staged.find():
                (staged / path).move(place / path)
            staged.remove_tree()
        else:
            staged.move(place)


# ---- write ids, on the driver ----------------------------------------------------------------------------------------


NONE = WriteIds(0)


@dataclass
class Ending:
    """A transaction to end. `order`: the event of its end at the source; 0: unknown."""

    commit: bool
    order: int = 0


@dataclass
class WriteIdPlan:
    """The changes that bring write ids of the target to the source's. `first`: by table, the ids stated at once;
    `allocated`: by table, (transaction, id) pairs, in the order of the ids; `opened`: transactions to open; `ended`:
    transactions to end."""

    first: dict[Name, int] = field(default_factory=dict)
    allocated: dict[Name, list[tuple[int, int]]] = field(default_factory=dict)
    opened: dict[int, None] = field(default_factory=dict)
    ended: dict[int, Ending] = field(default_factory=dict)

    def in_order(self) -> Iterable[tuple[int, Ending]]:
        """Returns the transactions to end: those of unknown order first."""
        return sorted(self.ended.items(), key=lambda each: (each[1].order, each[0]))


def policy_of(plan: Plan) -> str:
    """Returns the name under which the target knows transactions of this source in these databases."""
    return f"replicator.{plan.metadata.root_id}.{'.'.join(sorted(plan.placement.databases.values()))}"[:250]


def plan_write_ids(steps: Iterable[TablePlan], there: Mapping[Name, WriteIds]) -> WriteIdPlan:
    """Decides the changes of write ids. there: those of the target now."""
    plan = WriteIdPlan()
    for step in steps:
        wanted, now = step.lineage.write_ids, there.get(step.name, NONE)
        if wanted is None:
            continue
        high = now.high
        if high == 0:  # of a new table: all ids before the first open one at once, as committed: none has a file
            high = min(wanted.open) - 1 if wanted.open else wanted.high
            if high:
                plan.first[step.name] = high
        fresh = range(high + 1, wanted.high + 1)
        for each in (*fresh, *now.open):
            known = step.lineage.written.get(each)
            transaction = known.transaction if known else unnamed(step.name, each)
            if each > high:
                plan.opened[transaction] = None
                plan.allocated.setdefault(step.name, []).append((transaction, each))
            if each <= wanted.high and each not in wanted.open:
                plan.ended[transaction] = Ending(each not in wanted.aborted, known.commit if known else 0)
    return plan


def end_transactions(plan: Plan, target: Metastore) -> None:
    """Brings the write ids of a load's transactional tables to the source's. Raises Refused if rows of the source stay
    invisible: the target has ended a transaction otherwise."""
    steps, policy = _steps(plan), policy_of(plan)
    if not steps:
        return
    changes = plan_write_ids(steps, _write_ids(target, steps))
    for (db, name), high in changes.first.items():
        target.set_write_ids(db, name, high)
    own = target.open_replicated(policy, list(changes.opened))
    for (db, name), pairs in changes.allocated.items():
        for some in runs(pairs, own):
            target.allocate_write_ids(db, name, policy, some)
    for transaction, ending in changes.in_order():
        target.end_replicated(policy, transaction, commit=ending.commit)
    there = _write_ids(target, steps) if changes.first or changes.opened or changes.ended else {}
    for step in steps:
        ids = there.get(step.name)
        if step.lineage.write_ids and ids and (hidden := not_shown(step.lineage.write_ids, ids)):
            raise Refused(
                f"table {'.'.join(step.name)} of the target does not show the writes {hidden[:5]} of the source, which "
                "are committed: its metastore has aborted them, or another program has these write ids",
                hint="drop this table of the target and load a bootstrap of it: `replicator verify --repair` does both",
            )


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


def refuse_writes_of_others(plan: Plan, target: Metastore) -> None:
    """Raises Refused if another writer has written to a transactional table of the target, before anything is
    changed."""
    steps = [step for step in _steps(plan) if step.exists]
    if not steps or plan.replaces_commits:
        return
    there = _write_ids(target, steps)
    for step in steps:
        wanted, now = step.lineage.write_ids, there.get(step.name, NONE)
        if wanted is not None and now.high > wanted.high:
            raise Refused(
                f"another writer has written to the transactional table {'.'.join(step.name)} of the target: its write "
                f"ids reach {now.high}, those of the source {wanted.high}",
                hint="--overwrite, or a repair of the table, replaces it (its files are moved to the target's $cmroot);"
                " to keep its rows, write them at the source",
            )


def _steps(plan: Plan) -> list[TablePlan]:
    return [
        step
        for step in plan.tables
        if step.table and step.lineage.write_ids and is_transactional(step.table) and plan.transactions
    ]


def _write_ids(target: Metastore, steps: Iterable[TablePlan]) -> dict[Name, WriteIds]:
    return target.write_ids([step.name for step in steps], target.snapshot())
