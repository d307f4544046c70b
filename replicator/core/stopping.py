"""Stopping: how work that goes on and on is asked to end."""

from __future__ import annotations

import signal
from typing import Protocol

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
"""Exit codes of work that a signal ended."""


class Stop(Protocol):
    """Says when to stop; a `threading.Event` is one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool:
        """Waits so many seconds, or until it is time to stop; whether it is."""
        ...


class Terminated(BaseException):
    """The work is to end at once: SIGTERM arrived, or it had time to come to its end and did not."""
