"""A discrete-event simulation: processes, which wait until a time, and stations, which serve jobs first come, first
served. Nothing here is about replication; nothing is random."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

Process = Generator[float, float, None]
"""Yields the time at which it continues, and is sent it. The first time is sent, too: 0."""


def simulate(processes: Iterable[Process], until: float) -> None:
    """Runs all processes up to a time, in the order of their times, then of their numbers."""
    numbers = itertools.count()
    waiting = list[tuple[float, int, Process]]()
    for each in processes:
        heapq.heappush(waiting, (next(each), next(numbers), each))
    while waiting and waiting[0][0] <= until:
        now, _, process = heapq.heappop(waiting)
        try:
            later = process.send(now)
        except StopIteration:
            continue
        assert later >= now, (later, now)
        heapq.heappush(waiting, (later, next(numbers), process))
    for _, _, process in waiting:
        process.close()


@dataclass
class Station:
    """So many servers with one queue. Jobs are given in the order of their arrival. A limit of amounts per second is a
    station of one server, whose jobs take amount / limit."""

    name: str
    servers: int = 1
    busy: float = 0.0  # server seconds
    waited: float = 0.0  # seconds of all jobs
    jobs: int = 0
    hours: dict[int, float] = field(default_factory=dict)  # server seconds asked for, by the hour of arrival
    _free: list[float] = field(default_factory=list)

    def serve(self, now: float, seconds: float) -> float:
        """The time at which this job ends."""
        if not self._free:
            self._free = [0.0] * self.servers
        begin = max(now, self._free[0])
        heapq.heapreplace(self._free, begin + seconds)
        self.jobs += 1
        self.busy += seconds
        self.waited += begin - now
        hour = int(now // 3600)
        self.hours[hour] = self.hours.get(hour, 0.0) + seconds
        return begin + seconds

    def split(self, now: float, seconds: float, parts: int) -> float:
        """The time at which a job ends that consists of equal, concurrent parts."""
        return max(self.serve(now, seconds / parts) for _ in range(parts))

    def share(self, seconds: float) -> float:
        """Of all its servers' time, how much was asked for."""
        return self.busy / (self.servers * seconds)

    def busiest_hour(self) -> float:
        return max(self.hours.values(), default=0.0) / (self.servers * 3600)
