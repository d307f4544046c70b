"""Search of the files of a table whose log or tree names them, by Arrow. Changes nothing.

Files are searched, not rows of readers, so a row that no reader sees any more is found, too. Iceberg's columns are
found by the ids of their fields; those of others by their names in the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cmroot.store.checksum import checksum_at
from cmroot.store.place import located, normal
from replicator.core.engine import AutoEngine
from replicator.core.grouping import batched
from replicator.errors import Error
from replicator.lifecycle.purge.ids import FEW, Ids, keys_of
from replicator.lifecycle.purge.options import Onboarded, PurgeGap

FILES = 50
"""The number of files that one task searches."""
RESERVED = 2147483447  # ids from here on are those of Iceberg's own columns (Table Spec, Reserved Field IDs)

Column = int | tuple[str, ...]
"""A column of a file: the id of its field, or its path in lower case; elements of a list are called `element`, those of
a map `key` and `value`."""


class Unsearchable(Exception):
    """Raised for a table that is not searched; the message says why."""


def words(text: str) -> set[str]:
    """Returns the parts of a text that may be an id: the whole text, its words and its quoted strings."""
    quoted = re.findall(r"'((?:[^'\\]|\\.)*)'", text)
    parts = re.split(r"[\s()\[\]{},;=<>!\"'`\\]+", text)
    return {text, *parts, *(each.strip(".:?") for each in parts), *quoted}


class SearchTask(msgspec.Struct, frozen=True):
    """Files (path, format) to search. ids: the columns of the ids, any one of which a file may have; known: the table's
    columns, each with all that is below it; keys: the ids, as a stream of Arrow with one column."""

    files: tuple[tuple[str, str], ...]
    ids: tuple[Column, ...]
    known: frozenset[Column]
    keys: bytes

    @property
    def is_by_number(self) -> bool:
        """True if files must have ids of fields."""
        return all(isinstance(each, int) for each in self.ids)


class Held(msgspec.Struct, frozen=True):
    """A file that was searched. rows: with an id; keys: these ids, each once; checksum, size: of a file with ids.
    records: all rows. is_stray: ids are in columns that the table does not have. why: the reason why it, or a column of
    it, was not searched; "" if all was."""

    path: str
    rows: int = 0
    keys: tuple[object, ...] = ()
    checksum: str = ""
    size: int = 0
    why: str = ""
    is_missing: bool = False
    records: int = 0
    is_stray: bool = False


def run_search_task(task: SearchTask) -> list[Held]:
    """Searches files. A file that was removed concurrently is marked as missing. May run twice."""
    keys = pa.ipc.open_stream(task.keys).read_all()["key"].combine_chunks()
    return [_searched(path, form, task, keys) for path, form in task.files]


def _searched(path: str, form: str, task: SearchTask, keys: pa.Array) -> Held:
    if form == "PUFFIN":
        return Held(path)  # positions of rows
    if form != "PARQUET":
        return Held(path, why=f"it is in {form}: only Parquet is searched")
    try:
        with located(path).open_read() as source:
            found = _rows_of(path, pq.ParquetFile(source), task, keys)
        if not (found.rows or found.is_stray):
            return found
        checksum, size = checksum_at(normal(path))
    except FileNotFoundError:
        return Held(path, is_missing=True)
    except (pa.ArrowException, Error, OSError, ValueError) as error:
        return Held(path, why=f"it cannot be read: {getattr(error, 'message', '') or error}")
    return msgspec.structs.replace(found, checksum=checksum, size=size)


@dataclass(frozen=True)
class _Leaf:
    """A column of a Parquet file. steps: indices from the top; None: below a list or map."""

    number: int | None
    name: str
    path: tuple[str, ...]
    steps: tuple[int, ...] | None
    type: pa.DataType

    def is_one_of(self, columns: Collection[Column]) -> bool:
        return self.path in columns or (self.number is not None and self.number in columns)

    def is_known(self, columns: Collection[Column]) -> bool:
        if self.number is not None and (self.number in columns or self.number >= RESERVED):
            return True
        return any(self.path[:count] in columns for count in range(1, len(self.path) + 1))


def _leaves(field: pa.Field, steps: tuple[int, ...] | None, name: str, path: tuple[str, ...]) -> Iterator[_Leaf]:
    type_ = field.type
    if pa.types.is_struct(type_):
        for index in range(type_.num_fields):
            child = type_.field(index)
            below = None if steps is None else (*steps, index)
            yield from _leaves(child, below, f"{name}.{child.name}", (*path, child.name.lower()))
    elif pa.types.is_map(type_):
        for child, own in ((type_.key_field, "key"), (type_.item_field, "value")):
            yield from _leaves(child, None, f"{name}.{child.name}", (*path, own))
    elif pa.types.is_nested(type_):
        yield from _leaves(type_.value_field, None, f"{name}.{type_.value_field.name}", (*path, "element"))
    else:
        number = (field.metadata or {}).get(b"PARQUET:field_id")
        yield _Leaf(int(number) if number else None, name, path, steps, type_)


def _rows_of(path: str, file: pq.ParquetFile, task: SearchTask, keys: pa.Array) -> Held:
    """Returns what a file has of the ids, and why columns were not searched."""
    schema, rows, found, strays, unread = file.schema_arrow, 0, pa.array([], keys.type), list[str](), list[str]()
    leaves = [
        leaf for index, top in enumerate(schema) for leaf in _leaves(top, (index,), top.name, (top.name.lower(),))
    ]
    if task.is_by_number and any(leaf.number is None for leaf in leaves):
        why = "its columns have no ids of Iceberg, as those of files that `add_files` and `migrate` bring"
        return Held(path, why=why)
    unknown = [each for each in leaves if not each.is_known(task.known)]
    for leaf in (*(each for each in leaves if each.is_one_of(task.ids)), *unknown):
        is_own = leaf.is_one_of(task.ids)
        if leaf.steps is None:
            unread.append(f"the column {leaf.name} of it, which the table does not have")
            continue
        values_of = keys if is_own else keys.cast(pa.string())
        top, *below = leaf.steps
        for batch in file.iter_batches(columns=[schema.field(top).name]):
            values = batch.column(schema.field(top).name)
            for step in below:
                values = pc.struct_field(values, step)
            values = values.drop_null().cast(values_of.type)
            same = values.filter(pc.is_in(values, value_set=values_of))
            if len(same) and not is_own:
                strays.append(f"the column {leaf.name} of it, which the table does not have, holds ids")
                break
            if len(same):
                rows += len(same)
                found = pa.concat_arrays([found, same]).unique()
    why, records = "; ".join((*unread, *strays)), file.metadata.num_rows
    is_stray = bool(strays) and not unread
    return Held(path, rows, tuple(found.to_pylist()), why=why, records=records, is_stray=is_stray)


# ---- one table -------------------------------------------------------------------------------------------------------


@dataclass
class Finder:
    """The search of one table. Files never change, so each is searched once, however often the table is looked at.
    type: the Spark type of the ids, after a search."""

    table: Onboarded
    ids: Ids
    engines: AutoEngine
    type: str = ""
    searched: dict[str, Held] = field(default_factory=dict)
    gaps: list[PurgeGap] = field(default_factory=list)

    def values(self, type_: pa.DataType, what: str) -> pa.Array:
        """Returns the ids as values of the column. what: tables of the format. Adds ids that are none to the gaps.
        Raises Unsearchable, LossyIds."""
        if self.table.match:
            raise Unsearchable(f"ids.match is not supported for {what}: ids are compared exactly")
        if self.ids.count > FEW:
            raise Unsearchable(f"one run searches {what} for at most {FEW:,} ids: divide them into several runs")
        frame, _, lossy = keys_of(self.ids, self.table)
        self.type = frame.schema.fields[0].dataType.simpleString()
        if lossy:
            self.gap(f"{lossy}, the type of {'.'.join(self.table.field)}: no row was searched for them")
        return pa.array([row[0] for row in frame.collect()], type_)

    def runner(self) -> Callable[[Any], list[Held]]:
        """Returns the function that searches the files of a task."""
        return run_search_task

    def gap(self, why: str) -> None:
        self.gaps.append(PurgeGap(self.table.name, why))

    def search(self, files: Mapping[str, str], task: SearchTask) -> dict[str, Held]:
        """Returns those of the files (path to format) with rows that have an id; adds those that were not searched to
        the gaps."""
        known = self.looked_at(files, task)
        self.name_unread(each for each in known if each.why or each.is_missing)
        return {each.path: each for each in known if each.rows}

    def name_unread(self, several: Iterable[Held]) -> None:
        """Adds files to the gaps, with the reason why they, or columns of them, were not searched."""
        reasons: dict[str, list[str]] = {}
        for each in several:
            reasons.setdefault(each.why or "it is missing", []).append(each.path)
        for why, paths in reasons.items():
            more = f", and {len(paths) - 1:,} more such files" if len(paths) > 1 else ""
            self.gap(f"not searched: {paths[0]}: {why}{more}")

    def looked_at(self, files: Mapping[str, str], task: SearchTask) -> list[Held]:
        """Searches files (path to format), unless it has done so before, and returns all of them."""
        left = sorted((path, form) for path, form in files.items() if path not in self.searched)
        tasks = (msgspec.structs.replace(task, files=tuple(some)) for some in batched(left, FILES))
        for several in self.engines.for_work(len(left)).run(self.runner(), tasks) if left else ():
            self.searched |= {each.path: each for each in several}
        return [self.searched[path] for path in files]


def task_for(ids: tuple[Column, ...], known: frozenset[Column], values: pa.Array) -> SearchTask:
    """Returns a search for these ids, without files."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("key", values.type)])) as writer:
        writer.write_batch(pa.record_batch([values], names=["key"]))
    return SearchTask((), ids, known, sink.getvalue().to_pybytes())


def arrow_type(type_: str) -> pa.DataType | None:
    """Returns the Arrow type of values of a type of Iceberg or Delta, or None for one whose values are not compared."""
    if type_ in ("int", "long", "integer", "short", "byte"):
        return pa.int64()
    if type_.startswith("decimal("):
        precision, scale = (int(each) for each in type_[8:-1].split(","))
        return pa.decimal128(precision, scale)
    return {"string": pa.string(), "date": pa.date32()}.get(type_)
