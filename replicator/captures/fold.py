"""Folds of the captured log into manifests: the current one, next to the log, and temporary ones of the past."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from cmroot.errors import Error, FormatError, NoSpace, NotWritable
from cmroot.log.captured import Segment, segments
from cmroot.root import ChangeRoot
from cmroot.store.place import Place
from replicator.captures.apply import Rename
from replicator.captures.constraining import KNOWN, note_known
from replicator.captures.events.record import ChangeRecord, decode_line
from replicator.captures.manifest import Manifest


@contextlib.contextmanager
def open_manifest(root: ChangeRoot) -> Iterator[Manifest]:
    """Opens a root's manifest, up to date with its log; requires the root's lease. Derived: its loss is harmless."""
    with opened(manifest_path(root)) as manifest:
        log = segments(root.place)
        stale = manifest.position > (log[-1].last if log else 0)  # of another log: the root was restored or replaced
        if not stale:
            catch_up(manifest, log)
            yield manifest
            return
    manifest_path(root).unlink()
    with opened(manifest_path(root)) as manifest:
        catch_up(manifest, log)
        yield manifest


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Manifest]:
    """Opens a manifest. Raises NoSpace, NotWritable or FormatError instead of SQLite's errors."""
    try:
        with contextlib.closing(Manifest(path)) as manifest:
            yield manifest
    except sqlite3.DatabaseError as error:
        raise _not_stored(path, error) from error


_NO_ROOM = {"SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_TRUNCATE", "SQLITE_IOERR_FSYNC"}


def _not_stored(path: Path, error: sqlite3.DatabaseError) -> Error:
    if error.sqlite_errorname in _NO_ROOM:  # SQLite reports quotas and file size limits as input/output errors
        hint = "free space or raise the quota; if there is room, look at the disk for errors. Then run again"
        return NoSpace(f"{path}: {error}", hint=hint)
    if "readonly" in str(error) or "unable to open" in str(error):
        return NotWritable(f"{path}: {error}", hint="check the rights of the directory")
    return FormatError(f"{path}: {error}", hint="remove it: it is folded again from the log")


def manifest_path(root: ChangeRoot) -> Path:
    """Returns its path: next to the log if the root is local, else in the user's cache under the root's id."""
    if top := Place(root.place).local:
        return Path(top) / "manifest.sqlite"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "replicator" / "manifest"
    cache.mkdir(parents=True, exist_ok=True)
    return cache / f"{root.id}.sqlite"


def catch_up(manifest: Manifest, log: list[Segment], until: int | None = None) -> None:
    """Folds the segments after the manifest's position, up to and including position `until` (None: to the end)."""
    for segment in log:
        if segment.last <= manifest.position or (until is not None and segment.first > until):
            continue
        last = manifest.position
        renames = []
        for record in read_records(segment, manifest.position, until):
            manifest.apply(record)
            manifest.advance(record.position, record.event, record.time)
            last = record.position
            if rename := Rename.of(record):
                renames.append(rename)
        for batch in segment.file_batches():
            rows = pa.Table.from_batches([batch])
            manifest.apply_files(rows.filter(pc.less_equal(rows["position"], last)), renames)
        if last == segment.last and segment.metadata.get(KNOWN):
            note_known(manifest)
        manifest.forget_ended()  # the log contains them
        manifest.mark_known()
        manifest.commit()


def read_records(segment: Segment, after: int = -1, until: int | None = None) -> Iterator[ChangeRecord]:
    """Yields a segment's records with after < position <= until."""
    for line in segment.records(after, until):
        yield decode_line(line, segment.place)


@contextlib.contextmanager
def manifest_at(root: ChangeRoot, position: int, scratch: Path) -> Iterator[Manifest]:
    """Opens the state as of an earlier position, folded from the log into a temporary file below `scratch`."""
    path = scratch / f"manifest-{position}.sqlite"
    try:
        with opened(path) as manifest:
            catch_up(manifest, segments(root.place), until=position)
            yield manifest
    finally:
        for leftover in scratch.glob(f"{path.name}*"):
            leftover.unlink()
