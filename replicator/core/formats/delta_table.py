"""Delta tables: copied with their log, which is published after all data, in the order of its versions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import BinaryIO

import msgspec
import pyarrow as pa

from cmroot.errors import FormatError
from cmroot.store.delta import LAST, LOG, checkpoint_version, commit_version, is_whole, named_files, names_outside, rank
from cmroot.store.listing import list_tree
from cmroot.store.place import join, located
from replicator.core.formats.interface import (
    Captured,
    Compared,
    Loading,
    NamedFiles,
    Removals,
    TableFile,
    TableFormat,
    with_log,
)

OUTSIDE = "a Delta table that names files outside of its directory, as shallow clones do"
_BELOW = f"/{LOG}/"


@dataclass(frozen=True)
class DeltaTable(TableFormat):
    """The format. Commits of other writers on a target are recognised by their bytes."""

    def log_problems(self, captured: Captured) -> Iterator[str]:
        for problem in captured.files(LOG).values():
            if why := problem(_outside):
                yield why

    def waits(self, path: str) -> bool:
        return _BELOW in path or path.startswith(_BELOW[1:])

    def is_commit(self, path: str) -> bool:
        return self.waits(path) and commit_version(path) is not None

    def publish(self, files: Sequence[TableFile], load: Loading) -> None:
        """Publishes checkpoints, commits in the order of their versions, and the name of the last checkpoint, up to the
        first file whose bytes are missing."""
        in_order = sorted(files, key=lambda file: (_log_of(file), rank(file.target) or (0, 0), file.target))
        for _, log in groupby(in_order, key=_log_of):
            broken = ""
            for file in log:
                if broken:
                    load.missing(file, f"{broken}, which precedes it, is missing")
                elif not load.place(file):
                    broken = file.target
                elif rank(file.target) == (LAST, 0) and not _leads_somewhere(file.target):
                    load.remove(file.target)

    def check(self, pair: Compared) -> None:
        try:
            named = _named(pair.target, pair.files, pair.open)
        except (FormatError, OSError) as error:
            pair.differs("log", LOG, "a Delta log that can be read", str(error))
            return
        for path in sorted(named):
            if _is_outside(path):
                pair.differs("names the source", path, "a file of the table", path)
            elif path not in pair.files:
                pair.differs("file missing", path, "named by the last version", None)

    def problem_at(self, location: str) -> str:
        listing = list_tree(location)
        paths = [file.path_relative for file in listing.files] if listing else []
        with contextlib.suppress(FormatError, FileNotFoundError):
            named = _named(location, paths, lambda place: located(place).open_read())
            return OUTSIDE if any(map(_is_outside, named)) else ""
        return ""


def _outside(path: str, location: str, stream: BinaryIO, named: NamedFiles) -> str:
    try:
        return OUTSIDE if names_outside(join(location, path), stream) else ""
    except (msgspec.DecodeError, pa.ArrowException, KeyError, TypeError, ValueError):
        return ""  # treated as an ordinary file


def _is_outside(path: str) -> bool:
    return is_whole(path) or path.startswith("../")


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


DELTA = with_log(
    DeltaTable(
        "delta",
        "a Delta table",
        "Delta",
        types=("delta",),
        readers=("io.delta.",),
        own_columns=True,
        reads_log=True,
        paths=f"{LOG}/",
        everywhere=True,
        removals=Removals.LOG,
    )
)
