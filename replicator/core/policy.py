"""Policies as frozen values of `replicator.toml`: the databases to replicate, their source and target, and the
schedule. Pure.

The state of a policy between its runs is not part of it (docs/decisions/0006). Keys: docs/policies.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import combinations
from typing import Any, Literal, TypeVar

import msgspec

from cmroot.store.hdfs import Attribute
from cmroot.store.place import as_written, is_local
from replicator.core.connections import MetastoreConfig
from replicator.core.model import GROUP, ROLE, USER, PrincipalKind
from replicator.core.not_replicated import SUPPORTED, FormatChoice
from replicator.core.text import (
    PartitionFilter,
    check_queues,
    parse_duration,
    parse_partition_filter,
    parse_rate,
    parse_size,
)
from replicator.errors import ConfigError, Error

T = TypeVar("T")

MIRROR = "mirror"
METADATA = "metadata"
Keeper = Literal["auto", "link", "version", "snapshot", "native", "copy", "none"]
Publish = Literal["mirror", "snapshot"]
EngineName = Literal["auto", "local", "spark"]
GrantsChoice = Literal["replicate", "ignore"]
Principal = tuple[PrincipalKind, str]
Principals = Mapping[Principal, Principal]
"""Principals of the source -> of the target; all others have one name on both sides."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # also the name of a slot (cmroot.pins) and of a directory
_DEFAULT_PORT = "9083"
_CATALOG = "hive"  # the default catalog, unless a server has another
_KINDS: dict[str, PrincipalKind] = {each.lower(): each for each in (USER, ROLE, GROUP)}
_TABLE = re.compile(r"[^.\s]+\.[^.\s]+")


class VerifyBudget(msgspec.Struct, frozen=True):
    """The budget of the comparison after a load: at most so many objects, and so many bytes; None: no such limit. At
    least one of the two is set."""

    objects: int | None = None
    bytes: int | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """One policy, valid when complete.

    source, target: URIs; names of the file are resolved when it is read. databases, include, exclude: regular
    expressions for full names of databases and tables, case-insensitive. partitions: "db.table" of the source, lower
    case -> filter of its partitions. rename_db: source name -> target name, lower case. map_location: source prefix ->
    target prefix. cmroot: the source's; target_cmroot: the target's, which also stores the state of the policy's runs.
    dumps: directory of the policies' dumps. warehouse: the target's, None: as its metastore reports. external:
    "mirror", "metadata", or a base directory for external data. schedule: the interval between the begins of two runs.
    retention: of dumps and runs. max_lag: an objective, None: none. verify: None: runs compare nothing. publish_delay:
    how long files replaced by a snapshot are retained in place. smoke: queries that drills run on the replica.
    key_file: of `[dumps]`, with the keys that sign its dumps. formats: "as-they-are" replicates tables in every format
    as if it were a plain one. s3_events: URLs of the queues of the source's buckets. bandwidth: bytes per second.
    grants: whether grants and roles are replicated; principals: those with another name on the target.
    source_metastore, target_metastore: connection settings of `source` and `target`."""

    name: str
    source: str
    target: str
    databases: tuple[str, ...]
    cmroot: str
    target_cmroot: str
    dumps: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    partitions: dict[str, PartitionFilter] = {}
    rename_db: dict[str, str] = {}
    map_location: dict[str, str] = {}
    warehouse: str | None = None
    external: str = MIRROR
    keeper: Keeper = "auto"
    schedule: timedelta = timedelta(minutes=5)
    retention: timedelta = timedelta(days=7)
    max_lag: timedelta | None = None
    verify: VerifyBudget | None = None
    publish: Publish = "mirror"
    publish_delay: timedelta = timedelta(hours=1)
    engine: EngineName = "auto"
    smoke: tuple[str, ...] = ()
    key_file: str | None = None
    formats: FormatChoice = SUPPORTED
    preserve: tuple[Attribute, ...] = ()
    s3_events: dict[str, str] = {}
    bandwidth: int | None = None
    grants: GrantsChoice = "replicate"
    principals: Principals = {}
    source_metastore: MetastoreConfig
    target_metastore: MetastoreConfig

    @property
    def source_key(self) -> str:
        """The source's URI, with its catalog if that is not Hive's own default."""
        catalog = self.source_metastore.catalog or _CATALOG
        return self.source if catalog == _CATALOG else f"{self.source}#{catalog}"

    @property
    def target_catalog(self) -> str:
        """The name of the target's catalog; Hive's own default if it is not set."""
        return self.target_metastore.catalog or _CATALOG

    @property
    def slot(self) -> str:
        """The name of its slot in the source's `$cmroot`."""
        return self.name

    @property
    def external_base(self) -> str | None:
        """The base directory for external data; None for "mirror" and "metadata"."""
        return None if self.external in (MIRROR, METADATA) else self.external

    def target_name(self, db: str) -> str:
        """Returns the name on the target of a database of the source."""
        return self.rename_db.get(db.lower(), db.lower())


class Overlap(msgspec.Struct, frozen=True):
    """Two policies that write one database: `policies` are their names, `sources` their source databases."""

    target: str
    db: str
    policies: tuple[str, str]
    sources: tuple[str, str]

    def __str__(self) -> str:
        one, other = self.policies
        here, there = self.sources
        return f"policies {one} (from {here}) and {other} (from {there}) both write database {self.db} of {self.target}"


def matching_databases(policy: Policy, existing: Iterable[str]) -> list[str]:
    """Returns the source's databases that the policy replicates, in the given order."""
    patterns = [re.compile(text, re.IGNORECASE) for text in policy.databases]
    return [name for name in existing if any(pattern.fullmatch(name) for pattern in patterns)]


def overlaps(policies: Sequence[Policy], existing: Mapping[str, Iterable[str]]) -> list[Overlap]:
    """Returns the pairs of policies that write one database of one target. `existing`: the databases of each source, by
    `Policy.source_key`; a missing source has none."""
    names = {uri: list(found) for uri, found in existing.items()}
    written = {
        policy.name: {policy.target_name(db): db for db in matching_databases(policy, names.get(policy.source_key, ()))}
        for policy in policies
    }
    found = []
    for one, other in combinations(policies, 2):
        if not same_metastore(one.target, other.target) or one.target_catalog != other.target_catalog:
            continue
        for db in sorted(written[one.name].keys() & written[other.name].keys()):
            sources = written[one.name][db], written[other.name][db]
            found.append(Overlap(one.target, db, (one.name, other.name), sources))
    return found


def refuse_overlaps(policies: Sequence[Policy], existing: Mapping[str, Iterable[str]]) -> None:
    """Raises ConfigError naming both policies of each pair that `overlaps` finds."""
    found = overlaps(policies, existing)
    if found:
        raise ConfigError(
            "; ".join(map(str, found)),
            hint="give them other `databases`, or another name on the target with `rename_db`",
            details={"overlaps": [msgspec.to_builtins(overlap) for overlap in found]},
        )


def refuse_shared_queues(policies: Iterable[Policy]) -> None:
    """Raises ConfigError for a queue that two roots read: each would miss the messages that the other received."""
    readers: dict[str, Policy] = {}
    for policy in policies:
        for url in policy.s3_events.values():
            first = readers.setdefault(url, policy)
            if as_written(first.cmroot) != as_written(policy.cmroot):
                raise ConfigError(
                    f"policies.{policy.name}.s3_events: the root of policy {first.name} also reads the queue {url}",
                    hint="send the bucket's notifications to one queue per root",
                )


def same_metastore(one: str, other: str) -> bool:
    """Returns True if two URIs have an address in common. Two names of one host are not detected."""
    return bool(_addresses(one) & _addresses(other))


def _addresses(uri: str) -> set[str]:
    found = set()
    for part in uri.lower().split(","):
        address = part.strip().rpartition("://")[2].rstrip("/")
        host, colon, port = address.rpartition(":")
        found.add(f"{host}:{port or _DEFAULT_PORT}" if colon and port.isdigit() else f"{address}:{_DEFAULT_PORT}")
    return found


def parse_principals(pairs: Iterable[tuple[str, str]]) -> Principals:
    """Parses pairs such as ("user:ann", "anna") or ("user:ann", "group:staff"). Raises ValueError for anything else,
    and for a principal of the target that two pairs name: in the other direction it would have two names."""
    found: dict[Principal, Principal] = {}
    for before, after in pairs:
        kind, colon, name = before.partition(":")
        other, second, renamed = after.rpartition(":")
        here, there = _KINDS.get(kind.lower()), _KINDS.get((other if second else kind).lower())
        if not (colon and name and renamed and here and there):
            raise ValueError(f"{before!r} = {after!r} does not name two principals, each a user, role or group")
        if (there, renamed) in found.values():
            raise ValueError(f"{before!r} = {after!r}: another principal has this name on the target")
        found[here, name] = (there, renamed)
    return found


class _VerifyInFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    objects: int | None = None
    bytes: int | str | None = None


class _InFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[policies.NAME]` as written; the keys mean the same as those of Policy."""

    source: str
    target: str
    catalog: str | None = None
    target_catalog: str | None = None
    databases: str | list[str]
    cmroot: str
    target_cmroot: str
    dumps: str
    include: str | list[str] = []
    exclude: str | list[str] = []
    partitions: dict[str, str] = {}
    rename_db: dict[str, str] = {}
    map_location: dict[str, str] = {}
    warehouse: str | None = None
    external: str = MIRROR
    keeper: Keeper = "auto"
    schedule: str | int = "5m"
    retention: str | int = "7d"
    max_lag: str | int | None = None
    verify: _VerifyInFile | None = None
    publish: Publish = "mirror"
    publish_delay: str | int = "1h"
    engine: EngineName = "auto"
    smoke: str | list[str] = []
    formats: FormatChoice = SUPPORTED
    preserve: list[Attribute] = []
    s3_events: dict[str, str] = {}
    bandwidth: str | int | None = None
    grants: GrantsChoice = "replicate"
    principals: dict[str, str] = {}


KEYS = _InFile.__struct_fields__


def parse_policy(name: str, values: Any, metastore: Callable[[str], MetastoreConfig]) -> Policy:
    """Parses a policy from its table in the file. `metastore(text)`: resolves a name or URI, or raises an Error.

    Raises ConfigError naming the policy and the key."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"policies.{name}: not a valid policy name",
            hint="use letters, digits, dots, dashes, underscores; at most 63",
        )
    try:
        written = msgspec.convert(values, _InFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"policies.{name}: {_reported(str(error))}", hint=f"keys: {', '.join(KEYS)}") from error
    reading = _Reading(name)
    source = _in(reading.key("source", metastore, written.source), written.catalog)
    target = _in(reading.key("target", metastore, written.target), written.target_catalog)
    policy = Policy(
        name=name,
        source=source.uri,
        target=target.uri,
        source_metastore=source,
        target_metastore=target,
        databases=reading.patterns("databases", written.databases),
        include=reading.patterns("include", written.include),
        exclude=reading.patterns("exclude", written.exclude),
        partitions=reading.partitions(written.partitions),
        rename_db=reading.renames(written.rename_db),
        map_location=reading.mapping(written.map_location),
        cmroot=reading.place("cmroot", written.cmroot),
        target_cmroot=reading.place("target_cmroot", written.target_cmroot),
        dumps=reading.place("dumps", written.dumps),
        warehouse=None if written.warehouse is None else reading.place("warehouse", written.warehouse),
        external=reading.external(written.external),
        keeper=written.keeper,
        schedule=reading.duration("schedule", written.schedule),
        retention=reading.duration("retention", written.retention),
        max_lag=None if written.max_lag is None else reading.duration("max_lag", written.max_lag),
        verify=None if written.verify is None else reading.budget(written.verify),
        publish=written.publish,
        publish_delay=reading.duration("publish_delay", written.publish_delay),
        engine=written.engine,
        smoke=(written.smoke,) if isinstance(written.smoke, str) else tuple(written.smoke),
        formats=written.formats,
        preserve=tuple(written.preserve),
        s3_events=reading.queues(written.s3_events),
        bandwidth=None if written.bandwidth is None else reading.key("bandwidth", parse_rate, str(written.bandwidth)),
        grants=written.grants,
        principals=reading.principals(written.principals),
    )
    _fits_together(reading, policy)
    return policy


def _in(metastore: MetastoreConfig, catalog: str | None) -> MetastoreConfig:
    return metastore if catalog is None else msgspec.structs.replace(metastore, catalog=catalog)


def _fits_together(reading: _Reading, policy: Policy) -> None:
    """Checks combinations of keys."""
    if not policy.databases:
        raise reading.wrong("databases", "is empty", "'.*' matches every database")
    if same_metastore(policy.source, policy.target):
        raise reading.wrong("target", f"is the source: {policy.target}", "a policy needs two metastores")
    names = matching_databases(policy, policy.rename_db)
    for db in policy.rename_db:
        if db not in names:
            raise reading.wrong(f"rename_db.{db}", "is not one of its databases", "see `databases`")
    for table in policy.partitions:
        if not matching_databases(policy, [table.partition(".")[0]]):
            raise reading.wrong(f"partitions.{table!r}", "is not in one of its databases", "see `databases`")
    places = {"cmroot": policy.cmroot, "target_cmroot": policy.target_cmroot, "dumps": policy.dumps}
    for (key, place), (other, above) in [*combinations(places.items(), 2), *combinations(reversed(places.items()), 2)]:
        if as_written(place).is_below(as_written(above)):
            raise reading.wrong(key, f"is inside of {other}: {place}", "each needs a directory of its own")


class _Reading:
    """A parser of the keys of one policy; each error names the policy and the key."""

    def __init__(self, policy: str) -> None:
        self._policy = policy

    def wrong(self, key: str, what: str, hint: str) -> ConfigError:
        return ConfigError(f"policies.{self._policy}.{key}: {what}", hint=hint)

    def key(self, key: str, parse: Callable[[str], T], text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise self.wrong(key, str(error), "see docs/policies.md") from error
        except Error as error:
            raise self.wrong(key, error.message, error.hint) from error

    def patterns(self, key: str, texts: str | list[str]) -> tuple[str, ...]:
        found = (texts,) if isinstance(texts, str) else tuple(texts)
        for text in found:
            try:
                re.compile(text, re.IGNORECASE)
            except re.error as error:
                hint = "patterns match whole names, e.g. 'sales_.*'"
                raise self.wrong(key, f"not a regular expression: {text!r}: {error}", hint) from error
        return found

    def place(self, key: str, text: str) -> str:
        """Checks that a path is absolute: a run started by cron has another working directory. Returns it as written:
        `s3a` and `s3` are one store here, but two for readers of the target's locations."""
        if is_local(text) and not text.startswith(("/", "file:/", "local:/")):
            raise self.wrong(key, f"not an absolute path or URL: {text!r}", "write /a/b or s3a://bucket/a")
        self.key(key, as_written, text)
        return text

    def external(self, text: str) -> str:
        return text if text in (MIRROR, METADATA) else self.place("external", text)

    def duration(self, key: str, text: str | int) -> timedelta:
        found = self.key(key, parse_duration, str(text))
        if not found:
            raise self.wrong(key, "is zero", "write a duration such as 10s, 5m or 1h")
        return found

    def budget(self, written: _VerifyInFile) -> VerifyBudget:
        size = None if written.bytes is None else self.key("verify.bytes", parse_size, str(written.bytes))
        if written.objects is None and size is None:
            raise self.wrong("verify", "has no budget", 'write verify = { objects = 20, bytes = "10GiB" }')
        if (written.objects is not None and written.objects < 1) or size == 0:
            raise self.wrong("verify", "a budget must be positive", "leave `verify` out to compare nothing")
        return VerifyBudget(written.objects, size)

    def partitions(self, written: Mapping[str, str]) -> dict[str, PartitionFilter]:
        found = {}
        for table, text in written.items():
            key = f"partitions.{table!r}"
            if not _TABLE.fullmatch(table):
                raise self.wrong(key, "is not a table name", 'write "db.table" = "day >= \'2026-01-01\'"')
            found[table.lower()] = self.key(key, parse_partition_filter, text)
        return found

    def renames(self, written: Mapping[str, str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for before, after in written.items():
            if not after.strip() or after.lower() in found.values():
                raise self.wrong(
                    f"rename_db.{before}", f"{after!r} is empty or already used", "each database needs its own name"
                )
            found[before.lower()] = after.lower()
        return found

    def principals(self, written: Mapping[str, str]) -> Principals:
        try:
            return parse_principals(written.items())
        except ValueError as error:
            raise self.wrong(
                "principals", str(error), 'write "user:ann" = "anna" or "user:ann" = "group:staff"'
            ) from error

    def queues(self, written: Mapping[str, str]) -> dict[str, str]:
        try:
            check_queues(written)
        except ValueError as error:
            hint = 'write "s3://BUCKET" = "https://sqs.REGION.amazonaws.com/...", a queue for each bucket'
            raise self.wrong("s3_events", str(error), hint) from error
        return dict(written)

    def mapping(self, written: Mapping[str, str]) -> dict[str, str]:
        return {
            self.place(f"map_location.{before!r}", before): self.place(f"map_location.{before!r}", after)
            for before, after in written.items()
        }


def _reported(text: str) -> str:
    """Rewrites msgspec's messages for a key: "unknown key `x`", "`x` is missing"."""
    text = text.replace("Object contains unknown field", "unknown key")
    text = re.sub(r"Object missing required field (`\w+`)", r"\1 is missing", text)
    return text.replace(" - at `$.", " in `").replace("`$.", "`")
