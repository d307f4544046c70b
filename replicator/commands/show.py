"""`show`: a dump, a captured log, or one segment of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from replicator.captures.dumps.selection import parse_moment
from replicator.captures.dumps.shown import Narrowing, Shown, narrowed, open_shown
from replicator.commands.base import Options, verb
from replicator.commands.ranges import Moment
from replicator.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Options):
    """Arguments:

    place: a dump's directory, a $cmroot, or a segment of its log.
    files: list the file entries, too.
    key_file: keys, one a line, one of which must have signed a dump; None: that of [dumps], if any.
    table: only records of this table, "db.table", by any name that it had, and those of its whole database.
    since, until: only records from this moment on, and up to it: an event id, a time (UTC), or back from
      now: -90m, -1d, yesterday.
    """

    place: str = field(kw_only=False)
    files: bool = False
    key_file: str | None = None
    table: str | None = None
    since: Moment | int | None = None
    until: Moment | int | None = None


@verb(ShowOptions)
def show(options: ShowOptions) -> Shown:
    """Opens a dump, a captured log or a segment to look at: its header, and records and file entries one by one. Reads
    only; may run beside everything else.

        for record in replicator.show("/dumps/2").records(): print(record.position, record.change)

    Raises UsageError for a table or moment that is none; FormatError for anything else than a dump or log, and for what
    is damaged; Refused for a dump that is not signed with a key."""
    shown = open_shown(options.place, lambda: options.keys(options.key_file), files=options.files)
    if options.table is options.since is options.until is None:
        return shown
    table = None if options.table is None else _table(options.table)
    since, until = _moment(options.since, "--since"), _moment(options.until, "--until")
    return narrowed(shown, Narrowing(table, since, until))


def _table(text: str) -> tuple[str, str]:
    db, dot, table = text.lower().partition(".")
    if not (db and dot and table):
        raise UsageError(f"--table {text!r} is no table", hint="write DB.TABLE")
    return db, table


def _moment(text: str | int | None, option: str) -> tuple[int | None, int | None]:
    return (None, None) if text is None else parse_moment(str(text), option)
