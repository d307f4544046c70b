"""Hudi tables: copied with their timeline, which is published after all data, instant by instant.

A table is its directory: HMS partitions have no files of their own, and `t`, `t_ro` and `t_rt` share one directory.
Names in it are relative, except in plans of cleaning, clustering and rollbacks, which are translated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import BinaryIO

from cmroot.errors import FormatError
from cmroot.store import hudi
from cmroot.store.place import join, located, parent
from cmroot.text import unsafe
from replicator.core.formats.interface import (
    Captured,
    Compared,
    Loading,
    NamedFiles,
    Removals,
    TableFile,
    TableFormat,
    publish_in_order,
    with_log,
)
from replicator.core.model import WHOLE, Table

NO_READER = "a Hudi table whose input format is not Hudi's: create it again with Hudi's own"
NO_PROPERTIES = f"a Hudi table whose {hudi.PROPERTIES} was not captured"
NEWER = "a Hudi table of version {}, newer than " + str(hudi.NEWEST)
BOOTSTRAPPED = "a Hudi table whose rows are in the files of another table, {}: hoodie.bootstrap.base.path"
_BELOW = f"/{hudi.HOME}/"


@dataclass(frozen=True)
class HudiTable(TableFormat):
    """The format, of table versions 6 to 9, copy on write and merge on read."""

    def why_left_out(self, table: Table) -> str:
        return "" if not table.is_partitioned or (table.storage and table.storage.is_whole) else NO_READER

    def log_problems(self, captured: Captured) -> Iterator[str]:
        found = [each for path in (hudi.PROPERTIES, hudi.BACKUP) for each in captured.files("", path).values()]
        if not found:
            yield NO_PROPERTIES
        for problem in found:
            if why := problem(_examine):
                yield why

    def moment(self, table: Table) -> str:
        """Returns the last instant that its writer has noted in the metastore."""
        instant = table.parameters.get("last_commit_time_sync", "")
        return f"instant {instant}" if instant else ""

    def commit_version(self, path: str) -> int | None:
        instant = hudi.instant_of(path)
        return int(instant.time) if instant is not None and _is_commit(instant) else None

    # ---- loads -------------------------------------------------------------------------------------------------------

    def waits(self, path: str) -> bool:
        return hudi.rank(path) is not None

    def translated(self, file: TableFile, load: Loading) -> bytes | None:
        """Translates plans of the timeline, and the name of the database in the properties."""
        if not hudi.names_places(file.target) or (data := load.recorded(file)) is None:
            return None
        above = parent(file.target)
        content = hudi.translated(
            file.target, data, load.move_own, load.move_database, lambda name: _size(join(above, name))
        )
        return None if content == data else content

    def commits_of_others(self, files: Sequence[TableFile], load: Loading, *, remove: bool) -> Iterator[str]:
        """Yields commits later than the source's first present one that it neither has nor had; earlier ones, it may
        have archived. remove: moves them to `$cmroot`, with the files that they have written."""
        for here, there in sorted({(parent(file.source), parent(file.target)) for file in files}):
            if not there.endswith(hudi.TIMELINES[:2]) or there.endswith(hudi.TIMELINES[2:]):
                continue
            known = set(located(here).list())
            first = min((each.time for each in _commits_of(here, known)), default="~")
            for name in set(located(there).list()) - known:
                commit = next(_commits_of(there, [name]), None)
                if commit and commit.time > first and not load.had(place := join(there, name)):
                    yield place
                    if remove:
                        _take_back(_table_of(place), _table_of(f"{here}/"), commit.time, load)

    def publish(self, files: Sequence[TableFile], load: Loading) -> None:
        """Publishes the timelines, that of the table of metadata first, up to the first file whose bytes are
        missing."""
        in_order = sorted(files, key=lambda file: (_table_of(file.target), hudi.rank(file.target) or ()))
        for _, timeline in groupby(in_order, key=lambda file: _table_of(file.target)):
            for _ in publish_in_order(list(timeline), load, self.translated):
                pass

    # ---- comparisons -------------------------------------------------------------------------------------------------

    def is_translation(self, path: str, pair: Compared) -> bool:
        if not hudi.names_places(path):
            return False
        here, there = map(pair.read, pair.both(path))
        return here is not None and there is not None and hudi.equal(path, _translated(path, here, pair), there)

    def check(self, pair: Compared) -> None:
        """Reports files that name a place of the source, and those that the target's newest commit has written and the
        target does not have."""
        for path in filter(hudi.names_places, pair.files):
            here, there = map(pair.read, pair.both(path))
            if there is not None and there == here != _translated(path, there, pair):
                pair.differs("names the source", path, "the source's, translated", "the source's")
        instants = ((name, instant) for name in pair.files if (instant := hudi.instant_of(name)) is not None)
        commits = [(each.end or each.time, name) for name, each in instants if _is_commit(each)]
        if not commits:
            return
        newest = max(commits)[1]
        try:
            named = hudi.written_files(newest, pair.read(join(pair.target, newest)) or b"")
        except FormatError as error:
            pair.differs("log", newest, "a commit of a Hudi table that can be read", error.message)
            return
        for missing in sorted(named.difference(pair.files)):
            pair.differs("file missing", missing, "written by the newest commit", None)


def _examine(path: str, location: str, stream: BinaryIO, named: NamedFiles) -> str:
    found = hudi.properties(stream.read())
    version = found.get("hoodie.table.version", "")
    if version.isdigit() and int(version) > hudi.NEWEST:
        return NEWER.format(version)
    base = found.get("hoodie.bootstrap.base.path", "")
    return BOOTSTRAPPED.format(base) if base else ""


def _translated(path: str, data: bytes, pair: Compared) -> bytes:
    above = path.rpartition("/")[0]
    return hudi.translated(
        path, data, pair.move_own, pair.move_database, lambda name: pair.files.get(f"{above}/{name}")
    )


def _size(place: str) -> int | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        return located(place).size()
    return None


def _table_of(place: str) -> str:
    return place[: place.index(_BELOW)]


def _take_back(home: str, source: str, time: str, load: Loading) -> None:
    """Removes the instants of another writer's commit and the files that it has written, also from the table of
    metadata; nothing that the source has, whatever the commit names. home, source: the table on both sides."""
    for directory in hudi.TIMELINES:
        top = f"{hudi.METADATA}/" if directory.startswith(hudi.METADATA) else ""
        names = set(located(f"{home}/{directory}").list()).difference(located(f"{source}/{directory}").list())
        found = ((f"{directory}/{name}", hudi.instant_of(f"{directory}/{name}")) for name in names)
        own = [(path, each) for path, each in found if each is not None and each.time.startswith(time)]
        for path, each in sorted(own, key=lambda pair: pair[1].state):  # the completed one first
            data = located(f"{home}/{path}").read_bytes()
            load.remove(f"{home}/{path}")
            with suppress(FormatError):
                written = hudi.written_files(path, data) if each.state == hudi.COMPLETED else ()
                for file in (f"{top}{name}" for name in written if not unsafe(name)):
                    if not located(f"{source}/{file}").exists():
                        load.remove(f"{home}/{file}")


def _commits_of(directory: str, names: Iterable[str]) -> Iterator[hudi.Instant]:
    found = (hudi.instant_of(join(directory, name)) for name in names)
    return (each for each in found if each is not None and _is_commit(each))


def _is_commit(instant: hudi.Instant) -> bool:
    return (
        instant.state == hudi.COMPLETED
        and not instant.of_metadata
        and instant.action in ("commit", "deltacommit", "replacecommit")
    )


HUDI = with_log(
    HudiTable(
        "hudi",
        "a Hudi table",
        "Hudi",
        types=("hudi",),
        readers=WHOLE,
        expires=True,
        own_columns=True,
        no_unreferenced="a Hudi table's files belong to its timeline; its cleaner removes them",
        no_expired_partitions="a Hudi table has its partitions by itself; use Hudi's time to live of partitions",
        reads_log=True,
        commits=hudi.TIMELINES[:2],
        counted="instant",
        paths=rf"^\{hudi.HOME}/",
        special=True,
        removals=Removals.LOG,
        switches_itself=True,
        rewrites=True,
    ),
    purged=True,
    retained=True,
)
