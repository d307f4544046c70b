"""Signals as exceptions, so that every `finally` between here and the work runs: leases end, half-written files go."""

from __future__ import annotations

import signal
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM


class Terminated(BaseException):
    """SIGTERM arrived."""


def raise_on_sigterm() -> None:
    """From here on SIGTERM raises Terminated in the main thread, once: `timeout` and service managers send it twice,
    and the second one must not interrupt the cleaning up. SIGKILL stays for what hangs."""

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
