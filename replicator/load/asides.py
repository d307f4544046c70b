"""Part copies: where the copies of a running task lie before they have their names, so that a killed one is swept up.

A task notes its target directories in `copying/<unique>` of the target's `$cmroot` before its first copy, and takes the
note away after its last. A note that a load finds, under the lease, is that of a task that was killed.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Iterator

import msgspec

from cmroot.errors import FormatError
from cmroot.place import ASIDE as UNFINISHED
from cmroot.place import is_local, join, local_path, parent, store_for

ASIDE = ".replicating-"  # a name that no reader of tables looks at
_NOTES = "copying"


@contextlib.contextmanager
def noted(root: str, targets: Iterable[str]) -> Iterator[None]:
    """While the files of a task are copied to `targets`. An error leaves the note to the next load."""
    directories = sorted({parent(target) for target in targets})
    if not directories:
        yield
        return
    note = join(root, _NOTES, uuid.uuid4().hex)
    store_for(root).mkdirs(join(root, _NOTES))
    store_for(root).write_bytes(note, msgspec.json.encode(directories))
    yield
    store_for(root).remove(note)


def sweep_asides(root: str) -> int:
    """Removes the part copies of tasks that were killed; how many. Under the lease. Safe to run twice."""
    store, removed = store_for(root), 0
    _sweep_unfinished(join(root, _NOTES))
    for name in store.list(join(root, _NOTES)):
        note = join(root, _NOTES, name)
        try:
            directories = msgspec.json.decode(store.read_bytes(note), type=list[str])
        except msgspec.DecodeError as error:
            raise FormatError(
                f"{note}: {error}", hint=f"remove it, and any {ASIDE}* files below the replicas' directories"
            ) from error
        for directory in directories:
            for aside in store_for(directory).list(directory):
                if aside.startswith(ASIDE):
                    store_for(directory).remove(join(directory, aside))
                    removed += 1
        store.remove(note)
    return removed


def _sweep_unfinished(notes: str) -> None:
    """Notes that were being written: their tasks had copied nothing yet."""
    if is_local(notes) and os.path.isdir(local_path(notes)):
        for name in os.listdir(local_path(notes)):
            if name.startswith(UNFINISHED):
                os.unlink(os.path.join(local_path(notes), name))
