"""Checking that every required content is kept: those of the source now, of a slot, of a hold. Bytes that are missing
or damaged are looked for at the place they were kept from.

Dumps are left out: they need theirs for as long as the retention of an expiry, which is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cmroot.check.finding import FINDINGS, RootFinding, RootFindings
from cmroot.errors import Error
from cmroot.expire.retention import GOING, IN_FILES, MISSING, VERSION, kept
from cmroot.keep.content import content_name, locate
from cmroot.keep.versions import version_size
from cmroot.log.captured import Segment, segments
from cmroot.log.references import Grouping
from cmroot.pins import Pins, read_pins
from cmroot.store.checksum import checksum_at
from cmroot.store.place import join, located

# ---- alternate sources -----------------------------------------------------------------------------------------------
# Where the bytes of a content may still be when `files/` has not got them: at the place they were kept from, or as a
# version of its bucket. Reads only; what an engine runs.


@dataclass(frozen=True)
class AlternateSourceTask:
    """A kept entry, as a row of `cmroot.expire.retention.KEPT`."""

    row: dict[str, Any]


@dataclass(frozen=True)
class VersionTask:
    """Rows whose bytes a bucket keeps by version."""

    rows: Sequence[dict[str, Any]]


def look(task: AlternateSourceTask) -> tuple[dict[str, Any], str]:
    """The row, and why the place that it was kept from has not these bytes; empty when it has."""
    row = task.row
    if not row["location"]:
        return row, "it is not known where it was kept from"
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
    """A finding for each version that its bucket has not got any more. Asks for its size, reads none."""
    findings = []
    for row in task.rows:
        place = join(row["location"], row["path"])
        try:
            if version_size(place, row["version"]) == row["size"]:
                continue
            wrong = "has another size"
        except FileNotFoundError:
            wrong = "is gone"
        except (Error, OSError) as error:
            wrong = f"cannot be asked for: {error}"
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
"""Versions that one task asks its bucket for."""

ATTEMPTS = 3

Task = TypeVar("Task")
Result = TypeVar("Result")


class Workers(Grouping, Protocol):
    """What is asked of an engine: rows brought together, and tasks run side by side."""

    def run(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]: ...


def check_needed(
    root: str, log: Sequence[Segment], pins: Pins, engine: Workers, found: RootFindings, *, ask_buckets: bool
) -> int:
    """Adds to `found` what is needed and not there, and to its damaged entries who needs them and what can be done.
    Returns how many contents their buckets keep by version; `ask_buckets`: whether they still do.

    Looks again when pins or log changed while something was missing: an expiry was running."""
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
    """What is not there, or not as it should be, while rows of all that is kept pass by."""

    def __init__(self, found: RootFindings) -> None:
        self.missing = 0
        self.versions = 0
        self.versions_gone: list[RootFinding] = []
        self.rows: list[dict[str, Any]] = []
        self._damaged = pa.array([checksum for checksum, _ in found.damaged], pa.string())

    def tasks(self, batches: Iterable[pa.RecordBatch], ask_buckets: bool) -> Iterator[VersionTask]:
        """What the buckets are to be asked for."""
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
            repair = f"{before.repair}; {_again(row, elsewhere) if needed else 'nobody needs the bytes of its name'}"
            found.damaged[content] = msgspec.structs.replace(before, repair=repair, needed_by=needed)
    found.add_untold("missing", absent.missing - reported)


def _missing(root: str, row: dict[str, Any], elsewhere: str) -> RootFinding:
    place = join(row["location"] or "", row["path"] or "")
    return RootFinding(
        "missing",
        locate(root, row["checksum"], row["size"]),
        f"{content_name(row['checksum'], row['size'])} is not there; it was kept from {place}",
        _again(row, elsewhere),
        row["reason"],
    )


def _again(row: dict[str, Any], elsewhere: str) -> str:
    if not elsewhere:
        return f"keep it again from {join(row['location'], row['path'])}, which still has these bytes"
    return f"lost: {elsewhere}, and no other copy is known; a load that needs it fails and names it"
