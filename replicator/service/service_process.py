"""One server: its scheduler, its alerts, its answers over HTTP, in threads of this process."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from replicator.core.config import Config, read_config
from replicator.core.runtime import Stop
from replicator.errors import UsageError
from replicator.service.alerts import Alerter
from replicator.service.auth.admitted import Admission
from replicator.service.auth.timed_connection import gated, uvicorn_limits
from replicator.service.lag_watch import LagWatch
from replicator.service.measuring.slow_watch import SlowWatch
from replicator.service.scheduler import Scheduler
from replicator.service.series import LagRecorder, SizeRecorder
from replicator.service.store import ServiceStore
from replicator.service.web.app import HEADERS, LOOPBACK, make_app
from replicator.service.web.queries.endpoint import roots_of
from replicator.service.web.serving import Serving
from replicator.service.web.shared_answers import MOMENT

SLOW = 30  # seconds to begin to listen; and for current answers at the end

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """config_file: read again when it changes. listen: "host:port"; None: as [service] says; port 0 takes a free one.
    require_token: to look, too, on loopback. certificate, key: of TLS, PEM. ready: called with the URL once it answers.
    """

    config_file: Path
    listen: str | None
    require_token: bool
    certificate: Path | None
    key: Path | None
    ready: Callable[[str], object]
    stop: Stop


def run_service(settings: ServiceSettings) -> None:
    """Serves until `stop` is set; then ends its runs, each with its grace. Raises ConfigError, and UsageError for an
    address that is none or is taken."""
    file = settings.config_file.absolute()
    config = read_config(file)
    host, port = _address(settings.listen or config.service.listen)
    open_to_all = host in LOOPBACK and not settings.require_token and not config.service.proxy.networks
    with ExitStack() as stack:
        store = stack.enter_context(ServiceStore(config.service.store))
        store.prepare()
        scheduler = Scheduler(store, lambda: _read(file), file)
        watch = LagWatch(lambda: scheduler.config, scheduler.stopping)

        def places() -> set[str]:
            return {each.place for each in roots_of(scheduler.config)}

        slow = SlowWatch(store, lambda: scheduler.config, lambda: scheduler.health.leads, watch, scheduler.stopping)
        application = make_app(Serving(store, scheduler, watch), open_to_all=open_to_all, moment=MOMENT)
        server = AnsweringServer(
            uvicorn.Config(
                Admission(application, config.service, HEADERS | {"Cache-Control": "no-store"}),
                host=host,
                port=port,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=SLOW,
                ssl_certfile=os.fspath(settings.certificate) if settings.certificate else None,
                ssl_keyfile=os.fspath(settings.key) if settings.key else None,
                **uvicorn_limits(config.service.limits),
            )
        )
        threads = [
            threading.Thread(target=scheduler.run, name="scheduler"),
            threading.Thread(target=server.run, name="http"),
            threading.Thread(target=watch.run, name="lag", daemon=True),
            threading.Thread(target=LagRecorder(store, scheduler, watch).run, name="series", daemon=True),
            threading.Thread(target=SizeRecorder(store, scheduler, places).run, name="sizes", daemon=True),
            threading.Thread(target=slow.run, name="measures", daemon=True),
            threading.Thread(target=Alerter(store, scheduler, watch).run, name="alerts", daemon=True),
        ]
        stack.callback(_end, scheduler, server, threads)
        for thread in threads:
            thread.start()
        if not server.answers.wait(SLOW) or not server.started:
            raise UsageError(f"{host}:{port}: nobody can listen there", hint="is it taken? --listen names another")
        scheme = "https" if settings.certificate else "http"
        settings.ready(f"{scheme}://{host}:{server.port}")
        while not settings.stop.wait(1.0) and threads[1].is_alive():
            pass


class AnsweringServer(uvicorn.Server):
    """answers: set once it listens, or has failed to."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answers = threading.Event()

    @property
    def port(self) -> int:
        return int(self.servers[0].sockets[0].getsockname()[1])

    def run(self, sockets: object = None) -> None:
        try:
            super().run()
        except SystemExit:  # it has said why
            pass
        finally:
            self.answers.set()

    async def startup(self, sockets: object = None) -> None:
        context, plain = self.config.ssl, self.config.http_protocol_class
        if context is not None:  # the handshake is the gate's, which counts who does not begin it
            self.config.ssl, self.config.http_protocol_class = None, gated(plain, context)  # type: ignore[assignment]
        try:
            await super().startup()
        finally:
            self.config.ssl = context
        for each in (one for server in self.servers for one in server.sockets):
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # of Linux; connections have it from here
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SLOW * 1000)
        self.answers.set()


def _end(scheduler: Scheduler, server: AnsweringServer, threads: list[threading.Thread]) -> None:
    scheduler.stopping.set()
    threads[0].join()  # runs end first: who asks meanwhile sees it
    server.should_exit = True
    threads[1].join()


def _read(file: Path) -> Config:
    return read_config(file)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise UsageError(f"{text!r} is no address", hint="write HOST:PORT, such as 127.0.0.1:8484")
    return host.strip("[]"), int(port)
