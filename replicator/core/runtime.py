"""Runtime: where the work of a command runs, who is reported how far it is, and by which clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from replicator.core.progress import Progress, Silent

if TYPE_CHECKING:  # else helps would load Arrow
    from replicator.core.engine import AutoEngine

JOBS = 16


@dataclass(frozen=True)
class Runtime:
    """`engines`: threads and Spark. `clock`: seconds since 1970. `jobs`: the most changes of a
    target's metastore at once; as many are as make it faster."""

    engines: AutoEngine
    progress: Progress = field(default_factory=Silent)
    clock: Callable[[], float] = time.time
    jobs: int = JOBS
