"""One thing that a job wants to remove, and the rules that no job may break. Changes nothing; of the filesystem it
asks only where places lead. Whether the living metastore refers to a path is `live`; carrying out is `remove`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from cmroot.errors import Error
from cmroot.store.place import resolved, split_authority, touches
from replicator.errors import Refused
from replicator.lifecycle.removal.legal import LegalHold, ResolvedHold

MIN_DEPTH = 2
"""Names below the store's root or bucket that a path must have: nothing like `/warehouse` or `s3://bucket/db` goes."""


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """A directory that is to go. `what` it is: "path", "partition", "table", "version", "backup", "staging" or "trash".
    object: "db.table" it belongs to, empty for none; partition: escaped name. reason: a sentence with the figures that
    led to it. files, bytes: as the plan saw it. drops: the object goes as well, so its own references do not count."""

    path: str
    what: str
    reason: str
    object: str = ""
    partition: str = ""
    files: int = 0
    bytes: int = 0
    drops: bool = False

    @property
    def name(self) -> str:
        """The object as legal holds name it."""
        return f"{self.object}/{self.partition}" if self.partition else self.object

    @property
    def bare(self) -> Removal:
        """The same whatever was counted, and whoever drops the object."""
        return msgspec.structs.replace(self, files=0, bytes=0, drops=False)


@dataclass(frozen=True)
class Limits:
    """How much one run may remove. max_share: of what the job looked at, 0 to 1; max_bytes; None: no limit of this
    kind. protected: nothing at, below or above these places goes."""

    max_share: float | None = None
    max_bytes: int | None = None
    min_depth: int = MIN_DEPTH
    protected: tuple[str, ...] = ()

    @property
    def of_a_whole(self) -> bool:
        """Whether a plan is judged as a whole, too."""
        return self.max_share is not None or self.max_bytes is not None


@dataclass(frozen=True)
class Refusal:
    """A removal that must not be, and why, as a sentence."""

    removal: Removal
    why: str


@dataclass(frozen=True)
class Judged:
    """A plan's removals, sorted by whether they may be."""

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
    """Each removal by itself: depth, protected places, legal holds, and who uses it (`in_use` says why not)."""
    judged, rules = Judged(), _Rules(limits, holds)
    for removal in removals:
        why = rules.against(removal) or in_use(removal)
        if why:
            judged.refused.append(Refusal(removal, why))
        else:
            judged.allowed.append(removal)
    return judged


def forbidden(removal: Removal, limits: Limits, holds: Sequence[LegalHold]) -> str:
    """Why a removal must not be; empty when no rule is against it. One without a path is judged by its object."""
    return _Rules(limits, holds).against(removal)


class _Rules:
    """Limits and legal holds with the real places that they name: every spelling and every link of a place is one."""

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
            return f"{removal.path} lies {depth(path)} deep, and no path above depth {self._min_depth} is removed"
        for place, real in self._protected:
            if path and touches(path, real):
                return f"{place} is protected"
        for held in self._held:
            if held.covers(removal.name, path):
                return f"legal hold {held.hold.name}: {held.hold.reason or held.hold.pattern}"
        return ""


def refuse_excess(judged: Judged, limits: Limits, total: int, noun: str) -> None:
    """Raises Refused (exit 6) when what is allowed is more than one run may remove, before anything is. `total`: how
    many the job looked at; `noun`: what they are, such as "partitions"."""
    refuse_counts(len(judged.allowed), judged.bytes, limits, total, noun)


def refuse_counts(count: int, size: int, limits: Limits, total: int, noun: str) -> None:
    """The same for a plan that is too large for memory: `count` removals of `size` bytes together."""
    if limits.max_share is not None and total and count / total > limits.max_share:
        raise Refused(
            f"{count:,} of {total:,} {noun} would be removed, {count / total:.0%}; one run may remove "
            f"{limits.max_share:.0%}",
            hint="look at the plan with --dry-run; if it is right, raise --max-share for this run",
            details={"removals": count, "total": total, "max_share": limits.max_share},
        )
    if limits.max_bytes is not None and size > limits.max_bytes:
        raise Refused(
            f"{size:,} bytes would be removed; one run may remove {limits.max_bytes:,}",
            hint="look at the plan with --dry-run; if it is right, raise --max-bytes for this run",
            details={"bytes": size, "max_bytes": limits.max_bytes},
        )


def depth(path: str) -> int:
    """Names below the store's root or bucket, `..` folded."""
    return len([part for part in posixpath.normpath(split_authority(path)[1]).split("/") if part not in ("", ".")])
