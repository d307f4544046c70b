"""Requests as somebody wrote them: read, checked, and queued for who asks."""

from __future__ import annotations

import difflib
import grp
import logging
import os
import pwd
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from replicator.core.config import Config
from replicator.core.connections.source_config import IngestionConfig
from replicator.errors import Error, ObjectNotFound, Refused, UsageError
from replicator.ingestion.adapters.source_look import look_at_source
from replicator.ingestion.adapters.validation import Requester, check_lengths, check_request
from replicator.ingestion.ingestion_job import Submitted
from replicator.ingestion.ingestion_request import Request, Split, with_class
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.replication_scope import check_scope

log = logging.getLogger(__name__)

FIELDS = tuple(name for name in Request.__struct_fields__ if name != "requested_by")
"""What a request may say: not who it is of."""


def opened_store(config: Config) -> IngestionStore:
    """The store that `[ingestion]` names, else that of `[service]`; its tables are made where they are not there."""
    store = IngestionStore(config.ingestion.store or config.service.store)
    store.prepare()
    return store


def this_user() -> Requester:
    """Who runs this program, as the system knows it: no variable of the environment says otherwise."""
    return user_of(os.getuid(), os.getgroups())


def user_of(uid: int, groups: list[int] | None = None) -> Requester:
    """A user of this machine, with its groups. groups: their numbers, where they are known. One without a name is
    called by its number."""
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
    """A request of what somebody wrote. about: where it stands. Raises UsageError naming what is wrong."""
    _check_names(values, FIELDS, about)
    if isinstance(split := values.get("split"), Mapping):
        _check_names(split, Split.__struct_fields__, f"{about}: split")
    try:
        return msgspec.convert(dict(values), Request)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter of half a pair of UTF-16
        hint = "asset, source, schema and table are needed; docs/ingestion.md has all fields"
        raise UsageError(f"{about}: {error}", hint=hint) from error


def _check_names(values: Mapping[str, Any], known: tuple[str, ...], about: str) -> None:
    for name in values:
        if name == "requested_by":
            raise UsageError(f"{about}: says who asks", hint="leave it out: whoever lets the request in knows it")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise UsageError(f"{about}: unknown field {name!r}", hint=hint)


def accept(
    store: IngestionStore, ingestion: IngestionConfig, request: Request, requester: Requester, key: str | None = None
) -> Submitted:
    """Checks and queues a request; its source is asked once all else is well, and refuses nothing where it does not
    answer. key: as of `IngestionStore.submit`. Raises UsageError, ObjectNotFound or Refused, and then nothing is
    stored."""
    if key and (known := store.submitted(key)):
        return replace(known, unchecked="it was requested before")
    check_lengths(request)
    asked = msgspec.structs.replace(request, requested_by=requester.user)
    asset = with_class(store.asset(asked.asset), ingestion)
    check_request(asked, asset, ingestion, requester)
    db, table = asked.target
    check_scope(asset, db, [table], ingestion)
    unchecked = look_at_source(asked, asset, ingestion.sources)
    return replace(store.submit(asked, key=key), unchecked=unchecked)


def refusal(error: Exception, about: str) -> Error:
    """What refuses a request among others. Raises it where it is not about this one, such as a store that does not
    answer. What nobody expected is logged and refuses the request: it would stand before all others for ever."""
    if isinstance(error, (UsageError, ObjectNotFound, Refused)):
        return error
    if isinstance(error, Error):
        raise error
    log.error("%s: internal error", about, exc_info=error)
    return Error("internal error, not taken", hint="the log of the service has more")
