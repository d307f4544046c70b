"""serve: answers of the service with many runs and items in its store, to many readers at once.

Each reader asks for one thing after the other, in a connection of its own, and reads what it got for a while: a second
on average. Then all ask without a pause. Nothing is remembered between requests. On SQLite, and on PostgreSQL.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from postgres import running_postgres
from sqlalchemy import insert

from benchmarks.measure import Outcome, quantile
from cmroot.root import create_or_open
from replicator.core.config import read_config
from replicator.housekeeping.items import Item
from replicator.housekeeping.schema import item, to_row
from replicator.housekeeping.settings import UNREFERENCED
from replicator.housekeeping.store import ItemStore
from replicator.service.jobs import jobs_of
from replicator.service.schema import run as runs_table
from replicator.service.store import ServiceStore

SIZES = {"full": (10_000, 1_000_000, 200, 30.0), "small": (1_000, 20_000, 20, 5.0)}
"""Runs, items, readers, seconds."""

JOBS = 20
STEP = 20_000
PAUSE = 1.0  # seconds on average between an answer and the next question
ASKED = {
    "page": "/",
    "jobs": "/api/v1/jobs",
    "runs": "/api/v1/runs?limit=50",
    "runs of a job": "/api/v1/runs?job=j3&state=failed&limit=50",
    "a run": "/api/v1/runs/{run}",
    "status": "/api/v1/status",
    "items of a table": "/api/v1/database/many/table/t3/unreferenced-paths?size=20",
    "items, page 1,000": "/api/v1/database/many/table/t3/unreferenced-paths?size=20&page=1000",
}
SHARES = {"page": 8}
"""How often a thing is asked for, among once for the others."""


def run(size: str, runs: int, directory: Path) -> Outcome:
    """Once each: a run of it is a minute of thousands of requests."""
    headers = ["store", "readers", "asked for", "a second", "p50", "p90", "p99", "slowest"]
    outcome = Outcome(headers)
    (directory / "sqlite").mkdir()
    _measure(outcome, size, directory / "sqlite", f"sqlite:///{directory}/sqlite/service.sqlite", None)
    with running_postgres() as postgres:
        (directory / "postgresql").mkdir()
        _measure(outcome, size, directory / "postgresql", postgres.database(), postgres.database())
    return outcome


def _measure(outcome: Outcome, size: str, here: Path, store: str, items: str | None) -> None:
    number, many, readers, seconds = SIZES[size]
    some = _fill(here, store, items, number, many)
    name = "PostgreSQL" if items else "SQLite"
    with _serving(here) as (url, process):
        asyncio.run(_load(url, readers, some, 3.0, PAUSE))  # everything has been used once
        memory = [_memory(process)]
        for pause, told in ((PAUSE, "each once a second"), (0.0, "without a pause")):
            began = time.monotonic()
            took = asyncio.run(_load(url, readers, some, seconds, pause))
            elapsed = time.monotonic() - began
            memory.append(_memory(process))
            every = [each for times in took.values() for each in times]
            for what, times in {"all": every, **(took if pause else {})}.items():
                figures = [f"{1000 * quantile(times, share):.0f} ms" for share in (0.5, 0.9, 0.99, 1.0)]
                who = f"{readers}, {told}"
                outcome.rows.append([name, who, what, f"{len(times) / elapsed:.0f}", *figures])
    text = ", ".join(f"{each:.0f} MB" for each in memory)
    outcome.remarks.append(f"{name}: memory of the server before, after the pauses, after the rest: {text}.")


def _fill(here: Path, store: str, items: str | None, number: int, many: int) -> str:
    """Makes the stores; a run's id."""
    root = create_or_open(str(here / "root"))
    where = items or f"sqlite:///{here}/items.sqlite"
    text = f'[service]\nstore = "{store}"\nlogs = "{here}/logs"\n[service.limits]\nrequests_per_second = 1e6\n'
    text += f'burst = 1000000\n[housekeeping]\nstore = "{where}"\n[defaults]\ncmroot = "{root.place}"\n'
    for each in range(JOBS):
        text += f'[service.jobs.j{each}]\ncommand = ["cm", "ls"]\nevery = "365d"\n'
    (here / "replicator.toml").write_text(text)
    config = read_config(here / "replicator.toml")
    with ItemStore(where) as kept:
        kept.prepare(root)
        _fill_items(kept, many)
    with ServiceStore(store) as made:
        made.prepare()
        now, rows = made.now(), []
        for job in jobs_of(config.service, {}).values():
            made.plan(job.name, job.schedule.text, now + 86_400)
        for each in range(number):
            due = now - 60.0 * (number - each)
            rows.append(
                {
                    "id": f"{int(due * 1000):013d}-{each:012d}",
                    "job": f"j{each % JOBS}",
                    "policy": "",
                    "arguments": '["cm", "ls"]',
                    "asked_by": "schedule",
                    "reason": "",
                    "missed": 0,
                    "due": due,
                    "queued": due,
                    "begun": due,
                    "ended": due + 5,
                    "active": None,
                    "state": "failed" if each % 10 == 0 else "done",
                    "cancelled_by": "",
                    "exit_code": 0,
                    "message": "",
                    "hint": "",
                    "server": "here",
                    "epoch": 1,
                }
            )
        with made.transaction() as connection:
            connection.execute(insert(runs_table), rows)
    return str(rows[-1]["id"])


def _fill_items(store: ItemStore, many: int) -> None:
    """As housekeeping would have scheduled them."""
    now = int(time.time())
    with store.transaction() as connection:
        for start in range(0, many, STEP):
            rows = []
            for number in range(start, min(many, start + STEP)):
                path = f"/old/t{number % JOBS}/day={number // 50}/{number}"
                one = Item(
                    lifecycle=UNREFERENCED,
                    db="many",
                    table=f"t{number % JOBS}",
                    partition=f"day={number // 50}",
                    path=f"file:{path}",
                    place=path,
                    created=now - 5 * 86_400 + number % 3600,
                    modified=now,
                    cleanup=now + number % 3600,
                    delay="P3D",
                )
                rows.append(to_row(one))
            connection.execute(insert(item), rows)


@contextmanager
def _serving(here: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    ready = here / "url"
    line = [sys.executable, "-m", "replicator", "serve", "--listen", "127.0.0.1:0", "--ready-file", str(ready)]
    with (here / "log").open("wb") as log:
        process = subprocess.Popen(line, cwd=here, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while not (ready.exists() and ready.read_text().endswith("\n")):
            assert process.poll() is None and time.monotonic() < deadline, (here / "log").read_text()
            time.sleep(0.05)
        yield ready.read_text().strip(), process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


async def _load(url: str, readers: int, some: str, seconds: float, pause: float) -> dict[str, list[float]]:
    """Seconds of each answer, by what was asked for. Raises AssertionError for an answer that is none."""
    host, port = url.removeprefix("http://").split(":")
    took: dict[str, list[float]] = {name: [] for name in ASKED}
    names = [name for name in ASKED for _ in range(SHARES.get(name, 1))]
    end = time.monotonic() + seconds

    async def reader(number: int) -> None:
        chance = random.Random(number)
        incoming, outgoing = await asyncio.open_connection(host, int(port), limit=1 << 24)
        await asyncio.sleep(chance.random() * pause)
        while time.monotonic() < end:
            name = chance.choice(names)
            path = ASKED[name].replace("{run}", some)
            began = time.monotonic()
            outgoing.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            head = await incoming.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), (path, head)
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
            await incoming.readexactly(int(fields[b"content-length"]))
            took[name].append(time.monotonic() - began)
            await asyncio.sleep(chance.expovariate(1 / pause) if pause else 0)
        outgoing.close()

    await asyncio.gather(*(reader(number) for number in range(readers)))
    return took


def _memory(process: subprocess.Popen[bytes]) -> float:
    """Resident, in MB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024
