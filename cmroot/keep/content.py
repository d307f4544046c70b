"""Content names: links and copies files into `files/` under the name of their checksum. Keepers and recycling share
these steps.

A retained file is `files/<ab>/<algorithm>-<hex>-<size>`, where `ab` are the first two digits of the checksum. Files get
this name by a link, so a name appears atomically with complete content. Incomplete files are in `incoming/`, where the
prefix of a name decides how a sweep handles it: `copy-` and `probe-` are removed, `recycle-` and `damaged-` are filed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from cmroot.errors import FormatError, KeepError
from cmroot.log.captured import ADD, FILES, RELEASE, Segment
from cmroot.names import HINT
from cmroot.store.checksum import ALGORITHM, checksum_descriptor, checksum_file, copy_descriptor
from cmroot.store.local import sync_directory
from cmroot.store.place import Place, is_local, join, normal

ATTEMPTS = 3
"""How often a file that changes while it is read is read again before an error is raised."""

_LINK_REFUSED = frozenset({errno.EMLINK, errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""A link is refused: 65,000 links on ext4, another device, another owner's file (fs.protected_hardlinks), FAT."""


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A file that was retained: size and modification time of the source, its identity (see FileState), the checksum of
    the content. `version`: the version id by which the source's store retains it, if it does; `changed_ns`: the
    source's change time after it was retained (a link changes it), 0 where unavailable."""

    size: int
    mtime_ns: int
    identity: str
    algorithm: str
    checksum: str
    version: str | None = None
    changed_ns: int = 0


def content_name(checksum: str, size: int, algorithm: str = ALGORITHM) -> str:
    return f"{algorithm}-{checksum}-{size}"


def locate(root: str, checksum: str, size: int) -> str:
    """Returns the path of these bytes if retained. Raises FormatError for an invalid checksum: it is part of a path."""
    if len(checksum) != 32 or not checksum.isalnum():
        raise FormatError(f"{checksum!r} is not a checksum", hint=HINT)
    return join(root, "files", checksum[:2], content_name(checksum, size))


def is_kept(root: str, checksum: str, size: int) -> bool:
    """Returns True if a file of this name and size exists; reads no bytes."""
    try:
        return Place(locate(root, checksum, size)).size() == size
    except FileNotFoundError:
        return False


def fresh_incoming(root: str, kind: str) -> str:
    """Returns an unused name in `incoming/`; creates the directory on a local root."""
    incoming = Place(root) / "incoming"
    incoming.mkdirs()
    return str(incoming / f"{kind}-{os.getpid()}-{uuid.uuid4().hex}")


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """Yields an open descriptor, through which the bytes remain readable: unlinking and replacing only remove names."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def unsteady(path: str) -> KeepError:
    return KeepError(
        f"{path}: changed while it was read, {ATTEMPTS} times in a row",
        hint="a writer has it open; the next run tries again once the writer has finished",
    )


def read_steadily(descriptor: int, path: str) -> Kept:
    """Returns the checksum of an open local file, read undisturbed by writers. Raises KeepError if it kept changing."""
    before = os.fstat(descriptor)
    for _ in range(ATTEMPTS):
        checksum, size = checksum_descriptor(descriptor, before.st_size)
        after = os.fstat(descriptor)
        if _steady(before, after, size):
            return Kept(size, after.st_mtime_ns, str(after.st_ino), ALGORITHM, checksum, changed_ns=after.st_ctime_ns)
        before = after
    raise unsteady(path)


def file_by_link(root: str, descriptor: int, kept: Kept) -> None:
    """Gives an open file its content name: by a link to exactly this inode, else by a copy of its bytes."""
    final = locate(root, kept.checksum, kept.size)
    for _ in range(ATTEMPTS):
        try:
            _link_descriptor(descriptor, final)
            return
        except FileExistsError:
            if _holds(root, final, descriptor, kept):
                return
        except FileNotFoundError:  # no directory yet; or it was unlinked: the descriptor has its last bytes
            os.makedirs(os.path.dirname(final), exist_ok=True)
        except OSError as error:
            if error.errno not in _LINK_REFUSED:
                raise
            break
    if file_by_copy(root, descriptor, final).checksum != kept.checksum:
        raise unsteady(final)


def file_by_copy(root: str, descriptor: int, path: str) -> Kept:
    """Copies an open file into the root: to a staging file, synced, then named by the content of the copy."""
    for _ in range(ATTEMPTS):
        before = os.fstat(descriptor)
        staged = fresh_incoming(root, "copy")
        checksum, size = copy_descriptor(descriptor, staged, sync=True)
        after = os.fstat(descriptor)
        if _steady(before, after, size):
            kept = Kept(size, after.st_mtime_ns, str(after.st_ino), ALGORITHM, checksum, changed_ns=after.st_ctime_ns)
            name_incoming(root, staged, kept)
            return kept
        os.unlink(staged)
    raise unsteady(path)


def file_incoming(root: str, staged: str) -> Kept:
    """Hashes a file in `incoming/` and adds its content name; its current name is retained."""
    with opened(staged) as descriptor:
        kept = read_steadily(descriptor, staged)
    _link_incoming(root, staged, kept)
    return kept


def name_incoming(root: str, staged: str, kept: Kept) -> None:
    """Moves a file in `incoming/` to its content name: link, then unlink, so that one of the names always exists."""
    _link_incoming(root, staged, kept)
    remove_name(staged)


def sync_name(final: str) -> None:
    """Makes the name of an entry durable: another device may persist the removal of its source earlier."""
    directory = os.path.dirname(final)
    sync_directory(directory)
    sync_directory(os.path.dirname(directory))


def remove_name(path: str) -> None:
    """Unlinks a name that may not exist any more."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _link_incoming(root: str, staged: str, kept: Kept) -> None:
    final = locate(root, kept.checksum, kept.size)
    with opened(staged) as descriptor:
        for _ in range(ATTEMPTS):
            try:
                os.link(staged, final, follow_symlinks=False)
                return
            except FileExistsError:
                if _holds(root, final, descriptor, kept):
                    return
            except FileNotFoundError:
                os.makedirs(os.path.dirname(final), exist_ok=True)
            except OSError as error:
                if error.errno not in _LINK_REFUSED:
                    raise
                os.rename(staged, final)  # links are unavailable: a rename replaces equal bytes at worst
                return
    raise KeepError(f"{staged}: could not be renamed to {final}", hint="run the same command again")


def _renew(root: str, final: str, descriptor: int, kept: Kept) -> None:
    """Makes an entry as young as if it were filed now by changing its inode's change time, from which its age counts.
    Where that is impossible (another owner's file, a filesystem without change times), the equal bytes that are open
    replace it in one step."""
    before = os.stat(final)
    try:
        os.chmod(final, stat.S_IMODE(before.st_mode))
    except PermissionError:
        pass
    else:
        if os.stat(final).st_ctime_ns > before.st_ctime_ns:
            return
    staged = fresh_incoming(root, "copy")
    try:
        _link_descriptor(descriptor, staged)
    except OSError as error:
        if error.errno not in _LINK_REFUSED and error.errno != errno.ENOENT:  # unlinked since it was opened
            raise
        if copy_descriptor(descriptor, staged, sync=True) != (kept.checksum, kept.size):
            remove_name(staged)
            raise unsteady(final) from error
    os.rename(staged, final)
    remove_name(staged)  # remains if the same inode was given that name concurrently


def _steady(before: os.stat_result, after: os.stat_result, size: int) -> bool:
    return size == after.st_size and before.st_mtime_ns == after.st_mtime_ns


def _link_descriptor(descriptor: int, final: str) -> None:
    """Calls linkat(2) on /proc/self/fd: links the inode that was hashed, even if its path was replaced since.

    A path could be replaced between hashing and linking; a descriptor cannot. src_dir_fd is passed only because Python
    otherwise calls link(2), which does not follow the symbolic link in /proc.
    """
    os.link(f"/proc/self/fd/{descriptor}", final, src_dir_fd=descriptor, follow_symlinks=True)


def _holds(root: str, final: str, descriptor: int, kept: Kept) -> bool:
    """Returns True if the name has these bytes already; then the entry is made as young as a new one.

    A retained file that shares its inode with a source may have been overwritten since. It is then moved to the name of
    its current content, the intact bytes replace it, and nothing is lost. So equal content that arrives as another file
    costs one more read; the same file again costs nothing.
    """
    try:
        there, ours = os.stat(final), os.fstat(descriptor)
        if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
            return True  # removing the other name changes its change time
        if there.st_size == kept.size and (kept.size == 0 or checksum_file(final) == (kept.checksum, kept.size)):
            _renew(root, final, descriptor, kept)
            return True
        staged = fresh_incoming(root, "damaged")
        os.rename(final, staged)
        file_incoming(root, staged)
        remove_name(staged)
    except FileNotFoundError:
        pass
    return False


# ---- find ------------------------------------------------------------------------------------------------------------
# Searching the captured log: which files were recorded at a path, in a table, or with a checksum, and until when.
#
# Streams over the file entries and holds the newest matches only. Checks at the end which bytes are retained now.


LIMIT = 1000
"""The maximum number of references listed individually, the newest; the others are counted."""

_COLUMNS = [name for name in FILES.names if name != "identity"]


@dataclass(frozen=True)
class Query:
    """A search; all given criteria must match. `path`: a file or a directory above it, at any time of the log. `table`:
    `db.table`, or `db.table/partition` with the partition's escaped name. `checksum`: its first digits, or a content
    name such as `xxh3_128-<hex>-<size>`."""

    path: str = ""
    table: str = ""
    checksum: str = ""


class Reference(msgspec.Struct, frozen=True):
    """A file as recorded in the log: the source had these bytes from `since` until `ended` (None: it still has them).
    `recorded_kept`: whether they were retained when it was recorded; `kept`: whether they are retained now, in `files/`
    or as a version in their bucket. checksum None: the file was never read."""

    db: str
    table: str
    partition: str
    location: str
    path: str
    size: int | None
    mtime_ns: int | None
    checksum: str | None
    since: int
    ended: int | None
    recorded_kept: bool
    version: str | None = None
    kept: bool = False

    @property
    def place(self) -> str:
        return join(self.location, self.path)

    @property
    def key(self) -> tuple[int, str, str | None]:
        return self.since, self.path, self.checksum


@dataclass(frozen=True)
class Findings:
    """The newest references in the order of the log, and their count; `total` is at least that many."""

    references: list[Reference]
    total: int


def find(root: str, log: Sequence[Segment], query: Query, *, limit: int = LIMIT) -> Findings:
    """Returns the references that match a query. Reads the log once or twice, in constant memory; takes no lease.

    A live file whose table was renamed or moved since is found where it was recorded, not at its current location."""
    found: dict[tuple[int, str, str | None], Reference] = {}
    total = 0
    for row in _rows(log, query):
        reference = _reference(row)
        known = found.pop(reference.key, None)
        total += known is None and row["op"] == ADD
        if known is not None:  # the release of an add that matches too
            reference = msgspec.structs.replace(known, ended=reference.ended)
        found[reference.key] = reference
        if len(found) > limit:
            del found[next(iter(found))]
    total = max(total, len(found))
    ends = _ends(log, [each for each in found.values() if each.ended is None])
    references = [msgspec.structs.replace(each, ended=ends.get(each.key, each.ended)) for each in found.values()]
    references.sort(key=lambda each: each.since)
    return Findings(_with_kept(root, references), total)


def _rows(log: Sequence[Segment], query: Query) -> Iterator[dict[str, Any]]:
    path = normal(query.path) if query.path else ""
    for segment in log:
        for batch in segment.file_batches(_COLUMNS):
            rows = pa.Table.from_batches([batch])
            rows = rows.filter(pc.is_in(rows["op"], pa.array([ADD, RELEASE])))
            if query.checksum:
                rows = rows.filter(pc.starts_with(rows["checksum"], _digits(query.checksum)))
            if query.table:
                rows = rows.filter(_of_table(rows, query.table))
            if path and rows.num_rows:
                rows = rows.filter(_below(rows, path))
            yield from rows.to_pylist()


def _digits(text: str) -> str:
    return text.lower().removeprefix(f"{ALGORITHM}-").partition("-")[0]


def _of_table(rows: pa.Table, text: str) -> Any:
    name, slash, partition = text.partition("/")
    db, _, table = name.rpartition(".")
    fits = pc.equal(rows["table"], table.lower())
    if db:
        fits = pc.and_(fits, pc.equal(rows["db"], db.lower()))
    return pc.and_(fits, pc.equal(rows["partition"], partition)) if slash else fits


def _below(rows: pa.Table, wanted: str) -> Any:
    """Returns the rows whose file is at a place or below it. There are few locations, and many files."""
    fits = pa.array([False] * rows.num_rows)
    for location in pc.unique(pc.drop_null(rows["location"])).to_pylist():
        here = pc.equal(rows["location"], location)
        place = normal(location)
        if place == wanted or place.startswith(wanted.rstrip("/") + "/"):
            fits = pc.or_(fits, here)
        elif wanted.startswith(place.rstrip("/") + "/"):
            rest = wanted[len(place.rstrip("/")) + 1 :]
            named = pc.or_(pc.equal(rows["path"], rest), pc.starts_with(rows["path"], rest + "/"))
            fits = pc.or_(fits, pc.and_(here, named))
    return fits


def _reference(row: dict[str, Any]) -> Reference:
    ending = row["op"] == RELEASE
    return Reference(
        db=row["db"] or "",
        table=row["table"] or "",
        partition=row["partition"] or "",
        location=row["location"] or "",
        path=row["path"] or "",
        size=row["size"],
        mtime_ns=row["mtime_ns"],
        checksum=row["checksum"],
        since=row["since"] if ending else row["position"],
        ended=row["position"] if ending else None,
        recorded_kept=bool(row["kept"]),
        version=row["version"],
    )


def _ends(log: Sequence[Segment], open_: Sequence[Reference]) -> dict[tuple[int, str, str | None], int]:
    """Returns the positions at which references ended under another name or location than the one searched for."""
    if not open_:
        return {}
    keys = {each.key for each in open_}
    since = pa.array({each.since for each in open_}, pa.int64())
    first = min(each.since for each in open_)
    ends = {}
    for segment in log:
        if segment.last < first:
            continue
        for batch in segment.file_batches(["position", "op", "path", "checksum", "since"]):
            rows = pa.Table.from_batches([batch])
            rows = rows.filter(pc.and_(pc.equal(rows["op"], RELEASE), pc.is_in(rows["since"], since)))
            for row in rows.to_pylist():
                key = (row["since"], row["path"], row["checksum"])
                if key in keys:
                    ends[key] = row["position"]
    return ends


def _with_kept(root: str, references: Sequence[Reference]) -> list[Reference]:
    contents = {(each.checksum, each.size) for each in references if each.checksum and each.size is not None}
    there = kept_now(root, ((checksum, size) for checksum, size in contents if checksum and size is not None))
    return [
        msgspec.structs.replace(each, kept=bool(each.version) or (each.checksum, each.size) in there)
        for each in references
    ]


def kept_now(root: str, contents: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
    """Returns the given contents that `files/` has by name; on object stores by listing the possible prefixes."""
    if is_local(root):
        return {each for each in contents if is_kept(root, *each)}
    names: dict[str, set[str]] = {}
    found = set()
    for checksum, size in contents:
        prefix = checksum[:2]
        if prefix not in names:
            names[prefix] = set((Place(root) / "files" / prefix).list())
        if content_name(checksum, size) in names[prefix]:
            found.add((checksum, size))
    return found
