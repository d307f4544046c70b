"""One call that deletes data, from its arrival to its answer: the files that it would delete are moved into
`$cmroot`, the call continues with deletion turned off, and its outcome decides whether the files remain there.

The order protects the data: files retained and moved, journal, call, outcome, entries for the capture, the answer last.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import tenacity

from cmroot.errors import Error
from cmroot.keep.intercept import Intercept, intercepts, sweep_intercepts
from cmroot.keep.journal import DONE, INTERCEPTING, DropCall, Journal
from cmroot.store.place import is_within, remove_if_empty, resolved
from replicator.captures.gateways.messages import (
    INTERNAL_ERROR,
    SHAPES,
    Drop,
    Fields,
    MessageHeader,
    NotUnderstood,
    application_error,
    declared_error,
    meta_exception_field,
    understand,
    without_deletion,
    write_struct,
)
from replicator.captures.gateways.targets import DropOutcome, Targets, Upstream, find_outcome, find_targets, homes_of
from replicator.core.model import Table
from replicator.core.named_files import ON_NODES
from replicator.core.text import printable
from replicator.errors import ObjectNotFound


def one_line(record: logging.LogRecord) -> bool:
    """Filters the records of a logger, for any of its handlers."""
    record.msg, record.args = printable(record.getMessage()), ()
    return True


# ---- believed --------------------------------------------------------------------------------------------------------
# The journals that a gateway follows when it starts. They list files to move and remove, and any user with write access
# to `$cmroot` can write one, so they may name only locations of the metastore and in its warehouse.


WAREHOUSE = "hive.metastore.warehouse.dir"


def refusal_of(journal: Journal, upstream: Upstream) -> str:
    """Returns the reason why a journal must not be followed; "" if it names known locations only. Raises
    MetastoreError, and the errors of `resolved` for a location that cannot be accessed."""
    if journal.about.keys() - {"partitions", "emptied"}:
        return f"it has fields that no gateway writes: {sorted(journal.about)}"
    around = [resolved(place) for place in _around(journal, upstream)]
    exact = [resolved(place) for place in _of_tables(journal, upstream)]
    for place in dict.fromkeys(source.place for source in journal.sources):
        real = _resolved(place)
        if not any(is_within(real, each) for each in exact) and not any(_below(real, each) for each in around):
            return f"{place} is not a location of {journal.db}.{journal.table or '*'}, and not in the warehouse"
    for place in map(str, journal.about.get("emptied", ())):
        if not any(is_within(_resolved(place), each) for each in (*around, *exact)):
            return f"{place} is not in the warehouse"
    return ""


def _resolved(place: str) -> str:
    """Returns "" for a location that cannot be accessed, which is within nothing."""
    try:
        return resolved(place)
    except (Error, OSError, ValueError):
        return ""


def _below(place: str, other: str) -> bool:
    return place != other and is_within(place, other)


def _around(journal: Journal, upstream: Upstream) -> Iterator[str]:
    """Yields the locations below which tables are created: they are all that is known of a dropped table's location."""
    if warehouse := upstream.setting(WAREHOUSE):
        yield warehouse
    try:
        yield from homes_of(upstream.database(journal.db))
    except ObjectNotFound:
        return


def _of_tables(journal: Journal, upstream: Upstream) -> Iterator[str]:
    names = sorted({source.table for source in journal.sources} | ({journal.table} if journal.table else set()))
    try:
        tables = upstream.tables(journal.db, names)
    except ObjectNotFound:
        return
    for table in tables:
        yield from _of_table(table, upstream)


def _of_table(table: Table, upstream: Upstream) -> Iterator[str]:
    if table.storage and table.storage.location:
        yield table.storage.location
    if table.is_partitioned:
        yield from (
            each.location for batch in upstream.all_partitions(table.db, table.name) for each in batch if each.location
        )


# ---- drops -----------------------------------------------------------------------------------------------------------


GRACE = timedelta(seconds=10)
"""How long a call whose connection was lost may still be running in the metastore before it counts as not executed."""

ANNOUNCED_WITHIN = 2.0  # seconds; a listener that is not transactional writes its event shortly after the change
PAUSE = 0.1  # seconds between two queries

log = logging.getLogger(__name__)
log.addFilter(one_line)


class UpstreamLost(Exception):
    """Raised when the connection to the metastore was lost before the answer was complete."""


@dataclass(frozen=True)
class Reply:
    """The unchanged answer of the metastore. `succeeded`: it is not an error, declared or undeclared."""

    data: bytes
    succeeded: bool


Forward = Callable[[bytes], Reply]
"""Sends a message to the metastore and waits for the answer. Raises UpstreamLost."""


@dataclass
class Counts:
    """Counters of a gateway. `intercepted`: calls that would have deleted data; `refused`: not forwarded ones."""

    connections: int = 0
    calls: int = 0
    intercepted: int = 0
    refused: int = 0
    files: int = 0
    bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **more: int) -> None:
        with self._lock:
            for name, number in more.items():
                setattr(self, name, getattr(self, name) + number)


class Drops:
    """The execution of calls that delete data, for all connections; one call at a time for each table."""

    def __init__(self, upstream: Upstream, root: str, counts: Counts, *, grace: timedelta = GRACE) -> None:
        self._upstream, self._root, self._counts, self._grace = upstream, root, counts, grace
        self._stopped = threading.Event()
        self._locks = _Locks(self._stopped)
        self._undecided: dict[str, Intercept] = {}
        self._settling = threading.Lock()
        self._catalog = upstream.default_catalog

    def give_up(self) -> None:
        """Refuses and puts back calls that are not sent yet. May be called from any thread."""
        self._stopped.set()
        self._locks.wake()

    def run(self, header: MessageHeader, arguments: Fields, forward: Forward) -> bytes:
        """Returns the answer to a call of SHAPES. Raises UpstreamLost only if nothing was intercepted."""
        try:
            drop = understand(header.name, arguments, self._catalog)
        except NotUnderstood as error:
            return self._refuse(header, str(error))
        if not drop.deletes:
            return forward(header.encode() + write_struct(arguments)).data
        self._counts.add(intercepted=1)
        with self._locks.hold(drop.db, drop.table) as held:
            try:
                if not held:
                    raise Error("the gateway is stopping: try again")
                intercept, targets = self._take(drop)
            except (Error, OSError) as error:
                return self._refuse(header, f"{drop.call}: nothing was dropped: {_said(error)}")
            as_it_came = header.encode() + write_struct(arguments)
            message = as_it_came if targets.must_delete else without_deletion(header, arguments)
            if intercept is None:
                reply = forward(message)
                if reply.succeeded:
                    _tidy(targets.about())
                return reply.data
            return self._send(header, drop, intercept, message, forward)

    # ---- before ---------------------------------------------------------------------------------------------------

    def _take(self, drop: Drop) -> tuple[Intercept | None, Targets]:
        """Protects what would be deleted; None if there is nothing: no such table, or no data to delete."""
        self._wait_for_others(drop)
        try:
            targets = find_targets(self._upstream, drop)
        except ObjectNotFound:
            return None, Targets()
        if targets.staying:
            log.warning("%s of %s.%s: %s stays: %s", drop.call, drop.db, drop.table, targets.staying, ON_NODES)
        if not targets.sources:
            return None, targets
        call = DropCall(
            before_event=self._upstream.current_event_id(),
            call=drop.call,
            db=drop.db,
            table=drop.table,
            empties=drop.kind == "truncate",
            about=targets.about(),
        )
        intercept = Intercept.begin(self._root, call, targets.sources, targets.owners, stopped=self._stopped)
        try:
            intercept.protect()
        except BaseException:
            self._leave(intercept)
            raise
        return intercept, targets

    def _leave(self, intercept: Intercept) -> None:
        """Adds an intercept to the undecided ones if it could not be finished."""
        if intercept.open:
            self._undecided[intercept.journal.id] = intercept

    def _wait_for_others(self, drop: Drop) -> None:
        for intercept in list(self._undecided.values()):
            journal = intercept.journal
            if journal.db == drop.db and (not drop.table or not journal.table or journal.table == drop.table):
                raise Error(f"an earlier {journal.call} of {journal.db}.{journal.table} is not decided yet: try again")

    # ---- the call, and its outcome --------------------------------------------------------------------------

    def _send(self, header: MessageHeader, drop: Drop, intercept: Intercept, message: bytes, forward: Forward) -> bytes:
        try:
            intercept.sent()
        except (Error, OSError) as error:
            self._leave(intercept)
            return self._refuse(header, f"{drop.call}: nothing was dropped: {_said(error)}")
        lost: UpstreamLost | None = None
        reply = Reply(b"", False)
        began = time.monotonic()
        try:
            reply = forward(message)
        except UpstreamLost as error:
            lost = error
        files, size = intercept.files, intercept.bytes
        try:
            happened = self._decide(intercept, reply, began if lost else None)
        except Exception as error:
            log.error("%s of %s.%s: %s; will be tried again later", drop.call, drop.db, drop.table, _said(error))
            self._leave(intercept)
            happened = reply.succeeded or bool(intercept.journal.events)
        if happened:
            self._counts.add(files=files, bytes=size)
        if lost is not None:
            return self._refuse(
                header, f"{drop.call}: the connection to the metastore was lost: {lost}; {_state(intercept, happened)}"
            )
        return reply.data

    def _decide(self, intercept: Intercept, reply: Reply, lost_since: float | None) -> bool:
        """Finishes an intercept. Returns True if anything was dropped. With `lost_since`, only the metastore knows the
        outcome, and it may still be executing the call: a missing drop counts only after the grace period."""
        events = self._announced(intercept).events if reply.succeeded else self._found(intercept, lost_since)
        intercept.settle(events)
        if events:
            _tidy(intercept.journal.about)
        return bool(events)

    def _announced(self, intercept: Intercept) -> DropOutcome:
        """Returns the outcome of a successful call: everything was dropped, and the events exist or will follow."""
        tables = intercept.tables
        outcome = self._asked(intercept, ANNOUNCED_WITHIN, lambda outcome: outcome.announced == tables)
        newest = self._upstream.current_event_id()
        return DropOutcome({table: outcome.events.get(table, newest) for table in tables}, outcome.announced)

    def _found(self, intercept: Intercept, lost_since: float | None) -> dict[str, int]:
        left = 0.0 if lost_since is None else lost_since + self._grace.total_seconds() - time.monotonic()
        return self._asked(intercept, left, lambda outcome: outcome.events.keys() == intercept.tables).events

    def _asked(self, intercept: Intercept, seconds: float, settled: Callable[[DropOutcome], bool]) -> DropOutcome:
        """Queries the outcome until it is settled or `seconds` have passed, also while the metastore is away."""
        away = tenacity.retry_if_exception(lambda error: isinstance(error, Error) and error.transient)
        tries = tenacity.Retrying(
            retry=away | tenacity.retry_if_not_result(settled),
            stop=tenacity.stop_after_delay(seconds),
            wait=tenacity.wait_fixed(PAUSE),
            retry_error_callback=lambda state: state.outcome and state.outcome.result(),
        )
        return tries(find_outcome, self._upstream, intercept.journal, _kind(intercept))

    # ---- intercepts left by a crash ---------------------------------------------------------------------------------

    def recover(self) -> None:
        """Takes over the intercepts left by a crash. Must run before the first connection. Calls that were never sent
        are put back at once; the others are left to `settle_undecided`. Journals that name locations outside the
        warehouse are logged and skipped. Raises FormatError for a damaged one."""
        sweep_intercepts(self._root)
        for intercept in intercepts(self._root, lambda place, journal: refusal_of(journal, self._upstream)):
            if intercept.journal.state == INTERCEPTING:
                intercept.put_back()
            else:
                self._leave(intercept)

    @property
    def undecided(self) -> int:
        return len(self._undecided)

    def settle_undecided(self) -> int:
        """Tries to finish undecided intercepts. Returns how many are left. Errors are logged, and retried later."""
        with self._settling:
            for name, intercept in list(self._undecided.items()):
                journal = intercept.journal
                with self._locks.hold(journal.db, journal.table) as held:
                    if not held:
                        break
                    try:
                        self._settle(intercept)
                    except Exception as error:
                        what = f"{journal.call} of {journal.db}.{journal.table}"
                        log.warning("%s is not finished yet: %s", what, _said(error))
                        continue
                    if not intercept.open:
                        del self._undecided[name]
            return len(self._undecided)

    def _settle(self, intercept: Intercept) -> None:
        if intercept.journal.state == INTERCEPTING:
            intercept.put_back()
        elif intercept.journal.state == DONE:
            intercept.settle(intercept.journal.events)
        else:
            events = find_outcome(self._upstream, intercept.journal, _kind(intercept)).events
            tables = intercept.tables
            if events.keys() != tables and time.time() < intercept.journal.sent_at + self._grace.total_seconds():
                return
            intercept.settle(events)
        if intercept.journal.events:
            _tidy(intercept.journal.about)

    def _refuse(self, header: MessageHeader, message: str) -> bytes:
        self._counts.add(refused=1)
        log.warning("refused: %s", message)
        return refusal(header, message)


def refusal(header: MessageHeader, message: str) -> bytes:
    """Returns an error as the method declares it, so that clients show its text; otherwise one of the protocol."""
    field = meta_exception_field(header.name)
    if field is None:
        return application_error(header, INTERNAL_ERROR, message)
    return declared_error(header, field, message)


def _kind(intercept: Intercept) -> str:
    return SHAPES[intercept.journal.call].kind


def _said(error: Exception) -> str:
    return error.message if isinstance(error, Error) else str(error)


def _state(intercept: Intercept, happened: bool) -> str:
    if intercept.open:
        return "it is not known whether the drop happened; the files remain in $cmroot until it is"
    return "the drop happened, and the files are kept" if happened else "nothing was dropped"


def _tidy(about: Mapping[str, Any]) -> None:
    """Removes the directories that a server also removes if they are empty: those above a dropped partition, and a
    dropped database's own. A directory that is not empty is retained: its content belongs to no dropped table."""
    for place in about.get("emptied", ()):
        try:
            remove_if_empty(place)
        except (Error, OSError) as error:  # the drop has happened, and its data is retained
            log.warning("an emptied directory remains: %s", _said(error))


class _Locks:
    """Locks by table, and by database (an empty table name), which excludes all of its tables."""

    def __init__(self, stopped: threading.Event) -> None:
        self._stopped = stopped
        self._held: set[tuple[str, str]] = set()
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def hold(self, db: str, table: str) -> Iterator[bool]:
        """Yields True if the lock is held; False if the gateway stopped first."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped.is_set() or self._is_free(db, table))
            if self._stopped.is_set():
                taken = False
            else:
                self._held.add((db, table))
                taken = True
        try:
            yield taken
        finally:
            with self._changed:
                if taken:
                    self._held.remove((db, table))
                self._changed.notify_all()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _is_free(self, db: str, table: str) -> bool:
        return not any(self._excludes(held, db, table) for held in self._held)

    @staticmethod
    def _excludes(held: tuple[str, str], db: str, table: str) -> bool:
        return held[0] == db and (not table or held[1] in ("", table))
