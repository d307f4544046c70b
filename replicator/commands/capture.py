"""Commands at the source: `capture` appends the newest events to the captured log, once or repeatedly; `gateway` is a
proxy of the metastore that stores the files of a drop in the root before the drop deletes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event
from typing import Annotated, ClassVar

from cmroot.root import create_or_open
from cmroot.store.place import as_written
from replicator.captures import capture as capturing
from replicator.captures.gateways.drops import GRACE
from replicator.captures.gateways.security import GatewaySettings, Timeouts
from replicator.captures.gateways.server import DEFAULTS, Served, opened
from replicator.captures.recording import Captured
from replicator.commands.base import Copying, Options, names, pairs, verb
from replicator.commands.of_policy import OfPolicy
from replicator.commands.options import (
    AllDatabases,
    CapturedDatabases,
    DeclaredEmpty,
    DeepScan,
    GrantsOption,
    KeeperChoice,
    OptionalPolicy,
    OutsideDirectories,
    ScanChoice,
    ScanTime,
    Source,
    SourceCatalog,
    SourceRoot,
)
from replicator.core import runtime as following
from replicator.core.connections import GatewayConfig
from replicator.core.option import Positive, opt, python_only
from replicator.core.runtime import Stop
from replicator.core.text import check_queues
from replicator.errors import Error, LeaseHeld, UsageError

# ---- capture ---------------------------------------------------------------------------------------------------------


def _ignore(*about: object) -> None:
    """Does nothing."""


@dataclass(frozen=True, kw_only=True)
class CaptureOptions(Copying, OfPolicy):
    chooses: ClassVar = "source"
    needed: ClassVar = ("source", "cmroot")

    policy: OptionalPolicy = field(default=None, kw_only=False)
    source: Source = ""
    catalog: SourceCatalog = None
    cmroot: SourceRoot = ""
    db: CapturedDatabases = ()
    all_databases: AllDatabases = False
    scan: ScanChoice = True
    scan_time: ScanTime = None
    deep: DeepScan = False
    repair: Annotated[bool, opt("After lost events, compare everything instead of failing.")] = False
    grants: GrantsOption = None
    keeper: KeeperChoice = None
    s3_events: Annotated[
        Mapping[str, str] | Sequence[str],
        opt(
            "URL of the SQS queue to which a bucket (s3://NAME) sends notifications of all changes: "
            "directories that they do not name are listed only once a day; repeatable.",
            metavar="BUCKET=QUEUE",
        ),
    ] = ()
    iceberg_outside: OutsideDirectories = ()
    empty: DeclaredEmpty = ()
    follow: Annotated[bool, opt("Capture repeatedly until stopped.")] = False
    interval: Annotated[timedelta, opt("Interval between captures of --follow.")] = timedelta(seconds=10)
    reported: Annotated[
        Callable[[Captured], None], python_only("Called while following, with the report of each capture.")
    ] = _ignore
    failed: Annotated[
        Callable[[Exception, float], None],
        python_only("Called while following, with each transient error and the seconds until the next try."),
    ] = _ignore


@verb(CaptureOptions)
def capture(options: CaptureOptions) -> Captured:
    """Appends to the captured log all events since the last capture, with the files and checksums of every change, and
    retains their bytes. May run again at any time, also after a crash.

        replicator.capture(source="thrift://a:9083", cmroot="/warehouse/.cmroot", db="sales")
        replicator.capture("west")

    Raises BootstrapNeeded for lost events; ObjectNotFound for a database that does not exist; KeepError if no keeper
    supports a store; LeaseHeld while another run holds the root's lease; UsageError for `empty` objects that are not
    captured."""
    if options.follow and options.empty:
        raise UsageError("--empty applies to one capture", hint="capture once with it, then follow without")
    root = create_or_open(options.cmroot)
    wanted = capturing.CaptureSettings(
        names(options.db),
        everything=options.all_databases,
        scan=options.scan,
        scan_time=options.scan_time,
        paced=True,
        deep=options.deep,
        repair=options.repair,
        grants=options.grants != "ignore",
        keeper=options.keeper or "auto",
        s3_events=_queues(options.s3_events),
        outside=options.iceberg_outside,
        empty=options.empty,
    )
    with options.runtime() as runtime, options.connected(options.source) as source:

        def once() -> Captured:
            return capturing.capture(source, root, wanted, runtime)

        def one() -> float:
            options.reported(once())
            return following.spread(options.interval)

        if options.follow:
            following.follow(one, options.failed, stop=Event(), passes=_can_pass)
        return once()


def _queues(given: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Returns the queues by bucket. Raises UsageError for an invalid bucket, and for one queue of two buckets."""
    queues = dict(pairs(given, "--s3-events"))
    try:
        check_queues(queues)
    except ValueError as error:
        hint = "give each bucket a queue of its own, as s3://BUCKET=https://sqs.REGION.amazonaws.com/..."
        raise UsageError(f"--s3-events: {error}", hint=hint) from error
    return queues


def _can_pass(error: Exception) -> bool:
    """Returns True for an error that --follow retries: the metastore is unavailable, or a dump holds the lease."""
    return isinstance(error, LeaseHeld) or (isinstance(error, Error) and error.transient)


# ---- gateway ---------------------------------------------------------------------------------------------------------


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
        timedelta, opt("Time limit for a client to send the rest of a call, or to read a part of a response.")
    ] = DEFAULTS.timeouts.client
    answer_timeout: Annotated[timedelta, opt("Time limit for the metastore to begin its response.")] = (
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
        GatewayConfig | None, python_only("Requirements for clients; None: those in [gateway] of the configuration.")
    ] = None
    stop: Annotated[
        Stop | None,
        python_only(
            "Ends the gateway when set, such as a `threading.Event`; None: only a signal in the main thread does."
        ),
    ] = None


@verb(GatewayOptions)
def gateway(options: GatewayOptions) -> Served:
    """Serves the source's metastore to any client, and moves files that a drop would delete into the root first.
    Returns after it was stopped and running calls have ended. May run again after a crash: it then determines the
    outcome of interrupted drops.

        stop = threading.Event()
        replicator.gateway(source="thrift://a:9083", cmroot="/cm", listen="10.0.0.5:9084", stop=stop)

    Raises NotificationLogOff for a metastore that writes no events, so that no capture would see its drops; LeaseHeld
    while another gateway uses the root; UsageError for an address that is invalid or in use."""
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
