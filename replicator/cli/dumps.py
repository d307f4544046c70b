"""`replicator dumps`: finished dumps, without any metastore."""

from __future__ import annotations

from typing import Any

import click

from replicator.captures.dumps.archive import Archived
from replicator.captures.dumps.data import DumpInPlace
from replicator.cli.options import Session, json_option, json_options, options_of, pass_session
from replicator.cli.output import aligned, columns, count_text, emit, shortened, size_text
from replicator.commands.dumps import dumps_expire, dumps_export, dumps_import, dumps_ls, dumps_verify

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
