"""Sends one message to a webhook or to a command. What is said, and when it is tried again, is the caller's."""

from __future__ import annotations

import hashlib
import hmac
import logging
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Any

from replicator.errors import Error

log = logging.getLogger(__name__)

PATIENCE = 10.0  # seconds for one message
SIGNATURE = "X-Replicator-Signature"


class _Still(urllib.request.HTTPRedirectHandler):
    """A POST that is sent elsewhere arrives there as a GET without its body: nobody got it."""

    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_Still)


def failure_of(send: Callable[[], object]) -> str:
    """Why nobody got it; empty: somebody did. Whatever a receiver makes of it, the others are told."""
    try:
        send()
    except (OSError, Error, ValueError, HTTPException) as error:
        return str(error) or type(error).__name__
    except Exception as error:
        log.exception("internal error")
        return f"internal error: {type(error).__name__}: {error}"
    return ""


def signature(secret: str, moment: int, body: bytes) -> str:
    """The header of a signed message: its time, and the HMAC-SHA256 of `<time>.<body>`."""
    made = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={moment},v1={made}"


def post(
    url: str, body: bytes, headers: Mapping[str, str] | None = None, secret: str = "", patience: float = PATIENCE
) -> None:
    """Sends JSON; secret: signs it. Raises OSError or HTTPException for what is not answered with success."""
    given = {"Content-Type": "application/json", **(headers or {})}
    if secret:
        given[SIGNATURE] = signature(secret, int(time.time()), body)
    request = urllib.request.Request(url, body, given, method="POST")
    with _opener.open(request, timeout=patience) as answer:
        answer.read(1)


def call(command: Sequence[str], body: bytes) -> None:
    """Gives a line to a program, without a shell. Raises OSError where it cannot be run, ValueError where it fails."""
    program, nobody = command[0], subprocess.DEVNULL
    try:
        done = subprocess.run(command, input=body + b"\n", stdout=nobody, stderr=nobody, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise ValueError(f"{program} took longer than {PATIENCE:.0f} s") from None
    if done.returncode:
        raise ValueError(f"{program} ended with {done.returncode}")
