"""`show`: a dump, a captured log, or one segment of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from replicator.commands.base import Options, verb
from replicator.dumps.shown import Shown, open_shown


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Options):
    """Arguments:

    place: a dump's directory, a $cmroot, or a segment of its log.
    files: list the file entries, too.
    key_file: keys, one a line, one of which must have signed a dump; None: that of [dumps], if any.
    """

    place: str = field(kw_only=False)
    files: bool = False
    key_file: str | None = None


@verb(ShowOptions)
def show(options: ShowOptions) -> Shown:
    """Opens a dump, a captured log or a segment to look at: its header, and records and file entries one by one. Reads
    only; may run beside everything else.

        for record in replicator.show("/dumps/2").records(): print(record.position, record.change)

    Raises FormatError for anything else, and for what is damaged; Refused for a dump that is not signed with a key."""
    return open_shown(options.place, lambda: options.keys(options.key_file), files=options.files)
