"""A server in a thread of this process, on an event loop whose time a test moves."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import uvicorn
from waiting import CEILING

from replicator.core.service_config import LimitConfig
from replicator.service.client_connections import uvicorn_limits
from replicator.service.service_process import AnsweringServer


class MovedLoop(asyncio.SelectorEventLoop):
    """ahead: seconds that its time is before the real one."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


class ServingThread:
    """An ASGI application behind the service's own connections. more: settings of uvicorn."""

    def __init__(self, application: Any, limits: LimitConfig, **more: Any) -> None:
        settings = {"port": 0, "log_config": None, "lifespan": "off", **more, **uvicorn_limits(limits)}
        self.server = AnsweringServer(uvicorn.Config(application, **settings))
        self._loop = MovedLoop()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self.server.serve())

    def __enter__(self) -> ServingThread:
        self._thread.start()
        assert self.server.answers.wait(CEILING)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join()

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def connections(self) -> int:
        """That are open."""
        return len(self.server.server_state.connections)

    def advance(self, seconds: float) -> None:
        """Moves its time; the loop looks at it ten times a second."""
        self._loop.ahead += seconds
