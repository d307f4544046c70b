"""How often one client may ask: a bucket of requests each, which fills steadily. Memory is bounded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

CLIENTS = 10_000
"""That are remembered; the one that has not asked for longest is forgotten first, and begins with a full bucket."""


@dataclass
class Rates:
    """per_second: requests for long; burst: at once. One thread uses it."""

    per_second: float
    burst: int
    clients: int = CLIENTS
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def admit(self, client: str, now: float) -> float:
        """0.0: it may ask now, and has. Otherwise: in so many seconds. now: of a monotonic clock."""
        left, seen = self._left.pop(client, (float(self.burst), now))
        left = min(float(self.burst), left + (now - seen) * self.per_second)
        wait = 0.0 if left >= 1 else (1 - left) / self.per_second
        self._left[client] = (left if wait else left - 1, now)
        if len(self._left) > self.clients:
            self._left.popitem(last=False)
        return wait

    def __len__(self) -> int:
        return len(self._left)
