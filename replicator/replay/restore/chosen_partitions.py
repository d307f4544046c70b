"""Partitions that a restore is limited to: as a filter of its dump, and whether they were there then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from replicator.captures.dumps.reader import DumpReader
from replicator.captures.events.scope import matches_name
from replicator.core.model import partition_spec
from replicator.core.text.partition_filter import PartitionFilter, parse_partition_filter
from replicator.errors import FormatError, UsageError


def chosen(texts: Sequence[str]) -> PartitionFilter:
    """The partitions `k=v/k2=v2`, escaped as Hive does; with some of the keys, all that have these values. Raises
    UsageError for what is none."""
    return parse_partition_filter(" or ".join(map(_condition, texts)))


def _condition(text: str) -> str:
    try:
        keys, values = partition_spec(text)
    except FormatError:
        keys, values = (), ()
    if not all(key.isidentifier() for key in keys) or not all(values) or not keys:
        raise UsageError(f"--partition {text!r} is no partition", hint="write it as k=v or k=v/k2=v2")
    quoted = [value.replace("'", "''") for value in values]
    return " and ".join(f"{key.lower()} = '{value}'" for key, value in zip(keys, quoted, strict=True))


def names_in(reader: DumpReader) -> list[str]:
    """Of the partitions of a dump of the whole, which drops none."""
    return sorted({name for record in reader.records() for name in record.change.partition_names})


def absent(texts: Iterable[str], names: Sequence[str]) -> list[str]:
    """Those that none of the names is of."""
    return [text for text in texts if not any(matches_name(chosen([text]), name) for name in names)]
