"""`ingest request`: requests for the landing of tables, and their dry run, which shows what would be refused."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

from replicator.commands.asset import AsRequester
from replicator.commands.base import verb
from replicator.commands.ingest import sessions
from replicator.commands.options import DryRun, Note
from replicator.core.engine import AutoEngine
from replicator.core.model import Column
from replicator.core.option import Between, Positive, arg, opt
from replicator.core.text import parse_duration
from replicator.errors import ConfigError, Error, ObjectNotFound, UsageError
from replicator.ingestion.ingestion_request import Claimed, Format, Mode, Request, SchemaPolicy, Split, with_class
from replicator.ingestion.ingestion_shown import (
    IngestionRequested,
    LandingPlan,
    PlannedColumn,
    TableRequested,
    table_names,
)
from replicator.ingestion.intake import READERS, accept, check_request, checked, existing_store, opened_store, refusal
from replicator.ingestion.job_answers import JobAnswers, failure_of
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.landing.file_steps import planned_files
from replicator.ingestion.landing.increments import bounds, key_values, window
from replicator.ingestion.landing.landing_log import Work, columns_for
from replicator.ingestion.landing.landing_schema import landed_until
from replicator.ingestion.landing.publishing import landing_of, refuse_loss
from replicator.ingestion.reading.request_selection import MASKS, selected, without_values
from replicator.ingestion.reading.source import SourceDatabase, opened
from replicator.ingestion.reading.source_errors import Patience
from replicator.metastore.client import Metastore
from replicator.metastore.events.scope import Patterns

MOST = 1000
"""Maximum number of tables of one request."""

OfSchema = Annotated[
    Sequence[str], opt("Of SOURCE:SCHEMA, only tables whose full name matches; repeatable.", metavar="REGEX")
]
NotOfSchema = Annotated[
    Sequence[str], opt("Of SOURCE:SCHEMA, no tables whose full name matches; repeatable.", metavar="REGEX")
]


@dataclass(frozen=True, kw_only=True)
class IngestRequestOptions(AsRequester):
    table: Annotated[
        str | Sequence[str],
        arg('The tables to land, each as "SOURCE:SCHEMA.TABLE"; "SOURCE:SCHEMA" is all of a schema.', "TABLE..."),
    ] = field(kw_only=False)
    asset: Annotated[str, opt("Asset that the tables belong to.", metavar="NAME")]
    include: OfSchema = ()
    exclude: NotOfSchema = ()
    mode: Annotated[
        Mode,
        opt(
            "overwrite: all rows, replacing the present ones; append: rows above the watermark, in "
            "addition; merge: rows (above the watermark, if there is one), replacing those with the "
            "same key."
        ),
    ] = "overwrite"
    watermark: Annotated[str | None, opt("Column whose values only grow.", metavar="COLUMN")] = None
    late: Annotated[
        str | None,
        opt(
            "How late a row may become visible after greater values of the watermark: rows of that time are read "
            "again, and land once, by their key; 0s: never. Default: up to the oldest running transaction.",
            metavar="DURATION",
        ),
    ] = None
    key: Annotated[
        str | Sequence[str],
        opt(
            "Column that identifies a row, for merge, or append with --late or --backfill; repeatable.",
            metavar="COLUMN",
        ),
    ] = ()
    max_loss: Annotated[
        Annotated[float, Between(0, 1)] | None,
        opt("Share of the landed rows that an overwrite may remove; 1: all. Default: [ingestion] max_loss."),
    ] = None
    split_column: Annotated[
        str | None, opt("Read in ranges of this column; default: the first of the primary key.", metavar="COLUMN")
    ] = None
    readers: Annotated[
        Annotated[int, Between(1, READERS)] | None, opt("Concurrent connections; default: that of the source.")
    ] = None
    format: Annotated[Format, opt("Format of the files.")] = "parquet"
    schema_policy: Annotated[SchemaPolicy, opt("What happens if the table's columns have changed.")] = "fail"
    backfill: Annotated[
        str | None,
        opt("Read rows from this value of the watermark on again; they land once, by their key.", metavar="VALUE"),
    ] = None
    rebuild: Annotated[
        bool, opt("Read all rows, and replace those of a table that is appended to or merged by a new version.")
    ] = False
    columns: Annotated[
        str | Sequence[str], opt("Column that lands; default: all; repeatable.", "--column", metavar="COLUMN")
    ] = ()
    where: Annotated[
        str | None,
        opt(
            "Condition of the rows that land, which the source evaluates: comparisons of columns.", metavar="CONDITION"
        ),
    ] = None
    masks: Annotated[
        Mapping[str, str] | Sequence[str],
        opt(
            "Hide a column's values before they leave the source: hash, null, first:N or text:TEXT; repeatable.",
            "--mask",
            metavar="COLUMN=RULE",
        ),
    ] = ()
    least_rows: Annotated[Positive | None, opt("Publish only if the table then has as many rows.")] = None
    not_null: Annotated[
        str | Sequence[str], opt("Publish only if no row has NULL in this column; repeatable.", metavar="COLUMN")
    ] = ()
    unique: Annotated[
        str | Sequence[str],
        opt("Publish only if no two rows have the same values here; repeatable.", metavar="COLUMN[,COLUMN]"),
    ] = ()
    note: Note = ""
    dry_run: DryRun = False

    @property
    def places(self) -> list[tuple[str, str, str]]:
        """Source, schema and table of each argument; the table is empty for a schema. Raises UsageError."""
        texts = [self.table] if isinstance(self.table, str) else list(dict.fromkeys(self.table))
        found = [_place(text) for text in texts]
        if not found:
            raise UsageError("no table is named", hint="write SOURCE:SCHEMA.TABLE, or SOURCE:SCHEMA for a schema")
        if (self.include or self.exclude) and all(table for _, _, table in found):
            raise UsageError("--include and --exclude select tables of a schema", hint="write SOURCE:SCHEMA")
        return found

    @property
    def is_single(self) -> bool:
        """True if it names one table: then errors are raised, else they are outcomes of tables."""
        return len(self.places) == 1 and bool(self.places[0][2])

    def request(self, source: str, schema: str, table: str) -> Request:
        """Returns the request for one table."""
        return Request(
            asset=self.asset,
            source=source,
            schema=schema,
            table=table,
            mode=self.mode,
            watermark=self.watermark,
            late=self.late,
            key=_each(self.key),
            split=Split(column=self.split_column, readers=self.readers),
            max_loss=self.max_loss,
            format=self.format,
            schema_policy=self.schema_policy,
            backfill=self.backfill,
            rebuild=self.rebuild,
            columns=_each(self.columns),
            where=self.where,
            masks=_masks(self.masks),
            least_rows=self.least_rows,
            not_null=_each(self.not_null),
            unique=_each(self.unique),
            note=self.note,
        )


def _each(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _masks(given: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Returns rules by column. Raises UsageError for a text without a column or a rule, and for a column twice."""
    if isinstance(given, Mapping):
        return dict(given)
    found: dict[str, str] = {}
    for text in _each(given):
        name, _, rule = text.partition("=")
        if not (name and rule) or found.setdefault(name, rule) != rule:
            raise UsageError(f"--mask {text!r} is not one rule of a column", hint=f"write COLUMN=RULE: {MASKS}")
    return found


def _place(text: str) -> tuple[str, str, str]:
    source, colon, rest = text.partition(":")
    schema, dot, table = rest.partition(".")
    if not (source and colon and schema) or bool(dot) != bool(table):
        raise UsageError(f"{text!r} is not a table of a source", hint="write SOURCE:SCHEMA.TABLE, or SOURCE:SCHEMA")
    return source, schema, table


@verb(IngestRequestOptions)
def ingest_request(options: IngestRequestOptions) -> IngestionRequested:
    """Requests the landing of tables, which a controller executes later. A request replaces one for the same table that
    waits or has failed, and waits for one that is running. dry_run: queues nothing; reads columns and a sample of the
    rows, and reports what would land and what would be refused.

        replicator.ingest_request("crm:public.orders", asset="crm").job
        replicator.ingest_request("crm:public", include=["order.*"], asset="crm").tables

    Raises UsageError for an invalid request, such as a column that the source does not have, ObjectNotFound for an
    unknown asset, Refused for an asset that is not approved, and for users other than its owner and producers; then
    nothing is queued. Of several tables, each that is refused is named in `tables`. If the source does not answer, a
    request is queued unchecked, and `unchecked` gives the reason."""
    if options.dry_run:
        return _rehearsed(options)
    with opened_store(options.settings) as store:
        requests = _requests(options, store)
        tables = [_outcome(options, each, partial(_queued, options, store, each)) for each in requests]
    return _reported(options, tables)


def _queued(options: IngestRequestOptions, store: IngestionStore, request: Request) -> TableRequested:
    queued = accept(store, options.settings.ingestion, request, options.asks)
    one = TableRequested(request.place, queued.state, ".".join(request.target))
    one.job, one.position, one.replaces = queued.job, queued.position, queued.replaces
    one.unchecked = queued.unchecked
    return one


def _outcome(options: IngestRequestOptions, request: Request, attempt: Callable[[], TableRequested]) -> TableRequested:
    """Returns the outcome of one table. Raises its error if no other table is named, and errors of the store."""
    try:
        return attempt()
    except Exception as error:
        if options.is_single:
            raise
        refused = refusal(error, request.place)
        return TableRequested(request.place, "refused", error=refused.message, hint=refused.hint)


def _reported(options: IngestRequestOptions, tables: list[TableRequested]) -> IngestionRequested:
    first = next((each for each in tables if each.job is not None), None)
    refused = sum(each.status == "refused" for each in tables)
    done = "planned" if options.dry_run else first.status if first else "refused"
    shown = first or tables[0]
    return IngestionRequested(
        "refused" if refused == len(tables) else "partial" if refused else done,
        shown.job or 0,
        shown.position or 0,
        shown.replaces,
        shown.table,
        shown.target,
        not shown.unchecked,
        shown.unchecked,
        tables,
        single_user=options.settings.ingestion.single_user,
    )


# ---- tables of a schema ----------------------------------------------------------------------------------------------


def _requests(options: IngestRequestOptions, store: JobAnswers) -> list[Request]:
    """Returns a request for each table, each once. Raises UsageError for a schema of which none is selected."""
    found: dict[str, Request] = {}
    for source, schema, table in options.places:
        names = [table] if table else _selected(options, store, source, schema)
        for name in names:
            one = options.request(source, schema, name)
            found.setdefault(one.place, one)
    if len(found) > MOST:
        hint = f"use --include and --exclude, for at most {MOST:,} tables"
        raise UsageError(f"{len(found):,} tables are selected", hint=hint)
    return list(found.values())


def _selected(options: IngestRequestOptions, store: JobAnswers, source: str, schema: str) -> list[str]:
    """Returns the selected tables of a schema. Lists none for users who may not request any."""
    ingestion, patterns = options.settings.ingestion, Patterns.parse(options.include, options.exclude)
    asset = with_class(store.asset(options.asset), ingestion)
    check_request(options.request(source, schema, "table"), asset, ingestion, options.asks)
    names = table_names(source, ingestion.sources[source], schema)
    if names is None:
        with _at_landing(options) as landing, opened(landing.session(), source, ingestion.sources[source]) as database:
            names = database.table_names(schema)
    if found := [name for name in names if patterns.match(name)]:
        return found
    wanted = " or ".join(options.include) or "any name"
    near = difflib.get_close_matches(next(iter(options.include), ""), names, 3)
    seen = f"the source's user sees {', '.join(names[:20]) or 'no table'}"
    hint = f"did you mean {' or '.join(near)}?" if near else seen
    raise UsageError(f"{source}:{schema}: no table matches {wanted}", hint=hint)


# ---- dry run ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Landing:
    """The warehouse of landing tables. session: returns a new Spark session on it."""

    metastore: Metastore
    engines: AutoEngine
    session: Callable[[], Any]


@contextlib.contextmanager
def _at_landing(options: IngestRequestOptions) -> Iterator[_Landing]:
    ingestion = options.settings.ingestion
    if not ingestion.metastore:
        raise ConfigError("ingestion.metastore is not set", hint="see docs/ingestion.md")
    with options.connected(ingestion.metastore) as metastore, options.runtime() as runtime:
        yield _Landing(metastore, runtime.engines, sessions(ingestion, metastore, runtime))


def _rehearsed(options: IngestRequestOptions) -> IngestionRequested:
    with existing_store(options.settings) as store:
        if store is None:
            hint = f"create it: `replicator asset create {options.asset}`"
            raise ObjectNotFound(f"asset {options.asset!r} does not exist", hint=hint)
        requests = _requests(options, store)
        with _at_landing(options) as landing:
            planned = partial(_planned, options, store, landing)
            tables = [_outcome(options, each, partial(planned, each)) for each in requests]
    return _reported(options, tables)


def _planned(
    options: IngestRequestOptions, store: IngestionStore, landing: _Landing, request: Request
) -> TableRequested:
    """Returns what a job would do, or why it would be refused."""
    ingestion = options.settings.ingestion
    asked, asset, unchecked = checked(store, ingestion, request, options.asks)
    one = TableRequested(request.place, "planned", ".".join(request.target), unchecked=unchecked)
    if another := store.taken_by_another(asked):
        one.status, one.error = "refused", f"{another} already lands in {one.target}"
        return one
    claimed = Claimed(0, 0, 0, "", asked, "", {})
    remembered = store.last_facts(asked)
    work = Work(
        claimed, asset, ingestion, landing.metastore, landing.engines, landing.session(), remembered, store.kept
    )
    try:
        one.plan = _plan_of_files(work) if work.source.path else _plan_of_table(work)
    except Exception as error:
        one.status = "refused"
        one.error, one.hint = (error.message, error.hint) if isinstance(error, Error) else (failure_of(error).text, "")
    else:
        one.unchecked = ""
    return one


def _plan_of_files(work: Work) -> LandingPlan:
    parts, rows = planned_files(work)
    columns = [
        PlannedColumn(f"{part.name}: {name}" if part.name else name, each.type, each.name.lower(), each.type)
        for part in parts
        for each in part.columns
        for name in [".".join(each.path)]
    ]
    return LandingPlan(columns, rows, True, parts=[f"{work.request.target[1]}__{part.name}" for part in parts[1:]])


def _plan_of_table(work: Work) -> LandingPlan:
    request, source = work.request, work.source
    with without_values(request), opened(work.session, request.source, source, Patience(open=0)) as given:
        database, whole = given.of_request(request)
        table = selected(database.dialect, whole, request)
        columns = columns_for(work, [Column(each.name, each.type) for each in table.columns])
        if request.mode == "merge":
            _ = key_values(table, request.key)  # raises for a key whose collation is not known
        where = _where(work, database, columns)
        rows, exact = database.estimated_rows(whole, where)
        landing = landing_of(work.metastore, work.asset, request)
        if exact and rows is not None:
            refuse_loss(work.metastore, request, landing, rows, work.config.max_loss)
        ranges = database.ranges(whole, request.split, source.readers, where, table)
    types = {each[0]: each[1] for each in columns}
    shown = [
        PlannedColumn(each.name, each.source_type, each.name.lower(), types[each.name.lower()])
        for each in table.columns
    ]
    return LandingPlan(shown, rows, exact, len(ranges.predicates), ranges.column, ranges.method)


def _where(work: Work, database: SourceDatabase, columns: Sequence[Sequence[str]]) -> str:
    """Returns the condition for the rows of an increment; empty: all rows."""
    request = work.request
    if request.watermark is None:
        return ""
    table = database.table(request.schema, request.table)
    landing = landing_of(work.metastore, work.asset, request)
    named = tuple(Column(*each) for each in columns)
    low = None if request.rebuild else landed_until(work.metastore, landing, request, named, 0, work.remembered)
    bounded = bounds(database, table, request, 0, work.remembered.get("late", {}))
    return window(database, table, request, low, bounded, parse_duration(work.config.ahead))[0]
