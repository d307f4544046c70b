"""Requests over HTTP that wait as long as a test does: httpx's own five seconds are a verdict about speed."""

from __future__ import annotations

from typing import Any

import httpx
from waiting import CEILING


def request(method: str, url: str, **more: Any) -> httpx.Response:
    return httpx.request(method, url, **{"timeout": CEILING, **more})


def get(url: str, **more: Any) -> httpx.Response:
    return request("GET", url, **more)


def post(url: str, **more: Any) -> httpx.Response:
    return request("POST", url, **more)


def client(**more: Any) -> httpx.Client:
    """With cookies, for one person."""
    return httpx.Client(**{"timeout": CEILING, **more})
