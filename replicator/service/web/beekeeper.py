"""Beekeeper's REST API over the items of housekeeping, with its parameters, fields, pages and errors, so that its
clients work on.

Times have no zone, and are UTC. Items are those of `[housekeeping] store`, or of the root of `[defaults]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse

from replicator.commands.housekeeping_items import TIMES, housekeeping_ls
from replicator.errors import Error, UsageError
from replicator.housekeeping.item_queries import ItemPage
from replicator.service.web.permission import Who, require
from replicator.service.web.problems import status_of
from replicator.service.web.serving import Serving

LARGEST = 2000
"""Items of a page, as Spring has it: more are not given."""

_AT_ONCE = CapacityLimiter(4)
"""Questions: of many items they take tens of milliseconds, and memory; the page does not wait behind them."""

_METADATA = (
    *("path", "databaseName", "tableName", "partitionName", "housekeepingStatus", "creationTimestamp"),
    *("modifiedTimestamp", "cleanupTimestamp", "cleanupDelay", "cleanupAttempts", "lifecycleType"),
)
_PATHS = tuple(name for name in _METADATA if name != "partitionName")

beekeeper = APIRouter(prefix="/api/v1/database/{database}/table/{table}")

Text = Annotated[str | None, Query(max_length=4000)]


@dataclass
class _Filters:
    """The parameters of both questions."""

    path: Text = None
    partition_name: Text = None
    housekeeping_status: Text = None
    lifecycle_type: Text = None
    deleted_before: Text = None
    deleted_after: Text = None
    registered_before: Text = None
    registered_after: Text = None

    def asked(self) -> dict[str, str | None]:
        """As arguments of `housekeeping_ls`."""
        times = (self.deleted_before, self.deleted_after, self.registered_before, self.registered_after)
        return {
            "path": self.path,
            "partition": self.partition_name,
            "status": self.housekeeping_status,
            **dict(zip(TIMES, times, strict=True)),
        }


@dataclass
class _Paging:
    page: Annotated[int, Query(ge=0, le=2**31)] = 0
    size: Annotated[int, Query(ge=1)] = 20
    sort: Annotated[list[str] | None, Query()] = None


@beekeeper.get("/metadata")
async def metadata(
    request: Request,
    who: Who,
    database: str,
    table: str,
    filters: Annotated[_Filters, Depends()],
    paging: Annotated[_Paging, Depends()],
) -> JSONResponse:
    """Tables and partitions that expire."""
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
    """Paths that nothing refers to any more. `partition_name` is accepted, and filters nothing."""
    filters.partition_name = None
    return await _answer(request, who, (database, table), "unreferenced", filters, paging)


async def _answer(
    request: Request, who: Who, table: tuple[str, str], lifecycle: str, filters: _Filters, paging: _Paging
) -> JSONResponse:
    require(who, "viewer", "")
    serving: Serving = request.app.state.serving
    try:
        found = await run_sync(partial(_items, serving, table, lifecycle, filters, paging), limiter=_AT_ONCE)
    except Error as error:
        status = status_of(error)
        body = {
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "status": status,
            "error": HTTPStatus(status).phrase,
            "message": error.message,
            "path": request.url.path,
        }
        return JSONResponse(body, status)
    return JSONResponse(_page(found, _METADATA if lifecycle == "expired" else _PATHS, bool(paging.sort)))


def _items(serving: Serving, table: tuple[str, str], lifecycle: str, filters: _Filters, paging: _Paging) -> ItemPage:
    config = serving.config
    if not config.defaults.cmroot:
        raise UsageError("no root: items are asked of that of [defaults]", hint="set defaults.cmroot")
    wanted: dict[str, Any] = {**filters.asked(), "lifecycle": lifecycle}
    if filters.lifecycle_type is not None and filters.lifecycle_type.lower() != lifecycle:
        wanted["partition"] = "/"  # as of another kind: none is called so
    return housekeeping_ls(
        cmroot=config.defaults.cmroot,
        config=config,
        db=table[0],
        table=table[1],
        size=min(paging.size, LARGEST),
        page=paging.page,
        sort=paging.sort or [],
        counted=False,
        **wanted,
    )


def _page(found: ItemPage, names: tuple[str, ...], sorted_: bool) -> dict[str, Any]:
    """As Spring has it."""
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
