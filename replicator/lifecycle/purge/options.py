"""What a purge is asked, as values; Gobblin's job properties are read for what nobody gives."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from replicator.core.text.java_properties import decoded, entries
from replicator.errors import UsageError
from replicator.lifecycle.removal.removal import Limits

PREFIX = "gobblin.compliance."

ALIASES = {"complianceIdTable": "purger.complianceIdTable", "complianceId": "purger.complianceId"}
"""Spellings of the old user guide, after the prefix."""


@dataclass(frozen=True)
class PurgeOptions:
    """ids: "db.table:column". whitelist: Gobblin's grammar. field_path: where in a descriptor the column's name stands.
    attempts: how often a partition that changes meanwhile is tried."""

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
        """Raises UsageError when no table of ids is given."""
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
        """What makes two runs the same work."""
        return {"metastore": metastore, "ids": self.ids, "whitelist": self.whitelist, "field_path": self.field_path}


@dataclass(frozen=True)
class RetainOptions:
    """What of backups stays: the newest `versions` of each partition, none older than `days`, and none younger than
    `readers` is touched, as queries that began before the swap read it."""

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
        """Raises UsageError for a property that is no number of days."""
        return cls(
            versions if versions is not None else int(properties.get("cleaner.backup.retention.versions", "1")),
            days if days is not None else _days(properties, "cleaner.backup.retention.days"),
            readers,
            trash if trash is not None else _days(properties, "cleaner.trash.retention.days"),
        )


@dataclass(frozen=True)
class BackupRestoreSettings:
    """The newest backup of a partition ("" for an unpartitioned table), or the newest that was swapped out at or before
    `moment` (ISO 8601, or a run's id). undo: what the last restore replaced."""

    table: str
    partition: str = ""
    moment: str | None = None
    undo: bool = False


@dataclass(frozen=True)
class CertifyOptions:
    """roots: of replicas that no policy names. run: the ids and tables of this purge, or of the "latest". expedited:
    backups are recycled and entries expired first, but no backup younger than `readers`, and no more than the limits
    allow. allow_gaps: what was not searched does not keep the rest from being certified."""

    roots: Sequence[str] = ()
    run: str | None = None
    expedited: bool = False
    allow_gaps: bool = False
    readers: timedelta = timedelta(hours=2)
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


def read_properties(path: str | os.PathLike[str] | None) -> dict[str, str]:
    """Of a job's file, as `gobblin` gives them; none of None. Raises UsageError for a file that cannot be read."""
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
