"""`gateway`: a metastore in front of the metastore, where no drop deletes what the root does not have."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from cmroot.root import create_or_open
from cmroot.store.place import as_written
from replicator.captures.gateways.drops import GRACE
from replicator.captures.gateways.security import GatewaySettings, Timeouts
from replicator.captures.gateways.server import DEFAULTS, Served, opened
from replicator.commands.base import Options, verb
from replicator.commands.options import Source, SourceRoot
from replicator.core.connections import GatewayConfig
from replicator.core.option import Positive, opt, python_only
from replicator.core.runtime import Stop


@dataclass(frozen=True, kw_only=True)
class GatewayOptions(Options):
    source: Source
    cmroot: SourceRoot
    listen: Annotated[
        str, opt("Address for clients; port 0 selects a free one, 0.0.0.0 all interfaces.", metavar="HOST:PORT")
    ] = "127.0.0.1:9084"
    threads: Annotated[Positive, opt("Maximum number of concurrent clients; others wait.")] = DEFAULTS.threads
    pass_unknown_drops: Annotated[bool, opt("Forward calls that this release does not know, unprotected.")] = False
    grace: Annotated[
        timedelta, opt("Time for which a drop may continue in the metastore after its connection died.")
    ] = GRACE
    client_timeout: Annotated[
        timedelta, opt("Time limit for a client to send a call once begun, or to read a piece of an answer.")
    ] = DEFAULTS.timeouts.client
    answer_timeout: Annotated[timedelta, opt("Time limit for the metastore to begin an answer.")] = (
        DEFAULTS.timeouts.answer
    )
    stop_timeout: Annotated[timedelta, opt("Time limit for current calls when the gateway is stopped.")] = (
        DEFAULTS.timeouts.stop
    )
    ready_file: Annotated[
        str | os.PathLike[str] | None,
        opt("File to which the gateway writes its URI once clients can connect.", metavar="FILE"),
    ] = None
    ready: Annotated[Callable[[str], object] | None, python_only("Called with the URI once the gateway listens.")] = (
        None
    )
    security: Annotated[
        GatewayConfig | None, python_only("What clients must present; None: those in [gateway] of the configuration.")
    ] = None
    stop: Annotated[
        Stop | None,
        python_only(
            "Ends the gateway when set, such as a `threading.Event`; None: only a signal in the main thread does."
        ),
    ] = None


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
