"""Checking the entries of `files/`: that each holds what its name says. One task a prefix; reads only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cmroot.check.finding import RootFinding
from cmroot.keep.content import content_name, locate
from cmroot.store.checksum import checksum_at
from cmroot.store.entries import PREFIXES, content_of, list_entries
from cmroot.store.place import Place, join

SHOWN = 100
"""Damaged entries of one prefix that are listed one by one."""


@dataclass(frozen=True)
class PrefixTask:
    """The entries of one of the 256 directories; `bytes`: read them, not only their sizes."""

    root: str
    prefix: str
    bytes: bool


@dataclass
class PrefixChecked:
    """Entries and bytes by the store's word, bytes that were read, findings; `damaged`: by what the name promises."""

    entries: int
    bytes: int = 0
    bytes_read: int = 0
    findings: list[RootFinding] = field(default_factory=list)
    damaged: list[tuple[tuple[str, int], RootFinding]] = field(default_factory=list)
    damaged_count: int = 0


def check_prefix(task: PrefixTask) -> PrefixChecked:
    """Safe to run twice; an entry that goes away meanwhile is left out."""
    listed = list_entries(task.root, task.prefix)
    report = PrefixChecked(listed.entries.num_rows)
    columns = (listed.entries[name].to_pylist() for name in ("checksum", "size", "bytes"))
    for checksum, size, there in zip(*columns, strict=True):
        report.bytes += there
        place = locate(task.root, checksum, size)
        try:
            holds = (checksum, size) if there == size and not task.bytes else checksum_at(place)
        except FileNotFoundError:  # expired meanwhile
            continue
        except OSError as error:
            repair = "look at the disk for errors, then check again"
            report.findings.append(RootFinding("unreadable", place, str(error), repair))
            continue
        report.bytes_read += holds[1] if task.bytes or there != size else 0
        if holds != (checksum, size):
            report.damaged_count += 1
            if len(report.damaged) < SHOWN:
                report.damaged.append(((checksum, size), _damaged(place, holds)))
    if listed.unknown:
        report.findings += _strange(task.root, task.prefix)
    return report


def _damaged(place: str, holds: tuple[str, int]) -> RootFinding:
    return RootFinding(
        "damaged",
        place,
        f"holds {holds[1]} bytes with xxh3_128 {holds[0]}",
        f"give it the name of what it holds, {content_name(*holds)}",
    )


def _strange(root: str, prefix: str) -> Iterator[RootFinding]:
    """Names that are none of this directory; at most as many as are shown."""
    directory = join(root, "files", prefix)
    reported = 0
    for name in Place(directory).list():
        content = content_of(name)
        if name.startswith(".") or (content and content[0][:2] == prefix) or reported == SHOWN:
            continue
        reported += 1
        if content is None:
            yield RootFinding("stray", join(directory, name), "is no content name", "nothing reads it: move it away")
        else:
            repair = f"move it to {locate(root, *content)}"
            yield RootFinding("misplaced", join(directory, name), "lies where nobody looks for it", repair)


def foreign(root: str, names: Iterable[str]) -> Iterator[RootFinding]:
    """Of the names directly in `files/`, those that are none of the 256 directories."""
    for name in names:
        if name not in PREFIXES and not name.startswith("."):
            yield RootFinding("stray", join(root, "files", name), "is no directory of kept files", "move it away")
