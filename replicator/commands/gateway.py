"""`gateway`: a metastore in front of the metastore, where no drop deletes what the root does not have."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from cmroot.root import create_or_open
from cmroot.store.place import as_written
from replicator.captures.gateways.drops import GRACE
from replicator.captures.gateways.security import GatewaySettings, Timeouts
from replicator.captures.gateways.server import DEFAULTS, Served, opened
from replicator.commands.base import Options, Where, verb
from replicator.commands.ranges import Positive
from replicator.core.connections import GatewayConfig
from replicator.core.runtime import Stop


@dataclass(frozen=True, kw_only=True)
class GatewayOptions(Options):
    """Arguments:

    source: the metastore behind: a thrift URI, several separated by commas, or a configured name.
    cmroot: the source's change-management root; made where there is none.
    listen: "host:port" where clients connect; port 0 takes a free one, 0.0.0.0 all interfaces.
    threads: clients served at once; more of them wait.
    pass_unknown_drops: let calls through that this release does not know, whatever they delete.
    grace: how long a drop whose connection died may still be running in the metastore.
    client_timeout: for a client to send a call that it has begun, or to read a piece of an answer.
    answer_timeout: for the metastore to answer a call.
    stop_timeout: for calls under way when the gateway is stopped.
    ready_file: the URI is written there once clients can connect.
    ready: called with the URI then.
    security: what is asked of clients; None: as [gateway] of the configuration says.
    stop: ends the gateway, a `threading.Event`; None: only a signal in the main thread does.
    """

    source: Where
    cmroot: str
    listen: str = "127.0.0.1:9084"
    threads: Positive = DEFAULTS.threads
    pass_unknown_drops: bool = False
    grace: timedelta = GRACE
    client_timeout: timedelta = DEFAULTS.timeouts.client
    answer_timeout: timedelta = DEFAULTS.timeouts.answer
    stop_timeout: timedelta = DEFAULTS.timeouts.stop
    ready_file: str | os.PathLike[str] | None = None
    ready: Callable[[str], object] | None = None
    security: GatewayConfig | None = None
    stop: Stop | None = None


@verb(GatewayOptions)
def gateway(options: GatewayOptions) -> Served:
    """Serves the source's metastore to any client, and takes what a drop would delete into the root first. Returns when
    it was stopped and calls under way are done. May run again after a crash: it finds what became of drops then.

        stop = threading.Event()
        replicator.gateway(source="thrift://a:9083", cmroot="/cm", listen="10.0.0.5:9084", stop=stop)

    Raises NotificationLogOff for a metastore whose drops no capture would see; LeaseHeld when another gateway works on
    the root; UsageError for an address that cannot be had."""
    root = create_or_open(options.cmroot)
    timeouts = Timeouts(options.client_timeout, options.answer_timeout, options.stop_timeout)
    settings = GatewaySettings(
        threads=options.threads,
        pass_unknown=options.pass_unknown_drops,
        grace=options.grace,
        timeouts=timeouts,
        security=options.security or options.settings.gateway,
    )
    with options.connected(options.source) as upstream, opened(upstream, root, options.listen, settings) as served:
        code = served.wait(options.stop, lambda: _tell(options, served.uri))
        report = served.stop()
    report.exit_code = code
    return report


def _tell(options: GatewayOptions, uri: str) -> None:
    if options.ready is not None:
        options.ready(uri)
    if options.ready_file is not None:
        as_written(os.fspath(options.ready_file)).write_bytes(uri.encode() + b"\n")
