"""The pace of writing: over how many connections changes go at once, found by measuring while they do. Pure.

A server with a database across a network wants sixteen; one whose writers collide and sleep wants one. Two widths
contend, the wider about twice the other, in four windows of calls: narrow, wide, wide, narrow, so that a server that
only gets warmer or busier favours neither. The wide one wins by being a tenth faster. A contest that changes nothing is
followed by one with the other neighbour, after a pause that is twice as long each time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

GAIN = 1.1  # times as fast as the narrow width, to be worth the connections
SECONDS = 0.25  # of a window, at least
CALLS = 4  # of a window, at least, on each of its connections
PAUSE, LONGEST_PAUSE = 8, 1024  # windows between contests
_WIDE = (False, True, True, False)  # the windows of a contest


@dataclass(frozen=True)
class Window:
    """Calls over one width: how many, what they carried (in the caller's unit), and over how many seconds."""

    calls: int = 0
    weight: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Pace:
    """The width that calls go over, at most `most`, and how the next is found. `settled`: the best so far; `other`: the
    width that it contends with; `rates`: of the windows of the contest so far; `waits`: windows until a contest begins;
    `pause`: how many will be between the next two."""

    most: int
    settled: int = 1
    other: int = 2
    rates: tuple[float, ...] = ()
    waits: int = 0
    pause: int = PAUSE

    @property
    def contends(self) -> bool:
        """Whether this window counts for a contest: none of its calls may last into the next."""
        return self.most > 1 and not self.waits

    @property
    def width(self) -> int:
        """Over how many connections the calls of this window go."""
        if not self.contends:
            return self.settled
        return (max if _WIDE[len(self.rates)] else min)(self.settled, self.other)

    def is_full(self, window: Window) -> bool:
        """Whether a window tells enough."""
        return window.calls >= CALLS * self.width and window.seconds >= SECONDS

    def after(self, window: Window) -> Pace:
        """The pace of the next window."""
        if not self.contends:
            return replace(self, waits=max(0, self.waits - 1))
        rates = (*self.rates, window.weight / window.seconds)
        if len(rates) < len(_WIDE):
            return replace(self, rates=rates)
        wide = sum(rate for rate, is_wide in zip(rates, _WIDE, strict=True) if is_wide)
        is_worth_it = wide >= GAIN * (sum(rates) - wide)
        return self._won((max if is_worth_it else min)(self.settled, self.other))

    def _won(self, width: int) -> Pace:
        """A width that has just won goes on in the same direction at once, else the other neighbour comes, later."""
        wider, narrower = min(2 * width, self.most), width // 2
        up = self.other > self.settled if width != self.settled else self.other < self.settled
        other = wider if (up and wider > width) or not narrower else narrower
        if width != self.settled and (other > width) == (width > self.settled):
            return Pace(self.most, width, other)
        return Pace(self.most, width, other, (), self.pause, min(2 * self.pause, LONGEST_PAUSE))
