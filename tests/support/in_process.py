"""A service's application in this process, without its threads: what it answers to one client, and to many at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from waiting import CEILING

from replicator.core.config import parse_config
from replicator.service.admission import Admission
from replicator.service.api_tokens import Role, create_token
from replicator.service.measuring import LagWatch
from replicator.service.pages.rendering import bodies_of
from replicator.service.scheduler import Scheduler
from replicator.service.store import ServiceStore
from replicator.service.web.app import HEADERS, make_app
from replicator.service.web.serving import Serving

HOST = "http://127.0.0.1:8484"


class InProcess:
    """tables: of the configuration. open_to_all, moment: as of `make_app`."""

    def __init__(self, here: Path, tables: dict[str, Any], *, open_to_all: bool = True, moment: float = 0.0) -> None:
        config = parse_config(tables, "test")
        self.store = ServiceStore(f"sqlite:///{here}/service.sqlite")
        self.store.prepare()
        self.scheduler = Scheduler(self.store, lambda: config, here / "replicator.toml")
        self.serving = Serving(self.store, self.scheduler, LagWatch(lambda: config, threading.Event()))
        application = make_app(self.serving, open_to_all=open_to_all, moment=moment)
        self.application: Any = Admission(application, config.service, HEADERS, bodies_of(application))

    def token(self, name: str, role: Role, *policies: str) -> dict[str, str]:
        """The headers of a new one."""
        return {"Authorization": f"Bearer {create_token(self.store, name, role, policies, 1000.0)}"}

    def client(self, peer: str = "127.0.0.1", url: str = HOST, **more: Any) -> httpx.AsyncClient:
        """For one event loop."""
        transport = httpx.ASGITransport(self.application, client=(peer, 1))
        return httpx.AsyncClient(transport=transport, base_url=url, timeout=CEILING, **more)

    def ask(self, method: str, path: str, peer: str = "127.0.0.1", url: str = HOST, **more: Any) -> httpx.Response:
        async def asked() -> httpx.Response:
            async with self.client(peer, url) as client:
                return await client.request(method, path, **more)

        return asyncio.run(asked())

    def get(self, path: str, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
        return self.ask("GET", path, headers=headers, **more)


Made = Callable[..., InProcess]
