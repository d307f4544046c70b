"""Tables that the source's metastore does not give to a capture: one whose metadata is damaged, or kept from us.

What the log knew of such a table stays, and each capture's marker names it, until the metastore gives or drops it.
"""

from __future__ import annotations

from collections.abc import Sequence

from replicator.captures.unlistable import REFUSED, Sight, Uncaptured


class Refusals:
    """Those of one capture. It asks for some tables only, so what earlier ones found stays for the others."""

    def __init__(self, before: Sight) -> None:
        self._found: dict[str, dict[str, str]] = {}  # database -> table -> the reason
        self._before = {(each.db, each.table): each.reason for each in before.unseen if each.reason.startswith(REFUSED)}

    def asked(self, db: str) -> dict[str, str]:
        """All of a database is asked for; where to put what is refused."""
        self._before = {key: reason for key, reason in self._before.items() if key[0] != db}
        return self._found.setdefault(db, {})

    def asked_again(self, db: str, names: Sequence[str]) -> dict[str, str]:
        """The same of some tables."""
        for name in names:
            self.dropped(db, name)
        return self._found.setdefault(db, {})

    def dropped(self, db: str, name: str) -> None:
        self._before.pop((db, name), None)
        self._found.get(db, {}).pop(name, None)

    def found(self) -> list[Uncaptured]:
        now = {(db, name): f"{REFUSED}: {said}" for db, some in self._found.items() for name, said in some.items()}
        return [Uncaptured(*key, reason) for key, reason in (self._before | now).items()]
