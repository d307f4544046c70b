"""The scheduler: starts runs that are due, supervises their processes, and hands over when it cannot continue.

Of all servers on a store, the one that has the store's lease schedules. Each step renews the lease; a server that
cannot renew it, or whose query hangs, ends its runs before another server may start any.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from replicator.core.config import Config
from replicator.core.text import parse_duration
from replicator.errors import ConfigError, Error, StoreUnreachable
from replicator.service.jobs import Job, jobs_of
from replicator.service.runs import SCHEDULE, TOO_LONG, Child, Ended, ServiceRun, outputs_before
from replicator.service.store import ALL, JobState, ServiceStore, is_ad_hoc, placed

LEASE = 30.0  # seconds
STEP = 0.5  # seconds
FORGET = 3600.0  # seconds between removals of old runs
LOST = float("-inf")  # on the lease's clock, the end of a lease that another server has
PORTION = 100  # outputs of runs removed without a pause

log = logging.getLogger(__name__)


@dataclass
class Health:
    """The scheduler's health. `step`: end of its last step, successful or not, on the monotonic clock. leads: it has
    the lease. trouble: what prevents it from working; damage: of the store; configuration: why the current file is not
    used."""

    step: float = field(default_factory=time.monotonic)
    leads: bool = False
    epoch: int = 0
    trouble: str = ""
    damage: str = ""
    configuration: str = ""


@dataclass
class Scheduler:
    """The scheduler of a server. read: reads the configuration again; raises ConfigError. config_file: passed to each
    run. stopping: ends it. clock: of its lease, in seconds from any origin. ended: receives the policy of each run that
    ends here; "" if it has none."""

    store: ServiceStore
    read: Callable[[], Config]
    config_file: Path
    stopping: threading.Event = field(default_factory=threading.Event)
    health: Health = field(default_factory=Health)
    lease: float = LEASE
    clock: Callable[[], float] = time.monotonic
    ended: Callable[[str], None] = lambda policy: None

    def __post_init__(self) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self._children: dict[str, Child] = {}
        self._over = threading.Event()
        self._led_until = LOST
        self._forgot = float("-inf")
        self._stamp: tuple[int, int] | None = None
        self.config = self.read()
        self.jobs: Mapping[str, Job] = jobs_of(self.config.service, self.config.policies)

    def run(self) -> None:
        """Runs until `stopping` is set; then ends its runs, each within its grace period. Continues while the store is
        unreachable."""
        threading.Thread(target=self._guard, name="lease", daemon=True).start()
        threading.Thread(target=self._sweep_hourly, name="outputs", daemon=True).start()
        try:
            while not self.stopping.is_set():
                self.step()
                self.stopping.wait(STEP)
            self._end_all("the service was stopped")
            if self.health.leads:
                self._try(lambda: self.store.resign(self.name))
        finally:
            self._over.set()

    def step(self) -> None:
        """Does everything that is due now."""
        self._try(self._step)

    def _guard(self) -> None:
        """Ends the runs before another server may acquire the lease, or immediately if one has it. Runs in a thread of
        its own: a step may wait for a store that hangs."""
        while not self._over.wait(STEP):
            if self._late():
                for child in list(self._children.values()):
                    child.stop("the server lost its lease", self.lease / 6, again=True)

    def _late(self) -> bool:
        """Returns True if another server has the lease, or may soon have it."""
        return self.clock() > self._led_until

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
            if self.health.trouble:
                log.warning("over: %s", self.health.trouble)
            self.health.trouble = ""
        except Error as error:
            if self.health.trouble != error.message:
                log.warning("%s", error.message)
            self.health.trouble = error.message
        except Exception as error:  # a defect in one step must not end all schedules
            trouble = f"internal error: {type(error).__name__}: {error}; see the log of the service"
            if self.health.trouble != trouble:
                log.exception("internal error")
            self.health.trouble = trouble
        self.health.step = time.monotonic()

    def _step(self) -> None:
        self._read()
        asked = self.clock()
        epoch = self.store.lead(self.name, self.lease)
        if epoch is None:
            self.health.leads, self._led_until = False, LOST
            self._reap()
            return
        self._led_until = self._end_of(asked)
        if self._late():
            raise StoreUnreachable(f"{self.store.url} took too long to answer", hint="check its load")
        if not self.health.leads or epoch != self.health.epoch:
            log.info("%s schedules, epoch %s", self.name, epoch)
            for id in self.store.lose(epoch):
                log.warning("run %s was lost with its server", id)
        self.health.leads, self.health.epoch = True, epoch
        self._reap()
        self._lose_strays(epoch)
        known = self.store.jobs()
        self._plan(known, self.store.now())
        self._begin(epoch, {name for name, state in known.items() if state.paused})
        self._forget()

    def _end_of(self, asked: float) -> float:
        """Returns until when it may schedule with a lease requested at `asked`: its runs end while it still has the
        lease."""
        return asked + self.lease * 2 / 3

    def _read(self) -> None:
        """Reads the configuration when its file has changed; an invalid file changes nothing."""
        try:
            found = self.config_file.stat()
            stamp = (found.st_mtime_ns, found.st_size)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            config = self.read()
            self.jobs, self.config = jobs_of(config.service, config.policies), config
            self.health.configuration = ""
        except (ConfigError, OSError) as error:
            self._stamp = None  # the file may return, or become readable, with the same stamp
            if self.health.configuration != str(error):
                log.warning("the previous configuration remains in use: %s", error)
            self.health.configuration = str(error)

    def _plan(self, known: Mapping[str, JobState], now: float) -> None:
        at_work = {each.job for each in self.store.open_runs()}
        all_paused = ALL in known and known[ALL].paused
        for name, job in self.jobs.items():
            state = known.get(name)
            if state is None or state.schedule != job.schedule.text or state.due > job.schedule.latest(now):
                self.store.plan(name, job.schedule.text, job.schedule.first(now))
            elif state.due <= now and name not in at_work and not state.paused and not all_paused:
                following, missed = job.schedule.next(state.due, now)
                self.store.enqueue_due(job, state.due, missed, following)

    def _begin(self, epoch: int, paused: Set[str]) -> None:
        open_runs = self.store.open_runs()
        busy = {each.policy for each in open_runs if each.policy and each.state == "running"}
        for each in open_runs:
            if len(self._children) >= self.config.service.at_once:
                return
            held = each.asked_by == SCHEDULE and paused & {each.job, ALL}
            if each.state != "queued" or each.policy in busy or held:
                continue
            gone = self._gone(each)
            if gone:
                self.store.end(each.id, Ended("cancelled", message=f"{gone} is no longer configured"))
            elif self.store.begin(each.id, self.name, epoch) and not self._late():
                busy |= {each.policy} - {""}
                arguments = ["--config", str(self.config_file), *self._arguments(each), "--json"]
                try:
                    self._children[each.id] = self._child(each, arguments)
                    log.info("run %s of %s begins", each.id, each.job, extra={"service_run": each.id, "job": each.job})
                except OSError as error:
                    self.store.end(each.id, Ended("failed", message=str(error), hint="check service.logs and its disk"))

    def _child(self, run: ServiceRun, arguments: Sequence[str]) -> Child:
        """Starts the process of a run. If this server dies, the process ends before another server may start the next
        run, however late in its lease this server dies."""
        return Child(run.job, arguments, self.directory(run.id), self.grace, min(self.grace, self.lease / 4))

    def _gone(self, run: ServiceRun) -> str:
        """Returns the policy or job of a run if it is no longer configured; else empty."""
        if is_ad_hoc(run.job):
            return run.policy if run.policy and run.policy not in self.config.policies else ""
        return "" if run.job in self.jobs else run.job

    def _arguments(self, run: ServiceRun) -> list[str]:
        if not is_ad_hoc(run.job):
            return list(run.arguments)
        outputs = Path(self.config.service.logs).absolute()
        return [placed(each, run.id, outputs) for each in run.arguments]

    def _timeout(self, name: str) -> float | None:
        if is_ad_hoc(name):
            return parse_duration(self.config.service.asked_timeout).total_seconds()
        job = self.jobs.get(name)
        return job.timeout if job else None

    def _lose_strays(self, epoch: int) -> None:
        """Ends runs that the store lists as running here without a process: the store became unreachable while one
        started."""
        for each in self.store.open_runs():
            stray = each.state == "running" and each.epoch == epoch and each.id not in self._children
            if stray:
                hint = "nothing was done; the next run catches up"
                how = Ended("lost", message="the store became unreachable while the run began", hint=hint, again=True)
                self.store.end(each.id, how)
                log.warning("run %s was lost as it began", each.id, extra={"service_run": each.id, "job": each.job})

    def _reap(self) -> None:
        asked = {each.id: each.cancelled_by for each in self.store.open_runs() if each.cancelled_by}
        for id, child in list(self._children.items()):
            ended = child.ended()
            if ended is not None:
                self.store.end(id, ended)
                log.info(
                    "run %s of %s: %s",
                    *(id, child.job, ended.state),
                    extra={"service_run": id, "job": child.job, "exit_code": ended.exit_code},
                )
                del self._children[id]
                job = self.jobs.get(child.job)
                self.ended(job.policy or "" if job else child.job.partition(":")[2])
                continue
            timeout = self._timeout(child.job)
            if child.wanted:
                child.stop(child.wanted)
            elif id in asked:
                child.stop(f"cancelled by {asked[id]}")
            elif timeout is not None and time.monotonic() - child.begun > timeout:
                child.stop(f"{TOO_LONG} of {timeout:g} s")

    def _end_all(self, why: str) -> None:
        renewed = time.monotonic()
        while any(child.ended() is None for child in self._children.values()):
            for child in self._children.values():
                child.stop(why, again=True)
            if time.monotonic() - renewed > STEP:
                self._try(self._renew)
                renewed = time.monotonic()
            time.sleep(0.05)
        self._try(self._reap)

    def _renew(self) -> None:
        """Renews the lease that it has, while its runs end."""
        asked = self.clock()
        if self.health.leads:
            mine = self.store.lead(self.name, self.lease) == self.health.epoch
            self._led_until = self._end_of(asked) if mine else LOST
        self._reap()

    def _forget(self) -> None:
        if time.monotonic() - self._forgot > FORGET:
            self.store.forget(self.keep)
            self._forgot = time.monotonic()

    def _sweep_hourly(self) -> None:
        while not self._over.is_set():
            try:
                self._check_store()
                self.sweep()
            except (Error, OSError) as error:
                log.warning("outputs of deleted runs remain for another hour: %s", error)
            self._over.wait(FORGET)

    def _check_store(self) -> None:
        damage = self.store.damage()
        if damage != self.health.damage:
            log.warning("%s", damage or f"over: {self.health.damage}")
        self.health.damage = damage

    def sweep(self) -> None:
        """Removes this server's outputs of runs that any server has deleted from the store. Raises as the store, and
        OSError. Runs in a thread of its own: a disk may be slow."""
        logs, moment = Path(self.config.service.logs), self.store.now() - self.keep
        old = outputs_before(logs, moment)
        for start in range(0, len(old), PORTION):
            if start and self._over.wait(STEP):
                return
            some = old[start : start + PORTION]
            for id in sorted({*some} - self.store.known(some)):
                shutil.rmtree(logs / id, ignore_errors=True)

    @property
    def keep(self) -> float:
        return parse_duration(self.config.service.keep).total_seconds()

    @property
    def grace(self) -> float:
        return parse_duration(self.config.service.grace).total_seconds()

    def directory(self, id: str) -> Path:
        """Returns the directory of a run's output."""
        return Path(self.config.service.logs) / id
