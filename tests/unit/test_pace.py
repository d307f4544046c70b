"""The pace of a metastore's calls, against servers that are formulas; the gate and the executor with real threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
from waiting import CEILING

from replicator.metastore.concurrency import LONGEST_PAUSE, Gate, Pace, Window
from replicator.replay.apply import origins
from replicator.replay.apply.origins import QUEUED, KeyedExecutor

Server = Callable[[int, int], float]  # calls a second, by width and number of the window


def network(width: int, _: int) -> float:
    """Each call waits for a database across a network; sixteen at once."""
    return 20.0 * min(width, 16)


def embedded(width: int, _: int) -> float:
    return 30.0 * min(1.3, width)


def racing(width: int, _: int) -> float:
    """Of two writers one sleeps."""
    return 60.0 if width == 1 else 25.0


def warming(width: int, window: int) -> float:
    """A server that gets faster by itself, and has room for one."""
    return 10.0 + 3 * window


def run(server: Server, windows: int, most: int = 16, noise: float = 0.0) -> tuple[list[int], float]:
    """Widths of the windows, and the calls a second over all."""
    pace, widths, calls, seconds, dice = Pace(most), [], 0.0, 0.0, random.Random(1)
    for number in range(windows):
        widths.append(pace.width)
        rate = server(pace.width, number) * dice.uniform(1 - noise, 1 + noise)
        calls, seconds = calls + rate * 0.25, seconds + 0.25
        pace = pace.after(Window(calls=round(rate), weight=rate * 0.25, seconds=0.25))
    return widths, calls / seconds


@pytest.mark.parametrize(("server", "settled"), [(network, 16), (embedded, 2), (racing, 1), (warming, 1)])
def test_a_pace_settles_on_the_width_that_a_server_has_room_for(server: Server, settled: int) -> None:
    widths, _ = run(server, 400)
    assert widths.count(settled) > 330, widths[:60]


@pytest.mark.parametrize("server", [network, embedded, racing, warming])
def test_a_pace_loses_next_to_nothing_against_one_connection(server: Server) -> None:
    for windows in (10, 100, 1000):
        _, rate = run(server, windows, noise=0.04)
        alone = sum(server(1, number) for number in range(windows)) / windows
        assert rate > alone * (0.85 if windows == 10 else 0.95), (windows, rate, alone)


def test_a_server_that_has_less_room_later_gets_fewer_connections_again() -> None:
    widths, _ = run(lambda width, number: network(width, number) if number < 60 else racing(width, number), 300)
    assert max(widths[:60]) == 16
    assert set(widths[-40:]) <= {1, 2}


@pytest.mark.parametrize("most", [1, 2, 3, 6, 64])
def test_never_more_than_the_most_and_never_less_than_one(most: int) -> None:
    for server in (network, racing):
        widths, _ = run(server, 300, most=most)
        assert set(widths) <= set(range(1, most + 1))
    assert run(network, 300, most=most)[0].count(min(most, 16)) > 200


def test_contests_that_change_nothing_become_rare() -> None:
    pace, contests = Pace(16), 0
    for number in range(20_000):
        contests += pace.contends and not pace.rates
        pace = pace.after(Window(8, racing(pace.width, number), 1.0))
    assert contests < 12 + 20_000 / LONGEST_PAUSE


def test_a_gate_lets_as_many_pass_as_its_pace_says_and_none_of_a_contests_calls_into_the_next_window() -> None:
    now, inside, lock = [0.0], [0], threading.Lock()
    gate = Gate(Pace(4), clock=lambda: now[0])
    seen: list[tuple[int, int]] = []

    def calls() -> None:
        for _ in range(100):
            with gate.passing():
                with lock:
                    inside[0] += 1
                    seen.append((inside[0], gate.width))
                    now[0] += 0.1
                with lock:
                    inside[0] -= 1

    threads = [threading.Thread(target=calls) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(seen) == 600
    assert all(count <= width for count, width in seen)


def test_an_executor_keeps_the_order_of_each_key_and_no_more_than_its_width_run() -> None:
    done: dict[str, list[int]] = {}
    running, most, lock = [0], [0], threading.Lock()

    def work(key: str, number: int) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        done.setdefault(key, []).append(number)
        with lock:
            running[0] -= 1

    with KeyedExecutor(lambda: 3) as executor:
        for number in range(200):
            for key in "abcde":
                executor.submit(("db", key), work, key, number)
    assert done == {key: list(range(200)) for key in "abcde"}
    assert most[0] <= 3


def test_one_key_alone_never_runs_twice_at_once() -> None:
    """The second waits for the first, which ends when a later one of another key has run."""
    begun: list[int] = []
    other = threading.Event()

    def first() -> None:
        begun.append(1)
        assert other.wait(CEILING)
        assert begun == [1]

    with KeyedExecutor(lambda: 4) as executor:
        executor.submit(("db", "t"), first)
        executor.submit(("db", "t"), begun.append, 2)
        executor.submit(("db", "u"), other.set)
    assert begun == [1, 2]


def test_two_keys_run_at_once() -> None:
    both = threading.Barrier(2)
    with KeyedExecutor(lambda: 2) as executor:
        for key in "ab":
            executor.submit(("db", key), lambda: both.wait(CEILING) and None)


def test_an_error_ends_an_executor_and_what_has_not_begun_is_not_begun() -> None:
    begun: list[int] = []
    first = threading.Event()

    def fails() -> None:
        first.wait(CEILING)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), KeyedExecutor(lambda: 1) as executor:
        executor.submit(("db", "t"), fails)
        for number in range(QUEUED - 1):
            executor.submit(("db", str(number)), begun.append, number)
        first.set()
    assert not begun


def test_an_error_of_the_caller_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    first, waits = threading.Event(), threading.Event()

    class Thread(threading.Thread):
        """Whoever waits for its end has ended the executor, and lets it go on."""

        def join(self, timeout: float | None = None) -> None:
            first.set()
            super().join(timeout)

    def holds() -> None:
        waits.set()
        first.wait(CEILING)

    monkeypatch.setattr(origins, "Thread", Thread)
    with pytest.raises(KeyError), KeyedExecutor(lambda: 1) as executor:
        executor.submit(("db", "t"), holds)
        executor.submit(("db", "u"), begun.append, 1)
        waits.wait(CEILING)
        raise KeyError("of the caller")
    assert not begun
