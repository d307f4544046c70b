"""The lag of all policies, measured again and again, so that who asks waits for no metastore."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from replicator.commands.lag import history, lag
from replicator.core.config import Config
from replicator.errors import Error
from replicator.policies.lag import Lag
from replicator.policies.memory import Compared

log = logging.getLogger(__name__)

PERIOD = 30.0  # seconds from one measurement of all policies to the next
RUNS = 20  # the newest of a policy


@dataclass(frozen=True)
class MeasuredLag:
    """at: seconds since 1970. lag: None where it could not be measured, and `error` says why. compared: what the newest
    run that compared anything found; success: when the newest good run ended, whoever began it; None: not known."""

    at: float
    lag: Lag | None
    error: str = ""
    compared: Compared | None = None
    success: float | None = None


@dataclass
class LagWatch:
    """`config`: gives the configuration as it is now."""

    config: Callable[[], Config]
    stopping: threading.Event
    found: dict[str, MeasuredLag] = field(default_factory=dict)

    @property
    def compared(self) -> dict[str, Compared]:
        """What was compared last, by policy, as far as this server knows."""
        return {name: each.compared for name, each in list(self.found.items()) if each.compared}

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
            self.found[name] = measured(name, config)
        for name in set(self.found) - set(config.policies):
            del self.found[name]


def measured(name: str, config: Config) -> MeasuredLag:
    """A policy as it is now. Raises nothing: what could not be measured says why."""
    compared, success = _of_runs(name, config)
    try:
        return MeasuredLag(time.time(), lag(name, config=config), "", compared, success)
    except Error as error:
        said = error.message
    except Exception as error:  # the other policies are measured
        log.exception("the lag of %s", name)
        said = f"internal error: {type(error).__name__}: {error}"
    return MeasuredLag(time.time(), None, said, compared, success)


def _of_runs(name: str, config: Config) -> tuple[Compared | None, float | None]:
    """What its runs compared last, and when the last good one ended; None where nobody knows."""
    try:
        runs = history(name, limit=RUNS, config=config).runs
    except (Error, OSError):
        return None, None  # the lag says what is wrong
    compared = next((each.compared for each in runs if each.compared), None)
    done = next((each.ended for each in runs if each.status == "done" and each.ended), "")
    return compared, datetime.fromisoformat(done).timestamp() if done else None
