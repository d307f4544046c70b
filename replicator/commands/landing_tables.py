"""Landing tables: `ingest verify` compares them with their sources, `ingest mark` shows and sets their watermarks,
`ingest watch` finds writes by others.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import msgspec

from cmroot.root import open_existing
from replicator.commands.asset import AsRequester
from replicator.commands.base import Options, verb
from replicator.commands.ingest import sessions
from replicator.core.engine import AutoEngine
from replicator.core.option import Positive, arg, opt
from replicator.core.sending import failure_of
from replicator.core.source_config import IngestionConfig
from replicator.errors import ConfigError, Error, ObjectNotFound, Refused, UsageError
from replicator.ingestion.comparison import TableCompared, compare_table, nothing_compared
from replicator.ingestion.ingestion_request import Request, beyond_scope, with_class
from replicator.ingestion.ingestion_shown import IngestionReport, LandingMark, MarksShown
from replicator.ingestion.intake import opened_store
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.landing.foreign_writes import ForeignWrite, PublishedTable, foreign_writes, published_of
from replicator.ingestion.landing.increments import with_mark
from replicator.ingestion.landing.landing_schema import new_mark, watermark_text, write_mark
from replicator.ingestion.landing.publishing import landing_of
from replicator.ingestion.notices import Message, Send, senders_of
from replicator.ingestion.reading.request_selection import without_values
from replicator.ingestion.reading.source import opened
from replicator.ingestion.reading.source_table import SourceTable
from replicator.lifecycle.purge.backups import purged_sizes
from replicator.metastore.client import Metastore

OfLanding = Annotated[
    str, arg("An asset, a table as SOURCE:SCHEMA.TABLE, or a job's number.", "ASSET|SOURCE:SCHEMA.TABLE|JOB")
]


def _published_of(store: IngestionStore, of: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Returns the newest publication of each landing table of an asset, a source table or a job: its row in the store,
    and its facts. Raises ObjectNotFound."""
    target = store.job(int(of)).target if of.isdecimal() else ""
    all_of_them = store.published_tables()
    found = [each for each in all_of_them if each[0]["target"] == target or of in (each[0]["asset"], each[0]["source"])]
    if not found:
        raise ObjectNotFound(f"{of!r}: nothing has landed", hint="`replicator ingest ls` lists jobs and their tables")
    return found


# ---- ingest verify ---------------------------------------------------------------------------------------------------


@dataclass
class LandingsVerified(IngestionReport):
    """The report of a comparison. status: "same"; "different" if a table differs from its source; "partial" if none
    does, but tables or columns were not compared. tables: by name."""

    status: str = "same"
    tables: list[TableCompared] = field(default_factory=list)

    def add(self, found: TableCompared) -> None:
        self.tables.append(found)
        if found.differs:
            self.status = "different"
        elif found.not_compared and self.status == "same":
            self.status = "partial"


@dataclass(frozen=True, kw_only=True)
class IngestVerifyOptions(Options):
    of: OfLanding = field(kw_only=False)
    limit: Annotated[Positive, opt("Maximum number of rows that are named, of each table.")] = 100


@verb(IngestVerifyOptions)
def ingest_verify(options: IngestVerifyOptions) -> LandingsVerified:
    """Compares landing tables with their sources: rows and checksums by ranges of the key, computed by the database and
    by Spark. Names rows that are missing at the landing, deleted at the source, or different. An increment is compared
    up to its watermark. Changes nothing; may run at any time.

        replicator.ingest_verify("crm:public.orders", config="replicator.toml").tables[0].missing

    Raises ConfigError without the key `ingestion.metastore`, ObjectNotFound if nothing of it has landed. A source of
    several tables that does not answer is in the report."""
    ingestion = options.settings.ingestion
    if not ingestion.metastore:
        raise ConfigError("ingestion.metastore is not set", hint="see docs/ingestion.md")
    report = LandingsVerified(single_user=ingestion.single_user)
    with (
        opened_store(options.settings) as store,
        options.connected(ingestion.metastore) as metastore,
        options.runtime() as runtime,
    ):
        landed = _published_of(store, options.of)
        new_session = sessions(ingestion, metastore, runtime)
        for row, facts in landed:
            job, request = row["id"], msgspec.json.decode(row["request"], type=Request)
            source = ingestion.sources.get(request.source)
            if source is None or source.path:
                why = "its files are compared when they land" if source else "its source is not configured any more"
                report.add(nothing_compared(request, job, why))
                continue
            asset = with_class(store.asset(request.asset), ingestion)
            session = new_session()
            try:
                with without_values(request), opened(session, request.source, source) as database:
                    known = {"job": job, "request": request, "facts": facts}
                    report.add(compare_table(session, database, asset, known, options.limit))
            except Error as error:
                if len(landed) == 1:
                    raise
                report.add(nothing_compared(request, job, error.message))
    return report


# ---- ingest mark -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class IngestMarkOptions(AsRequester):
    of: OfLanding = field(kw_only=False)
    value: Annotated[
        str | None, opt("New value of the watermark: rows after it land next.", "--set", metavar="VALUE")
    ] = None
    clear: Annotated[bool, opt("Remove the watermark: the next merge reads all rows.")] = False
    reason: Annotated[str, opt("Why the watermark is changed, for the log.", metavar="TEXT")] = ""


@verb(IngestMarkOptions)
def ingest_mark(options: IngestMarkOptions) -> MarksShown:
    """Shows the watermarks of landing tables, or changes that of one table; then the log gets the user and the reason.
    May run twice.

        replicator.ingest_mark("crm").marks
        replicator.ingest_mark("crm:public.orders", value="2026-01-01", reason="corrected at the source")

    Raises UsageError for a change of several tables, without a reason, or to a value that does not fit the column's
    type; Refused for users other than the asset's owner and producers, while a job of the table runs or if one may have
    published it, and for a table to which rows are appended if rows above the value have landed already: they would
    land twice."""
    changes = options.value is not None or options.clear
    if options.value is not None and options.clear:
        raise UsageError("--set and --clear exclude each other", hint="give one of them")
    if bool(options.reason.strip()) != changes:
        raise UsageError("a change of a watermark needs --reason, and nothing else does", hint="see --help")
    with opened_store(options.settings) as store:
        if changes:
            _change_mark(options, store)
        found = (LandingMark.of(row, facts) for row, facts in _published_of(store, options.of))
        status = "set" if options.value is not None else "cleared" if options.clear else "shown"
        return MarksShown(status, [each for each in found if each is not None])


def _change_mark(options: IngestMarkOptions, store: IngestionStore) -> None:
    rows = _published_of(store, options.of)
    if len(rows) != 1:
        raise UsageError(f"{options.of} has {len(rows)} landing tables", hint="name one, as SOURCE:SCHEMA.TABLE")
    row, facts = rows[0]
    request, mark = msgspec.json.decode(row["request"], type=Request), LandingMark.of(row, facts)
    asset = store.asset(row["asset"])
    if not options.asks.is_one_of((asset.owner, *asset.producers)):
        raise Refused(
            f"{options.asks.user} is neither the owner nor a producer of asset {asset.name}", hint=f"ask {asset.owner}"
        )
    if mark is None:
        raise UsageError(f"{row['target']} lands without a watermark", hint="request it with --watermark")
    column = msgspec.convert(facts["source"], SourceTable).column(mark.column)
    text = watermark_text(request, new_mark(column, mark.value, options.value, request.mode))
    ingestion = options.settings.ingestion
    with options.connected(ingestion.metastore) as metastore:
        told = f"watermark {mark.column}: {mark.value or 'none'} to {options.value or 'none'}: {options.reason}"

        def write() -> None:
            landing = landing_of(metastore, asset, request)
            if landing is not None:
                write_mark(metastore, landing, text)

        late = {"late": with_mark(facts["late"], options.value, row["id"])} if "late" in facts else {}
        store.set_mark(row["id"], {"watermark": text, **late}, options.asks.user, told, write)


# ---- ingest watch ----------------------------------------------------------------------------------------------------


@dataclass
class Watched(IngestionReport):
    """The report of a watch. status: "quiet"; "foreign" if another writer has changed a table; "beyond" if policies
    replicate tables that their classification excludes; "partial" if the state of tables is uncertain. tables:
    compared. found: changed by another writer. unsure: tables that differ while a job is publishing, or after a job
    whose publication is unknown. beyond: by policy, tables that it replicates although their classification excludes
    them. untold: receivers that were not notified."""

    status: str = "quiet"
    tables: int = 0
    found: list[ForeignWrite] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    beyond: dict[str, list[str]] = field(default_factory=dict)
    untold: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class IngestWatchOptions(Options):
    cmroot: Annotated[
        str | None,
        opt(
            "The change-management root of purges: files that a purge rewrote must be as it has recorded. Default: a "
            "property of the table is believed, which any writer can set.",
            metavar="PLACE",
        ),
    ] = None


@verb(IngestWatchOptions)
def ingest_watch(options: IngestWatchOptions) -> Watched:
    """Compares each landing table with the last publication: the table, its columns, its partitions, and its files. A
    difference that no job has just published was written by another writer; jobs that wait, copy or have failed have
    changed nothing. Also lists tables that a policy replicates beyond its scope. Receivers of `[ingestion.notify]
    failures` are notified of both in each run, with the same key. Changes nothing.

        replicator.ingest_watch(config="replicator.toml", cmroot="/cm").found

    Raises UsageError for a root that does not exist, ConfigError without the key `ingestion.metastore`."""
    ingestion = options.settings.ingestion
    if not ingestion.metastore:
        raise ConfigError("ingestion.metastore is not set", hint="see docs/ingestion.md")
    watched = Watched(single_user=ingestion.single_user)
    with (
        opened_store(options.settings) as store,
        options.connected(ingestion.metastore) as metastore,
        options.runtime() as runtime,
    ):
        tables = _published(store)
        watched.tables = len(tables)
        root = None if options.cmroot is None else open_existing(options.cmroot).place
        watched.found, unsure = _compared(store, metastore, runtime.engines, tables, root)
        if unsure:  # a table published during the run is compared with the new publication
            again = [each for each in _published(store) if f"{each.db}.{each.name}" in unsure]
            more, watched.unsure = _compared(store, metastore, runtime.engines, again, root)
            watched.found += more
        watched.beyond = _beyond(store, ingestion, tables)
        senders = senders_of(ingestion.notify, options.settings.lineage, metastore.config.uri)
    messages = messages_of(watched)
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
    store: IngestionStore, metastore: Metastore, engines: AutoEngine, tables: list[PublishedTable], root: str | None
) -> tuple[list[ForeignWrite], list[str]]:
    """Returns the tables that another writer has changed, and the names of those that a job may have changed. root: of
    purges, if it is known."""
    newest, sure, unsure = {f"{each.db}.{each.name}": each for each in tables}, list[ForeignWrite](), list[str]()
    purges = None if root is None else partial(purged_sizes, root)
    for found in foreign_writes(metastore, engines, tables, store.published_of, purges):
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


def messages_of(watched: Watched) -> list[Message]:
    """Returns a message for each foreign write, and for each policy beyond its scope. The key is made of the facts."""
    found = []
    for each in watched.found:
        body = {"state": "foreign_write", **msgspec.to_builtins(each)}
        found.append(_message(f"foreign-{each.table}", each.table, each.job, each.facts, body))
    for policy, tables in watched.beyond.items():
        body = {"state": "beyond_scope", "policy": policy, "tables": tables}
        found.append(_message(f"beyond-{policy}", policy, 0, tables, body))
    return found


def _message(begin: str, about: str, job: int, facts: Sequence[str], body: dict[str, Any]) -> Message:
    key = f"{begin}-{hashlib.blake2s(msgspec.json.encode(facts), digest_size=8).hexdigest()}"
    return Message(about=about, key=key, job=job, at=time.time(), body=msgspec.json.encode(body).decode())


def _tell(send: Send, messages: list[Message]) -> bool:
    return not any(failure_of(lambda message=message: send(message)) for message in messages)  # type: ignore[misc]
