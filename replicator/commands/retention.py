"""`retention run` and `explain`: the policies of a job file or config store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from replicator.commands.base import Options, Where, verb
from replicator.commands.guard import Removing
from replicator.commands.of_policy import OfPolicy
from replicator.core.config import parse_settings
from replicator.lifecycle.retention.config_store import ConfigStore
from replicator.lifecycle.retention.datasets import Explained, explain_job, explain_key
from replicator.lifecycle.retention.job_configuration import JobFile, read_job
from replicator.lifecycle.retention.plan import PlannedItem, RetentionRun
from replicator.lifecycle.retention.run import Retention


@dataclass(frozen=True, kw_only=True)
class JobOptions(Options):
    """job_settings: keys of the job file, over what it says; a mapping or "KEY=VALUE" texts.
    environment: what `${NAME}` may read; None: this process's, of which it is given the names that [retention] allows.
    """

    job_settings: Mapping[str, str] | Sequence[str] = ()
    environment: Mapping[str, str | None] | None = None

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
    """Arguments:

    job: the job file (Java properties, or HOCON if it ends in .conf), or a config store's directory.
    cmroot: where files go; made where there is none.
    metastore: whose tables are cleaned, or must not lose their data: a thrift URI or a configured name; None: none
      knows of these files.
    catalog: the metastore's, on Hive 3 and newer; None: the server's default one.
    root: what absolute paths of the configuration lie below, such as "s3a://lake"; None: `writer.fs.uri`, else this
      machine.
    tell: of a dry run, called with each item, which is not in the report then; None: all are.
    """

    needed: ClassVar = ("cmroot",)

    job: str = field(kw_only=False)
    cmroot: str = field(default="", kw_only=False)
    metastore: Where | None
    catalog: str | None = None
    root: str | None = None
    tell: Callable[[PlannedItem], None] | None = None


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
    """Arguments:

    path: of a dataset as the configuration spells it, or "hive/DB/TABLE"; without a job, a path in a store.
    job: the job file, or a config store's directory; None: the store above the path.
    """

    path: str = field(kw_only=False)
    job: str | None = None


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
