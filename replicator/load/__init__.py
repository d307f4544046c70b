"""The load: plan, squash, copy, commit, checkpoint.

The package can be called: `replicator.load(...)` is `replicator.api.load(...)`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Command(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from replicator.api import load

        return load(*arguments, **options)


sys.modules[__name__].__class__ = _Command
