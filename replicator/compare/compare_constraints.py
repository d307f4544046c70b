"""Comparing constraints: those of some tables on both sides. What the target cannot have, or notes that it lacks, is
named and no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from replicator.compare.comparison import Comparison
from replicator.compare.differences import Difference, difference
from replicator.core.model import Constraint, Table
from replicator.core.not_replicated import NotReplicated
from replicator.metastore.parallel.side_by_side import read_both
from replicator.replay.places.replica_constraints import not_replicated, noted_lack, replica_constraints


def compare_constraints(
    comparison: Comparison, db: str, pairs: Sequence[tuple[Table, Table]]
) -> Iterator[Difference | NotReplicated]:
    """`pairs`: tables of a source's database, and what the target has of them."""
    names = [table.name for table, _ in pairs if not table.is_view]
    sides, databases = (comparison.source, comparison.target), (db, comparison.replica(db))
    ((_, here, there),) = read_both(
        sides, lambda side, some: sides[side].constraints(databases[side], some), [names], weigh=lambda _: 0.0
    )
    kinds = comparison.target.constraint_kinds() if here else frozenset[str]()
    for table, replica in pairs:
        wanted, lacking = replica_constraints(here.get(table.name, ()), kinds, comparison.replica)
        noted = {each.constraint: each for each in noted_lack(replica.parameters)}
        missing = [each for each in wanted if each not in there.get(table.name, ())]
        lacking += [noted[each] for each in missing if each in noted]
        name = f"{db}.{table.name}"
        if lacking:
            yield not_replicated(name, lacking)
        wrong = [each for each in missing if each not in noted]
        extra = [each for each in there.get(table.name, ()) if each not in wanted]
        yield from _differences(name, _by_name(wrong), _by_name(extra))


def _by_name(constraints: Sequence[Constraint]) -> dict[str, Constraint]:
    return {each.name: each for each in constraints}


def _differences(table: str, wanted: Mapping[str, Constraint], found: Mapping[str, Constraint]) -> Iterator[Difference]:
    for name in sorted(wanted.keys() | found.keys()):
        a, b = wanted.get(name), found.get(name)
        if a is None or b is None:
            yield difference(table, f"constraint {'missing' if a else 'extra'}", a and str(a), b and str(b), name)
        else:
            yield difference(table, "constraint", _whole(a), _whole(b), name)


def _whole(constraint: Constraint) -> str:
    """With the flags, in which two may differ alone."""
    flags = [flag for flag in ("enable", "validate", "rely") if getattr(constraint, flag)]
    return " ".join([str(constraint), *flags])
