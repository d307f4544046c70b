"""Unnamed: files that are not replicated because their names are not UTF-8. What captures have found of them is
remembered in the manifest, so that each capture and dump names them, also one that lists nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from cmroot.text import unsafe
from replicator.captures.inventory import DataObject
from replicator.captures.manifest import Manifest
from replicator.core.not_replicated import NotReplicated

_KEY = "unnamed"
_SHOWN = 5  # names of one object that are reported; more are counted


def not_text(obj: DataObject, names: Sequence[str]) -> NotReplicated:
    """An object with files that have no name that could be shown."""
    some = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    files = "a file whose name is" if len(names) == 1 else f"{len(names)} files whose names are"
    what = "no path" if any(unsafe(name.rstrip("/")) for name in names) else "not UTF-8"
    return NotReplicated(f"{obj.db}.{obj.table}", f"it has {files} {what}: {some}", obj.partition)


def remembered(manifest: Manifest) -> list[NotReplicated]:
    """Of the objects that are there still."""
    found = msgspec.json.decode(manifest.recall(_KEY) or "[]", type=list[NotReplicated])
    return [each for each in found if _is_there(manifest, each)]


def remember(manifest: Manifest, listed: Mapping[tuple[str, str, str], NotReplicated | None]) -> None:
    """Of the objects that a capture has listed, by database, table and partition; None: all its names are text."""
    before = remembered(manifest)
    kept = [each for each in before if (*_names(each), each.partition) not in listed]
    now = [*kept, *(each for each in listed.values() if each is not None)]
    if now or manifest.recall(_KEY):
        manifest.remember(_KEY, msgspec.json.encode(now).decode())


def _is_there(manifest: Manifest, obj: NotReplicated) -> bool:
    db, table = _names(obj)
    if obj.partition:
        return bool(manifest.partitions_by_name(db, table, [obj.partition]))
    return manifest.table(db, table) is not None


def _names(obj: NotReplicated) -> tuple[str, str]:
    db, _, table = obj.object.partition(".")
    return db, table
