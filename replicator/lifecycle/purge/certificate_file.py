"""Certificates: the file contents to search for, the report, its JSON, text and HTML files, and certificates recorded
in the audit."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from cmroot.errors import Exists
from cmroot.log.captured import ADD, RELEASE, Segment, segments
from cmroot.store.place import as_written, join, normal, parent
from cmroot.store.spelling import is_root
from replicator.core.audit import read_audit
from replicator.core.not_replicated import Report
from replicator.core.text import count_text, printable, size_text
from replicator.errors import ObjectNotFound
from replicator.lifecycle.purge.options import PurgeGap
from replicator.lifecycle.purge.state import PURGE, RecordedUnit, RunDirectory
from replicator.lifecycle.purge.table_files import ERASED, OLDER, SIDECAR, UNREAD, Content, Key

Section = tuple[str, Sequence[str]]


@dataclass(frozen=True)
class Holding:
    """A remaining copy of data from before the purge. what: table, backup, $cmroot, replica, replica's $cmroot. why:
    the reason that it must be removed; until: the event that will remove it."""

    what: str
    object: str
    path: str
    bytes: int
    why: str
    until: str
    where: str = ""


@dataclass
class Certificate(Report):
    """The report. status: "certified"; "remaining" if copies remain; "gaps" if none was found, but not everything was
    searched. holding: all remaining copies. searched: tables whose files were all read, and in which no row has an id.
    gaps: white-listed tables, partitions of others, and materialized views of searched tables, that were not searched.
    without_persons: white-listed tables that hold none according to their descriptors: by whom, and why. views: those
    that read a searched table; they have no rows of their own, or were rebuilt since. replicas: of one of
    the tables. erased: rows that the purges erased, by table. never_found: the number of ids that no purge of these has
    found in any table; None if unknown. near_misses: how many of these a table had in another spelling."""

    status: str
    ids: str
    count: int
    runs: list[str]
    time: str
    event: int
    searched: list[str] = field(default_factory=list)
    gaps: list[dict[str, Any]] = field(default_factory=list)
    without_persons: list[dict[str, Any]] = field(default_factory=list)
    views: list[dict[str, Any]] = field(default_factory=list)
    erased: dict[str, int] = field(default_factory=dict)
    never_found: int | None = None
    near_misses: int | None = None
    contents: int = 0
    replicas: list[str] = field(default_factory=list)
    holding: list[dict[str, Any]] = field(default_factory=list)
    expedited_files: int = 0
    expedited_bytes: int = 0
    seconds: float = 0.0

    @property
    def is_whole(self) -> bool:
        """True if no copy remains, and everything that had to be searched was searched."""
        return self.status == "certified"


def refuse_existing(place: str) -> None:
    """Raises Exists if the file exists."""
    if as_written(place).exists():
        raise _exists(place)


def write_certificate(certificate: Certificate, place: str, *, overwrite: bool) -> None:
    """Publishes a certificate atomically: as text or HTML if the file name ends in .txt or .html, else as JSON. Raises
    Exists if the file exists, unless it may be overwritten."""
    suffix = place.rpartition("/")[2].rpartition(".")[2].lower()
    write = {"txt": as_text, "html": as_page, "htm": as_page}.get(suffix, as_json)
    data = write(certificate).encode(errors="backslashreplace")
    if overwrite:
        as_written(place).write_bytes(data)
    elif not as_written(place).create_exclusive(data):
        raise _exists(place)


def recorded_certificate(root: str, run: str | None) -> Certificate:
    """Returns the audit's newest certificate; run: that covers this purge. Raises ObjectNotFound if there is none."""
    rows = [row for row in read_audit(root, job=PURGE, outcome="done") if row.what == "certificate"]
    for row in sorted(rows, key=lambda each: each.time, reverse=True):
        found = msgspec.json.decode(row.detail, type=Certificate)
        if run is None or run in found.runs:
            return found
    of = f" of purge {run}" if run else ""
    raise ObjectNotFound(f"{root}: no certificate{of} in the audit", hint="`replicator purge certify` creates one")


def as_json(certificate: Certificate) -> str:
    return msgspec.json.format(msgspec.json.encode(certificate)).decode() + "\n"


def as_text(certificate: Certificate) -> str:
    """Formats each fact as a line below the name of its section."""
    found = []
    for title, lines in _sections(certificate):
        found += [title, *(f"  {printable(line)}" for line in lines or ["none"]), ""]
    return "\n".join(["Certificate of erasure", "", *found])


def as_page(certificate: Certificate) -> str:
    """Formats a self-contained HTML file."""
    parts = []
    for title, lines in _sections(certificate):
        items = "".join(f"<li>{html.escape(printable(line))}</li>" for line in lines or ["none"])
        parts.append(f"<section><h2>{html.escape(title)}</h2><ul>{items}</ul></section>")
    return f"{_HEAD}{''.join(parts)}</main></body></html>\n"


_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Certificate of erasure</title>
<meta name="viewport" content="width=device-width"><style>
:root { color-scheme: light dark } main { max-width: 50rem; margin: 2rem auto; font: 1rem/1.5 sans-serif }
li { overflow-wrap: anywhere } h2 { font-size: 1.1rem }</style></head>
<body><main><h1>Certificate of erasure</h1>
"""

_MEANINGS = {
    "certified": "nothing holds the erased data any more",
    "remaining": "copies remain, which are listed here",
    "gaps": "no copy was found, but not everything was searched",
}


def _sections(certificate: Certificate) -> Iterator[Section]:
    yield "Outcome", [f"{certificate.status}: {_MEANINGS.get(certificate.status, '')}"]
    yield (
        "About",
        [
            f"{count_text(certificate.count, 'id')} of {certificate.ids}",
            *_never_found(certificate),
            f"created at {certificate.time}, at event {certificate.event}",
            f"purges: {', '.join(certificate.runs) or 'none'}",
            f"{count_text(certificate.contents, 'file content')} searched for by checksum",
        ],
    )
    erased = [f"{table}: {count_text(rows, 'row')}" for table, rows in sorted(certificate.erased.items())]
    yield "Rows that were erased, by table", erased
    yield "Tables that were searched, with no row of these ids", certificate.searched
    stated = [f"{each['table']}: {each['reason']} (stated by {each['by']})" for each in certificate.without_persons]
    yield "Tables without persons, by their descriptors", stated
    yield "Views of these tables", [_view(each) for each in certificate.views]
    yield "Replicas that were checked", certificate.replicas
    yield "Remaining copies", [_holding(each) for each in certificate.holding]
    yield "Not searched", [f"{gap['table']}: {gap['reason']}" for gap in certificate.gaps]
    if certificate.expedited_files:
        expedited = f"{count_text(certificate.expedited_files, 'file')}, {size_text(certificate.expedited_bytes)}"
        yield "Removed before their expiry", [expedited]


def _never_found(certificate: Certificate) -> list[str]:
    if not certificate.never_found:
        return []
    text = f"{certificate.never_found:,} of them were found in no table, by the rules of each table"
    if not certificate.near_misses:
        return [f"{text}; none has a near match" if certificate.near_misses == 0 else text]
    return [
        f"{text}; {certificate.near_misses:,} of these have a near match there: blanks, case, Unicode form or zeros"
    ]


def _view(each: dict[str, object]) -> str:
    kind = "materialized, rebuilt since the purge" if each["materialized"] else "no rows of its own"
    text = "; its text was not understood, and has the name of the table" if each.get("unparsed") else ""
    return f"{each['view']} reads {each['reads']}: {kind}{text}"


def _holding(each: dict[str, object]) -> str:
    size = each.get("bytes")
    text = f", {size_text(size)}" if isinstance(size, int) and size else ""
    where = f" ({each['where']})" if each.get("where") else ""
    return f"{each['what']} {each['object']}{where}: {each['path']}{text}; {each['why']}; until: {each['until']}"


def _exists(place: str) -> Exists:
    return Exists(f"{place} already exists", hint="--overwrite replaces it, or --out names another file")


# ---- contents --------------------------------------------------------------------------------------------------------
# The contents that must be gone after a purge: those of files that had rows erased, and of older states of the purged
# tables, which were not searched. Reads only.


_EMPTY = {(xxhash.xxh3_128_hexdigest(each), len(each)) for each in (b"", SIDECAR + (512).to_bytes(4, "big"))}
"""The contents of an empty file, and of Hadoop's checksums of one: a header, equal for all."""


def erased_contents(purged: Sequence[RecordedUnit]) -> Iterator[Content]:
    """Yields the previous contents of files that were rewritten in these partitions, and of files that no reader reads.
    Omits empty files, and the checksums of such."""
    keys: dict[RunDirectory, set[tuple[str, str]]] = {}
    for directory, unit in purged:
        keys.setdefault(directory, set()).add(unit.key)
    for directory, several in keys.items():
        for table in directory.files():
            for row in table.filter(pc.is_valid(table["checksum"])).to_pylist():
                if (row["table"], row["partition"]) in several and (row["checksum"], row["size"]) not in _EMPTY:
                    place, why = join(row["location"], row["name"]), ERASED if row["matched"] else UNREAD
                    yield Content(row["checksum"], row["size"], row["table"], row["partition"], place, why)


def older_contents(root: str, tables: Collection[str]) -> tuple[dict[Key, Content], dict[str, set[str]]]:
    """Returns the contents that tables ("db.table") formerly had, according to the captured log, and by table the
    locations that it and its partitions have had. Holds in memory a row for each content that they ever had."""
    counts: dict[Key, int] = {}
    seen: dict[Key, Content] = {}
    places: dict[str, set[str]] = {}
    for row in _rows(segments(root), {table.lower() for table in tables}):
        key = (row["checksum"], row["size"])
        counts[key] = counts.get(key, 0) + (1 if row["op"] == ADD else -1)
        place = join(row["location"] or "", row["path"] or "")
        seen[key] = content = Content(*key, f"{row['db']}.{row['table']}", row["partition"] or "", place, OLDER)
        location = row["location"] or ""  # of a file outside of its table's: the directory, not its store
        places.setdefault(content.table, set()).add(parent(place) if is_root(location) else location)
    older = {key: content for key, content in seen.items() if counts[key] <= 0 and key not in _EMPTY}
    return older, {name: {normal(each) for each in several if each} for name, several in places.items()}


def _rows(log: Sequence[Segment], tables: set[str]) -> Iterator[dict[str, Any]]:
    columns = ["op", "db", "table", "partition", "location", "path", "size", "checksum"]
    wanted = pa.array(sorted(tables), pa.string())
    for segment in log:
        for batch in segment.file_batches(columns):
            rows = pa.Table.from_batches([batch])
            names = pc.binary_join_element_wise(rows["db"], rows["table"], ".")
            fits = pc.and_(pc.is_in(names, wanted), pc.is_in(rows["op"], pa.array([ADD, RELEASE])))
            fits = pc.and_(fits, pc.and_(pc.is_valid(rows["checksum"]), pc.is_valid(rows["size"])))
            yield from rows.filter(pc.fill_null(fits, False)).to_pylist()


@dataclass(frozen=True)
class Sought:
    """The search of a certificate. contents: by checksum and size; shared: those of `shared_contents`; places: where
    tables ("db.table") and their partitions are or were, outside of the table's present directory. gaps: gets the
    directories that could not be searched."""

    contents: Mapping[Key, Content]
    shared: Collection[tuple[str, Key]] = ()
    places: Mapping[str, set[str]] = field(default_factory=dict)
    gaps: list[PurgeGap] = field(default_factory=list)

    def of(self, table: str) -> Mapping[Key, Content]:
        """Returns what may not be in the directories of a table ("db.table")."""
        return {key: each for key, each in self.contents.items() if (table, key) not in self.shared}
