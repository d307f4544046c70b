"""A table's life as a drawing: a lane for each kind of what happened, on one line of time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

WIDTH, LEFT, RIGHT, LANE, TOP, BOTTOM = 720, 104, 14, 26, 8, 26

LANES = {
    "record": "changes",
    "run": "runs",
    "dump": "dumps",
    "hold": "holds",
    "verification": "comparisons",
    "removal": "removals",
}
"""Kinds of a timeline's entries, from above, as a person reads them."""

ILL = frozenset({"differs", "failed"})
TIMES = 4


@dataclass(frozen=True)
class Dot:
    """text: what it is, for a pointer that rests there."""

    x: float
    y: float
    text: str
    ill: bool


@dataclass(frozen=True)
class Label:
    """A text with where it begins."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Lifeline:
    """lanes: with their names; below: times, in UTC."""

    lanes: list[Label]
    dots: list[Dot]
    below: list[Label]
    height: int
    width: int = WIDTH
    left: int = LEFT
    right: int = WIDTH - RIGHT


def lifeline_of(entries: Sequence[Mapping[str, Any]]) -> Lifeline | None:
    """entries: of a timeline, as the API gives them. None for fewer than two times: a list says that. Of what falls on
    one place, one is drawn: what went wrong before what did not."""
    times = [datetime.fromisoformat(each["at"]).timestamp() for each in entries]
    if not times or min(times) == max(times):
        return None
    first, last = min(times), max(times)
    kinds = [kind for kind in LANES if any(each["kind"] == kind for each in entries)]
    heights = {kind: TOP + LANE * number + LANE / 2 for number, kind in enumerate(kinds)}

    def x(at: float) -> float:
        return round(LEFT + (at - first) / (last - first) * (WIDTH - LEFT - RIGHT), 1)

    drawn: dict[tuple[str, int], Dot] = {}
    for at, each in zip(times, entries, strict=True):
        ill = _is_ill(each)
        place = (each["kind"], int(x(at) / 3))
        if each["kind"] in heights and (place not in drawn or ill):
            drawn[place] = Dot(x(at), heights[each["kind"]], f"{each['at']}: {each['what']}", ill)
    height = TOP + LANE * len(kinds) + BOTTOM
    form = "%H:%M:%S" if last - first < 300 else "%H:%M" if last - first < 2 * 86_400 else "%b %d"
    ticks = [first + part * (last - first) / TIMES for part in range(TIMES + 1)]
    return Lifeline(
        lanes=[Label(LEFT - 12, heights[kind], LANES[kind]) for kind in kinds],
        dots=sorted(drawn.values(), key=lambda each: (each.y, each.x)),
        below=[Label(x(at), height - 8, datetime.fromtimestamp(at, UTC).strftime(form)) for at in ticks],
        height=height,
    )


def _is_ill(entry: Mapping[str, Any]) -> bool:
    said = str(entry["text"]) if entry["kind"] == "run" else str(entry["what"])
    return any(word in said.replace(":", " ").split() for word in ILL)
