"""How figures move: whether a lag grows, when a disk will be full. Of this server, since it began."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

POINTS = 500
"""Of one figure; with more, every second one is forgotten."""


@dataclass
class Trend:
    """One figure's past, for at most `seconds`. Times are seconds."""

    seconds: float
    _points: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, at: float, value: float) -> None:
        """A point that is not newer than the last one is none."""
        if self._points and at <= self._points[-1][0]:
            return
        self._points.append((at, value))
        while self._points[0][0] < at - self.seconds:
            self._points.popleft()
        if len(self._points) > POINTS:
            self._points = deque(list(self._points)[::2])

    @property
    def span(self) -> float:
        """Seconds from the oldest point to the newest."""
        return self._points[-1][0] - self._points[0][0] if self._points else 0.0

    @property
    def slope(self) -> float:
        """Per second, from the oldest point to the newest; 0.0 with less than two."""
        if not self.span:
            return 0.0
        return (self._points[-1][1] - self._points[0][1]) / self.span

    def until(self, value: float) -> float | None:
        """Seconds until it is there, if it goes on so; None: it never is."""
        left, slope = value - (self._points[-1][1] if self._points else value), self.slope
        return left / slope if slope and left / slope >= 0 else None
