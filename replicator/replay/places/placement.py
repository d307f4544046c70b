"""Placement: where an object of the source lies on the target. Pure.

Rules, in this order: an explicit location mapping (longest prefix first); below the source table's location: the same
path below the target table's; below the source database's location: the same below the target database's; anywhere
else: the whole source path below the database's part of the target's external directory, so that no two databases meet.
Where a database is put
back in its own place, what lies outside of it stays where it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cmroot.errors import UnknownPlace
from cmroot.names import HINT, is_below
from cmroot.store.hdfs.hdfs_store import SCHEMES
from cmroot.store.place import is_local, join, normal, scheme
from cmroot.store.resolve import folded, tidied
from replicator.errors import FormatError, Refused, UsageError


@dataclass(frozen=True)
class Placement:
    """databases: source name -> target name, for every database of the dump. source_locations, target_locations:
    database name (the source's) -> location. mappings: (source prefix, target prefix) pairs. external: target
    directory for what lies outside its database; None: it stays. root: the target's `$cmroot`, in which nothing may
    be placed. apart: databases (the source's names) that have a directory of their own in `external`; those that older
    releases began share it."""

    databases: Mapping[str, str]
    source_locations: Mapping[str, str]
    target_locations: Mapping[str, str]
    external: str | None
    mappings: Sequence[tuple[str, str]] = field(default=())
    root: str | None = None
    apart: frozenset[str] = frozenset()

    def database(self, name: str) -> str:
        """A database's name on the target; names outside the dump stay."""
        return self.databases.get(name, name)

    def table(self, db: str, location: str) -> str:
        """Where a table with this source location lies on the target. Raises Refused for one in the target's root."""
        return self._outside_root(location, self._table(db, location))

    def _table(self, db: str, location: str) -> str:
        mapped = self._mapped(location)
        if mapped is not None:
            return mapped
        if is_published(location):
            usual, rest = usual_place(location)
            return join(self.table(db, usual), rest)
        home = self.source_locations.get(db)
        if home and (below := relative(location, home)) is not None:
            return join(self.target_locations[db], below)
        return self._elsewhere(db, location)

    def inside(self, db: str, table_location: str | None, location: str) -> str:
        """Where a partition (or any path a table names) lies on the target, given its table's source location."""
        if is_published(location) and table_location and relative(location, table_location) is None:
            return join(self.table(db, table_location), usual_place(location)[1])  # of a source that was a replica
        if table_location and (below := relative(location, table_location)) is not None:
            mapped = self._mapped(location)
            place = mapped if mapped is not None else join(self.table(db, table_location), below)
            return self._outside_root(location, place)
        return self.table(db, location)

    def holds(self, place: str) -> bool:
        """Whether a place is one where a load puts tables: no source's, and none that holds a database or the root."""
        if self.is_sources(place):
            return False
        if any(home and relative(home, place) is not None for home in (self.root, *self.target_locations.values())):
            return False
        return is_published(place) or any(relative(place, home) is not None for home in self.homes)

    @property
    def homes(self) -> list[str]:
        """Directories of the target in which loads make those of tables."""
        homes = (*self.target_locations.values(), self.external, *(target for _, target in self.mappings))
        return [home for home in homes if home]

    def is_sources(self, place: str, table: str | None = None) -> bool:
        """Whether a place lies in a database's directory of the source, or in that of a table."""
        return any(home and relative(place, home) is not None for home in (table, *self.source_locations.values()))

    @property
    def staying(self) -> Placement:
        """For tables whose data stays the source's: only explicit mappings count."""
        return replace(self, source_locations={}, external=None, root=None)

    def path_in_text(self, db: str, table_location: str | None, value: str) -> str:
        """A property's value, with the source path it holds (if it is one that is replicated) replaced."""
        if "/" not in value:
            return value
        with contextlib.suppress(UnknownPlace):  # text that only looks like a place
            for home in (table_location, self.source_locations.get(db), *(source for source, _ in self.mappings)):
                if home and relative(value, home) is not None:
                    return respelled(value, self.inside(db, table_location, value))
        return value

    def _outside_root(self, location: str, place: str) -> str:
        if self.root is not None and relative(place, self.root) is not None:
            raise Refused(
                f"{location} of the source would lie at {place}, in the target's $cmroot {self.root}",
                hint="look at who made the dump; else map the location, or name another --cmroot",
            )
        return place

    def _mapped(self, location: str) -> str | None:
        for source, target in sorted(self.mappings, key=lambda pair: -len(pair[0])):
            below = relative(location, source)
            if below is not None:
                return join(target, below)
        return None

    def _elsewhere(self, db: str, location: str) -> str:
        if self.external is None:
            return location
        path = folded(location)
        below = (path.partition("://")[2] if "://" in path else path).strip("/")
        if scheme(self.external) in SCHEMES:  # HDFS has no `:` in names, and a NameNode's address has one
            authority, slash, rest = below.partition("/")
            below = authority.replace(":", "_") + slash + rest
        if below and not is_below(below):
            raise FormatError(f"location {location!r} cannot lie below {self.external}", hint=HINT)
        return join(external_of(self.external, self.database(db)) if db in self.apart else self.external, below)


def external_of(external: str, database: str) -> str:
    """Where data of a database of the target lies that does not lie in its directory."""
    return join(external, f"{database.lower()}.db")


PUBLISHED = ".published"  # a directory of published places, see replicator.replay.plan.published


def is_published(location: str | None) -> bool:
    return location is not None and f"/{PUBLISHED}/" in location


def usual_place(location: str) -> tuple[str, str]:
    """Of a published location: where the table would lie in the usual layout, by the name it had then, and what
    follows below it."""
    home, _, rest = tidied(location).partition(f"/{PUBLISHED}/")
    _, _, rest = rest.partition("/")
    name, _, below = rest.partition("/")
    return join(home, name.partition(".")[2]), below


def relative(location: str, home: str) -> str | None:
    """`location` relative to `home` ("" for home itself); None when it does not lie below it."""
    path, top = folded(location), folded(home).rstrip("/")
    if path == top:
        return ""
    return path[len(top) + 1 :] if path.startswith(top + "/") else None


def uri(place: str) -> str:
    """A place as the metastore writes it: local ones with the scheme file:."""
    return f"file:{normal(place)}" if is_local(place) else place


def respelled(text: str, place: str) -> str:
    """A place as the metastore writes it; as it was written where it is the same."""
    return text if normal(text) == normal(place) else uri(place)


def parse_renames(texts: Sequence[str]) -> list[tuple[str, str]]:
    """`A=B` pairs of --rename-db: names of databases, which metastores write in small letters."""
    return parse_pairs([text.lower() for text in texts], "--rename-db")


def parse_pairs(texts: Sequence[str], option: str) -> list[tuple[str, str]]:
    """`A=B` pairs of an option. Raises UsageError for anything else, and for two different B of one A."""
    pairs: dict[str, str] = {}
    for text in texts:
        before, equals, after = text.partition("=")
        if not (before and equals and after):
            raise UsageError(
                f"{option} {text!r} is not of the form A=B", hint="A is the source's, B what it becomes on the target"
            )
        if pairs.setdefault(before, after) != after:
            raise UsageError(f"{option} names {before} twice: {pairs[before]} and {after}", hint="give it once")
    return list(pairs.items())
