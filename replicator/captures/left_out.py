"""Tables that no load replicates, because of their format or of a file of their log: by name, with the reason.

The manifest determines most of them. The formats decide; files of a log are read for them, each content once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from cmroot.store.place import join, name_of, relative
from replicator.captures.elsewhere import why_outside_lacks
from replicator.captures.inventory import KnownFile
from replicator.captures.manifest import Manifest
from replicator.captures.named_outside import named_outside
from replicator.captures.trees import log_files, openings, remember_log_file
from replicator.core.formats import FORMATS
from replicator.core.formats.interface import Examine, NamedFiles
from replicator.core.model import Table
from replicator.core.named_files import NAMED, resource_file
from replicator.core.not_replicated import NotReplicated


def left_out(
    manifest: Manifest, root: str, databases: Iterable[str], holds: Callable[[tuple[str, str]], bool] = lambda _: True
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Returns the tables of some databases at the manifest's position that are not replicated: "db.table" -> the
    reason; and those whose logs name files by absolute paths (see `named_outside`). `root`: the `$cmroot` that retains
    the bytes of their logs; `holds`: selects tables (db, name)."""
    databases, found, has_logs = list(databases), dict[str, str](), False
    for db in databases:
        for name, format in manifest.formats(db).items():
            has_logs = has_logs or bool(FORMATS[format].log)
            if holds((db, name)) and (table := manifest.table(db, name)) is not None:
                known = KnownTable(manifest, root, table)
                if reason := next(FORMATS[format].problems(known), ""):
                    found[f"{db}.{name}"] = reason
    return found, named_outside(manifest, databases, holds, found) if has_logs else {}


def transactional(
    manifest: Manifest, databases: Iterable[str], holds: Callable[[tuple[str, str]], bool] = lambda _: True
) -> list[str]:
    """Returns the transactional tables that are replicated if the target has write ids, as "db.table"."""
    return [
        f"{db}.{name}"
        for db in databases
        for name, format in manifest.formats(db).items()
        if FORMATS[format].write_ids and holds((db, name)) and manifest.write_ids(db, name) is not None
    ]


def gaps(manifest: Manifest, tables: dict[str, str]) -> list[NotReplicated]:
    """Converts the result of `left_out` for reports."""
    return [NotReplicated(name, why, bytes=manifest.size_of(*name.split(".", 1))) for name, why in tables.items()]


@dataclass(frozen=True)
class KnownTable:
    """A table of the manifest, for its format: `Captured`."""

    manifest: Manifest
    root: str
    table: Table

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
        return ""
