"""The heartbeat of what goes on and on: a log line at an interval, also when nothing happens."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

log = logging.getLogger(__name__)


class _Interval:
    """Of this process."""

    seconds = 60.0


def beat_each(interval: timedelta) -> None:
    """From here on heartbeats of this process come at such intervals."""
    _Interval.seconds = interval.total_seconds()


@contextmanager
def heartbeat(facts: Callable[[], Mapping[str, object]]) -> Iterator[None]:
    """Logs `facts` at each interval for the length of a block."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(_Interval.seconds):
            found = facts()
            text = ", ".join(f"{name} {value}" for name, value in found.items())
            log.info("at work: %s", text, extra={"heartbeat": True, **found})

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
