"""The dump: its layout, its writer and its reader, and which dumps are kept.

The package can be called: `replicator.dump(...)` is `replicator.api.dump(...)`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Command(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from replicator.api import dump

        return dump(*arguments, **options)


sys.modules[__name__].__class__ = _Command
