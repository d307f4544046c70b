"""Past states of tables as versions: snapshots of Iceberg, versions of Delta, instants of Hudi tables; which can end.
Reads only.

The log of a Delta table can end at its beginning only. A version ends when its successor is older than the table's own
retention of removed files, so that no reader that this protects loses a file; and older than `grace`: a writer that
began before a commit that is removed from the log would commit in its place, and no reader would see that.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec

from cmroot.errors import UNREADABLE
from cmroot.keep.journal import files_at
from cmroot.store import delta, iceberg
from cmroot.store.listing import FileState
from cmroot.store.place import Place, join, located
from replicator.core.formats import format_of, pointer_of
from replicator.core.formats.delta_table import COORDINATED, DELTA
from replicator.core.formats.hudi_table import HUDI
from replicator.core.model import Table
from replicator.core.named_files import ON_NODES, is_on_nodes
from replicator.errors import Error
from replicator.lifecycle.purge.delta_search import location_of
from replicator.lifecycle.purge.lake_search import Unsearchable
from replicator.lifecycle.removal.hudi_actions import other_names
from replicator.lifecycle.retention.dataset_versions import TIME, Listed, Version
from replicator.lifecycle.retention.hudi_instants import Instants
from replicator.metastore.client import MetastoreReader, warehouse_of

KEPT = "kept"  # mark of a state that a branch or a tag names, and of the present one


@dataclass(frozen=True)
class States:
    """All states of a table, from the first to the last. what: what the format calls one. in_order: why only the first
    ones can end, "" if any can. spare: the format keeps the files of so many states before the first that stays. held:
    name -> why it cannot end now. same: other names of the table."""

    listed: Listed
    what: str
    in_order: str = ""
    spare: int = 0
    held: Mapping[str, str] = field(default_factory=dict)
    same: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        """The states that nothing keeps, from the first to the last."""
        return [each.name for each in self.listed.versions if each.mark != KEPT]

    def ending(self, chosen: Collection[str]) -> tuple[list[str], list[str]]:
        """Returns those of the chosen states that can end, from the first to the last, and why others cannot."""
        names = self.names
        if not self.in_order:
            return [name for name in names if name in chosen], []
        first = next((number for number, name in enumerate(names) if name not in chosen), len(names))
        count = max(first - self.spare, 0)
        free = next((number for number in range(count, 0, -1) if names[number - 1] not in self.held), 0)
        why = list[str]()
        if held := names[free:count]:
            why.append(f"{_said(self.what, held)}: {self.held[held[-1]]}")
        if after := [name for name in names[first:] if name in chosen]:
            why.append(f"{_said(self.what, after)}: {self.what} {names[first]} stays, and {self.in_order}")
        return names[:free], why

    def why_not(self, last: int) -> str:
        """Returns why the states up to one cannot end now; "" if they can."""
        earlier = [name for name in self.names if int(name) <= last]
        ending, why = self.ending(self.names[: len(earlier) + self.spare])
        return "" if ending == earlier else "; ".join(why) or "its states have changed: run again"


def past_states(metastore: MetastoreReader, table: Table, now: datetime, grace: timedelta) -> States:
    """Returns all states of a table. Raises Error for metadata that cannot be read, or a table whose states cannot end;
    OSError."""
    if format_of(table) is DELTA:
        return _versions(metastore, table, now, grace)
    if format_of(table) is HUDI:
        place = place_of(metastore, table)
        return states_of(Instants(place), other_names(metastore, table, place))
    return States(_snapshots(metastore, table), "snapshot")


def _snapshots(metastore: MetastoreReader, table: Table) -> Listed:
    pointer, why = pointer_of(table), format_of(table).why_left_out(table)
    if why or is_on_nodes(pointer, metastore.database(table.db).location, warehouse_of(metastore)):
        raise Error(why or ON_NODES)
    with located(pointer).open_stream() as stream:
        found = iceberg.read_metadata(pointer, stream.read())
    kept = {each["snapshot-id"] for each in (found.get("refs") or {}).values()} | {found.get("current-snapshot-id")}
    listed = Listed(TIME)
    for each in found.get("snapshots") or ():
        moment = datetime.fromtimestamp(each["timestamp-ms"] / 1000, UTC)
        number = each["snapshot-id"]
        listed.versions.append(Version("", str(number), moment, mark=KEPT if number in kept else ""))
    return listed


def place_of(metastore: MetastoreReader, table: Table) -> str:
    """Returns the location of a table with a log. Raises Error for one that cannot be read from here."""
    try:
        place = location_of(table)
    except Unsearchable as error:
        raise Error(str(error)) from error
    why = format_of(table).why_left_out(table)
    if why or is_on_nodes(place, metastore.database(table.db).location, warehouse_of(metastore)):
        raise Error(why or ON_NODES)
    return place


# ---- instants of Hudi tables -----------------------------------------------------------------------------------------


def states_of(found: Instants, same: Sequence[str]) -> States:
    """Returns the states of a Hudi table. same: its other names."""
    listed, held = Listed(TIME), dict[str, str]()
    for instant in found.states:
        mark = KEPT if instant == found.writes[-1] or instant in found.savepoints else ""
        listed.versions.append(Version("", instant, found.time_of(instant), mark=mark))
        if found.in_flight and found.after(found.after(instant)) > found.in_flight:
            held[instant] = f"the write {found.in_flight} is in flight: run again when it is completed or rolled back"
    return States(listed, "instant", "Hudi's cleaner ends the first instants only", 1, held, same)


# ---- versions of Delta tables ----------------------------------------------------------------------------------------


def _versions(metastore: MetastoreReader, table: Table, now: datetime, grace: timedelta) -> States:
    place = place_of(metastore, table)
    log = dict(files_at(join(place, delta.LOG)))
    state = delta.last_state(log, lambda name: located(join(place, f"{delta.LOG}/{name}")).open_stream())
    if delta.is_coordinated({"protocol": state.protocol, "metaData": state.metadata}):
        raise Error(COORDINATED)
    settings = dict(state.metadata.get("configuration") or {})
    if settings.get("delta.enableExpiredLogCleanup", "true").lower() == "false":
        raise Error("its versions stay, as its delta.enableExpiredLogCleanup is false")
    if settings.get("delta.universalFormat.enabledFormats"):
        raise Error("its versions stay: by delta.universalFormat.enabledFormats other metadata names their files, too")
    times = _times(place, _commits(log, state.version), settings)
    listed, held = Listed(TIME), dict[str, str]()
    guard = retention_of(settings)
    for version, moment in times.items():
        mark = KEPT if version == state.version else ""
        listed.versions.append(Version("", str(version), moment, mark=mark))
        if (until := times.get(version + 1)) and (why := _why_held(until, now, guard, grace)):
            held[str(version)] = why
    return States(listed, "version", "Delta ends a log at its beginning only", held=held)


def _commits(log: Mapping[str, FileState], last: int) -> dict[int, FileState]:
    """Returns the commits of a log without those after a gap, in the order of their versions."""
    found = {version: log[name] for name in log if (version := delta.commit_version(f"{delta.LOG}/{name}")) is not None}
    return {version: found[version] for version in sorted(found) if version <= last}


def _times(place: str, commits: Mapping[int, FileState], settings: Mapping[str, str]) -> dict[int, datetime]:
    """Returns the times of versions as Delta does: that of the commit, or of its file, and later than that of the
    version before."""
    is_in_commit = settings.get("delta.enableInCommitTimestamps", "").lower() == "true"
    begin = int(settings.get("delta.inCommitTimestampEnablementVersion", 0)) if is_in_commit else None
    times, last = dict[int, datetime](), -1
    for version, about in commits.items():
        millis = about.mtime_ns // 1_000_000
        if begin is not None and version >= begin:
            millis = _time_in(join(place, f"{delta.LOG}/{version:020}.json"))
        last = max(millis, last + 1)
        times[version] = datetime.fromtimestamp(last / 1000, UTC)
    return times


def _time_in(commit: str) -> int:
    try:
        with located(commit).open_stream() as stream:
            return int(msgspec.json.decode(stream.readline())["commitInfo"]["inCommitTimestamp"])
    except (*UNREADABLE, KeyError, TypeError, ValueError) as error:
        raise Error(f"{commit} has no time of its commit: {error}") from error


def _why_held(until: datetime, now: datetime, guard: timedelta, grace: timedelta) -> str:
    """Returns why a version that was the present one until a time cannot end now; "" if it can."""
    span, whose = max((guard, f"the table keeps removed files for {guard} ({RETENTION})"), (grace, _WRITERS))
    end = until + span
    return f"{whose.format(grace=grace)}: run again after {end:%Y-%m-%dT%H:%M:%SZ}" if end > now else ""


RETENTION = "delta.deletedFileRetentionDuration"
_WRITERS = "writers that began before --grace ({grace}) may not have ended"
_UNITS = {"week": 7 * 86400.0, "day": 86400.0, "hour": 3600.0, "minute": 60.0, "second": 1.0}
_UNITS |= {"millisecond": 1e-3, "microsecond": 1e-6}


def retention_of(settings: Mapping[str, str]) -> timedelta:
    """Returns how long a table keeps the files that it does not need any more. Raises Error for an unknown spelling."""
    text = settings.get(RETENTION, "interval 1 week")
    found = re.findall(r"(\d+(?:\.\d+)?)\s+([a-z]+?)s?(?:\s+|$)", text.strip().lower().removeprefix("interval "))
    spelled = " ".join(f"{number} {unit}" for number, unit in found)
    given = re.sub(r"([a-z])s\b", r"\1", " ".join(text.lower().split()).removeprefix("interval "))
    if not found or spelled != given or any(unit not in _UNITS for _, unit in found):
        raise Error(f"its {RETENTION} is {text!r}, which cannot be read", hint="write it as 'interval 7 days'")
    return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in found))


def _said(what: str, names: Sequence[str]) -> str:
    """Returns the states as text: `version 3 stays`, `versions 3, 5 to 8 stay`."""
    ranges = list[list[str]]()
    for name in names:
        if ranges and int(name) == int(ranges[-1][-1]) + 1:
            ranges[-1][1:] = [name]
        else:
            ranges.append([name])
    said = ", ".join(" to ".join(each) for each in ranges)
    return f"{what}s {said} stay" if len(names) > 1 else f"{what} {said} stays"


def files_before(log: Place, first: int) -> list[str]:
    """Returns the names of files of a log of versions before one, from the first version to the last; before them
    `_last_checkpoint`, if it leads to one of these: readers do not need it."""
    found = list[tuple[int, str]]()
    for name in log.list():
        version = delta.version_of(name)
        if name == delta.LAST_CHECKPOINT:
            with suppress(*UNREADABLE, FileNotFoundError, KeyError, TypeError):
                version = -1 if msgspec.json.decode((log / name).read_bytes())["version"] < first else None
        if version is not None and version < first:
            found.append((version, name))
    return [name for _, name in sorted(found)]
