"""A removal that a job plans, and the rules that no job may break. Changes nothing; accesses the filesystem only to
resolve paths. References of the live metastore are checked by `live`; removals are executed by `job`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import msgspec

from cmroot.errors import Error, Exists, FormatError
from cmroot.pins import seconds
from cmroot.root import guard_names
from cmroot.store.place import Place, is_local, normal, resolved, split_authority, touches
from replicator.core.audit import Refusal, Removal
from replicator.core.not_replicated import Report, Rows
from replicator.core.option import parse_time
from replicator.errors import ObjectNotFound, Refused, UsageError

# ---- legal -----------------------------------------------------------------------------------------------------------
# Legal holds: data that no job may remove, regardless of its policy. One small file each in `$cmroot/legal/`.
#
# A hold of `cmroot.pins` retains a past state in `$cmroot`; a legal hold retains live data in place.


VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class LegalHold(msgspec.Struct, frozen=True, kw_only=True):
    """Data that must not be removed. pattern: a path (protects it, and everything below and above), or a glob for
    `db.table` or `db.table/partition`, case-insensitive; a table's glob covers its partitions. created, until: ISO
    8601; until empty: for ever."""

    name: str
    pattern: str
    reason: str
    by: str
    created: str
    until: str = ""
    version: int = VERSION

    @property
    def is_place(self) -> bool:
        return "://" in self.pattern or self.pattern.startswith(("/", "file:", "local:"))


@dataclass
class LegalHolds(Rows):
    """Legal holds of a root, by name."""

    status: str
    root: str
    holds: list[LegalHold]
    listed: ClassVar[str] = "holds"


@dataclass
class LegalHoldChanged(Report):
    """The report of a hold that was added or released; `hold` is None after a release."""

    status: str
    root: str
    name: str
    hold: LegalHold | None = None

    def to_dict(self) -> dict[str, Any]:
        said = {"name": self.name} if self.hold is None else msgspec.to_builtins(self.hold)
        return {"status": self.status, "root": self.root, **said}


class ResolvedHold:
    """A legal hold with its path resolved once for any number of queries. Raises as `resolved` if its path cannot be
    resolved."""

    def __init__(self, hold: LegalHold) -> None:
        self.hold = hold
        self._place = resolved(hold.pattern) if hold.is_place else None

    def covers(self, name: str, path: str) -> bool:
        """Returns True if the hold forbids a removal: `name` of its object ("db.table/partition"), `path` as returned
        by `resolved`, or empty if no path is removed."""
        if self._place is not None:
            return bool(path) and touches(path, self._place)
        pattern, table = self.hold.pattern.lower(), name.lower().partition("/")[0]
        if not table:
            return False
        if "/" not in pattern:
            return fnmatchcase(table, pattern)
        if "/" not in name:  # the entire table would be removed, including the held partition
            return fnmatchcase(table, pattern.partition("/")[0])
        return fnmatchcase(name.lower(), pattern)


def read_holds(root: str, now: float) -> list[LegalHold]:
    """Returns the holds in force, by name. `now`: seconds since 1970. Raises FormatError if a hold is damaged or
    `legal/` is missing: nothing may be removed then, as the protected data are unknown."""
    return [hold for hold in all_holds(root) if not hold.until or seconds(hold.until) > now]


def all_holds(root: str) -> list[LegalHold]:
    """Returns all holds, including those that have ended. Raises FormatError as `read_holds`."""
    directory = Place(root) / "legal"
    names = guard_names(root, "legal")
    return [_decode((directory / name).read_bytes(), str(directory / name)) for name in names]


def add_hold(root: str, hold: LegalHold) -> None:
    """Adds a hold. Raises UsageError for an invalid hold, Exists if there is one of this name."""
    if not _NAME.fullmatch(hold.name):
        raise UsageError(f"{hold.name!r} is not a valid hold name", hint="use letters, digits, dot, dash, underscore")
    if not hold.pattern.strip() or (not hold.is_place and "." not in hold.pattern):
        raise UsageError(
            f"{hold.pattern!r} is neither a path nor db.table",
            hint="e.g. 'sales.*', 'sales.orders/day=2026-*', s3://bucket/path; a path must be absolute",
        )
    if hold.is_place and is_local(hold.pattern):
        normal(hold.pattern)
    if hold.until and parse_time(hold.until, "until:") <= seconds(hold.created):
        raise UsageError(
            f"until: {hold.until} is in the past, so the hold would forbid nothing",
            hint="give a time in the future, or omit --until to hold forever; a time without a zone is UTC",
        )
    guard_names(root, "legal")  # a lost directory must not be recreated as if it had been empty
    body = msgspec.json.format(msgspec.json.encode(hold), indent=2) + b"\n"
    if not _place(root, hold.name).create_exclusive(body):
        raise Exists(f"legal hold {hold.name} already exists", hint="choose another name, or release it first")


def release_hold(root: str, name: str) -> None:
    """Releases a hold, even a damaged one. Raises ObjectNotFound if it does not exist."""
    if not _NAME.fullmatch(name) or not _place(root, name).exists():
        raise ObjectNotFound(f"{root}: no legal hold {name}", hint="`replicator legal-hold ls` shows them")
    _place(root, name).remove_own()


def _place(root: str, name: str) -> Place:
    return Place(root) / "legal" / name


def _decode(data: bytes, path: str) -> LegalHold:
    hint = "restore the file from a copy of the root, or release the hold by its name if it is not needed"
    try:
        hold = msgspec.json.decode(data, type=LegalHold)
        if hold.until:
            seconds(hold.until)
    except (msgspec.DecodeError, ValueError) as error:
        raise FormatError(f"{path}: damaged, so nothing may be removed: {error}", hint=hint) from error
    if hold.version != VERSION:
        raise FormatError(f"{path}: version {hold.version}, this release knows {VERSION}", hint="use a newer release")
    return hold


# ---- removal ---------------------------------------------------------------------------------------------------------


MIN_DEPTH = 2
"""The minimum depth of a path below the store's root or bucket: protects `/warehouse` or `s3://bucket/db`."""


@dataclass(frozen=True)
class Limits:
    """Limits of one run's removals. max_share: share of the items that the job examined, 0 to 1; max_bytes; None: no
    limit of this kind. protected: nothing at, below or above these paths is removed."""

    max_share: float | None = None
    max_bytes: int | None = None
    min_depth: int = MIN_DEPTH
    protected: tuple[str, ...] = ()

    @property
    def of_a_whole(self) -> bool:
        """True if there are limits for the entire plan."""
        return self.max_share is not None or self.max_bytes is not None


@dataclass(frozen=True)
class Judged:
    """The removals of a plan, divided into allowed and refused ones."""

    allowed: list[Removal] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.allowed)


def judge(
    removals: Iterable[Removal],
    limits: Limits,
    holds: Sequence[LegalHold],
    in_use: Callable[[Removal], str] = lambda removal: "",
) -> Judged:
    """Checks each removal: depth, protected paths, legal holds, and use (`in_use` returns the reason to refuse)."""
    judged, rules = Judged(), _Rules(limits, holds)
    for removal in removals:
        why = rules.against(removal) or in_use(removal)
        if why:
            judged.refused.append(Refusal(removal, why))
        else:
            judged.allowed.append(removal)
    return judged


def forbidden(removal: Removal, limits: Limits, holds: Sequence[LegalHold]) -> str:
    """Returns why a removal is forbidden, else "". A removal without a path is checked by its object."""
    return _Rules(limits, holds).against(removal)


class _Rules:
    """Limits and legal holds with resolved paths: all names of a path and all links to it are equal."""

    def __init__(self, limits: Limits, holds: Sequence[LegalHold]) -> None:
        self._min_depth = limits.min_depth
        self._protected = [(place, resolved(place)) for place in limits.protected]
        self._held = [ResolvedHold(hold) for hold in holds]

    def against(self, removal: Removal) -> str:
        try:
            path = resolved(removal.path) if removal.path else ""
        except (Error, OSError) as error:
            return f"cannot resolve {removal.path}: {error}"
        if path and depth(path) < self._min_depth:
            return f"{removal.path} has depth {depth(path)}, and no path above depth {self._min_depth} is removed"
        for place, real in self._protected:
            if path and touches(path, real):
                return f"{place} is protected"
        for held in self._held:
            if any(held.covers(name, path) for name in (removal.name, *removal.same)):
                return f"legal hold {held.hold.name}: {held.hold.reason or held.hold.pattern}"
        return ""


def refuse_excess(judged: Judged, limits: Limits, total: int, noun: str) -> None:
    """Raises Refused (exit 6), before anything is removed, if the allowed removals exceed the limits of one run.
    `total`: the number of items that the job examined; `noun`: their name, such as "partitions"."""
    refuse_counts(len(judged.allowed), judged.bytes, limits, total, noun)


def refuse_counts(count: int, size: int, limits: Limits, total: int, noun: str) -> None:
    """Does the same for a plan that is too large for memory: `count` removals of `size` bytes in total."""
    if limits.max_share is not None and total and count / total > limits.max_share:
        raise Refused(
            f"{count:,} of {total:,} {noun} would be removed, {count / total:.0%}; one run may remove "
            f"{limits.max_share:.0%}",
            hint="check the plan with --dry-run; if it is right, raise --max-share for this run",
            details={"removals": count, "total": total, "max_share": limits.max_share},
        )
    if limits.max_bytes is not None and size > limits.max_bytes:
        raise Refused(
            f"{size:,} bytes would be removed; one run may remove {limits.max_bytes:,}",
            hint="check the plan with --dry-run; if it is right, raise --max-bytes for this run",
            details={"bytes": size, "max_bytes": limits.max_bytes},
        )


def depth(path: str) -> int:
    """Returns the number of names below the store's root or bucket, with `..` resolved."""
    return len([part for part in posixpath.normpath(split_authority(path)[1]).split("/") if part not in ("", ".")])
