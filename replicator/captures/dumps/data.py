"""Dumps with data: the bytes of their files, chains of such dumps, their verification and expiry.

An increment is loaded after the dumps before it, back to a bootstrap, and may refer to their bytes. So a dump that is
kept keeps all that it needs. Deciding is pure; a removal first takes away the marker, and looks again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import msgspec

from cmroot.errors import UNREADABLE
from cmroot.keep.content import locate
from cmroot.store.checksum import checksum_at
from cmroot.store.place import Place, as_written, join, name_of, parent
from replicator.captures.dumps import layout
from replicator.captures.dumps.layout import (
    DATA,
    FINISHED,
    METADATA,
    Content,
    DumpMetadata,
    DumpReader,
    Finished,
    Scope,
    open_parts,
)
from replicator.core.not_replicated import Report, Rows
from replicator.core.runtime import Runtime
from replicator.core.text import count_text
from replicator.errors import Error, FormatError, Refused, UsageError

BLOCK = 1 << 20
TASK_BYTES = 1 << 30  # read by one task of a check
TASK_FILES = 2000
SHOWN = 1000  # damaged files that a report names

# ---- chains ----------------------------------------------------------------------------------------------------------


def data_roots(reader: DumpReader) -> dict[str, str]:
    """Returns the directories with the bytes of a dump and of the earlier dumps of its chain, by id; "": its own.

    An earlier dump is first looked for next to this one, as a complete chain may have been moved or copied."""
    roots = {"": join(reader.place, DATA)}
    for each in reader.metadata.data.earlier if reader.metadata.data else ():
        near = join(parent(reader.place), name_of(each.place))
        roots[each.id] = join(near if id_at(near) == each.id else each.place, DATA)
    return roots


def id_at(place: str) -> str:
    """Returns the id of the finished dump at a place; "" if there is none, or it cannot be read."""
    with suppress(Error, OSError, *UNREADABLE):
        return msgspec.json.decode((Place(place) / layout.FINISHED).read_bytes(), type=Finished).id
    return ""


def sha256_of(place: str) -> str:
    """Returns the SHA-256 of a file, in hex digits."""
    digest = hashlib.sha256()
    with Place(place).open_stream() as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


# ---- checking --------------------------------------------------------------------------------------------------------


@dataclass
class DumpVerified(Report):
    """The result of a check of a dump. files, bytes: contents that were read; 0 for a dump that names files only
    (`with_data` False). damaged: at most 1000 of the `damaged_count` files, each with the reason."""

    dump: str
    kind: str
    with_data: bool
    signed: bool
    status: str = "verified"
    files: int = 0
    bytes: int = 0
    damaged_count: int = 0
    damaged: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class CheckTask:
    """Contents to read, and the directories of the chain, by id."""

    roots: Mapping[str, str]
    contents: Sequence[Content]


def run_check_task(task: CheckTask) -> tuple[int, list[tuple[str, str]]]:
    """Reads contents. Returns their bytes, and (file, reason) of each that is missing or damaged."""
    size, damaged = 0, []
    for each in task.contents:
        root = task.roots.get(each.dump)
        if root is None:
            damaged.append((f"{each.checksum}-{each.size}", f"belongs to dump {each.dump}, which is not in the chain"))
            continue
        place = locate(root, each.checksum, each.size)
        if reason := _damage(place, each):
            damaged.append((place, reason))
        size += each.size
    return size, damaged


def _damage(place: str, content: Content) -> str:
    try:
        found = checksum_at(place)
        if found != (content.checksum, content.size):
            return f"holds other bytes ({found[1]} bytes, xxh3_128 {found[0]})"
        if content.sha256 and sha256_of(place) != content.sha256:
            return "differs from the file that was signed"
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return ""


def verify_dump(reader: DumpReader, runtime: Runtime) -> DumpVerified:
    """Reads every part of a dump, and every content that it lists, also in earlier dumps of its chain. Needs no
    metastore. Raises FormatError for a damaged part, Refused for one that differs from the signed one."""
    reader.verify()
    metadata = reader.metadata
    data = metadata.data
    done = DumpVerified(reader.place, metadata.kind, data is not None, reader.is_signed)
    if data is None:
        return done
    count = data.files + data.referenced
    engine, roots = runtime.engines.for_work(count, data.bytes), data_roots(reader)
    tasks = (CheckTask(roots, some) for some in _shares(reader.contents()))
    with runtime.progress.task("read data", files=count, size=data.bytes or None) as advance:
        for size, damaged in engine.run(run_check_task, _counted(tasks, done)):
            done.bytes += size
            done.damaged_count += len(damaged)
            done.damaged += [{"file": file, "reason": reason} for file, reason in damaged]
            del done.damaged[SHOWN:]
            advance(0, size=size)
    if done.files != count:
        raise FormatError(
            f"{reader.place}: lists {done.files} contents, but {count} according to its description",
            hint="restore the dump from a copy, or dump again",
        )
    if done.damaged_count:
        done.status = "damaged"
    return done


def refuse_damaged(reader: DumpReader, runtime: Runtime) -> None:
    """Reads the data of a signed dump before a load uses it. Raises Refused with the names of damaged files."""
    found = verify_dump(reader, runtime)
    if found.damaged_count:
        first = found.damaged[0]
        raise Refused(
            f"dump {reader.place}: {count_text(found.damaged_count, 'data file')} not as signed, the first: "
            f"{first['file']} {first['reason']}",
            hint="copy the dump again from the host that signs dumps",
            details={"damaged": found.damaged},
        )


def _counted(tasks: Iterator[CheckTask], done: DumpVerified) -> Iterator[CheckTask]:
    for task in tasks:
        done.files += len(task.contents)
        yield task


def _shares(contents: Iterator[Content]) -> Iterator[list[Content]]:
    waiting: list[Content] = []
    size = 0
    for each in contents:
        waiting.append(each)
        size += each.size
        if size >= TASK_BYTES or len(waiting) == TASK_FILES:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


EXPIRED = "_expired"
"""A file in a dump that an expiry removes: written before the marker is removed, so that a killed one is completed."""

PERIODS: Mapping[str, Callable[[datetime], object]] = {
    "last": lambda time: time,
    "daily": lambda time: time.date(),
    "weekly": lambda time: time.isocalendar()[:2],
    "monthly": lambda time: (time.year, time.month),
    "yearly": lambda time: time.year,
}


@dataclass(frozen=True)
class DumpInPlace:
    """A finished dump. created: in UTC. bytes: of the data that it has itself; None: it names files only. needs: names
    of the dumps that must be loaded before it or have bytes for it; broken: True if some are not in the directory."""

    name: str
    id: str
    kind: str
    created: str
    databases: list[str]
    from_event: int | None
    to_event: int
    bytes: int | None
    needs: list[str]
    broken: bool = False


@dataclass
class DumpsListed(Rows):
    """The finished dumps of a directory, the oldest first. unfinished: names of those without a marker."""

    listed = "dumps"
    place: str
    dumps: list[DumpInPlace]
    unfinished: list[str]
    status: str = "listed"


@dataclass
class DumpsExpired(Report):
    """The result of an expiry, or of its rehearsal. kept: name -> why. removed: names, in the order of removal. other:
    dumps without data and unfinished ones, which are never removed."""

    status: str
    place: str
    kept: dict[str, list[str]]
    removed: list[str]
    bytes_removed: int
    other: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Keep:
    """The dumps to keep, for each source and scope: the newest of so many periods that have any, and all that are
    younger than `within`. The newest dump is always kept."""

    periods: Mapping[str, int]
    within: timedelta | None = None


# ---- listing ---------------------------------------------------------------------------------------------------------

Found = dict[str, DumpMetadata]
Group = tuple[object, ...]


def find_dumps(place: Place) -> tuple[Found, list[str]]:
    """Returns the finished dumps of a directory by name, and the names of unfinished ones. Raises FormatError for one
    whose description is damaged, because what it needs is not known."""
    found, unfinished = Found(), []
    for name in place.list():
        if (place / name / FINISHED).exists():
            found[name] = open_parts(str(place / name))[1]
        elif (place / name / METADATA).exists() or (place / name / DATA).list():
            unfinished.append(name)
    return found, unfinished


def needs_of(found: Found) -> dict[str, tuple[list[str], bool]]:
    """Returns the dumps that each dump needs, transitively, in the order of loading, and True if some are missing."""
    ids = {metadata.id: name for name, metadata in found.items()}
    direct: dict[str, tuple[set[str], bool]] = {}
    for name, metadata in found.items():
        earlier = [each.id for each in metadata.data.earlier] if metadata.data else []
        before = {ids[id] for id in earlier if id in ids}
        broken = bool(metadata.data and metadata.data.referenced and len(before) < len(earlier))
        if metadata.begin is not None:
            previous = ids.get(earlier[0]) if earlier else None
            previous = previous or _previous(name, metadata, found)
            before |= {previous} if previous else set()
            broken = broken or previous is None
        direct[name] = before, broken
    return {name: _closed(name, direct, found) for name in found}


def _previous(name: str, metadata: DumpMetadata, found: Found) -> str | None:
    """Returns the newest dump after which an increment can be loaded."""
    assert metadata.begin is not None
    begin, end = metadata.begin.position, metadata.end.position
    able = [
        (each.end.position, each.created, other)
        for other, each in found.items()
        if other != name
        and group_of(each) == group_of(metadata)
        and begin <= each.end.position < max(end, begin + 1)
        and (each.begin is None or each.begin.position < begin)
    ]
    return max(able)[-1] if able else None


def _closed(name: str, direct: Mapping[str, tuple[set[str], bool]], found: Found) -> tuple[list[str], bool]:
    seen, waiting, broken = set[str](), [name], False
    while waiting:
        before, lacks = direct[waiting.pop()]
        broken = broken or lacks
        waiting += before - seen
        seen |= before
    return sorted(seen - {name}, key=lambda each: (found[each].end.position, found[each].created)), broken


def group_of(metadata: DumpMetadata) -> Group:
    """Returns what the dumps of one chain have in common."""
    return chain_group(metadata.root_id, metadata.scope)


def chain_group(root_id: str, scope: Scope) -> Group:
    """Returns the source and scope of a chain as a value that can be compared."""
    databases, partitions = tuple(sorted(scope.databases)), tuple(sorted(scope.partitions.items()))
    return root_id, databases, scope.include, scope.exclude, partitions


def list_dumps(text: str) -> DumpsListed:
    """Returns the dumps of a directory. Changes nothing. Raises FormatError as `find_dumps`, UsageError for a directory
    without any dump."""
    place = as_written(text)
    found, unfinished = find_dumps(place)
    if not found and not unfinished:
        raise UsageError(f"{place}: contains no dumps", hint="give the directory that has the dumps' directories")
    needs, rows = needs_of(found), []
    for name, each in sorted(found.items(), key=lambda item: (item[1].created, item[1].end.position)):
        data, begin = each.data, each.begin
        row = DumpInPlace(
            name,
            each.id,
            each.kind,
            each.created,
            list(each.scope.databases),
            begin.event if begin else None,
            each.end.event,
            data.bytes if data else None,
            *needs[name],
        )
        rows.append(row)
    return DumpsListed(str(place), rows, unfinished)


# ---- expiry ----------------------------------------------------------------------------------------------------------


def decide(found: Found, keep: Keep, now: float) -> tuple[dict[str, list[str]], list[str]]:
    """Returns the dumps with data that are kept, with the reasons, and those that are removed, each before the dumps
    that it needs."""
    kept: dict[str, list[str]] = {}
    groups: dict[object, list[str]] = {}
    for name in sorted(found, key=lambda each: (created_of(found[each]), found[each].end.position), reverse=True):
        if found[name].data is not None:
            groups.setdefault(group_of(found[name]), []).append(name)
    oldest = None if keep.within is None else datetime.fromtimestamp(now, UTC) - keep.within
    for names in groups.values():
        kept.setdefault(names[0], []).append("newest")
        for period, count in keep.periods.items():
            for name in _of_periods(names, found, period, count):
                kept.setdefault(name, []).append(period)
        for name in names if oldest else ():
            if oldest and created_of(found[name]) >= oldest:
                kept.setdefault(name, []).append("within")
    needs = needs_of(found)
    for name in list(kept):
        for each in needs[name][0]:
            kept.setdefault(each, []).append(f"needed by {name}")
    removed = [name for names in groups.values() for name in names if name not in kept]
    removed.sort(key=lambda name: (found[name].end.position, len(needs[name][0]), found[name].created), reverse=True)
    return kept, removed


def _of_periods(names: Sequence[str], found: Found, period: str, count: int) -> Iterable[str]:
    """Yields the newest dump of each of the last `count` periods that have one. names: the newest first."""
    seen: list[object] = []
    for name in names:
        key = name if period == "last" else PERIODS[period](created_of(found[name]))
        if key not in seen and len(seen) < count:
            seen.append(key)
            yield name


def created_of(metadata: DumpMetadata) -> datetime:
    """Returns the time of a dump, in UTC. Raises FormatError for text that is not a time."""
    try:
        created = datetime.fromisoformat(metadata.created)
    except ValueError as error:
        raise FormatError(
            f"dump {metadata.id}: created at {metadata.created!r}", hint="restore it from a copy"
        ) from error
    return created.replace(tzinfo=UTC) if created.tzinfo is None else created.astimezone(UTC)


def expire_dumps(text: str, keep: Keep, clock: Callable[[], float], *, dry_run: bool) -> DumpsExpired:
    """Removes the dumps with data that are not kept, each before those that it needs. May run again after a crash.

    A dump that was finished at the same time and needs one of them gets it back: the marker is removed first, then the
    directory is read again. Raises FormatError, before any removal, if a dump's description is damaged."""
    place = as_written(text)
    found, unfinished = find_dumps(place)
    left = [name for name in place.list() if name not in found and (place / name / EXPIRED).exists()]
    kept, removed = decide(found, keep, clock())
    other = [name for name in found if found[name].data is None and name not in kept]
    other += [name for name in unfinished if name not in left]
    if not dry_run:
        for name in left:
            (place / name).remove_own_tree()
        removed = [name for name in removed if _remove(place, name)]
    size = sum(metadata.data.bytes for name in removed if (metadata := found[name]).data)
    return DumpsExpired("planned" if dry_run else "expired", str(place), kept, removed, size, sorted(other))


def _remove(place: Place, name: str) -> bool:
    """Removes a dump. Returns False if another dump needs it by now."""
    dump = place / name
    marker = (dump / FINISHED).read_bytes()
    id = open_parts(str(dump))[1].id
    (dump / EXPIRED).write_bytes(b"")
    (dump / FINISHED).remove_own()
    found, _ = find_dumps(place)
    if any(id == each.id for metadata in found.values() if metadata.data for each in metadata.data.earlier):
        (dump / FINISHED).write_bytes(marker)
        (dump / EXPIRED).remove_own()
        return False
    dump.remove_own_tree()
    return True
