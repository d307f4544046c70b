"""Columns that Spark would lose: what a file has and the metastore has not. Looks at the files' headers only.

A partition written by Spark gets the columns that it has in the metastore, so it is left as it is when one of its files
has others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa

from cmroot.errors import Error, FormatError
from cmroot.store.place import join
from cmroot.store.resolve import located
from replicator.core.engine import AutoEngine
from replicator.lifecycle.purge.partition_rewrite import Staging
from replicator.lifecycle.purge.partitions import is_data
from replicator.lifecycle.purge.rewrite.blocks import Input
from replicator.lifecycle.purge.rewrite.formats import Unsupported
from replicator.lifecycle.purge.rewrite.sequence import read_header, read_int, read_text

FILES = 200
_RCFILE, _COLUMNS = b"RCF\x01", "hive.io.rcfile.column.number"
_BY_POSITION = re.compile(r"_col(\d+)")
"""As Hive called all columns in ORC once: readers take them by position."""


class ColumnsTask(msgspec.Struct, frozen=True):
    """Files of one serde. columns: of the table, in their order; known: these, and the fields in them, as paths."""

    serde: str
    columns: tuple[str, ...]
    known: frozenset[str]
    places: tuple[str, ...]


def lost_columns(engines: AutoEngine, staging: Staging, schema: Mapping[str, Any], count: int) -> str:
    """Why Spark cannot write a part, as a sentence; "" when it can. schema: of the part, as Spark's JSON; count: its
    columns but for partition keys."""
    columns = tuple(field["name"].lower() for field in schema["fields"][:count])
    known, home = frozenset(_paths_of_table(schema)), staging.part.location
    files = [state.path_relative for state in staging.look.files if state.size and is_data(state.path_relative)]
    tasks = [
        ColumnsTask(
            staging.part.storage.serde.library or "",
            columns,
            known,
            tuple(join(home, name) for name in files[at : at + FILES]),
        )
        for at in range(0, len(files), FILES)
    ]
    return next(filter(None, engines.for_work(len(files)).run(run_columns_task, tasks)), "")


def run_columns_task(task: ColumnsTask) -> str:
    """What the first file that has something else has; "" when none has. Reads only."""
    for place in task.places:
        try:
            with located(place).open_read() as source:
                lost = _lost(task, source)
        except (Error, Unsupported, OSError, pa.ArrowException) as error:
            return f"{place}: {(str(error) or type(error).__name__).splitlines()[0][:300]}"
        if lost:
            return f"{place}: {lost}, and Spark, which alone can write it anew, would lose the rest"
    return ""


def _lost(task: ColumnsTask, source: BinaryIO) -> str:
    if task.serde.endswith("OrcSerde"):
        from pyarrow import orc

        found = orc.ORCFile(source).schema
        names = [_named(field.name, task.columns) for field in found]
        if not all(_BY_POSITION.fullmatch(field.name) for field in found):
            names = [field.name for field in found]
        paths = (path for name, type_ in zip(names, found.types, strict=True) for path in _paths_of_file(name, type_))
        lost = ", ".join(path for path in paths if path.lower() not in task.known)
        return f"its table has no {lost}" if lost else ""
    if "Columnar" in task.serde:
        count = _rcfile_columns(Input(source))
        return f"its table has {len(task.columns):,} of its {count:,} columns" if count > len(task.columns) else ""
    return ""


def _named(name: str, columns: tuple[str, ...]) -> str:
    position = _BY_POSITION.fullmatch(name)
    return columns[int(position[1])] if position and int(position[1]) < len(columns) else name


def _rcfile_columns(file: Input) -> int:
    """As its header says. The first version of the format is a SequenceFile to look at."""
    if file.take(4) == _RCFILE:
        if file.take(1) != b"\0":
            read_text(file)  # codec
        notes = {read_text(file): read_text(file) for _ in range(read_int(file))}
    else:
        notes = dict(read_header(file.again()).notes)
    count = notes.get(_COLUMNS, "")
    if not count.isdecimal():
        raise FormatError("it is no RCFile")
    return int(count)


# Paths: `a`, `a.b` of a struct, `a[]` of an array, `a{k}` and `a{v}` of a map


def _paths_of_file(path: str, type_: pa.DataType) -> Iterator[str]:
    yield path
    if pa.types.is_struct(type_):
        for field in type_:
            yield from _paths_of_file(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(type_):
        yield from _paths_of_file(f"{path}{{k}}", type_.key_type)
        yield from _paths_of_file(f"{path}{{v}}", type_.item_type)
    elif pa.types.is_list(type_):
        yield from _paths_of_file(f"{path}[]", type_.value_type)


def _paths_of_table(type_: Any, path: str = "") -> Iterator[str]:
    """type_: Spark's JSON."""
    if path:
        yield path
    match type_:
        case {"type": "struct", "fields": fields}:
            for field in fields:
                name = str(field["name"]).lower()
                yield from _paths_of_table(field["type"], f"{path}.{name}" if path else name)
        case {"type": "map", "keyType": key, "valueType": value}:
            yield from _paths_of_table(key, f"{path}{{k}}")
            yield from _paths_of_table(value, f"{path}{{v}}")
        case {"type": "array", "elementType": element}:
            yield from _paths_of_table(element, f"{path}[]")
