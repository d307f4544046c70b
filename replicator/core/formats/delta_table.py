"""Delta tables: copied with their log, which is published after all data, in the order of its versions.

A log names files of other tables, as shallow clones do, by absolute paths. They are translated, if the load has these
tables, too. UniForm (`delta.universalFormat.enabledFormats`) writes Iceberg metadata for the same files, and gives
the table in the metastore the type and the pointer of an Iceberg table: such a table has a format of its own.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import BinaryIO

import msgspec

from cmroot.errors import FormatError, UnknownPlace
from cmroot.store import delta, iceberg
from cmroot.store.delta import LAST, LOG, checkpoint_version, commit_version, is_whole, named_files, rank
from cmroot.store.place import join, located, name_of, parent, relative
from cmroot.store.spelling import refuse_credentials
from replicator.core.formats import iceberg_tree
from replicator.core.formats.iceberg_table import ICEBERG
from replicator.core.formats.interface import (
    Captured,
    Compared,
    Loading,
    NamedFiles,
    Removals,
    Signs,
    TableFile,
    TableFormat,
    publish_in_order,
    with_log,
)
from replicator.core.model import Table

LEADS_OUT = "a Delta table with a file by the path {}, which has a part `..`"
COORDINATED = "a Delta table whose commits a catalog or another coordinator has: its log need not have the newest ones"
PARTITIONED = (
    "a Delta table with partitions in the metastore, as after CONVERT TO DELTA: captures list these, not its log and "
    "its new ones; drop it there, and create it by its location"
)
DROPPED = "a Delta table with Iceberg metadata: dropping it as an Iceberg table deletes its files"
_BELOW = f"/{LOG}/"


@dataclass(frozen=True)
class DeltaTable(TableFormat):
    """The format. Commits of other writers on a target are recognised by their bytes."""

    own_columns: bool = True
    reads_log: bool = True
    log: str = LOG
    commits: tuple[str, ...] = (LOG,)

    def why_left_out(self, table: Table) -> str:
        return PARTITIONED if table.is_partitioned else ""

    def log_problems(self, captured: Captured) -> Iterator[str]:
        for problem in captured.files(LOG).values():
            if why := problem(_examine):
                yield why

    def waits(self, path: str) -> bool:
        return _in_log(path)

    def commit_version(self, path: str) -> int | None:
        return commit_version(path) if _in_log(path) else None

    def is_commit(self, path: str) -> bool:
        return self.commit_version(path) is not None

    def names_source(self, path: str) -> bool:
        return iceberg.in_tree(path) and iceberg.is_metadata(path)  # of UniForm, without a pointer in the metastore

    def translated(self, file: TableFile, load: Loading) -> bytes | None:
        """Translates a file of the log; it stays if its bytes are not available, or damaged."""
        if not load.names_others or not _in_log(file.target) or (data := load.recorded(file)) is None:
            return None
        with contextlib.suppress(delta.Unreadable):
            content = delta.translated(file.target, data, load.move_uri, lambda name: _size(_log_of(file), name))
            return None if content == data else content
        return None

    def publish(self, files: Sequence[TableFile], load: Loading) -> None:
        """Publishes checkpoints, commits in the order of their versions, and the name of the last checkpoint, up to the
        first file whose bytes are missing."""
        in_order = sorted(files, key=lambda file: (_log_of(file), rank(file.target) or (0, 0), file.target))
        for _, log in groupby(in_order, key=_log_of):
            for file in publish_in_order(list(log), load, self.translated):
                if rank(file.target) == (LAST, 0) and not _leads_somewhere(file.target):
                    load.remove(file.target)

    # ---- comparisons -------------------------------------------------------------------------------------------------

    def is_translation(self, path: str, pair: Compared) -> bool:
        if not _in_log(path):
            return False
        here, there = map(pair.read, pair.both(path))
        return here is not None and there is not None and _is_translated(path, here, there, pair)

    def check(self, pair: Compared) -> None:
        """Reports files of the last version that the target does not have. Of a log that names files of other tables,
        every file must be a translation."""
        try:
            named = _named(pair.target, pair.files, pair.open)
        except (FormatError, OSError) as error:
            pair.differs("log", LOG, "a Delta log that can be read", str(error))
            return
        others: dict[str, set[str]] = {}
        for path in sorted(named):
            place = path if is_whole(path) else join(pair.target, path)
            below = relative(place, pair.target)
            if below is not None and below not in pair.files:
                pair.differs("file missing", below, "named by the last version", None)
            elif below is None and pair.is_replicated(place):
                others.setdefault(parent(place), set()).add(name_of(place))
            elif below is None:
                pair.differs("names the source", path, "a file of the replica", path)
        for directory, names in others.items():
            for name in sorted(names.difference(located(directory).list())):
                pair.differs("file missing", join(directory, name), "named by the last version", None)
        for path in filter(_in_log, pair.files if any(map(is_whole, named)) else ()):
            here, there = map(pair.read, pair.both(path))
            if here is not None and there is not None and not _is_translated(path, here, there, pair):
                pair.differs("file content", path, "the source's, translated", "another content")


@dataclass(frozen=True)
class UniformTable(DeltaTable):
    """The format of Delta tables with Iceberg metadata: the log as Delta's, the tree as Iceberg's. The log is published
    last, since it names no file of the tree."""

    def recognises(self, signs: Signs) -> bool:
        both = {*signs.types} == {*DELTA.types, *ICEBERG.types}
        return both and not signs.table.is_view and bool(self.pointer(signs.table))

    def pointer(self, table: Table) -> str:
        return ICEBERG.pointer(table)

    def log_problems(self, captured: Captured) -> Iterator[str]:
        yield from super().log_problems(captured)
        pointer, location = self.pointer(captured.table), captured.table.location or "/"
        own = relative(pointer, location) or ""
        tree = captured.files(iceberg.DIRECTORY, own)
        if own not in tree:
            yield f"{self.said}: its metadata file {pointer} was not found in the directory {iceberg.DIRECTORY}"
        for path, problem in tree.items():
            if iceberg_tree.leads_on(path, own) and (why := problem(_examine_tree)):
                yield f"{self.said}: {why}"

    def waits(self, path: str) -> bool:
        return _in_log(path) or iceberg.in_tree(path)

    def names_source(self, path: str) -> bool:
        return False

    def is_unique(self, path: str) -> bool:
        return iceberg.in_tree(path)

    def publish(self, files: Sequence[TableFile], load: Loading) -> None:
        ICEBERG.publish([file for file in files if not _in_log(file.target)], load)
        super().publish([file for file in files if _in_log(file.target)], load)

    # ---- comparisons -------------------------------------------------------------------------------------------------

    def compare_translated(self, paths: Sequence[str], pair: Compared) -> None:
        ICEBERG.compare_translated([path for path in paths if iceberg.in_tree(path)], pair)
        for path in (path for path in paths if not iceberg.in_tree(path)):
            here, there = map(pair.read, pair.both(path))
            if here is None or there is None or (here != there and not _is_translated(path, here, there, pair)):
                pair.differs("file content", path, "the source's, translated", "another content")

    def check(self, pair: Compared) -> None:
        super().check(pair)
        ICEBERG.check(pair)


def _examine_tree(path: str, location: str, stream: BinaryIO, named: NamedFiles) -> str:
    """Returns why a file of a tree cannot be translated. Adds nothing: captures list the table's directory."""
    data, found = stream.read(), list[tuple[str, str, bool]]()
    if why := iceberg_tree.examine(path, location, io.BytesIO(data), found):
        return why
    if any(each.kind in ("deletes", "vectors") for each in iceberg.references(path, data)):
        return f"its file {path} lists files with deleted rows"
    outside = (f"its file {join(store, own)} is outside of its location" for store, own, _ in found if store)
    return next(outside, "")


def _examine(path: str, location: str, stream: BinaryIO, named: NamedFiles) -> str:
    """Adds a file of each directory of which the log names files by absolute paths. Returns why the log, or these
    paths, cannot be translated."""
    found = dict[str, str]()
    try:
        for action in delta.actions(join(location, path), stream):
            if delta.is_coordinated(action):
                return COORDINATED
            for place in delta.outside_paths(action):
                if delta.leads_out(place):
                    return LEADS_OUT.format(place)
                refuse_credentials(place)
                found.setdefault(parent(place), name_of(place))
    except delta.Unreadable:
        return ""  # treated as an ordinary file
    except UnknownPlace as error:
        return f"{DELTA.said}: its file {error.message}"
    named += ((directory, name, False) for directory, name in found.items())
    return ""


def _is_translated(path: str, here: bytes, there: bytes, pair: Compared) -> bool:
    log = join(pair.target, f"/{path}".rpartition(_BELOW)[0].strip("/"))
    try:
        wanted = delta.translated(f"/{path}", here, pair.move_uri, lambda name: _size(log, name))
    except delta.Unreadable:
        return here == there
    except (FormatError, FileNotFoundError):
        return False
    return delta.equal(path, wanted, there)


def _size(directory: str, name: str) -> int:
    return located(join(directory, f"{LOG}/{name}")).size()


def _in_log(path: str) -> bool:
    return _BELOW in path or path.startswith(_BELOW[1:])


def _log_of(file: TableFile) -> str:
    return file.target[: file.target.rindex(_BELOW)]


def _leads_somewhere(place: str) -> bool:
    """Returns True if the checkpoint that a `_last_checkpoint` names exists: it may be newer than the rest."""
    last = located(place)
    names: Iterable[str] = last.parent.list()
    with contextlib.suppress(msgspec.DecodeError, KeyError, TypeError):
        version = msgspec.json.decode(last.read_bytes())["version"]
        return any(checkpoint_version(name) == version for name in names)
    return False


def _named(location: str, files: Iterable[str], open_file: Callable[[str], BinaryIO]) -> set[str]:
    names = [path[len(LOG) + 1 :] for path in files if path.startswith(f"{LOG}/")]
    return named_files(names, lambda name: open_file(join(location, f"{LOG}/{name}")))


UNIFORM = with_log(
    UniformTable(
        "delta-iceberg",
        "a Delta table with Iceberg metadata",
        "Delta with Iceberg metadata",
        of_views=False,
        no_shadow=DROPPED,
        no_housekeeping=DROPPED,
        paths=f"{LOG}/|{ICEBERG.paths}",
        special=True,
        translates=True,
        removals=Removals.METADATA,
        switches_itself=True,
    )
)
DELTA = with_log(
    DeltaTable(
        "delta",
        "a Delta table",
        "Delta",
        types=("delta",),
        readers=("io.delta.",),
        expires=True,
        paths=f"{LOG}/",
        everywhere=True,
        removals=Removals.LOG,
    ),
    purged=True,
    retained=True,
)
