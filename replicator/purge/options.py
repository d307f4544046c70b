"""What a purge is asked, as values; the names of Gobblin's job properties are read, too. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from replicator.removal.removal import Limits

PREFIX = "gobblin.compliance."

ALIASES = {
    "complianceIdTable": "purger.complianceIdTable", "complianceId": "purger.complianceId",
}  # fmt: skip
"""Spellings of the old user guide, after the prefix."""


@dataclass(frozen=True)
class PurgeOptions:
    """ids: "db.table:column". whitelist: Gobblin's grammar. field_path: where in a descriptor the column's name stands.
    attempts: how often a partition that changes meanwhile is tried. limits: guard rails."""

    ids: str
    whitelist: str = ""
    field_path: str = ""
    attempts: int = 3
    limits: Limits = field(default_factory=Limits)

    def request(self, metastore: str) -> dict[str, Any]:
        """What makes two runs the same work."""
        return {
            "metastore": metastore, "ids": self.ids, "whitelist": self.whitelist, "field_path": self.field_path,
        }  # fmt: skip


@dataclass(frozen=True)
class RetainOptions:
    """What of backups stays: the newest `versions` of each partition, none older than `days`, and none younger than
    `readers` is touched, as queries that began before the swap read it."""

    versions: int = 1
    days: timedelta = timedelta(days=7)
    readers: timedelta = timedelta(hours=2)
    trash: timedelta = timedelta(days=7)
    limits: Limits = field(default_factory=Limits)


def gobblin(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of Gobblin compliance without their prefix, in the newer of two spellings; no name begins or ends
    with blanks."""
    found: dict[str, str] = {}
    for key, value in properties.items():
        name = (
            key.removeprefix(PREFIX) if key.startswith(PREFIX) else key if key == "dataset.descriptor.fieldPath" else ""
        )
        if name:
            found.setdefault(ALIASES.get(name, name), value.strip())
    return found
