"""One server: its scheduler, its alerts and its HTTP API, in threads of this process."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Annotated

import uvicorn

from replicator.commands.base import Options, names, verb
from replicator.core.config import NAME, Config, read_config
from replicator.core.not_replicated import Report
from replicator.core.option import arg, opt, python_only
from replicator.core.runtime import Stop
from replicator.errors import UsageError
from replicator.service.admission import Admission
from replicator.service.alerts import Alerter
from replicator.service.api_tokens import Role, create_token, revoke_token, tokens
from replicator.service.client_connections import gated, uvicorn_limits
from replicator.service.measuring import LagWatch
from replicator.service.metrics import SlowWatch
from replicator.service.pages.rendering import bodies_of
from replicator.service.runs import iso
from replicator.service.scheduler import Scheduler
from replicator.service.series import LagRecorder, SizeRecorder
from replicator.service.store import ServiceStore
from replicator.service.web.app import HEADERS, LOOPBACK, make_app
from replicator.service.web.endpoint import roots_of
from replicator.service.web.serving import MOMENT, Serving

SLOW = 30  # seconds to start listening; and for open responses at the end

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """The settings of a server. config_file: read again when it changes. listen: "host:port"; None: as in [service];
    port 0 selects a free one. require_token: also to read on loopback. certificate, key: for TLS, PEM. ready: called
    with the URL once the server answers."""

    config_file: Path
    listen: str | None
    require_token: bool
    certificate: Path | None
    key: Path | None
    ready: Callable[[str], object]
    stop: Stop


def run_service(settings: ServiceSettings) -> None:
    """Serves until `stop` is set; then ends its runs, each within its grace period. Raises ConfigError, and UsageError
    for an address that is invalid or in use."""
    file = settings.config_file.absolute()
    config = read_config(file)
    host, port = _address(settings.listen or config.service.listen)
    open_to_all = host in LOOPBACK and not settings.require_token and not config.service.proxy.networks
    with ExitStack() as stack:
        store = stack.enter_context(ServiceStore(config.service.store))
        store.prepare()
        scheduler = Scheduler(store, lambda: _read(file), file)
        watch = LagWatch(lambda: scheduler.config, scheduler.stopping)
        scheduler.ended = watch.soon

        def places() -> set[str]:
            return {each.place for each in roots_of(scheduler.config)}

        slow = SlowWatch(store, lambda: scheduler.config, lambda: scheduler.health.leads, watch, scheduler.stopping)
        application = make_app(Serving(store, scheduler, watch), open_to_all=open_to_all, moment=MOMENT)
        headers = HEADERS | {"Cache-Control": "no-store"}
        server = AnsweringServer(
            uvicorn.Config(
                Admission(application, config.service, headers, bodies_of(application)),
                host=host,
                port=port,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=SLOW,
                ssl_certfile=os.fspath(settings.certificate) if settings.certificate else None,
                ssl_keyfile=os.fspath(settings.key) if settings.key else None,
                **uvicorn_limits(config.service.limits, config.service.proxy),
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
            raise UsageError(f"cannot listen on {host}:{port}", hint="if it is in use, choose another with --listen")
        scheme = "https" if settings.certificate else "http"
        settings.ready(f"{scheme}://{host}:{server.port}")
        while not settings.stop.wait(1.0) and threads[1].is_alive():
            pass


class AnsweringServer(uvicorn.Server):
    """A uvicorn server. answers: set once it listens, or has failed to."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.answers = threading.Event()

    @property
    def port(self) -> int:
        return int(self.servers[0].sockets[0].getsockname()[1])

    def run(self, sockets: object = None) -> None:
        try:
            super().run()
        except SystemExit:  # uvicorn has logged the reason
            pass
        finally:
            self.answers.set()

    async def startup(self, sockets: object = None) -> None:
        context, plain = self.config.ssl, self.config.http_protocol_class
        if context is not None:  # the gate does the handshake, and counts clients that do not begin it
            self.config.ssl, self.config.http_protocol_class = None, gated(plain, context)  # type: ignore[assignment]
        try:
            await super().startup()
        finally:
            self.config.ssl = context
        for each in (one for server in self.servers for one in server.sockets):
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # on Linux; connections inherit it
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SLOW * 1000)
        self.answers.set()


def _end(scheduler: Scheduler, server: AnsweringServer, threads: list[threading.Thread]) -> None:
    scheduler.stopping.set()
    threads[0].join()  # runs end first: until then, clients can see it
    server.should_exit = True
    threads[1].join()


def _read(file: Path) -> Config:
    return read_config(file)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise UsageError(f"{text!r} is not an address", hint="write HOST:PORT, such as 127.0.0.1:8484")
    return host.strip("[]"), int(port)


# ---- verbs -----------------------------------------------------------------------------------------------------------
# The commands `serve` and `token`, as options and functions that return reports.


def _ignore(url: str) -> None:
    """Does nothing."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions(Options):
    listen: Annotated[
        str | None, opt("Address; port 0 selects a free one.  [default: service.listen]", metavar="HOST:PORT")
    ] = None
    require_token: Annotated[bool, opt("Require a token even for reading, on loopback too.")] = False
    certificate: Annotated[str | os.PathLike[str] | None, opt("PEM file.", "--tls-certificate", metavar="FILE")] = None
    key: Annotated[str | os.PathLike[str] | None, opt("PEM file.", "--tls-key", metavar="FILE")] = None
    ready_file: Annotated[
        str | os.PathLike[str] | None, opt("File to which the service writes its URL once it answers.", metavar="FILE")
    ] = None
    ready: Annotated[Callable[[str], object], python_only("Called with the URL once the service listens.")] = _ignore
    stop: Annotated[
        Stop | None, python_only("Ends the service when set, such as a `threading.Event`; None: nothing does.")
    ] = None


@dataclass(frozen=True)
class ServiceStopped(Report):
    """The report of `serve`. url: at which it answered."""

    url: str
    status: str = "stopped"


@verb(ServeOptions)
def serve(options: ServeOptions) -> ServiceStopped:
    """Runs policies and jobs by their schedules, and serves the API, metrics and pages about them, until it is stopped;
    then ends its runs. May run again, and concurrently with other servers on the same store, one of which schedules.

        stop = threading.Event()
        replicator.serve(config="replicator.toml", listen="127.0.0.1:0", ready=print, stop=stop)

    Raises ConfigError, and UsageError without a configuration file, for a certificate without key or a key without
    certificate, and for an address that is invalid or in use."""
    file = Path(options.settings.looked_for)
    if not file.is_file():
        raise UsageError(f"the service requires a configuration file; not found: {file}", hint=f"create {NAME}")
    if (options.certificate is None) != (options.key is None):
        raise UsageError("TLS requires a certificate and its key", hint="give both, or neither")
    found = ""

    def ready(url: str) -> None:
        nonlocal found
        found = url
        if options.ready_file is not None:
            Path(options.ready_file).write_text(url + "\n", encoding="utf-8")
        options.ready(url)

    run_service(
        ServiceSettings(
            config_file=file,
            listen=options.listen,
            require_token=options.require_token,
            certificate=None if options.certificate is None else Path(options.certificate),
            key=None if options.key is None else Path(options.key),
            ready=ready,
            stop=options.stop or Event(),
        )
    )
    return ServiceStopped(found)


@dataclass(frozen=True, kw_only=True)
class TokenCreateOptions(Options):
    name: Annotated[str, arg("The token's name, in lists and records.")] = field(kw_only=False)
    role: Annotated[Role, opt("The token's role.")] = "viewer"
    policies: Annotated[
        str | Sequence[str], opt("Limit the token to this policy; repeatable.", "--policy", metavar="NAME")
    ] = ()
    expires: Annotated[timedelta, opt("How long the token is valid.")] = timedelta(days=90)


@dataclass(frozen=True)
class CreatedToken(Report):
    """A new token. token: cannot be shown again."""

    name: str
    role: str
    token: str


@verb(TokenCreateOptions)
def token_create(options: TokenCreateOptions) -> CreatedToken:
    """Creates a token for the service's API.

        replicator.token_create("airflow", role="operator", policies="west").token

    Raises UsageError for a name that is invalid or in use, and for a policy that does not exist."""
    wanted = names(options.policies)
    for each in wanted:
        options.settings.policy(each)
    with ServiceStore(options.settings.service.store) as store:
        store.prepare()
        seconds = options.expires.total_seconds()
        return CreatedToken(
            options.name, options.role, create_token(store, options.name, options.role, wanted, seconds)
        )


@dataclass(frozen=True, kw_only=True)
class TokenLsOptions(Options):
    """No options of its own."""


@dataclass(frozen=True)
class ListedToken:
    """A token in a list. created, expires: ISO 8601. policies: empty for all."""

    name: str
    role: str
    policies: tuple[str, ...]
    created: str
    expires: str


@dataclass(frozen=True)
class ListedTokens(Report):
    """Tokens by name, including expired ones."""

    tokens: list[ListedToken]


@verb(TokenLsOptions)
def token_ls(options: TokenLsOptions) -> ListedTokens:
    """Lists tokens: names, roles and expiry, not the tokens themselves. Reads only.

    replicator.token_ls().tokens"""
    with ServiceStore(options.settings.service.store) as store:
        store.prepare()
        return ListedTokens(
            [
                ListedToken(each.name, each.role, each.policies, iso(each.created) or "", iso(each.expires) or "")
                for each in tokens(store)
            ]
        )


@dataclass(frozen=True, kw_only=True)
class TokenRevokeOptions(Options):
    name: Annotated[str, arg("The token's name.")] = field(kw_only=False)


@dataclass(frozen=True)
class RevokedToken(Report):
    """The report of `token revoke`. name: of the revoked token."""

    name: str
    status: str = "revoked"


@verb(TokenRevokeOptions)
def token_revoke(options: TokenRevokeOptions) -> RevokedToken:
    """Revokes a token: requests with it are refused from now on.

        replicator.token_revoke("airflow")

    Raises ObjectNotFound."""
    with ServiceStore(options.settings.service.store) as store:
        store.prepare()
        revoke_token(store, options.name)
    return RevokedToken(options.name)
