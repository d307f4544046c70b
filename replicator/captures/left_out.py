"""Tables that no load replicates, because of their format or of a file of their log: by name, with the reason.

The manifest determines most of them. The formats decide; files of a log are read for them, each content once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from cmroot.store.place import join, name_of, relative
from replicator.captures.elsewhere import unread_outside, why_outside_lacks
from replicator.captures.inventory import KnownFile
from replicator.captures.manifest import Manifest
from replicator.captures.named_outside import named_outside
from replicator.captures.trees import log_files, openings, remember_log_file
from replicator.core.formats import FORMATS
from replicator.core.formats.interface import Examine, NamedFiles
from replicator.core.model import Table
from replicator.core.named_files import NAMED, resource_file
from replicator.core.not_replicated import NotReplicated

RULES = 1
"""The version of the formats' problems: greater when a release finds others, so that all tables are judged again."""
_FORMATS = """SELECT t.id, t.db, t.name, x.format, s.rules IS ? FROM formats x JOIN tables t ON t.id = x.table_id
  LEFT JOIN sound s ON s.table_id = t.id WHERE t.db = ? ORDER BY t.name"""


def left_out(
    manifest: Manifest, root: str, databases: Iterable[str], holds: Callable[[tuple[str, str]], bool] = lambda _: True
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Returns the tables of some databases at the manifest's position that are not replicated: "db.table" -> the
    reason; and those whose logs name files by absolute paths (see `named_outside`). `root`: the `$cmroot` that retains
    the bytes of their logs; `holds`: selects tables (db, name). A table without a problem is judged again after a
    record about it; views, and tables with files that cannot be read, each time."""
    databases, found, sound = list(databases), dict[str, str](), list[int]()
    rows = [row for db in databases for row in manifest.select(_FORMATS, RULES, db)]
    if not rows:
        return {}, {}
    unread = unread_outside(manifest)
    for table_id, db, name, format, is_sound in rows:
        if (is_sound and table_id not in unread) or not holds((db, name)):
            continue
        if (table := manifest.table(db, name)) is not None:
            known = KnownTable(manifest, root, table)
            if reason := next(FORMATS[format].problems(known), ""):
                found[f"{db}.{name}"] = reason
            elif not table.is_view and not known.unread:
                sound.append(table_id)
    manifest.change("INSERT OR REPLACE INTO sound VALUES (?, ?)", *((table_id, RULES) for table_id in sound))
    return found, named_outside(manifest, databases, holds, found)


def transactional(
    manifest: Manifest, databases: Iterable[str], holds: Callable[[tuple[str, str]], bool] = lambda _: True
) -> list[str]:
    """Returns the transactional tables that are replicated if the target has write ids, as "db.table"."""
    query = """SELECT t.name, x.format FROM write_ids w JOIN formats x ON x.table_id = w.table_id
  JOIN tables t ON t.id = w.table_id WHERE t.db = ? ORDER BY t.name"""
    return [
        f"{db}.{name}"
        for db in databases
        for name, format in manifest.select(query, db)
        if FORMATS[format].write_ids and holds((db, name))
    ]


def gaps(manifest: Manifest, tables: dict[str, str]) -> list[NotReplicated]:
    """Converts the result of `left_out` for reports."""
    return [NotReplicated(name, why, bytes=manifest.size_of(*name.split(".", 1))) for name, why in tables.items()]


@dataclass(frozen=True)
class KnownTable:
    """A table of the manifest, for its format: `Captured`. unread: files of its log whose bytes are gone."""

    manifest: Manifest
    root: str
    table: Table
    unread: list[str] = field(default_factory=list)

    @property
    def home(self) -> str | None:
        database = self.manifest.database(self.table.db)
        return database.location if database else None

    @property
    def has_write_ids(self) -> bool:
        return self.manifest.write_ids(self.table.db, self.table.name) is not None

    def files(self, directory: str, own: str = "") -> Mapping[str, Callable[[Examine], str]]:
        found = log_files(self.manifest, self.table.db, self.table.name, directory, own)
        return {path: partial(self._problem, path, file, known) for path, file, known in found}

    def outside_problem(self) -> str:
        return why_outside_lacks(self.manifest, self.table.db, self.table.name)

    def named_file(self, place: str, examine: Examine) -> str:
        location = self.table.location or ""
        file, own = resource_file(self.home, place), relative(place, location)
        if file is None or (not own and NAMED not in place):
            return f"its metadata file {place} is outside of its location"
        if (found := self.manifest.view_file(self.table.db, file.path, location)) is None:
            return f"its metadata file {place} was not found"
        return self._problem(own or name_of(place), *found, examine)

    def _problem(self, path: str, file: KnownFile, known: str | None, examine: Examine) -> str:
        """Returns why a file of a log makes a copy of its table no copy; empty if it does not, or if its bytes are
        gone. Each content is examined once at a location."""
        if known is not None or file.checksum is None:
            return known or ""
        location = self.table.location or ""
        for open_file in openings(join(location, path), file, self.root):
            with suppress(FileNotFoundError), open_file() as stream:
                named: NamedFiles = []
                found = examine(path, location, stream, named)
                remember_log_file(self.manifest, file.checksum, location, found, named)
                return found
        self.unread.append(path)
        return ""
