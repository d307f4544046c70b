"""The lag of a policy over time, as points of a drawing. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from replicator.text.quantity import duration_text

WIDTH, HEIGHT = 720, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 14, 28
STEPS = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86_400, 7 * 86_400, 30 * 86_400)
"""Seconds between lines of the lag's axis, at most four of them."""


@dataclass(frozen=True)
class LagPoint:
    """at: seconds since 1970. seconds: of lag then. ill: the run that ended then failed."""

    at: float
    seconds: float
    ill: bool = False


@dataclass(frozen=True)
class Mark:
    """A line or a point of the drawing, with its text."""

    x: float
    y: float
    text: str
    ill: bool = False


@dataclass(frozen=True)
class Chart:
    """line: points of an SVG polyline. across: lines of the lag's axis; below: times; objective: its height, or
    None."""

    line: str
    points: list[Mark]
    across: list[Mark]
    below: list[Mark]
    objective: Mark | None
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM


def chart_of(points: Sequence[LagPoint], objective: float | None) -> Chart | None:
    """None for fewer than two points: a number says that."""
    drawn = sorted(points, key=lambda each: each.at)
    if len(drawn) < 2 or drawn[0].at == drawn[-1].at:
        return None
    first, last = drawn[0].at, drawn[-1].at
    top = max(1.0, *(each.seconds for each in drawn), objective or 0.0) * 1.1
    step = next((each for each in STEPS if top / each <= 4), STEPS[-1] * int(top / STEPS[-1] / 4 + 1))

    def x(at: float) -> float:
        return round(LEFT + (at - first) / (last - first) * (WIDTH - LEFT - RIGHT), 1)

    def y(seconds: float) -> float:
        return round(HEIGHT - BOTTOM - seconds / top * (HEIGHT - TOP - BOTTOM), 1)

    def clock(at: float) -> str:
        form = "%H:%M" if last - first < 2 * 86_400 else "%b %d"
        return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S" if last - first < 300 else form)

    marks = [Mark(x(each.at), y(each.seconds), duration_text(each.seconds), each.ill) for each in drawn]
    return Chart(
        line=" ".join(f"{each.x},{each.y}" for each in marks),
        points=marks,
        across=[Mark(LEFT, y(each * step), duration_text(each * step)) for each in range(int(top / step) + 1)],
        below=[Mark(x(at), HEIGHT - 8, clock(at)) for at in (first + part * (last - first) / 4 for part in range(5))],
        objective=Mark(LEFT, y(objective), f"objective {duration_text(objective)}") if objective else None,
    )
