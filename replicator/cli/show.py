"""`replicator show`: a dump, a $cmroot's captured log or one segment of it, for a person or as one JSON object."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import click

from replicator.captures.dumps.shown import Shown
from replicator.cli.options import Session, json_option, options_of, pass_session
from replicator.cli.output import aligned, count_text, size_text, time_text, value_text, write
from replicator.commands.show import show as run
from replicator.metastore.events.record import Change

SPOOL = 16 << 20  # bytes of JSON held in memory; more waits in a file


@click.command()
@options_of(run)
@json_option
@pass_session
def show(session: Session, /, as_json: bool, **given: Any) -> int:
    """Print a dump directory, a $cmroot's captured log, or one segment of that log.

    \b
    Example:
      replicator show /dumps/2
      replicator show /warehouse/.cmroot --files
      replicator show /warehouse/.cmroot --table sales.orders --since -1d
    """
    shown = session.call(run, **given)
    if as_json:
        _write_json(shown)
    else:
        write(_lines(shown))
    return 0


# ---- JSON ---------------------------------------------------------------------------------------------------------


def _write_json(shown: Shown) -> None:
    """One object, complete before its first byte is printed: of a damaged part only the error is seen."""
    with tempfile.SpooledTemporaryFile(SPOOL, mode="w+", encoding="utf-8") as spool:
        spool.write(json.dumps(shown.head())[:-1])
        for name, items in shown.lists().items():
            spool.write(f', "{name}": [')
            for index, item in enumerate(items):
                spool.write((", " if index else "") + json.dumps(item))
            spool.write("]")
        spool.write("}")
        spool.seek(0)
        write(line.rstrip("\n") for line in spool)


# ---- text ---------------------------------------------------------------------------------------------------------


def _lines(shown: Shown) -> Iterator[str]:
    yield from aligned(_header(shown.header))
    yield ""
    for record, restore in shown.rows():
        obj, detail = describe_change(record.change)
        offered = f"  restore: {shlex.join(restore[2:])}" if restore else ""
        kind = record.change.__struct_config__.tag
        seen = "observed" if record.observed else ""
        place = f"{record.position:>8}  {record.event:>8}  {time_text(record.time)}  {seen:<8}"
        yield f"{place}  {kind:<15}  {obj}  {detail}".rstrip() + offered
    if shown.header["what"] == "log" and shown.header["records"]:
        root = shlex.quote(str(shown.header["place"]))
        chosen = "the arguments of a row" if shown.restores else "--db DB --to @POSITION"
        yield ""
        yield f"restore a state: replicator restore --cmroot {root} --target METASTORE, and {chosen}"
    if shown.files:
        yield ""
        for entry in shown.entries():
            yield _file_line(entry)


def _header(header: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in header.items():
        name = key.replace("_", " ")
        if key in ("begin", "end") and value:
            yield name, f"event {value['event']}, position {value['position']}, {time_text(value['time'])}"
        elif key == "scope":
            yield name, ", ".join(value["databases"])
            yield from ((key, value[key]) for key in ("include", "exclude"))
            filters = value.get("partitions") or {}
            yield "partitions", [f"{table}: {value_text(each)}" for table, each in filters.items()]
        elif key == "locations":
            yield name, [f"{db} at {location}" for db, location in value.items()]
        elif key == "bytes":
            yield name, size_text(value)
        elif key == "data":
            yield name, _data(value)
        elif key == "unkept":
            files = count_text(value, "file") if value else ""
            yield "kept nowhere", f"{files}: a load is possible only as long as the source has them" if value else None
        elif value not in (None, "", [], {}):
            yield name, list(map(value_text, value)) if isinstance(value, list | tuple) else value_text(value)


def _data(data: Mapping[str, Any] | None) -> str:
    if data is None:
        return "none: the dump names files"
    text = f"{count_text(data['files'], 'content')}, {size_text(data['bytes'])}"
    if data["referenced"]:
        text += f"; {count_text(data['referenced'], 'content')} in earlier dumps"
    if data["earlier"]:
        text += f"; after {', '.join(each['place'] for each in data['earlier'])}"
    return text


def _file_line(entry: Mapping[str, Any]) -> str:
    size = "" if entry["size"] is None else str(entry["size"])
    checksum = entry["checksum"] or "-"
    kept = "kept" if entry["kept"] else ""
    partition = f"/{entry['partition']}" if entry["partition"] else ""
    where = f"{entry['location']}/{entry['path']}" if entry["path"] else entry["location"]
    return (
        f"{entry['position']:>8}  {entry['op']:<9}  {size:>12}  {checksum:<32}  {kept:<4}  "
        f"{entry['db']}.{entry['table']}{partition}  {where}"
    )


def describe_change(change: Change) -> tuple[str, str]:
    """(object, detail) of a change, each short."""
    return change.object, change.detail
