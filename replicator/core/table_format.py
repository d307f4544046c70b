"""Formats of tables: which of them say in files of their own what a table is. Pure: from the metastore's word alone.

A table in Hive's layout is what lies in its directories, so a copy of its files is a copy of it. Others keep a log, or
name their files by whole paths: a copy of such files reads, and lets writers change, what is the source's.
"""

from __future__ import annotations

from typing import Literal

from replicator.core.model import Table

Format = Literal["plain", "delta", "iceberg", "iceberg-view", "hudi", "acid", "paimon", "symlink", "handler"]

PLAIN: Format = "plain"
DELTA: Format = "delta"
ICEBERG: Format = "iceberg"
FormatChoice = Literal["supported", "as-they-are"]
SUPPORTED: FormatChoice = "supported"  # formats of which a copy of the files is a copy of the table are replicated
AS_THEY_ARE: FormatChoice = "as-they-are"  # all are, as if they were plain ones

_PROVIDERS: dict[str, Format] = {"iceberg": ICEBERG, "delta": DELTA, "hudi": "hudi", "paimon": "paimon"}
_READERS: dict[str, Format] = {
    "org.apache.iceberg.": ICEBERG,
    "io.delta.": DELTA,
    "org.apache.hudi.": "hudi",
    "com.uber.hoodie.": "hudi",
    "org.apache.paimon.": "paimon",
    "org.apache.hadoop.hive.ql.io.symlinktextinputformat.": "symlink",
}
_REASONS: dict[Format, str] = {
    ICEBERG: "an Iceberg table: its metadata names the source's files",
    "iceberg-view": "an Iceberg view: its definition is a file of the source",
    "hudi": "a Hudi table: its timeline and its log files have hidden names, which are not captured",
    "acid": "a transactional table: its rows depend on the source's transactions",
    "paimon": "a Paimon table: its snapshots say which files count",
    "symlink": "a table of symbolic links: its files name the source's files",
}
OUTSIDE = "a Delta table that names files outside of its directory, as shallow clones do"
SAID: dict[Format, str] = {
    ICEBERG: "an Iceberg table",
    "delta": "a Delta table",
    "hudi": "a Hudi table",
    "paimon": "a Paimon table",
    "acid": "a transactional table",
    "symlink": "a table of symbolic links",
}


def table_format(table: Table) -> Format:
    """A table's format, by its properties, storage handler and input format. `handler`: its rows lie in no files at
    all, but with another system (HBase, JDBC). Names and values count regardless of case."""
    given = {key.lower(): value.strip().lower() for key, value in table.parameters.items()}
    kind, provider = given.get("table_type", ""), given.get("spark.sql.sources.provider", "")
    handler = given.get("storage_handler", "")
    reader = (table.storage.input_format or "").lower() if table.storage else ""
    found: Format | None = _PROVIDERS.get(kind.removesuffix("-view")) or _PROVIDERS.get(provider)
    if found is None and given.get("metadata_location"):
        found = ICEBERG
    for name in (provider, handler, reader):
        found = found or next((each for start, each in _READERS.items() if f"{name}.".startswith(start)), None)
    if found is not None:
        return "iceberg-view" if found == ICEBERG and table.is_view else found
    if given.get("transactional") == "true" and not table.is_view:
        return "acid"
    return "handler" if handler else PLAIN


def why_not_replicated(table: Table) -> str:
    """Why a copy of its files would not be a copy of a table; nothing when it is."""
    return reason_of(table_format(table))


def reason_of(format: Format) -> str:
    """The same of all tables in a format."""
    return _REASONS.get(format, "")
