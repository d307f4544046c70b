"""Reports of commands about assets and jobs."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from cmroot.store.place import Place, name_of
from replicator.core.model import Value
from replicator.core.not_replicated import Report, Rows
from replicator.core.source_config import IngestionConfig, SourceConfig
from replicator.core.text import without_credentials
from replicator.errors import Error, SourceRefused, SourceUnreachable, UsageError
from replicator.ingestion.drop_directory import DAY, table_directory
from replicator.ingestion.file_description import FILE, read_description
from replicator.ingestion.ingestion_request import (
    OF_A_CLASS,
    Asset,
    IngestionJob,
    JobDetail,
    Request,
    Submitted,
    allowed_policies,
    as_approved,
    with_class,
)
from replicator.ingestion.job_queries import LandingFigures, QueueFigures
from replicator.ingestion.notices import Undelivered
from replicator.ingestion.reading.request_selection import columns_in
from replicator.ingestion.schema import digest_of

if TYPE_CHECKING:
    import psycopg


@dataclass(kw_only=True)
class IngestionReport(Report):
    """A report about ingestion. single_user: users may approve assets that they created: for trying only."""

    single_user: bool = False

    def to_dict(self) -> dict[str, Any]:
        found = super().to_dict()
        return {**found, "single_user": found.pop("single_user", self.single_user)}


def _asset_fields(asset: Asset) -> dict[str, Any]:
    """Returns all fields, including those with defaults."""
    return {name: msgspec.to_builtins(value) for name, value in msgspec.structs.asdict(asset).items()}


class LandingMark(Value, frozen=True, omit_defaults=False):
    """The watermark up to which a table has landed. column, value: None: it has none, and the next job reads all rows.
    job: of the newest publication."""

    table: str
    source: str
    mode: str
    column: str
    value: str | None
    job: int

    @classmethod
    def of(cls, row: Mapping[str, Any], facts: Mapping[str, Any]) -> Self | None:
        """Returns the mark of a published job; None if its rows have no watermark. row: of the store."""
        request = msgspec.json.decode(row["request"], type=Request)
        if request.watermark is None:
            return None
        said = facts.get("watermark")
        value = msgspec.json.decode(said, type=tuple[str, str])[1] if said else None
        return cls(row["target"], row["source"], request.mode, request.watermark.lower(), value, row["id"])


@dataclass
class MarksShown(Rows):
    """Watermarks of landing tables, by table. status: "shown", "set" or "cleared"."""

    status: str
    marks: list[LandingMark] = field(default_factory=list)
    listed: ClassVar[str] = "marks"


@dataclass
class AssetShown(IngestionReport):
    """An asset, with the values inherited from its class. status: "created", "unchanged", "changed", "approved" or
    "shown". given_by: the source of retention and erasure settings that are set: "asset", or "class NAME". policies:
    those that may replicate its landing tables according to its class; None: all. not_made: prerequisites that an
    approval could not create. digest: of the definition without its class, by which an approval refers to it. marks:
    the watermarks of its landing tables, if it is shown."""

    status: str
    asset: Asset
    given_by: dict[str, str] = field(default_factory=dict)
    policies: tuple[str, ...] | None = None
    not_made: list[str] = field(default_factory=list)
    digest: str = ""
    marks: list[LandingMark] = field(default_factory=list)

    @classmethod
    def of(cls, status: str, asset: Asset, ingestion: IngestionConfig) -> Self:
        whole, said = with_class(asset, ingestion), {}
        for name in OF_A_CLASS:
            if getattr(whole, name) is not None:
                said[name] = "asset" if getattr(asset, name) is not None else f"class {asset.classification}"
        policies, alone = allowed_policies(asset, ingestion), ingestion.single_user
        shown = as_approved(whole, ingestion)
        return cls(status, shown, said, policies, digest=digest_of(asset), single_user=alone)

    def to_dict(self) -> dict[str, Any]:
        policies = None if self.policies is None else list(self.policies)
        more = {"given_by": self.given_by, "policies": policies, "not_made": self.not_made}
        return {
            "status": self.status,
            **_asset_fields(self.asset),
            **more,
            "digest": self.digest,
            "marks": msgspec.to_builtins(self.marks),
            "single_user": self.single_user,
        }


@dataclass
class AssetsShown(IngestionReport, Rows):
    """Assets, by name."""

    status: str
    assets: list[Asset]
    listed: ClassVar[str] = "assets"

    def to_dict(self) -> dict[str, Any]:
        assets = list(map(_asset_fields, self.assets))
        return {"status": self.status, "assets": assets, "single_user": self.single_user}


class PlannedColumn(Value, frozen=True, omit_defaults=False):
    """A column of a table to land: its name and type at the source, and at the landing."""

    source: str
    source_type: str
    name: str
    type: str


@dataclass
class LandingPlan:
    """The plan of a landing, as read by a dry run. rows: to be read; None: not known. exact: False: an estimate.
    readers: concurrent ones, in ranges of `split`, by a method of `Ranges`. parts: tables of nested rows."""

    columns: list[PlannedColumn]
    rows: int | None
    exact: bool = False
    readers: int = 1
    split: str | None = None
    method: str = "one"
    parts: list[str] = field(default_factory=list)


@dataclass
class TableRequested:
    """The outcome of one table of a request. status: that of its job, "planned" (a dry run), or "refused". error, hint:
    why. plan: of a dry run. Other fields: see `IngestionRequested`."""

    table: str
    status: str
    target: str = ""
    job: int | None = None
    position: int | None = None
    replaces: int | None = None
    unchecked: str = ""
    error: str = ""
    hint: str = ""
    plan: LandingPlan | None = None


@dataclass
class IngestionRequested(IngestionReport):
    """A request of one or more tables. status: "queued"; "planned": a dry run; "partial": tables were refused;
    "refused": all were. The other fields are those of the first table that was not refused. position: in the queue,
    from 1. replaces: the job that it superseded. target: the landing table. checked: True if the source confirmed that
    table and columns exist; unchecked: why it was not queried. tables: the outcome of each table."""

    status: str
    job: int
    position: int
    replaces: int | None
    source: str
    target: str
    checked: bool = True
    unchecked: str = ""
    tables: list[TableRequested] = field(default_factory=list)


@dataclass
class IngestionJobs(IngestionReport, Rows):
    """Jobs, newest first."""

    status: str
    jobs: list[IngestionJob]
    listed: ClassVar[str] = "jobs"


@dataclass
class IngestionJobShown(IngestionReport):
    """A job with its request, its error in detail, and its changes, oldest first. undelivered: messages about it that
    have not been delivered to receivers yet."""

    status: str
    detail: JobDetail
    undelivered: list[Undelivered] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        found = msgspec.to_builtins(self.detail)
        return {
            "status": self.status,
            **found.pop("job"),
            **found,
            "undelivered": msgspec.to_builtins(self.undelivered),
            "single_user": self.single_user,
        }


@dataclass
class RequestAnswer:
    """The result of one request. name: of its file, or its row's number; error, hint: why it was refused. checked,
    unchecked: see `IngestionRequested`."""

    name: str
    requested_by: str
    job: int | None = None
    position: int | None = None
    checked: bool | None = None
    unchecked: str = ""
    error: str = ""
    hint: str = ""

    def queued(self, found: Submitted) -> None:
        self.job, self.position = found.job, found.position
        self.checked, self.unchecked = not found.unchecked, found.unchecked


@dataclass
class RequestsTaken(IngestionReport, Rows):
    """Requests of a directory or of a table, in order."""

    status: str
    place: str
    requests: list[RequestAnswer] = field(default_factory=list)
    listed: ClassVar[str] = "requests"


@dataclass
class DropZone(Report):
    """The SQL that lets a database's users make requests."""

    status: str
    sql: str


@dataclass
class IngestionStats(IngestionReport):
    """Metrics of ingestion. slots: of all controllers; cap: slots that one asset may have. queue: jobs that are not
    over. landed: publications in the requested period."""

    status: str
    slots: int
    cap: int
    queue: QueueFigures
    landed: LandingFigures


# ---- source look -----------------------------------------------------------------------------------------------------
# A check of the source before a request is queued: whether the named table and columns exist. It uses no Spark, reads
# no rows and lists no files: it queries a catalog, or reads a description.
#
# A source that is unavailable does not cause a refusal: the job will check.


PATIENCE = 5
"""Seconds for a connection, and for a response, because the requester waits for it."""

OF_BOTH = ("sslmode", "sslrootcert", "sslcert", "sslkey")
"""Parameters of a JDBC URL that libpq supports as well."""

_KINDS = "('r', 'p', 'm', 'v', 'f')"
_TABLE = f"""SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN {_KINDS}"""
_COLUMNS = """SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
ORDER BY attnum"""
_NAMES = f"""SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind IN {_KINDS} LIMIT 10000"""


_TABLES = f"""SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind IN {_KINDS} AND NOT c.relispartition ORDER BY c.relname"""


def table_names(source: str, config: SourceConfig, schema: str) -> list[str] | None:
    """Returns the tables and views of a schema, without partitions of others; of a drop zone, directories with a
    description; None: only Spark can list them. Raises SourceUnreachable."""
    if config.kind == "files":
        place = Place(config.path) / schema
        names = [name_of(child.path) for child in place.children() if child.is_directory] if place.exists() else []
        return sorted(name for name in names if (place / name / FILE).exists())
    if config.kind != "postgresql":
        return None
    try:
        import psycopg

        with dial(source, config, PATIENCE) as connection:
            return [row[0] for row in connection.execute(_TABLES, (schema,))]
    except ModuleNotFoundError:
        return None
    except psycopg.Error as error:
        raise SourceUnreachable(f"source {source}: {_why(error)}", hint="check its url, user and password") from error


def look_at_source(request: Request, asset: Asset, sources: Mapping[str, SourceConfig]) -> str:
    """Returns "" once the table was checked; otherwise why it was not, readable and without secrets. Raises UsageError
    for a table or a column that does not exist, and for a drop zone's directory without a valid description."""
    source = sources[request.source]
    kinds: dict[str, Callable[[Request, Asset, SourceConfig], str]] = {
        "files": _look_at_files,
        "postgresql": _look_at_postgres,
    }
    look = kinds.get(source.kind)
    return look(request, asset, source) if look else f"a {source.kind} source is queried only by the job"


def dial(source: str, config: SourceConfig, seconds: int) -> psycopg.Connection[Any]:
    """Connects to a PostgreSQL that is a source. Raises UsageError without its driver, ConfigError for a password that
    cannot be read, and psycopg.Error."""
    try:
        import psycopg  # of an extra
    except ModuleNotFoundError as error:
        raise UsageError(f"source {source}: {error}", hint="pip install 'replicator[postgres]'") from error
    given: dict[str, Any] = {"user": config.user or None, "password": config.secret(source) or None}
    given |= {"connect_timeout": seconds, "tcp_user_timeout": seconds * 1000}
    return psycopg.connect(_libpq(config.url), **given)


def _libpq(url: str) -> str:
    """Converts a JDBC URL to a libpq URL."""
    parts = urlsplit(url.removeprefix("jdbc:"))
    query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name in OF_BOTH])
    return urlunsplit(parts._replace(query=query))


def _look_at_postgres(request: Request, asset: Asset, config: SourceConfig) -> str:
    try:
        import psycopg
    except ModuleNotFoundError:
        return "psycopg is not installed: pip install 'replicator[postgres]'"
    try:
        with dial(request.source, config, PATIENCE) as connection:
            connection.execute(f"SET statement_timeout = '{PATIENCE}s'")
            found = connection.execute(_TABLE, (request.schema, request.table)).fetchone()
            if found is None:
                names = [row[0] for row in connection.execute(_NAMES, (request.schema,))]
                raise _no_table(request, names)
            columns = [row[0] for row in connection.execute(_COLUMNS, found)]
    except psycopg.Error as error:
        return _why(error)
    except UsageError:
        raise
    except Error as error:
        return _why(error)
    _check_columns(request, asset, columns)
    return ""


def _look_at_files(request: Request, asset: Asset, config: SourceConfig) -> str:
    try:
        if not Place(config.path).exists():
            return f"directory {config.path} does not exist at present"
        description = read_description(table_directory(config.path, request.schema, request.table))
    except SourceRefused as error:
        raise UsageError(f"{request.place}: {error.message}", hint=error.hint) from error
    except (Error, OSError) as error:
        return _why(error)
    if request.mode == "append" and description.days is None:
        told = f"{request.place}: files are appended by day, but the description has no days"
        raise UsageError(told, hint="request mode overwrite")
    if description.format != "csv":
        return f"the columns of {description.format} are defined in its files"
    _check_columns(request, asset, [*(column.name for column in description.columns), DAY])
    return ""


def _no_table(request: Request, names: Sequence[str]) -> UsageError:
    near = difflib.get_close_matches(request.table, names, 1)
    seen = f"the source's user sees {len(names)} tables and views in {request.schema}"
    hint = f"did you mean {near[0]}?" if near else seen
    return UsageError(f"{request.place}: table {request.schema}.{request.table} does not exist", hint=hint)


def _check_columns(request: Request, asset: Asset, columns: Sequence[str]) -> None:
    """Raises UsageError for a missing column. A unique case-insensitive match counts, as in the job."""
    lower = [name.lower() for name in columns]
    for what, wanted in _named(request, asset):
        if wanted in columns or lower.count(wanted.lower()) == 1:
            continue
        near = difflib.get_close_matches(wanted.lower(), lower, 1)
        hint = f"did you mean {columns[lower.index(near[0])]}?" if near else f"it has {', '.join(columns[:20])}"
        raise UsageError(f"{request.place}: column {wanted}, its {what}, does not exist", hint=hint)


def _named(request: Request, asset: Asset) -> Iterator[tuple[str, str]]:
    """Yields the columns that must exist, each with its purpose."""
    if request.watermark:
        yield "watermark", request.watermark
    if request.split.column:
        yield "split column", request.split.column
    for each in request.key:
        yield "key", each
    for each in (*request.columns, *request.masks, *(columns_in(request.where) if request.where else ())):
        yield "selected column", each
    for each in (*request.not_null, *(name for names in request.uniques for name in names)):
        yield "demanded column", each
    if asset.erasure_ids and asset.erasure_column:
        yield "erasure column", asset.erasure_column


def _why(error: BaseException) -> str:
    """Returns the first line of an error, without credentials."""
    text = ""
    with contextlib.suppress(IndexError):
        text = str(error).strip().splitlines()[0]
    return without_credentials(text or type(error).__name__)[:300]
