"""Measurements of a disk's free space and of a root's size, and threads for those that may hang.

An unreachable mount may hang: each measurement has a thread of its own, so that nothing else waits. The size of a
change-management root, and the pin that holds its oldest contents, are those of a sample, in limited time.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from cmroot.pins import Pins, read_pins
from cmroot.pins import seconds as seconds_of
from cmroot.root import open_existing
from cmroot.store.listing import list_entries, prefixes
from cmroot.store.place import is_local, local_path
from replicator.core.config import Config
from replicator.core.policy import Policy

# ---- threads ---------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)


@dataclass
class Apart:
    """Threads for work that may hang. at_once: maximum concurrent work. patience: seconds after which work no longer
    counts; its thread remains, at most one per name."""

    at_once: int
    patience: float
    _at_work: dict[str, tuple[float, threading.Thread]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, name: str, work: Callable[[], object]) -> bool:
        """Starts the work and returns True. Returns False while work of the same name is running, and if no capacity or
        thread is free. `work` must store its failures as values, not raise them."""
        with self._lock:
            recent = time.monotonic() - self.patience
            if name in self._at_work or sum(begun > recent for begun, _ in self._at_work.values()) >= self.at_once:
                return False

            def run() -> None:
                try:
                    work()
                finally:
                    with self._lock:
                        del self._at_work[name]

            thread = threading.Thread(target=run, name=f"apart {name}", daemon=True)
            try:
                thread.start()  # its end waits for the lock
            except RuntimeError as error:  # too many threads or processes exist
                log.warning("%s could not be started: %s", name, error)
                return False
            self._at_work[name] = (time.monotonic(), thread)
        return True

    def wait(self, name: str, seconds: float) -> bool:
        """Waits up to `seconds` for the work of this name. Returns True if it has ended."""
        with self._lock:
            _, thread = self._at_work.get(name, (0.0, None))
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()


# ---- disks of roots, and of the service's logs -----------------------------------------------------------------------


@dataclass(frozen=True)
class Disk:
    """The disk of a directory. free: bytes available to users other than root; size: total bytes. at: seconds since
    1970."""

    at: float
    directory: str
    free: int
    size: int


def disk_of(directory: str) -> Disk | None:
    """Returns the disk of a directory; None: the directory does not exist, or cannot be queried."""
    at = time.time()
    try:
        found = os.statvfs(directory)
    except OSError:
        return None  # the code that requires it reports it
    return Disk(at, directory, found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def directories_of(config: Config) -> dict[str, str]:
    """Returns the directories of the service's logs and of policies' local roots, by their names in messages."""
    return {"service.logs": config.service.logs, **_of_roots(config.policies)}


def _of_roots(policies: Mapping[str, Policy]) -> dict[str, str]:
    found = {}
    for name, policy in policies.items():
        for side, place in (("cmroot", policy.cmroot), ("target_cmroot", policy.target_cmroot)):
            if is_local(place):
                found[f"{name}/{side}"] = local_path(place)
    return found


# ---- sizes of roots --------------------------------------------------------------------------------------------------


ENTRIES = 50_000
SECONDS = 20.0
"""A sample ends at either limit. Names are checksums, so that all directories are of similar size."""


@dataclass(frozen=True)
class RootSample:
    """The size of a root. bytes, files: of retained contents; estimates unless `exact`. oldest: when the pin that holds
    back most was created or last moved, in seconds since 1970; None: there is none. consumer: its name."""

    bytes: int
    files: int
    exact: bool
    oldest: float | None
    consumer: str


def sample_root(place: str, *, entries: int = ENTRIES, seconds: float = SECONDS) -> RootSample:
    """Measures a sample of a root. Reads only. Raises FormatError if the root does not exist, OSError if it is
    unreachable."""
    root = open_existing(place)
    began, found = time.monotonic(), prefixes(root.place)
    looked = files = size = 0
    for prefix in found:
        listed = list_entries(root.place, prefix).entries
        looked, files = looked + 1, files + listed.num_rows
        size += sum(each or 0 for each in listed.column("bytes").to_pylist())
        if files > entries or time.monotonic() - began > seconds:
            break
    share = len(found) / looked if looked else 1.0
    pins = sorted(_moments(read_pins(root.place)))
    oldest, consumer = pins[0] if pins else (None, "")
    return RootSample(round(size * share), round(files * share), looked == len(found), oldest, consumer)


def _moments(pins: Pins) -> Iterator[tuple[float, str]]:
    """Yields for each pin since when it holds its contents, and its name."""
    for slot in pins.slots:
        if not slot.given_up:
            yield seconds_of(slot.confirmed or slot.created), f"slot {slot.consumer or slot.name}"
    for hold in pins.holds:
        yield seconds_of(hold.created), f"hold {hold.name}"
    for dump in pins.dumps:
        yield seconds_of(dump.created), f"dump {dump.name}"
