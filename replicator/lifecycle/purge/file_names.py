"""Names of files and partitions: the partition of a file that Spark names, partitions whose value is an id, which a
purge drops; ids in names; and places that no job reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import pyarrow.compute as pc

from cmroot.keep.journal import files_at
from cmroot.pins import iso
from cmroot.store.blocks import Unsupported
from cmroot.store.listing import FileState, hidden
from cmroot.store.place import give_rights, join, located, name_of, normal, parent
from replicator.core.audit import REMOVED, Removal, read_audit
from replicator.core.model import Partition, Table
from replicator.core.named_files import ON_NODES, is_on_nodes
from replicator.errors import FilesMissing, Refused
from replicator.lifecycle.purge.backups import Backup, contents_of, remove_empty_above, restore_contents
from replicator.lifecycle.purge.ids import VIEW, Ids
from replicator.lifecycle.purge.matching import form_of, form_of_ids
from replicator.lifecycle.purge.options import Onboarded, PurgeGap
from replicator.lifecycle.purge.replacing import GONE, unlike
from replicator.lifecycle.purge.state import PURGE, RunDirectory, State, Unit, recorded_units, runs, runs_of
from replicator.lifecycle.purge.table_files import Look, Part, is_data, look_above, look_at, parts_of
from replicator.lifecycle.removal.job import Removed, Remover
from replicator.lifecycle.removal.live import LiveLocations
from replicator.metastore.client import Metastore

# ---- placing ---------------------------------------------------------------------------------------------------------
# Determines the partition of a file named by Spark. Pure.


Matched = dict[str, dict[str, tuple[str, int]]]
"""By part: file name relative to its location -> (its name in Spark, number of matching rows)."""


class Unplaced(Exception):
    """Raised for a file with matching rows that is in no partition of its table."""


def place_of(file: str, *, escaped: bool) -> str:
    """Returns the path of a file named by Spark. Spark's own readers use a URI, in which `p=a%3Ab` is `p=a%253Ab`;
    Hadoop's input formats, which it uses for Hive's serdes, use the plain path (`input_file_name`)."""
    return normal(unquote(file) if escaped else file)


def uri_of(place: str, *, escaped: bool) -> str:
    """Returns the name for which `place_of` returns a path."""
    return quote(normal(place), safe="/:") if escaped else normal(place)


def by_part(parts: Sequence[Part], counts: Mapping[str, int], *, escaped: bool) -> Matched:
    """Assigns each file to a part: the nearest location above it. Raises Unplaced for a file in none."""
    locations = {normal(part.location): part.name for part in parts}
    found: Matched = {}
    for file, rows in counts.items():
        place = place_of(file, escaped=escaped)
        location = next((above for above in _above(place) if above in locations), None)
        if location is None:
            raise Unplaced(f"{place} has rows with an id, but is not in any partition")
        found.setdefault(locations[location], {})[place[len(location) :].lstrip("/")] = (file, rows)
    return found


def _above(place: str) -> Iterator[str]:
    """Yields the path itself, which may be a table's location, and all its parents."""
    yield place
    while (above := parent(place)) != place:
        yield above
        place = above


# ---- partitions whose value is an id ---------------------------------------------------------------------------------
# Drops them: first their files go to `$cmroot`, then the metastore forgets them. A run that is killed in between leaves
# a partition with fewer files, which the next run finds by its value, and drops.


SECONDS = len("2026-11-01T00:00:00")
"""The length of a time in ISO 8601 without its fraction and zone, which is UTC in the audit and in records."""


def value_at(part: Part, index: int) -> str:
    """Returns the value of a partition key."""
    assert isinstance(part.obj, Partition)
    return part.obj.values[index]


@dataclass(frozen=True)
class Drop:
    """A partition that is to be dropped. files: its files of data, each with its number of rows."""

    unit: Unit
    part: Part
    files: Sequence[tuple[FileState, int]]

    @classmethod
    def of(cls, unit: Unit, part: Part, matched: Mapping[str, tuple[str, int]]) -> Drop:
        """matched: as in Matched; all rows of a partition have its value."""
        data = [state for state in look_at(part.location).files if is_data(state.path_relative)]
        rows = sum(rows for _, rows in matched.values())
        counts = {"rows": rows, "matched": rows, "files_before": len(data), "bytes": sum(each.size for each in data)}
        unit = msgspec.structs.replace(unit, new=unit.old, aside="", dropped=msgspec.to_builtins(part.obj), **counts)
        return cls(unit, part, [(state, matched.get(state.path_relative, ("", 0))[1]) for state in data])


def drop_parts(
    metastore: Metastore, remover: Remover, directory: RunDirectory, table: Table, parts: Mapping[str, Drop]
) -> list[Unit]:
    """Drops partitions whose metadata are unchanged since they were read, and removes the files of those that another
    has dropped: of external tables they remain. Returns their units: DONE; SKIPPED, if their
    files may not be removed; FAILED; or EXHAUSTED, if files that came before the drop remain. parts: by name. May
    run twice."""
    now = unlike(metastore, table, [each.part for each in parts.values()])
    changed = {name: why for name, why in now.items() if why != GONE}
    ended = [parts[name].unit.at("FAILED", remover.clock, reason=why) for name, why in changed.items()]
    units = {name: each.unit for name, each in parts.items() if name not in changed}
    counted = [(name, each) for name in units for each in parts[name].files]
    directory.write_files([units[name].file_row(state, matched=rows) for name, (state, rows) in counted])
    directory.write_units(unit.at("VERIFIED", remover.clock) for unit in units.values())
    gone = remover.remove(_removal(unit) for unit in units.values())
    for state, removal, why in _stayed(gone):
        ended.append(units.pop(removal.partition).at(state, remover.clock, reason=why))
    for name, unit in list(units.items()):
        if look_at(unit.old).files:
            ended.append(units.pop(name).at("FAILED", remover.clock, reason="a writer added files to it"))
    remover.check()
    metastore.drop_partitions(table.db, table.name, list(units))
    event = metastore.current_event_id()
    late = [unit for unit in units.values() if look_at(unit.old).files]  # a writer added files before the drop
    again = remover.remove(_removal(unit) for unit in late) if late else Removed()
    stayed = {removal.partition: why for _, removal, why in _stayed(again)}
    for unit in _completed(directory, list(units.values())):
        remove_empty_above(unit.old, table.location or "")
        done = unit.at("DONE", remover.clock, backup="recycled", recycled_by=directory.id, event=event)
        if left := stayed.get(unit.partition):
            reason = f"a writer added files to it before the drop, which remain: {left}"
            done = msgspec.structs.replace(done, state="EXHAUSTED", reason=reason)
        ended.append(done)
    return ended


def lost_drops(directory: RunDirectory, onboarded: Onboarded, present: Collection[str]) -> dict[str, Drop]:
    """Returns the drops of a table that a run, or an earlier one of the same ids, has not completed, by names of
    partitions that are not `present`."""
    if not onboarded.is_key:
        return {}
    request = directory.read_run().request
    _, left = recorded_units(runs_of(directory.root, request["metastore"], request["ids"], None))
    ours = [unit for each, unit in left if each != directory or unit.state == "FAILED"]
    lost = [unit for unit in ours if unit.table == onboarded.name and unit.partition not in present]
    parts = [Part(unit.partition, msgspec.convert(unit.dropped, Partition)) for unit in lost]
    return {unit.partition: Drop(unit, part, ()) for unit, part in zip(lost, parts, strict=True)}


def settle_drop(directory: RunDirectory, unit: Unit, event: int, clock: Callable[[], float]) -> Unit:
    """Records the drop of a partition that no longer exists, after a kill; if it has files, as failed: the next search
    removes them (`lost_drops`). May run twice."""
    look = look_at(unit.old)
    if look.files or look.passed_over:
        return unit.at("FAILED", clock, reason=GONE)
    (unit,) = _completed(directory, [unit])
    reason = "dropped before the run was killed"
    return unit.at("DONE", clock, backup="recycled", recycled_by=directory.id, event=event, reason=reason)


def add_again(metastore: Metastore, root: str, table: Table, backup: Backup) -> int:
    """Restores a partition that a purge has dropped, with the files that it had, from `$cmroot`. Returns their number.
    Raises Refused if its place is in use or it exists again, FilesMissing if not all of its files can be restored: then
    none is. May run twice."""
    unit, contents, top = backup.unit, contents_of(backup), normal(table.location or "")
    (now, *_) = [*parts_of(metastore, table, [unit.partition]), None]
    if now is not None:
        if normal(now.location) == normal(unit.old) and {name for name, _ in files_at(unit.old)} == contents.keys():
            return 0
        raise Refused(f"{unit.name} exists again", hint="drop it, if its rows are not needed, and undo again")
    with LiveLocations(metastore) as live:
        if found := live.blocking(unit.old):
            raise Refused(f"{unit.old} is in use by {found}", hint="it has had another owner since the purge")
    data = {name for name in contents if is_data(name) and not hidden(name_of(name))}
    listed = _listed(backup.directory, unit, _begun(root, [unit])[unit.key], data)
    if lost := max(len(listed.keys() - data), unit.files_before - len(data)):
        what = f"{lost} of {max(len(listed), unit.files_before)} files of {unit.name}"
        raise FilesMissing(f"{what} were removed by another than the purge", hint="search with `replicator cm find`")
    if twice := sorted(name for name, several in contents.items() if len(several) > 1):
        what = f"{len(contents[twice[0]])} files had the name {twice[0]}, one after the other"
        raise FilesMissing(f"{unit.name}: {what}", hint="`replicator audit ls --job purge` lists their checksums")
    restore_contents(root, unit, {name: each for name, (each,) in contents.items()}, top)
    located(unit.old).mkdirs()
    for above in _above(normal(unit.old)):
        if above.startswith(f"{top}/"):
            give_rights(top, above)
    metastore.add_partitions(table.db, table.name, [msgspec.convert(unit.dropped, Partition)])
    return len(contents)


@dataclass
class Began:
    """The beginning of a removal of a dropped partition's files, in seconds since 1970; and the runs that tried it."""

    time: float
    earlier: dict[str, RunDirectory]

    @property
    def iso(self) -> str:
        return iso(int(self.time))


def _begun(root: str, units: Sequence[Unit]) -> dict[tuple[str, str], Began]:
    """Returns when the removal of each dropped partition's files began: also by a run that was killed or gave up. It
    began after the last purge or restore of the partition that was completed."""
    began, waiting = {unit.key: Began(unit.time, {}) for unit in units}, {unit.key: unit for unit in units}
    for directory in reversed(runs(root)):
        for each in reversed(list(directory.reported()) if waiting else []):
            unit = waiting.get(each.key)
            if unit is None or each.time >= unit.time:
                continue
            if each.backup or each.old != unit.old:
                del waiting[each.key]
            else:
                began[each.key].time = min(began[each.key].time, each.time)
                began[each.key].earlier[directory.id] = directory
    return began


def _removal(unit: Unit) -> Removal:
    reason = "the value of its partition key is an id"
    return Removal(
        path=unit.old, what="partition", object=unit.table, partition=unit.partition, reason=reason, drops=True
    )


def _stayed(gone: Removed) -> Iterator[tuple[State, Removal, str]]:
    for each in gone.refused:
        yield "SKIPPED", each.removal, each.why
    for removal, why in gone.failed:
        yield "FAILED", removal, why


def _completed(directory: RunDirectory, units: Sequence[Unit]) -> list[Unit]:
    """Writes the files of dropped partitions, by which a certificate finds the contents. Returns their units, with the
    figures of files that earlier attempts have moved, too."""
    began = _begun(directory.root, units)
    removed = list(_removed_files(directory, units, began))
    directory.write_files(removed)
    return [_whole(directory, unit, began[unit.key], removed) for unit in units]


def _whole(directory: RunDirectory, unit: Unit, began: Began, removed: Iterable[Mapping[str, Any]]) -> Unit:
    names = {row["name"] for row in removed if (row["table"], row["partition"]) == unit.key and is_data(row["name"])}
    files = _listed(directory, unit, began, names) if began.earlier else {}
    known = [figures for name, figures in files.items() if name in names]
    if not known:
        return unit
    rows, size = (sum(several) for several in zip(*known, strict=True))
    return msgspec.structs.replace(unit, rows=rows, matched=rows, files_before=len(known), bytes=size)


def _listed(directory: RunDirectory, unit: Unit, began: Began, removed: Collection[str]) -> dict[str, tuple[int, int]]:
    """Returns the files of data of a dropped partition, with their rows and bytes: as its run has listed them, and, if
    earlier attempts have removed some, as these have. removed: the names that purges have removed."""
    found = dict[str, tuple[int, int]]()
    for each in {directory.id: directory, **began.earlier}.values():
        if each != directory and found.keys() >= set(removed):
            break
        for table in each.files():
            fits = pc.and_(pc.equal(table["table"], unit.table), pc.equal(table["partition"], unit.partition))
            for row in table.filter(pc.and_(fits, pc.is_null(table["checksum"]))).to_pylist():
                found[row["name"]] = max(found.get(row["name"], (0, 0)), (row["matched"], row["size"]))
    return found


def _removed_files(
    directory: RunDirectory, units: Sequence[Unit], began: Mapping[tuple[str, str], Began]
) -> Iterator[dict[str, Any]]:
    """Yields rows of SWAPPED_FILES from the audit of all runs since the removal began, as an earlier run may have moved
    the files and not dropped the partition."""
    homes = {normal(unit.old): unit for unit in units}
    since = min((each.iso for each in began.values()), default=None)
    for row in read_audit(directory.root, job=PURGE, outcome=REMOVED, since=since) if units else ():
        place = normal(row.path)
        home = next((above for above in _above(place) if above in homes), None)
        if row.what == "file" and home is not None and row.checksum is not None and row.bytes is not None:
            unit, name = homes[home], place[len(home) :].lstrip("/")
            if row.time[:SECONDS] >= began[unit.key].iso[:SECONDS]:
                state = FileState(name, row.bytes, 0, "")
                yield unit.file_row(state, matched=int(is_data(name)), checksum=row.checksum)


# ---- ids in names and marks ------------------------------------------------------------------------------------------
# Looks for ids in the paths of files, and in the bytes of committers' marks (`_SUCCESS`). Changes nothing.
#
# A name is divided at its separators; what could be an id are its parts, and several in a row. Tasks return these, and
# Spark compares them with the ids.


SHORT = 6
"""Shorter texts are looked for only behind the name of the ids' column: `customer=7`, `customer_7`."""
SPAN = 6
"""The maximum number of parts of an id: a UUID has five, a mail address three or four."""
MARK_BYTES = 1 << 20
"""The maximum size of a mark that is searched; larger ones are gaps."""
NAME_LENGTH = 1 << 20
"""More than the length of any path, and of any mark that is searched."""
TOGETHER = 50_000
"""The number of texts that are compared with the ids by one query."""

_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_GENERATED = re.compile(
    rf"part-[mr]?-?\d{{5}}(?!\d)(-{_UUID})?|(^|(?<=/))0\d{{5}}_\d+(_copy_\d+)?(?=[./]|$)|bucket_\d{{5}}(?!\d)|c\d{{3}}(?=\.)"
)
_PART = re.compile(r"[^\W_]+")
_BEHIND = r"(?<![^\W_]){}(?:[=_.\- ]+|(?=\d))"  # the name of a column as a part


class IdTexts(msgspec.Struct, frozen=True):
    """The texts that could be ids. least, most: their lengths; digits: they have no other characters; columns: names of
    the ids' column; key: the partition key of the ids, whose own directories are not looked at; ""."""

    least: int
    most: int
    digits: bool
    columns: tuple[str, ...]
    key: str = ""

    def in_text(self, text: str) -> Iterator[str]:
        """Yields the parts of a name, or of a mark, that could be ids. Omits names that writers generate."""
        if "%" in text:  # as Hive escapes values in names of directories
            text = f"{text}/{unquote(text)}"
        for component in _GENERATED.sub("/", text).split("/"):
            parts = list(_PART.finditer(component))
            for first in range(len(parts)):
                yield from self._from(component, parts, first, SHORT)
            for column in self.columns:
                for found in re.finditer(_BEHIND.replace("{}", re.escape(column)), component, re.IGNORECASE):
                    rest = component[found.end() :]
                    yield from self._from(rest, list(_PART.finditer(rest)), 0, 1)

    def _from(self, text: str, parts: Sequence[re.Match[str]], first: int, least: int) -> Iterator[str]:
        for last in parts[first : first + SPAN]:
            found = text[parts[first].start() : last.end()]
            if max(least, self.least) <= len(found) <= self.most and (found.isdecimal() or not self.digits):
                yield found

    def at(self, location: str, look: Look) -> Iterator[tuple[str, str]]:
        """Yields (text, the file or directory that has it) of a location, and of its files."""
        own = re.sub(rf"/{re.escape(self.key)}=[^/]*", "", location, flags=re.IGNORECASE) if self.key else location
        names = [own, *(state.path_relative for state in look.files), *look.passed_over]
        for name in (*names, *(name for name, _ in look.marks)):
            for text in self.in_text(name):
                yield text, location if name == own else join(location, name)
        for name, size in look.marks:
            if 0 < size <= MARK_BYTES:
                with suppress(FileNotFoundError), located(join(location, name)).open_read() as source:
                    for text in self.in_text(source.read().decode(errors="replace")):
                        yield text, join(location, name)


class NamedIds:
    """Collects texts of names, and compares them with the ids of a table. Holds at most TOGETHER texts."""

    def __init__(self, ids: Ids, onboarded: Onboarded) -> None:
        self._ids, self._onboarded = ids, onboarded
        self._texts, self._found = dict[str, str](), dict[str, str]()
        least, most, digits = ids.shape
        names = (onboarded.field[-1], *(onboarded.former or ()))
        if onboarded.match:  # other spellings may be shorter, or longer
            least, most, digits = 1, NAME_LENGTH, False
        self.texts = IdTexts(least, most, digits, names, names[0] if onboarded.is_key else "")

    def add(self, texts: Iterable[tuple[str, str]]) -> None:
        """Adds (text, where it is)."""
        self._texts.update(texts)
        if len(self._texts) >= TOGETHER:
            self._compare()

    def gaps(self, parts: Iterable[Part]) -> list[PurgeGap]:
        """Returns gaps for the table: names with ids, and files outside of its partitions. Call it once, at the end."""
        table, name = self._onboarded.table, self._onboarded.name
        (above, others), found = look_above(table, (part.location for part in parts)), list[PurgeGap]()
        if above.files or above.passed_over or above.marks:
            self.add(self.texts.at(table.location or "", above))
        large = [mark for mark, size in above.marks if size > MARK_BYTES]
        data = [each.path_relative for each in above.files if each.size and is_data(each.path_relative)]
        if unread := sorted({*data, *above.passed_over, *large}):
            found.append(PurgeGap(name, f"not searched: files outside of partitions: {', '.join(unread[:3])}"))
        left = list[str]()
        for place in others:
            look = look_at(place)
            self.add((text, place) for text in self.texts.in_text(name_of(place)))
            self.add(self.texts.at(place, look))
            if look.files or look.passed_over or look.links:
                left.append(place)
        if left:
            what = f"directories that belong to no partition, {len(left):,}, such as"
            found.append(PurgeGap(name, f"not searched: {what} {', '.join(left[:3])}"))
        self._compare()
        shown = [f"{text} in {place}" for text, place in list(self._found.items())[:3]]
        if shown:
            what = f"ids in names of files or directories, or in marks, {len(self._found):,}, such as"
            found.append(PurgeGap(name, f"{what} {'; '.join(shown)}: rename or remove them"))
        return found

    def _compare(self) -> None:
        if self._texts and len(self._found) < TOGETHER:
            rules, ids = self._onboarded.match, self._ids
            text, own = ("text", "cast(id AS string)")
            if rules:
                text, own = form_of("text", "string", rules), form_of_ids(ids.type, "string", rules)
            frame = ids.session.createDataFrame(list(self._texts.items()), "text STRING, place STRING")
            frame = frame.selectExpr("text", "place", f"{text} AS form")
            wanted = ids.session.table(VIEW).selectExpr(f"{own} AS form")
            self._found.update((row[0], row[1]) for row in _semi(frame, wanted).collect())
        self._texts.clear()


def _semi(frame: Any, wanted: Any) -> Any:
    return frame.join(wanted, "form", "left_semi").select("text", "place")


# ---- places on nodes -------------------------------------------------------------------------------------------------


def refuse_on_nodes(onboarded: Onboarded, parts: Sequence[Part]) -> None:
    """Raises Unsupported for a table with a partition on the nodes of the cluster: Spark reads all partitions."""
    for part in parts:
        if is_on_nodes(part.location, *onboarded.homes):
            raise Unsupported(f"{f'partition {part.name}: ' if part.name else ''}{ON_NODES}")
