"""Which way a policy runs: who is replicated to whom, and what each side has of its databases now. Reads only.

A policy names a source and a target; the roles of their databases say which of both is right. When the target is the
primary, the policy runs backwards: metastores, roots and names change sides, and nothing is edited.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cmroot.root import ChangeRoot, Format, create_or_open
from cmroot.store.place import is_local, join, tidied
from replicator.captures.events.scope import Patterns
from replicator.core.model import Database
from replicator.core.not_replicated import AS_THEY_ARE, NOT_TAKEN, PROPERTY, from_property
from replicator.core.policy import METADATA, Policy, matching_databases
from replicator.core.roles import Role, RoleMark, is_shadow, mark_of
from replicator.core.runtime import Runtime
from replicator.errors import MetastoreUnreachable
from replicator.metastore.client import Metastore, MetastoreReader
from replicator.policies.memory import Memory, RememberedScope
from replicator.replay.places.placement import external_of
from replicator.replay.places.replica import LOADING, POSITION, SOURCE
from replicator.replay.plan.target import default_warehouse


@dataclass(frozen=True)
class Pair:
    """One database of a policy, in the direction in which it runs: its names, and what each side has (None: nothing).
    `name` is the source's, `replica` the target's, `known_as` the policy's. `matches`: False for one that left."""

    name: str
    replica: str
    known_as: str
    source: Database | None
    target: Database | None
    matches: bool = True

    @property
    def source_mark(self) -> RoleMark:
        return mark_of(self.source.parameters, self.name) if self.source else RoleMark()

    @property
    def target_mark(self) -> RoleMark:
        return mark_of(self.target.parameters, self.replica) if self.target else RoleMark()

    @property
    def made_from(self) -> str | None:
        """Id of the source's `$cmroot` that the replica was made from."""
        return self.target.parameters.get(SOURCE) if self.target else None

    def is_anothers(self, root_id: str) -> bool:
        """Whether only the target has it, and not from this source: it stays as it is."""
        return self.source is None and self.made_from != root_id

    @property
    def position(self) -> int | None:
        """The replica's checkpoint."""
        text = self.target.parameters.get(POSITION, "") if self.target else ""
        return int(text) if text.isdigit() else None

    @property
    def turned(self) -> bool:
        """The replica's side has become a replica, and no load has come to its end there yet: what it holds was made
        by its own writers, and a role says that it is to be the other side's now."""
        return self.target_mark.role is Role.REPLICA and self.position is None

    @property
    def drop_refused(self) -> bool:
        """Whether the source has dropped it, and the target's metastore has not: its database says so."""
        said = from_property(self.target.parameters.get(PROPERTY) if self.target else None, self.name)
        return self.source is None and any(
            "." not in each.object and each.reason.startswith(NOT_TAKEN) for each in said
        )

    @property
    def swapped(self) -> Pair:
        """The same in the other direction."""
        return Pair(self.replica, self.name, self.known_as, self.target, self.source, self.matches)

    @property
    def loading(self) -> str:
        """Id of a dump whose load into the replica has begun and not ended; nothing when there is none."""
        return self.target.parameters.get(LOADING, "") if self.target else ""


@dataclass(frozen=True)
class Direction:
    """A policy with a direction: `source` and `root` are those of the side that is replicated. `renamed`: replicas
    under names that `rename_db` gave once, and gives no more."""

    policy: Policy
    source: Metastore
    target: Metastore
    root: ChangeRoot
    target_root: ChangeRoot
    pairs: tuple[Pair, ...]
    reverse: bool = False
    renamed: tuple[Pair, ...] = ()

    @property
    def matching(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.matches]

    @property
    def warehouse(self) -> str | None:
        """Of the target; None: as its metastore says."""
        return None if self.reverse else self.policy.warehouse

    @property
    def external(self) -> str | None:
        return None if self.reverse else self.policy.external_base

    @property
    def map_locations(self) -> list[tuple[str, str]]:
        """Backwards, what was put below the external directory goes back to where it came from."""
        pairs = list(self.policy.map_location.items())
        if not self.reverse:
            return pairs
        back = [(there, here) for here, there in pairs]
        if is_local(self.policy.cmroot):
            warehouse = self.policy.warehouse or default_warehouse(self.source)
            external = self.policy.external_base or join(tidied(warehouse), "external")
            back += [(external_of(external, pair.name), "/") for pair in self.pairs]
            back.append((external, "/"))  # of replicas that older releases began
        return back

    @property
    def s3_events(self) -> dict[str, str]:
        """Queues of buckets. Backwards none: what another root took from a queue, the policy's own would miss."""
        return {} if self.reverse else self.policy.s3_events

    @property
    def patterns(self) -> Patterns:
        """Which tables and partitions are replicated, by the names of this way's source."""
        return patterns_of(self.policy, self.pairs)

    def scope(self, recorded: str) -> RememberedScope:
        """What the policy replicates now, by its own names."""
        policy = self.policy
        return RememberedScope(
            databases={pair.known_as: policy.target_name(pair.known_as) for pair in self.matching},
            include=policy.include,
            exclude=policy.exclude,
            partitions={table: each.text for table, each in policy.partitions.items()},
            external=METADATA if policy.external == METADATA else "",
            formats=AS_THEY_ARE if policy.formats == AS_THEY_ARE else "",
            recorded=recorded,
        )

    def renames(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """(source name, target name) of those databases that have two."""
        chosen = set(names)
        return [(pair.name, pair.replica) for pair in self.pairs if pair.name in chosen and pair.name != pair.replica]


def patterns_of(policy: Policy, pairs: Iterable[Pair]) -> Patterns:
    """A policy's patterns; its filters, which say the names of its source, with those that the pairs say."""
    known = {pair.known_as.lower(): pair.name for pair in pairs}
    filters = {}
    for table, wanted in policy.partitions.items():
        db, _, name = table.partition(".")
        filters[f"{known.get(db, db)}.{name}".lower()] = wanted
    return Patterns.parse(policy.include, policy.exclude, filters)


def find_direction(
    policy: Policy,
    source: Metastore,
    target: Metastore,
    remembered: RememberedScope | None,
    *,
    reverse: bool | None = None,
) -> Direction:
    """`source`, `target`: as the policy names them. `remembered`: what its last run replicated. `reverse`: which way,
    whatever the roles say (None: as they say). The roots are made when they are missing. Raises FormatError for roles
    that cannot be understood."""
    pairs = survey(policy, source, target, remembered)
    root, target_root = create_or_open(policy.cmroot), create_or_open(policy.target_cmroot)
    if reverse is None:
        reverse = runs_in_reverse(pairs, first=remembered is None)
    found = _directed(policy, (source, root), (target, target_root), pairs, reverse)
    if found.reverse:
        return found
    former = former_replicas(target, remembered, pairs)
    return replace(found, renamed=tuple(pair for pair in former if pair.made_from == root.id))


def current_direction(policy: Policy, source: Metastore, target: Metastore) -> Direction:
    """As `find_direction`, for a look at the sides of which one may be away: roots are neither read nor made. Raises
    MetastoreUnreachable when both are away."""
    here, there = (side if _answers(side) else None for side in (source, target))
    if here is None and there is None:
        source.database_names()
    root, target_root = (
        ChangeRoot(place, Format("cmroot", 1, "", "")) for place in (policy.cmroot, policy.target_cmroot)
    )
    pairs = survey(policy, here, there, None)
    return _directed(policy, (source, root), (target, target_root), pairs, runs_in_reverse(pairs))


def _answers(metastore: MetastoreReader) -> bool:
    try:
        metastore.database_names()
    except MetastoreUnreachable:
        return False
    return True


def _directed(
    policy: Policy,
    one: tuple[Metastore, ChangeRoot],
    other: tuple[Metastore, ChangeRoot],
    pairs: Sequence[Pair],
    reverse: bool,
) -> Direction:
    """`one`, `other`: metastores and roots as the policy names them."""
    (source, root), (target, target_root) = one, other
    if not reverse:
        return Direction(policy, source, target, root, target_root, tuple(pairs))
    return Direction(policy, target, source, target_root, root, tuple(pair.swapped for pair in pairs), reverse=True)


@dataclass(frozen=True)
class Sides:
    """A policy with what its runs and role changes work on. `source`, `target`: the metastores as the policy names
    them, whatever the roles say. `others`: all policies of the configuration, which may not overlap."""

    policy: Policy
    source: Metastore
    target: Metastore
    runtime: Runtime
    others: Sequence[Policy] = ()

    def direction(self, memory: Memory, *, reverse: bool | None = None) -> Direction:
        """As `find_direction`."""
        return find_direction(self.policy, self.source, self.target, memory.read_scope(), reverse=reverse)


def survey(
    policy: Policy, source: MetastoreReader | None, target: MetastoreReader | None, remembered: RememberedScope | None
) -> list[Pair]:
    """Every database that matches the policy on either side, and those that its last run had. What a drill made on a
    side is not there. A side that does not answer is None: its databases are those that the other side and the last
    run know of."""
    here = source.database_names() if source else []
    there = target.database_names() if target else []
    original = {replica: name for name, replica in policy.rename_db.items()}
    back = [original.get(replica, replica) for replica in there]
    back = [name for name, replica in zip(back, there, strict=True) if policy.target_name(name) == replica]
    matching = dict.fromkeys(matching_databases(policy, [*here, *back]))
    known = remembered.databases if remembered else {}
    if source is None or target is None:
        matching |= dict.fromkeys(matching_databases(policy, list(known)))
    names = {name: policy.target_name(name) for name in matching} | {
        name: replica for name, replica in known.items() if name not in matching
    }
    pairs = []
    for name, replica in names.items():
        sides = (
            source.database(name) if source and name in here else None,
            target.database(replica) if target and replica in there else None,
        )
        if any(map(is_shadow, sides)) and all(side is None or is_shadow(side) for side in sides):
            continue
        pairs.append(Pair(name, replica, name, *sides, matches=name in matching))
    return pairs


def former_replicas(target: MetastoreReader, remembered: RememberedScope | None, pairs: Sequence[Pair]) -> list[Pair]:
    """What the target still has under names that `rename_db` gave once, unless another database has the name now."""
    if remembered is None:
        return []
    taken = {pair.replica for pair in pairs}
    names = remembered.former | {replica: name for name, replica in remembered.databases.items()}
    gone = {replica: name for replica, name in names.items() if replica not in taken}
    there = target.database_names() if gone else []
    return [
        Pair(name, replica, name, None, target.database(replica), matches=False)
        for replica, name in gone.items()
        if replica in there
    ]


def runs_in_reverse(pairs: Sequence[Pair], *, first: bool = False) -> bool:
    """Whether roles were turned: a target is the primary (or was, and is fenced to be drained into its replica), and no
    source is. `pairs`: as the policy names them; those that match count. `first`: the policy has not run yet, so that a
    database which only its target has is another policy's, or nobody's."""
    told = [pair for pair in pairs if pair.matches and not (first and pair.source is None)]
    turned = any(_leads(pair) and pair.target_mark.epoch >= pair.source_mark.epoch for pair in told)
    return turned and not any(pair.source_mark.role is Role.PRIMARY for pair in told)


def _leads(pair: Pair) -> bool:
    """Whether the target is the side that is replicated."""
    role = pair.target_mark.role
    return role is Role.PRIMARY or (role is Role.FENCED and pair.source_mark.role is Role.REPLICA)
