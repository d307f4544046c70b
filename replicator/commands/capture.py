"""`capture`: bring the captured log up to now, once or again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event
from typing import ClassVar

from cmroot.root import create_or_open
from replicator.captures import capture as capturing
from replicator.captures.recording import Captured
from replicator.commands.base import Copying, Where, names, pairs, verb
from replicator.commands.of_policy import OfPolicy
from replicator.core import runtime as following
from replicator.core.policy import Keeper
from replicator.core.text import check_queues
from replicator.errors import Error, LeaseHeld, UsageError


def _nobody(*about: object) -> None:
    """Does nothing."""


@dataclass(frozen=True, kw_only=True)
class CaptureOptions(Copying, OfPolicy):
    """Arguments:

    source: the source's metastore: a thrift URI, several separated by commas, or a configured name.
    catalog: whose databases are meant, on Hive 3 and newer; None: the server's default one.
    cmroot: the source's change-management root; made where there is none.
    db: a database to capture from now on, or several; none: those captured already, of a new root all there are.
    all_databases: capture every database that the metastore has now.
    scan: look for changes that left no event. deep: of each partition, too.
    scan_time: look at tables for about so long, and go on after them in the next capture; None: at all.
    repair: after lost events, compare everything instead of failing.
    keeper: auto, link, version, native, copy or none: how bytes are kept; None: as the policy says, else auto.
    s3_events: queues (SQS) to which buckets send notifications of all changes, as a mapping {"s3://bucket": URL} or
        "s3://bucket=URL" texts: what they do not name is not listed, but for once a day. None: as the policy says.
    empty: objects ("db.table", "db.table/day=1") whose directory is missing and which are really empty.
    follow: capture again and again, until an exception such as KeyboardInterrupt ends it.
    interval: the time between two captures of a following.
    reported: called with the report of each capture of a following.
    failed: called with each error that may pass while following, and the seconds to the next try.
    """

    needed: ClassVar = ("source", "cmroot")

    policy: str | None = field(default=None, kw_only=False)
    source: Where = ""
    catalog: str | None = None
    cmroot: str = ""
    db: str | Sequence[str] = ()
    all_databases: bool = False
    scan: bool = True
    scan_time: timedelta | None = None
    deep: bool = False
    repair: bool = False
    keeper: Keeper | None = None
    s3_events: Mapping[str, str] | Sequence[str] = ()
    empty: Sequence[str] = ()
    follow: bool = False
    interval: timedelta = timedelta(seconds=10)
    reported: Callable[[Captured], None] = _nobody
    failed: Callable[[Exception, float], None] = _nobody


@verb(CaptureOptions)
def capture(options: CaptureOptions) -> Captured:
    """Brings the captured log up to now: events, and the files and checksums of every change, whose bytes are kept.
    May run again at any time, also after a crash.

        replicator.capture(source="thrift://a:9083", cmroot="/warehouse/.cmroot", db="sales")
        replicator.capture("west")

    Raises BootstrapNeeded for lost events; ObjectNotFound for a database that does not exist; KeepError where a store
    can keep nothing; LeaseHeld while another run has the root; UsageError for `empty` objects that are not captured."""
    if options.follow and options.empty:
        raise UsageError("--empty is about one capture", hint="capture once with it, then follow without")
    root = create_or_open(options.cmroot)
    wanted = capturing.CaptureSettings(
        names(options.db),
        everything=options.all_databases,
        scan=options.scan,
        scan_time=options.scan_time,
        deep=options.deep,
        repair=options.repair,
        keeper=options.keeper or "auto",
        s3_events=_queues(options.s3_events),
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
    """By bucket. Raises UsageError for what is no bucket, and for a queue of two."""
    queues = dict(pairs(given, "--s3-events"))
    try:
        check_queues(queues)
    except ValueError as error:
        hint = "give each bucket a queue of its own, as s3://BUCKET=https://sqs.REGION.amazonaws.com/..."
        raise UsageError(f"--s3-events: {error}", hint=hint) from error
    return queues


def _can_pass(error: Exception) -> bool:
    """Whether a following tries again: the metastore is away, or a dump holds the lease."""
    return isinstance(error, LeaseHeld) or (isinstance(error, Error) and error.transient)
