"""A controller: claims jobs, runs them concurrently, and resumes jobs of other controllers. Any number may run.

All its state is in the store: a controller may be killed at any line, and the next claim resumes at the first
incomplete step.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cmroot.store.place import join
from replicator.core.logging import own_lines_about, step
from replicator.core.runtime import Runtime, Stop
from replicator.core.source_config import IngestionConfig
from replicator.core.text import count_text, parse_duration
from replicator.errors import Error, Fenced
from replicator.ingestion.ingestion_request import Claimed, check_approved, with_class
from replicator.ingestion.ingestion_shown import IngestionReport
from replicator.ingestion.job_answers import failure_of
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.landing.increments import lacking, unguarded
from replicator.ingestion.landing.landing_log import Work, append, discard, is_there
from replicator.ingestion.landing.landing_steps import STEPS, remaining
from replicator.ingestion.notices import Undelivered
from replicator.ingestion.reading.request_selection import without_values
from replicator.metastore.client import Metastore

PAUSE = 2.0
"""Seconds between two attempts to claim a job while the queue is empty."""

LOGGED = 30.0
"""Seconds between two batches appended to the log's table."""

BATCH = 10_000
"""Maximum number of rows of one batch."""

DIRECTORY = "_ingestion_log"
"""The directory of the log's table, next to those of the assets."""

log = logging.getLogger(__name__)


@dataclass
class Worked(IngestionReport):
    """The result of a run. done: jobs that this controller completed; failed: attempts that failed; lost: jobs that
    another controller took over. errors: texts of the most recent failures, one each. missing: landing tables with
    fewer rows than their source. unguarded: landing tables that may miss rows of transactions that commit late, with
    the reason. lacking: landing tables whose new directory or files lack rights of the former ones. undelivered:
    messages, of all jobs, that have not been delivered to their receivers yet."""

    status: str = "done"
    done: int = 0
    failed: int = 0
    lost: int = 0
    rows: int = 0
    bytes: int = 0
    errors: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unguarded: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    undelivered: int = 0

    def tell_rows(self, table: str, facts: Mapping[str, Any]) -> None:
        """Adds a landing table that lacks rows of its source, or that may, or rights of the directory before."""
        if told := lacking(facts, table):
            self.missing = [*self.missing[-99:], told]
        if told := unguarded(facts):
            self.unguarded = [*self.unguarded[-99:], f"{table}: {told}"]
        if facts.get("rights"):
            self.lacking = [*self.lacking[-99:], f"{table}: {facts['rights']}"]
        if self.missing or self.unguarded or self.lacking:
            self.status = "partial"

    def tell_undelivered(self, messages: Sequence[Undelivered]) -> None:
        """Adds a line per receiver with undelivered messages to `errors`. A message that was never tried belongs to
        another controller or to the next run, and is not a failure."""
        self.undelivered = len(messages)
        waiting: dict[str, list[Undelivered]] = {}
        for each in messages:
            waiting.setdefault(each.receiver, []).append(each)
        for name, mine in waiting.items():
            why = next((each.error for each in mine if each.tries), "")
            self.status = "partial" if why else self.status
            self.errors.append(f"{name}: {count_text(len(mine), 'message')} not delivered: {why or 'not tried yet'}")


class Controller:
    """A worker that claims jobs and runs them until `stop` is set, or until no claimable job remains.

    sessions: returns a new Spark session for each job; called in the job's thread. stop: once set, running jobs
    complete their current step, and no further job is claimed. holder: the controller's identity in the store."""

    def __init__(
        self,
        store: IngestionStore,
        config: IngestionConfig,
        metastore: Metastore,
        runtime: Runtime,
        sessions: Callable[[], Any],
        stop: Stop,
    ) -> None:
        self._store, self._config, self._metastore = store, config, metastore
        self._runtime, self._sessions = runtime, sessions
        self._lease = parse_duration(config.lease).total_seconds()  # renewed after each third of it
        self._stop = stop
        self._counting = threading.Lock()
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.worked = Worked(single_user=config.single_user)

    def run(self, *, once: bool = True) -> Worked:
        """Runs jobs until none is claimable; with once=False, until `stop` is set."""
        at_work: set[Future[None]] = set()
        logged = time.monotonic()
        self._keep_house()
        with ThreadPoolExecutor(self._config.slots, thread_name_prefix="job") as pool:
            while not self._stop.is_set():
                if time.monotonic() - logged > LOGGED:
                    self._keep_house()
                    logged = time.monotonic()
                claimed = self._claim(once) if len(at_work) < self._config.slots else None
                if claimed is not None:
                    at_work.add(pool.submit(self._work_on, claimed))
                    continue
                if at_work:
                    ended, at_work = wait(at_work, PAUSE, FIRST_COMPLETED)
                    for each in ended:
                        each.result()
                elif once:
                    break
                else:
                    self._stop.wait(PAUSE)
            for each in at_work:
                each.result()
        self._keep_house()
        return self.worked

    def _keep_house(self) -> None:
        """Expires jobs that have been failing for too long, and appends all pending changes, of any controller, to the
        log's table in the warehouse. Changes that cannot be appended because the table or the store is unavailable are
        part of the next batch."""
        try:
            self._store.expire(parse_duration(self._config.expire), self._config.attempts)
            while found := self._store.begin_logging(BATCH):
                rows = [msgspec.structs.asdict(each) for each in found]
                append(self._metastore, join(self._config.landing, DIRECTORY), self._config.log, rows)
                self._store.end_logging(found[-1].id)
        except Error as error:
            log.warning("appending to table %s failed: %s", self._config.log, error)
            with self._counting:
                self.worked.status = "partial"
                self.worked.errors = [*self.worked.errors[-9:], f"{self._config.log}: {error.message}"]

    def _claim(self, once: bool) -> Claimed | None:
        """Raises the store's errors; without `once`, a transient error is logged and the claim is retried."""
        try:
            return self._store.claim(self.holder, self._lease, self._config.slots, self._config.share)
        except Error as error:
            if once or not error.transient:
                raise
            log.warning("claiming a job failed: %s", error)
            return None

    def _work_on(self, claimed: Claimed) -> None:
        work = None
        try:
            with self._held(claimed) as held:
                work = Work(
                    claimed,
                    with_class(self._store.asset(claimed.request.asset), self._config),
                    self._config,
                    self._metastore,
                    self._runtime.engines,
                    self._sessions(),
                    self._store.last_facts(claimed.request),
                    self._store.kept,
                )
                self._perform(work, held)
        except Fenced as error:
            log.warning("job %s: %s", claimed.job, error)
            with self._counting:
                self.worked.lost += 1
        except Exception as error:
            self._failed(claimed, work, error)

    def _perform(self, work: Work, held: Callable[[], None]) -> None:
        claimed, facts = work.claimed, dict(work.claimed.facts)
        if claimed.cancelled and not is_there(work, facts):
            self._store.unpublished(claimed)
            return
        check_approved(work.asset, self._config)
        steps = remaining(claimed.step)
        title = f"job {claimed.job}: {claimed.request.place}"
        with own_lines_about(job=claimed.job), self._runtime.progress.task(title, len(steps)) as advance:
            for name in steps:
                held()
                if self._stop.is_set():
                    self._store.release(claimed)
                    return
                with step(name), without_values(claimed.request):
                    facts |= STEPS[name](work, facts)
                held()
                if name == "publish":
                    self._store.published(claimed, facts["event"], facts)
                else:
                    self._store.step_done(claimed, name, facts)
                advance()
            self._store.done(claimed)
        with self._counting:
            self.worked.done += 1
            self.worked.rows += facts["rows"]
            self.worked.bytes += facts["bytes"]
            self.worked.tell_rows(".".join(claimed.request.target), facts)

    def _failed(self, claimed: Claimed, work: Work | None, error: Exception) -> None:
        """Records the failure; deletes copies of a job that waits for another request. If the store is unavailable, the
        lease expires."""
        failure = failure_of(error)
        log.warning("job %s failed: %s", claimed.job, failure.text, exc_info=not isinstance(error, Error))
        with self._counting:
            self.worked.failed += 1
            self.worked.status = "partial"
            self.worked.errors = [*self.worked.errors[-9:], f"job {claimed.job}: {failure.text}"]
        try:
            self._store.fail(claimed, failure)
            if work is not None and self._store.kept(claimed.job) == frozenset():
                discard(work)
        except Error as failed:
            log.warning("job %s: its outcome was not recorded: %s", claimed.job, failed)

    @contextlib.contextmanager
    def _held(self, claimed: Claimed) -> Iterator[Callable[[], None]]:
        """Renews the lease inside the block. Yields a function that raises Fenced once the lease is lost."""
        over, lost = threading.Event(), threading.Event()

        def renew() -> None:
            while not over.wait(self._lease / 3):
                try:
                    self._store.renew(claimed, self._lease)
                except Fenced:
                    lost.set()
                    return
                except Error as error:  # the store is unavailable: the lease is valid until it expires
                    log.warning("job %s: its claim was not renewed: %s", claimed.job, error)

        def held() -> None:
            if lost.is_set():
                raise Fenced(f"job {claimed.job} was taken over by another controller")

        thread = threading.Thread(target=renew, name=f"lease-{claimed.job}", daemon=True)
        thread.start()
        try:
            yield held
        finally:
            over.set()
            thread.join()
