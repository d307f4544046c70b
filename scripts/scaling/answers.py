"""The tables of docs/scaling.md: the model's check against recorded runs, and what the fleet needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.measure import Outcome, median, quantile

from scaling import costs, fleet
from scaling.fleet import DAY, HOUR, Fleet, Prices, Result, Simulation

RATES = (5e6, 10e6)  # events a day
STOPPED = (1.5 * DAY, 4 * DAY)  # from Friday noon until Monday 00:00: 60 hours
UNITS = {"driver": "driver cores", "source": "source server cores", "target": "target server cores"}


def price(increments: Sequence[costs.Increment], events: int = 0) -> Prices:
    """Costs of increments of this size; 0: of the largest."""
    found = costs.calibrated(increments, events or max(each.events for each in increments))

    def each(part: str) -> float:
        return sum(found[step, part].each for step in costs.STEPS)

    return Prices(
        capture_run=found["capture", "driver"].fixed,
        capture_event=found["capture", "driver"].each,
        capture_source=each("source"),
        dump_run=found["dump", "driver"].fixed,
        dump_event=found["dump", "driver"].each,
        load_run=found["load", "driver"].fixed,
        load_event=found["load", "driver"].each,
        load_target=each("target"),
    )


# ---- check ---------------------------------------------------------------------------------------------------------


def check(increments: Sequence[costs.Increment]) -> Outcome:
    """One run with so many events, simulated with the costs of the smallest one."""
    smallest = min(each.events for each in increments if each.events)
    scan = median([each.of("source") for each in increments if not each.events])
    prices = replace(price(increments, smallest), scan_table=scan)
    outcome = Outcome(["events", "CPU seconds of", "predicted", "measured", "error"])
    for size in sorted({each.events for each in increments if each.events}):
        some = [each for each in increments if each.events == size]
        predicted = predict(prices, size)
        for part, station in UNITS.items():
            seen = median([each.of(part) for each in some])
            error = f"{predicted[station] / seen - 1:+.0%}"
            outcome.rows.append(
                [f"{size:,}", station, f"{predicted[station]:.2f}", f"{seen:.2f}", "" if size == smallest else error]
            )
    return outcome


def predict(prices: Prices, events: float) -> dict[str, float]:
    """Busy seconds by station of one run with so many events, after a day without runs."""
    one = Fleet(tables=1, stored=0.0, events=events, changed=0.0, metastores=1, policies=1, peak=1.0, run_every=DAY)
    servers = {"driver cores": 1, "executors": 1}
    result = Simulation(one, prices, servers, stopped=(0.0, DAY)).run(1.9 * DAY)
    assert len(result.runs) == 1, result
    return {name: some[0].busy for name, some in result.stations.items()}


# ---- fleet ---------------------------------------------------------------------------------------------------------


def sizes_of(prices: Prices) -> Outcome:
    """Offered load by station, and the servers for it."""
    outcome = Outcome(["station", *(f"{rate / 1e6:.0f} million events a day: mean, sized" for rate in RATES)])
    found = [fleet.demand(replace(Fleet(), events=rate), prices) for rate in RATES]
    for name in found[0].of:
        cells = [f"{each.of[name]:,.2f}, {each.eventsd(Fleet().peak)[name]:,}" for each in found]
        outcome.rows.append([name, *cells])
    here, executors = Fleet(), _sized(Fleet(), prices)["executors"]
    partitions = here.tables * here.shares()[0] * here.partitions
    copied = here.copying(prices, here.stored, here.passes()) / executors / DAY
    hours = [partitions * each / HOUR for each in (prices.capture_partition, prices.load_partition)]
    outcome.remarks.append(
        f"A bootstrap of everything: {copied:.0f} days of all executors of the second column; of the largest metastore,"
        f" with {partitions / 1e6:.0f} million partitions, {hours[0]:.1f} hours of one driver, and {hours[1]:.1f} hours"
        f" of one core of the target's server. A complete scan of its files by listing: "
        f"{here.listings():,.0f} LIST requests."
    )
    return outcome


def days(prices: Prices, seed: int) -> Outcome:
    """Two days; the second is shown."""
    outcome = Outcome(["", *(f"{rate / 1e6:.0f} million events a day" for rate in RATES)])
    results = []
    for rate in RATES:
        here = replace(Fleet(), events=rate)
        results.append((here, Simulation(here, prices, _sized(here, prices), seed=seed).run(2 * DAY)))
    rows: dict[str, list[str]] = {}
    for here, result in results:
        loaded = {run.policy for run in result.runs}
        lags, files = result.lags(DAY), here.changed / here.file_size / DAY * here.shares()[0]
        mean, most = fleet.concurrent(result.spans(), DAY, 2 * DAY)
        cells = {
            "policies; of them running, mean and most": f"{len(loaded)}; {mean:.1f}, {most}",
            "connections to sources and to targets, most": f"{here.connections * most:,} each",
            "requests a second, largest metastore: GET, PUT": f"{files * 2:,.0f}, {files:,.0f}",
            "lag, p50/p99/longest": "/".join(f"{_minutes(quantile(lags, share))}" for share in (0.5, 0.99, 1)),
            "busiest hour": ", ".join(f"{name} {share:.0%}" for share, name in result.busiest()[:3]),
        }
        for name, cell in cells.items():
            rows.setdefault(name, []).append(cell)
    outcome.rows = [[name, *cells] for name, cells in rows.items()]
    return outcome


def weekend(prices: Prices, seed: int) -> Outcome:
    """60 hours without runs, then until each policy has caught up."""
    headers = ["executors", "times the sized", "executors of one run, at most", "caught up after", "longest run"]
    outcome = Outcome(headers)
    for factor, spread in ((1.0, 64), (1.5, 64), (2.0, 64), (1.0, 256), (1.5, 256), (2.0, 256), (3.0, 256)):
        here = replace(Fleet(), spread=spread)
        servers = _sized(here, prices)
        servers["executors"] = math.ceil(servers["executors"] * factor)
        result = Simulation(here, prices, servers, seed=seed, stopped=STOPPED).run(STOPPED[1] + 6 * DAY)
        caught = result.caught_up(STOPPED[1])
        longest = max(run.ended - run.began for run in result.runs)
        said = f"{caught / HOUR:.0f} h" if caught else "not in 6 days"
        outcome.rows.append([f"{servers['executors']:,}", f"{factor}", str(spread), said, f"{longest / HOUR:.0f} h"])
    return outcome


CHANGED = ["executors to be sized", "mean cores: drivers, source, target", "p99 of the lag", "busiest hour"]


def sensitivity(prices: Prices, seed: int) -> Outcome:
    """Each cost doubled, with the servers sized for the plain ones."""
    outcome = Outcome(["cost x 2", *CHANGED])
    here = Fleet()
    names = {
        "none": (),
        "start of a process": ("start",),
        "event of other databases": ("other_event", "other_source"),
        "capture, a run and an event": ("capture_run", "capture_event", "capture_source"),
        "scan of a table": ("scan_table",),
        "dump, a run and an event": ("dump_run", "dump_event"),
        "load, a run and an event, driver": ("load_run", "load_event"),
        "load, an event, target's server": ("load_target",),
        "requests of a file": ("file",),
    }
    doubled = {
        name: replace(prices, **{each: 2 * getattr(prices, each) for each in some}) for name, some in names.items()
    }
    doubled["bytes (a stream has half the speed)"] = replace(prices, slot=prices.slot / 2)
    for name, changed in doubled.items():
        result = Simulation(here, changed, _sized(here, prices), seed=seed).run(2 * DAY)
        outcome.rows.append([name, *_cells(here, changed, result)])
    return outcome


def levers(prices: Prices, seed: int) -> Outcome:
    """What the first bottleneck depends on; the servers are sized for each change."""
    outcome = Outcome(["change", *CHANGED])
    changes = {
        "none": Fleet(),
        "captures take checksums from the store, and read nothing": replace(Fleet(), captures_read=False),
        "loads do not read back, either": replace(Fleet(), captures_read=False, loads_pass=2),
        "files of 32 MB": replace(Fleet(), file_size=32 * fleet.MB),
        "files of 1 GB": replace(Fleet(), file_size=1000 * fleet.MB),
        "one metastore": replace(Fleet(), metastores=1, policies=400),
        "one policy for each metastore": replace(Fleet(), policies=1),
        "runs every 5 minutes": replace(Fleet(), run_every=300.0),
        "runs every hour": replace(Fleet(), run_every=HOUR),
        "no notifications of S3: each run lists all": replace(Fleet(), list_every=0.0),
    }
    for name, here in changes.items():
        result = Simulation(here, prices, _sized(here, prices), seed=seed).run(2 * DAY)
        outcome.rows.append([name, *_cells(here, prices, result)])
    return outcome


def _cells(here: Fleet, prices: Prices, result: Result) -> list[str]:
    busy = ", ".join(f"{station} {share:.0%}" for share, station in result.busiest()[:2])
    mean = fleet.demand(here, prices).of
    cores = "/".join(f"{mean[f'{each} cores']:.2f}" for each in ("driver", "source server", "target server"))
    return [f"{_sized(here, prices)['executors']:,}", cores, _minutes(quantile(result.lags(DAY), 0.99)), busy]


def _sized(here: Fleet, prices: Prices) -> dict[str, int]:
    return fleet.demand(here, prices).sized(here.peak)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min"
