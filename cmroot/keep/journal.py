"""What an intercept writes down: its journal, and the file entries of what it kept. Values, and their files.

`taking/<id>/journal.json` is there from before anything is touched until nothing is left to do; `entries.parquet` from
when all is kept. The taking itself is in `intercept`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.errors import UNREADABLE, FormatError
from cmroot.keep.content import Kept, is_kept
from cmroot.log.captured import ADD, FILES
from cmroot.log.intercepted import JOURNAL
from cmroot.store.listing import hidden, skipped_directory
from cmroot.store.place import Place, join, normal
from cmroot.text import shown

VERSION = 1
DIRECTORY = "taking"
ENTRIES = "entries.parquet"

_ID = re.compile("[0-9a-f]{32}")
_PLACE = re.compile("/|[a-z][a-z0-9+.-]*:/")
_ENTRY = re.compile("[0-9]{1,9}")

INTERCEPTING, SENT, DONE = "taking", "sent", "done"
"""States of a journal: nothing is sent yet, so everything goes back; sent, and the outcome is not known; dropped."""


class InterceptSource(msgspec.Struct, frozen=True):
    """A directory, or a single file, to take. `table`: the one that it goes with. `entry`: its name in the intercept,
    when it is moved there."""

    place: str
    table: str
    entry: str = ""


class Owner(msgspec.Struct, frozen=True):
    """Whose files lie below a location: a table without partitions, or a partition by its escaped name."""

    table: str
    partition: str
    location: str


class DropCall(msgspec.Struct, frozen=True, kw_only=True):
    """Who drops what; the fields are those of Journal."""

    before_event: int
    call: str
    db: str
    table: str
    empties: bool = False
    about: dict[str, Any] = {}


class Journal(msgspec.Struct, frozen=True):
    """What `journal.json` says. `before_event`: the newest event before the drop was sent; `sent_at`: when, in seconds
    since the epoch. `empties`: the directories stay, without what is in them. `about`: the caller's own. `events`: of
    what was dropped, the event by table."""

    version: int
    id: str
    state: str
    before_event: int
    call: str
    db: str
    table: str
    created: str
    sources: tuple[InterceptSource, ...]
    owners: tuple[Owner, ...]
    empties: bool = False
    about: dict[str, Any] = {}
    events: dict[str, int] = {}
    sent_at: float = 0


def write_journal(place: str, journal: Journal) -> None:
    """Durable when it returns; replaces the one before."""
    (Place(place) / JOURNAL).replace_own(msgspec.json.encode(journal))


def read_journal(place: str) -> Journal | None:
    """None when there is none: nothing has begun there, or all is done. Raises FormatError for a damaged one."""
    path = Place(place) / JOURNAL
    try:
        journal = msgspec.json.decode(path.read_bytes(), type=Journal)
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        raise FormatError(f"{path}: {error}", hint="what it took is beside it: move it back by hand") from error
    if journal.version != VERSION:
        raise FormatError(f"{path}: version {journal.version}, this release knows {VERSION}", hint="use the newer one")
    return journal


def flaw(journal: Journal, name: str) -> str:
    """Why a journal below `taking/<name>/` is none that a gateway wrote: an entry that leads elsewhere, a state that
    does not exist; "" for a sound one. What it names as places is for who knows the warehouse to judge."""
    if journal.id != name or not _ID.fullmatch(name):
        return f"it says to be {journal.id!r}"
    if journal.state not in (INTERCEPTING, SENT, DONE):
        return f"it has no known state: {journal.state!r}"
    moved = [source.entry for source in journal.sources if source.entry]
    wrong = [entry for entry in moved if not _ENTRY.fullmatch(entry)]
    if wrong or len(set(moved)) < len(moved):
        return f"it moves {wrong[0]!r}" if wrong else "it moves one entry to two places"
    odd = [source.place for source in journal.sources if not _PLACE.match(source.place) or "\0" in source.place]
    if odd:
        return f"{odd[0]!r} is no place"
    return ""


def outermost(sources: Iterable[InterceptSource]) -> list[InterceptSource]:
    """Without those that lie below another, which takes them along."""
    found: list[InterceptSource] = []
    for source in sorted(sources, key=lambda source: normal(source.place) + "/"):
        if not found or not _is_below(normal(source.place), normal(found[-1].place)):
            found.append(source)
    return found


def _is_below(place: str, other: str) -> bool:
    return place == other or place.startswith(other.rstrip("/") + "/")


# ---- entries ------------------------------------------------------------------------------------------------------


def entries(journal: Journal, kept: Mapping[str, Kept]) -> pa.Table:
    """File entries (cmroot.log.FILES, positions null) of all that is data of a table or partition. `kept`: by the place
    that a file had, in the spelling of `normal`. `_temporary` and what lies beside partitions is nobody's data."""
    owners = {normal(owner.location): owner for owner in journal.owners}
    above: dict[str, str | None] = {}  # directory -> the location that it belongs to
    columns: dict[str, list[Any]] = {name: [] for name in FILES.names}
    for place, file in sorted({shown(place): file for place, file in kept.items()}.items()):
        directory = place if place in owners else place.rpartition("/")[0]  # one file may be all of a table
        if directory not in above:
            above[directory] = _nearest_owner(directory, owners)
        location = above[directory]
        if location is None:
            continue
        owner, path = owners[location], place[len(location) + 1 :]
        *parents, name = path.split("/")
        if hidden(name) or any(skipped_directory(parent) for parent in parents):
            continue
        row = {
            "op": ADD,
            "db": journal.db,
            "table": owner.table,
            "partition": owner.partition,
            "location": owner.location,
            "path": path,
            "size": file.size,
            "mtime_ns": file.mtime_ns,
            "identity": file.identity,
            "checksum": file.checksum,
            "kept": True,
            "version": file.version,
        }
        for column, values in columns.items():
            values.append(row.get(column))
    return pa.table({name: pa.array(values, FILES.field(name).type) for name, values in columns.items()})


def _nearest_owner(directory: str, owners: Mapping[str, Owner]) -> str | None:
    place = directory
    while place and place not in owners:
        place = place.rpartition("/")[0]
    return place or None


def write_entries(place: str, rows: pa.Table) -> None:
    with (Place(place) / ENTRIES).open_write() as file:
        pq.write_table(rows, file, compression="zstd")


def read_entries(root: str, place: str) -> dict[str, Kept]:
    """What was kept before a crash, by the place it had, as far as it still is: until it is recorded nothing refers to
    it, so it may have expired. Raises FormatError."""
    path = Place(place) / ENTRIES
    try:
        with path.open_read() as file:
            rows = pq.read_table(file).to_pylist()
    except FileNotFoundError:
        return {}  # all of this is done already
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{path}: {error}", hint="remove it: no record will name these files then") from error
    return {
        normal(join(row["location"], row["path"])): Kept(
            row["size"], row["mtime_ns"], row["identity"], "", row["checksum"], row["version"]
        )
        for row in rows
        if row["version"] is not None or is_kept(root, row["checksum"], row["size"])
    }
