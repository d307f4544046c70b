"""Free space on local disks: of roots, and of the service's logs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from cmroot.store.place import is_local, local_path
from replicator.core.config import Config
from replicator.core.policy import Policy


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
