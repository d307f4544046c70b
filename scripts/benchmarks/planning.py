"""ingest-jobs: 3,000 requests in the ingestion store, and what it costs to plan them and to keep their books.

Requests come in through the door that all have (checked, queued), of ten assets. Then two controllers, each a process
with a store of its own, claim one after the other with 64 slots, and do nothing for each job but what a controller
writes down, of one job in ten: each step with what it found (200 columns, figures), a renewal in each, the end; the
others only end. On SQLite, and on PostgreSQL. Planned: the seconds that the busier controller waits for its claims.
Books: of one job, all calls from its request to its end; each waits for those of the other controller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from postgres import running_postgres

from benchmarks.measure import Outcome, quantile
from replicator.core.source_config import IngestionConfig, SourceConfig
from replicator.ingestion.ingestion_request import STEPS, Asset, Request
from replicator.ingestion.intake import Requester, accept
from replicator.ingestion.job_store import IngestionStore

JOBS = {"small": 3000, "full": 3000}
ASSETS, SLOTS, CONTROLLERS = 10, 64, 2
COLUMNS, BOOKED = 200, 10
PLANNED, BOOKS = 60.0, 1.0  # seconds that are wanted
CONFIG = IngestionConfig(sources={"crm": SourceConfig("jdbc:mysql://crm/crm")})  # which no request is looked up in


def run(size: str, runs: int, directory: Path) -> Outcome:
    books_of = [f"books of a job, {each}" for each in ("p50", "p99", "longest")]
    outcome = Outcome(["store", "requests", "queued in", "planned in", "wanted", *books_of, "wanted"])
    for name, opened in (("SQLite", _sqlite(directory)), ("PostgreSQL", _postgres())):
        with opened as url:
            queued, claims, books = _measure(url, JOBS[size])
            planned = max(map(sum, claims))
            row = [name, f"{JOBS[size]:,}", f"{queued:.1f} s", f"{planned:.1f} s", f"< {PLANNED:.0f} s"]
            row += [f"{quantile(books, share) * 1000:.0f} ms" for share in (0.5, 0.99, 1.0)]
            outcome.rows.append([*row, f"< {BOOKS:.0f} s"])
    outcome.remarks.append(
        f"{ASSETS} assets, {CONTROLLERS} controllers, {SLOTS} slots of which an asset may have half; {len(STEPS)} steps"
        f" of a job, with {COLUMNS} columns."
    )
    return outcome


@contextmanager
def _sqlite(directory: Path) -> Iterator[str]:
    yield f"sqlite:///{directory / 'jobs.sqlite'}"


@contextmanager
def _postgres() -> Iterator[str]:
    with running_postgres() as server:
        yield server.database()


def _measure(url: str, jobs: int) -> tuple[float, list[list[float]], list[float]]:
    """Seconds in which all are queued; of each claim, by controller; of some jobs' books."""
    paul, asked = Requester("paul"), dict[int, float]()
    with IngestionStore(url) as store:
        store.prepare()
        for number in range(ASSETS):
            name = f"asset{number}"
            store.put_asset(Asset(name=name, owner="paul", sources=("crm",), created_by="paul"))
            store.approve_asset(name, "anna")
        began = time.perf_counter()
        for number in range(jobs):
            request = Request(asset=f"asset{number % ASSETS}", source="crm", schema="public", table=f"t{number}")
            seconds, queued = _timed(lambda request=request: accept(store, CONFIG, request, paul))
            asked[queued.job] = seconds
        queued_in = time.perf_counter() - began
    with ProcessPoolExecutor(CONTROLLERS, get_context("spawn")) as pool:
        worked = list(pool.map(_control, [url] * CONTROLLERS))
    found = [each for some in worked for each in some]
    assert sorted(job for job, _, _ in found) == sorted(asked), "each job was worked on once"
    books = [asked[job] + rest for job, _, rest in found if rest is not None]
    return queued_in, [[claim for _, claim, _ in some] for some in worked], books


def _control(url: str) -> list[tuple[int, float, float | None]]:
    """Of each job: its number, seconds of its claim, of some, seconds of all calls from the claim on."""
    facts: dict[str, Any] = {"columns": [[f"column_{n}", "decimal(38,18)"] for n in range(COLUMNS)], "rows": 1}
    facts |= {"figures": {f"column_{n}": [10**9, 10**12] for n in range(COLUMNS)}}
    found: list[tuple[int, float, float | None]] = []
    with IngestionStore(url) as store:
        while True:
            claim, one = _timed(lambda: store.claim("c", 60.0, SLOTS, 0.5))
            if one is None:
                return found

            def work(one: Any = one) -> None:
                for step in STEPS:
                    store.renew(one, 60.0)
                    if step == "publish":
                        store.published(one, 7, facts)
                    else:
                        store.step_done(one, step, facts)
                store.done(one)

            if one.job % BOOKED:
                store.done(one)
                found.append((one.job, claim, None))
            else:
                found.append((one.job, claim, claim + _timed(work)[0]))


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    done = work()
    return time.perf_counter() - began, done
