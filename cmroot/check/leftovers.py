"""Leftovers of interrupted runs. None is damage; each has a later run that clears it up."""

from __future__ import annotations

from collections.abc import Iterator

from cmroot.check.finding import RootFinding
from cmroot.log.captured import finished
from cmroot.store.place import Place

_LEFT = (
    ("incoming", "copy-", "part of a copy", "the next capture removes it"),
    ("incoming", "probe-", "a try whether links work", "the next capture removes it"),
    ("incoming", "recycle-", "files that were being taken into the root", "the next capture files them"),
    ("incoming", "damaged-", "a kept file that was being renamed", "the next capture files it under what it holds"),
    ("recycling", "", "files that were being taken into the root", "the next capture files them"),
    ("taking", "", "a taking whose outcome is not known", "who began it settles it at the next start"),
    ("taken", "", "files that were taken before an event", "the capture that reads the event records them"),
    ("expiring", "", "a plan of an expiry", "the next expiry discards it"),
)


def leftovers(root: str) -> Iterator[RootFinding]:
    """What runs have left on their way, or runs that are at work now have there."""
    for directory, beginning, what, then in _LEFT:
        above = Place(root) / directory
        for name in above.list():
            if name.startswith(beginning) and not name.endswith(".origin"):
                yield RootFinding("leftover", str(above / name), f"{what}, of a killed run or one at work", then)
    there, covered = finished(root)
    known = {segment.place for segment in (*there, *(segment for segment, _ in covered))}
    log = Place(root) / "log"
    for name in log.list():
        if (place := str(log / name)) not in known:
            yield RootFinding(
                "leftover",
                place,
                "an unfinished segment, of a killed run or one at work",
                "the next capture removes it",
            )
