"""Drawings: the lag of a policy and the size of a root over time, and the timeline of a table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from math import inf
from typing import Any, Literal

from replicator.core.text import duration_text, size_text

TOP, RIGHT, BOTTOM = 14, 12, 36
STEPS = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86_400, 7 * 86_400, 30 * 86_400)
"""Seconds between lines of the lag's axis, which has at most four."""


RANGES = {"1h": 3600.0, "6h": 21_600.0, "1d": 86_400.0, "7d": 604_800.0, "30d": 2_592_000.0, "90d": 7_776_000.0}
"""Seconds of the times that charts show."""

Range = Literal["1h", "6h", "1d", "7d", "30d", "90d"]
DAY = RANGES["1d"]
ROWS = 48
"""Maximum values of a chart in its table."""

GAP = 4.0
"""Multiple of the usual interval of measurements above which a line is interrupted: nothing was measured."""

POINTS = 240
"""Maximum points of a line: each is the longest lag of its interval, so that peaks remain visible."""


@dataclass(frozen=True)
class LagPoint:
    """A lag at a time. at: seconds since 1970. seconds: of lag then; None: not known. ill: the run that ended then
    failed; text: how it ended."""

    at: float
    seconds: float | None
    ill: bool = False
    text: str = ""


@dataclass(frozen=True)
class Frame:
    """The size of a drawing, in units in which letters are as high as in `page.css`. left: space for the lag's axis.
    times: intervals between the times on the time axis."""

    width: int
    height: int
    left: int
    times: int


WIDE = Frame(1200, 252, 76, 6)
NARROW = Frame(360, 228, 68, 2)
"""For telephones: letters remain readable."""


@dataclass(frozen=True)
class Mark:
    """A line or a point of the drawing, with its text."""

    x: float
    y: float
    text: str
    ill: bool = False


@dataclass(frozen=True)
class Value:
    """A measured value: the strip of the drawing in which a pointer shows it; at: seconds since 1970."""

    x: float
    width: float
    at: float
    text: str


@dataclass(frozen=True)
class Chart:
    """A drawing. lines: points of SVG polylines, interrupted where the lag is not known. points: runs with a lag;
    ticks: all runs, below. across: lines of the lag's axis; below: times; objective: its height, or None. values: all
    that are drawn; rows: the longest of each part of the time, for a table."""

    lines: list[str]
    points: list[Mark]
    ticks: list[Mark]
    across: list[Mark]
    below: list[Mark]
    objective: Mark | None
    frame: Frame
    values: list[Value]
    rows: list[Value]

    @property
    def right(self) -> int:
        return self.frame.width - RIGHT

    @property
    def bottom(self) -> int:
        return self.frame.height - BOTTOM


def chart_of(
    samples: Sequence[LagPoint],
    runs: Sequence[LagPoint],
    objective: float | None,
    frame: Frame = WIDE,
    reach: float = DAY,
) -> Chart | None:
    """Draws the lag. samples: as it was measured; runs: at the ends of runs, drawn as points and ticks, and as the line
    if nothing was measured. reach: seconds before the last sample of which runs are drawn, also those before
    the lag was measured. Returns None for fewer than two times, for which a number suffices."""
    known = [each for each in samples if each.seconds is not None]
    measured = [each for each in runs if each.seconds is not None]
    return _drawn(samples if len(known) > 1 else measured, runs, objective, frame, LAG, reach, measured=len(known) > 1)


def size_chart_of(samples: Sequence[LagPoint], frame: Frame = WIDE) -> Chart | None:
    """Draws bytes, as `chart_of`."""
    return _drawn(samples, (), None, frame, SIZE)


def _lag_step(top: float) -> float:
    return next((each for each in STEPS if top / each <= 4), STEPS[-1] * int(top / STEPS[-1] / 4 + 1))


def _size_step(top: float) -> float:
    """Returns a power of two."""
    return float(1 << max(0, int(top / 4).bit_length()))


@dataclass(frozen=True)
class Unit:
    """The unit of an axis. step_of: from the highest value to the distance of an axis's lines; text: of a value."""

    step_of: Callable[[float], float]
    text: Callable[[float], str]


LAG, SIZE = Unit(_lag_step, duration_text), Unit(_size_step, lambda size: size_text(int(size)))


def _drawn(
    samples: Sequence[LagPoint],
    runs: Sequence[LagPoint],
    objective: float | None,
    frame: Frame,
    unit: Unit,
    reach: float = DAY,
    *,
    measured: bool = True,
) -> Chart | None:
    line = sorted(samples, key=lambda each: each.at)
    if len(line) < 2 or line[0].at == line[-1].at:
        return None
    last = line[-1].at
    first = min(line[0].at, *(each.at for each in runs if each.at >= last - reach), last)
    drawn = _thinned(line, first, last)
    ends = sorted((each for each in runs if first <= each.at <= last), key=lambda each: each.at)
    top = max(1.0, *(each.seconds or 0.0 for each in (*drawn, *ends)), objective or 0.0) * 1.1
    step = unit.step_of(top)

    def x(at: float) -> float:
        return round(frame.left + (at - first) / (last - first) * (frame.width - frame.left - RIGHT), 1)

    def y(seconds: float) -> float:
        return round(frame.height - BOTTOM - seconds / top * (frame.height - TOP - BOTTOM), 1)

    def clock(at: float) -> str:
        form = "%H:%M" if last - first < 2 * 86_400 else "%b %d"
        return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S" if last - first < 300 else form)

    parts = _parts(drawn, _gap(drawn) if measured else inf)
    return Chart(
        lines=[" ".join(f"{x(at)},{y(seconds)}" for at, seconds in part) for part in parts],
        points=[
            Mark(x(each.at), y(each.seconds), unit.text(each.seconds), each.ill)
            for each in ends
            if each.seconds is not None
        ],
        ticks=[Mark(x(each.at), frame.height - BOTTOM, each.text, each.ill) for each in ends],
        across=[Mark(frame.left, y(each * step), unit.text(each * step)) for each in range(int(top / step) + 1)],
        below=[
            Mark(x(at), frame.height - 8, clock(at))
            for at in (first + part * (last - first) / frame.times for part in range(frame.times + 1))
        ],
        objective=Mark(frame.left, y(objective), f"objective {duration_text(objective)}") if objective else None,
        frame=frame,
        values=_values(drawn, x, unit),
        rows=_values(_thinned(drawn, first, last, ROWS), x, unit),
    )


def _values(drawn: Sequence[LagPoint], x: Callable[[float], float], unit: Unit) -> list[Value]:
    """Returns the values, each with the strip from halfway to the one before to halfway to the next."""
    middles = [(x(before.at) + x(after.at)) / 2 for before, after in pairwise(drawn)]
    edges = [x(drawn[0].at), *middles, x(drawn[-1].at)]
    return [
        Value(
            round(left, 1),
            round(right - left, 1),
            each.at,
            "not known" if each.seconds is None else unit.text(each.seconds),
        )
        for each, (left, right) in zip(drawn, pairwise(edges), strict=True)
    ]


def _thinned(line: Sequence[LagPoint], first: float, last: float, parts: int = POINTS) -> list[LagPoint]:
    """Returns at most `parts` points, each the longest lag of its interval; an unknown one takes precedence."""
    if len(line) <= parts:
        return list(line)
    worst: dict[int, LagPoint] = {}
    for each in line:
        place = int((each.at - first) / (last - first) * (parts - 1))
        if place not in worst or _height(each) > _height(worst[place]):
            worst[place] = each
    return list(worst.values())


def _height(point: LagPoint) -> float:
    return float("inf") if point.seconds is None else point.seconds


def _parts(line: Sequence[LagPoint], gap: float) -> list[list[tuple[float, float]]]:
    """Splits a line at unknown values, and where none was measured for longer than `gap`."""
    parts: list[list[tuple[float, float]]] = [[]]
    for before, each in zip([None, *line], line, strict=False):
        if each.seconds is None or (before and each.at - before.at > gap):
            parts.append([])
        if each.seconds is not None:
            parts[-1].append((each.at, each.seconds))
    return [part for part in parts if part]


def _gap(line: Sequence[LagPoint]) -> float:
    """Returns the seconds between measurements above which the values between are unknown."""
    return GAP * sorted(after.at - before.at for before, after in pairwise(line))[(len(line) - 1) // 2]


# ---- lifeline --------------------------------------------------------------------------------------------------------
# A table's timeline as a drawing: a lane for each kind of entry, on one time axis. Pure.


LIFE_WIDTH, LIFE_LEFT, LIFE_RIGHT, LANE, LIFE_TOP, LIFE_BOTTOM = 720, 104, 14, 26, 8, 26

LANES = {
    "record": "changes",
    "run": "runs",
    "dump": "dumps",
    "hold": "holds",
    "verification": "comparisons",
    "removal": "removals",
}
"""Kinds of a timeline's entries from top to bottom, with their labels."""

ILL = frozenset({"differs", "failed"})
TIMES = 4


@dataclass(frozen=True)
class Dot:
    """An entry in the drawing. text: its tooltip."""

    x: float
    y: float
    text: str
    ill: bool


@dataclass(frozen=True)
class Label:
    """A text with its start position."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Lifeline:
    """The drawing. lanes: with their names; below: times, in UTC."""

    lanes: list[Label]
    dots: list[Dot]
    below: list[Label]
    height: int
    width: int = LIFE_WIDTH
    left: int = LIFE_LEFT
    right: int = LIFE_WIDTH - LIFE_RIGHT


def lifeline_of(entries: Sequence[Mapping[str, Any]]) -> Lifeline | None:
    """Draws a timeline. entries: as the API returns them. Returns None for fewer than two times, for which a list
    suffices. Of entries at one position one is drawn: failures first."""
    times = [datetime.fromisoformat(each["at"]).timestamp() for each in entries]
    if not times or min(times) == max(times):
        return None
    first, last = min(times), max(times)
    kinds = [kind for kind in LANES if any(each["kind"] == kind for each in entries)]
    heights = {kind: LIFE_TOP + LANE * number + LANE / 2 for number, kind in enumerate(kinds)}

    def x(at: float) -> float:
        return round(LIFE_LEFT + (at - first) / (last - first) * (LIFE_WIDTH - LIFE_LEFT - LIFE_RIGHT), 1)

    drawn: dict[tuple[str, int], Dot] = {}
    for at, each in zip(times, entries, strict=True):
        ill = _is_ill(each)
        place = (each["kind"], int(x(at) / 3))
        if each["kind"] in heights and (place not in drawn or ill):
            drawn[place] = Dot(x(at), heights[each["kind"]], f"{each['at']}: {each['what']}", ill)
    height = LIFE_TOP + LANE * len(kinds) + LIFE_BOTTOM
    form = "%H:%M:%S" if last - first < 300 else "%H:%M" if last - first < 2 * 86_400 else "%b %d"
    ticks = [first + part * (last - first) / TIMES for part in range(TIMES + 1)]
    return Lifeline(
        lanes=[Label(LIFE_LEFT - 12, heights[kind], LANES[kind]) for kind in kinds],
        dots=sorted(drawn.values(), key=lambda each: (each.y, each.x)),
        below=[Label(x(at), height - 8, datetime.fromtimestamp(at, UTC).strftime(form)) for at in ticks],
        height=height,
    )


def _is_ill(entry: Mapping[str, Any]) -> bool:
    said = str(entry["text"]) if entry["kind"] == "run" else str(entry["what"])
    return any(word in said.replace(":", " ").split() for word in ILL)
