"""`retention run` and `explain`: the policies of a job file or config store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar

from replicator.commands.base import Options, verb
from replicator.commands.guard import Removing
from replicator.commands.of_policy import OfPolicy
from replicator.commands.options import Catalog, Root
from replicator.core.config import parse_settings
from replicator.core.option import Where, arg, opt, python_only
from replicator.lifecycle.retention.config_store import ConfigStore
from replicator.lifecycle.retention.datasets import Explained, explain_job, explain_key
from replicator.lifecycle.retention.job_configuration import JobFile, read_job
from replicator.lifecycle.retention.plan import PlannedItem, RetentionRun
from replicator.lifecycle.retention.run import Retention


@dataclass(frozen=True, kw_only=True)
class JobOptions(Options):
    job_settings: Annotated[
        Mapping[str, str] | Sequence[str],
        opt("Setting that overrides the job file; repeatable.", "--set", metavar="KEY=VALUE", envvar="SETTINGS"),
    ] = ()
    environment: Annotated[
        Mapping[str, str | None] | None,
        python_only("Variables that `${NAME}` may read; None: those of this process that [retention] allows."),
    ] = None

    @property
    def given(self) -> Mapping[str, str]:
        """Raises UsageError for a text that is no key with its value."""
        given = self.job_settings
        return given if isinstance(given, Mapping) else parse_settings(given)

    @property
    def variables(self) -> Mapping[str, str | None]:
        return self.settings.retention.allowed(os.environ) if self.environment is None else self.environment

    def read(self, place: str) -> JobFile:
        """Raises ConfigError with the file and line."""
        return read_job(place, given=self.given, environment=self.variables)


@dataclass(frozen=True, kw_only=True)
class RetentionRunOptions(Removing, JobOptions, OfPolicy):
    needed: ClassVar = ("cmroot",)

    job: Annotated[
        str,
        arg(
            "The job file (Java properties, or HOCON if it ends in .conf), or the directory of a config store.",
            "CONFIG",
        ),
    ] = field(kw_only=False)
    cmroot: Root = field(default="", kw_only=False)
    metastore: Annotated[
        Where | None,
        opt(
            "Metastore of the tables to clean, and of the tables that must not lose data: "
            "thrift://host:port, several separated by commas for failover, or a name of the "
            "configuration file.",
            metavar="METASTORE",
            required=False,
        ),
    ]
    catalog: Catalog = None
    root: Annotated[
        str | None,
        opt(
            "Prefix of the configuration's absolute paths, e.g. s3a://lake; default: writer.fs.uri, else local paths.",
            metavar="PLACE",
        ),
    ] = None
    tell: Annotated[
        Callable[[PlannedItem], None] | None,
        python_only("Called in a dry run with each item, which the report then omits; None: the report has all items."),
    ] = None


@verb(RetentionRunOptions)
def retention_run(options: RetentionRunOptions) -> RetentionRun:
    """Removes the versions of datasets that are past their policy, and sets the access of those that stay. Files go to
    the root, from which `audit undo` puts them back. What a table or partition refers to stays, unless the partition
    itself is dropped. May run again at any time; a killed run is completed by the next.

        replicator.retention_run("job.properties", "/cm", metastore="prod", dry_run=True)
        replicator.retention_run("/etc/store", "/cm", metastore="prod", max_share=0.2)

    Raises ConfigError for a job that cannot be understood; Refused when more would go than may; LeaseHeld while another
    run is at it. What was refused or failed by itself is in the report."""
    job = options.read(options.job)
    dry_run = options.dry_run or job.settings.truth("gobblin.retention.simulate", default=False)
    make = partial(Retention, job_file=job, prefix=options.root, tell=options.tell)
    with options.working(make, options.cmroot, options.metastore, dry_run=dry_run) as work:
        return work.run(dry_run=dry_run)


@dataclass(frozen=True, kw_only=True)
class RetentionExplainOptions(JobOptions):
    path: Annotated[
        str,
        arg(
            'A dataset\'s path as the configuration writes it, or "hive/DB/TABLE"; without a job, a path in a store.',
            "PATH",
        ),
    ] = field(kw_only=False)
    job: Annotated[
        str | None,
        opt(
            "The job file, or a config store's directory; default: the store above PATH.",
            "--config",
            metavar="CONFIG",
            envvar="PLACE",
        ),
    ] = None


@verb(RetentionExplainOptions)
def retention_explain(options: RetentionExplainOptions) -> Explained:
    """The settings of a dataset, or of any key of a store, and which file and line gave each value; values that weaker
    keys set, too, with the places that lose. Reads the configuration only.

        replicator.retention_explain("/data/events/loginEvent", job="job.properties").to_arrow()

    Raises ConfigError for what cannot be understood."""
    job = options.read(options.job) if options.job else None
    if job and not job.store:
        return explain_job(job.settings, options.path)
    variables = {**options.variables, **options.given}
    store = (job.store if job else None) or ConfigStore.open(options.path, variables=variables)
    resolved = store.resolve(store.key(options.path) if job else store.prefix)
    return explain_key(resolved, options.path, store.place, store.version)
