"""Data and delete files of a table outside of its location. Pure.

The file entry of such a file has the root of its store as location, and the rest as path, so that both together are its
place, as in any entry. A replica has it inside:

    s3a://imports/2026/x.parquet              source, table at s3a://lake/t: entry s3://imports/, 2026/x.parquet
    /b/t/outside/s3-imports/2026/x.parquet    replica, table at /b/t
"""

from __future__ import annotations

import re
from contextlib import suppress

from cmroot.errors import UnknownPlace
from cmroot.store.listing import hidden
from cmroot.store.place import is_local, normal, split_authority
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
