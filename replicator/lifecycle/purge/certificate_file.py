"""Certificates as files: JSON for programs, text or HTML for users; and certificates recorded in the audit."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

import msgspec

from cmroot.errors import Exists
from cmroot.store.place import as_written
from replicator.core.audit import read_audit
from replicator.core.text import count_text, printable, size_text
from replicator.errors import ObjectNotFound
from replicator.lifecycle.purge.certify import Certificate
from replicator.lifecycle.purge.state import PURGE

Section = tuple[str, Sequence[str]]


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
