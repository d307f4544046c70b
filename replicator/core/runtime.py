"""Runtime: where the work of a command runs, who is reported how far it is, and by which clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from replicator.core.engine import AutoEngine
from replicator.core.progress import Progress, Silent

JOBS = 16


@dataclass(frozen=True)
class Runtime:
    """`engines`: threads and Spark. `clock`: seconds since 1970. `jobs`: the most changes of a
    target's metastore at once; as many are as make it faster."""

    engines: AutoEngine
    progress: Progress = field(default_factory=Silent)
    clock: Callable[[], float] = time.time
    jobs: int = JOBS
