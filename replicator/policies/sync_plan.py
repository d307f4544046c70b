"""The plan of a policy's next run, as a value and as a file."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from cmroot.errors import UNREADABLE
from cmroot.pins import read_pins, unpin_dump
from cmroot.root import ChangeRoot
from cmroot.store.place import Place, as_written, name_of, normal
from replicator.captures.dumps.layout import FINISHED, LOADS, DumpReader
from replicator.compare.repair import REPAIR
from replicator.core.not_replicated import NotReplicated, Report
from replicator.errors import FormatError
from replicator.policies.direction import Pair
from replicator.replay.apply.weighing import Gone

FORMAT, VERSION = "replicator-plan", 1


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a load. `events`: between its begin and its end; `records`: in the dump, `squashed` of which would
    not be applied one by one. files, bytes: file contents to copy; files_from_...: by the source of the bytes.
    files_removed, bytes_removed, partitions_removed: moved to the target's `$cmroot`. `missing`: files whose bytes are
    not available anywhere; with any of these the load would fail."""

    events: int = 0
    records: int = 0
    squashed: int = 0
    objects: int = 0
    files: int = 0
    bytes: int = 0
    files_from_source: int = 0
    files_from_cmroot: int = 0
    files_from_target: int = 0
    files_removed: int = 0
    bytes_removed: int = 0
    partitions_removed: int = 0
    missing: int = 0

    def plus(self, other: Cost) -> Cost:
        return Cost(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class Copies(msgspec.Struct, frozen=True, kw_only=True):
    """Files to copy into a directory of the target."""

    directory: str
    files: int
    bytes: int


class PlannedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One dump of a plan. `databases`: by their source names; `why`: the reason for a bootstrap. `checkpoints`: of the
    replicas, by name, at planning time. `steps`: objects to drop, create and alter. `digest`: of everything at the
    target that the load depends on. `gone`: objects moved to the target's `$cmroot`, by name, with files and bytes.
    `copies`: by directory of the target."""

    dump: str
    id: str
    kind: str
    databases: list[str]
    why: str = ""
    from_event: int | None
    to_event: int
    to_position: int
    checkpoints: dict[str, int | None]
    cost: Cost
    steps: dict[str, Any]
    digest: str
    gone: list[Gone] = []
    copies: list[Copies] = []


class SyncPlan(Report, msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a policy's next run. `policy_digest`: of its keys. `roles`: database -> role and epoch, on both
    sides. `position`, `to_event`: of the target after the run. `left`: replicas that the policy no longer names.
    `drops`: tables and partitions that the loads drop, and those of out-of-scope replicas that would be dropped with
    consent. `cost`: of all loads."""

    format: str = FORMAT
    version: int = VERSION
    id: str
    policy: str
    policy_digest: str
    made: str
    reverse: bool = False
    adopt: bool = False
    drop_left: bool = False
    roles: dict[str, str]
    loads: list[PlannedLoad]
    left: list[str]
    drops: list[str]
    position: int
    to_event: int
    cost: Cost
    warnings: list[str] = []
    not_replicated: list[NotReplicated] = []

    def to_dict(self) -> dict[str, Any]:
        return {"status": "planned", **super().to_dict()}

    @property
    def empty(self) -> bool:
        return not self.loads and not (self.drops and self.drop_left)


def encode_plan(plan: SyncPlan) -> bytes:
    return msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n"


def read_plan(place: str) -> SyncPlan:
    """Reads a plan. Raises FormatError if it is missing, is not a plan, or has a version unknown to this release."""
    hint = "create a new plan with `replicator plan POLICY --out FILE`"
    try:
        data = as_written(place).read_bytes(follow=True)
        about = msgspec.json.decode(data, type=_Versioned)
        if about.format != FORMAT or about.version != VERSION:
            raise FormatError(f"{place}: a {about.format} of version {about.version}, not a plan", hint=hint)
        return msgspec.json.decode(data, type=SyncPlan)
    except FileNotFoundError:
        raise FormatError(f"{place}: no such file", hint=hint) from None
    except UNREADABLE as error:
        raise FormatError(f"{place}: not a plan: {error}", hint=hint) from error


class _Versioned(msgspec.Struct, frozen=True):
    format: str
    version: int


# ---- dump batches ----------------------------------------------------------------------------------------------------
# What one run of a policy has to do, decided from the positions of its databases: batches, each of which is one dump.
# Pure.
#
# Databases at the same checkpoint share a batch. A database without a usable checkpoint is bootstrapped; a load by
# difference makes that cheap if the target has the data already. The batch that begins at the oldest checkpoint is
# loaded last, so that the policy's slot never passes a database that is behind it.


@dataclass(frozen=True)
class DumpBatch:
    """One dump of a run: databases by their source names. `begin`: the checkpoint that it continues; None for a
    bootstrap, for which `why` contains the reason."""

    databases: tuple[str, ...]
    begin: int | None = None
    why: str = ""

    @property
    def bootstrap(self) -> bool:
        return self.begin is None


@dataclass(frozen=True)
class RunWork:
    """The work of a run. `batches`: in order. `current`: databases at the end of the log. `passed`: batches whose
    databases have no record after their checkpoint, so that it can move without a dump. `left`: replicas of databases
    that are no longer in the policy. `lost`: replicas whose source is dropped, without a record of the drop.
    `rescoped`: the contents selected within the databases differ from those before."""

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
    """Decides what a run has to do. `first`, `end`: first and last position of the captured log. remembered: databases
    (by the policy's names) of the last run -> their names on the target. rescoped: the patterns differ from the last
    run's. narrower: databases (of the source) whose checkpoint covers less than the patterns."""
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
        usable = usable and not renamed  # the name belongs to another's replica, or left the policy long ago
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
    """Returns True if a load other than an increment is incomplete, so that the checkpoint is not the contents."""
    return bool(pair.loading) and (pair.position == end or pair.loading.startswith(REPAIR))


def _policys_name(pair: Pair) -> str:
    """Returns the name of the database in the policy's target, in either direction."""
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


# ---- dumps -----------------------------------------------------------------------------------------------------------
# A policy's dumps: `<dumps>/<policy>/<event>-<id>/`. An id begins with the time, so that the name contains the age.
#
# 4711-20260301T120000Z-5f2a90c1/


KEPT_DUMPS = 1000  # loaded dumps to retain: a policy that runs each second makes more in an hour than anyone inspects

_NAME = re.compile(r"(\d+)-((\d{8}T\d{6}Z)-[0-9a-f]{8})")
_TIME = "%Y%m%dT%H%M%SZ"


def new_dump_id(clock: Callable[[], float]) -> str:
    return f"{datetime.fromtimestamp(clock(), UTC).strftime(_TIME)}-{uuid.uuid4().hex[:8]}"


class PolicyDumps:
    """The directory of one policy's dumps. Only the holder of the policy's lease writes to it."""

    def __init__(self, dumps: str, policy: str) -> None:
        self.place = as_written(dumps) / policy

    def place_of(self, event: int, id: str) -> str:
        return str(self.place / f"{event}-{id}")

    def find(self, id: str) -> str | None:
        """Returns the path of the finished dump with this id, or None."""
        for name in self.place.list():
            match = _NAME.fullmatch(name)
            if match and match[2] == id and (self.place / name / FINISHED).exists():
                return str(self.place / name)
        return None

    def tidy(self, root: ChangeRoot, retention: timedelta, loaded: int, *, clock: Callable[[], float]) -> list[str]:
        """Removes dumps that are older than the retention, loaded ones beyond the newest thousand, and those that a
        killed run did not finish, with their pins in the source's `$cmroot`. Removes also the pins of dumps that end
        at the position `loaded` or before it: a run that is killed after a load leaves them. Returns the paths of
        removed dumps. May run twice.

        A finished, unloaded dump is retained as long as a plan may refer to it, as are files with other names."""
        names = [match for name in self.place.list() if (match := _NAME.fullmatch(name))]
        names.sort(key=lambda match: match[2], reverse=True)
        oldest = datetime.fromtimestamp(clock(), UTC) - retention
        removed = []
        for rank, match in enumerate(names):
            place = self.place / match[0]
            old = datetime.strptime(match[3], _TIME).replace(tzinfo=UTC) < oldest
            surplus = rank >= KEPT_DUMPS and bool((place / LOADS).list())
            if old or surplus or not (place / FINISHED).exists():
                (place / FINISHED).remove_own()  # first the file that marks it as finished
                place.remove_own_tree()
                unpin_dump(root.place, match[2])
                removed.append(str(place))
        for pin in read_pins(root.place).dumps:
            place = self.place / name_of(pin.place)
            if normal(pin.place) == normal(str(place)) and not self._awaited(place, loaded):
                unpin_dump(root.place, pin.name)
        return removed

    def _awaited(self, place: Place, loaded: int) -> bool:
        """Returns True if a finished dump leads to a later position than the loaded one, or cannot be read."""
        if not (place / FINISHED).exists():
            return False
        try:
            return int(DumpReader(str(place)).metadata.end.position) > loaded
        except FormatError:
            return True
