"""`replicator cm ls`, `find` and `get`: list kept files, find recorded ones, and restore one file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from replicator.cli.options import (
    Session,
    engine_options,
    json_option,
    of_policy_argument,
    of_policy_option,
    pass_session,
    root_option,
)
from replicator.cli.output import aligned, columns, count_text, emit, shortened, size_text, time_text
from replicator.commands.cm import cm_find, cm_get, cm_ls
from replicator.replay.restore.kept import KeptList
from replicator.replay.restore.restore import FoundList

limit_option = click.option(
    "--limit",
    type=click.IntRange(0, 1_000_000),
    default=1000,
    show_default=True,
    help="Maximum number of listed rows; all are counted.",
)


@click.command()
@of_policy_argument
@root_option
@click.option("--table", default="", metavar="DB.TABLE", help="Only files whose last table is this one.")
@click.option(
    "--needed-by",
    default="",
    metavar="WHO",
    help="Only files kept for this reason: live, slot NAME, hold NAME, dump ID, or nobody; a prefix is enough.",
)
@limit_option
@engine_options
@json_option
@pass_session
def ls(session: Session, /, as_json: bool, **given: Any) -> int:
    """List kept files, the largest first.

    Shows the keeper, origin, first event, reason and end of retention of each.

    \b
    Example:
      replicator cm ls --cmroot /cm --limit 20
      replicator cm ls --cmroot /cm --table sales.orders --needed-by slot
    """
    listed = session.call(cm_ls, **given)
    emit(listed, as_json, _kept_lines(listed))
    return 0


def _kept_lines(listed: KeptList) -> Iterable[str]:
    if listed.entries:
        head = ("bytes", "keeper", "event", "needed by", "until", "was", "checksum")
        rows = [
            (
                size_text(each["size"]),
                each["keeper"],
                each["since_event"],
                each["needed_by"],
                each["until"],
                each["origin"] or "-",
                each["checksum"],
            )
            for each in listed.entries
        ]
        yield from columns(head, rows, right=("bytes", "event"))
        hidden = listed.total["entries"] - len(listed.entries)
        if hidden > 0:
            yield f"... and {hidden:,} more (--limit)"
        yield ""
    shared = f"{_counted(listed.shared)} that take no room of their own" if listed.shared["entries"] else None
    yield from aligned(
        [
            ("kept", _counted(listed.total)),
            *((f"  {need}", _counted(count)) for need, count in listed.by_need.items()),
            ("shared", shared),
            ("damaged", listed.damaged_pins),
            ("captures", shortened(listed.databases) if listed.databases else "unknown until the next capture"),
        ]
    )


def _counted(count: dict[str, int]) -> str:
    entries = f"{count['entries']:,} {'entry' if count['entries'] == 1 else 'entries'}"
    return f"{entries}, {size_text(count['bytes'])}"


@click.command()
@of_policy_argument
@root_option
@click.option("--path", default="", metavar="PLACE", help="A file, or a directory above it, by its path at that time.")
@click.option(
    "--table", default="", metavar="DB.TABLE[/PARTITION]", help="A table by its name at that time, or one partition."
)
@click.option(
    "--checksum", default="", metavar="HEX", help="The first digits of a checksum, or the complete name of an entry."
)
@limit_option
@json_option
@pass_session
def find(session: Session, /, as_json: bool, **given: Any) -> int:
    """Find files in the captured log.

    Shows the range of events in which the source had each file, and whether it is kept.

    \b
    Example:
      replicator cm find --cmroot /cm --path /warehouse/sales.db/orders/day=1
      replicator cm find --cmroot /cm --table sales.orders/day=1
      replicator cm find --cmroot /cm --checksum 6bba86c7
    """
    found = session.call(cm_find, **given)
    emit(found, as_json, _found_lines(found))
    return 0


def _found_lines(found: FoundList) -> Iterable[str]:
    if found.entries:
        head = ("bytes", "from event", "until event", "since", "kept", "table", "path", "checksum")
        yield from columns(head, map(_found_row, found.entries), right=("bytes", "from event", "until event"))
    hidden = found.total - len(found.entries)
    yield (
        f"... and {hidden:,} earlier ones (--limit)"
        if hidden > 0
        else f"{count_text(len(found.entries), 'file')} found"
    )


def _found_row(each: dict[str, Any]) -> tuple[Any, ...]:
    partition = f"/{each['partition']}" if each["partition"] else ""
    return (
        "" if each["size"] is None else size_text(each["size"]),
        each["since_event"],
        "still there" if each["ended_position"] is None else each["ended_event"],
        time_text(each["since_time"]),
        "yes" if each["kept"] else "no",
        f"{each['db']}.{each['table']}{partition}",
        each["path"],
        each["checksum"] or "never read",
    )


@click.command()
@click.argument("what", metavar="PATH_OR_CHECKSUM")
@of_policy_option
@root_option
@click.option("--at", metavar="X", help="The file's state at an event, a time (UTC), or the end of a dump.")
@click.option("--to", metavar="PLACE", help="The file to write; default: its original path.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@json_option
@pass_session
def get(session: Session, /, as_json: bool, **given: Any) -> int:
    """Restore one kept file, by its path or its checksum. It is copied and compared before it gets its name.

    \b
    Example:
      replicator cm get /warehouse/sales.db/orders/part-0 --cmroot /cm --at 4711
      replicator cm get 6bba86c7 --cmroot /cm --to /tmp/part-0
    """
    restored = session.call(cm_get, **given)
    lines = aligned(
        [
            ("restored", restored.place),
            ("from", restored.origin),
            ("bytes", size_text(restored.size)),
            ("checksum", restored.checksum),
        ]
    )
    emit(restored, as_json, lines)
    return 0
