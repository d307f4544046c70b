"""What a run is at, from the file that it tells its progress in; and what it did, from its answer. Pure, but for that
file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replicator.service.children import PROGRESS

QUIET = 30.0
"""Seconds without a word of a run after which a page says so."""

FIGURES = (
    ("records", "records"),
    ("files_copied", "files copied"),
    ("bytes_copied", "size copied"),
    ("files_from_source", "files from the source"),
    ("files_from_cmroot", "files from $cmroot"),
    ("files_from_target", "files that the target had elsewhere"),
    ("files_skipped", "files in place already"),
    ("files_removed", "files removed"),
    ("objects_changed", "objects changed"),
    ("difference_count", "differences"),
    ("lag_seconds", "behind at its end"),
)
"""Fields of answers that are counts, and what they are called."""

ABOUT = (
    *("warnings", "findings", "differing", "remaining", "missing", "dropped", "left", "bootstrapped"),
    *("not_replicated", "tables"),
)
"""Fields of answers that say what by name."""

MOST = 200
"""Names of one field that are shown; the JSON has all."""


@dataclass(frozen=True)
class TaskAtWork:
    """A task that is open. done, of: bytes where they are told (unit "bytes"), else files or steps; of: None: nobody
    knows. rate: of these, a second; left: seconds until all is done; quiet: since it last said anything, if long."""

    title: str
    unit: str
    done: int
    of: int | None
    steps: int
    of_steps: int | None
    files: int
    of_files: int | None
    seconds: float
    rate: float
    left: float | None
    quiet: float | None


def tasks_of(directory: Path, now: float) -> list[TaskAtWork]:
    """Of a run at work, the outermost first; empty where it has told none, or is another server's. now: seconds since
    1970."""
    file = directory / PROGRESS
    try:
        age = max(0.0, now - file.stat().st_mtime)
        said = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return []
    tasks = said.get("tasks") if isinstance(said, dict) else None
    return [_task(each, age) for each in tasks if isinstance(each, dict)] if isinstance(tasks, list) else []


def _task(said: Mapping[str, Any], age: float) -> TaskAtWork:
    unit = next((each for each in ("bytes", "files") if said.get(f"of_{each}") or said.get(each)), "steps")
    done, of = int(said.get(unit) or 0), said.get(f"of_{unit}")
    seconds = float(said.get("seconds") or 0.0) + age
    rate = done / seconds if seconds else 0.0
    return TaskAtWork(
        title=str(said.get("title", "")),
        unit=unit,
        done=done,
        of=of,
        steps=int(said.get("steps") or 0),
        of_steps=said.get("of_steps"),
        files=int(said.get("files") or 0),
        of_files=said.get("of_files"),
        seconds=seconds,
        rate=rate,
        left=max(0.0, of - done) / rate if of and rate else None,
        quiet=age if age > QUIET else None,
    )


def steps_of(answer: Mapping[str, object]) -> dict[str, float]:
    """Seconds by step, of an answer that has them."""
    steps = answer.get("steps")
    found: dict[str, float] = {}
    for name, seconds in (steps if isinstance(steps, dict) else {}).items():
        with contextlib.suppress(TypeError, ValueError):
            found[str(name)] = float(seconds)
    return found


def figures_of(answer: Mapping[str, object]) -> list[tuple[str, str, float]]:
    """Name, words and value of what an answer counts, without noughts."""
    found = []
    for name, words in FIGURES:
        value = answer.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and value:
            found.append((name, words, value))
    return found


def about_of(answer: Mapping[str, object]) -> dict[str, list[str]]:
    """What an answer says by name, in lines."""
    found = {}
    for name in ABOUT:
        value = answer.get(name)
        rows = [f"{key}: {each}" for key, each in value.items()] if isinstance(value, dict) else value
        if isinstance(rows, list) and rows:
            found[name] = [_line(each) for each in rows[:MOST]]
            if len(rows) > MOST:
                found[name].append(f"and {len(rows) - MOST:,} more")
    return found


def _line(row: object) -> str:
    return ", ".join(f"{key} {each}" for key, each in row.items() if each) if isinstance(row, dict) else str(row)
