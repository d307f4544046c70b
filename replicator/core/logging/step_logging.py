"""Steps: a log line when one begins, and one with its seconds when it ends."""

from __future__ import annotations

import logging
import time as clocks
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


@contextmanager
def step(name: str, **facts: object) -> Iterator[dict[str, object]]:
    """Tells a step's begin and end. facts: fields of both lines; what is put into the value, of the last one."""
    log.info("%s begins", name, extra={"step": name, "state": "begun", **facts})
    began, more = clocks.monotonic(), dict(facts)
    state = "failed"
    try:
        yield more
        state = "ended"
    finally:
        seconds = round(clocks.monotonic() - began, 3)
        log.info("%s %s", name, state, extra={"step": name, "state": state, "seconds": seconds, **more})


def tell_event(what: str, event: int | None, position: int | None = None) -> None:
    """Tells up to which event and position of the log something was done."""
    log.info("%s to event %s", what, event, extra={"event_id": event, "position": position})
