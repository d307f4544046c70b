"""Staging files: where the copies of a running task lie before they have their names, so that a killed one is swept up.

A task notes its target directories in `copying/<unique>` of the target's `$cmroot` before its first copy, and takes the
note away after its last. One task may be attempted several times, and an attempt that was given up may go on later
(Spark's speculation, a lost executor, a stopped machine): each has names and a note of its own. A note that a load
finds, under the lease and when none of its tasks runs, is that of an attempt that was killed or given up; without its
note an attempt publishes nothing any more.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic

import msgspec

from cmroot.errors import UNREADABLE, FormatError, LeaseHeld, NotWritable
from cmroot.store.listing import Listing, list_tree
from cmroot.store.local import is_directory
from cmroot.store.place import Place, is_local, local_path, located, parent, remove_if_empty
from cmroot.store.spelling import STAGING as UNFINISHED
from replicator.core.engine import Engine, Result, Task

STAGING = ".replicating-"  # a name that no reader of tables looks at
_NOTES = "copying"
_GIVEN_UP = "given-up-"  # the name of a note goes on with the time, in seconds, and its old name
_REMEMBERED = 86400.0  # seconds
_TRUSTED = 1.0  # seconds; an attempt that was stopped for longer asks for its note before it changes anything


@dataclass
class Fence:
    """Whether an attempt may still change anything: while a note is there. `note`: its name, "" for an attempt that
    needs none. Several threads may use it."""

    root: str
    note: str = ""
    _asked: float = float("-inf")

    def check(self) -> None:
        """Raises LeaseHeld when the attempt was given up: its load has gone on without it, or another has the target.
        Before each step that others see; asks the store once a second, and the first time."""
        now = time.monotonic()
        if self.note and now - self._asked > _TRUSTED:
            place = Place(self.root) / _NOTES / self.note
            if not place.exists():
                raise given_up(str(place))
            self._asked = now


OPEN = Fence("")


@dataclass
class AskingFence(Fence):
    """For attempts in this process: whether whoever runs them may still change anything. `ask` raises LeaseHeld."""

    ask: Callable[[], None] = lambda: None

    def check(self) -> None:
        self.ask()


class Attempt:
    """One run of a task that writes aside: the names that it takes, and whether it may still publish. Several threads
    may use it."""

    def __init__(self, root: str, id: str, fence: Fence = OPEN) -> None:
        """`id`: of its note, which it watches where there is no other fence."""
        self.id = id
        self._fence = fence if fence.note else Fence(root, id)
        self._numbers = itertools.count()

    def staging(self, directory: str) -> str:
        """A name in a directory that nobody else writes to; 60 bytes, however long the name that it is for."""
        return f"{directory}/{STAGING}{self.id}-{next(self._numbers)}"

    def check(self) -> None:
        """See Fence."""
        self._fence.check()


def fenced(
    engine: Engine,
    root: str,
    function: Callable[[Task, Fence], Result],
    tasks: Iterable[Task],
    ask: Callable[[], None] = lambda: None,
) -> Iterator[Result]:
    """Runs tasks that change files of a target. When it ends, however it ends, attempts that were given up change
    nothing any more, even those that have not begun: an executor that was lost may find itself again. `ask`: raises
    LeaseHeld when a lease besides the root's was lost; before each task, and where tasks run here before each step."""

    def asked() -> Iterator[Task]:
        for task in tasks:
            ask()
            yield task

    if engine.name == "local":  # threads that are waited for
        yield from engine.run(_Fenced(function, AskingFence("", ask=ask)), asked())
        return
    note = uuid.uuid4().hex
    place = Place(root) / _NOTES / note
    place.write_bytes(msgspec.json.encode([]))
    try:
        yield from engine.run(_Fenced(function, Fence(root, note)), asked())
    finally:
        place.remove_own()


class _Fenced(Generic[Task, Result]):
    """A function of a task and its fence, as one of the task."""

    def __init__(self, function: Callable[[Task, Fence], Result], fence: Fence) -> None:
        self._function, self._fence = function, fence

    def __call__(self, task: Task) -> Result:
        return self._function(task, replace(self._fence))  # each attempt asks for itself


def given_up(what: str) -> LeaseHeld:
    return LeaseHeld(
        f"{what} is gone: this attempt of a copying task was given up, and publishes nothing",
        hint="another load has the target, or another attempt did the task: look at that one",
    )


@contextlib.contextmanager
def noted(root: str, targets: Iterable[str], fence: Fence = OPEN) -> Iterator[Attempt]:
    """While a task writes the files `targets`. An error leaves the note to the next load."""
    directories = sorted({parent(target) for target in targets})
    attempt = Attempt(root, uuid.uuid4().hex, fence)
    if not directories:
        yield attempt
        return
    note = Place(root) / _NOTES / attempt.id
    note.write_bytes(msgspec.json.encode(directories))
    yield attempt
    note.remove_own()


def sweep_staging(root: str, tell: Callable[[str], None] = lambda said: None) -> int:
    """Removes the staging files of attempts that were killed or given up; how many. `tell` hears what this user may not
    remove. An attempt that was given up may
    live on, and open one more file before it asks for its note: its directories are looked at for a day. Under the
    lease, while no task runs that is waited for. Raises FormatError for a note that cannot be read. Safe to run
    twice."""
    removed, notes = 0, Place(root) / _NOTES
    _sweep_unfinished(notes)
    for name in notes.list():
        if name.startswith(_GIVEN_UP):
            note = notes / name
            directories = _directories(note)
            if _given_up_at(note, name) < time.time() - _REMEMBERED:
                note.remove_own()
            removed += sum(_sweep_directory(located(directory), tell) for directory in directories)
    return removed + give_up_attempts(root, tell)


def give_up_attempts(root: str, tell: Callable[[str], None] = lambda said: None) -> int:
    """From here on the attempts that have notes publish nothing; removes their staging files; how many. As
    `sweep_staging`, without the directories of attempts that were given up before. What is not told here the next
    load tells, which looks at the same directories."""
    removed, notes = 0, Place(root) / _NOTES
    for name in notes.list():
        if not name.startswith((_GIVEN_UP, UNFINISHED)):
            note = notes / name
            directories = _directories(note)
            if directories:
                (notes / f"{_GIVEN_UP}{int(time.time())}-{name}").write_bytes(note.read_bytes())
            note.remove_own()
            removed += sum(_sweep_directory(located(directory), tell) for directory in directories)
    return removed


def _directories(note: Place) -> list[str]:
    try:
        return msgspec.json.decode(note.read_bytes(), type=list[str])
    except UNREADABLE as error:
        raise _unreadable(note, str(error)) from error


def _given_up_at(note: Place, name: str) -> float:
    """In seconds since the epoch."""
    seconds = name.removeprefix(_GIVEN_UP).partition("-")[0]
    if not (seconds.isascii() and seconds.isdecimal()):
        raise _unreadable(note, "its name has no time")
    return float(seconds)


def _unreadable(note: Place, why: str) -> FormatError:
    return FormatError(f"{note}: {why}", hint=f"remove it, and any {STAGING}* files below the replicas' directories")


def _sweep_directory(place: Place, tell: Callable[[str], None]) -> int:
    found = [name for name in place.list() if name.startswith(STAGING)]
    for name in found:
        (place / name).remove_own()
    try:
        return len(found) + place.remove_uploads(STAGING)
    except NotWritable as error:
        tell(f"{error.message}; {error.hint}")
        return len(found)


def _sweep_unfinished(notes: Place) -> None:
    """Notes that were being written: their tasks had copied nothing yet."""
    if notes.local and is_directory(notes.local):
        for name in os.listdir(notes):
            if name.startswith(UNFINISHED):
                os.unlink(notes / name)


# ---- stamps ----------------------------------------------------------------------------------------------------------
# Stamps: a file that a load has published carries the checksum of its bytes as an extended attribute, so that another
# load tells without reading whether it is the one that an entry names.
#
# Size and time do not tell: tools restore times (`rsync -t`, `tar x`, fixed build times). Where a filesystem has no
# attributes, and for files that no load of ours has stamped, bytes are read. What writes into a published file in place
# and restores its time is not noticed here; comparing by checksum is for that.


_NAME = "user.replicator.xxh3_128"  # the checksum's 16 bytes
_NONE = frozenset({errno.ENODATA, errno.ENOTSUP, errno.EPERM, errno.EACCES})
_NO_ROOM = frozenset({errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.E2BIG, errno.ERANGE})
_AVAILABLE = hasattr(os, "setxattr")  # Linux


def stamp(file: int | str, checksum: str) -> None:
    """Of a file whose bytes were read. Where that cannot be, the file is read again the next time."""
    if not _AVAILABLE:
        return
    try:
        os.setxattr(file, _NAME, bytes.fromhex(checksum))
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise


def is_stamped(path: str, checksum: str) -> bool:
    """Whether a load has published these bytes in the file. Its size and time are for the caller to compare, too."""
    return _stamp_of(path) == bytes.fromhex(checksum)


def is_published(path: str) -> bool:
    """Whether a load has published a file there, whatever is in it now; False where files carry no stamps."""
    return _stamp_of(path) is not None


def _stamp_of(path: str) -> bytes | None:
    if not _AVAILABLE:
        return None
    try:
        return os.getxattr(path, _NAME)
    except OSError as error:
        if error.errno not in _NONE:
            raise
        return None


# ---- pruned directories ----------------------------------------------------------------------------------------------
# Emptied directories: what a removal leaves of a file's directory goes with its last file. Acts; may run twice.
#
# The source has no file there, whether or not it has the directory; some readers fail where there is an empty one.
# Stores of objects have none. The directories of tables and partitions themselves stay.


def remove_emptied(files: Iterable[str], homes: Collection[str]) -> int:
    """How many went of the directories above files that were removed; `homes`: places, ending with a slash, at which
    that ends."""
    count = 0
    for directory in {parent(local_path(file) if is_local(file) else file) for file in files}:
        while f"{directory}/" not in homes and remove_if_empty(directory):
            count += 1
            directory = parent(directory)
    return count


def remove_above(directory: str, levels: int) -> int:
    """How many of so many directories above one that was removed were empty, and went."""
    above, count = parent(directory), 0
    while count < levels and remove_if_empty(above):
        above, count = parent(above), count + 1
    return count


def empty_directories(listing: Listing | None) -> list[str]:
    """Directories of a listing, by their relative names, that hold nothing but such directories: the deepest first."""
    if listing is None or len(listing.directories) < 2:
        return []
    filled = set()
    for file in listing.files:
        above = file.path_relative.rpartition("/")[0]
        while above and above not in filled:
            filled.add(above)
            above = above.rpartition("/")[0]
    names = [each.relative for each in listing.directories if each.relative and each.relative not in filled]
    return sorted(names, key=lambda name: (-name.count("/"), name))


def sweep_empty(directory: str) -> int:
    """Takes away a directory's empty ones; how many."""
    return sum(remove_if_empty(f"{directory}/{name}") for name in empty_directories(list_tree(directory)))
