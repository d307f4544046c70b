"""Statistics of source files, computed by readers other than Spark's: pyarrow, Python's own for JSON and XML, and for
Avro the one that purges use.

The available statistics are compared with the landed rows: rows, values that are not NULL and sums of csv, json,
parquet, orc and binary files; rows of avro and xml.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, BinaryIO
from xml.etree import ElementTree

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv, orc

from cmroot.store.place import Place, join, located
from replicator.core.engine import Engine
from replicator.errors import FormatError, SourceRefused
from replicator.ingestion.file_description import Description, Part
from replicator.ingestion.reading.figures import EXACT, Figures, exact_text, first_bytes
from replicator.lifecycle.purge.rewrite.avro import count_avro

_OPENED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
_ARROW = {".zst": "zstd", ".lz4": "lz4", ".snappy": "snappy"}
LONGEST = 256 << 20
"""Maximum bytes of a row of csv."""

TASKS = 4
"""Number of tasks per parallel slot."""


class FilesTask(msgspec.Struct, frozen=True):
    """Some files of a table's directory. parts: see `file_description`; their columns state which ones are summed."""

    directory: str
    names: tuple[str, ...]
    description: Description
    parts: tuple[Part, ...]


Counted = dict[str, tuple[int, dict[str, int], dict[str, str]]]
"""Rows, counts and sums by the part's name."""


def file_figures(
    engine: Engine, directory: Place, names: Sequence[str], description: Description, parts: Sequence[Part]
) -> dict[str, Figures]:
    """Returns statistics by the part's name: without counts if only rows are counted; parts whose rows are not counted
    are omitted. Raises SourceRefused for a file that does not match the description, FormatError for an unreadable
    one."""
    some = max(1, -(-len(names) // (TASKS * engine.parallelism)))
    tasks = (
        FilesTask(str(directory), tuple(names[at : at + some]), description, tuple(parts))
        for at in range(0, len(names), some)
    )
    rows, counts, totals = dict[str, int](), dict[str, dict[str, int]](), dict[str, dict[str, Decimal]]()
    for found in engine.run(figures_of_some, tasks):
        for part, (number, counted, sums) in found.items():
            rows[part] = rows.get(part, 0) + number
            mine, mine_sums = counts.setdefault(part, {}), totals.setdefault(part, {})
            for name, count in counted.items():
                mine[name] = mine.get(name, 0) + count
            for name, total in sums.items():
                mine_sums[name] = EXACT.add(mine_sums.get(name, Decimal(0)), Decimal(total))
    if not names:
        rows[""] = 0
    return {
        part: Figures(
            rows[part], counts.get(part, {}), {name: exact_text(each) for name, each in totals.get(part, {}).items()}
        )
        for part in rows
    }


def figures_of_some(task: FilesTask) -> Counted:
    """Reads only."""
    tally = _Tally(task.parts)
    for name in task.names:
        about = join(task.directory, name)
        try:
            with located(about).open_read() as raw:
                _FORMATS[task.description.format](raw, name, task.description, tally)
        except (
            pa.ArrowException,
            ValueError,
            EOFError,
            ElementTree.ParseError,
            InvalidOperation,
            RecursionError,
        ) as error:
            raise SourceRefused(
                f"{about} does not match its description: {error}"[:500], hint="correct the file or the description"
            ) from error
        except OSError as error:
            raise FormatError(f"{about} cannot be read: {error}", hint="write the file again") from error
    return tally.counted()


class _Tally:
    """Accumulated statistics of parts. below: parts by the name of their parent."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = {part.name: part for part in parts}
        self.below: dict[str, list[Part]] = {part.name: [] for part in parts}
        for part in parts[1:]:
            self.below[part.parent].append(part)
        self.rows = dict.fromkeys(self.parts, 0)
        self.counts = {part.name: {each.name.lower(): 0 for each in part.columns} for part in parts}
        self.totals: dict[str, dict[str, Decimal]] = {part.name: {} for part in parts}

    def add(self, part: str, name: str, count: int, total: Decimal | None) -> None:
        self.counts[part][name] += count
        if total is not None:
            self.totals[part][name] = EXACT.add(self.totals[part].get(name, Decimal(0)), total)

    def add_row(self, row: Any, part: str = "") -> None:
        """Adds one row of a part, and those of its lists."""
        self.rows[part] += 1
        for column in self.parts[part].columns:
            value = _at(row, column.path)
            if value is not None:
                self.add(part, column.name.lower(), 1, Decimal(value) if column.summed else None)
        for below in self.below[part]:
            for each in _entries(_at(row, below.via), below.is_map):
                self.add_row(each, below.name)

    def take(self, other: _Tally) -> None:
        """Adds the statistics of another tally of the same parts."""
        for part, rows in other.rows.items():
            self.rows[part] += rows
            for name, count in other.counts[part].items():
                self.add(part, name, count, other.totals[part].get(name))

    def only_rows(self, count: int) -> None:
        self.rows = {"": self.rows.get("", 0) + count}
        self.counts, self.totals = {}, {}

    def counted(self) -> Counted:
        return {
            part: (
                rows,
                self.counts.get(part, {}),
                {name: str(total) for name, total in self.totals.get(part, {}).items()},
            )
            for part, rows in self.rows.items()
        }


def _at(row: Any, path: Sequence[str]) -> Any:
    for name in path:
        if not isinstance(row, Mapping):
            return None
        row = row.get(name)
    return row


def _entries(value: Any, is_map: bool) -> Iterator[Any]:
    if value is None:
        return
    if not is_map:
        yield from value
    else:  # of JSON, or as pyarrow returns one
        for key, each in value.items() if isinstance(value, Mapping) else value:
            yield {"key": key, "value": each}


def _opened(raw: BinaryIO, name: str) -> Any:
    """Returns the decompressed stream; the compression is determined by the file extension, as in Spark."""
    end = f".{name.rpartition('.')[2]}"
    if end in _OPENED:
        return _OPENED[end](raw)
    return pa.CompressedInputStream(raw, _ARROW[end]) if end in _ARROW else raw


def _csv(raw: BinaryIO, name: str, description: Description, tally: _Tally) -> None:
    """pyarrow reads blocks, and no row may be longer than one: if one is, the file is read again with larger blocks."""
    size = 1 << 20
    while True:
        mine = _Tally([*tally.parts.values()])
        try:
            _csv_in_blocks(raw, name, description, mine, size)
        except pa.ArrowInvalid as error:
            if "straddling" not in str(error):
                raise
            size *= 2
            if size > LONGEST:
                raise ValueError(f"a row has more than {LONGEST:,} bytes, or a quote is not closed") from error
        else:
            return tally.take(mine)


def _csv_in_blocks(raw: BinaryIO, name: str, description: Description, tally: _Tally, size: int) -> None:
    columns = description.headers
    header = None if description.header else columns
    read = csv.ReadOptions(encoding=description.encoding, column_names=header, block_size=size)
    parse = csv.ParseOptions(
        delimiter=description.delimiter,
        quote_char=description.quote,
        double_quote=description.escape in (None, description.quote),
        escape_char=description.escape if description.escape != description.quote and description.escape else False,
        newlines_in_values=description.multiline,
    )
    file = _stream(raw, name)
    if file is None:
        return
    if description.header_match == "loose" and header is None:
        with csv.open_csv(file, read, parse) as reader:
            columns = reader.schema.names
        file = _stream(raw, name)
    with csv.open_csv(file, read, parse, _converted(columns, description)) as reader:
        if header is None:
            _check_header(reader.schema.names, description)
        for batch in reader:
            tally.rows[""] += batch.num_rows
            for column, texts in zip(tally.parts[""].columns, batch.columns, strict=True):
                values = _without_null(texts, description)
                total = _sum_of_texts(values) if column.summed and len(values) > values.null_count else None
                tally.add("", column.name.lower(), len(values) - values.null_count, total)


def _check_header(found: Sequence[str], description: Description) -> None:
    """Raises ValueError if it is not the described one."""
    if not description.has_header(found):
        loose = msgspec.structs.replace(description, header_match="loose")
        hint = '; `"header_match": "loose"` would accept it' if loose.has_header(found) else ""
        raise ValueError(f"its header is {list(found)}, but the description has {description.headers}{hint}")


def _stream(raw: BinaryIO, name: str) -> pa.PythonFile | None:
    """Returns the decompressed file from its begin; None if it is empty, for which pyarrow raises an error."""
    raw.seek(0)
    data = _opened(raw, name)
    first = data.read(1)
    return pa.PythonFile(_Behind(first, data), mode="r") if first else None


def _converted(columns: Sequence[str], description: Description) -> csv.ConvertOptions:
    return csv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=description.quoted_empty == "null",
        null_values=["", description.null],
    )


def _without_null(texts: pa.Array, description: Description) -> pa.Array:
    """Returns texts with NULL for the described one, also if it is in quotes."""
    if description.quoted_empty == "null" or not description.null:
        return texts
    return pc.if_else(pc.equal(texts, description.null), pa.scalar(None, pa.string()), texts)


class _Behind(io.RawIOBase):
    """A stream whose first bytes were read already."""

    def __init__(self, first: bytes, rest: Any) -> None:
        self._first, self._rest = first, rest

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._first:
            first, self._first = self._first, b""
            more = self._rest.read(size - len(first)) if size != len(first) else b""
            return first + bytes(more)
        return bytes(self._rest.read(size))


def _sum_of_texts(values: pa.Array) -> Decimal:
    total = Decimal(0)
    for text in values.drop_null().to_pylist():
        total = EXACT.add(total, Decimal(text.strip()))
    return total


def _json(raw: BinaryIO, name: str, description: Description, tally: _Tally) -> None:
    """Reads decimal fractions exactly, because `float` is not more precise than Spark's double."""
    text = io.TextIOWrapper(_opened(raw, name), encoding=description.encoding)
    if description.multiline:
        found = json.load(text, parse_float=Decimal, object_pairs_hook=_named_once)
        for row in found if isinstance(found, list) else [found]:
            tally.add_row(row)
        return
    for line in text:
        if line.strip():
            tally.add_row(json.loads(line, parse_float=Decimal, object_pairs_hook=_named_once))


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises ValueError for a repeated name, of which Spark would silently keep one value."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{twice[:60]!r} occurs twice in an object")
    return found


def _parquet(raw: BinaryIO, name: str, description: Description, tally: _Tally) -> None:
    for batch in pq.ParquetFile(raw, coerce_int96_timestamp_unit="us").iter_batches():
        _add_batch(batch, tally)


def _orc(raw: BinaryIO, name: str, description: Description, tally: _Tally) -> None:
    opened = orc.ORCFile(raw)
    for stripe in range(opened.nstripes):
        _add_batch(opened.read_stripe(stripe), tally)


def _add_batch(batch: pa.RecordBatch, tally: _Tally) -> None:
    times = [at for at, field in enumerate(batch.schema) if pa.types.is_timestamp(field.type)]
    for at in times:  # only NULLs are counted, and Python's times end in 9999
        batch = batch.set_column(at, batch.schema.names[at], batch.column(at).cast(pa.int64()))
    for row in batch.to_pylist():
        tally.add_row(row)


def _avro(raw: BinaryIO, name: str, description: Description, tally: _Tally) -> None:
    tally.only_rows(count_avro(raw))


def _xml(raw: BinaryIO, name: str, description: Description, tally: _Tally) -> None:
    count, inside, root = 0, 0, None
    shapes = {part: _shape_of(tally, part) for part in tally.parts}
    for event, element in ElementTree.iterparse(_opened(raw, name), ("start", "end")):
        root = element if root is None else root
        if element.tag.rpartition("}")[2] == description.row.rpartition(":")[2]:
            inside += 1 if event == "start" else -1
            if event == "end" and not inside:
                count += 1
                _refuse_repeated(element, shapes)
        if event == "end" and not inside:
            root.clear()  # else an element of each row is retained
    tally.only_rows(count)


Path = tuple[str, ...]
"""A path of tags, from a part's row."""


def _shape_of(tally: _Tally, part: str) -> tuple[dict[Path, str], set[Path]]:
    """Returns the shape of a part's rows in xml: the lists, with the names of their parts; the tags that occur once."""
    lists = {_tags(below.via): below.name for below in tally.below[part] if not below.is_map}
    paths = [*(_tags(column.path) for column in tally.parts[part].columns), *lists]
    return lists, {path[:length] for path in paths for length in range(1, len(path) + 1)} - lists.keys()


def _refuse_repeated(
    row: ElementTree.Element, shapes: Mapping[str, tuple[dict[Path, str], set[Path]]], part: str = ""
) -> None:
    """Raises ValueError for repeated tags where the table has one value: Spark would silently keep the last."""
    lists, single = shapes[part]

    def look(element: ElementTree.Element, at: Path) -> None:
        seen = set[str]()
        for child in element:
            path = (*at, _tag(child.tag))
            if path in lists:
                _refuse_repeated(child, shapes, lists[path])
            elif path in single:
                if child.tag.lower() in seen:
                    raise ValueError(f"the tag {'.'.join(path)[:60]} occurs more than once where one value is expected")
                seen.add(child.tag.lower())
                look(child, path)

    look(row, ())


def _tag(name: str) -> str:
    """Returns a name without its namespace: Spark's names have a prefix, the parser's a URI."""
    return name.rpartition("}")[2].rpartition(":")[2].lower()


def _tags(path: Sequence[str]) -> Path:
    return tuple(map(_tag, path))


def _binary(raw: BinaryIO, name: str, description: Description, tally: _Tally) -> None:
    content = raw.read()
    own = description.files.get(name.rpartition("/")[2], {})
    tally.rows[""] += 1
    for column in tally.parts[""].columns:
        key = column.name
        is_said = key in ("name", "modified", "size", "sha256", "content") or key in own or key in description.values
        sums = {"size": Decimal(len(content)), "content": Decimal(first_bytes(content))}
        tally.add("", key.lower(), int(is_said), sums.get(key))


_FORMATS = {"csv": _csv, "json": _json, "parquet": _parquet, "orc": _orc, "avro": _avro, "xml": _xml, "binary": _binary}
