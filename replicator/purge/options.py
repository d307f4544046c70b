"""What a purge is asked, as values; the names of Gobblin's job properties are read, too. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from replicator.guard.removal import Limits

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


def read_properties(text: str) -> dict[str, str]:
    """A Java properties file: `key=value`, `key: value`, comments with # or !, lines that go on after a backslash."""
    found: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        line = line.lstrip()
        if not line or line[0] in "#!":
            continue
        while line.endswith("\\") and not line.endswith("\\\\"):
            line = line[:-1] + next(lines, "").lstrip()
        cut = next((index for index, letter in enumerate(line) if letter in "=: \t"), len(line))
        key, value = line[:cut], line[cut:].lstrip(" \t")
        if value[:1] in ("=", ":"):
            value = value[1:].lstrip(" \t")
        found[key] = value.rstrip()
    return found


def gobblin(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of Gobblin compliance without their prefix, in the newer of two spellings."""
    found: dict[str, str] = {}
    for key, value in properties.items():
        name = (
            key.removeprefix(PREFIX) if key.startswith(PREFIX) else key if key == "dataset.descriptor.fieldPath" else ""
        )
        if name:
            found.setdefault(ALIASES.get(name, name), value)
    return found
