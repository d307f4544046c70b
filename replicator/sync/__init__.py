"""A policy at work: runs, plans, lag, and what is compared and repaired between two sides.

The package can be called: `replicator.sync(...)` is `replicator.api.sync(...)`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Command(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from replicator.api import sync

        return sync(*arguments, **options)


sys.modules[__name__].__class__ = _Command
