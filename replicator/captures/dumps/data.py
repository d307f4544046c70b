"""Data of a dump: the directories with the bytes of its chain, and their check, which needs no metastore."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from cmroot.errors import UNREADABLE
from cmroot.keep.content import locate
from cmroot.store.checksum import checksum_at
from cmroot.store.place import Place, join, name_of, parent
from replicator.captures.dumps import layout
from replicator.captures.dumps.layout import DATA, Content, DumpReader, Finished
from replicator.core.not_replicated import Report
from replicator.core.runtime import Runtime
from replicator.core.text import count_text
from replicator.errors import Error, FormatError, Refused

BLOCK = 1 << 20
TASK_BYTES = 1 << 30  # read by one task of a check
TASK_FILES = 2000
SHOWN = 1000  # damaged files that a report names

# ---- chains ----------------------------------------------------------------------------------------------------------


def data_roots(reader: DumpReader) -> dict[str, str]:
    """Returns the directories with the bytes of a dump and of the earlier dumps of its chain, by id; "": its own.

    An earlier dump is first looked for next to this one, as a chain may have been moved or copied as a whole."""
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
