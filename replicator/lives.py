"""The lives of tables as Python functions: housekeeping, retention and purge, as their commands do it.

    from replicator import lives
    lives.housekeeping(metastore="thrift://a:9083", cmroot="/w/cmroot", dry_run=True)
    lives.purge(metastore="thrift://a:9083", cmroot="/w/cmroot", ids="gdpr.requests:customer", whitelist="sales")

Each connects, does one thing, and returns a report that prints as the command's JSON. Errors are those of
`replicator.errors`, `engine` and `spark` as in `replicator.api`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from cmroot.rehearsal import looked_at
from cmroot.root import ChangeRoot, create_or_open, open_existing
from cmroot.store.place import normal
from replicator.api import given_engine
from replicator.commands.base import EngineGiven
from replicator.core.progress import Progress, Silent
from replicator.housekeeping.run import Housekeeping, Housekept, Options
from replicator.housekeeping.store import Store, store_url
from replicator.housekeeping.wishes import Defaults
from replicator.metastore.thrift import connect
from replicator.purge.backups.restore import Restored, restore_backup
from replicator.purge.backups.retain import Retained
from replicator.purge.backups.retain import retain as _retain
from replicator.purge.options import PurgeOptions, RetainOptions
from replicator.purge.run import Purged
from replicator.purge.run import purge as _purge
from replicator.removal.removal import Limits
from replicator.retention.job import read_job
from replicator.retention.outcome import RetentionRun
from replicator.retention.plan import Item
from replicator.retention.run import Retention


@contextmanager
def _root(cmroot: str, dry_run: bool) -> Iterator[tuple[ChangeRoot, list[str]]]:
    """The root, which a run makes, and warnings of a dry run before the first one."""
    if not dry_run:
        yield create_or_open(cmroot), []
        return
    with looked_at(cmroot) as (root, words):
        yield root, [words] if words else []


def housekeeping(
    metastore: str, cmroot: str, *, store: str | None = None, db: Sequence[str] = (), capture: bool = True,
    scan: bool = True, defaults: Defaults | None = None, limits: Limits | None = None, dry_run: bool = False,
    engine: EngineGiven = None, spark: Any = None, progress: Progress | None = None,
) -> Housekept:  # fmt: skip
    """One run; see replicator.housekeeping.run. `store`: a SQLAlchemy URL, None: SQLite in the root."""
    options = Options(defaults or Defaults(), limits or Limits(), capture, [name.lower() for name in db], scan)
    with ExitStack() as stack:
        opened, words = stack.enter_context(_root(cmroot, dry_run))
        items = stack.enter_context(Store(store_url(normal(cmroot), store)))
        work = stack.enter_context(
            Housekeeping(
                stack.enter_context(connect(metastore)), opened, items, options,
                engine=stack.enter_context(given_engine(engine, spark)), progress=progress or Silent(),
            )
        )  # fmt: skip
        done = work.rehearse() if dry_run else work.run()
        done.root = normal(cmroot)
        done.warnings += words
        return done


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
    with ExitStack() as stack:
        opened, words = stack.enter_context(_root(cmroot, dry_run))
        known = stack.enter_context(connect(metastore)) if metastore else None
        engines = stack.enter_context(given_engine(engine, spark))
        work = Retention(job, opened.place, known, limits or Limits(), engines, root)
        done = work.planned(tell) if dry_run else work.run()
        done.warnings += words
        return done


def purge(
    metastore: str, cmroot: str, ids: str, *, whitelist: str, field_path: str = "", attempts: int = 3,
    limits: Limits | None = None, dry_run: bool = False, engine: EngineGiven = None, spark: Any = None,
    progress: Progress | None = None,
) -> Purged:  # fmt: skip
    """Erases the rows of all ids ("db.table:column"); see replicator.purge.run."""
    options = PurgeOptions(ids, whitelist, field_path, attempts, limits or Limits())
    with _root(cmroot, dry_run) as (root, _), connect(metastore) as opened, given_engine(engine, spark) as engines:
        return _purge(opened, root, options, engines=engines, progress=progress or Silent(), dry_run=dry_run)


def retain(
    metastore: str, cmroot: str, *, options: RetainOptions | None = None, dry_run: bool = False,
    engine: EngineGiven = None, spark: Any = None,
) -> Retained:  # fmt: skip
    """Recycles backups of purges beyond policy; see replicator.purge.backups.retain."""
    there = looked_at(cmroot) if dry_run else nullcontext((open_existing(cmroot), ""))
    with there as (root, _), connect(metastore) as opened, given_engine(engine, spark) as engines:
        return _retain(opened, root, options or RetainOptions(), engines=engines, dry_run=dry_run)


def restore(
    metastore: str, cmroot: str, table: str, partition: str = "", *, backup: str | None = None, undo: bool = False,
    dry_run: bool = False,
) -> Restored:  # fmt: skip
    """Puts a backup of a purge back; see replicator.purge.backups.restore."""
    with connect(metastore) as opened:
        return restore_backup(
            opened, open_existing(cmroot), table, partition, moment=backup, undo=undo, dry_run=dry_run
        )
