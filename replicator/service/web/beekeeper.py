"""Beekeeper's REST API over the items of housekeeping, with its parameters, fields, pages and errors, so that its
clients continue to work.

Times have no zone, and are UTC. Items are those of `[housekeeping] store`, or of the root of `[defaults]`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse

from replicator.commands.lifecycle import TIMES, housekeeping_ls
from replicator.core.config import Config
from replicator.errors import Error, UsageError
from replicator.lifecycle.housekeeping.item_queries import ItemPage
from replicator.lifecycle.housekeeping.run import opened
from replicator.service.web.endpoint import SECONDS
from replicator.service.web.responses import status_of
from replicator.service.web.router import too_late
from replicator.service.web.serving import Askers, Late, Serving, Who, require

SIZE = 20  # items of a page by default

LARGEST = 2000
"""Maximum items of a page, as in Spring."""

_METADATA = (
    *("path", "databaseName", "tableName", "partitionName", "housekeepingStatus", "creationTimestamp"),
    *("modifiedTimestamp", "cleanupTimestamp", "cleanupDelay", "cleanupAttempts", "lifecycleType"),
)
_PATHS = tuple(name for name in _METADATA if name != "partitionName")

beekeeper = APIRouter(prefix="/api/v1/database/{database}/table/{table}")

Text = Annotated[str | None, Query(max_length=4000)]


@dataclass
class _Filters:
    """The parameters of both endpoints."""

    path: Text = None
    partition_name: Text = None
    housekeeping_status: Text = None
    lifecycle_type: Text = None
    deleted_before: Text = None
    deleted_after: Text = None
    registered_before: Text = None
    registered_after: Text = None

    def asked(self) -> dict[str, str | None]:
        """Returns them as arguments of `housekeeping_ls`."""
        times = (self.deleted_before, self.deleted_after, self.registered_before, self.registered_after)
        return {
            "path": self.path,
            "partition": self.partition_name,
            "status": self.housekeeping_status,
            **dict(zip(TIMES, times, strict=True)),
        }


@dataclass
class _Paging:
    """Paging as Spring reads it: a value that is not a number, or too small, becomes the default; one that is too
    large, the maximum."""

    page: Text = None
    size: Text = None
    sort: Annotated[list[str] | None, Query()] = None

    @property
    def number(self) -> int:
        return max(0, _integer(self.page))

    @property
    def items(self) -> int:
        size = _integer(self.size)
        return SIZE if size < 1 else min(size, LARGEST)


def _integer(text: str | None) -> int:
    """Parses an integer of 32 bits; 0 if it is invalid."""
    found = int(text) if text and re.fullmatch(r"[+-]?[0-9]{1,10}", text) else 0
    return found if -(2**31) <= found < 2**31 else 0


@beekeeper.get("/metadata")
async def metadata(
    request: Request,
    who: Who,
    database: str,
    table: str,
    filters: Annotated[_Filters, Depends()],
    paging: Annotated[_Paging, Depends()],
) -> JSONResponse:
    """Lists tables and partitions that expire."""
    return await _answer(request, who, (database, table), "expired", filters, paging)


@beekeeper.get("/unreferenced-paths")
async def unreferenced_paths(
    request: Request,
    who: Who,
    database: str,
    table: str,
    filters: Annotated[_Filters, Depends()],
    paging: Annotated[_Paging, Depends()],
) -> JSONResponse:
    """Lists paths that are no longer referenced. `partition_name` is accepted, and filters nothing."""
    filters.partition_name = None
    return await _answer(request, who, (database, table), "unreferenced", filters, paging)


async def _answer(
    request: Request, who: Who, table: tuple[str, str], lifecycle: str, filters: _Filters, paging: _Paging
) -> JSONResponse:
    require(who, "viewer", "")
    serving: Serving = request.app.state.serving
    askers: Askers = request.app.state.askers
    try:
        ask = partial(_items, serving, table, lifecycle, filters, paging)
        found = await askers.ask(_root(serving.config), SECONDS, ask)
    except Error as error:
        return _failed(request, status_of(error), error.message)
    except Late as late:
        said = too_late(late, SECONDS)
        return _failed(request, said.status_code, said.detail)
    return JSONResponse(_page(found, _METADATA if lifecycle == "expired" else _PATHS, bool(paging.sort)))


def _failed(request: Request, status: int, message: str) -> JSONResponse:
    body = {
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "status": status,
        "error": HTTPStatus(status).phrase,
        "message": message,
        "path": request.url.path,
    }
    return JSONResponse(body, status)


def _items(serving: Serving, table: tuple[str, str], lifecycle: str, filters: _Filters, paging: _Paging) -> ItemPage:
    config = serving.config
    root = _root(config)
    wanted: dict[str, Any] = {**filters.asked(), "lifecycle": lifecycle}
    if filters.lifecycle_type is not None and filters.lifecycle_type.lower() != lifecycle:
        wanted["partition"] = "/"  # as for another kind: matches nothing
    with opened(root, config.housekeeping.store) as store:
        if store.is_new():  # before the first run: the table is unknown
            return ItemPage(store.url, [], 0, paging.number, paging.items, {})
    return housekeeping_ls(
        cmroot=root,
        config=config,
        db=table[0],
        table=table[1],
        size=paging.items,
        page=paging.number,
        sort=paging.sort or [],
        counted=False,
        **wanted,
    )


def _root(config: Config) -> str:
    """Returns the root whose items are queried: that of `[defaults]`, else the one that all policies have."""
    found = {config.defaults.cmroot} if config.defaults.cmroot else {each.cmroot for each in config.policies.values()}
    if len(found) != 1:
        told = "no root is" if not found else f"{len(found)} roots are"
        raise UsageError(f"{told} configured, but this query needs exactly one", hint="set cmroot in [defaults]")
    return str(found.pop())


def _page(found: ItemPage, names: tuple[str, ...], sorted_: bool) -> dict[str, Any]:
    """Returns a page in Spring's format."""
    said = found.to_dict()
    sort = {"sorted": sorted_, "unsorted": not sorted_, "empty": not sorted_}
    content = [{name: _local(name, item[name]) for name in names} for item in said["content"]]
    pageable = {
        "sort": sort,
        "pageNumber": found.page,
        "pageSize": found.size,
        "offset": found.page * found.size,
        "paged": True,
        "unpaged": False,
    }
    counts = ("totalElements", "totalPages", "last", "first", "number", "size", "numberOfElements", "empty")
    return {"content": content, "pageable": pageable, "sort": sort, **{name: said[name] for name in counts}}


def _local(name: str, value: Any) -> Any:
    return value.removesuffix("Z") if name.endswith("Timestamp") and value is not None else value
