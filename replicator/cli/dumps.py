"""`replicator dumps`: finished dumps, without any metastore."""

from __future__ import annotations

from typing import Any

import click

from replicator.cli.options import Session, json_options, options_of, pass_session
from replicator.cli.output import aligned, count_text, emit, shortened, size_text
from replicator.commands.dumps import dumps_verify

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
