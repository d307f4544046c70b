"""`ingest watch`: whether others have written to landing tables."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field

import msgspec

from replicator.commands.base import Options, verb
from replicator.core.messages.sending import failure_of
from replicator.core.report import Report
from replicator.errors import ConfigError
from replicator.ingestion.doors.intake import opened_store
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.landing.foreign_writes import ForeignWrite, PublishedTable, foreign_writes, published_of
from replicator.ingestion.notices.courier import Send, senders_of
from replicator.ingestion.notices.notice import Message


@dataclass
class Watched(Report):
    """status: "quiet", or "foreign". tables: that were compared. found: those that somebody else has changed. untold:
    receivers that did not get it."""

    status: str = "quiet"
    tables: int = 0
    found: list[ForeignWrite] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class IngestWatchOptions(Options):
    """Arguments: none of its own."""


@verb(IngestWatchOptions)
def ingest_watch(options: IngestWatchOptions) -> Watched:
    """Compares each landing table with what its newest job published: the table, its columns, its partitions, and the
    files that lie there. What differs, and no job is at work on, somebody else has written; receivers of
    `[ingestion.notify] failures` are told, each time, with the same key. Changes nothing.

        replicator.ingest_watch(config="replicator.toml").found

    Raises ConfigError without `ingestion.metastore`."""
    ingestion = options.settings.ingestion
    if not ingestion.metastore:
        raise ConfigError("ingestion.metastore: is not given", hint="see docs/ingestion.md")
    watched = Watched()
    with (
        opened_store(options.settings) as store,
        options.connected(ingestion.metastore) as metastore,
        options.runtime() as runtime,
    ):
        tables: list[PublishedTable] = []
        for job, facts in store.published_tables():
            tables += published_of(job, facts)
        watched.tables = len(tables)
        newest = {f"{each.db}.{each.name}": each for each in tables}
        tables.sort(key=lambda each: (each.db, each.name))
        for found in foreign_writes(metastore, runtime.engines, tables, store.published_of):
            if not _is_at_work(store, newest[found.table]):
                watched.found.append(found)
        senders = senders_of(ingestion.notify, options.settings.lineage, metastore.config.uri)
    if watched.found:
        watched.status = "foreign"
        told = {name: send for name, send in senders.items() if name.startswith("failures.")}
        watched.untold = [name for name, send in told.items() if not _tell(send, watched.found)]
    return watched


def _is_at_work(store: IngestionStore, table: PublishedTable) -> bool:
    """A job may have published meanwhile, or may just do so."""
    return store.has_open(table.target) or store.newest_published(table.target) != table.job


def _tell(send: Send, found: list[ForeignWrite]) -> bool:
    for each in found:
        body = msgspec.json.encode({"state": "foreign_write", **msgspec.to_builtins(each)})
        key = f"foreign-{each.table}-{hashlib.blake2s(msgspec.json.encode(each.what), digest_size=8).hexdigest()}"
        message = Message(about=each.table, key=key, job=each.job, at=time.time(), body=body.decode())
        if failure_of(lambda message=message: send(message)):  # type: ignore[misc]
            return False
    return True
