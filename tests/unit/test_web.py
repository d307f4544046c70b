"""The service's answers, in this process: who sees what, and what keeps nobody else waiting."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import InProcess, Made

from replicator.service.web.questions.time_limits import OF_ONE


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    there: list[InProcess] = []

    def make(tables: dict[str, Any] | None = None, **more: Any) -> InProcess:
        there.append(InProcess(tmp_path, tables or {}, **more))
        return there[-1]

    yield make
    for each in there:
        each.store.close()


def policy(**places: str) -> dict[str, str]:
    keys = {"source": "thrift://127.0.0.1:1", "target": "thrift://127.0.0.1:2", "databases": "d", "dumps": "/d"}
    return keys | places


def test_pages_of_a_root_that_hangs_keep_nobody_waiting(made: Made, tmp_path: Path) -> None:
    """A pipe in the place of a file hangs whoever reads it until somebody writes."""
    sick, away = tmp_path / "sick", tmp_path / "away"
    for each in (sick, away):
        each.mkdir()
        os.mkfifo(each / "FORMAT")
    policies = {"west": policy(cmroot=str(sick), target_cmroot=str(away))}
    server = made({"policies": policies, "defaults": {"cmroot": str(tmp_path / "well")}})
    op = server.token("op", "operator")

    async def ask() -> None:
        async with server.client(headers=op) as client:
            places = [f"/cmroot?root={sick}", "/policies/west", "/drills", "/purges?policy=west"]
            hung = [asyncio.create_task(client.get(each)) for each in places * 12]
            hold = {"name": "h", "reason": "r"}
            hung += [asyncio.create_task(client.post("/api/v1/cmroots/west/holds", json=hold)) for _ in range(OF_ONE)]
            await asyncio.sleep(0)
            for place in ("/healthz", "/readyz", "/jobs", f"/cmroot?root={tmp_path}/well"):
                answer = await asyncio.wait_for(client.get(place), 20)
                assert answer.status_code == (503 if place == "/healthz" else 200), place  # no scheduler is at work
            for task in hung:
                task.cancel()
            await asyncio.gather(*hung, return_exceptions=True)

    try:
        asyncio.run(ask())
    finally:
        for each in (sick, away) * 100:  # each lets go of those who wait
            os.close(os.open(each / "FORMAT", os.O_RDWR | os.O_NONBLOCK))
