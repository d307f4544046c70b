"""The failover candidate: which side is lost, which replica is to be promoted, and whether it may be. Reads only,
through clients that wait for no answer longer than a few seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cmroot.root import ChangeRoot, Format, open_existing
from replicator.core.policy import Policy
from replicator.core.roles import Role
from replicator.errors import Error, MetastoreUnreachable, Refused
from replicator.metastore.client import Metastore
from replicator.policies.direction import Direction, Pair, Sides, survey
from replicator.policies.memory import Memory, RememberedScope
from replicator.policies.role_changes.loss import Absent
from replicator.policies.role_changes.role_change import highest_epoch

VERB = "failover"


@dataclass(frozen=True)
class Seen:
    """What answers of both sides. `direction`: from the lost side to the survivor; its root may not be readable."""

    direction: Direction
    reverse: bool
    lost_answers: bool


def look(sides: Sides, short_timeouts: tuple[Metastore, Metastore], memory: Memory) -> Seen:
    """Decides who survives. Raises Refused where no side is a replica that can be promoted."""
    policy, remembered = sides.policy, memory.read_scope()
    source, target = (_answering(each, policy, remembered) for each in short_timeouts)
    pairs = [pair for pair in survey(policy, source, target, remembered) if pair.matches]
    change = memory.unfinished_role_change()
    reverse = change.reverse if change is not None and change.verb != "failback" else _reverse(pairs, source, target)
    lost, survivor, place = (target, sides.source, policy.cmroot) if reverse else (source, sides.target, "")
    missing = source if reverse else target
    if isinstance(missing, Absent):
        raise MetastoreUnreachable(
            f"{survivor.uri}, which is to be the primary, does not answer: {missing.reason}",
            hint="start it, then run this again; if it is only slow, give it more time with --answer-timeout",
        )
    root = open_existing(place or policy.target_cmroot)
    unread = ChangeRoot(policy.target_cmroot if reverse else policy.cmroot, Format("cmroot", 1, "", ""))
    if reverse:
        pairs = [pair.swapped for pair in pairs]
    direction = Direction(policy, lost, survivor, unread, root, tuple(pairs), reverse)
    found = Seen(
        replace(direction, pairs=tuple(pair for pair in pairs if pair.target is not None)),
        reverse,
        not isinstance(lost, Absent),
    )
    if change is None or change.verb != VERB:
        _refuse(policy, found, memory)
    return found


def _answering(metastore: Metastore, policy: Policy, remembered: RememberedScope | None) -> Metastore | Absent:
    """A metastore that answers all that will be asked first, or why not."""
    try:
        nobody = Absent(metastore.uri, "not asked")
        survey(policy, metastore, nobody, remembered)
        survey(policy, nobody, metastore, remembered)
    except Error as error:
        return Absent(metastore.uri, str(error))
    return metastore


def _reverse(pairs: Sequence[Pair], source: Metastore | Absent, target: Metastore | Absent) -> bool:
    """Whether the source is to be promoted: it is the replica, and the target, the primary, is what was lost."""
    here = {pair.source_mark.role for pair in pairs if pair.source is not None}
    there = {pair.target_mark.role for pair in pairs if pair.target is not None}
    if isinstance(target, Absent):
        return True
    return Role.PRIMARY in there and Role.REPLICA in here and not isinstance(source, Absent)


def _refuse(policy: Policy, seen: Seen, memory: Memory) -> None:
    pairs = seen.direction.pairs
    if not pairs:
        raise Refused(
            f"policy {policy.name}: {seen.direction.target.uri} has no replica to promote",
            hint="`replicator role show` on the side that answers",
        )
    primary = [pair.replica for pair in pairs if pair.target_mark.role is Role.PRIMARY]
    if len(primary) == len(pairs):
        last = next((change for change in memory.turns() if change.verb == VERB), None)
        said = f": failed over at {last.started} by {last.by}" if last else ""
        change = memory.unfinished_role_change()
        verb = change.verb if change else "failback"
        raise Refused(
            f"policy {policy.name}: {', '.join(primary[:10])} of {seen.direction.target.uri} is the primary "
            f"already{said}",
            hint=f"start the writers there; when the other side comes back: `replicator {verb} {policy.name}`",
        )
    wrong = [
        f"{pair.replica} is {pair.target_mark}"
        for pair in pairs
        if pair.target_mark.role is not Role.REPLICA and not (primary and pair.target_mark.role is Role.PRIMARY)
    ]
    if wrong:
        raise Refused(
            f"policy {policy.name}: not a replica: {', '.join(wrong[:10])}",
            hint="`replicator role show` tells who made it so; `role set --force` can change it",
        )


def known_epoch(seen: Seen, memory: Memory) -> int:
    """The highest epoch that anything tells: the sides that answer, and the turns before, which may have fenced and
    unfenced a side that does not answer now."""
    turns = [change.epoch + 2 for change in memory.turns()]
    last = memory.read_role_change()
    return max([highest_epoch(seen.direction.pairs), *turns, last.epoch + 2 if last else 0])
