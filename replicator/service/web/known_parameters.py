"""Query parameters that an endpoint does not have are refused, as a filter that is misspelled must not give all."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute

from replicator.errors import UsageError


def refuse_unknown_parameters(request: Request) -> None:
    """A dependency of routers. Raises UsageError."""
    route = request.scope.get("route")
    known = list(_names(route.dependant)) if isinstance(route, APIRoute) else []
    for name, value in (*request.query_params.multi_items(), *request.path_params.items()):
        if "\0" in name or "\0" in str(value):
            raise UsageError("a parameter has a NUL character", hint="leave it out")
    for name in request.query_params:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            there = ", ".join(known) or "none"
            hint = (f"did you mean {near[0]}? " if near else "") + f"parameters: {there}"
            raise UsageError(f"there is no parameter {name[:100]!r} here", hint=hint)


def _names(dependant: Any) -> Iterator[str]:
    """Those of an endpoint, and of what it depends on."""
    for each in dependant.query_params:
        yield each.alias
    for each in dependant.dependencies:
        yield from _names(each)
