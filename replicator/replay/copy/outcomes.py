"""What becomes of each object of a load: done, or refused by the target's metastore.

A refusal is about one object: a type or a capability that the server lacks, a name too long for its database. The
object is named as not replicated, also in the target's database, and the rest goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from replicator.core.not_replicated import NOT_TAKEN, NotReplicated
from replicator.errors import MetastoreError
from replicator.metastore.client import MAY_REFUSE

ABOUT_ONE = ("InvalidObjectException", "is not a valid object name", "is used in the following materialized views")
FEW = 3  # objects: when as many are refused and none was taken, it is not about them


class Outcomes:
    """Those of one load."""

    def __init__(self) -> None:
        self._lock, self._taken = Lock(), 0
        self._refused: dict[str, MetastoreError] = {}
        self._staying: dict[str, MetastoreError] = {}

    def attempt(self, name: str, work: Callable[..., None], *arguments: object) -> None:
        """Does the work on an object, by its name at the source; nothing for one that was refused. Raises
        MetastoreError where the server is away, or refuses everything."""
        if name in self._refused:
            return
        try:
            work(*arguments)
        except MetastoreError as error:
            if error.transient:
                raise
            self._refuse(name, error)
        else:
            with self._lock:
                self._taken += 1

    def _refuse(self, name: str, error: MetastoreError) -> None:
        with self._lock:
            self._refused[name] = error
            many = len(self._refused)
            everything = many >= FEW and not self._taken and not any(each in error.message for each in ABOUT_ONE)
            if everything or many > max(MAY_REFUSE, self._taken):
                raise error

    def stays(self, name: str, refused: str) -> None:
        """Of an object whose rename was refused: what has its old name on the target, by the source's name of that."""
        self._staying[name] = self._refused[refused]

    def is_refused(self, name: str) -> bool:
        return name in self._refused or name in self._staying

    def refused(self) -> list[NotReplicated]:
        found = self._staying | self._refused
        return [NotReplicated(name, f"{NOT_TAKEN}: {error.message}") for name, error in found.items()]

    def reason(self, name: str) -> str:
        return next(each.reason for each in self.refused() if each.object == name)
