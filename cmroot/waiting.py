"""Waiting for a lease that another run holds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from cmroot.errors import LeaseHeld

Result = TypeVar("Result")

PAUSE = timedelta(milliseconds=200)
"""Between two tries, on average: short beside the pauses that captures make."""


def patiently(work: Callable[[], Result], patience: timedelta) -> Result:
    """Do something that takes the lease, again and again while another run holds it. What it has done before it met
    the lease is done. Raises LeaseHeld when it is held for longer than `patience`."""
    until = time.monotonic() + patience.total_seconds()
    while True:
        try:
            return work()
        except LeaseHeld:
            if time.monotonic() >= until:
                raise
        time.sleep(PAUSE.total_seconds() * random.uniform(0.5, 1.5))
