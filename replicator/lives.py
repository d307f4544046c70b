"""The lives of tables as Python functions: housekeeping, retention and purge, as their commands do it.

    from replicator import lives
    lives.housekeeping(metastore="thrift://a:9083", cmroot="/w/cmroot", dry_run=True)
    lives.purge(metastore="thrift://a:9083", cmroot="/w/cmroot", ids="gdpr.requests:customer", whitelist="sales")

Each connects, does one thing, and returns a report that prints as the command's JSON. Errors are those of
`replicator.errors`, `engine` and `spark` as in `replicator.api`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from cmroot.root import create_or_open, open_existing
from replicator.api import EngineGiven, given_engine
from replicator.guard.removal import Limits
from replicator.housekeeping.run import Housekeeping, Housekept, Options
from replicator.housekeeping.store import Store, store_url
from replicator.housekeeping.wishes import Defaults
from replicator.metastore.thrift import connect
from replicator.progress import Progress, Silent
from replicator.purge.options import PurgeOptions, RetainOptions
from replicator.purge.restore import Restored, restore_backup
from replicator.purge.retain import Retained
from replicator.purge.retain import retain as _retain
from replicator.purge.run import Purged
from replicator.purge.run import purge as _purge
from replicator.retention.job import read_job
from replicator.retention.outcome import RetentionRun
from replicator.retention.plan import Item
from replicator.retention.run import Retention


def housekeeping(
    metastore: str, cmroot: str, *, store: str | None = None, db: Sequence[str] = (), capture: bool = True,
    scan: bool = True, defaults: Defaults | None = None, limits: Limits | None = None, dry_run: bool = False,
    engine: EngineGiven = None, spark: Any = None, progress: Progress | None = None,
) -> Housekept:  # fmt: skip
    """One run; see replicator.housekeeping.run. `store`: a SQLAlchemy URL, None: SQLite in the root."""
    root = open_existing(cmroot) if dry_run else create_or_open(cmroot)
    options = Options(defaults or Defaults(), limits or Limits(), capture, [name.lower() for name in db], scan)
    with ExitStack() as stack:
        work = stack.enter_context(
            Housekeeping(
                stack.enter_context(connect(metastore)), root, stack.enter_context(Store(store_url(root.place, store))),
                options, engine=stack.enter_context(given_engine(engine, spark)), progress=progress or Silent(),
            )
        )  # fmt: skip
        return work.rehearse() if dry_run else work.run()


def retention(
    config: str, cmroot: str, *, metastore: str | None, root: str | None = None,
    settings: Mapping[str, str] | None = None, environment: Mapping[str, str | None] | None = None,
    limits: Limits | None = None,
    dry_run: bool = False, tell: Callable[[Item], None] = lambda item: None,
    engine: EngineGiven = None, spark: Any = None,
) -> RetentionRun:  # fmt: skip
    """One run of a job file or config store; see replicator.retention.run. `metastore`: None for files that none knows
    of; `environment`: what `${NAME}` may read there; `tell`: of a dry run, each item."""
    job = read_job(config, given=settings, environment=environment)
    place = (open_existing if dry_run else create_or_open)(cmroot).place
    with ExitStack() as stack:
        known = stack.enter_context(connect(metastore)) if metastore else None
        engines = stack.enter_context(given_engine(engine, spark))
        work = Retention(job, place, known, limits or Limits(), engines, root)
        return work.planned(tell) if dry_run else work.run()


def purge(
    metastore: str, cmroot: str, ids: str, *, whitelist: str, field_path: str = "", attempts: int = 3,
    limits: Limits | None = None, dry_run: bool = False, engine: EngineGiven = None, spark: Any = None,
    progress: Progress | None = None,
) -> Purged:  # fmt: skip
    """Erases the rows of all ids ("db.table:column"); see replicator.purge.run."""
    root = open_existing(cmroot) if dry_run else create_or_open(cmroot)
    options = PurgeOptions(ids, whitelist, field_path, attempts, limits or Limits())
    with connect(metastore) as opened, given_engine(engine, spark) as engines:
        return _purge(opened, root, options, engines=engines, progress=progress or Silent(), dry_run=dry_run)


def retain(
    metastore: str, cmroot: str, *, options: RetainOptions | None = None, dry_run: bool = False,
    engine: EngineGiven = None, spark: Any = None,
) -> Retained:  # fmt: skip
    """Recycles backups of purges beyond policy; see replicator.purge.retain."""
    with connect(metastore) as opened, given_engine(engine, spark) as engines:
        return _retain(opened, open_existing(cmroot), options or RetainOptions(), engines=engines, dry_run=dry_run)


def restore(
    metastore: str, cmroot: str, table: str, partition: str = "", *, backup: str | None = None, undo: bool = False,
    dry_run: bool = False,
) -> Restored:  # fmt: skip
    """Puts a backup of a purge back; see replicator.purge.restore."""
    with connect(metastore) as opened:
        return restore_backup(
            opened, open_existing(cmroot), table, partition, moment=backup, undo=undo, dry_run=dry_run
        )
