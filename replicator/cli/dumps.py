"""`replicator dumps`: finished dumps, without any metastore."""

from __future__ import annotations

from typing import Any

import click

from replicator.captures.dumps.archive import Archived
from replicator.cli.options import Session, json_options, options_of, pass_session
from replicator.cli.output import aligned, count_text, emit, shortened, size_text
from replicator.commands.dumps import dumps_export, dumps_import, dumps_verify

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
