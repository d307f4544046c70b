"""Comparison: both sides, and by what names, places and patterns the one is a replica of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from replicator.captures.events.scope import Patterns
from replicator.core.table_format import SUPPORTED, FormatChoice
from replicator.metastore.client import MetastoreReader

Level = Literal["metadata", "size", "crc", "checksum"]


@dataclass(frozen=True)
class Comparison:
    """rename: (source database, target database) pairs. map_locations: (source prefix, target prefix) pairs, needed
    only for partitions and properties that lie neither in their table nor in their database. Both, patterns and formats
    are as the loads were given them. level: how far files are compared."""

    source: MetastoreReader
    target: MetastoreReader
    rename: Sequence[tuple[str, str]] = ()
    map_locations: Sequence[tuple[str, str]] = ()
    patterns: Patterns = field(default_factory=Patterns)
    level: Level = "checksum"
    formats: FormatChoice = SUPPORTED

    @cached_property
    def renamed(self) -> dict[str, str]:
        return {before.lower(): after.lower() for before, after in self.rename}

    def replica(self, db: str) -> str:
        """Name of a source database on the target."""
        return self.renamed.get(db, db)
