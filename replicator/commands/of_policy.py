"""Defaults that a policy provides to other commands: its metastores, roots, databases, patterns and locations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from cmroot.log.captured import segments
from cmroot.root import open_existing
from cmroot.store.checksum import FLOW
from replicator.commands.base import Options, pairs
from replicator.commands.options import OptionalPolicy
from replicator.core.config import nearest
from replicator.core.option import opt, python_only
from replicator.core.policy import METADATA, Policy, Principals, parse_principals
from replicator.core.roles import is_shadow
from replicator.core.runtime import JOBS
from replicator.core.text import PartitionFilter, parse_partition_filter
from replicator.errors import ObjectNotFound, UsageError
from replicator.metastore.client import MetastoreReader
from replicator.metastore.events.scope import Patterns, captured_databases
from replicator.policies.checks.check import impatient
from replicator.policies.direction import Direction, Sides, current_direction

ALL = ".*"
"""The pattern of all databases."""

SIDES = {"metastore", "source", "target"}


@dataclass(frozen=True, kw_only=True)
class OfPolicy(Options):
    """Options that a policy provides if they are not given."""

    needed: ClassVar[Sequence[str]] = ()
    """Fields that the caller or a policy must give."""
    chooses: ClassVar[str] = ""
    """Names the field of the metastore or root whose databases `db` selects by patterns; "": `db` is a name."""
    within: ClassVar[bool] = False
    """True: with a policy, `db` selects from the policy's databases, and a name must exist."""
    single: ClassVar[bool] = False
    """True: `db` must select exactly one database."""

    policy: OptionalPolicy = None

    def complete(self) -> Self:
        """Returns the options, completed with the policy's values. Raises UsageError for an unknown policy, and for
        required options that neither the caller nor the policy sets; ObjectNotFound for a policy without databases."""
        if getattr(self, "all_databases", False) and "db" in self.needed:
            if getattr(self, "db", None):
                raise UsageError("--all-databases and --db both select databases", hint="give one of them")
            every: dict[str, Any] = {"db": ALL, "all_databases": False}
            return replace(self, **every).complete()
        known = self._known(self._policy(self.policy)) if self.policy is not None else {}
        open_ = {name: value for name, value in known.items() if self._leaves_open(name)}
        done = replace(self, config=self.settings, **open_).in_catalogs()
        for name in self.needed:
            if not getattr(done, name):
                policies = ", ".join(sorted(self.settings.policies)) or "(none is configured)"
                option = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"Missing option '{option}'.", hint=f"give it, or a policy that provides it: {policies}"
                )
        return done._chosen(known.get("db", ())) if self.chooses else done

    def _policy(self, name: str) -> Policy:
        """Raises UsageError for an argument that is not a policy; the hint names the intended option."""
        try:
            return self.settings.policy(name)
        except UsageError as error:
            if meant := self.meant(name):
                raise UsageError(error.message, hint=f"{meant}; {error.hint}") from error
            raise

    def meant(self, name: str) -> str:
        """Returns a hint for an argument that is not a policy; "" if there is none."""
        if "db" in {each.name for each in fields(self)} and not getattr(self, "db", None) and "/" not in name:
            return f"a database is given as --db {name}"
        return ""

    def _chosen(self, of_policy: Sequence[str]) -> Self:
        """With the databases that `db` and `all_databases` select. of_policy: the policy's, if there is one."""
        given = getattr(self, "db", ())
        wanted = [given] if isinstance(given, str) else list(given)
        if self.single or (self.within and of_policy):
            existing = Existing(f"policy {self.policy}", of_policy) if self.within else self.existing()
            if existing.names:  # a log of an earlier release does not list its databases
                refuse_unknown(existing, wanted)
            if not any(map(is_pattern, wanted)):
                return self
        elif any(map(is_pattern, wanted)):
            existing = self.existing()
        else:
            return self
        names = matching(existing, wanted)
        found: dict[str, Any] = {"db": only_one(names, self.policy, wanted[0]) if self.single else names}
        return replace(self, **found)

    def existing(self) -> Existing:
        """Returns the databases that patterns select from."""
        if self.chooses == "cmroot":
            return captured_in(getattr(self, self.chooses))
        with self.connected(getattr(self, self.chooses)) as metastore:
            return existing_in(metastore)

    def _leaves_open(self, name: str) -> bool:
        """Returns True for a field that the caller has not given."""
        if name == "engine" and self.engine == "auto":
            return True
        return name in {each.name for each in fields(self)} and not getattr(self, name)

    def _known(self, policy: Policy) -> dict[str, Any]:
        if not {each.name for each in fields(self)} & SIDES:
            return {"cmroot": policy.cmroot, "engine": policy.engine}
        with impatient(policy.source_metastore) as source, impatient(policy.target_metastore) as target:
            return self.known(current_direction(policy, source, target))

    def known(self, direction: Direction) -> dict[str, Any]:
        """Returns the policy's values by the names of the fields."""
        policy, reverse = direction.policy, direction.reverse
        return {
            "metastore": policy.target_metastore if reverse else policy.source_metastore,
            "source": policy.target_metastore if reverse else policy.source_metastore,
            "target": policy.source_metastore if reverse else policy.target_metastore,
            "cmroot": policy.target_cmroot if reverse else policy.cmroot,
            "source_cmroot": policy.target_cmroot if reverse else policy.cmroot,
            "target_cmroot": policy.cmroot if reverse else policy.target_cmroot,
            "db": self.databases(direction),
            "rename_db": dict(direction.renames(pair.name for pair in direction.pairs)),
            "map_location": dict(direction.map_locations),
            "include": policy.include,
            "exclude": policy.exclude,
            "partitions": direction.patterns.partitions,
            "warehouse": direction.warehouse,
            "external_base": direction.external,
            "shared_external": policy.external == METADATA,
            "publish": policy.publish,
            "keeper": policy.keeper,
            "s3_events": direction.s3_events,
            "formats": policy.formats,
            "grants": policy.grants,
            "principals": written_principals(direction.principals),
            "engine": policy.engine,
            "bandwidth": policy.bandwidth,
        }

    def databases(self, direction: Direction) -> Sequence[str] | str:
        """Returns the databases that are selected without `db`: all of the source."""
        found = [pair.name for pair in direction.matching if pair.source is not None]
        if not found:
            policy = direction.policy
            raise ObjectNotFound(
                f"policy {policy.name}: no database of {direction.source.uri} matches {', '.join(policy.databases)}",
                hint="patterns match entire database names; see `databases` in docs/policies.md",
            )
        return found


@dataclass(frozen=True, kw_only=True)
class Selecting(OfPolicy):
    include: Annotated[Sequence[str], opt("Only tables whose full name matches; repeatable.", metavar="REGEX")] = ()
    exclude: Annotated[Sequence[str], opt("Omit tables whose full name matches; repeatable.", metavar="REGEX")] = ()
    partitions: Annotated[
        Mapping[str, str | PartitionFilter],
        python_only('Filters of partitions by table, as in a policy: {"sales.orders": "day >= \'2026-01-01\'"}.'),
    ] = field(default_factory=dict)

    @property
    def patterns(self) -> Patterns:
        """Returns the patterns. Raises UsageError for an invalid pattern or filter."""
        filters = {}
        for table, wanted in self.partitions.items():
            try:
                filters[table.lower()] = parse_partition_filter(wanted) if isinstance(wanted, str) else wanted
            except ValueError as error:
                raise UsageError(f"partitions of {table}: {error}", hint="e.g. day >= '2026-01-01'") from error
        return Patterns.parse(self.include, self.exclude, filters)


def written_principals(principals: Principals) -> dict[str, str]:
    """Principals as an option has them."""
    return {":".join(here): ":".join(there) for here, there in principals.items()}


def principals_of(given: Mapping[str, str] | Sequence[str]) -> Principals:
    """Returns the target's principals by the source's. Raises UsageError for an invalid one."""
    try:
        return parse_principals(pairs(given, "--principal"))
    except ValueError as error:
        raise UsageError(f"--principal: {error}", hint="e.g. user:ann=anna, or user:ann=group:staff") from error


class Existing(NamedTuple):
    """Databases, and the place that has them, for messages."""

    place: str
    names: Sequence[str]


def is_pattern(database: str) -> bool:
    """Returns True for a regular expression that is not simply a name."""
    return re.search(r"[^\w@#-]", database) is not None


def matching(existing: Existing, wanted: Sequence[str]) -> list[str]:
    """Returns the databases whose entire name matches a pattern, case-insensitive as in a policy, and those that are
    given by name. Raises UsageError for text that is not a regular expression, ObjectNotFound for a pattern that
    matches none."""
    found: dict[str, None] = {}
    for text in wanted:
        if not is_pattern(text):
            found[text.lower()] = None
            continue
        try:
            pattern = re.compile(text, re.IGNORECASE)
        except re.error as error:
            hint = "patterns match entire database names, e.g. 'sales_.*'"
            raise UsageError(f"not a regular expression: --db {text!r}: {error}", hint=hint) from error
        some = [name for name in existing.names if pattern.fullmatch(name)]
        if not some:
            raise ObjectNotFound(
                f"no database of {existing.place} matches {text!r}",
                hint=f"existing databases: {', '.join(sorted(existing.names)[:20])}",
            )
        found |= dict.fromkeys(some)
    return list(found)


def existing_in(metastore: MetastoreReader) -> Existing:
    """Returns the databases of a metastore, without the shadows of drills."""
    names = [name for name in metastore.database_names() if not is_shadow(metastore.database(name))]
    return Existing(metastore.uri, names)


def captured_in(root: str) -> Existing:
    """Returns the databases of a root's log, including those dropped since."""
    return Existing(root, captured_databases(segments(open_existing(root).place)) or [])


def selected(metastore: MetastoreReader, wanted: Sequence[str]) -> list[str]:
    """Returns the databases of a metastore that names and patterns select. Raises as `matching`, and ObjectNotFound
    for a name that does not exist."""
    refuse_unknown(Existing(metastore.uri, metastore.database_names()), wanted)
    existing = existing_in(metastore) if any(map(is_pattern, wanted)) else Existing(metastore.uri, ())
    return matching(existing, wanted)


def refuse_unknown(existing: Existing, wanted: Sequence[str]) -> None:
    """Raises ObjectNotFound, whose hint suggests similar names, for a name that does not exist."""
    known = [name.lower() for name in existing.names]
    for name in wanted:
        if not is_pattern(name) and name.lower() not in known:
            raise ObjectNotFound(
                f"database {name} does not exist in {existing.place}",
                hint=f"{nearest(name.lower(), known)}existing databases: {', '.join(sorted(known)[:20])}",
            )


def only_one(names: Sequence[str], policy: str | None, pattern: str = "") -> str:
    """The database, where a command is about one. pattern: that selected the databases. Raises UsageError for
    several."""
    if len(names) == 1:
        return names[0]
    many = f"{pattern!r} matches {len(names)} databases" if pattern else f"{len(names)} databases"
    raise UsageError(
        f"{many}{f' of policy {policy}' if policy and not pattern else ''}, but this needs exactly one",
        hint=f"give --db, one of: {', '.join(sorted(names)[:20])}",
    )


# ---- policy ----------------------------------------------------------------------------------------------------------
# Opening a policy for its commands: its metastores, under the policy's names for them, and engines.


@contextmanager
def opened(options: Options, name: str, jobs: int = JOBS) -> Iterator[Sides]:
    """Opens a policy with its metastores and engines for a block. The engine is the policy's, unless the caller gives
    one. Raises UsageError for an unknown policy."""
    settings = options.settings
    policy = settings.policy(name)
    with (
        options.connected(policy.source_metastore) as source,
        options.connected(policy.target_metastore) as target,
        options.runtime(jobs) as runtime,
        FLOW.limited(options.rate or policy.bandwidth),
    ):
        chosen = replace(runtime, engines=runtime.engines.preferring(policy.engine))
        yield Sides(policy, source, target, chosen, list(settings.policies.values()))
