"""Stopping: how work that goes on and on is told to end."""

from __future__ import annotations

from typing import Protocol


class Stop(Protocol):
    """Says when to stop; a `threading.Event` is one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool:
        """Waits so many seconds, or until it is time to stop; whether it is."""
        ...


class Terminated(BaseException):
    """The work is to end at once: SIGTERM arrived, or it had time to come to its end and did not."""
