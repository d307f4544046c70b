"""Backup, staging and trash tables that Gobblin compliance has left in a metastore: found by their exact names.

`<db>__<table>_backup_<13 digits>`: the name is taken apart whole, where the old tool looked for a part of it and could
take another database's table for its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from replicator.core.model import Table
from replicator.errors import ObjectNotFound
from replicator.lifecycle.purge.options import RetainOptions
from replicator.lifecycle.purge.partitions import Part, look_at, parts_of
from replicator.lifecycle.removal.removal import Removal
from replicator.metastore.client import Metastore

_NAME = re.compile(r"(?P<db>.+?)__(?P<table>.+)_(?P<kind>backup|staging|trash)_(?P<stamp>\d{13})")


@dataclass(frozen=True)
class Name:
    """Of a version: whose it is, what, and when it was made, in seconds since 1970."""

    db: str
    table: str
    kind: str
    time: float


@dataclass(frozen=True)
class OldVersion:
    """One partition of a version that is beyond policy."""

    table: Table
    part: Part
    removal: Removal


def parse_name(name: str) -> Name | None:
    """None for a table that is no version."""
    match = _NAME.fullmatch(name)
    return Name(match["db"], match["table"], match["kind"], int(match["stamp"]) / 1000) if match else None


def old_versions(metastore: Metastore, options: RetainOptions, now: float) -> Iterator[OldVersion]:
    """Those beyond policy, as `backups.due` has it; staging goes when it is as old as trash may be."""
    for db in metastore.database_names():
        named = [(name, parse_name(name)) for name in metastore.table_names(db)]
        versions = [(name, parsed) for name, parsed in named if parsed]
        backups: dict[tuple[str, str], list[float]] = {}
        for _, parsed in versions:
            if parsed.kind == "backup":
                backups.setdefault((parsed.db, parsed.table), []).append(parsed.time)
        tables = {table.name: table for table in metastore.tables(db, [name for name, _ in versions])}
        for name, parsed in versions:
            newer = sum(time > parsed.time for time in backups.get((parsed.db, parsed.table), ()))
            if name in tables and (why := _why(parsed, newer, options, now)):
                for part in parts_of(metastore, tables[name]):
                    yield OldVersion(tables[name], part, _removal(tables[name], part, parsed, why))


def _why(name: Name, newer: int, options: RetainOptions, now: float) -> str:
    age = timedelta(seconds=now - name.time)
    said = f"{age.total_seconds() / 86400:.1f} days old"
    if age < options.readers:
        return ""
    if name.kind != "backup":
        return f"{name.kind} of the old tool, {said}" if age >= options.trash else ""
    if newer >= options.versions:
        return f"backup of the old tool with {newer} newer ones"
    return f"backup of the old tool, {said}" if age >= options.days else ""


def _removal(table: Table, part: Part, name: Name, why: str) -> Removal:
    look = look_at(part.location)
    return Removal(
        path=part.location,
        what=name.kind,
        object=f"{table.db}.{table.name}",
        partition=part.name,
        reason=why,
        files=len(look.files),
        bytes=sum(state.size for state in look.files),
        drops=True,
    )


def drop_version(metastore: Metastore, version: OldVersion) -> None:
    """Its metadata, once the data are recycled; the table with its last partition. Safe to run twice."""
    db, name = version.table.db, version.table.name
    try:
        if version.part.name:
            metastore.drop_partitions(db, name, [version.part.name])
            if metastore.partition_names(db, name):
                return
        metastore.drop_table(db, name)
    except ObjectNotFound:
        return
