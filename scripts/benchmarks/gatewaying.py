"""gateway: what a call costs more when it goes through the gateway, and what a drop costs there."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import ground
from benchmarks.bootstrapping import raw_client
from benchmarks.measure import Outcome, interleaved, median, ratio, timed

PARTITIONS = 1000
LARGE_CALLS = {"full": 30, "small": 8}  # of one measurement
SMALL_CALLS = {"full": 2000, "small": 300}
FILES = {"full": 10_000, "small": 1000}
WARM = 40  # calls before any is measured: the server's Java compiles meanwhile


def run(size: str, runs: int, directory: Path) -> Outcome:
    with ground.metastore(directory) as client:
        place = ground.create_database(client, "wide")
        ground.add_partitions(
            client,
            "wide",
            "parts",
            ground.create_table(client, "wide", "parts"),
            [f"{number:05d}" for number in range(PARTITIONS)],
        )
        with _gateway(client.uri, directory) as uri:
            ways = {"direct": raw_client(client.uri), "through the gateway": raw_client(uri)}
            outcome = Outcome(["call", "direct", "through the gateway", "ratio", "added", "wanted"])
            large, small = LARGE_CALLS[size], SMALL_CALLS[size]
            _measure(
                outcome,
                f"get_partitions of {PARTITIONS:,}",
                ways,
                large,
                runs,
                "ratio <= 1.25",
                lambda raw: raw.get_partitions("wide", "parts", -1),
            )
            _measure(outcome, "get_database", ways, small, runs, "<= 2 ms added", lambda raw: raw.get_database("wide"))
            _measure_drops(outcome, client, ways, place, FILES[size], runs)
            for transport, _ in ways.values():
                transport.close()
    outcome.remarks.append("Calls of one kind follow each other on one connection; both ways take turns.")
    return outcome


@contextlib.contextmanager
def _gateway(uri: str, directory: Path) -> Iterator[str]:
    """A process of its own, as it is run; its address."""
    ready = directory / "ready"
    command = [
        sys.executable,
        "-m",
        "replicator.cli.main",
        "gateway",
        "--source",
        uri,
        "--cmroot",
        str(directory / "cmroot"),
        "--listen",
        "127.0.0.1:0",
        "--ready-file",
        str(ready),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            while not ready.exists():
                if child.poll() is not None:
                    raise SystemExit("the gateway did not start")
                time.sleep(0.05)
            yield ready.read_text().strip()
        finally:
            child.terminate()


def _measure(
    outcome: Outcome,
    name: str,
    ways: dict[str, tuple[Any, Any]],
    calls: int,
    runs: int,
    wanted: str,
    call: Callable[[Any], object],
) -> None:
    for _, raw in ways.values():
        for _ in range(WARM):
            call(raw)

    def repeatedly(raw: Any) -> Callable[[int], float]:
        def work() -> None:
            for _ in range(calls):
                call(raw)

        return lambda _: timed(work) / calls

    took = interleaved(max(runs, 5), {way: repeatedly(raw) for way, (_, raw) in ways.items()})
    direct, through = took["direct"], took["through the gateway"]
    added = (median(through) - median(direct)) * 1000
    outcome.rows.append([name, _ms(direct), _ms(through), ratio(through, direct), f"{added:.2f} ms", wanted])


def _measure_drops(
    outcome: Outcome, client: Any, ways: dict[str, tuple[Any, Any]], place: Path, files: int, runs: int
) -> None:
    """Tables of small files: directly the metastore deletes them, through the gateway they are hashed and kept."""
    numbers = iter(range(1_000_000))

    def drop(raw: Any) -> Callable[[int], float]:
        def once(_: int) -> float:
            number = next(numbers)
            ground.create_table(client, "wide", f"dropped_{number}", partitioned=False)
            ground.small_files(place / f"dropped_{number}", number * files, files)
            ground.settle(place)
            return timed(lambda: raw.drop_table("wide", f"dropped_{number}", True))

        return once

    took = interleaved(runs, {way: drop(raw) for way, (_, raw) in ways.items()})
    direct, through = took["direct"], took["through the gateway"]
    added = (median(through) - median(direct)) * 1000
    name = f"drop_table with {files:,} files"
    outcome.rows.append([name, _ms(direct), _ms(through), ratio(through, direct), f"{added:.0f} ms", ""])


def _ms(seconds: list[float]) -> str:
    return f"{median(seconds) * 1000:.2f} ms"
