"""The options of a purge as values; Gobblin's job properties are the defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from replicator.core.text import decoded, entries
from replicator.errors import UsageError
from replicator.lifecycle.removal.removal import Limits

PREFIX = "gobblin.compliance."

ALIASES = {"complianceIdTable": "purger.complianceIdTable", "complianceId": "purger.complianceId"}
"""Property names in the old user guide, without the prefix."""


@dataclass(frozen=True)
class PurgeOptions:
    """The options of a purge. ids: "db.table:column". whitelist: in Gobblin's grammar. field_path: path to the column's
    name in a descriptor. attempts: the maximum number of attempts for a partition that changes concurrently."""

    ids: str
    whitelist: str = ""
    field_path: str = ""
    attempts: int = 3

    @classmethod
    def given(
        cls,
        ids: str | None,
        whitelist: str | None,
        field_path: str | None,
        properties: Mapping[str, str],
        attempts: int = 3,
    ) -> PurgeOptions:
        """Combines arguments and properties. Raises UsageError if no table of ids is specified."""
        if ids is None and "purger.complianceIdTable" in properties:
            ids = f"{properties['purger.complianceIdTable']}:{properties.get('purger.complianceId', '')}"
        if not ids:
            raise UsageError("no table of ids is given", hint="give --ids db.table:column")
        return cls(
            ids,
            whitelist or properties.get("dataset.whitelist") or "",
            field_path or properties.get("dataset.descriptor.fieldPath") or "",
            attempts,
        )

    def request(self, metastore: str) -> dict[str, Any]:
        """Returns the values that identify a request; they are equal for runs that do the same work."""
        return {"metastore": metastore, "ids": self.ids, "whitelist": self.whitelist, "field_path": self.field_path}


@dataclass(frozen=True)
class RetainOptions:
    """Retention of backups: the newest `versions` of each partition, none older than `days`. Backups younger than
    `readers` are always retained, because queries that began before the swap read them."""

    versions: int = 1
    days: timedelta = timedelta(days=7)
    readers: timedelta = timedelta(hours=2)
    trash: timedelta = timedelta(days=7)

    @classmethod
    def given(
        cls,
        versions: int | None,
        days: timedelta | None,
        readers: timedelta,
        trash: timedelta | None,
        properties: Mapping[str, str],
    ) -> RetainOptions:
        """Combines arguments and properties. Raises UsageError for a property that is not a number of days."""
        return cls(
            versions if versions is not None else int(properties.get("cleaner.backup.retention.versions", "1")),
            days if days is not None else _days(properties, "cleaner.backup.retention.days"),
            readers,
            trash if trash is not None else _days(properties, "cleaner.trash.retention.days"),
        )


@dataclass(frozen=True)
class BackupRestoreSettings:
    """Selection of a backup: the newest of a partition ("" for an unpartitioned table), or the newest that was swapped
    out at or before `moment` (ISO 8601, or a run's id). undo: selects the directory that the last restore replaced."""

    table: str
    partition: str = ""
    moment: str | None = None
    undo: bool = False


@dataclass(frozen=True)
class CertifyOptions:
    """Options of a certification. roots: `$cmroot`s of replicas without a policy. run: certifies the ids and tables of
    this purge, or of the "latest". expedited: recycles backups and expires entries first, but no backup younger than
    `readers`, and within the limits. allow_gaps: gaps in the search do not prevent certification."""

    roots: Sequence[str] = ()
    run: str | None = None
    expedited: bool = False
    allow_gaps: bool = False
    readers: timedelta = timedelta(hours=2)
    limits: Limits = field(default_factory=Limits)


def gobblin(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties of Gobblin compliance without their prefix, under the newer of two names; strips blanks
    around values."""
    found: dict[str, str] = {}
    for key, value in properties.items():
        name = (
            key.removeprefix(PREFIX) if key.startswith(PREFIX) else key if key == "dataset.descriptor.fieldPath" else ""
        )
        if name:
            found.setdefault(ALIASES.get(name, name), value.strip())
    return found


def read_properties(path: str | os.PathLike[str] | None) -> dict[str, str]:
    """Reads a job's properties file as `gobblin` does; None: {}. Raises UsageError if it cannot be read."""
    if path is None:
        return {}
    try:
        return gobblin({key: value for key, value, _ in entries(decoded(Path(path).read_bytes()))})
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", hint="check --properties") from error


def _days(properties: Mapping[str, str], key: str) -> timedelta:
    text = properties.get(key, "7")
    if not text.isdecimal():
        raise UsageError(f"{key} = {text!r} is no number of days", hint="check --properties")
    return timedelta(days=int(text))
