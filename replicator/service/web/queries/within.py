"""Endpoints that call commands: each call in a thread of its own and within a time limit, as for queries, never
in the threads that all other requests share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from fastapi import HTTPException, Request

from replicator.service.web.queries.time_limits import Askers, Late

About = Callable[[dict[str, Any]], str]


def within(
    seconds: float, about: About, askers: Callable[[Request], Askers], *, process: bool = False
) -> Callable[[Any], Any]:
    """Makes an endpoint of a function that has a `request`. about: from its arguments to the root or policy that is
    asked. process: it runs a command in one. Raises HTTPException 504 for what takes too long, and goes on with it; 503
    where others are at work all the time."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):  # it waits for nothing itself; or it is one of these already
            return function

        @functools.wraps(function)
        async def endpoint(**given: Any) -> Any:
            try:
                asked = askers(given["request"])
                return await asked.ask(about(given), seconds, lambda: function(**given), process=process)
            except Late as late:
                raise too_late(late, seconds) from None

        return endpoint

    return decorate


def too_late(late: Late, seconds: float) -> HTTPException:
    if late.begun:
        return HTTPException(504, f"no answer within {seconds:g} s")
    return HTTPException(503, "others are asked all the time")
