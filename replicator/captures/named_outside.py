"""Tables whose logs name files by absolute paths, and the tables that have these files: shallow clones of Delta tables.

A load puts each table in the directory of its database where any load and comparison expects it, so files of these can
be named on the target, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from cmroot.store.place import folded, parent, relative
from replicator.captures.manifest import Manifest
from replicator.core.formats import FORMATS
from replicator.core.formats.outside import NO_TABLE

_NAMED = """SELECT t.name, t.location, o.store, min(o.path) FROM formats x CROSS JOIN tables t ON t.id = x.table_id
  CROSS JOIN files f ON f.table_id = t.id AND f.partition_id = 0 AND f.path > ? AND f.path < ?
  CROSS JOIN tree o ON o.location = t.location AND o.checksum = f.checksum AND o.store > ''
  WHERE x.format = ? AND t.db = ? AND EXISTS (SELECT 1 FROM tree e WHERE e.location = t.location)
  GROUP BY t.name, o.store ORDER BY t.name, o.store"""


def named_outside(
    manifest: Manifest, databases: Iterable[str], holds: Callable[[tuple[str, str]], bool], formats: dict[str, str]
) -> dict[str, dict[str, str]]:
    """Returns the selected tables whose logs name files by absolute paths: "db.table" -> the directories of files that
    no selected table has, each with the table that has it, or "". formats: tables that are not replicated, with the
    reason; those with such directories are added."""
    some, outside, count = list(databases), dict[str, dict[str, str]](), -1
    named = {name: paths for db in some for name, paths in _named(manifest, db, holds)}
    owners = dict(_owners(manifest, some)) if named else {}

    def has(table: str) -> bool:
        db, _, name = table.partition(".")
        return bool(table) and holds((db, name)) and table not in formats

    while count < len(formats):  # a table that names files of one that is left out is left out, too
        count = len(formats)
        for table, paths in named.items():
            owned = {place: _owner(place, owners) for place in paths}
            outside[table] = {place: by for place, by in owned.items() if by != table and not has(by)}
            for place in list(outside[table])[:1]:
                formats.setdefault(table, NO_TABLE.format(f"{place}/{paths[place]}"))
    return outside


def _named(
    manifest: Manifest, db: str, holds: Callable[[tuple[str, str]], bool]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields tables with the directories that their logs name by absolute paths, each with the name of a file."""
    found: dict[str, dict[str, str]] = {}
    for format, log in ((each.name, each.log) for each in FORMATS.values() if each.log):
        for name, home, place, path in manifest.select(_NAMED, f"{log}/", f"{log}0", format, db):
            if holds((db, name)):
                found.setdefault(f"{db}.{name}", {}).update({place: path} if relative(place, home) is None else {})
    yield from sorted(found.items())


def _owners(manifest: Manifest, databases: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields the locations of tables that are in the directories of their databases, with the names of the tables."""
    for db in databases:
        database = manifest.database(db)
        home = database.location if database else None
        for name, location in manifest.select("SELECT name, location FROM tables WHERE db = ?", db) if home else ():
            if location and home and relative(location, home):
                yield folded(location), f"{db}.{name}"


def _owner(place: str, owners: Mapping[str, str]) -> str:
    """Returns the table that has a directory, "" for none."""
    at = folded(place)
    while at not in owners and parent(at) != at:
        at = parent(at)
    return owners.get(at, "")
