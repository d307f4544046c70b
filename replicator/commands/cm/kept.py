"""`cm ls`, `cm find` and `cm get`: list kept files, find recorded ones, and restore one file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from cmroot.root import open_existing
from replicator.commands.base import point, verb
from replicator.commands.of_policy import OfPolicy
from replicator.commands.ranges import Moment, Rows
from replicator.replay.restore.kept import LIMIT, KeptList, list_kept
from replicator.replay.restore.past_files import FoundList, PutBack, find_files, put_back


@dataclass(frozen=True, kw_only=True)
class CmLsOptions(OfPolicy):
    """Arguments:

    cmroot: the change-management root.
    table: only what was last this table's, "db.table".
    needed_by: only what this needs: "live", "slot NAME", "hold NAME", "dump ID" or "nobody"; its beginning is enough.
    limit: so many entries are listed one by one, the largest; all are counted.
    """

    needed: ClassVar = ("cmroot",)

    cmroot: str = ""
    table: str = ""
    needed_by: str = ""
    limit: Rows = LIMIT


@verb(CmLsOptions)
def cm_ls(options: CmLsOptions) -> KeptList:
    """Lists what is kept: how, from where, since which event, who needs it and until when. Changes nothing.

        replicator.cm_ls(cmroot="/cm", needed_by="slot").to_arrow()

    Raises Superseded when the log was compacted meanwhile, FormatError when it is damaged or there is no root."""
    root = open_existing(options.cmroot)
    with options.engines() as engine:
        return list_kept(root, engine, table=options.table, need=options.needed_by, limit=options.limit)


@dataclass(frozen=True, kw_only=True)
class CmFindOptions(OfPolicy):
    """Arguments:

    cmroot: the change-management root.
    path: a file, or a directory above it, as it was then.
    table: "db.table" by its name then, or one partition, "db.table/day=1".
    checksum: its first digits, or the whole name of an entry.
    limit: so many files are reported, the newest.
    """

    needed: ClassVar = ("cmroot",)

    cmroot: str = ""
    path: str = ""
    table: str = ""
    checksum: str = ""
    limit: Rows = LIMIT


@verb(CmFindOptions)
def cm_find(options: CmFindOptions) -> FoundList:
    """Finds files in the captured log: between which events the source had them, and whether they are kept. All that
    is given must fit. Changes nothing.

        replicator.cm_find(cmroot="/cm", table="sales.orders/day=1").entries

    Raises UsageError when neither path, table nor checksum is given; FormatError when the log is damaged."""
    root = open_existing(options.cmroot)
    return find_files(root, path=options.path, table=options.table, checksum=options.checksum, limit=options.limit)


@dataclass(frozen=True, kw_only=True)
class CmGetOptions(OfPolicy):
    """Arguments:

    what: the path of a file, or its checksum: the first six digits or more.
    cmroot: the change-management root.
    at: as it was at an event id, a time (UTC), or the end of a finished dump.
    to: the file to write; None: where it was.
    overwrite: replace the file that is there.
    """

    needed: ClassVar = ("cmroot",)

    what: str = field(kw_only=False)
    cmroot: str = ""
    at: Moment | int | None = None
    to: str | None = None
    overwrite: bool = False


@verb(CmGetOptions)
def cm_get(options: CmGetOptions) -> PutBack:
    """Puts one kept file back. It is copied, compared, and only then given its name. May run again.

        replicator.cm_get("/warehouse/sales.db/orders/part-0", cmroot="/cm", at=4711)

    Raises UsageError when that means several contents, KeepError when it means none or its bytes are not kept, Exists
    for a file that is there, ChecksumMismatch when what is kept is damaged."""
    root = open_existing(options.cmroot)
    return put_back(root, options.what, options.to, at=point(options.at), overwrite=options.overwrite)
