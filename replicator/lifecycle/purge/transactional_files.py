"""Hive's transactional tables in a purge: directories of rows, read and judged by their names.

A row may be in a base or delta that no query reads any more, because it was updated, deleted or compacted since: all
directories are searched, not those of the present state only. Rows keep their ids, by which delete deltas name them.
What cannot be searched or rewritten, files without row ids and rows of open transactions, is named.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from cmroot.store.acid import State, parse
from cmroot.store.listing import FileState
from replicator.core.formats import is_transactional
from replicator.core.formats.interface import FULL, INSERT_ONLY
from replicator.core.model import Column, Table
from replicator.core.text import quoted_name
from replicator.metastore.client import MetastoreReader

if TYPE_CHECKING:
    from replicator.lifecycle.purge.options import Onboarded
    from replicator.lifecycle.purge.table_files import Look

ROW = "row"
"""The column with a row's own columns, in a file with row ids; the others are the id and the kind of change."""
COLUMNS = ("operation", "originalTransaction", "bucket", "rowId", "currentTransaction", ROW)
"""The columns of such a file (OrcRecordUpdater). ORC takes a query of some of them for one of the row itself."""
_TYPES = ("int", "bigint", "int", "bigint", "bigint")
WITH_ALL = f"coalesce({', '.join(COLUMNS[:-1])}) IS NOT NULL"
"""A condition in SQL that all rows of such a file meet, by which a query reads all columns."""

WITHOUT_IDS = (
    "without row ids, as they are older than the table's transactions or were loaded: compact it (MAJOR), and purge"
)
COMPACTS = "a compaction of it is queued or running: purge again when it has ended"
COMPACTED = "a compaction has begun during the purge, and may have copied rows: purge again when it has ended"
OPEN = "rows of transactions that are open, or have begun since"
STREAMED = "rows of a streaming writer that has not closed its files"
_FLUSHED = "_flush_length"  # suffix of the name of a file by which a streaming writer says how much it has written

_SERDES = {FULL: ("OrcSerde",), INSERT_ONLY: ("OrcSerde", "ParquetHiveSerDe")}


def why_refused(table: Table) -> str:
    """Returns why the rows of a transactional table cannot be erased; empty if they can."""
    serde = ((table.storage.serde.library if table.storage else "") or "").rpartition(".")[2]
    if serde in _SERDES[is_transactional(table)]:
        return ""
    return f"a transactional table with files of {serde}: erase with DELETE or INSERT OVERWRITE, and compact"


def with_write_ids(metastore: MetastoreReader, onboarded: Onboarded) -> Onboarded:
    """Returns a transactional table with its write ids of this moment. Ask before its directories are listed."""
    if not is_transactional(onboarded.table):
        return onboarded
    name = (onboarded.table.db, onboarded.table.name)
    ids = metastore.write_ids([name], metastore.snapshot()).get(name)
    return replace(onboarded, state=State(ids.high, frozenset(ids.open)) if ids else State(0))


def unsearched(look: Look, state: State | None) -> dict[str, str]:
    """Returns the directories whose files may not be complete, and why."""
    if state is None:
        return {}
    found = dict[str, str]()
    for each in look.files:
        top, slash, name = each.path_relative.partition("/")
        made = parse(top) if slash else None
        if made is None:
            continue
        if made.high > state.high or state.has_open(made.low if made.kind != "base" else made.high, made.high):
            found[top] = OPEN
        elif name.endswith(_FLUSHED):
            found.setdefault(top, STREAMED)
    return found


def without(look: Look, directories: Collection[str]) -> Look:
    """Returns a listing without these directories."""
    return msgspec.structs.replace(look, files=tuple(each for each in look.files if _top(each) not in directories))


def only(look: Look, directories: Collection[str] | None) -> Look:
    """Returns a listing of these directories: writers add others, and never change one. None: all of it."""
    if directories is None:
        return look
    return msgspec.structs.replace(look, files=tuple(each for each in look.files if _top(each) in directories))


def tops_of(look: Look) -> frozenset[str]:
    """Returns the directories of a listing, and the files in none."""
    return frozenset(map(_top, look.files))


def _top(file: FileState) -> str:
    return file.path_relative.partition("/")[0]


def kind_of(table: Table) -> str:
    """Returns the format of the files, as Spark calls it."""
    serde = (table.storage.serde.library if table.storage else "") or ""
    return "orc" if serde.endswith("OrcSerde") else "parquet"


def file_columns(table: Table, columns: Sequence[Column]) -> tuple[Column, ...]:
    """Returns the columns that the files of a table have; `columns`: its own."""
    if is_transactional(table) != FULL:
        return tuple(columns)
    fields = ",".join(f"{quoted_name(each.name)}:{each.type}" for each in columns)
    ids = (Column(name, type_) for name, type_ in zip(COLUMNS, _TYPES, strict=False))
    return (*ids, Column(ROW, f"struct<{fields}>"))


def columns_with(table: Table, path: Sequence[str], type_: str) -> tuple[Column, ...]:
    """Returns the columns of the files of a table, and in these only the field at a path."""
    for name in reversed(path[1:]):
        type_ = f"struct<{quoted_name(name)}:{type_}>"
    return file_columns(table, [Column(path[0], type_)])


def whole(frame: Any) -> Any:
    """Returns the rows of files with row ids; any other frame as it is."""
    return frame.where(WITH_ALL) if tuple(frame.columns) == COLUMNS else frame


def table_in_spark(table: Table) -> str:
    """Returns the name by which SQL reads a table; of a transactional one that of a view, which its search makes."""
    if not is_transactional(table):
        return quoted_name(table.db, table.name)
    return quoted_name(f"replicator_purge_{xxhash.xxh3_64_hexdigest(f'{table.db}.{table.name}'.encode())}")


def compacting(metastore: MetastoreReader, onboarded: Onboarded) -> frozenset[str]:
    """Returns the partitions of a transactional table that a compactor has begun, or is to begin, to rewrite; "" is an
    unpartitioned table."""
    if onboarded.state is None:
        return frozenset()
    return metastore.compacting(onboarded.table.db, onboarded.table.name)


def is_compacted_since(before: Look, now: Look) -> bool:
    """Returns True if a directory of several write ids is new, and has some that were searched, as of a compactor."""
    newest = max((made.high for made in map(parse, tops_of(before)) if made), default=0)
    return any(made.is_wide and made.low <= newest for made in map(parse, tops_of(now) - tops_of(before)) if made)


def is_note(name: str, size: int) -> bool:
    """Returns True for what Hive itself writes into directories of transactions: a version, and the kind of a base."""
    last = name.rpartition("/")[2]
    return (last == "_orc_acid_version" and size == 1) or (last == "_metadata_acid" and size <= 100)
