"""The check that every required content is retained: those of the current source, of a slot, of a hold.

Missing or damaged bytes are looked up at the location they came from. Dumps are not checked: they require theirs for as
long as the retention of an expiry, which is unknown here. Also the results of checking a root: findings, the kinds of
them that are damage, and the bounded list of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cmroot.errors import Error
from cmroot.expire.retention import GOING, IN_FILES, MISSING, VERSION, kept
from cmroot.keep.content import content_name, locate
from cmroot.keep.versions import version_size
from cmroot.log.captured import Segment, segments
from cmroot.log.references import Grouping
from cmroot.pins import Pins, read_pins
from cmroot.store.checksum import checksum_at
from cmroot.store.place import join, located

# ---- findings --------------------------------------------------------------------------------------------------------


FINDINGS = 1000
"""The maximum number of findings listed individually; the others are counted."""

DAMAGE = frozenset({"damaged", "missing", "misplaced", "unreadable", "segment", "log", "pin", "version"})
"""The kinds that require action. The others are `leftover`, `right` and `stray`."""

Content = tuple[str, int]


class RootFinding(msgspec.Struct, frozen=True):
    """One problem of a root: the object, the fault, and the repair. `needed_by`: the consumers that require the bytes
    (`live`: the current source)."""

    kind: str
    what: str
    found: str
    repair: str
    needed_by: str = ""


class RootFindings:
    """The findings so far: the number of all, the first ones, and the damaged entries among them by the content that
    their name indicates, so that details can be added later."""

    def __init__(self, limit: int) -> None:
        self.damaged: dict[Content, RootFinding] = {}
        self._limit = limit
        self._counts: Counter[str] = Counter()
        self._first: list[RootFinding] = []

    def add(self, finding: RootFinding) -> None:
        self._counts[finding.kind] += 1
        if len(self._first) < self._limit:
            self._first.append(finding)

    def add_damaged(self, content: Content, finding: RootFinding) -> None:
        self._counts[finding.kind] += 1
        if len(self.damaged) < self._limit:
            self.damaged[content] = finding

    def add_untold(self, kind: str, count: int) -> None:
        """Adds findings of which only the number is known."""
        if count:
            self._counts[kind] += count

    @property
    def counts(self) -> dict[str, int]:
        return dict(sorted(self._counts.items()))

    def reported(self) -> list[RootFinding]:
        """Returns the most severe first, up to the limit."""
        every = [*self._first, *self.damaged.values()]
        every.sort(key=lambda finding: (finding.kind not in DAMAGE, finding.kind, finding.what))
        return every[: self._limit]


# ---- required contents -----------------------------------------------------------------------------------------------


# ---- alternate sources -----------------------------------------------------------------------------------------------
# Alternate sources of a content that is missing from `files/`: the location it came from, or a version in its bucket.
# Reads only; runs on an engine.


@dataclass(frozen=True)
class AlternateSourceTask:
    """A retained entry, as a row of `cmroot.expire.retention.KEPT`."""

    row: dict[str, Any]


@dataclass(frozen=True)
class VersionTask:
    """Rows whose bytes a bucket retains by version."""

    rows: Sequence[dict[str, Any]]


def look(task: AlternateSourceTask) -> tuple[dict[str, Any], str]:
    """Returns the row, and why the location it came from does not have these bytes; "" if it does."""
    row = task.row
    if not row["location"]:
        return row, "its original location is not known"
    place = join(row["location"], row["path"])
    try:
        if located(place).size() == row["size"] and checksum_at(place) == (row["checksum"], row["size"]):
            return row, ""
    except (FileNotFoundError, NotADirectoryError):
        return row, f"{place} does not exist"
    except (Error, OSError) as error:
        return row, f"{place} cannot be read ({error})"
    return row, f"{place} holds other bytes"


def check_versions(task: VersionTask) -> list[RootFinding]:
    """Returns a finding for each version that its bucket does not have any more. Queries sizes, reads no bytes."""
    findings = []
    for row in task.rows:
        place = join(row["location"], row["path"])
        try:
            if version_size(place, row["version"]) == row["size"]:
                continue
            wrong = "has another size"
        except FileNotFoundError:
            wrong = "no longer exists"
        except (Error, OSError) as error:
            wrong = f"cannot be queried: {error}"
        findings.append(
            RootFinding(
                "version",
                f"{place} at version {row['version']}",
                f"the version {wrong}",
                "lost, unless the bucket has a copy elsewhere; a load that needs it fails and names it",
                row["reason"],
            )
        )
    return findings


# ---- required contents -----------------------------------------------------------------------------------------------


ROWS = 1000
"""The number of versions that one task queries."""

ATTEMPTS = 3

Task = TypeVar("Task")
Result = TypeVar("Result")


class Workers(Grouping, Protocol):
    """Requirements of an engine: groups rows, and runs tasks concurrently."""

    def run(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]: ...


def check_needed(
    root: str, log: Sequence[Segment], pins: Pins, engine: Workers, found: RootFindings, *, ask_buckets: bool
) -> int:
    """Adds missing required contents to `found`, and to its damaged entries who requires them and how to repair them.
    Returns the number of contents that buckets retain by version; `ask_buckets`: checks that they still exist.

    Checks again when pins or log changed while contents were missing: an expiry was running."""
    for _ in range(ATTEMPTS):
        absent = _Absent(found)
        rows = kept(root, log, Pins(pins.slots, pins.holds, [], pins.damaged), engine, missing=True)
        for gone in engine.run(check_versions, absent.tasks(rows, ask_buckets)):
            absent.versions_gone += gone
        again = read_pins(root), segments(root)
        if not absent.missing or again == (pins, list(log)):
            break
        pins, log = again
    for finding in absent.versions_gone:
        found.add(finding)
    _tell(root, absent, engine, found)
    return absent.versions


class _Absent:
    """Collects missing, damaged and versioned contents while the rows of all retained contents stream by."""

    def __init__(self, found: RootFindings) -> None:
        self.missing = 0
        self.versions = 0
        self.versions_gone: list[RootFinding] = []
        self.rows: list[dict[str, Any]] = []
        self._damaged = pa.array([checksum for checksum, _ in found.damaged], pa.string())

    def tasks(self, batches: Iterable[pa.RecordBatch], ask_buckets: bool) -> Iterator[VersionTask]:
        """Yields the versions to query in buckets."""
        for batch in batches:
            missing = batch.filter(pc.equal(batch["state"], MISSING))
            self.missing += missing.num_rows
            self._note(missing)
            there = pc.and_(pc.equal(batch["state"], IN_FILES), pc.is_in(batch["checksum"], self._damaged))
            self._note(batch.filter(there))
            versions = batch.filter(pc.equal(batch["state"], VERSION))
            self.versions += versions.num_rows
            for start in range(0, versions.num_rows if ask_buckets else 0, ROWS):
                yield VersionTask(versions.slice(start, ROWS).to_pylist())

    def _note(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.slice(0, max(0, FINDINGS - len(self.rows))).to_pylist()


def _tell(root: str, absent: _Absent, engine: Workers, found: RootFindings) -> None:
    reported = 0
    for row, elsewhere in engine.run(look, map(AlternateSourceTask, absent.rows)):
        content = row["checksum"], row["size"]
        if row["state"] == MISSING:
            reported += 1
            found.add(_missing(root, row, elsewhere))
        elif content in found.damaged:
            before = found.damaged[content]
            needed = "" if row["reason"] in GOING else row["reason"]
            repair = f"{before.repair}; {_again(row, elsewhere) if needed else 'the bytes of its name are not needed'}"
            found.damaged[content] = msgspec.structs.replace(before, repair=repair, needed_by=needed)
    found.add_untold("missing", absent.missing - reported)


def _missing(root: str, row: dict[str, Any], elsewhere: str) -> RootFinding:
    place = join(row["location"] or "", row["path"] or "")
    return RootFinding(
        "missing",
        locate(root, row["checksum"], row["size"]),
        f"{content_name(row['checksum'], row['size'])} does not exist; it was kept from {place}",
        _again(row, elsewhere),
        row["reason"],
    )


def _again(row: dict[str, Any], elsewhere: str) -> str:
    if not elsewhere:
        return f"keep it again from {join(row['location'], row['path'])}, which still has these bytes"
    return f"lost: {elsewhere}, and no other copy is known; a load that needs it fails and names it"
