"""The lag of all policies, measured again and again, so that who asks waits for no metastore."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from replicator.commands.lag import lag
from replicator.core.config import Config
from replicator.errors import Error
from replicator.policies.lag import Lag

log = logging.getLogger(__name__)

PERIOD = 30.0  # seconds from one measurement of all policies to the next


@dataclass(frozen=True)
class MeasuredLag:
    """at: seconds since 1970. lag: None where it could not be measured, and `error` says why."""

    at: float
    lag: Lag | None
    error: str = ""


@dataclass
class LagWatch:
    """`config`: gives the configuration as it is now."""

    config: Callable[[], Config]
    stopping: threading.Event
    found: dict[str, MeasuredLag] = field(default_factory=dict)

    def run(self) -> None:
        """Until `stopping` is set."""
        while not self.stopping.is_set():
            self.measure()
            self.stopping.wait(PERIOD)

    def measure(self) -> None:
        """All policies, one after the other; forgets those that are configured no more."""
        config = self.config()
        for name in config.policies:
            if self.stopping.is_set():
                return
            try:
                self.found[name] = MeasuredLag(time.time(), lag(name, config=config))
            except Error as error:
                self.found[name] = MeasuredLag(time.time(), None, error.message)
            except Exception as error:  # the other policies are measured
                log.exception("the lag of %s", name)
                self.found[name] = MeasuredLag(time.time(), None, f"internal error: {type(error).__name__}: {error}")
        for name in set(self.found) - set(config.policies):
            del self.found[name]
