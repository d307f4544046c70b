"""The commands of the service, `serve` and `token`, as options and functions that return reports."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Event

from replicator.commands.base import Options, names, verb
from replicator.core.config import NAME
from replicator.core.not_replicated import Report
from replicator.core.runtime import Stop
from replicator.errors import UsageError
from replicator.service.auth.api_tokens import Role, create_token, revoke_token, tokens
from replicator.service.run_history import iso
from replicator.service.service_process import ServiceSettings, run_service
from replicator.service.store import ServiceStore


def _nobody(url: str) -> None:
    """Does nothing."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions(Options):
    """Arguments:

    listen: "host:port" of the API and the page; None: as [service] says; port 0 takes a free one.
    require_token: ask for a token even to look, on loopback, too.
    certificate, key: PEM files, to serve over TLS.
    ready_file: the URL is written there once the service answers.
    ready: called with the URL then.
    stop: ends the service, such as a `threading.Event`; None: nobody does.
    """

    listen: str | None = None
    require_token: bool = False
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    ready_file: str | os.PathLike[str] | None = None
    ready: Callable[[str], object] = _nobody
    stop: Stop | None = None


@dataclass(frozen=True)
class ServiceStopped(Report):
    """url: where it answered."""

    url: str
    status: str = "stopped"


@verb(ServeOptions)
def serve(options: ServeOptions) -> ServiceStopped:
    """Runs policies and jobs by their schedules, and serves the API, metrics and a page about them, until it is
    stopped; then ends its runs. May run again, and beside other servers on the same store, of which one schedules.

        stop = threading.Event()
        replicator.serve(config="replicator.toml", listen="127.0.0.1:0", ready=print, stop=stop)

    Raises ConfigError, and UsageError without a configuration file, for one of certificate and key, and for an address
    that is none or is taken."""
    file = Path(options.settings.looked_for)
    if not file.is_file():
        raise UsageError(f"the service needs a configuration: {file}", hint=f"write {NAME}")
    if (options.certificate is None) != (options.key is None):
        raise UsageError("TLS needs a certificate and its key", hint="give both, or none")
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
    """Arguments:

    name: of the token, in lists and records.
    role: "viewer", "operator" or "admin".
    policies: only these; none: all.
    expires: how long the token holds.
    """

    name: str = field(kw_only=False)
    role: Role = "viewer"
    policies: str | Sequence[str] = ()
    expires: timedelta = timedelta(days=90)


@dataclass(frozen=True)
class CreatedToken(Report):
    """token: cannot be shown again."""

    name: str
    role: str
    token: str


@verb(TokenCreateOptions)
def token_create(options: TokenCreateOptions) -> CreatedToken:
    """Creates a token of the service's API.

        replicator.token_create("airflow", role="operator", policies="west").token

    Raises UsageError for a name that is none or is taken, and for a policy that there is not."""
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
    """Arguments: those of all commands."""


@dataclass(frozen=True)
class ListedToken:
    """created, expires: ISO 8601. policies: empty for all."""

    name: str
    role: str
    policies: tuple[str, ...]
    created: str
    expires: str


@dataclass(frozen=True)
class ListedTokens(Report):
    """By name; expired ones, too."""

    tokens: list[ListedToken]


@verb(TokenLsOptions)
def token_ls(options: TokenLsOptions) -> ListedTokens:
    """Lists tokens: names, roles and ends, not the tokens themselves. Reads only.

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
    """Arguments:

    name: of the token.
    """

    name: str = field(kw_only=False)


@dataclass(frozen=True)
class RevokedToken(Report):
    """name: of the token that is none any more."""

    name: str
    status: str = "revoked"


@verb(TokenRevokeOptions)
def token_revoke(options: TokenRevokeOptions) -> RevokedToken:
    """Ends a token: requests with it are refused from now on.

        replicator.token_revoke("airflow")

    Raises ObjectNotFound."""
    with ServiceStore(options.settings.service.store) as store:
        store.prepare()
        revoke_token(store, options.name)
    return RevokedToken(options.name)
