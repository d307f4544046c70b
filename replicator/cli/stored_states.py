"""Stored states of a source: `replicator dumps`, finished dumps, without any metastore; `show`, the contents of a dump,
of a captured log or of one segment of it; and `restore`, a database or tables as they were.
"""

from __future__ import annotations

import json
import shlex
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from replicator.captures.dumps.archive import Archived
from replicator.captures.dumps.data import DumpInPlace
from replicator.captures.dumps.shown import Shown
from replicator.cli.options import Session, json_option, json_options, options_of, pass_session
from replicator.cli.output import (
    aligned,
    columns,
    count_text,
    emit,
    note,
    shortened,
    size_text,
    time_text,
    took,
    value_text,
    write,
)
from replicator.commands.stored_states import dumps_expire, dumps_export, dumps_import, dumps_ls, dumps_verify
from replicator.commands.stored_states import restore as run_restore
from replicator.commands.stored_states import show as run
from replicator.core.not_replicated import PARTIAL
from replicator.core.option import absolute_moment
from replicator.replay.restore.plan import RestorePlan
from replicator.replay.restore.restore import Restored

# ---- dumps -----------------------------------------------------------------------------------------------------------


DAMAGED = 4


@click.group()
def dumps() -> None:
    """Work on finished dumps, without any metastore.

    \b
    Example: replicator dumps verify /backup/1
    """


@dumps.command(name="verify")
@options_of(dumps_verify, engine=True)
@json_options
@pass_session
def verify(session: Session, /, as_json: bool, **given: Any) -> int:
    """Read all of a dump, with every byte of its data, also in the earlier dumps that it refers to. Exit code 4 if
    anything is missing or damaged; the files are named.

    \b
    Example:
      replicator dumps verify /backup/1
      replicator dumps verify s3://backup/sales/2026-03-01 --key-file /etc/replicator/keys --engine spark
    """
    done = session.call(dumps_verify, **given)
    data = f"{count_text(done.files, 'content')}, {size_text(done.bytes)}" if done.with_data else None
    lines = [
        (done.status, f"{done.dump} ({done.kind})"),
        ("data", data or "none: the dump names files of the source"),
        ("signed", "yes" if done.signed else "not checked: no key file"),
        ("damaged", count_text(done.damaged_count, "file") if done.damaged_count else None),
        ("file", shortened(f"{each['file']}: {each['reason']}" for each in done.damaged)),
    ]
    emit(done, as_json, aligned(lines))
    return DAMAGED if done.damaged_count else 0


@dumps.command(name="export")
@options_of(dumps_export)
@json_options
@pass_session
def export(session: Session, /, as_json: bool, **given: Any) -> int:
    """Write a dump with data as one tar file, to be carried by hand. Every byte is compared with its checksum.

    Each dump of a chain needs a tar file of its own.

    \b
    Example:
      replicator dumps export s3://backup/sales/2026-03-01 /media/disk/2026-03-01.tar
      replicator dumps export /dumps/1 /media/disk/1.tar --encrypt --key-file /etc/replicator/keys
    """
    return _tell(session.call(dumps_export, **given), as_json)


@dumps.command(name="import")
@options_of(dumps_import)
@json_options
@pass_session
def import_(session: Session, /, as_json: bool, **given: Any) -> int:
    """Write the dump of a tar file into a directory. Every byte is compared with its checksum; anything that export did
    not write is refused. Dumps of a chain are found if they keep their names, in one directory.

    \b
    Example: replicator dumps import /media/disk/2026-03-01.tar --out /restore/2026-03-01
    """
    return _tell(session.call(dumps_import, **given), as_json)


def _tell(done: Archived, as_json: bool) -> int:
    lines = [
        (done.status, done.dump),
        ("file", f"{done.archive}{' (encrypted)' if done.encrypted else ''}"),
        ("data", f"{count_text(done.files, 'content')}, {size_text(done.bytes)}"),
        ("refers to", shortened(done.earlier)),
    ]
    emit(done, as_json, aligned(lines))
    return 0


@dumps.command(name="ls")
@options_of(dumps_ls)
@json_option
@pass_session
def list_dumps(session: Session, /, as_json: bool, **given: Any) -> int:
    """List the dumps of a directory, the oldest first, with the dumps that each needs. Exit code 4 if one of these is
    missing.

    \b
    Example: replicator dumps ls s3://backup/sales
    """
    found = session.call(dumps_ls, **given)
    head = ("dump", "created", "kind", "to event", "data", "needs")
    rows = [_row(each) for each in found.dumps]
    emit(found, as_json, [*columns(head, rows), *(f"unfinished: {name}" for name in found.unfinished)])
    return DAMAGED if any(each.broken for each in found.dumps) else 0


def _row(dump: DumpInPlace) -> tuple[str, ...]:
    needs = ", ".join(dump.needs) + (" (some are missing)" if dump.broken else "")
    data = "none" if dump.bytes is None else size_text(dump.bytes)
    return dump.name, dump.created, dump.kind, str(dump.to_event), data, needs.strip()


@dumps.command(name="expire")
@options_of(dumps_expire)
@json_option
@pass_session
def expire(session: Session, /, as_json: bool, **given: Any) -> int:
    """Remove the dumps with data that are not kept. Each source and scope is counted apart, days are those of UTC, and
    the newest dump is always kept. A kept dump keeps the dumps that it needs, so no chain is broken.

    \b
    Example:
      replicator dumps expire s3://backup/sales --keep-daily 7 --keep-weekly 4 --keep-monthly 12 --dry-run
      replicator dumps expire /backup --keep-within 14d
    """
    done = session.call(dumps_expire, **given)
    verb = "would remove" if done.status == "planned" else "removed"
    lines: list[tuple[str, Any]] = [(done.status, done.place)]
    lines += [("keep", f"{name}: {', '.join(why)}") for name, why in sorted(done.kept.items())]
    lines += [(verb, name) for name in done.removed]
    lines.append(("bytes", size_text(done.bytes_removed)))
    lines.append(("not touched", shortened(done.other)))
    emit(done, as_json, aligned(lines))
    return 0


# ---- show ------------------------------------------------------------------------------------------------------------


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
    moment = shown.moments()
    for record, restore in shown.rows():
        detail = " ".join(filter(None, [record.change.detail, moment(record)]))
        offered = f"  restore: {shlex.join(restore[2:])}" if restore else ""
        kind = record.change.__struct_config__.tag
        seen = "observed" if record.observed else ""
        place = f"{record.position:>8}  {record.event:>8}  {time_text(record.time)}  {seen:<8}"
        yield f"{place}  {kind:<15}  {record.change.object}  {detail}".rstrip() + offered
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
            yield name, _data_text(value)
        elif key == "unkept":
            files = count_text(value, "file") if value else ""
            yield "kept nowhere", f"{files}: a load is possible only as long as the source has them" if value else None
        elif value not in (None, "", [], {}):
            yield name, list(map(value_text, value)) if isinstance(value, list | tuple) else value_text(value)


def _data_text(data: Mapping[str, Any] | None) -> str:
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
    where = f"{entry['location'].rstrip('/')}/{entry['path']}" if entry["path"] else entry["location"]
    return (
        f"{entry['position']:>8}  {entry['op']:<9}  {size:>12}  {checksum:<32}  {kept:<4}  "
        f"{entry['db']}.{entry['table']}{partition}  {where}"
    )


# ---- restore ---------------------------------------------------------------------------------------------------------


@click.command()
@options_of(run_restore, engine=True)
@json_options
@pass_session
def restore(session: Session, /, as_json: bool, **given: Any) -> int:
    """Restore a database, or tables of it, to an event or a time, from the captured log and $cmroot.

    The result is a new database with its own copy of the data, on the source's metastore or another. Missing files are
    reported before anything is changed.

    \b
    Example:
      replicator restore --cmroot /cm --db sales --to 2026-03-01T12:00:00Z --target thrift://a:9083 --dry-run
      replicator restore --cmroot /cm --db sales --table orders --to 4711 --target thrift://a:9083 --into rescue
      replicator restore west --db sales --table orders --to 4711
      replicator restore west --db sales --table orders --to @812
      replicator restore west --db sales --table orders --to -90m --dry-run
    """
    moment = absolute_moment(given["to"], time.time())
    if moment != given["to"]:
        note(f"--to {moment}  # {given['to']}; a restore that is killed continues with this time")
    report = session.call(run_restore, **{**given, "to": moment})
    if isinstance(report, RestorePlan):
        emit(report, as_json, _plan_lines(report))
        return PARTIAL if report.not_replicated else 0
    emit(report, as_json, _restored_lines(report))
    return PARTIAL if report.files_missing or report.not_replicated else 0


def _plan_lines(plan: RestorePlan) -> Iterable[str]:
    return aligned(
        [
            ("would restore", f"{plan.db} as at {_moment(plan)}"),
            ("states", _states(plan)),
            ("into", f"{plan.into} at {plan.location}"),
            ("tables", shortened(plan.tables)),
            ("moments", _moments(plan)),
            ("partitions", shortened(plan.partitions)),
            ("replaced", shortened(plan.replaced)),
            ("dropped", shortened(plan.dropped)),
            ("copy", f"{count_text(plan.files_to_copy, 'file')}, {size_text(plan.bytes_to_copy)}"),
            ("from source", _files(plan.files_from_source, plan.bytes_from_source)),
            ("from $cmroot", _files(plan.files_from_cmroot, plan.bytes_from_cmroot)),
            ("missing", _missing(plan)),
            ("not restored", shortened(f"{each.object}: {each.reason}" for each in plan.not_replicated)),
            ("warning", shortened(plan.warnings)),
        ]
    )


def _restored_lines(restored: Restored) -> Iterable[str]:
    return aligned(
        [
            (restored.status, f"{restored.db} as at {_moment(restored)}"),
            ("states", _states(restored)),
            ("into", f"{restored.into} of {restored.target}"),
            ("tables", shortened(restored.tables)),
            ("moments", _moments(restored)),
            ("partitions", shortened(restored.partitions)),
            ("dropped", shortened(restored.dropped)),
            ("copied", f"{count_text(restored.files_copied, 'file')}, {size_text(restored.bytes_copied)}"),
            ("missing", _missing(restored)),
            ("not restored", shortened(map(str, restored.not_replicated))),
            ("warning", shortened(restored.warnings)),
            ("took", took(restored.seconds)),
        ]
    )


def _moment(report: RestorePlan | Restored) -> str:
    return f"event {report.event} (position {report.position}, {report.time})"


def _moments(report: RestorePlan | Restored) -> list[str]:
    return shortened(f"{name}: {moment}" for name, moment in report.moments.items())


def _states(report: RestorePlan | Restored) -> str | None:
    """The number of states that the requested event or time covers, if several."""
    if report.states < 2:
        return None
    span = f"from @{report.states_from} to @{report.position}"
    return f"{report.states} have this event or time, {span}: this is the last; --to @POSITION selects another"


def _files(files: int, size: int) -> str | None:
    return f"{count_text(files, 'file')}, {size_text(size)}" if files else None


def _missing(report: RestorePlan | Restored) -> list[str]:
    """Formats the missing files: their number, and the first ones."""
    if not report.files_missing:
        return []
    total = f"{count_text(report.files_missing, 'file')}, {size_text(report.bytes_missing)} no longer exist anywhere"
    return [total, *shortened(f"{each['file']} of {each['object']}: {each['reason']}" for each in report.missing)]
