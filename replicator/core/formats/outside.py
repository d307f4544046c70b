"""Files that a table's log or tree names outside of its location. Pure.

Files of other tables, as Delta's shallow clones name them, are on the replica where these tables are. Data and delete
files of an Iceberg table are its own: the file entry of such a file has the root of its store as location, and the rest
as path, so that both together are its place, as in any entry. A replica has it inside:

    s3a://imports/2026/x.parquet              source, table at s3a://lake/t: entry s3://imports/, 2026/x.parquet
    /b/t/outside/s3-imports/2026/x.parquet    replica, table at /b/t
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cmroot.errors import UnknownPlace
from cmroot.store.listing import hidden
from cmroot.store.place import is_local, normal, relative, split_authority
from cmroot.store.spelling import is_root, refuse_credentials
from cmroot.text import unsafe

WRITE_PATHS = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")
"""Properties of Iceberg tables: where writers put data and delete files, if not in the table's location."""

OUTSIDE = "outside"  # directory of a replica's table; not hidden, so that it is listed when the replica is a source


def outside_entry(place: str) -> tuple[str, str] | None:
    """Returns location and path of the entry of a file outside of its table; None for a path that no replica can have:
    one that is not absolute, leads elsewhere, or has hidden parts."""
    if not place.startswith("/") and ":/" not in place:
        return None
    with suppress(UnknownPlace):
        refuse_credentials(place)
        text = normal(place)
        head, path = split_authority(text)
        path = path.removeprefix("/")
        if path and not unsafe(path) and not any(map(hidden, path.split("/"))):
            return ("file:///" if is_local(text) else f"{head}/"), path
    return None


def is_outside(location: str, home: str | None) -> bool:
    """Returns True for the location of such an entry. home: the location of the table, which may be a store's root."""
    return is_root(location) and home is not None and normal(location) != normal(home)


def outside_directory(location: str) -> str:
    """Returns the directory of such entries in a replica's table, by their location."""
    head, _ = split_authority(location)
    kind, _, authority = head.partition("://")
    words = [re.sub(r"[^A-Za-z0-9.]", _escaped, kind), re.sub(r"[^A-Za-z0-9.-]", _escaped, authority)]
    return f"{OUTSIDE}/{'-'.join(filter(None, words))}"


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"_{byte:02x}" for byte in found[0].encode(errors="surrogateescape"))


# ---- files of other tables -------------------------------------------------------------------------------------------


NO_TABLE = "a Delta table: no replicated table in the directory of its database has {}, which its log names"
WITHOUT_TABLE = NO_TABLE.partition("{")[0]  # begin of a reason that may end without a change of the table
OTHERS = "a Delta table: its log names files of other tables"  # why releases that do not translate paths leave it out
MOVES = f"{OTHERS}, which loads that publish snapshots move"
SHARES = f"{OTHERS}, and external ones keep their data at the source"


@dataclass(frozen=True)
class How:
    """The options of a load that determine where files of other tables are. mappings: (source prefix, target prefix)
    pairs. moves: tables get new directories. shares: external tables keep their data at the source. has: returns True
    for a table ("db.name" at the source) that the target has."""

    mappings: Sequence[tuple[str, str]] = ()
    moves: bool = False
    shares: bool = False
    has: Callable[[str], bool] = lambda table: False


def why_outside(known: str, outside: Mapping[str, str], how: How) -> str:
    """Returns why a table whose log names files by absolute paths is left out; "" if it is not. known: the reason as
    far as the source's tables show it; outside: directories that no table of the dump has, each with the table that has
    it otherwise, or ""."""
    if known not in ("", OTHERS) and not known.startswith(WITHOUT_TABLE):
        return known
    if how.moves or how.shares:
        return MOVES if how.moves else SHARES
    mapped = {place for place in outside for source, _ in how.mappings if relative(place, source) is not None}
    return "" if all(place in mapped or (owner and how.has(owner)) for place, owner in outside.items()) else known
