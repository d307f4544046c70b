"""The command `metrics`: measures now what `/metrics` shows, for use without the service."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

from prometheus_client.core import GaugeMetricFamily, Metric

from replicator.commands.base import Options, verb
from replicator.core.config import Config
from replicator.core.not_replicated import Report
from replicator.errors import NotWritable
from replicator.service.lag_watch import MeasuredLag, measured
from replicator.service.measuring import families
from replicator.service.measuring.disks import directories_of, disk_of
from replicator.service.measuring.families import counts
from replicator.service.measuring.slow_watch import remembered_comparisons, remembered_roots
from replicator.service.schema import REVISIONS
from replicator.service.store import REVISION, ServiceStore


@dataclass(frozen=True, kw_only=True)
class MetricsOptions(Options):
    """Arguments:

    textfile: file that the metrics replace atomically, as node_exporter's textfile collector requires; None: they are
        only returned.
    """

    textfile: str | os.PathLike[str] | None = None


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
        text = families.text_of(_families(config, found, store if there else None)).decode()
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
        yield from families.of_counts(counted)
        yield from families.of_roots(remembered_roots(store), now)
        remembered = remembered_comparisons(store)
    compared = {**remembered, **{name: each.compared for name, each in found.items() if each.compared}}
    yield from families.of_policies(config.policies, found, compared, now)
    disks = {name: disk_of(directory) for name, directory in directories_of(config).items()}
    yield from families.of_disks({name: disk for name, disk in disks.items() if disk is not None})


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
            f"{file}: {error.strerror or error}", hint="--textfile names a file to be replaced"
        ) from error
