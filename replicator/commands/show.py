"""`show`: a dump, a captured log, or one segment of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated

from cmroot.log.captured import segments
from replicator.captures.dumps.shown import Narrowing, Shown, narrowed, open_shown
from replicator.commands.base import Options, verb
from replicator.commands.options import KeyFile
from replicator.core.option import LogMoment, Moment, arg, opt, parse_moment
from replicator.errors import UsageError
from replicator.metastore.events.record import ChangeRecord
from replicator.replay.restore.recovery_points import RowState, RowStates


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Options):
    place: Annotated[str, arg("A dump's directory, a $cmroot, or a segment of its log.", "DUMP_OR_LOG")] = field(
        kw_only=False
    )
    files: Annotated[bool, opt("List the file entries, too.")] = False
    key_file: KeyFile = None
    table: Annotated[
        str | None, opt("Only this table, by any name that it had, and its database as a whole.", metavar="DB.TABLE")
    ] = None
    since: Annotated[
        Moment | int | None,
        opt("Only from an event id, @POSITION or a time (UTC) on, or -90m, -1d, yesterday.", metavar="X"),
    ] = None
    until: Annotated[Moment | int | None, opt("Only up to an event id, @POSITION or a time, or -1d.", metavar="X")] = (
        None
    )


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
    narrowing = Narrowing(table, since, until)
    found = narrowed(shown, narrowing)
    if table is None or shown.header["what"] != "log":
        return found
    return replace(found, restores=lambda: _restores(shown, narrowing, table))


def _restores(shown: Shown, narrowing: Narrowing, table: tuple[str, str]) -> Iterator[tuple[ChangeRecord, list[str]]]:
    """Yields the selected records of a table, each with the arguments of `restore` for its state."""
    root = str(shown.header["place"])
    whole = narrowing.with_former(shown.records())
    states = RowStates(segments(root), table)
    for record, state in states.of(filter(whole.concerns, shown.records())):
        if narrowing.is_within(record):
            yield record, ["--cmroot", root, *state.arguments] if state else []


def states_at(root: str, table: str, positions: Iterable[int]) -> dict[int, RowState]:
    """Returns the restorable states of a table at some positions of a root's log, as `RowStates.at`."""
    shown, name = open_shown(root), _table(table)
    whole = Narrowing(name).with_former(shown.records())
    states = RowStates(segments(root), name)
    return states.at(filter(whole.concerns, shown.records()), positions)


def _table(text: str) -> tuple[str, str]:
    db, dot, table = text.lower().partition(".")
    if not (db and dot and table):
        raise UsageError(f"--table {text!r} is not a table", hint="write DB.TABLE")
    return db, table


def _moment(text: str | int | None, option: str) -> LogMoment | None:
    return None if text is None else parse_moment(str(text), option)
