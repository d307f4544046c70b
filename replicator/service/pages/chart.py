"""The lag of a policy and the size of a root over time, as points of a drawing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from replicator.core.text import duration_text, size_text

TOP, RIGHT, BOTTOM = 14, 12, 36
STEPS = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86_400, 7 * 86_400, 30 * 86_400)
"""Seconds between lines of the lag's axis, which has at most four."""


DAY = 86_400.0
"""Seconds: runs of the last day are drawn, including those before the lag was measured."""

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


WIDE = Frame(720, 228, 64, 4)
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
class Chart:
    """A drawing. lines: points of SVG polylines, interrupted where the lag is not known. points: runs with a lag;
    ticks: all runs, below. across: lines of the lag's axis; below: times; objective: its height, or None."""

    lines: list[str]
    points: list[Mark]
    ticks: list[Mark]
    across: list[Mark]
    below: list[Mark]
    objective: Mark | None
    frame: Frame

    @property
    def right(self) -> int:
        return self.frame.width - RIGHT

    @property
    def bottom(self) -> int:
        return self.frame.height - BOTTOM


def chart_of(
    samples: Sequence[LagPoint], runs: Sequence[LagPoint], objective: float | None, frame: Frame = WIDE
) -> Chart | None:
    """Draws the lag. samples: as it was measured; runs: at the ends of runs, drawn as points and ticks, and as the line
    if nothing was measured. Returns None for fewer than two times, for which a number suffices."""
    known = [each for each in samples if each.seconds is not None]
    measured = [each for each in runs if each.seconds is not None]
    return _drawn(samples if len(known) > 1 else measured, runs, objective, frame, LAG)


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
    samples: Sequence[LagPoint], runs: Sequence[LagPoint], objective: float | None, frame: Frame, unit: Unit
) -> Chart | None:
    line = sorted(samples, key=lambda each: each.at)
    if len(line) < 2 or line[0].at == line[-1].at:
        return None
    last = line[-1].at
    first = min(line[0].at, *(each.at for each in runs if each.at >= last - DAY), last)
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

    return Chart(
        lines=[" ".join(f"{x(at)},{y(seconds)}" for at, seconds in part) for part in _parts(drawn)],
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
    )


def _thinned(line: Sequence[LagPoint], first: float, last: float) -> list[LagPoint]:
    """Returns at most POINTS points, each the longest lag of its interval; an unknown one takes precedence."""
    if len(line) <= POINTS:
        return list(line)
    worst: dict[int, LagPoint] = {}
    for each in line:
        place = int((each.at - first) / (last - first) * (POINTS - 1))
        if place not in worst or _height(each) > _height(worst[place]):
            worst[place] = each
    return list(worst.values())


def _height(point: LagPoint) -> float:
    return float("inf") if point.seconds is None else point.seconds


def _parts(line: Sequence[LagPoint]) -> list[list[tuple[float, float]]]:
    """Splits a line at unknown values."""
    parts: list[list[tuple[float, float]]] = [[]]
    for each in line:
        if each.seconds is None:
            parts.append([])
        else:
            parts[-1].append((each.at, each.seconds))
    return [part for part in parts if part]
