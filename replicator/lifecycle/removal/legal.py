"""Legal holds: what must not be removed by any job, whatever its policy says. One small file each in `$cmroot/legal/`.

A hold of `cmroot.pins` keeps a past state in `$cmroot`; a legal hold keeps living data where it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import msgspec

from cmroot.errors import Exists, FormatError
from cmroot.pins import seconds
from cmroot.root import guard_names
from cmroot.store.place import Place, is_local, normal, resolved, touches
from replicator.core.not_replicated import Report, Rows
from replicator.errors import ObjectNotFound, UsageError

VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class LegalHold(msgspec.Struct, frozen=True, kw_only=True):
    """What may not go. pattern: a place (it, and all below and above), or a glob for `db.table` or
    `db.table/partition`, regardless of case; one for a table covers its partitions. created, until: ISO 8601; until
    empty: for ever."""

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
    """What became of one: added, or released, and then `hold` is None."""

    status: str
    root: str
    name: str
    hold: LegalHold | None = None

    def to_dict(self) -> dict[str, Any]:
        said = {"name": self.name} if self.hold is None else msgspec.to_builtins(self.hold)
        return {"status": self.status, "root": self.root, **said}


class ResolvedHold:
    """A legal hold with the real place that it names, looked up once for any number of queries. Raises as `resolved`
    when nobody can tell where its place leads."""

    def __init__(self, hold: LegalHold) -> None:
        self.hold = hold
        self._place = resolved(hold.pattern) if hold.is_place else None

    def covers(self, name: str, path: str) -> bool:
        """Whether a removal is forbidden: `name` of its object ("db.table/partition"), `path` as `resolved` gives it,
        or empty where no place goes."""
        if self._place is not None:
            return bool(path) and touches(path, self._place)
        pattern, table = self.hold.pattern.lower(), name.lower().partition("/")[0]
        if not table:
            return False
        if "/" not in pattern:
            return fnmatchcase(table, pattern)
        if "/" not in name:  # the whole table would go, with the partition that is held
            return fnmatchcase(table, pattern.partition("/")[0])
        return fnmatchcase(name.lower(), pattern)


def read_holds(root: str, now: float) -> list[LegalHold]:
    """Those in force, by name. `now`: seconds since 1970. Raises FormatError when one is damaged, or `legal/` is
    gone: then nothing may be removed, as nobody knows what it protected."""
    return [hold for hold in all_holds(root) if not hold.until or seconds(hold.until) > now]


def all_holds(root: str) -> list[LegalHold]:
    """Also those that have ended. Raises FormatError as `read_holds`."""
    directory = Place(root) / "legal"
    names = guard_names(root, "legal")
    return [_decode((directory / name).read_bytes(), str(directory / name)) for name in names]


def add_hold(root: str, hold: LegalHold) -> None:
    """Raises UsageError for a hold that cannot be, Exists when there is one of this name."""
    if not _NAME.fullmatch(hold.name):
        raise UsageError(f"{hold.name!r} cannot be a hold's name", hint="letters, digits, dot, dash, underscore")
    if not hold.pattern.strip() or (not hold.is_place and "." not in hold.pattern):
        raise UsageError(
            f"{hold.pattern!r} is neither a place nor db.table",
            hint="e.g. 'sales.*', 'sales.orders/day=2026-*', s3://bucket/path; a path must be absolute",
        )
    if hold.is_place and is_local(hold.pattern):
        normal(hold.pattern)
    if hold.until:
        try:
            ends = seconds(hold.until)
        except ValueError as error:
            raise UsageError(f"until: {error}", hint="write an ISO 8601 time such as 2027-01-31") from error
        if ends <= seconds(hold.created):
            raise UsageError(
                f"until: {hold.until} is over, so the hold would forbid nothing",
                hint="give a time to come, or leave --until out: it holds for ever; a time without zone is UTC",
            )
    guard_names(root, "legal")  # a lost directory must not be there again as if it had been empty
    body = msgspec.json.format(msgspec.json.encode(hold), indent=2) + b"\n"
    if not _place(root, hold.name).create_exclusive(body):
        raise Exists(f"legal hold {hold.name}: it exists already", hint="choose another, or release it first")


def release_hold(root: str, name: str) -> None:
    """Also a damaged one. Raises ObjectNotFound when there is none."""
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
