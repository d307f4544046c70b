"""housekeeping: scheduling very many items and planning a run over them, against reading the same rows with sqlite3.

Nine of ten are due. The plan asks a real metastore for the properties of their tables, looks each path up among all
that the metastore refers to, and keeps nothing. It runs in a process of its own, whose peak memory the kernel tells.
With REPLICATOR_BENCH_POSTGRES, the URL of an empty database, the same is done there.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from benchmarks import ground
from benchmarks.measure import Outcome, interleaved, median, s, timed
from cmroot.root import create_or_open
from replicator.core.audit import begin_audit
from replicator.core.engine import AutoEngine, LocalEngine
from replicator.core.spark import SparkEngine
from replicator.lifecycle.housekeeping import writing
from replicator.lifecycle.housekeeping.clean import plan
from replicator.lifecycle.housekeeping.settings import THREE_DAYS, UNREFERENCED, LifecycleDefaults
from replicator.lifecycle.housekeeping.store import PAGE, Item, ItemStore, store_url
from replicator.lifecycle.removal.job import Remover
from replicator.lifecycle.removal.live import LiveLocations
from replicator.lifecycle.removal.removal import Limits
from replicator.metastore.thrift import connect

ITEMS = {"full": (1_000_000,), "small": (20_000, 100_000)}
TABLES, PARTITIONS = 20, 500
STEP = 5_000
PROPERTIES = {"beekeeper.remove.unreferenced.data": "true"}


def run(size: str, runs: int, directory: Path) -> Outcome:
    outcome = Outcome(
        ["items", "store", "scheduling", "items a second", "sqlite3 reads them", "plan", "items a second", "peak"]
    )
    with ground.metastore(directory) as client:
        ground.create_database(client, "many")
        for number in range(TABLES):
            place = ground.create_table(client, "many", f"t{number}")
            table = client.table("many", f"t{number}")
            altered = msgspec.structs.replace(table, parameters={**table.parameters, **PROPERTIES})
            client.alter_table("many", f"t{number}", altered)
            ground.add_partitions(
                client, "many", f"t{number}", place, [f"{day:04d}" for day in range(PARTITIONS // TABLES)]
            )
        postgres = os.environ.get("REPLICATOR_BENCH_POSTGRES")
        for count in ITEMS[size]:
            for url in (None, postgres) if postgres else (None,):
                outcome.rows.append(_row(client.uri, directory / "root", url, count, runs))
    return outcome


def _row(uri: str, place: Path, url: str | None, count: int, runs: int) -> list[str]:
    shutil.rmtree(place, ignore_errors=True)
    root = create_or_open(str(place))
    where = store_url(root.place, url)
    with ItemStore(where) as store:
        store.prepare(root)
        scheduling = timed(lambda: _schedule(store, str(place.parent), count))
    answers: list[dict[str, float]] = []

    def ours(number: int) -> float:
        command = [sys.executable, "-m", "benchmarks.housekeeping", uri, root.place, where]
        answers.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        assert answers[-1]["going"] == count * 9 // 10, answers[-1]
        return answers[-1]["plan"]

    work = {"ours": ours}
    if url is None:
        work["bare"] = lambda number: timed(lambda: _read(where.removeprefix("sqlite:///")))
    took = interleaved(runs, work)
    peak = median([each["peak"] for each in answers])
    return [
        f"{count:,}",
        "PostgreSQL" if url else "SQLite",
        f"{scheduling:.1f} s",
        f"{count / scheduling:,.0f}",
        s(took["bare"]) if url is None else "",
        s(took["ours"]),
        f"{count * 0.9 / median(took['ours']):,.0f}",
        f"{peak:.0f} MB ({median([each['idle'] for each in answers]):.0f} MB before it began)",
    ]


def _schedule(store: ItemStore, home: str, count: int) -> None:
    now = int(time.time())
    for start in range(0, count, STEP):
        items = []
        for number in range(start, min(count, start + STEP)):
            path = f"{home}/old/t{number % TABLES}/day={number // 50}/{number}"
            items.append(
                Item(
                    lifecycle=UNREFERENCED,
                    db="many",
                    table=f"t{number % TABLES}",
                    partition=f"day={number // 50}",
                    path=f"file:{path}",
                    place=path,
                    created=now - 5 * 86_400 + number % 3600,
                    modified=now,
                    cleanup=now + (1 if number % 10 == 0 else -2) * 86_400 + number % 3600,
                    delay="P3D",
                )
            )
        with store.transaction() as work:
            writing.put(work, items, THREE_DAYS)


def _read(path: str) -> int:
    """The yardstick: the same pages, and nothing done with them."""
    connection = sqlite3.connect(path)
    after, found = (0, 0), 0
    while True:
        rows = connection.execute(
            "SELECT * FROM housekeeping_item WHERE housekeeping_status IN ('SCHEDULED', 'FAILED') AND"
            " (cleanup_timestamp, id) > (?, ?) ORDER BY cleanup_timestamp, id LIMIT ?",
            (*after, PAGE),
        ).fetchall()
        if not rows:
            return found
        found += len(rows)
        after = (rows[-1][13], rows[-1][0])


def measured(uri: str, place: str, url: str) -> dict[str, float]:
    """Plans everything once; peaks in MB, time in seconds."""
    root = create_or_open(place)
    engine = AutoEngine(LocalEngine(), SparkEngine(), "local")
    with connect(uri) as client, ItemStore(url) as store:
        idle = ground.peak()
        began = time.monotonic()
        with LiveLocations(client) as live:
            remover = Remover(root.place, begin_audit(root.place, "housekeeping"), live, Limits(), engine)
            going = sum(len(page.going) for page in plan(store, client, remover, LifecycleDefaults(), int(time.time())))
        return {"going": going, "plan": time.monotonic() - began, "idle": idle, "peak": ground.peak()}


if __name__ == "__main__":
    print(json.dumps(measured(*sys.argv[1:])))
