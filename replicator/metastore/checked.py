"""A metastore whose changes are asked about first: a writer that has lost its lease must not change anything more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from replicator.metastore.client import Metastore

_CHANGES = ("create_", "alter_", "drop_", "add_", "rename_", "set_")


def checked(metastore: Metastore, check: Callable[[], None]) -> Metastore:
    """The same metastore; `check` runs before each call that changes something, and may raise."""
    return cast(Metastore, _Checked(metastore, check))


class _Checked:
    def __init__(self, metastore: Metastore, check: Callable[[], None]) -> None:
        self._metastore, self._check = metastore, check

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._metastore, name)
        if not name.startswith(_CHANGES):
            return found

        def changed(*arguments: Any, **named: Any) -> Any:
            self._check()
            return found(*arguments, **named)

        return changed
