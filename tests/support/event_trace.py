"""The way of one event through the product: which files a call enters, in all of its threads, and in which order of
rooms."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import replicator

HOME = Path(replicator.__file__).parent
GROUND = ("core", "metastore", "errors.py", "__init__.py")
"""Rooms that every other one uses, below which nothing is counted."""


@dataclass
class Way:
    """files: those entered above the ground, as paths below `replicator`; changes: how often the main thread went from
    one room to another; returns: how many of these led to a room in which it had been before."""

    files: set[str] = field(default_factory=set)
    changes: int = 0
    returns: int = 0


def traced(work: Callable[[], object]) -> Way:
    """Runs `work`, and returns its way. A module's import is no entry; a call into one of its functions is."""
    way, main = Way(), threading.get_ident()
    seen: set[str] = set()
    last = ""

    def enters(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal last
        if event != "call" or frame.f_code.co_name == "<module>":
            return
        name = frame.f_code.co_filename
        if not name.startswith(f"{HOME}/"):
            return
        file = name[len(str(HOME)) + 1 :]
        room = file.partition("/")[0]
        if room in GROUND:
            return
        way.files.add(file)
        if threading.get_ident() != main or room == last:
            return
        if last:
            way.changes += 1
            way.returns += room in seen
        seen.add(room)
        last = room

    threading.setprofile(enters)
    sys.setprofile(enters)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return way
