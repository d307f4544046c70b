"""The copy of bytes into a dump with data, each content once, on an engine.

The names in `_data` are those that a `$cmroot` gives to contents, and the copy is that of a replica's files: only bytes
of the recorded checksum get a name. So a killed dump is completed by the next one into its directory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import msgspec
import pyarrow as pa

from cmroot.keep.content import locate
from cmroot.store.checksum import FLOW, checksum_file
from cmroot.store.place import Place, is_local, join, local_path, parent
from replicator.captures.dumps.data import data_roots, id_at, sha256_of
from replicator.captures.dumps.layout import DATA, Content, DumpData, DumpMetadata, DumpReader, Earlier, Keys
from replicator.captures.dumps.writer import DumpWriter
from replicator.core.runtime import Runtime
from replicator.core.text import count_text
from replicator.errors import FilesMissing, FormatError
from replicator.replay.apply.copy_task import MISSING_SHOWN, entries, fold_entries
from replicator.replay.apply.copying import Placing, place_file, threads_of
from replicator.replay.apply.origins import Roots, Wanted
from replicator.replay.apply.staging import give_up_attempts, is_stamped, noted, sweep_staging
from replicator.replay.placement import Placement
from replicator.replay.plan import FileRules, Plan
from replicator.replay.squash import squash

BATCH = 2000  # rows that a reading task passes on together
NOTES = "copying"  # in `_data`: of copying attempts; see `staging`


@dataclass(frozen=True)
class Carrying:
    """The way to write a dump's data. root: the source's `$cmroot`. earlier: the dump of `--since`, if it has data.
    keys: the dump is signed, so its list has the SHA-256 of each content, and earlier dumps must be signed, too."""

    root: str
    earlier: DumpReader | None
    keys: Keys | None
    runtime: Runtime


@dataclass
class Carried:
    """The result of a copy. copied: contents that this run has copied; the others existed already."""

    data: DumpData
    copied: int = 0

    def check(self) -> None:
        """Raises FormatError if an earlier dump that this one refers to was removed since."""
        gone = [each for each in self.data.earlier if id_at(each.place) != each.id]
        if gone:
            raise FormatError(
                f"{gone[0].place}: was removed while a dump that refers to it was written",
                hint="dump again, with --since of the newest dump; it copies what is missing",
            )


@dataclass
class _Counts:
    files: int = 0
    bytes: int = 0
    referenced: int = 0
    copied: int = 0
    missing_count: int = 0
    missing: list[dict[str, object]] = field(default_factory=list)


def carry_data(writer: DumpWriter, metadata: DumpMetadata, how: Carrying) -> Carried:
    """Copies every content that a load of the dump may need, and lists it. May run twice: an existing content is not
    copied again. Raises FilesMissing, with the files, if bytes are not available anywhere: the dump is not finished
    then, and the bytes copied so far remain for the next one. They become durable with the parts of the dump."""
    place, chain = join(writer.place, DATA), _chain(how.earlier)
    sweep_staging(place)
    reader = writer.written(metadata)
    earlier = {each.id: join(each.place, DATA) for each in chain}
    task = DataTask(place, how.root, earlier, how.keys is not None)
    for each in chain if how.keys else ():
        DumpReader(each.place, how.keys).verify()
    sources = _sources(reader, how.earlier, chain)
    engine = how.runtime.engines.for_work(metadata.files, metadata.bytes)
    counts = _Counts()
    amounts: dict[str, Any] = {"files": metadata.files, "size": metadata.bytes or None, "live": lambda: FLOW.copied}
    with how.runtime.progress.task("copy data", **amounts) as advance:
        for batch in engine.group(task.read, sources, "prefix", task.decide, LISTED):
            for row in batch.to_pylist():
                _listed(row, writer, counts)
            advance(0, files=batch.num_rows, size=sum(size or 0 for size in batch["size"].to_pylist()))
    give_up_attempts(place)
    (Place(place) / NOTES).remove_own_tree()  # an abandoned attempt publishes nothing from here on
    if counts.missing_count:
        raise _files_missing(counts, how.root)
    data = DumpData(counts.files, counts.bytes, counts.referenced, chain)
    return Carried(data, counts.copied)


def _listed(row: Mapping[str, Any], writer: DumpWriter, counts: _Counts) -> None:
    if row["missing"]:
        counts.missing_count += 1
        if len(counts.missing) < MISSING_SHOWN:
            counts.missing.append({"file": row["source"], "position": row["position"], "reason": row["missing"]})
        return
    writer.content(Content(row["checksum"], row["size"], row["dump"], row["sha256"]))
    if row["dump"]:
        counts.referenced += 1
        return
    counts.files += 1
    counts.bytes += row["size"]
    counts.copied += row["copied"]


def _files_missing(counts: _Counts, root: str) -> FilesMissing:
    first = counts.missing[0]
    return FilesMissing(
        f"{count_text(counts.missing_count, 'file')} found neither at the source nor in {root} with the recorded "
        f"bytes, the first: {first['file']} (position {first['position']}): {first['reason']}",
        hint="the dump was not finished; the bytes copied so far remain: dump again, after the next capture, into the "
        "same directory; capture more often to keep bytes of short-lived files",
        details={"missing": counts.missing},
    )


def _chain(earlier: DumpReader | None) -> tuple[Earlier, ...]:
    """Returns the dumps whose contents may be referenced, the newest first, at their present places; without those that
    are elsewhere by now."""
    if earlier is None or earlier.metadata.data is None:
        return ()
    places = {id: parent(root) for id, root in data_roots(earlier).items() if id}
    older = (Earlier(id, place) for id, place in places.items() if id_at(place) == id)
    return Earlier(earlier.metadata.id, earlier.place), *older


@dataclass(frozen=True)
class Bucket:
    """A part with file entries of the dump, and the rules by which the last entry of each file is found."""

    place: str
    rules: FileRules


def _sources(
    reader: DumpReader, earlier: DumpReader | None, chain: Sequence[Earlier]
) -> list[Bucket | tuple[str, str]]:
    """Returns what the grouping reads: buckets, and earlier dumps as (id, place)."""
    metadata = reader.metadata
    databases = {name: name for name in metadata.scope.databases}
    after, bootstrap = (0, True) if metadata.begin is None else (metadata.begin.position, False)
    squashed = squash(reader.records(), reader.tables(), bootstrap=bootstrap)
    homes = {name: join(reader.place, name) for name in databases}  # of files that metadata names
    rules = Plan(metadata, Placement(databases, {}, homes, None), after, squashed).file_rules()
    buckets = [Bucket(place, rules) for place, _ in reader.buckets()]
    return [*buckets, *((each.id, each.place) for each in chain if earlier is not None)]


_READ = pa.schema(
    [
        ("prefix", pa.string()),
        ("checksum", pa.string()),
        ("size", pa.int64()),
        ("source", pa.string()),
        ("position", pa.int64()),
        ("versioned", pa.string()),
        ("version", pa.string()),
        ("dump", pa.string()),
        ("sha256", pa.string()),
    ]
)
LISTED = pa.schema(
    [
        ("checksum", pa.string()),
        ("size", pa.int64()),
        ("sha256", pa.string()),
        ("dump", pa.string()),
        ("copied", pa.bool_()),
        ("source", pa.string()),
        ("position", pa.int64()),
        ("missing", pa.string()),
    ]
)


@dataclass(frozen=True)
class DataTask:
    """The copy of the contents whose checksums have one beginning: a directory of `place`. earlier: directories with
    the bytes of earlier dumps, by id. Runs on executors; may run twice, and twice at once."""

    place: str
    root: str
    earlier: Mapping[str, str]
    signed: bool

    def read(self, source: Bucket | tuple[str, str]) -> Iterator[pa.RecordBatch]:
        """Yields the files that a load of the dump may need, or the contents that an earlier dump has itself."""
        rows = self._wanted(source) if isinstance(source, Bucket) else self._known(*source)
        for batch in _batched(rows):
            yield pa.RecordBatch.from_pylist(batch, _READ)

    def _wanted(self, bucket: Bucket) -> Iterator[dict[str, Any]]:
        for file in fold_entries(entries([bucket.place]), bucket.rules)[0]:
            versioned, version = file.at_version or (None, None)
            yield {
                "prefix": (file.checksum or "")[:2],
                "checksum": file.checksum,
                "size": file.size,
                "source": file.source,
                "position": file.position,
                "versioned": versioned,
                "version": version,
                "dump": "",
            }

    def _known(self, id: str, place: str) -> Iterator[dict[str, Any]]:
        for each in DumpReader(place).contents():
            if not each.dump:
                yield {**msgspec.structs.asdict(each), "prefix": each.checksum[:2], "dump": id}

    def decide(self, rows: pa.Table) -> pa.Table:
        """Copies the contents of a directory. Returns one row for each that is wanted."""
        found = sorted(rows.to_pylist(), key=lambda row: (row["checksum"] or "", row["size"] or 0))
        groups = [list(group) for _, group in groupby(found, key=lambda row: (row["checksum"], row["size"]))]
        groups = [group for group in groups if any(not row["dump"] for row in group)]
        listed = [self._unreadable(row) for group in groups if group[0]["checksum"] is None for row in group]
        groups = [group for group in groups if group[0]["checksum"] is not None]
        wanted = [self._file(group[0]) for group in groups]
        targets = [file.target for file in wanted]
        with noted(self.place, targets) as attempt, ThreadPoolExecutor(threads_of(wanted) if wanted else 1) as pool:
            how = Placing(Roots(self.root, self.place), attempt, frozenset())
            listed += pool.map(lambda group: self._content(group, how), groups)
        return pa.Table.from_pylist(listed, LISTED)

    def _file(self, row: Mapping[str, Any]) -> Wanted:
        at_version = (row["versioned"], row["version"]) if row["version"] else None
        target = locate(self.place, row["checksum"], row["size"])
        return Wanted(row["source"] or "", target, row["size"], None, row["checksum"], row["position"] or 0, at_version)

    @staticmethod
    def _unreadable(row: Mapping[str, Any]) -> dict[str, Any]:
        return {**row, "sha256": "", "copied": False, "missing": "it was dropped before capture could read it"}

    def _content(self, group: Sequence[Mapping[str, Any]], how: Placing) -> dict[str, Any]:
        checksum, size = group[0]["checksum"], group[0]["size"]
        listed: dict[str, Any] = {"checksum": checksum, "size": size, "sha256": "", "dump": "", "copied": False}
        for row in group:
            listable = row["dump"] and (row["sha256"] or not self.signed)
            if listable and _has_size(locate(self.earlier[row["dump"]], checksum, size), size):
                return listed | {"dump": row["dump"], "sha256": row["sha256"] if self.signed else ""}
        target = locate(self.place, checksum, size)
        if not is_written(target, checksum, size):
            Place(target).remove_own()
            for row in (row for row in group if not row["dump"]):
                placed = place_file(self._file(row), how)
                if placed.origin != "missing":
                    break
            else:
                return listed | {"source": row["source"], "position": row["position"], "missing": placed.reason}
            listed["copied"] = placed.origin != "present"
        return listed | ({"sha256": sha256_of(target)} if self.signed else {})


def _batched(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    waiting: list[dict[str, Any]] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == BATCH:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _has_size(place: str, size: int) -> bool:
    try:
        return Place(place).size() == size
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_written(target: str, checksum: str, size: int) -> bool:
    """Returns True if a content was written before. A local file without a stamp is read, as a disk that lost power may
    have the name without the bytes; other stores show complete files only."""
    if not _has_size(target, size):
        return False
    if not is_local(target) or is_stamped(local_path(target), checksum):
        return True
    return checksum_file(local_path(target)) == (checksum, size)
