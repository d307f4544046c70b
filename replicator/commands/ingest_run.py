"""`ingest run`: a controller, which works on the jobs of ingestion."""

from __future__ import annotations

import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import msgspec

from replicator.commands.base import Options, verb
from replicator.core.engine import AutoEngine
from replicator.core.not_replicated import Report
from replicator.core.runtime import Stop
from replicator.core.sending import failure_of
from replicator.core.source_config import IngestionConfig
from replicator.core.spark import hive_settings
from replicator.core.text import parse_duration
from replicator.errors import ConfigError
from replicator.ingestion.adapters.intake import opened_store
from replicator.ingestion.controller import Controller, Worked
from replicator.ingestion.ingestion_request import beyond_scope
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.landing.foreign_writes import ForeignWrite, PublishedTable, foreign_writes, published_of
from replicator.ingestion.notices import Courier, Message, Send, senders_of
from replicator.ingestion.reading.source_errors import driver_jars, give_drivers
from replicator.lifecycle.purge.run import warehouse_of
from replicator.metastore.client import Metastore
from replicator.metastore.java import find_java


@dataclass(frozen=True, kw_only=True)
class IngestRunOptions(Options):
    """Arguments:

    once: until there is nothing to do now; else until `stop` is set.
    stop: says when to end, such as a `threading.Event`: jobs at work end their step, which another controller continues
      with.
    """

    once: bool = True
    stop: Stop | None = None


@verb(IngestRunOptions)
def ingest_run(options: IngestRunOptions) -> Worked:
    """Works on the jobs of ingestion: claims one after the other, as many at a time as there are slots, and lands
    their tables. Any number of controllers may run, and each may be killed: another one continues at the step that was
    not done.

        replicator.ingest_run(config="replicator.toml")

    Raises ConfigError without `ingestion.metastore` and `ingestion.landing`. Jobs that fail are the report's `failed`;
    they are tried again by their kind of failure. Messages that a receiver has not got yet are its `undelivered`."""
    ingestion, service = options.settings.ingestion, options.settings.service
    for key in ("metastore", "landing"):
        if not getattr(ingestion, key):
            raise ConfigError(f"ingestion.{key}: is not given", hint="see docs/ingestion.md")
    java = find_java(os.environ)
    jars = driver_jars(ingestion.sources.values(), java, os.environ)
    with (
        IngestionStore(ingestion.store or service.store) as store,
        options.connected(ingestion.metastore) as metastore,
        options.runtime() as runtime,
    ):
        store.prepare()
        known = hive_settings(metastore.config, warehouse_of(metastore), runtime.engines.settings)
        mine = {"spark.jars": ",".join(map(str, jars)), "spark.scheduler.mode": "FAIR"}

        def session() -> Any:
            made = runtime.engines.session({**known, **mine}).newSession()
            give_drivers(made, jars)
            made.sparkContext.setLocalProperty("spark.scheduler.pool", ingestion.pool)  # of this thread, a job's
            return made

        controller = Controller(store, ingestion, metastore, runtime, session, options.stop or Event())
        senders = senders_of(ingestion.notify, options.settings.lineage, metastore.config.uri)
        with Courier(store, senders, parse_duration(ingestion.expire).total_seconds()) as courier:
            worked = controller.run(once=options.once)
        worked.tell_undelivered(courier.outbox.undelivered())
        return worked


# ---- ingest watch ----------------------------------------------------------------------------------------------------
# `ingest watch`: whether others have written to landing tables.


@dataclass
class Watched(Report):
    """status: "quiet"; "foreign" where somebody else has changed a table; "beyond" where nobody has, but policies
    replicate what they may not; "partial" where neither is so, but tables are unsure. tables: that were compared.
    found: those that somebody else has changed. unsure: those that differ, and a job is publishing, or ended while
    nobody knew whether it had. beyond: by policy, those that it replicates though their classification does not let it.
    untold: receivers that did not get it."""

    status: str = "quiet"
    tables: int = 0
    found: list[ForeignWrite] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    beyond: dict[str, list[str]] = field(default_factory=dict)
    untold: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class IngestWatchOptions(Options):
    """Arguments: none of its own."""


@verb(IngestWatchOptions)
def ingest_watch(options: IngestWatchOptions) -> Watched:
    """Compares each landing table with what its newest job published: the table, its columns, its partitions, and the
    files that lie there. What differs, and no job has just published, somebody else has written; jobs that wait, fail
    or copy have changed nothing yet. Also names the tables that a policy replicates beyond its scope. Receivers of
    `[ingestion.notify] failures` are told of both, each time, with the same key. Changes nothing.

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
        tables = _published(store)
        watched.tables = len(tables)
        watched.found, unsure = _compared(store, metastore, runtime.engines, tables)
        if unsure:  # what was published meanwhile is compared with that
            again = [each for each in _published(store) if f"{each.db}.{each.name}" in unsure]
            more, watched.unsure = _compared(store, metastore, runtime.engines, again)
            watched.found += more
        watched.beyond = _beyond(store, ingestion, tables)
        senders = senders_of(ingestion.notify, options.settings.lineage, metastore.config.uri)
    messages = _messages(watched)
    if messages:
        watched.status = "foreign" if watched.found else "beyond"
        told = {name: send for name, send in senders.items() if name.startswith("failures.")}
        watched.untold = [name for name, send in told.items() if not _tell(send, messages)]
    elif watched.unsure:
        watched.status = "partial"
    return watched


def _published(store: IngestionStore) -> list[PublishedTable]:
    found = [each for job, facts in store.published_tables() for each in published_of(job, facts)]
    return sorted(found, key=lambda each: (each.db, each.name))


def _compared(
    store: IngestionStore, metastore: Metastore, engines: AutoEngine, tables: list[PublishedTable]
) -> tuple[list[ForeignWrite], list[str]]:
    """Those that somebody else has changed, and names of those of which a job may have done so."""
    newest, sure, unsure = {f"{each.db}.{each.name}": each for each in tables}, list[ForeignWrite](), list[str]()
    for found in foreign_writes(metastore, engines, tables, store.published_of):
        of = newest[found.table]
        if store.may_have_published(of.target, of.job):
            unsure.append(found.table)
        else:
            sure.append(found)
    return sure, unsure


def _beyond(store: IngestionStore, ingestion: IngestionConfig, tables: list[PublishedTable]) -> dict[str, list[str]]:
    assets, found = {each.name: each for each in store.assets()}, defaultdict[str, list[str]](list)
    for each in tables:
        for policy in beyond_scope(assets[each.asset], each.db, [each.name], ingestion):
            found[policy].append(f"{each.db}.{each.name}")
    return dict(found)


def _messages(watched: Watched) -> list[Message]:
    found = []
    for each in watched.found:
        body = {"state": "foreign_write", **msgspec.to_builtins(each)}
        found.append(_message(f"foreign-{each.table}", each.table, each.job, each.what, body))
    for policy, tables in watched.beyond.items():
        body = {"state": "beyond_scope", "policy": policy, "tables": tables}
        found.append(_message(f"beyond-{policy}", policy, 0, tables, body))
    return found


def _message(begin: str, about: str, job: int, what: Sequence[str], body: dict[str, Any]) -> Message:
    key = f"{begin}-{hashlib.blake2s(msgspec.json.encode(what), digest_size=8).hexdigest()}"
    return Message(about=about, key=key, job=job, at=time.time(), body=msgspec.json.encode(body).decode())


def _tell(send: Send, messages: list[Message]) -> bool:
    return not any(failure_of(lambda message=message: send(message)) for message in messages)  # type: ignore[misc]
