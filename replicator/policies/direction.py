"""The direction of a policy: which side is replicated to which, and the current databases of each side. Reads only.

A policy names a source and a target; the roles of their databases decide the direction. If the target is the primary,
the policy runs in reverse: metastores, roots and names change sides, without a change of configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cmroot.root import ChangeRoot, Format, create_or_open
from cmroot.store.place import is_local, join, tidied
from replicator.core.model import Database
from replicator.core.not_replicated import AS_THEY_ARE, NOT_TAKEN, PROPERTY, from_property
from replicator.core.policy import METADATA, Policy, Principals, matching_databases
from replicator.core.roles import Role, RoleMark, is_shadow, mark_of
from replicator.core.runtime import Runtime
from replicator.errors import MetastoreUnreachable
from replicator.metastore.client import Metastore, MetastoreReader
from replicator.metastore.events.scope import Patterns
from replicator.policies.memory import Memory, RememberedScope
from replicator.replay.placement import external_of
from replicator.replay.replica import LOADING, POSITION, SOURCE
from replicator.replay.target import default_warehouse


@dataclass(frozen=True)
class Pair:
    """One database of a policy, in the current direction: its names, and its state on each side (None: missing). `name`
    is the source's, `replica` the target's, `known_as` the policy's. `matches`: False if it left the policy."""

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
        """Returns the id of the source's `$cmroot` that the replica was made from."""
        return self.target.parameters.get(SOURCE) if self.target else None

    def is_anothers(self, root_id: str) -> bool:
        """Returns True if only the target has it, and not from this source; it is left unchanged."""
        return self.source is None and self.made_from != root_id

    @property
    def position(self) -> int | None:
        """Returns the replica's checkpoint."""
        text = self.target.parameters.get(POSITION, "") if self.target else ""
        return int(text) if text.isdigit() else None

    @property
    def turned(self) -> bool:
        """Returns True if the replica's side has become a replica and no load has completed there yet: its contents
        come from its own writers, and are to be replaced by the other side's."""
        return self.target_mark.role is Role.REPLICA and self.position is None

    @property
    def drop_refused(self) -> bool:
        """Returns True if the source has dropped it and the target refused to, as its database records."""
        said = from_property(self.target.parameters.get(PROPERTY) if self.target else None, self.name)
        return self.source is None and any(
            "." not in each.object and each.reason.startswith(NOT_TAKEN) for each in said
        )

    @property
    def swapped(self) -> Pair:
        """The same pair in the other direction."""
        return Pair(self.replica, self.name, self.known_as, self.target, self.source, self.matches)

    @property
    def loading(self) -> str:
        """Returns the id of a dump whose load into the replica is incomplete, or an empty string."""
        return self.target.parameters.get(LOADING, "") if self.target else ""


@dataclass(frozen=True)
class Direction:
    """A policy with a direction: `source` and `root` belong to the side that is replicated. `renamed`: replicas under
    former names of `rename_db`."""

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
        """Returns the target's warehouse; None for the default of its metastore."""
        return None if self.reverse else self.policy.warehouse

    @property
    def external(self) -> str | None:
        return None if self.reverse else self.policy.external_base

    @property
    def map_locations(self) -> list[tuple[str, str]]:
        """Returns the location mappings; in reverse, those from the external directory to the original locations."""
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
        """Returns the queues of buckets; none in reverse: the policy's root would miss messages taken by another."""
        return {} if self.reverse else self.policy.s3_events

    @property
    def principals(self) -> Principals:
        """Returns the principals that have another name on this direction's target."""
        named = self.policy.principals
        return {there: here for here, there in named.items()} if self.reverse else named

    @property
    def patterns(self) -> Patterns:
        """Returns the patterns of tables and partitions to replicate, by the names of this direction's source."""
        return patterns_of(self.policy, self.pairs)

    def scope(self, recorded: str) -> RememberedScope:
        """Returns the current scope of the policy, by its own names."""
        policy = self.policy
        return RememberedScope(
            databases={pair.known_as: policy.target_name(pair.known_as) for pair in self.matching},
            include=policy.include,
            exclude=policy.exclude,
            partitions={table: each.text for table, each in policy.partitions.items()},
            external=METADATA if policy.external == METADATA else "",
            grants=policy.grants if policy.grants == "ignore" else "",
            principals={":".join(here): ":".join(there) for here, there in policy.principals.items()},
            formats=AS_THEY_ARE if policy.formats == AS_THEY_ARE else "",
            recorded=recorded,
        )

    def renames(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Returns (source name, target name) of those databases whose names differ."""
        chosen = set(names)
        return [(pair.name, pair.replica) for pair in self.pairs if pair.name in chosen and pair.name != pair.replica]


def patterns_of(policy: Policy, pairs: Iterable[Pair]) -> Patterns:
    """Returns a policy's patterns. In its filters, names of its source's databases become those of the pairs."""
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
    """Finds the direction of a policy. `source`, `target`: as the policy names them. `remembered`: the scope of its
    last run. `reverse`: the direction regardless of roles (None: by the roles). Missing roots are created. Raises
    FormatError for roles that cannot be parsed."""
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
    """Does the same as `find_direction` when one of the sides may not answer: roots are neither read nor created.
    Raises MetastoreUnreachable if neither side answers."""
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
    """Builds the direction. `one`, `other`: metastores and roots as the policy names them."""
    (source, root), (target, target_root) = one, other
    if not reverse:
        return Direction(policy, source, target, root, target_root, tuple(pairs))
    return Direction(policy, target, source, target_root, root, tuple(pair.swapped for pair in pairs), reverse=True)


@dataclass(frozen=True)
class Sides:
    """A policy with the objects that its runs and role changes work on. `source`, `target`: the metastores as the
    policy names them, regardless of roles. `others`: all policies of the configuration, which may not overlap."""

    policy: Policy
    source: Metastore
    target: Metastore
    runtime: Runtime
    others: Sequence[Policy] = ()

    def direction(self, memory: Memory, *, reverse: bool | None = None) -> Direction:
        """Does the same as `find_direction`."""
        return find_direction(self.policy, self.source, self.target, memory.read_scope(), reverse=reverse)


def survey(
    policy: Policy, source: MetastoreReader | None, target: MetastoreReader | None, remembered: RememberedScope | None
) -> list[Pair]:
    """Returns all databases that match the policy on either side, and those of its last run, without the shadows of
    drills. A side that does not answer is None: its databases are those known from the other side and the last run."""
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
    """Returns replicas that exist under former names of `rename_db`, unless another database uses the name."""
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
    """Returns True if roles were exchanged: a target is the primary (or was, and is fenced to be drained into its
    replica), and no source is. `pairs`: as the policy names them; only matching ones count. `first`: the policy has not
    run yet, so a database that only its target has belongs to another policy or to none."""
    told = [pair for pair in pairs if pair.matches and not (first and pair.source is None)]
    turned = any(_leads(pair) and pair.target_mark.epoch >= pair.source_mark.epoch for pair in told)
    return turned and not any(pair.source_mark.role is Role.PRIMARY for pair in told)


def _leads(pair: Pair) -> bool:
    """Returns True if the target is the side that is replicated."""
    role = pair.target_mark.role
    return role is Role.PRIMARY or (role is Role.FENCED and pair.source_mark.role is Role.REPLICA)
