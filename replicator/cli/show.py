"""`replicator show`: a dump, a $cmroot's captured log or one segment of it, for a person or as one JSON object."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from replicator.cli.options import json_option, key_file_option
from replicator.cli.output import aligned, size_text, time_text, write
from replicator.errors import FormatError

if TYPE_CHECKING:
    from replicator.events.record import Change, ChangeRecord

SPOOL = 16 << 20  # bytes of JSON held in memory; more waits in a file


@dataclass(frozen=True)
class Shown:
    """What there is to show: the header's fields, and where records and file entries come from."""

    header: dict[str, Any]
    records: Callable[[], Iterator[ChangeRecord]]
    files: Callable[[], Iterator[Mapping[str, Any]]]


@click.command()
@click.argument("place", metavar="DUMP_OR_LOG")
@click.option("--files", is_flag=True, help="List the file entries, too.")
@key_file_option
@json_option
def show(place: str, files: bool, key_file: str | None, as_json: bool) -> None:
    """Print a dump directory, a $cmroot's captured log, or one segment of that log.

    \b
    Example:
      replicator show /dumps/2
      replicator show /warehouse/.cmroot --files
    """
    shown = _open(place, key_file)
    if as_json:
        _write_json(shown, files)
    else:
        write(_lines(shown, files))


def _open(place: str, key_file: str | None) -> Shown:
    """Raises FormatError for anything that is neither a dump nor a captured log."""
    from cmroot.log.captured import MARKER
    from cmroot.root import FORMAT
    from cmroot.store.place import join, name_of, normal, parent, store_for
    from replicator.dumps.layout import FINISHED, METADATA

    place = normal(place)
    store = store_for(place)
    if store.exists(join(place, FINISHED)) or store.exists(join(place, METADATA)):
        return _open_dump(place, key_file)
    if store.exists(join(place, MARKER)):
        return _open_log(parent(parent(place)), only=name_of(place))
    if name_of(place) == "log" and store.exists(join(parent(place), FORMAT)):
        place = parent(place)
    if store.exists(join(place, FORMAT)):
        return _open_log(place)
    raise FormatError(
        f"{place}: neither a dump, nor a $cmroot, nor a segment of its log",
        hint="check the path" if store.list(place) else "there is nothing at that path",
    )


def _open_dump(place: str, key_file: str | None) -> Shown:
    import msgspec

    from replicator.dumps.reader import DumpReader
    from replicator.dumps.signing import read_keys

    reader = DumpReader(place, read_keys(key_file) if key_file else None)
    if key_file:
        reader.verify()

    def entries() -> Iterator[Mapping[str, Any]]:
        for batch in reader.entries():
            yield from batch.to_pylist()

    return Shown({"what": "dump", "place": place, **msgspec.to_builtins(reader.metadata)}, reader.records, entries)


def _open_log(root: str, only: str | None = None) -> Shown:
    from cmroot.log.captured import segments
    from cmroot.root import open_existing
    from cmroot.store.place import name_of
    from replicator.captures.fold import read_records
    from replicator.events.scope import captured_databases

    opened = open_existing(root)
    log = [each for each in segments(opened.place) if only in (None, name_of(each.place))]

    def records() -> Iterator[ChangeRecord]:
        for segment in log:
            yield from read_records(segment)

    def entries() -> Iterator[Mapping[str, Any]]:
        for segment in log:
            for batch in segment.file_batches():
                yield from batch.to_pylist()

    header = {
        "databases": captured_databases(log) or "unknown until the next capture",
        "what": "log" if only is None else "segment", "place": log[0].place if only and log else opened.place,
        "root_id": opened.id, "segments": len(log), "first_position": log[0].first if log else None,
        "last_position": log[-1].last if log else None,
        "records": sum(segment.record_count for segment in log), "files": sum(segment.file_count for segment in log),
    }  # fmt: skip
    return Shown(header, records, entries)


# ---- JSON ---------------------------------------------------------------------------------------------------------


def _write_json(shown: Shown, files: bool) -> None:
    """One object, complete before its first byte is printed: of a damaged part only the error is seen."""
    import msgspec

    with tempfile.SpooledTemporaryFile(SPOOL, mode="w+", encoding="utf-8") as spool:
        lists: dict[str, Iterable[Any]] = {"records": map(msgspec.to_builtins, shown.records())}
        if files:
            lists["files"] = shown.files()
        counts = {f"{name}_count": shown.header[name] for name in ("records", "files") if name in shown.header}
        header = {key: value for key, value in shown.header.items() if key not in ("records", "files")}
        spool.write(json.dumps({"status": "shown", **header, **counts})[:-1])
        for name, items in lists.items():
            spool.write(f', "{name}": [')
            for index, item in enumerate(items):
                spool.write((", " if index else "") + json.dumps(item))
            spool.write("]")
        spool.write("}")
        spool.seek(0)
        write(line.rstrip("\n") for line in spool)


# ---- text ---------------------------------------------------------------------------------------------------------


def _lines(shown: Shown, files: bool) -> Iterator[str]:
    yield from aligned(_header(shown.header))
    yield ""
    for record in shown.records():
        thing, detail = describe_change(record.change)
        kind = record.change.__struct_config__.tag
        seen = "observed" if record.observed else ""
        place = f"{record.position:>8}  {record.event:>8}  {time_text(record.time)}  {seen:<8}"
        yield f"{place}  {kind:<15}  {thing}  {detail}".rstrip()
    if files:
        yield ""
        for entry in shown.files():
            yield _file_line(entry)


def _header(header: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in header.items():
        name = key.replace("_", " ")
        if key in ("begin", "end") and value:
            yield name, f"event {value['event']}, position {value['position']}, {time_text(value['time'])}"
        elif key == "scope":
            yield name, ", ".join(value["databases"])
            yield "include", value["include"]
            yield "exclude", value["exclude"]
        elif key == "locations":
            yield name, [f"{db} at {location}" for db, location in value.items()]
        elif key == "bytes":
            yield name, size_text(value)
        else:
            yield name, value


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
