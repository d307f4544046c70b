"""serve: answers of the service with many runs and items in its store, to many readers at once.

Each reader asks for one thing after the other, in a connection of its own, and reads what it got for a while: a second
on average. Then all ask without a pause, for long: the server's memory must not grow. They have no session, so that
what several ask within a second is made once; one reader more, alone and with a cookie, shows what it takes to make an
answer. On SQLite, and on PostgreSQL. Metastores of the policies refuse: each policy needs somebody, as on a bad day.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from postgres import running_postgres
from sqlalchemy import insert

from benchmarks.measure import Outcome, quantile
from cmroot.root import create_or_open
from replicator.core.config import Config, read_config
from replicator.lifecycle.housekeeping.settings import UNREFERENCED
from replicator.lifecycle.housekeeping.store import Item, ItemStore, item, to_row
from replicator.policies.memory import Memory, Run, iso
from replicator.service.jobs import jobs_of
from replicator.service.schema import lag_sample
from replicator.service.schema import run as runs_table
from replicator.service.series import FINE, LagSample
from replicator.service.store import ServiceStore


@dataclass(frozen=True)
class Size:
    """seconds: with pauses; long: without."""

    runs: int
    items: int
    readers: int
    seconds: float
    long: float


SIZES = {"full": Size(10_000, 1_000_000, 200, 30.0, 300.0), "small": Size(1_000, 20_000, 20, 10.0, 20.0)}
JOBS = POLICIES = 20
MEASURED = 30.0  # seconds from one value of a policy's lag to the next
REMEMBERED = 100  # runs of a policy in its root
STEP = 20_000
PAUSE = 1.0  # seconds on average between an answer and the next question
WANTED = 0.1  # seconds: a page, at p50
FLAT = 1.05  # the most memory in the end, times that at half of the time
LOOKS = 40  # at the memory, in a load
PAGES = {"page": "/", "page of a policy": "/policies/p3", "page of runs": "/runs"}
ASKED = {
    **PAGES,
    "jobs": "/api/v1/jobs",
    "runs": "/api/v1/runs?limit=50",
    "runs of a job": "/api/v1/runs?job=j3&state=failed&limit=50",
    "a run": "/api/v1/runs/{run}",
    "status": "/api/v1/status",
    "items of a table": "/api/v1/database/many/table/t3/unreferenced-paths?size=20",
    "items, page 1,000": "/api/v1/database/many/table/t3/unreferenced-paths?size=20&page=1000",
}
SHARES = {"page": 6, "page of a policy": 2, "page of runs": 2}
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
    asked, name = SIZES[size], "PostgreSQL" if items else "SQLite"
    some = _fill(here, store, items, asked)
    with _serving(here) as (url, process):
        asyncio.run(_shown(url))
        asyncio.run(_load(url, asked.readers, some, 3.0, PAUSE))  # everything has been used once
        alone = asyncio.run(_load(url, 1, some, min(20.0, asked.seconds), 0.0, "Cookie: a=b\r\n"))
        for what, times in alone.items():
            figures = [f"{1000 * quantile(times, share):.0f} ms" for share in (0.5, 0.9, 0.99, 1.0)] if times else []
            if figures:
                outcome.rows.append([name, "1, each answer made", what, "", *figures])
        for pause, seconds, told in (
            (PAUSE, asked.seconds, "each once a second"),
            (0.0, asked.long, "without a pause"),
        ):
            began = time.monotonic()
            took, memory = asyncio.run(_watched(process, url, asked.readers, some, seconds, pause))
            elapsed = time.monotonic() - began
            every = [each for times in took.values() for each in times]
            asked_for = {what: times for what, times in took.items() if times and pause}
            for what, times in {"all": every, **asked_for}.items():
                figures = [f"{1000 * quantile(times, share):.0f} ms" for share in (0.5, 0.9, 0.99, 1.0)]
                who = f"{asked.readers}, {told}"
                outcome.rows.append([name, who, what, f"{len(times) / elapsed:.0f}", *figures])
            if pause:
                halves = {what: quantile(times, 0.5) for what, times in asked_for.items() if what in PAGES}
                said = ", ".join(f"{what} {1000 * each:.0f} ms" for what, each in halves.items())
                met = "met" if max(halves.values()) < WANTED else "missed"
                outcome.remarks.append(f"{name}: pages below {1000 * WANTED:.0f} ms at p50: {met} ({said}).")
    outcome.remarks.append(f"{name}: {memory_text(memory, asked.long)}")


def memory_text(memory: Sequence[float], seconds: float) -> str:
    """Whether it grew in the second half of a load. memory: MB, at equal times."""
    tenth = max(1, len(memory) // 10)
    half, end = (statistics.median(memory[place - tenth : place]) for place in (len(memory) // 2, len(memory)))
    met = "met" if end <= half * FLAT else "missed"
    said = (
        f"{memory[0]:.0f} MB before {seconds:.0f} s without a pause, {half:.0f} MB at half of them, {end:.0f} MB in the"
    )
    return f"memory that does not grow: {met} ({said} end, {end / half - 1:+.1%}; at most {max(memory):.0f} MB)."


def _fill(here: Path, store: str, items: str | None, asked: Size) -> str:
    """Makes the stores and roots; a run's id."""
    root = create_or_open(str(here / "root"))
    where = items or f"sqlite:///{here}/items.sqlite"
    text = f'[service]\nstore = "{store}"\nlogs = "{here}/logs"\nmeasure_roots = "0s"\n'
    text += "[service.limits]\nrequests_per_second = 1e6\n"
    text += f'burst = 1000000\n[housekeeping]\nstore = "{where}"\n[defaults]\ncmroot = "{root.place}"\n'
    for each in range(JOBS):
        text += f'[service.jobs.j{each}]\ncommand = ["cm", "ls"]\nevery = "365d"\n'
    for each in range(POLICIES):
        place = here / f"p{each}"
        text += f'[policies.p{each}]\nsource = "thrift://127.0.0.1:1"\ntarget = "thrift://127.0.0.1:2"\n'
        text += f'databases = ["db_{each}"]\nschedule = "1d"\nengine = "local"\nmax_lag = "5m"\n'
        for key in ("cmroot", "target_cmroot", "dumps", "warehouse"):
            text += f'{key} = "{place}/{key}"\n'
    (here / "replicator.toml").write_text(text)
    config = read_config(here / "replicator.toml")
    with ItemStore(where) as kept:
        kept.prepare(root)
        _fill_items(kept, asked.items)
    with ServiceStore(store) as made:
        made.prepare()
        _fill_policies(made, config)
        return _fill_runs(made, config, asked.runs)


def _fill_runs(store: ServiceStore, config: Config, number: int) -> str:
    """Of all jobs in turns; each tenth of one's failed. The last one's id."""
    now, rows = store.now(), []
    jobs = list(jobs_of(config.service, config.policies).values())
    for job in jobs:
        store.plan(job.name, job.schedule.text, now + 80_000)  # none begins a run here
    for each in range(number):
        due, job = now - 60.0 * (number - each), jobs[each % len(jobs)]
        failed = each // len(jobs) % 10 == 0
        rows.append(
            {
                "id": f"{int(due * 1000):013d}-{each:012d}",
                "job": job.name,
                "policy": job.policy,
                "arguments": json.dumps(job.arguments),
                "asked_by": "schedule",
                "reason": "",
                "missed": 0,
                "due": due,
                "queued": due,
                "begun": due,
                "ended": due + 5,
                "active": None,
                "state": "failed" if failed else "done",
                "cancelled_by": "",
                "exit_code": 75 if failed else 0,
                "message": "cannot connect to 127.0.0.1:1" if failed else "",
                "hint": "is it there?" if failed else "",
                "server": "here",
                "epoch": 1,
            }
        )
    with store.transaction() as connection:
        connection.execute(insert(runs_table), rows)
    return str(rows[-1]["id"])


def _fill_policies(store: ServiceStore, config: Config) -> None:
    """A day of their lag, and their own runs."""
    now = store.now()
    for name, policy in config.policies.items():
        memory = Memory(create_or_open(policy.target_cmroot), name)
        runs = []
        for each in range(REMEMBERED):
            began = now - 600.0 * (REMEMBERED - each)
            runs.append(
                Run(
                    id=f"{each:032x}",
                    policy=name,
                    started=iso(began),
                    ended=iso(began + 5),
                    kind="incremental",
                    status="done",
                    from_event=each,
                    to_event=each + 1,
                    position=each,
                    records=10,
                    files=10,
                    bytes=1_000_000,
                    lag_seconds_bound=5.0 + each % 7,
                )
            )
        with ThreadPoolExecutor(16) as pool:  # each is synced
            deque(pool.map(memory.write_run, runs), maxlen=0)
        times = [now - FINE + MEASURED * each for each in range(1, int(FINE / MEASURED))]
        rows = [
            asdict(LagSample(name, at, "current", 3, 5.0 + number % 60, 1_000, 80_000.0, False, ""))
            for number, at in enumerate(times)
        ]
        with store.transaction() as connection:
            connection.execute(insert(lag_sample), rows)


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


async def _watched(
    process: subprocess.Popen[bytes], url: str, readers: int, some: str, seconds: float, pause: float
) -> tuple[dict[str, list[float]], list[float]]:
    """As `_load`; and the server's memory meanwhile, at equal times."""
    memory: list[float] = []

    async def watch() -> None:
        while True:
            memory.append(_memory(process))
            await asyncio.sleep(seconds / LOOKS)

    watching = asyncio.create_task(watch())
    try:
        return await _load(url, readers, some, seconds, pause), memory
    finally:
        watching.cancel()


async def _shown(url: str) -> None:
    """Waits until the page shows all policies, as they were measured."""
    deadline = time.monotonic() + 60
    while True:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            found = (await client.get("/api/v1/policies")).json()["items"]
            page = (await client.get("/")).text
        if len(found) == POLICIES and all(each["measured"] and f"/policies/{each['name']}" in page for each in found):
            return
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.2)


async def _load(
    url: str, readers: int, some: str, seconds: float, pause: float, more: str = ""
) -> dict[str, list[float]]:
    """Seconds of each answer, by what was asked for. more: lines of the head of each request. Raises AssertionError for
    an answer that is none."""
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
            outgoing.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode())
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
