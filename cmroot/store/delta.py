"""Names in a Delta table's log, and their order. Pure; contents are read in `replicator.core.delta_log`.

The log defines the table: a version names its data files, and a reader uses the highest version that the log contains
without a gap. So a log is listed before its data files, and published after them, in the order of its versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LOG = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"

_BELOW = re.compile(rf"(?:^|/){LOG}/([^/]+(?:/[^/]+)*)$")
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint\.(?:parquet|(\d{10})\.(\d{10})\.parquet|[0-9a-f-]{36}\.(?:parquet|json))"
)
_COMPACTED = re.compile(r"\d{20}\.(\d{20})\.compacted\.json")
_OF_VERSION = re.compile(r"(\d{20})\.")

BESIDE, COMMIT, LAST = 0, 1, 2  # ranks, in the order of their publication


def in_log(path: str) -> str | None:
    """Returns the part of a path below the log's directory; None if the path is not in a log."""
    found = _BELOW.search(path)
    return found[1] if found else None


def rank(path: str) -> tuple[int, int] | None:
    """Returns the order in which a file of a log is published, among those of its table: checkpoints and their parts,
    then commits by version, then the name of the last checkpoint. None for data, which is published before them all."""
    name = in_log(path)
    if name is None:
        return None
    if commit := _COMMIT.fullmatch(name):
        return COMMIT, int(commit[1])
    return (LAST, 0) if name == LAST_CHECKPOINT else (BESIDE, 0)


def commit_version(path: str) -> int | None:
    """Returns the version of a path of a commit; None for other paths."""
    found = rank(path)
    return found[1] if found and found[0] == COMMIT else None


def checkpoint_version(name: str) -> int | None:
    """Returns the version whose checkpoint, or part of one, has this name in the log; None for other names."""
    found = _CHECKPOINT.fullmatch(name)
    return int(found[1]) if found else None


def checkpoints(names: Iterable[str]) -> dict[int, list[str]]:
    """Returns the complete checkpoints among the names in a log, by version; any one of several of the same version."""
    single: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], dict[int, str]] = {}
    for name in names:
        found = _CHECKPOINT.fullmatch(name)
        if found and found[3]:
            parts.setdefault((int(found[1]), int(found[3])), {})[int(found[2])] = name
        elif found:
            single[int(found[1])] = [name]
    whole = {version: list(some.values()) for (version, count), some in parts.items() if len(some) == count}
    return whole | single


def last_version(names: Iterable[str]) -> int | None:
    """Returns the newest version that these names of a log contain without a gap, after the newest checkpoint; None
    when they contain no version."""
    names = list(names)
    commits = {int(found[1]) for name in names if (found := _COMMIT.fullmatch(name))}
    begun = checkpoints(names)
    if not begun and not commits:
        return None
    version = max(begun) if begun else min(commits)
    while version + 1 in commits:
        version += 1
    return version


def beyond(names: Iterable[str]) -> set[str]:
    """Returns names that a reader cannot use yet, of a log that was listed while it was written: those of versions
    after the last one without a gap; with them the name of the last checkpoint, which may be a later one."""
    names = list(names)
    last = last_version(names)
    if last is None:
        return set()
    found = set()
    for name in names:
        of_version = _COMPACTED.fullmatch(name) or _OF_VERSION.match(name)
        if of_version and int(of_version[1]) > last:
            found.add(name)
    return found | ({LAST_CHECKPOINT} & set(names) if found else set())
