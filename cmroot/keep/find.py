"""Finding in the captured log: which files were recorded at a path, in a table, or with a checksum, and until when.

Streams over the file entries and holds the newest matches only. Whether their bytes are kept now is asked at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cmroot.keep.content import content_name, is_kept
from cmroot.log.captured import ADD, FILES, RELEASE, Segment
from cmroot.store.checksum import ALGORITHM
from cmroot.store.place import Place, is_local, join, normal

LIMIT = 1000
"""References listed one by one; the newest. The others are counted."""

_COLUMNS = [name for name in FILES.names if name != "identity"]


@dataclass(frozen=True)
class Query:
    """What to look for; all that is given must fit. `path`: a file or a directory above it, at any time of the log.
    `table`: `db.table`, or `db.table/partition` with the partition's escaped name. `checksum`: its first digits, or
    a content name such as `xxh3_128-<hex>-<size>`."""

    path: str = ""
    table: str = ""
    checksum: str = ""


class Reference(msgspec.Struct, frozen=True):
    """A file as the log recorded it: the source had these bytes from `since` on, until `ended` (None: it has them
    still). `recorded_kept`: whether they were kept when it was recorded; `kept`: whether they are now, in `files/` or
    as a version of their bucket. checksum None: nobody ever read it."""

    db: str
    table: str
    partition: str
    location: str
    path: str
    size: int | None
    mtime_ns: int | None
    checksum: str | None
    since: int
    ended: int | None
    recorded_kept: bool
    version: str | None = None
    kept: bool = False

    @property
    def place(self) -> str:
        return join(self.location, self.path)

    @property
    def key(self) -> tuple[int, str, str | None]:
        return self.since, self.path, self.checksum


@dataclass(frozen=True)
class Findings:
    """The newest references, in the order of the log, and how many there are; `total` is at least that many."""

    references: list[Reference]
    total: int


def find(root: str, log: Sequence[Segment], query: Query, *, limit: int = LIMIT) -> Findings:
    """References that fit a query. Reads the whole log once or twice, in flat memory; takes no lease.

    A live file whose table was renamed or moved since is found where it was recorded, not where it lies now."""
    found: dict[tuple[int, str, str | None], Reference] = {}
    total = 0
    for row in _rows(log, query):
        reference = _reference(row)
        known = found.pop(reference.key, None)
        total += known is None and row["op"] == ADD
        if known is not None:  # the release of an add that fits too
            reference = msgspec.structs.replace(known, ended=reference.ended)
        found[reference.key] = reference
        if len(found) > limit:
            del found[next(iter(found))]
    total = max(total, len(found))
    ends = _ends(log, [each for each in found.values() if each.ended is None])
    references = [msgspec.structs.replace(each, ended=ends.get(each.key, each.ended)) for each in found.values()]
    references.sort(key=lambda each: each.since)
    return Findings(_with_kept(root, references), total)


def _rows(log: Sequence[Segment], query: Query) -> Iterator[dict[str, Any]]:
    path = normal(query.path) if query.path else ""
    for segment in log:
        for batch in segment.file_batches(_COLUMNS):
            rows = pa.Table.from_batches([batch])
            rows = rows.filter(pc.is_in(rows["op"], pa.array([ADD, RELEASE])))
            if query.checksum:
                rows = rows.filter(pc.starts_with(rows["checksum"], _digits(query.checksum)))
            if query.table:
                rows = rows.filter(_of_table(rows, query.table))
            if path and rows.num_rows:
                rows = rows.filter(_below(rows, path))
            yield from rows.to_pylist()


def _digits(text: str) -> str:
    return text.lower().removeprefix(f"{ALGORITHM}-").partition("-")[0]


def _of_table(rows: pa.Table, text: str) -> Any:
    name, slash, partition = text.partition("/")
    db, _, table = name.rpartition(".")
    fits = pc.equal(rows["table"], table.lower())
    if db:
        fits = pc.and_(fits, pc.equal(rows["db"], db.lower()))
    return pc.and_(fits, pc.equal(rows["partition"], partition)) if slash else fits


def _below(rows: pa.Table, wanted: str) -> Any:
    """Rows whose file is at a place or below it. There are few locations, and many files."""
    fits = pa.array([False] * rows.num_rows)
    for location in pc.unique(pc.drop_null(rows["location"])).to_pylist():
        here = pc.equal(rows["location"], location)
        place = normal(location)
        if place == wanted or place.startswith(wanted.rstrip("/") + "/"):
            fits = pc.or_(fits, here)
        elif wanted.startswith(place.rstrip("/") + "/"):
            rest = wanted[len(place.rstrip("/")) + 1 :]
            named = pc.or_(pc.equal(rows["path"], rest), pc.starts_with(rows["path"], rest + "/"))
            fits = pc.or_(fits, pc.and_(here, named))
    return fits


def _reference(row: dict[str, Any]) -> Reference:
    ending = row["op"] == RELEASE
    return Reference(
        db=row["db"] or "",
        table=row["table"] or "",
        partition=row["partition"] or "",
        location=row["location"] or "",
        path=row["path"] or "",
        size=row["size"],
        mtime_ns=row["mtime_ns"],
        checksum=row["checksum"],
        since=row["since"] if ending else row["position"],
        ended=row["position"] if ending else None,
        recorded_kept=bool(row["kept"]),
        version=row["version"],
    )


def _ends(log: Sequence[Segment], open_: Sequence[Reference]) -> dict[tuple[int, str, str | None], int]:
    """Where references ended under another name or at another place than they were looked for."""
    if not open_:
        return {}
    keys = {each.key for each in open_}
    since = pa.array({each.since for each in open_}, pa.int64())
    first = min(each.since for each in open_)
    ends = {}
    for segment in log:
        if segment.last < first:
            continue
        for batch in segment.file_batches(["position", "op", "path", "checksum", "since"]):
            rows = pa.Table.from_batches([batch])
            rows = rows.filter(pc.and_(pc.equal(rows["op"], RELEASE), pc.is_in(rows["since"], since)))
            for row in rows.to_pylist():
                key = (row["since"], row["path"], row["checksum"])
                if key in keys:
                    ends[key] = row["position"]
    return ends


def _with_kept(root: str, references: Sequence[Reference]) -> list[Reference]:
    contents = {(each.checksum, each.size) for each in references if each.checksum and each.size is not None}
    there = kept_now(root, ((checksum, size) for checksum, size in contents if checksum and size is not None))
    return [
        msgspec.structs.replace(each, kept=bool(each.version) or (each.checksum, each.size) in there)
        for each in references
    ]


def kept_now(root: str, contents: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
    """Which of some contents `files/` has by name; on object stores by listing what may have them."""
    if is_local(root):
        return {each for each in contents if is_kept(root, *each)}
    names: dict[str, set[str]] = {}
    found = set()
    for checksum, size in contents:
        prefix = checksum[:2]
        if prefix not in names:
            names[prefix] = set((Place(root) / "files" / prefix).list())
        if content_name(checksum, size) in names[prefix]:
            found.add((checksum, size))
    return found
