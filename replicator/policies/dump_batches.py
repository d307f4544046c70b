"""What one run of a policy has to do, decided from where its databases are: pieces, each one dump. Pure.

Databases that are at one checkpoint go together. A database without a usable checkpoint gets a bootstrap, which a load
by difference makes cheap where the target has the data. The piece that begins at the oldest checkpoint comes last, so
that the policy's slot never passes a database that is behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from replicator.compare.repair import REPAIR
from replicator.policies.direction import Pair


@dataclass(frozen=True)
class DumpBatch:
    """One dump of a run: databases by their source names. `begin`: the checkpoint that it continues; None: a
    bootstrap, and `why` says what made it one."""

    databases: tuple[str, ...]
    begin: int | None = None
    why: str = ""

    @property
    def bootstrap(self) -> bool:
        return self.begin is None


@dataclass(frozen=True)
class RunWork:
    """`batches` in order. `current`: databases that are at the log's end already. `passed`: pieces whose databases no
    record since their checkpoint concerns, so that the checkpoint can move without a dump. `left`: replicas of
    databases that are in the policy no more. `lost`: replicas whose source is gone, and whose drop no record tells.
    `rescoped`: what is replicated of each database is another choice than before."""

    batches: list[DumpBatch] = field(default_factory=list)
    current: list[str] = field(default_factory=list)
    passed: list[DumpBatch] = field(default_factory=list)
    left: list[Pair] = field(default_factory=list)
    lost: list[Pair] = field(default_factory=list)
    rescoped: bool = False


def decide(
    pairs: Sequence[Pair],
    *,
    root_id: str,
    first: int,
    end: int,
    remembered: Mapping[str, str],
    rescoped: bool,
    narrower: Collection[str] = (),
) -> RunWork:
    """`first`, `end`: the positions that the captured log reaches from and to. remembered: databases (by the policy's
    names) that the last run had, and what they were called on the target. rescoped: the patterns for tables are others
    than the last run's. narrower: databases (of the source) that came to their checkpoint with less than these."""
    work = RunWork(rescoped=rescoped)
    bootstraps: dict[str, list[str]] = {}
    groups: dict[int, list[str]] = {}
    for pair in pairs:
        ours = pair.made_from == root_id
        if not pair.matches:
            if ours:
                work.left.append(pair)
            continue
        known = remembered.get(pair.known_as)
        renamed = known is not None and known != _policys_name(pair)
        usable = ours and pair.position is not None and first <= pair.position <= end and not _half_done(pair, end)
        usable = usable and not renamed  # what has its name now was another's replica, or was left long ago
        if pair.source is None:
            if usable and pair.position != end:
                groups.setdefault(pair.position or 0, []).append(pair.name)
            elif ours and not pair.drop_refused:
                work.lost.append(pair)
        elif not usable or rescoped or pair.name in narrower:
            less = usable and not rescoped
            why = _why(
                pair, ours=ours, known=known is not None, rescoped=usable and rescoped, renamed=renamed, narrower=less
            )
            bootstraps.setdefault(why, []).append(pair.name)
        elif pair.position == end:
            work.current.append(pair.name)
        else:
            groups.setdefault(pair.position or 0, []).append(pair.name)
    work.batches.extend(DumpBatch(tuple(names), why=why) for why, names in bootstraps.items())
    work.batches.extend(DumpBatch(tuple(groups[begin]), begin) for begin in sorted(groups, reverse=True))
    return work


def _half_done(pair: Pair, end: int) -> bool:
    """Something other than an increment was begun and did not end, so the checkpoint does not tell what is there."""
    return bool(pair.loading) and (pair.position == end or pair.loading.startswith(REPAIR))


def _policys_name(pair: Pair) -> str:
    """What the policy calls it on its target, whichever way it runs."""
    return pair.replica if pair.name == pair.known_as else pair.name


def _why(pair: Pair, *, ours: bool, known: bool, rescoped: bool, renamed: bool, narrower: bool) -> str:
    if renamed:
        return "`rename_db` gives it another name on the target"
    if rescoped:
        return "the policy's patterns changed"
    if narrower:
        return "its checkpoint covers only some of its tables"
    if pair.target is None:
        return "the target has lost it" if known else "the target lacks it"
    if pair.turned and not ours:
        return "a role change made it a replica"
    if ours and (pair.position is None or pair.loading):
        return "none of its loads was completed"
    if ours:
        return "the captured log begins after its checkpoint"
    return "the target's database was not created by this policy"
