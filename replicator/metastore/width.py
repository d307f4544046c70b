"""The width of reading: the number of concurrent calls at which a metastore answers fastest. Pure.

An embedded server answers two calls at once hardly faster than four; one with a database across a network needs sixteen
before its rate stops growing. So the width is found while reading: wider and narrower ones are tried in turn, and the
narrowest is kept than which no wider one brings much. Answers that become slower or fail make it narrower at once.
"""

from __future__ import annotations

MOST = 16
FIRST = 2
EPOCH = 0.25  # seconds of one measurement, at least
ANSWERS = 4  # per call at a time, of one measurement, at least
WORTH = 0.25  # of the gain that a step would bring if calls did not hinder each other
SLOWER = 0.6  # of the rate that this width had
PATIENCE = 2, 16  # measurements before the next trial, after one that brought nothing: at first, and at last


class Width:
    """`now`: calls at once. One per metastore, whoever reads; not locked."""

    def __init__(self, first: int = FIRST, most: int = MOST) -> None:
        self.now, self._most = first, most
        self._rate: float | None = None  # at this width
        self._base: tuple[int, float] | None = None  # while another width is tried: the former one, and its rate
        self._up = True  # which way the next trial goes
        self._wait, self._patience = 0, PATIENCE[0]
        self.begin(0.0)

    def begin(self, at: float) -> None:
        """A walk begins at this second: nothing was measured between walks."""
        self._since, self._weight, self._answers = at, 0.0, 0

    def answered(self, at: float, weight: float) -> None:
        """At this second one item of work was read, of so much weight."""
        self._weight += weight
        self._answers += 1
        if at - self._since >= EPOCH and self._answers >= ANSWERS * self.now:
            self._judge(self._weight / (at - self._since))
            self.begin(at)

    def failed(self, at: float) -> None:
        """The server is away, or overloaded: half of the calls at once."""
        self.now, self._rate, self._base = max(1, self.now // 2), None, None
        self._rest()
        self.begin(at)

    def _judge(self, rate: float) -> None:
        if self._base is not None:
            self._choose(*self._base, rate)
            return
        if self._rate is not None and rate < SLOWER * self._rate:
            self._rate, self._up, self._wait = rate, False, 0
        self._rate = rate if self._rate is None else (self._rate + rate) / 2
        if self._wait > 0:
            self._wait -= 1
        else:
            self._try()

    def _try(self) -> None:
        """The next wider or narrower one."""
        if self.now == (self._most if self._up else 1):
            self._up = not self._up
        step = max(1, self.now // 2) if self._up else -max(1, self.now // 3)
        assert self._rate is not None
        self._base = self.now, self._rate
        self.now = min(self._most, self.now + step)

    def _choose(self, before: int, rate_before: float, rate: float) -> None:
        """Between the former width and the one that was tried: the wider one if it is worth it."""
        (narrow, slow), (wide, fast) = sorted([(before, rate_before), (self.now, rate)])
        best, best_rate = (wide, fast) if fast / slow - 1 >= WORTH * (wide / narrow - 1) else (narrow, slow)
        self._base, self._rate = None, best_rate
        if best == before:
            self.now, self._up = before, not self._up
            self._rest()
        else:
            self._patience = PATIENCE[0]
            self._try()

    def _rest(self) -> None:
        self._wait, self._patience = self._patience, min(2 * self._patience, PATIENCE[1])
