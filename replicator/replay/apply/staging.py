"""Marks of a running load: the staging files of its tasks, removable after a kill, and its claims on databases.

A task writes a note of its target directories to `copying/<unique>` of the target's `$cmroot` before its first copy,
and removes it after its last. One task may be attempted several times, and an abandoned attempt may continue later
(Spark's speculation, a lost executor, a stopped machine), so each attempt has names and a note of its own. A note that
a load finds, under the lease and while none of its tasks runs, belongs to an attempt that was killed or abandoned.
Without its note an attempt publishes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Generic

import msgspec

from cmroot.errors import UNREADABLE, Error, FormatError, LeaseHeld, NotWritable
from cmroot.lease import Holder, acquire, held_at
from cmroot.root import open_existing
from cmroot.store.listing import Listing, list_tree
from cmroot.store.local import is_directory
from cmroot.store.place import Place, is_local, local_path, located, parent, remove_if_empty
from cmroot.store.spelling import STAGING as UNFINISHED
from replicator.core.engine import Engine, Result, Task
from replicator.replay.target import standing

STAGING = ".replicating-"  # a prefix that readers of tables ignore
_NOTES = "copying"
_GIVEN_UP = "given-up-"  # followed by the time, in seconds, and the note's old name
_REMEMBERED = 86400.0  # seconds
_TRUSTED = 1.0  # seconds; an attempt that was stopped for longer queries its note before it changes anything


@dataclass
class Fence:
    """A check that an attempt may still make changes, which is while its note exists. `note`: its name, "" for an
    attempt that requires none. Thread-safe."""

    root: str
    note: str = ""
    _asked: float = float("-inf")

    def check(self) -> None:
        """Raises LeaseHeld if the attempt was abandoned: its load has continued without it, or another has the target.
        Called before each externally visible step; queries the store the first time, then at most once a second."""
        now = time.monotonic()
        if self.note and now - self._asked > _TRUSTED:
            place = Place(self.root) / _NOTES / self.note
            if not place.exists():
                raise given_up(str(place))
            self._asked = now


OPEN = Fence("")


@dataclass
class AskingFence(Fence):
    """A fence for attempts in this process: `ask` raises LeaseHeld if the caller may not make changes any more."""

    ask: Callable[[], None] = lambda: None

    def check(self) -> None:
        self.ask()


class Attempt:
    """One run of a task that writes aside: the names that it uses, and a check that it may still publish.
    Thread-safe."""

    def __init__(self, root: str, id: str, fence: Fence = OPEN) -> None:
        """`id`: that of its note, which it checks if there is no other fence."""
        self.id = id
        self._fence = fence if fence.note else Fence(root, id)
        self._numbers = itertools.count()

    def staging(self, directory: str) -> str:
        """Returns a unique name in a directory; it has 60 bytes, regardless of the length of the final name."""
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
    """Runs tasks that change files of a target. When it ends, in any way, abandoned attempts make no further changes,
    even those that have not begun: a lost executor may return. `ask`: raises LeaseHeld if a lease other than the root's
    was lost; called before each task, and if tasks run in this process, before each step."""

    def asked() -> Iterator[Task]:
        for task in tasks:
            ask()
            yield task

    if engine.name == "local":  # threads that are joined
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
    """A task's function bound to its fence."""

    def __init__(self, function: Callable[[Task, Fence], Result], fence: Fence) -> None:
        self._function, self._fence = function, fence

    def __call__(self, task: Task) -> Result:
        return self._function(task, replace(self._fence))  # each attempt queries for itself


def given_up(what: str) -> LeaseHeld:
    return LeaseHeld(
        f"{what} no longer exists: this attempt of a copying task was abandoned, and publishes nothing",
        hint="another load took over the target, or another attempt did the task: see that one",
    )


@contextlib.contextmanager
def noted(root: str, targets: Iterable[str], fence: Fence = OPEN) -> Iterator[Attempt]:
    """Runs a block that writes the files `targets`, with a note. After an error the note remains for the next load."""
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
    """Removes the staging files of attempts that were killed or abandoned; returns how many. `tell` receives messages
    about files that this user may not remove. An abandoned attempt may still run, and create one more file before it
    queries its note, so its directories are checked for a day. Called under the lease, while no task runs that is
    waited for. Raises FormatError for a note that cannot be read. May run twice."""
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
    """Removes all notes, after which their attempts publish nothing, and their staging files; returns how many. Like
    `sweep_staging`, without the directories of attempts that were abandoned before. Messages not reported here are
    reported by the next load, which checks the same directories."""
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
    """Returns the time in seconds since the epoch."""
    seconds = name.removeprefix(_GIVEN_UP).partition("-")[0]
    if not (seconds.isascii() and seconds.isdecimal()):
        raise _unreadable(note, "its name has no time")
    return float(seconds)


def _unreadable(note: Place, why: str) -> FormatError:
    return FormatError(f"{note}: {why}", hint=f"delete it, and any {STAGING}* files below the replicas' directories")


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
    """Removes incompletely written notes: their tasks have not copied anything."""
    if notes.local and is_directory(notes.local):
        for name in os.listdir(notes):
            if name.startswith(UNFINISHED):
                os.unlink(notes / name)


# ---- stamps ----------------------------------------------------------------------------------------------------------
# Stamps: a file published by a load has the checksum of its bytes as an extended attribute, so that another load
# determines without reading if it is the file that an entry names.
#
# Size and time are not sufficient: tools restore times (`rsync -t`, `tar x`, fixed build times). If a filesystem has no
# attributes, and for files without a stamp, bytes are read. A write into a published file in place that restores its
# time is not detected here, but by a comparison of checksums.


_NAME = "user.replicator.xxh3_128"  # the checksum's 16 bytes
_NONE = frozenset({errno.ENODATA, errno.ENOTSUP, errno.EPERM, errno.EACCES})
_NO_ROOM = frozenset({errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.E2BIG, errno.ERANGE})
_AVAILABLE = hasattr(os, "setxattr")  # Linux


def stamp(file: int | str, checksum: str) -> None:
    """Stamps a file whose bytes were read. If that is not possible, the file is read again the next time."""
    if not _AVAILABLE:
        return
    try:
        os.setxattr(file, _NAME, bytes.fromhex(checksum))
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise


def is_stamped(path: str, checksum: str) -> bool:
    """Returns True if a load has published these bytes in the file. The caller must compare size and time, too."""
    return _stamp_of(path) == bytes.fromhex(checksum)


def is_published(path: str) -> bool:
    """Returns True if a load has published a file there, whatever its content now; False if files have no stamps."""
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
# Emptied directories: a file's directory is removed with its last file. Has side effects; may run twice.
#
# The source has no file there, whether or not it has the directory; some readers fail on an empty directory. Object
# stores have no directories. The directories of tables and partitions themselves remain.


def remove_emptied(files: Iterable[str], homes: Collection[str]) -> int:
    """Removes the emptied directories above removed files; returns how many. `homes`: directories, ending with a slash,
    that are not removed."""
    count = 0
    for directory in {parent(local_path(file) if is_local(file) else file) for file in files}:
        while f"{directory}/" not in homes and remove_if_empty(directory):
            count += 1
            directory = parent(directory)
    return count


def remove_above(directory: str, levels: int) -> int:
    """Removes empty directories above a removed one, at most `levels`; returns how many."""
    above, count = parent(directory), 0
    while count < levels and remove_if_empty(above):
        above, count = parent(above), count + 1
    return count


def empty_directories(listing: Listing | None) -> list[str]:
    """Returns the directories of a listing, by relative names, that contain no file at any depth: the deepest first."""
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
    """Removes a directory's empty subdirectories; returns how many."""
    return sum(remove_if_empty(f"{directory}/{name}") for name in empty_directories(list_tree(directory)))


# ---- claims ----------------------------------------------------------------------------------------------------------
# Claims: a property of a target database that names the load that is writing to it and excludes all others.
#
# A load holds the lease of a `$cmroot`, which excludes loads that name the same root. The database's property
# `replicator.loading.by` names that root and the lease's epoch, and so excludes all others. It requires no renewal: a
# claim is valid as long as that lease is held at that epoch. A metastore has no compare-and-set for databases, so a
# claim is checked before it is written, read back after, and read again before the target's metadata is committed: of
# two loads that begin at the same time, the first to write stops. Only a load that pauses between reading and writing
# for the entire duration of the other overwrites its checkpoint; the data it then loads is complete up to its own
# dump's end.


CLAIM = "replicator.loading.by"  # property of a target database: the load running on it, as a Claim; "": none
_VERSION = 1


class Claim(msgspec.Struct, frozen=True):
    """root, root_id: the target's `$cmroot` whose lease the load holds, at `epoch`; the other fields are for users."""

    version: int
    root: str
    root_id: str
    epoch: int
    dump: str
    host: str
    pid: int
    since: str

    def parameters(self) -> dict[str, str]:
        """Returns the claim as properties of a database."""
        return {CLAIM: msgspec.json.encode(self).decode()}


@dataclass(frozen=True)
class Claims:
    """The claim of one load. take_over: another load's claim is ignored if its root cannot be queried."""

    own: Claim
    take_over: bool = False

    @classmethod
    def of(cls, root: str, holder: Holder, dump: str, *, take_over: bool = False) -> Claims:
        """Returns a load's claim. root: the target's `$cmroot`; holder: of its lease, which the load holds."""
        id = open_existing(root).id
        return cls(Claim(_VERSION, root, id, holder.epoch, dump, holder.host, holder.pid, holder.since), take_over)

    def may_begin(self, database: str, parameters: Mapping[str, str], *, planned: tuple[str, str]) -> None:
        """Raises LeaseHeld if another load is, or may be, running on a database of the target, or has been since the
        load was planned (`planned`: its `standing` then). Ends remaining attempts of a load that was killed."""
        other = claim_of(parameters)
        if other != self.own and standing(parameters) != planned:
            raise LeaseHeld(
                f"database {database} of the target was changed by another load while this one was planned",
                hint="run the same load again",
            )
        if other is None or other.root_id == self.own.root_id:  # we hold the lease that it names
            return
        who = (
            f"database {database} of the target is being loaded ({other.dump}) by process {other.pid} on {other.host} "
            f"since {other.since}, under $cmroot {other.root}"
        )
        alive = _is_alive(other)
        if alive:
            raise LeaseHeld(
                who, hint="wait for it to end; loads into one database run one at a time under one --cmroot"
            )
        if alive is None and not self.take_over:
            raise LeaseHeld(
                f"{who}; whether it still runs cannot be checked from this host",
                hint=f"check on {other.host}; if it no longer runs, load with --take-over, or with "
                f"--target-cmroot {other.root}",
            )
        if alive is False:
            _end(other)

    def still(self, database: str, parameters: Mapping[str, str]) -> None:
        """Raises LeaseHeld if the database has since been claimed by another load."""
        other = claim_of(parameters)
        if other != self.own:
            whose = f"process {other.pid} on {other.host} under $cmroot {other.root}" if other else "no process"
            raise LeaseHeld(
                f"database {database} of the target is now being loaded by {whose}, and no longer by this load",
                hint="wait for that load to end, then run the same load again",
            )


def claim_of(parameters: Mapping[str, str]) -> Claim | None:
    """Returns the claim on a database; None if there is none, or if a release without claims is loading. Raises
    LeaseHeld if it cannot be read, as it may be valid."""
    text = parameters.get(CLAIM)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Claim)
    except msgspec.DecodeError as error:
        raise LeaseHeld(
            f"{CLAIM}={text} cannot be parsed: {error}",
            hint="a newer release may be loading; if no load is running, set this property of the database to ''",
        ) from error


def _end(claim: Claim) -> None:
    """Ends tasks of a killed load, which may still run elsewhere; without their notes they publish nothing. If its
    lease is held by another load, that one has done so."""
    with suppress(LeaseHeld), acquire(claim.root, "take over a load"):
        give_up_attempts(claim.root)


def _is_alive(claim: Claim) -> bool | None:
    """Returns True if the lease that a claim names is held; None if its root cannot be queried from here."""
    try:
        if open_existing(claim.root).id != claim.root_id:  # another machine's path
            return None
        return held_at(claim.root, claim.epoch)
    except (Error, OSError):
        return None
