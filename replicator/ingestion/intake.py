"""Intake of requests: parses, checks, and queues them on behalf of the requester."""

from __future__ import annotations

import difflib
import grp
import logging
import os
import pwd
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from cmroot.store.place import Place, is_local, join, local_path
from replicator.core.config import SQLITE, Config
from replicator.core.model import Value
from replicator.core.source_config import IDS, IngestionConfig, is_match
from replicator.core.text import parse_duration
from replicator.errors import ConfigError, Error, ObjectNotFound, Refused, UsageError
from replicator.ingestion.ingestion_request import (
    NAME,
    Asset,
    Request,
    Split,
    Submitted,
    check_approved,
    check_scope,
    is_text,
    with_class,
)
from replicator.ingestion.ingestion_shown import look_at_source
from replicator.ingestion.job_answers import JobAnswers
from replicator.ingestion.job_store import REVISION, IngestionStore
from replicator.ingestion.landing.landing_log import principals
from replicator.ingestion.reading.request_selection import check_selection
from replicator.ingestion.schema import REVISIONS

# ---- validation ------------------------------------------------------------------------------------------------------
# Permitted values of assets and requests, checked before anything is stored. Pure.


READERS = 64
"""Maximum number of connections of one job."""

LONG = 1000
"""Maximum characters of a name, a note or an exemption."""

COLUMNS = 5000
"""Maximum number of columns that a request selects, masks, or demands something of."""

KEYS = 100
"""Maximum number of columns of a key."""


class Requester(Value, frozen=True, omit_defaults=True):
    """The user who requests, and its groups, as reported by the adapter that authenticated it."""

    user: str
    groups: tuple[str, ...] = ()

    def is_one_of(self, names: Iterable[str]) -> bool:
        """Returns True if one of the names denotes the user or one of its groups; "user:NAME" and "group:NAME" match
        only that kind, even if a group directory contains a group called "user:NAME"."""
        bare = {each for each in (self.user, *self.groups) if not each.startswith(("user:", "group:"))}
        mine = bare | {f"user:{self.user}", *(f"group:{each}" for each in self.groups)}
        return bool(mine & {*names})


def check_asset(asset: Asset, ingestion: IngestionConfig) -> None:
    """Raises UsageError naming what is invalid, including values inherited from its class."""
    asset = with_class(asset, ingestion)
    about = f"asset {asset.name!r}"
    if not NAME.fullmatch(asset.name) or len(asset.name) > 64:
        raise UsageError(
            f"{about}: invalid name",
            hint="use up to 64 lower-case letters, digits and underscores: databases are named after it",
        )
    if not asset.owner.strip():
        raise UsageError(f"{about} has no owner", hint="name the user or group responsible for it")
    if not all(each.strip() for each in (*asset.producers, *asset.consumers)):
        raise UsageError(f"{about}: a producer or consumer has no name", hint="name users or groups")
    _texts(about, asset)
    _ = principals(asset.consumers)  # raises for an invalid one
    for source in asset.sources:
        _known_source(source, ingestion, about)
    if asset.erasure_ids is not None and not IDS.fullmatch(asset.erasure_ids):
        raise UsageError(f"{about}: {asset.erasure_ids!r} is not a column of ids", hint="write DB.TABLE:COLUMN")
    if (asset.erasure_ids is None) != (asset.erasure_column is None):
        raise UsageError(f"{about} has erasure ids without a column, or a column without ids", hint="give both")
    if asset.erasure_match and asset.erasure_column is None:
        raise UsageError(f"{about} has erasure match rules without ids", hint="give erasure ids and their column, too")
    if not is_match(asset.erasure_match):
        raise UsageError(f"{about} combines exact with another rule", hint="give exact alone, whatever its class has")
    if asset.classification == "personal" and asset.erasure_column is None and not asset.exemption.strip():
        raise UsageError(
            f"{about} is personal, but every landing would restore erased data subjects",
            hint="give the ids of erased data subjects and the column that has them, or the reason for an exemption",
        )
    if asset.retention is not None:
        try:
            parse_duration(asset.retention)
        except ValueError as error:
            raise UsageError(f"{about}: retention: {error}", hint="write a duration such as 30d") from error
    _short(about, note=asset.note, exemption=asset.exemption)


def check_lengths(request: Request) -> None:
    """Runs first, as it is cheap. Raises UsageError for values longer than a name or a note may be."""
    if len(request.key) > KEYS:
        raise UsageError(f"the key has {len(request.key)} columns", hint=f"name at most {KEYS}")
    names = ("asset", "source", "schema", "table", "watermark", "note", "backfill")
    _short("the request", **{name: getattr(request, name) or "" for name in names}, split=request.split.column or "")
    several = {"key": request.key, "columns": request.columns, "not_null": request.not_null, "unique": request.unique}
    several |= {"masks": (*request.masks, *request.masks.values())}
    for name, given in several.items():
        if len(given) > COLUMNS:
            raise UsageError(f"the request has {len(given)} texts of {name}", hint=f"give at most {COLUMNS}")
        for each in given:
            _short("the request", **{name: each})


def check_request(request: Request, asset: Asset, ingestion: IngestionConfig, requester: Requester) -> None:
    """Raises UsageError naming what is invalid; Refused if the asset is not approved, or the requester has no role."""
    about = request.place
    _texts(about, request)
    _texts(about, request.split)
    if not requester.is_one_of((asset.owner, *asset.producers)):
        raise Refused(
            f"{requester.user} is neither the owner nor a producer of asset {asset.name}",
            hint=f"ask its owner, {asset.owner}, to add you as a producer",
        )
    check_approved(asset, ingestion)
    if request.source not in asset.sources:
        near = f"it has {', '.join(asset.sources)}" if asset.sources else "it has none"
        raise UsageError(f"asset {asset.name} has no source {request.source!r}", hint=near)
    _known_source(request.source, ingestion, about)
    if not request.schema or not request.table:
        raise UsageError(f"{about}: a schema or a table is missing", hint="write SCHEMA.TABLE")
    _ = request.target  # raises for invalid names
    (_check_mode_of_files if ingestion.sources[request.source].path else _check_mode)(request)
    readers = request.split.readers
    if readers is not None and not 1 <= readers <= READERS:
        raise UsageError(f"{about}: invalid number of readers: {readers}", hint=f"use 1 to {READERS}, or omit it")
    if request.max_loss is not None and not 0 <= request.max_loss <= 1:
        raise UsageError(f"{about}: max_loss {request.max_loss} is not a share", hint="use 0 to 1, or omit it")
    _check_demands(request, asset)
    columns = (request.watermark, request.split.column, *request.key, *request.columns)
    if not all(each is None or each.strip() for each in columns):
        raise UsageError(f"{about}: a column has no name", hint="name a column of the table")


def _check_demands(request: Request, asset: Asset) -> None:
    """Raises UsageError for a selection, or a demand on the rows, that cannot be."""
    check_selection(request, asset)
    if request.least_rows is not None and request.least_rows < 1:
        raise UsageError(f"{request.place}: least_rows is {request.least_rows}", hint="use 1 or more, or omit it")
    demanded = (*request.not_null, *(name for names in request.uniques for name in names))
    if not all(each.strip() for each in demanded):
        raise UsageError(f"{request.place}: a column of not_null or unique has no name", hint="name columns")


def _check_mode(request: Request) -> None:
    """Raises UsageError if a mode lacks a required field, or has one that it would not honour."""
    about = request.place
    if request.mode == "append" and request.watermark is None:
        raise UsageError(f"{about}: mode append requires a watermark", hint="name a column whose values only grow")
    if request.mode == "merge" and not request.key:
        raise UsageError(f"{about}: mode merge requires a key", hint="name the columns that identify a row")
    if request.mode == "overwrite" and request.watermark is not None:
        raise UsageError(
            f"{about}: mode overwrite reads all rows, whatever the watermark", hint="append or merge use one"
        )
    if request.max_loss is not None and request.mode != "overwrite" and not request.rebuild:
        raise UsageError(
            f"{about}: mode {request.mode} removes no rows", hint="only mode overwrite, or a rebuild, has max_loss"
        )
    if request.late is not None:
        _check_late(request)
    elif request.mode != "merge" and request.key and request.backfill is None:
        raise UsageError(f"{about}: mode {request.mode} does not use a key", hint="mode merge does")
    _check_again(request)


def _check_again(request: Request) -> None:
    """Raises UsageError for a backfill or a rebuild that the mode does not have."""
    about = request.place
    if request.backfill is not None and (request.watermark is None or not request.backfill.strip()):
        raise UsageError(f"{about}: a backfill needs a value of the watermark", hint="name the watermark's column, too")
    if request.backfill is not None and request.rebuild:
        raise UsageError(f"{about}: a rebuild reads all rows, whatever the backfill", hint="request one of them")
    if request.rebuild and request.mode == "overwrite":
        raise UsageError(f"{about}: mode overwrite replaces all rows anyway", hint="omit rebuild")


def _check_late(request: Request) -> None:
    if request.watermark is None:
        raise UsageError(f"{request.place}: late rows need a watermark", hint="without one, all rows are read")
    try:
        parse_duration(request.late or "")
    except ValueError as error:
        raise UsageError(f"{request.place}: late: {error}", hint="write a duration such as 10m") from error


def _check_mode_of_files(request: Request) -> None:
    about = request.place
    if request.watermark is not None or request.late is not None or request.split != Split():
        raise UsageError(f"{about}: files have no watermark and no ranges", hint="mode append lands new days")
    if request.columns or request.where is not None or request.masks:
        raise UsageError(
            f"{about}: columns, rows and masks are selected in a database only", hint="omit columns, where and masks"
        )
    if request.mode == "append" and (request.unique or request.least_rows is not None):
        raise UsageError(f"{about}: days have no unique columns and no least rows", hint="mode overwrite has both")
    if request.backfill is not None or request.rebuild:
        raise UsageError(
            f"{about}: files are not read again by a backfill or a rebuild",
            hint="drop the table, not its files: the next request lands all files, or all days, again",
        )
    if request.mode == "merge" and not request.key:
        raise UsageError(f"{about}: mode merge requires a key", hint="name the columns that identify a row")
    if request.mode != "merge" and request.key:
        raise UsageError(f"{about}: mode {request.mode} does not use a key", hint="mode merge does")


def _known_source(source: str, ingestion: IngestionConfig, about: str) -> None:
    if source not in ingestion.sources:
        near = difflib.get_close_matches(source, ingestion.sources, 1)
        known = ", ".join(sorted(ingestion.sources)) or "none"
        hint = f"did you mean {near[0]}?" if near else f"[ingestion.sources] has {known}"
        raise UsageError(f"{about}: source {source!r} is not configured", hint=hint)


def _texts(about: str, value: Value) -> None:
    """Raises UsageError for text that a database could not store."""
    for name, given in msgspec.structs.asdict(value).items():
        several = (*given, *given.values()) if isinstance(given, dict) else given
        if not all(
            is_text(each) for each in (several if isinstance(several, tuple) else [several]) if isinstance(each, str)
        ):
            raise UsageError(f"{about}: its {name} is not valid text", hint="use UTF-8, without NUL")


def _short(about: str, **texts: str) -> None:
    for name, text in texts.items():
        if len(text) > LONG:
            raise UsageError(f"{about}: its {name} is too long", hint=f"use at most {LONG} characters")


# ---- intake ----------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

FIELDS = tuple(name for name in Request.__struct_fields__ if name != "requested_by")
"""Fields permitted in a request; the requester is not one of them."""


def opened_store(config: Config, *, new: bool = False) -> IngestionStore:
    """Returns the store configured in `[ingestion]`, otherwise in `[service]`; creates or migrates its tables. new: a
    file of SQLite that does not exist is created. Raises ConfigError without this file otherwise."""
    url = config.ingestion.store or config.service.store
    file = Path(url.removeprefix(SQLITE))
    if not new and url.startswith(f"{SQLITE}/") and not file.exists():
        here = Path(file.name)
        hint = f"the first `replicator asset create` creates it; {config.looked_for} has [ingestion] store"
        if here.exists():
            hint = f"earlier versions used {here.absolute()}: move it there, or set [ingestion] store to its path"
        raise ConfigError(f"the ingestion store {file} does not exist", hint=hint)
    store = IngestionStore(url)
    store.prepare()
    return store


@contextmanager
def existing_store(config: Config) -> Iterator[IngestionStore | None]:
    """Yields the store for a query; None if it does not exist, or has no tables: a query creates neither. Older tables
    are migrated. Raises ConfigError if its directory does not exist, such as that of a disk that is not mounted, and
    where earlier versions used another file, which exists."""
    url = config.ingestion.store or config.service.store
    file = Path(url.removeprefix(SQLITE))
    if url.startswith(f"{SQLITE}/") and not (file.exists() and file.stat().st_size):
        if not file.exists() and (Path(file.name).exists() or not file.parent.is_dir()):
            opened_store(config)  # raises
        yield None
        return
    with IngestionStore(url) as store:
        if store.revision(REVISIONS, REVISION) is None:
            yield None
            return
        store.prepare()
        yield store


def this_user() -> Requester:
    """Returns the user who runs this program, as known to the system, ignoring environment variables."""
    return user_of(os.getuid(), os.getgroups())


def user_of(uid: int, groups: list[int] | None = None) -> Requester:
    """Returns a user of this machine, with its groups. groups: their numbers, if known. A user without a name is
    identified by its number."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Requester(str(uid))
    found = os.getgrouplist(entry.pw_name, entry.pw_gid) if groups is None else groups
    return Requester(entry.pw_name, tuple(filter(None, map(_group_name, found))))


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return ""


def parse_request(values: Mapping[str, Any], about: str) -> Request:
    """Parses a request. about: its source, for messages. Raises UsageError naming what is invalid."""
    _check_names(values, FIELDS, about)
    if isinstance(split := values.get("split"), Mapping):
        _check_names(split, Split.__struct_fields__, f"{about}: split")
    try:
        return msgspec.convert(dict(values), Request)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter for an unpaired surrogate
        hint = "asset, source, schema and table are required; docs/ingestion.md lists all fields"
        raise UsageError(f"{about}: {error}", hint=hint) from error


def _check_names(values: Mapping[str, Any], known: tuple[str, ...], about: str) -> None:
    for name in values:
        if name == "requested_by":
            raise UsageError(
                f"{about}: field {name!r} is not permitted",
                hint="omit it: the requester is determined when the request is received",
            )
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known fields: {', '.join(known)}"
            raise UsageError(f"{about}: unknown field {name!r}", hint=hint)


def accept(
    store: IngestionStore, ingestion: IngestionConfig, request: Request, requester: Requester, key: str | None = None
) -> Submitted:
    """Checks and queues a request. Its source is queried after all other checks; if it does not respond, the request is
    accepted. key: see `IngestionStore.submit`. Raises UsageError, ObjectNotFound or Refused; then nothing is stored."""
    if key and (known := store.submitted(key)):
        return replace(known, unchecked="it was requested before")
    asked, _, unchecked = checked(store, ingestion, request, requester)
    return replace(store.submit(asked, key=key), unchecked=unchecked)


def checked(
    store: JobAnswers, ingestion: IngestionConfig, request: Request, requester: Requester
) -> tuple[Request, Asset, str]:
    """Returns the request on behalf of the requester, its asset, and why its source was not queried; empty: it was.
    Raises as `accept`; stores nothing."""
    check_lengths(request)
    asked = msgspec.structs.replace(request, requested_by=requester.user)
    asset = with_class(store.asset(asked.asset), ingestion)
    check_request(asked, asset, ingestion, requester)
    db, table = asked.target
    check_scope(asset, db, [table], ingestion)
    return asked, asset, look_at_source(asked, asset, ingestion.sources)


def refusal(error: Exception, about: str) -> Error:
    """Returns the error that refuses one request among others. Raises an error that does not concern this request, such
    as an unavailable store. An unexpected error is logged and refuses the request, which would otherwise block the
    others."""
    if isinstance(error, (UsageError, ObjectNotFound, Refused)):
        return error
    if isinstance(error, Error):
        raise error
    log.error("%s: internal error", about, exc_info=error)
    return Error("internal error, request not accepted", hint="see the log of the service")


# ---- asset place -----------------------------------------------------------------------------------------------------
# Prerequisites of an asset at its approval, before any table exists: its directory below `landing`. What cannot be
# created is reported.


def prepare_place(asset: Asset, ingestion: IngestionConfig) -> list[str]:
    """Creates the directory, and returns what was not created, a text each. May run twice. Only the owner of `landing`
    creates it: a directory of another user would be inaccessible to the user who lands rows."""
    lacking = []
    if not ingestion.landing:
        return ["the asset's directory: ingestion.landing is not set"]
    directory = join(ingestion.landing, asset.name.lower())
    try:
        place = Place(directory)
        if not place.exists():
            if is_local(ingestion.landing) and os.stat(local_path(ingestion.landing)).st_uid == os.geteuid():
                place.mkdirs()
            else:
                lacking.append(f"{directory}: the first landing creates it")
    except (Error, OSError) as error:
        lacking.append(f"{directory}: {error}; the first landing creates it")
    if asset.consumers:
        who = ", ".join(asset.consumers)
        lacking.append(
            f"rights of {who} on {directory}: a store has no such names; SELECT is granted on each landed table"
        )
    return lacking
