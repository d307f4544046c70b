"""A summary of a `$cmroot`: format, lease, log, pins, and how many files it keeps, by counting names in part of it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from cmroot.lease import decode_holder, held_at
from cmroot.root import DIRECTORIES, open_existing
from cmroot.store.place import Place
from replicator.policies.memory import POLICIES

NAMES = 20_000
"""Names that are counted in one directory, and in `files/` together."""

SECONDS = 20.0
"""For counting `files/`."""

SHOWN_PINS = 200

_SEGMENT = re.compile(r"(\d{20})-(\d{20})")
_FILES = 256  # directories below files/, one for each two digits that a content's name begins with


def root_summary(place: str, *, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """Reads only. Counts say whether they are complete. Raises FormatError for a place that is no root."""
    root = open_existing(place)
    at = Place(root.place)
    found: dict[str, Any] = {"place": root.place, "id": root.id, "version": root.format.version}
    found["created"] = root.format.created
    found["lease"] = _lease(at)
    found["log"] = _log(at)
    found["files"] = _files(at, clock)
    found["directories"] = {name: _counted(at / name) for name in DIRECTORIES if name not in ("files", "log")}
    found["pins"] = {name: _names(at / name)[:SHOWN_PINS] for name in ("slots", "holds", "legal")}
    found["policies"] = {name: _policy(at / POLICIES / name) for name in _names(at / POLICIES)[:SHOWN_PINS]}
    return found


def _names(place: Place) -> list[str]:
    """At most NAMES of them, without hidden ones."""
    if not place.local:
        return [name for name in place.list() if not name.startswith(".")][:NAMES]
    try:
        with os.scandir(place.local) as entries:
            return sorted(each.name for each in islice(entries, NAMES) if not each.name.startswith("."))
    except FileNotFoundError:
        return []


def _counted(place: Place) -> dict[str, Any]:
    count = len(_names(place))
    return {"names": count, "complete": count < NAMES}


def _policy(place: Place) -> dict[str, Any]:
    return {"lease": _lease(place), "runs": _counted(place / "runs"), "names": _names(place)[:SHOWN_PINS]}


def _lease(root: Place) -> dict[str, Any] | None:
    """Who has it, or had it last. None: nobody ever."""
    path = root / "lease"
    if not root.local:
        epochs = [name for name in path.list() if name.isdecimal()]
        if not epochs:
            return None
        path = path / max(epochs, key=int)
    try:
        holder = decode_holder(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    if holder is None:
        return None
    told = {name: getattr(holder, name) for name in ("epoch", "host", "pid", "since", "purpose", "expires", "released")}
    try:
        return {**told, "held": held_at(str(root), holder.epoch)}
    except OSError as error:  # this user may read, and not write
        return {**told, "held": None, "not_known": str(error)}


def _log(root: Place) -> dict[str, Any]:
    """Segments by their names; whether each is finished is what `cm check` tells."""
    names = _names(root / "log")
    ranges = sorted((int(match[1]), int(match[2])) for name in names if (match := _SEGMENT.fullmatch(name)))
    others = [name for name in names if not _SEGMENT.fullmatch(name)]
    return {
        "segments": len(ranges),
        "complete": len(names) < NAMES,
        "first": ranges[0][0] if ranges else None,
        "last": max((last for _, last in ranges), default=None),
        "others": others[:SHOWN_PINS],
    }


def _files(root: Place, clock: Callable[[], float]) -> dict[str, Any]:
    """How many are counted, in how many of the directories that there are, and what that makes of all: contents are
    spread evenly over them. Directories of an object store are listed one by one."""
    place, began = root / "files", clock()
    names = _names(place) if place.local else [f"{number:02x}" for number in range(_FILES)]
    counted = looked = 0
    for name in names:
        if looked and (counted >= NAMES or clock() - began > SECONDS):
            break
        counted += len(_names(place / name))
        looked += 1
    return {
        "counted": counted,
        "directories": len(names),
        "looked_at": looked,
        "complete": looked == len(names),
        "estimate": round(counted / looked * len(names)) if looked else 0,
    }
