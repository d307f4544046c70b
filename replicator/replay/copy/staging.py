"""Staging files: where the copies of a running task lie before they have their names, so that a killed one is swept up.

A task notes its target directories in `copying/<unique>` of the target's `$cmroot` before its first copy, and takes the
note away after its last. One task may be attempted several times, and an attempt that was given up may go on later
(Spark's speculation, a lost executor, a stopped machine): each has names and a note of its own. A note that a load
finds, under the lease and when none of its tasks runs, is that of an attempt that was killed or given up; without its
note an attempt publishes nothing any more.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic

import msgspec

from cmroot.errors import UNREADABLE, FormatError, LeaseHeld
from cmroot.store.local import is_directory
from cmroot.store.place import is_local, join, local_path, parent, store_for
from cmroot.store.spelling import STAGING as UNFINISHED
from replicator.core.engine import Engine, Result, Task

STAGING = ".replicating-"  # a name that no reader of tables looks at
_NOTES = "copying"
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
            place = join(self.root, _NOTES, self.note)
            if not store_for(place).exists(place):
                raise given_up(place)
            self._asked = now


OPEN = Fence("")


@dataclass
class Asking(Fence):
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
        yield from engine.run(_Fenced(function, Asking("", ask=ask)), asked())
        return
    note = uuid.uuid4().hex
    place = join(root, _NOTES, note)
    store_for(root).mkdirs(join(root, _NOTES))
    store_for(root).write_bytes(place, msgspec.json.encode([]))
    try:
        yield from engine.run(_Fenced(function, Fence(root, note)), asked())
    finally:
        store_for(root).remove(place)


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
    note = join(root, _NOTES, attempt.id)
    store_for(root).mkdirs(join(root, _NOTES))
    store_for(root).write_bytes(note, msgspec.json.encode(directories))
    yield attempt
    store_for(root).remove(note)


def sweep_staging(root: str) -> int:
    """Removes the staging files of attempts that were killed or given up; how many. Under the lease, while no task runs
    that is waited for. Safe to run twice."""
    store, removed = store_for(root), 0
    _sweep_unfinished(join(root, _NOTES))
    for name in store.list(join(root, _NOTES)):
        note = join(root, _NOTES, name)
        try:
            directories = msgspec.json.decode(store.read_bytes(note), type=list[str])
        except UNREADABLE as error:
            raise FormatError(
                f"{note}: {error}", hint=f"remove it, and any {STAGING}* files below the replicas' directories"
            ) from error
        for directory in directories:
            for staging in store_for(directory).list(directory):
                if staging.startswith(STAGING):
                    store_for(directory).remove(join(directory, staging))
                    removed += 1
        store.remove(note)
    return removed


def _sweep_unfinished(notes: str) -> None:
    """Notes that were being written: their tasks had copied nothing yet."""
    if is_local(notes) and is_directory(local_path(notes)):
        for name in os.listdir(local_path(notes)):
            if name.startswith(UNFINISHED):
                os.unlink(os.path.join(local_path(notes), name))
