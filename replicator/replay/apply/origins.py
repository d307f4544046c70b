"""Sources of a file's bytes in a load, in the order in which they are tried: the target's own `$cmroot`, a dump with
data, the source, the source's `$cmroot`, or a version in the source's bucket. `copying` reads them.
"""

from __future__ import annotations

import contextlib
import stat
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from threading import Condition, Lock, Thread
from typing import BinaryIO, NamedTuple

import msgspec

from cmroot.keep.content import is_kept, locate
from cmroot.keep.versions import open_version
from cmroot.store.listing import file_state
from cmroot.store.local import status_of
from cmroot.store.place import is_local, local_path, located, make_inheriting
from replicator.core.not_replicated import NOT_TAKEN, NotReplicated
from replicator.errors import MetastoreError
from replicator.metastore.client import MAY_REFUSE
from replicator.replay.plan import EntryKey, FileRules


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """One file of the target: where its bytes may be stored, what they must be, and its target path. checksum None: its
    bytes were never read (they were removed before capture could read them). `at_version`: path and version id under
    which the source's bucket retains them. `content`: its bytes, if they are not the source's: those of `checksum`."""

    source: str
    target: str
    size: int | None
    mtime_ns: int | None
    checksum: str | None
    position: int
    at_version: tuple[str, str] | None = None
    content: bytes | None = None


@dataclass(frozen=True)
class Roots:
    """The source's `$cmroot`, with retained bytes, and the target's, which retains replaced files and returns them.
    data: the directories with the bytes of a dump with data, and of the earlier dumps of its chain. alone: True if
    nothing of the source is read."""

    source: str
    target: str
    data: tuple[str, ...] = ()
    alone: bool = False

    def has(self, checksum: str, size: int) -> bool:
        """Returns True if the bytes of the source are kept, by name and size."""
        return any(is_kept(root, checksum, size) for root in self.keeping)

    @property
    def keeping(self) -> tuple[str, ...]:
        """The directories that have the source's bytes by checksum."""
        return self.data if self.alone else (*self.data, self.source)


class Origin(NamedTuple):
    """A location to read bytes from; `name` as in Placed. `content`: the bytes, if they are in memory already."""

    name: str
    place: str
    version: str = ""
    content: bytes | None = None

    def __str__(self) -> str:
        return f"{self.place} at version {self.version}" if self.version else self.place

    def open(self) -> BinaryIO:
        """Opens the bytes. Raises FileNotFoundError if they do not exist."""
        if self.content is not None:
            return BytesIO(self.content)
        if self.version:
            return open_version(self.place, self.version)
        return located(self.place).open_stream()

    def open_read(self) -> BinaryIO:
        """Like `open`, for reading parts in any order."""
        if self.content is None and not self.version:
            return located(self.place).open_read()
        stream = self.open()
        return stream if stream.seekable() else BytesIO(stream.read())  # of snapshots of HDFS


def origins(wanted: Wanted, checksum: str, size: int, roots: Roots, kept: frozenset[str]) -> Iterator[Origin]:
    first = checksum[:2] in kept
    if first and is_kept(roots.target, checksum, size):
        yield Origin("target", locate(roots.target, checksum, size))
    if wanted.content is not None:
        yield Origin("source", wanted.source, content=wanted.content)
        return
    for data in roots.data:
        yield Origin("dump", locate(data, checksum, size))
    if not roots.alone:
        yield Origin("source", wanted.source)
        yield Origin("cmroot", locate(roots.source, checksum, size))
        if wanted.at_version:
            yield Origin("cmroot", *wanted.at_version)
    if not first and is_kept(roots.target, checksum, size):  # retained since the load began
        yield Origin("target", locate(roots.target, checksum, size))


# ---- directories -----------------------------------------------------------------------------------------------------
# Directories in which files are created, and the rights that they and replaced files have.


def directory_of(place: str, objects: Container[str]) -> str:
    """Returns the directory of the object that a file belongs to, the nearest one; "" for a location that is a file."""
    above = place.rpartition("/")[0]
    while above and f"{above}/" not in objects:
        above = above.rpartition("/")[0]
    return f"{above}/" if above else ""


@dataclass(frozen=True)
class Directories:
    """The directories in which a task creates files. homes: the directories of objects, each with a key of its entries.
    lacking: receives rights that new ones cannot have, one text for each table. Thread-safe."""

    homes: Mapping[str, EntryKey]
    rules: FileRules
    lacking: dict[tuple[str, str], str]
    seen: set[str] = field(default_factory=set)

    def make(self, directory: str) -> None:
        """Creates a directory with group and mode of its table's; elsewhere than on disks and HDFS does nothing."""
        if directory in self.seen:
            return
        key = self.homes.get(directory_of(f"{directory}/", self.homes))
        rule, _ = (self.rules.rules_of(*key[:4]) if key else None) or (None, None)
        home = (rule.home if rule else None) or ""
        if rule and rule.location and not home:
            home = self.rules.placement.inside(rule.db, rule.location, rule.location)
        text = make_inheriting(directory, home)
        if text and rule and rule.name:
            self.lacking[rule.name] = f"{directory} lacks {text} of its table's directory"
        if len(self.seen) < SEEN:
            self.seen.add(directory)


def make_directory(location: str, home: str = "") -> str:
    """Creates a local directory, unless it exists, or is the single file of a table. home: the table's directory, of a
    partition. Returns rights that it should have and cannot."""
    return make_inheriting(location, home) if is_local(location) else ""


def is_one_file(location: str) -> bool:
    """Returns True if a location is the single file of a table. An object of no bytes may be a directory marker. Raises
    as `status_of` if the store cannot determine it."""
    if is_local(location):
        status = status_of(local_path(location))
        return status is not None and stat.S_ISREG(status.st_mode)
    with contextlib.suppress(FileNotFoundError):
        return file_state(location).size > 0
    return False


def exists(location: str) -> bool:
    """Returns True if a directory, or the single file of a table, exists."""
    place = located(location)
    return place.exists() or bool(place.list())


SEEN = 1000  # directories that a task remembers


def lacking_of(
    target: str, lacking: str, homes: Mapping[str, EntryKey], rules: FileRules
) -> dict[tuple[str, str], str]:
    """Returns the rights that a file lacks of the one that it replaced, by the table. homes: see `Directories`."""
    key = homes.get(directory_of(target, homes))
    owner = rules.object_at(*key[:4]) if key else None
    return {owner[0]: f"{target} lacks {lacking} of the file that it replaced"} if owner else {}


# ---- outcomes --------------------------------------------------------------------------------------------------------
# The outcome of each object of a load: done, or refused by the target's metastore.
#
# A refusal is about one object: a type or a capability that the server does not support, a name too long for its
# database. The object is recorded as not replicated, also in the target's database, and the rest continues.


ABOUT_ONE = ("InvalidObjectException", "is not a valid object name", "is used in the following materialized views")
FEW = 3  # objects: if as many are refused and none was accepted, the objects are not the cause


class Outcomes:
    """The outcomes of the objects of one load."""

    def __init__(self) -> None:
        self._lock, self._taken = Lock(), 0
        self._refused: dict[str, MetastoreError] = {}
        self._staying: dict[str, MetastoreError] = {}

    def attempt(self, name: str, work: Callable[..., None], *arguments: object) -> None:
        """Does the work on an object, by its name at the source; does nothing for a refused one. Raises MetastoreError
        if the server is unavailable, or refuses everything."""
        if name in self._refused:
            return
        try:
            work(*arguments)
        except MetastoreError as error:
            if error.transient:
                raise
            self._refuse(name, error)
        else:
            with self._lock:
                self._taken += 1

    def _refuse(self, name: str, error: MetastoreError) -> None:
        with self._lock:
            self._refused[name] = error
            many = len(self._refused)
            everything = many >= FEW and not self._taken and not any(each in error.message for each in ABOUT_ONE)
            if everything or many > max(MAY_REFUSE, self._taken):
                raise error

    def leave(self, name: str, why: str) -> None:
        """Records an object that the target could store only after a change by its administrator. Tried again."""
        with self._lock:
            self._refused[name] = MetastoreError(why)

    def stays(self, name: str, refused: str) -> None:
        """Records the source's name of the object that keeps an old name on the target, as a rename was refused."""
        self._staying[name] = self._refused[refused]

    def is_refused(self, name: str) -> bool:
        return name in self._refused or name in self._staying

    def refused(self) -> list[NotReplicated]:
        found = self._staying | self._refused
        return [NotReplicated(name, f"{NOT_TAKEN}: {error.message}") for name, error in found.items()]

    def reason(self, name: str) -> str:
        return next(each.reason for each in self.refused() if each.object == name)


# ---- keyed executor --------------------------------------------------------------------------------------------------
# A keyed executor: parallel work that preserves the order of each key's tasks, in bounded memory.


Key = tuple[str, str]

QUEUED = 8  # waiting tasks: bounds the driver's memory


class KeyedExecutor:
    """An executor of parallel work that runs the tasks of one key in order. `width`: returns how many tasks run at
    once, called each time; a full queue blocks the caller. After the first error no further task begins."""

    def __init__(self, width: Callable[[], int]) -> None:
        self._width, self._changed = width, Condition()
        self._waiting: dict[Key, deque[Callable[[], None]]] = {}  # keys that have work
        self._ready: deque[Key] = deque()  # those of them without a running task
        self._running, self._left, self._over = 0, 0, False  # _left: tasks that have not begun
        self._threads: list[Thread] = []
        self._error: BaseException | None = None

    def submit(self, key: Key, work: Callable[..., None], *arguments: object) -> None:
        """Queues a task. Raises the first error of earlier work."""
        width = self._width()
        with self._changed:
            while self._left >= QUEUED and not self._error:
                self._changed.wait()
            self._raise()
            if key not in self._waiting:
                self._waiting[key] = deque()
                self._ready.append(key)
            self._waiting[key].append(lambda: work(*arguments))
            self._left += 1
            if len(self._threads) < min(width, self._left + self._running):
                self._threads.append(Thread(target=self._run, name="replay", daemon=True))
                self._threads[-1].start()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            width = self._width()
            with self._changed:
                while not self._over and (not self._ready or self._running >= width):
                    self._changed.wait()
                    width = self._width()
                if not self._ready or self._error:
                    return
                key = self._ready.popleft()
                work = self._waiting[key].popleft()
                self._running, self._left = self._running + 1, self._left - 1
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:
                error = raised
            self._ended(key, error)

    def _ended(self, key: Key, error: BaseException | None) -> None:
        with self._changed:
            self._running -= 1
            self._error = self._error or error
            self._over = self._over or self._error is not None
            if not self._waiting[key]:
                del self._waiting[key]
            elif not self._over:
                self._ready.append(key)
            self._changed.notify_all()

    def _raise(self) -> None:
        if self._error:
            raise self._error

    def __enter__(self) -> KeyedExecutor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._changed:
            while kind is None and not self._error and (self._left or self._running):
                self._changed.wait()
            self._over = True
            if kind is not None:
                self._ready.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        if kind is None:
            self._raise()
