"""Checks of a policy's locations: permissions, by writing a small file and removing it; free space; the stores' clocks;
and the keepers for the bytes of the source's stores. Nothing else is changed, and a missing root is not created."""

from __future__ import annotations

import contextlib
import os
import shutil
import time as clocks
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cmroot.errors import Error, NotWritable
from cmroot.keep.hdfs_keepers import ChangeManager
from cmroot.keep.keepers import NoKeeper, choose_keeper
from cmroot.root import FORMAT, open_existing
from cmroot.store.listing import file_state
from cmroot.store.local import device, is_directory, raise_unless_gone, staging_name, status_of
from cmroot.store.place import Place, as_written, is_local, join, local_path, located, normal, parent, split_authority
from cmroot.store.s3 import REMOVE_VERSIONS, TEMPORARY
from replicator.core.text import duration_text, size_text
from replicator.policies.checks import Figure, Finding, Health
from replicator.policies.checks.metastores import SKEW

ROOM_WARNING, ROOM_CRITICAL = 0.10, 0.02  # shares of a filesystem that should remain free
_REMOVE = "also grant this user permission to delete files there (s3:DeleteObject)"
PROBE = b"written by `replicator check` to see whether this can be written\n"


@dataclass(frozen=True)
class Room:
    """The bytes of the filesystem that contains a location."""

    total: int
    free: int


@dataclass(frozen=True)
class Probed:
    """The result of writing, reading and removing a file at `place`. `clock_ahead`: of the store's clock against the
    local one, in seconds; 0 within the resolution. `leaves`: a version of the file remains in the bucket. `lacks`:
    missing permissions of this user, and their consequences."""

    place: str
    clock_ahead: float
    leaves: bool = False
    lacks: Mapping[str, str] = field(default_factory=dict)


def disk_room(path: str) -> Room:
    """Returns the room of an existing local directory."""
    usage = shutil.disk_usage(path)
    return Room(usage.total, usage.free)


def standing(path: str) -> str:
    """Returns a local directory, or its nearest existing ancestor. Raises NotADirectoryError for a file on the path."""
    path = local_path(path)
    while not is_directory(path):
        if status_of(path, follow=False) is not None:
            raise NotADirectoryError(f"{path}: not a directory")
        path = os.path.dirname(path)
    return path


# Permissions


def judge_place(
    key: str, place: str, *, root: bool, clock: Callable[[], float] = clocks.time
) -> tuple[Finding, Probed | None]:
    """Checks that `place`, which the policy calls `key`, is writable. root: it is a `$cmroot`, or will become one."""
    name = f"write {key}"
    try:
        state = _root_state(place) if root else ""
        probed = probe(place, exclusive=root, clock=clock)
    except (Error, OSError) as error:
        message, hint = reported(error)
        return Finding(name, "critical", message, hint or "grant this user write permission there"), None
    if lacks := probed.lacks or ({REMOVE_VERSIONS: TEMPORARY} if probed.leaves else {}):
        text = f"{place}: {'; '.join(dict.fromkeys(lacks.values()))}"
        return Finding(name, "warning", text, f"grant this user {', '.join(lacks)}"), probed
    return Finding(name, "ok", f"{place}{state}"), probed


def _root_state(place: str) -> str:
    """Describes a root. Raises FormatError for a directory with other contents, NotADirectoryError for a file."""
    at = as_written(place)
    if (at / FORMAT).exists() or at.list():
        open_existing(place)
        return ""
    return " does not exist yet: the first run creates it"


def probe(place: str, *, exclusive: bool, clock: Callable[[], float] = clocks.time) -> Probed:
    """Writes, reads and removes a small hidden file; for a missing local directory, in the ancestor that it will be
    created in. exclusive: created the way a lease is. Raises NotWritable, NoSpace, UnknownPlace, OSError."""
    where = standing(place) if is_local(place) else place
    file = Place(staging_name(join(where, "check")))
    before = clock()
    try:
        if exclusive:
            file.create_exclusive(PROBE)
        else:
            file.write_bytes(PROBE)
        after = clock()
        if file.read_bytes() != PROBE:
            raise OSError(f"{where}: the bytes read differ from those written")
        there = file_state(str(file)).mtime_ns / 1e9
    except BaseException:
        with contextlib.suppress(Error, OSError):  # the first error is the one to report
            file.remove_own()
        raise
    return Probed(where, clock_ahead(there, before, after), not _removed(file), dict(Place(where).lacking_rights()))


def _removed(file: Place) -> bool:
    """Removes the file. Returns True if no version of it remains."""
    try:
        return file.remove_own()
    except NotWritable as error:
        raise NotWritable(f"{file}: can be written, but not deleted", hint=_REMOVE) from error


def clock_ahead(there: float, before: float, after: float) -> float:
    """Returns how far a clock that reported `there` (in whole seconds) between local `before` and `after` is ahead."""
    if there > after + 1:
        return there - after
    return min(0.0, there - (before - 2))


def judge_store_clocks(probes: Iterable[Probed]) -> Finding:
    """Compares the stores' clocks with the local one, by the time of a new file: measured in both directions."""
    worst = max(probes, key=lambda each: abs(each.clock_ahead), default=None)
    if worst is None:
        return Finding("clock stores", "unknown", "no location could be written", "see the permissions above")
    figure = Figure("store_clock_ahead", worst.clock_ahead, "s", SKEW.total_seconds())
    if abs(worst.clock_ahead) > SKEW.total_seconds():
        direction = "ahead of" if worst.clock_ahead > 0 else "behind"
        return Finding(
            "clock stores",
            "warning",
            f"{worst.place}: {duration_text(abs(worst.clock_ahead))} {direction} the local clock",
            "synchronize this host's clock with NTP: leases on object stores require clocks that differ by at most "
            f"{SKEW.total_seconds():.0f} s",
            (figure,),
        )
    return Finding(
        "clock stores", "ok", "equal to the local clock, by the times of files just written", figures=(figure,)
    )


# Room


def judge_room(places: dict[str, str], room: Callable[[str], Room] = disk_room) -> list[Finding]:
    """Checks free space of each local filesystem a run writes to; object stores have no limit. places: key -> place."""
    by_device: dict[int, list[str]] = {}
    for key, place in places.items():
        if is_local(place):
            by_device.setdefault(device(place), []).append(key)
    return [_judge_room(keys, room(standing(places[keys[0]]))) for keys in by_device.values()]


def _judge_room(keys: Sequence[str], room: Room) -> Finding:
    part = room.free / room.total if room.total else 0.0
    health: Health = "critical" if part < ROOM_CRITICAL else "warning" if part < ROOM_WARNING else "ok"
    bounds = room.total * ROOM_WARNING, room.total * ROOM_CRITICAL
    return Finding(
        f"room {', '.join(keys)}",
        health,
        f"{size_text(room.free)} of {size_text(room.total)} free ({part:.0%})",
        "" if health == "ok" else "free space, expire kept files (`replicator cm expire`), or move these directories",
        (Figure(f"free_{keys[0]}", room.free, "B", *bounds),),
    )


# Keepers of the source's bytes


def judge_keepers(
    root: str, locations: Iterable[str], requested: str, manager: Callable[[], ChangeManager]
) -> list[Finding]:
    """Checks, for each store of the source's locations, that it is readable, and determines its keeper by trying."""
    stores: dict[object, list[str]] = {}
    for location in locations:
        stores.setdefault(_store(location), []).append(location)
    with trial_root(root) as trial:
        return [_judge_keeper(trial, found, requested, manager) for found in stores.values()]


@contextlib.contextmanager
def trial_root(root: str) -> Iterator[str]:
    """Yields the root or, if missing, a directory next to its future path, on the same store, removed at the end."""
    if (as_written(root) / FORMAT).exists():
        yield root
        return
    trial = Place(staging_name(join(standing(root) if is_local(root) else parent(root), "check")))
    try:
        trial.mkdirs()
        yield str(trial)
    finally:
        with contextlib.suppress(Error, OSError):
            trial.remove_own_tree()


def _judge_keeper(root: str, locations: Sequence[str], requested: str, manager: Callable[[], ChangeManager]) -> Finding:
    example = next((place for place in locations if _is_there(place)), locations[0])
    name, many = f"keeper {store_name(example)}", f"{len(locations)} locations such as {example}"
    said: list[str] = []
    try:
        readable(example)
        keeper = choose_keeper(root, example, requested, tell=said.append, manager=manager)
    except (Error, OSError) as error:
        return Finding(name, "critical", *reported(error))
    if said:
        return Finding(
            name, "warning", f"{keeper.name}: {'; '.join(said)}", "see docs/cmroot-format.md, `What keeps what`"
        )
    if isinstance(keeper, NoKeeper):
        hint = "choose another keeper, unless files that are dropped before they are copied may be lost"
        return Finding(name, "warning", f"none: no files of {many} are kept", hint)
    return Finding(name, "ok", f"{keeper.name}, for {many}")


def readable(place: str) -> None:
    """Raises NotWritable (which names permissions) or OSError if an existing location cannot be listed."""
    if not is_local(place):
        located(place).list()
        return
    try:
        with os.scandir(local_path(place)) as entries:
            next(entries, None)  # a partitioned table has very many
    except OSError as error:
        raise_unless_gone(error)


def _is_there(place: str) -> bool:
    with contextlib.suppress(Error, OSError):
        return is_local(place) and os.path.isdir(local_path(place))
    return False


def _store(location: str) -> object:
    """Returns the device or bucket, as capture groups them."""
    return device(parent(location)) if is_local(location) else split_authority(normal(location))[0]


def store_name(location: str) -> str:
    """Returns the name for display: the bucket, or the mount point of the filesystem."""
    if not is_local(location):
        return split_authority(normal(location))[0]
    path = standing(location)
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path


def reported(error: Exception) -> tuple[str, str]:
    """Returns an error's message and hint."""
    if isinstance(error, Error):
        return error.message, error.hint
    return str(error) or type(error).__name__, ""
