"""The simulation of `scripts/scale` against queues with known results, and against its own input."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from scaling import answers, costs
from scaling.fleet import DAY, Fleet, Prices, Simulation, concurrent, demand
from scaling.simulation import Process, Station, simulate

PRICES = Prices(
    start=1.0,
    capture_run=0.05,
    capture_event=0.0005,
    capture_source=0.001,
    dump_run=0.02,
    dump_event=0.0001,
    load_run=0.05,
    load_event=0.001,
    load_target=0.01,
)
SMALL = Fleet(tables=8_000, events=1e6, changed=80e12, metastores=4, policies=3)
DOCUMENT = Path(__file__).parents[2] / "docs" / "scaling.md"


@pytest.mark.parametrize("share", [0.3, 0.6, 0.8])
def test_random_arrivals_wait_as_long_as_the_formula_says(share: float) -> None:
    """M/D/1: the mean wait is share x service / (2 x (1 - share))."""
    station, dice, now = Station("one"), random.Random(1), 0.0
    for _ in range(400_000):
        now += dice.expovariate(share)
        station.serve(now, 1.0)
    assert station.waited / station.jobs == pytest.approx(share / (2 * (1 - share)), rel=0.05)
    assert station.share(now) == pytest.approx(share, rel=0.01)


def test_servers_work_concurrently() -> None:
    """Seven jobs of 3 s at once on three servers: two rounds of three, then one."""
    station = Station("three", 3)
    assert [station.serve(10.0, 3.0) for _ in range(7)] == [13, 13, 13, 16, 16, 16, 19]
    assert (station.busy, station.waited) == (21.0, 3 * 3.0 + 6.0)
    assert Station("four", 4).split(0.0, 10.0, 8) == 2 * 10.0 / 8


def test_processes_continue_in_the_order_of_their_times() -> None:
    seen = list[tuple[str, float]]()

    def process(name: str, every: float) -> Process:
        now = yield every
        while True:
            seen.append((name, now))
            now = yield now + every

    simulate([process("a", 2.0), process("b", 3.0)], 6.0)
    assert seen == [("a", 2.0), ("b", 3.0), ("a", 4.0), ("b", 6.0), ("a", 6.0)]


def test_no_event_is_lost_or_loaded_twice() -> None:
    """Nobody writes from the third day on, and no run begins on it: what was written before is loaded completely."""
    end = 2 * DAY
    simulation = Simulation(SMALL, PRICES, demand(SMALL, PRICES).sized(SMALL.peak), stopped=(end, end + DAY))
    written = simulation.written
    simulation.written = lambda share, since, until: written(share, min(since, end), min(until, end))  # type: ignore[method-assign]
    result = simulation.run(5 * DAY)
    assert sum(run.events for run in result.runs) == pytest.approx(2 * SMALL.events)


def test_stations_are_as_busy_as_demanded() -> None:
    wanted = demand(SMALL, PRICES)
    result = Simulation(SMALL, PRICES, wanted.sized(SMALL.peak)).run(4 * DAY)
    for name, stations in result.stations.items():
        assert max(each.busy for each in stations) / (4 * DAY) == pytest.approx(wanted.of[name], rel=0.02), name
    assert max(share for share, _ in result.busiest()) < 1


def test_a_backlog_is_gone_after_its_size_divided_by_the_spare_capacity() -> None:
    """Executors twice the mean demand, without a day's waves: two days' backlog takes two days."""
    flat = replace(SMALL, peak=1.0, changed=800e12)
    servers = demand(flat, PRICES).sized(flat.peak)
    servers["executors"] = round(2 * demand(flat, PRICES).of["executors"])
    spare = servers["executors"] / demand(flat, PRICES).of["executors"] - 1
    stopped = (DAY, 3 * DAY)
    result = Simulation(flat, PRICES, servers, stopped=stopped).run(8 * DAY)
    caught = result.caught_up(stopped[1])
    assert caught is not None and caught == pytest.approx(2 * DAY / spare, rel=0.1)


def test_open_spans_are_counted() -> None:
    assert concurrent([(0, 4), (1, 3), (3, 5), (9, 20)], 2, 12) == (pytest.approx((2 + 1 + 2 + 3) / 10), 2)


def test_too_few_servers_are_the_bottleneck() -> None:
    servers = demand(SMALL, PRICES).sized(SMALL.peak)
    few = Simulation(SMALL, PRICES, {**servers, "executors": 2}).run(2 * DAY)
    assert few.busiest()[0][1] == "executors" and few.busiest()[0][0] > 1
    assert few.lags(DAY)[-1] > 2 * Simulation(SMALL, PRICES, servers).run(2 * DAY).lags(DAY)[-1]


def test_the_same_seed_gives_the_same_result() -> None:
    servers = demand(SMALL, PRICES).sized(SMALL.peak)
    one, same, other = (Simulation(SMALL, PRICES, servers, seed=seed).run(DAY).lags() for seed in (1, 1, 2))
    assert one == same != other


def test_a_prediction_is_the_costs_of_one_run() -> None:
    assert answers.predict(PRICES, 1_000) == pytest.approx(
        {
            "driver cores": 1.0 + 0.05 + 0.02 + 0.05 + 1_000 * (0.0005 + 0.0001 + 0.001),
            "executors": 0.0,
            "source server cores": 1.0 + PRICES.scan_table,
            "target server cores": 10.0,
            "GET of a prefix": 0.0,
            "PUT of a prefix": 0.0,
        }
    )


def test_the_page_has_the_check_of_the_recorded_runs() -> None:
    assert answers.check(costs.read(costs.MEASURED)[1]).markdown() in DOCUMENT.read_text()
