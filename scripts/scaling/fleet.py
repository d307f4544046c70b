"""The fleet: what it has, what a piece of work costs, what follows for the stations, and its simulation."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from scaling.simulation import Process, Station, simulate

DAY, HOUR, MB = 86_400.0, 3_600.0, 1e6
GETS, PUTS = 5_500, 3_500  # requests a second of one prefix of a bucket: Amazon S3's limits
FULL = 0.7  # of a station's time at the peak, for which it is sized
PIECE = 30.0  # seconds of one executor that a copy takes at least before it is split further
CAUGHT_UP = HOUR  # of lag


@dataclass(frozen=True)
class Prices:
    """Seconds. Of one core: `driver` of the tool's process, `source` and `target` of a metastore's server."""

    start: float = 0.0  # of a process: Python and its imports
    other_event: float = 0.00002  # of the driver, for an event of other databases: `backlog`, 1,000,000 events
    other_source: float = 0.00002  # the same, of the source
    capture_run: float = 0.0
    capture_event: float = 0.0
    capture_source: float = 0.0  # an event
    scan_table: float = 0.00063  # of the source, for a table without a change: `tables`, idle
    dump_run: float = 0.0
    dump_event: float = 0.0
    load_run: float = 0.0
    load_event: float = 0.0
    load_target: float = 0.0  # an event
    capture_partition: float = 0.00034  # capture and dump of a bootstrap: `bootstrap`, full
    load_partition: float = 0.00164  # of the target: `load`, small
    file: float = 0.1  # of a slot, for each reading or writing: three requests of about 30 ms; assumed
    slot: float = 85 * MB  # bytes a second of one stream: Amazon's guide to S3; assumed

    def run(self) -> float:
        """Of the driver, without events: each run of a policy is a process, as under `replicator serve`."""
        return self.start + self.capture_run + self.dump_run + self.load_run

    def event(self) -> float:
        """Of the driver, for an event of the policy's databases."""
        return self.capture_event + self.dump_event + self.load_event


@dataclass(frozen=True)
class Fleet:
    """Rates are those of a day. The shares of metastores fall as 1/n."""

    tables: int = 800_000
    stored: float = 300e15
    partitions: int = 100  # of a table; assumed
    events: float = 10e6
    changed: float = 8e15
    file_size: float = 256 * MB
    metastores: int = 40
    policies: int = 10  # of each metastore, with equal shares
    peak: float = 1.6  # the busiest moment of a day to its mean
    run_every: float = 900.0  # a policy's schedule
    list_every: float = DAY  # all files of S3: with its notifications once a day, else in each run
    slots: int = 16  # tasks of an executor
    spread: int = 64  # executors of one run, at most
    connections: int = 8  # of one run to each metastore
    server_cores: int = 8
    captures_read: bool = True  # a capture reads new files for their checksums
    loads_pass: int = 3  # a load reads, writes and reads back

    def shares(self) -> list[float]:
        weights = [1 / (number + 1) for number in range(self.metastores)]
        return [each / sum(weights) for each in weights]

    def listings(self) -> float:
        """LIST requests for all files of the largest metastore."""
        return self.stored / self.file_size * self.shares()[0] / 1000

    def scanned(self, prices: Prices, share: float) -> float:
        """Seconds of the source that one run asks for to compare all tables of its policy."""
        return self.tables * share / self.policies * prices.scan_table

    def passes(self) -> int:
        return self.loads_pass + self.captures_read

    def copying(self, prices: Prices, size: float, passes: int) -> float:
        """Executor seconds of so many bytes."""
        return passes * (size / prices.slot + size / self.file_size * prices.file) / self.slots


@dataclass
class Demand:
    """Mean seconds of servers that a second of the fleet asks for, by station; of the largest metastore for those that
    each metastore has."""

    of: dict[str, float]

    def sized(self, peak: float) -> dict[str, int]:
        return {name: math.ceil(mean * peak / FULL) for name, mean in self.of.items()}


def demand(fleet: Fleet, prices: Prices) -> Demand:
    events, size, largest = fleet.events / DAY, fleet.changed / DAY, fleet.shares()[0]
    files, runs = size / fleet.file_size, fleet.policies / fleet.run_every
    others = events * (fleet.policies - 1)  # each policy reads all events of its metastore
    source = largest * (events * prices.capture_source + others * prices.other_source)
    return Demand(
        {
            "driver cores": runs * fleet.metastores * prices.run()
            + events * prices.event()
            + others * prices.other_event,
            "executors": fleet.copying(prices, size, fleet.passes()),
            "source server cores": source + runs * fleet.scanned(prices, largest),
            "target server cores": events * largest * prices.load_target,
            "GET of a prefix": (
                files * largest * (1 + fleet.captures_read) + fleet.listings() / max(fleet.list_every, fleet.run_every)
            )
            / GETS,
            "PUT of a prefix": files * largest / PUTS,
        }
    )


@dataclass
class Run:
    """One run of a policy: when it began and ended, its events, and the age of the oldest one at the end."""

    policy: int
    began: float
    ended: float
    events: float
    lag: float


@dataclass
class Result:
    runs: list[Run] = field(default_factory=list)
    stations: dict[str, list[Station]] = field(default_factory=dict)

    def lags(self, since: float = 0.0) -> list[float]:
        return sorted(run.lag for run in self.runs if run.began >= since)

    def spans(self) -> list[tuple[float, float]]:
        return [(run.began, run.ended) for run in self.runs]

    def caught_up(self, after: float) -> float | None:
        """Seconds from then on until each policy ended a run with little lag; None: one did not."""
        ends = dict[int, float]()
        for run in self.runs:
            if run.ended > after and run.lag < CAUGHT_UP:
                ends[run.policy] = min(run.ended, ends.get(run.policy, math.inf))
        late = {run.policy for run in self.runs if run.ended > after} - ends.keys()
        return None if late or not ends else max(ends.values()) - after

    def busiest(self) -> list[tuple[float, str]]:
        """Each kind of station's largest share of an hour, of the one that is asked most."""
        found = [(max(each.busiest_hour() for each in some), name) for name, some in self.stations.items()]
        return sorted(found, reverse=True)


def concurrent(spans: Sequence[tuple[float, float]], since: float, until: float) -> tuple[float, int]:
    """How many of these spans are open in that time: the mean, and the most."""
    inside = [(max(begin, since), min(end, until)) for begin, end in spans if end > since and begin < until]
    changes = sorted([(begin, 1) for begin, _ in inside] + [(end, -1) for _, end in inside])
    most = max(itertools.accumulate(change for _, change in changes), default=0)
    return sum(end - begin for begin, end in inside) / (until - since), most


class Simulation:
    """Policies of metastores; each runs by its schedule: capture, dump, load.

    servers: of each kind of station, as `Demand.sized` gives them. stopped: from and until when no run begins, while
    the source's writers go on."""

    def __init__(
        self,
        fleet: Fleet,
        prices: Prices,
        servers: dict[str, int],
        *,
        seed: int = 1,
        stopped: tuple[float, float] = (math.inf, math.inf),
    ) -> None:
        self._fleet, self._prices, self._stopped = fleet, prices, stopped
        self._dice, self.result = random.Random(seed), Result()
        self._drivers = Station("driver cores", servers["driver cores"])
        self._executors = Station("executors", servers["executors"])
        each = range(fleet.metastores)
        self._sources = [Station("source server cores", fleet.server_cores) for _ in each]
        self._targets = [Station("target server cores", fleet.server_cores) for _ in each]
        self._gets = [Station("GET of a prefix") for _ in each]
        self._puts = [Station("PUT of a prefix") for _ in each]
        groups: Sequence[list[Station]] = (
            [self._drivers], [self._executors], self._sources, self._targets, self._gets, self._puts
        )  # fmt: skip
        self.result.stations = {group[0].name: group for group in groups}

    def run(self, seconds: float) -> Result:
        simulate([self._policy(number) for number in range(self._fleet.metastores * self._fleet.policies)], seconds)
        return self.result

    def written(self, share: float, since: float, until: float) -> float:
        """Events of a metastore between two times; noon is the busiest."""
        swing, turn = self._fleet.peak - 1, 2 * math.pi / DAY
        wave = swing / turn * (math.sin(turn * since) - math.sin(turn * until))
        return max(0.0, share * self._fleet.events / DAY * (until - since + wave))

    def _begin(self, now: float) -> float:
        return self._stopped[1] if self._stopped[0] <= now < self._stopped[1] else now

    def _policy(self, policy: int) -> Process:
        fleet, prices = self._fleet, self._prices
        number, last, listed = policy % fleet.metastores, 0.0, -self._dice.uniform(0, fleet.list_every)
        share = fleet.shares()[number]
        now = yield self._dice.uniform(0, fleet.run_every)
        while True:
            began = now = yield self._begin(now)
            written = self.written(share, last, now)
            events = written / fleet.policies
            others = written - events
            reading = events * prices.capture_source + others * prices.other_source
            now = yield self._sources[number].serve(now, reading + fleet.scanned(prices, share))
            if began >= listed + fleet.list_every:
                requests = fleet.listings() * share / fleet.shares()[0] / fleet.policies
                now, listed = (yield self._gets[number].serve(now, requests / GETS)), began
            deciding = events * prices.event() + others * prices.other_event
            now = yield self._drivers.serve(now, prices.run() + deciding)
            if fleet.captures_read:
                now = yield self._copied(number, now, events, 1, gets=1, puts=0)
            now = yield self._copied(number, now, events, fleet.loads_pass, gets=1, puts=1)
            now = yield self._targets[number].split(now, events * prices.load_target, fleet.connections)
            self.result.runs.append(Run(policy, began, now, events, now - last))
            last = began
            now = max(now, began + fleet.run_every)

    def _copied(self, number: int, now: float, events: float, passes: int, *, gets: int, puts: int) -> float:
        """The end of so many passes over the files of these events: executors, within the limits of the store."""
        fleet = self._fleet
        size = events / fleet.events * fleet.changed
        files = size / fleet.file_size
        seconds = fleet.copying(self._prices, size, passes)
        parts = max(1, min(fleet.spread, math.ceil(seconds / PIECE)))
        ends = [self._executors.split(now, seconds, parts)]
        ends += [self._gets[number].serve(now, files * gets / GETS)] if gets else []
        ends += [self._puts[number].serve(now, files * puts / PUTS)] if puts else []
        return max(ends)
