"""Metrics that are not measured for each request: slow measurements, and the command `metrics`.

The scheduling server stores slow measurements for all servers: roots once an hour, and when each policy was last
compared. The command measures now what `/metrics` shows, for use without the service.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

from replicator.commands.base import Options, verb
from replicator.core.config import Config
from replicator.core.logging import Periodic
from replicator.core.not_replicated import Report
from replicator.core.option import opt
from replicator.errors import Error, NotWritable
from replicator.policies.memory import Compared
from replicator.service import metric_families
from replicator.service.measuring import (
    SECONDS,
    Apart,
    LagWatch,
    MeasuredLag,
    RootSample,
    directories_of,
    disk_of,
    measured,
    sample_root,
)
from replicator.service.schema import REVISIONS, Sample, counts, remember, samples
from replicator.service.store import REVISION, ServiceStore

# ---- slow measurements -----------------------------------------------------------------------------------------------


ROOT, COMPARED = "root", "compared"
HOURLY = 3600.0
STEP = 5.0  # seconds

log = logging.getLogger(__name__)
repeated = Periodic(log, every=600.0)


@dataclass
class SlowWatch:
    """The slow measurements. leads: returns True if this server schedules. watch: of the lag, which has the
    comparisons."""

    store: ServiceStore
    config: Callable[[], Config]
    leads: Callable[[], bool]
    watch: LagWatch
    stopping: threading.Event
    _tried: dict[str, float] = field(default_factory=dict)
    _sampled: deque[tuple[str, RootSample | str]] = field(default_factory=deque)
    _apart: Apart = field(default_factory=lambda: Apart(1, 3 * SECONDS))

    def run(self) -> None:
        """Runs until `stopping` is set."""
        while not self.stopping.wait(STEP):
            try:
                if self.leads():
                    self.step()
            except Error as error:
                repeated.warning("measuring: %s", error.message)
            except Exception:  # continues, as the scheduler does
                log.exception("measuring: internal error")

    def step(self) -> None:
        """Starts measurements that are due, and stores results. Raises StoreUnreachable."""
        now = self.store.now()
        with self.store.transaction() as connection:
            roots, compared = samples(connection, ROOT), samples(connection, COMPARED)
        for name, found in list(self.watch.found.items()):
            if found.compared is not None:
                self._remember(COMPARED, name, msgspec.json.decode(msgspec.json.encode(found.compared)), now, compared)
        for place in roots_of(self.config()):
            due = now - roots[place].at >= HOURLY if place in roots else True
            tried = time.monotonic() - self._tried.get(place, float("-inf")) < HOURLY
            if due and not tried and self._apart.begin(place, partial(self._sample, place)):
                self._tried[place] = time.monotonic()
        while self._sampled:
            place, sample = self._sampled.popleft()
            if isinstance(sample, RootSample):
                self._remember(ROOT, place, asdict(sample), now, {})
            else:
                log.info("the size of %s could not be measured: %s", place, sample)
                self._tried[place] -= HOURLY - 60

    def _sample(self, place: str) -> None:
        try:
            self._sampled.append((place, sample_root(place)))
        except (Error, OSError) as error:
            self._sampled.append((place, str(error)))

    def _remember(self, kind: str, subject: str, value: object, now: float, known: Mapping[str, Sample]) -> None:
        if subject not in known or known[subject].value != value:
            with self.store.transaction() as connection:
                remember(connection, Sample(kind, subject, now, value))


def roots_of(config: Config) -> list[str]:
    """Returns the roots of all policies, on both sides, and of `[defaults]`."""
    found = [place for each in config.policies.values() for place in (each.cmroot, each.target_cmroot)]
    return list(dict.fromkeys([*found, *([config.defaults.cmroot] if config.defaults.cmroot else [])]))


def remembered_roots(store: ServiceStore) -> dict[str, tuple[float, RootSample]]:
    """Returns for each root when it was measured, and the result."""
    with store.transaction() as connection:
        return {place: (each.at, RootSample(**each.value)) for place, each in samples(connection, ROOT).items()}


def remembered_comparisons(store: ServiceStore) -> dict[str, Compared]:
    """Returns the last comparison of each policy."""
    with store.transaction() as connection:
        found = samples(connection, COMPARED)
    return {name: msgspec.convert(each.value, Compared) for name, each in found.items()}


# ---- the command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MetricsOptions(Options):
    textfile: Annotated[
        str | os.PathLike[str] | None,
        opt("Write the metrics to this file atomically, instead of printing them.", metavar="FILE"),
    ] = None


@dataclass(frozen=True)
class MetricsShown(Report):
    """The metrics. text: in Prometheus' format. policies: measured ones; unknown: those that could not be measured, and
    why. service: the service's store exists, and its counters are included."""

    text: str
    policies: list[str]
    unknown: dict[str, str] = field(default_factory=dict)
    service: bool = False
    textfile: str = ""
    status: str = "shown"

    partial: ClassVar[str] = "incomplete"


@verb(MetricsOptions)
def metrics(options: MetricsOptions) -> MetricsShown:
    """Measures all policies now and returns their metrics, with those recorded in the service's store if it exists.
    Changes nothing but the file.

        replicator.metrics(textfile="/var/lib/node_exporter/replicator.prom").unknown

    A policy that cannot be measured is in `unknown`, and its metrics show it. Raises NotWritable for a file that cannot
    be written, StoreUnreachable."""
    config = options.settings
    found = {name: measured(name, config) for name in config.policies}
    unknown = {name: each.error for name, each in found.items() if each.lag is None}
    with ServiceStore(config.service.store) as store:
        there = store.revision(REVISIONS, REVISION) == REVISION
        text = metric_families.text_of(_families(config, found, store if there else None)).decode()
    if options.textfile is not None:
        _replace(Path(options.textfile), text)
    return MetricsShown(
        text,
        [name for name in config.policies if name not in unknown],
        unknown,
        there,
        "" if options.textfile is None else os.fspath(options.textfile),
        MetricsShown.partial if unknown else "shown",
    )


def _families(config: Config, found: dict[str, MeasuredLag], store: ServiceStore | None) -> Iterator[Metric]:
    build = GaugeMetricFamily("replicator_build_info", "Always 1; the release.", labels=["version"])
    build.add_metric([version("replicator")], 1)
    yield build
    now, remembered = time.time(), {}
    if store is not None:
        with store.transaction() as connection:
            counted = counts(connection)
        yield from metric_families.of_counts(counted)
        yield from metric_families.of_roots(remembered_roots(store), now)
        remembered = remembered_comparisons(store)
    compared = {**remembered, **{name: each.compared for name, each in found.items() if each.compared}}
    yield from metric_families.of_policies(config.policies, found, compared, now)
    disks = {name: disk_of(directory) for name, directory in directories_of(config).items()}
    yield from metric_families.of_disks({name: disk for name, disk in disks.items() if disk is not None})


def _replace(file: Path, text: str) -> None:
    """Replaces a file atomically, readable by all, as the collector runs as another user. Raises NotWritable."""
    try:
        descriptor, aside = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        try:
            with open(descriptor, "w", encoding="utf-8") as made:
                made.write(text)
                made.flush()
                os.fchmod(made.fileno(), 0o644)
                os.fsync(made.fileno())
            os.replace(aside, file)
        except BaseException:
            os.unlink(aside)
            raise
    except OSError as error:
        raise NotWritable(
            f"{file}: {error.strerror or error}", hint="--textfile must name a file that can be replaced"
        ) from error
