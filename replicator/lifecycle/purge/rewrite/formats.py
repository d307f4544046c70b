"""The file format of a partition's rows, derived from its storage descriptor; and Avro schemas. Pure.

Files of columns (Parquet, ORC), of lines (text, CSV, JSON) and of records (Avro, SequenceFile) are rewritten one by
one; others by Spark, one partition at a time. An Avro schema gives the extent of each value, and a field's position.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from cmroot.errors import UNREADABLE
from cmroot.store.blocks import Unsupported
from replicator.core.model import Storage, Table
from replicator.lifecycle.purge.matching import spelled_in
from replicator.lifecycle.purge.options import Onboarded, data_columns

# ---- Avro schemas ----------------------------------------------------------------------------------------------------


_WIDTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_DIGITS = 1000  # decimal places of a decimal
_PRIMITIVE = (*_WIDTHS, "int", "long", "bytes", "string")

Names = tuple[str, ...]
"""The names by which a writer may know a field: the reader's own name first, then its aliases."""


@dataclass(eq=False)
class AvroType:
    """An Avro type. kind: its name in the specification. inner: the element type of an array or map, or the branches of
    a union; fields: of a record; size: of a fixed; symbols: of an enum; scale: of a decimal, else None."""

    kind: str
    inner: list[AvroType] = field(default_factory=list)
    fields: list[AvroField] = field(default_factory=list)
    size: int = 0
    symbols: tuple[str, ...] = ()
    scale: int | None = None

    def __post_init__(self) -> None:
        self._width: int | Literal["unknown"] | None = "unknown"

    @property
    def width(self) -> int | None:
        """The size of every value in bytes; None if it varies."""
        if self._width == "unknown":
            self._width = None  # during the computation, for recursive types
            self._width = self._widths()
        return self._width

    def _widths(self) -> int | None:
        if self.kind != "record":
            return self.size if self.kind == "fixed" else _WIDTHS.get(self.kind)
        widths = [each.type.width for each in self.fields]
        return None if None in widths else sum(width for width in widths if width)


@dataclass(frozen=True)
class AvroField:
    name: str
    type: AvroType
    aliases: Names = ()


def parse_schema(text: str | bytes) -> AvroType:
    """Parses a schema. Raises ValueError if it is invalid."""
    try:
        return _parse(msgspec.json.decode(text), "", {})
    except (*UNREADABLE, LookupError, TypeError) as error:
        raise ValueError(f"not a valid Avro schema: {error}") from error


def find_field(record: AvroType, names: Names) -> AvroField:
    """Returns the field with one of the names; ignores case if there is no exact match. Raises ValueError if there is
    none, or several."""
    lower = {name.lower() for name in names}
    found = [each for each in record.fields if each.name in names]
    found = found or [each for each in record.fields if each.name.lower() in lower]
    if len(found) != 1:
        fields = ", ".join(each.name for each in record.fields)
        raise ValueError(f"it has {len(found)} fields named {' or '.join(names)}, among {fields[:200]}")
    return found[0]


def names_of(reader: AvroType, path: Sequence[str]) -> Iterator[Names]:
    """Yields the names of a column, and of the fields in it. Raises ValueError if the schema does not have it."""
    for part in path:
        records = [each for each in (reader, *reader.inner) if each.kind == "record"]
        if len(records) != 1:
            raise ValueError(f"a {reader.kind} has no field {part}")
        found = find_field(records[0], (part,))
        yield (found.name, *found.aliases)
        reader = found.type


def _parse(value: Any, namespace: str, named: dict[str, AvroType]) -> AvroType:
    """namespace: of names without one."""
    if isinstance(value, str):
        return AvroType(value) if value in _PRIMITIVE else named.get(_full(value, namespace)) or named[value]
    if isinstance(value, list):
        return AvroType("union", [_parse(each, namespace, named) for each in value])
    kind = value["type"]
    match kind:
        case "record" | "error" | "enum" | "fixed":
            return _parse_named(value, namespace, named)
        case "array" | "map":
            return AvroType(kind, [_parse(value["items" if kind == "array" else "values"], namespace, named)])
        case "bytes" if value.get("logicalType") == "decimal":
            return AvroType("bytes", scale=_number(value.get("scale", 0), _DIGITS))
    return _parse(kind, namespace, named)


def _parse_named(value: Mapping[str, Any], namespace: str, named: dict[str, AvroType]) -> AvroType:
    name = _full(str(value["name"]), str(value.get("namespace", namespace) or ""))
    found = named[name] = AvroType("record" if value["type"] == "error" else value["type"])
    if found.kind == "enum":
        found.symbols = tuple(str(symbol) for symbol in value["symbols"])
    elif found.kind == "fixed":
        found.size = _number(value["size"])
        if value.get("logicalType") == "decimal":
            found.scale = _number(value.get("scale", 0), _DIGITS)
    else:
        inside = name.rpartition(".")[0]
        for each in value["fields"]:
            type_ = _parse(each["type"], inside, named)
            found.fields.append(AvroField(str(each["name"]), type_, tuple(map(str, each.get("aliases", ())))))
    return found


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _number(value: Any, most: int = (1 << 31) - 1) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise TypeError(f"{value!r} is not a valid size")
    return value


# ---- formats ---------------------------------------------------------------------------------------------------------


Kind = Literal["parquet", "orc", "text", "csv", "json", "avro", "sequence", "spark"]

_SERDES: dict[str, Kind] = {
    "ParquetHiveSerDe": "parquet",
    "OrcSerde": "orc",
    "LazySimpleSerDe": "text",
    "OpenCSVSerde": "csv",
    "JsonSerDe": "json",
    "AvroSerDe": "avro",
}
_PROVIDERS: dict[str, Kind] = {"parquet": "parquet", "orc": "orc", "csv": "csv", "json": "json"}
_BY_SPARK = ("ColumnarSerDe", "LazyBinaryColumnarSerDe")
_WHY = {"RegexSerDe": ": it parses rows with a pattern, and no writer exists for it: store them in another format"}
_TEXT_INPUT = "org.apache.hadoop.mapred.TextInputFormat"
_SEQUENCE_INPUT = "org.apache.hadoop.mapred.SequenceFileInputFormat"
_AVRO_SCHEMA = "avro.schema.literal"


class FileFormat(msgspec.Struct, frozen=True):
    """A file format. kind: selects reader and writer; by: the engine whose reader of that kind is emulated. column: the
    column of ids, by its index (`text`, `csv`); field: by name. separator, quote, escape, null: of text; header: each
    file begins with a line of names. rows: the format of the values in a `sequence` file. spellings: the possible names
    of each part of `field` in an `avro` file; empty: the same names. former: columns that have the ids in `parquet`,
    `orc` and `avro` files without `field`, and in records of `json` without it. skipped: the first and last lines
    of each text file that Hive does not read as rows."""

    kind: Kind
    column: int = 0
    field: tuple[str, ...] = ()
    type: str = "string"
    separator: str = "\x01"
    quote: str = ""
    escape: str = ""
    null: str = "\\N"
    header: bool = False
    rows: Literal["text", "csv", "json"] = "text"
    spellings: tuple[Names, ...] = ()
    by: Literal["hive", "spark"] = "hive"
    former: tuple[str, ...] = ()
    skipped: tuple[int, int] = (0, 0)

    @property
    def around(self) -> tuple[int, int]:
        """Returns the number of lines before and behind the rows of a file."""
        return (1, 0) if self.header else self.skipped


class OnlyBySpark(Unsupported):
    """Raised for files that cannot be rewritten one by one, although Spark may be able to rewrite their partition."""


def format_of(table: Table, storage: Storage, field: tuple[str, ...], type_: str) -> FileFormat:
    """Returns the format in which the files of a partition (or of an unpartitioned table) with this storage are
    rewritten. Raises Unsupported."""
    provider = table.parameters.get("spark.sql.sources.provider", "hive").lower()
    serde = storage.serde.parameters
    kind: Kind | None
    if provider != "hive":
        kind = _PROVIDERS.get(provider.rpartition(".")[2])
        if kind is None:
            raise Unsupported(f"files of Spark's source {provider!r} cannot be rewritten")
        options = {key.lower(): value for key, value in serde.items()}
        if kind == "csv":
            return _spark_csv(table, storage, field, type_, options)
        if kind == "json":
            _refuse_options(options, "JSON", _JSON_OPTIONS)
            return FileFormat(kind, field=_as_spelled(table, field), type=type_, by="spark")
        return FileFormat(kind, field=field, type=type_)
    library = (storage.serde.library or "").rpartition(".")[2]
    kind = _SERDES.get(library)
    if kind is None and library in _BY_SPARK:
        kind = "spark"
    if kind is None:
        raise Unsupported(f"files of {storage.serde.library} cannot be rewritten{_WHY.get(library, '')}")
    if kind in ("text", "csv", "json") and storage.input_format not in (_TEXT_INPUT, _SEQUENCE_INPUT):
        kind = "spark"
    if kind == "spark":
        check_by_spark(table, storage, field)
        return FileFormat(kind, field=field, type=type_)
    if kind == "avro":
        return FileFormat(kind, field=field, type=type_, spellings=_spellings(table, storage, field))
    found = _of_rows(kind, table, storage, field, type_)
    if kind in ("text", "csv", "json"):
        found = msgspec.structs.replace(found, skipped=_skipped(table))
    if storage.input_format == _SEQUENCE_INPUT and kind in ("text", "csv", "json"):
        return msgspec.structs.replace(found, kind="sequence", rows=kind)
    return found


def format_of_files(onboarded: Onboarded, storage: Storage, location: str, names: Collection[str]) -> FileFormat:
    """Returns the format of a part's files. names: relative to its location. Raises Unsupported."""
    if "" in names:
        raise Unsupported(f"{location} is a file, but a purge swaps directories")
    found = format_of(onboarded.table, storage, onboarded.field, onboarded.type)
    if onboarded.in_files != onboarded.field:
        found = msgspec.structs.replace(found, field=onboarded.in_files)
    return msgspec.structs.replace(found, former=onboarded.former or ())


def has_no_names(table: Table, storage: Storage) -> bool:
    """Returns True if files of a format have no names of columns: readers find values by their positions."""
    provider = table.parameters.get("spark.sql.sources.provider", "hive").lower().rpartition(".")[2]
    if provider != "hive":
        return provider in ("csv", "text")
    library = (storage.serde.library or "").rpartition(".")[2]
    return library in (*_BY_SPARK, "LazySimpleSerDe", "OpenCSVSerde", "RegexSerDe", "LazyBinarySerDe")


def _of_rows(kind: Kind, table: Table, storage: Storage, field: tuple[str, ...], type_: str) -> FileFormat:
    index, serde = _index(table, storage, field), storage.serde.parameters
    if kind == "text":
        if len(field) > 1:
            raise Unsupported("an id inside a struct in delimited text cannot be rewritten")
        separator = serde.get("field.delim", serde.get("serialization.format", ""))
        if _is_set(serde, "serialization.last.column.takes.rest"):
            raise Unsupported("delimited text whose last column takes the rest cannot be rewritten")
        encoding = serde.get("serialization.encoding", "utf-8").lower()
        wide = encoding.startswith(("utf-16", "utf16", "utf-32", "utf32"))
        if encoding not in ("utf-8", "utf8") and (wide or type_.startswith(("string", "char", "varchar"))):
            raise Unsupported(f"text in {encoding} cannot be rewritten")
        return FileFormat(
            kind,
            index,
            field,
            type_,
            _letter(separator) or "\x01",
            escape=_letter(serde.get("escape.delim", "")),
            null=serde.get("serialization.null.format", "\\N"),
        )
    if kind == "csv":
        escape = serde.get("escapeChar", '"')[:1]
        return FileFormat(
            kind,
            index,
            field,
            "string",
            serde.get("separatorChar", ",")[:1],
            serde.get("quoteChar", '"')[:1],
            "\\" if escape in ('"', "") else escape,  # the serde replaces its writer's default by its reader's
        )
    return FileFormat(kind, index, field, type_)


def _skipped(table: Table) -> tuple[int, int]:
    """Returns the lines of a header and a footer, which Hive skips (Utilities.getHeaderCount) and Spark reads."""
    counts = []
    for name in ("skip.header.line.count", "skip.footer.line.count"):
        text = table.parameters.get(name, "0").strip()
        if not text.isdecimal():
            raise Unsupported(f"its property {name} is not a number: {text[:40]!r}")
        counts.append(int(text))
    return counts[0], counts[1]


def _spellings(table: Table, storage: Storage, field: tuple[str, ...]) -> tuple[Names, ...]:
    """Returns the field's names in the table's reader schema; () if there is none, or only a URL of it."""
    own = table.storage.serde.parameters if table.storage else {}
    for properties in (table.parameters, own, storage.serde.parameters):
        text = properties.get(_AVRO_SCHEMA, "none")
        if text != "none":
            try:
                return tuple(names_of(parse_schema(text), field))
            except ValueError as error:
                raise Unsupported(f"{_AVRO_SCHEMA} cannot be parsed: {error}") from error
    return ()


def _spark_csv(
    table: Table, storage: Storage, field: tuple[str, ...], type_: str, options: dict[str, str]
) -> FileFormat:
    _refuse_options(options, "CSV", _CSV_OPTIONS)
    separator = options.get("sep", options.get("delimiter", ",")).replace("\\t", "\t")
    if "\\" in separator:
        raise Unsupported(f"CSV separated by {separator} cannot be rewritten")
    return FileFormat(
        "csv",
        _index(table, storage, field),
        field,
        type_,
        separator,
        options.get("quote", '"'),
        options.get("escape", "\\"),
        options.get("nullvalue", ""),
        _is_set(options, "header"),
        by="spark",
    )


_JSON_OPTIONS = (
    "multiline",
    "linesep",
    "primitivesasstring",
    "prefersdecimal",
    "allowcomments",
    "allownumericleadingzeros",
    "allowunquotedfieldnames",
    "allowbackslashescapinganycharacter",
    "allowunquotedcontrolchars",
    "dateformat",
    "locale",
)
_CSV_OPTIONS = (
    "multiline",
    "linesep",
    "comment",
    "chartoescapequoteescaping",
    "unescapedquotehandling",
    "emptyvalue",
    "ignoreleadingwhitespace",
    "ignoretrailingwhitespace",
    "nanvalue",
    "positiveinf",
    "negativeinf",
    "dateformat",
    "locale",
)


def _refuse_options(options: dict[str, str], what: str, names: tuple[str, ...]) -> None:
    """Raises Unsupported for options with which Spark parses lines differently from `fields`."""
    if set_ := [name for name in names if options.get(name, "false").lower() != "false"]:
        raise Unsupported(f"{what} with the option {set_[0]} = {options[set_[0]]!r} cannot be rewritten")
    if options.get("mode", "permissive").lower() != "permissive":
        raise Unsupported(f"{what} with the option mode = {options['mode']!r} cannot be rewritten")
    if options.get("encoding", options.get("charset", "utf-8")).lower() not in ("utf-8", "utf8"):
        raise Unsupported(f"{what} in an encoding other than UTF-8 cannot be rewritten")


def _is_set(options: dict[str, str], name: str) -> bool:
    return options.get(name, "").lower() == "true"


def _as_spelled(table: Table, field: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the field's names as written: Spark's JSON reader is case-sensitive."""
    for column in data_columns(table):
        if column.name.lower() == field[0]:
            return (column.name, *spelled_in(column.type, field[1:]))
    raise Unsupported(f"it has no column {field[0]}")


def check_by_spark(table: Table, storage: Storage, field: tuple[str, ...]) -> None:
    """Raises Unsupported if Spark would not write the partition as it was, or if the search read ids from other
    columns: it used the table's columns, by position."""
    if storage.buckets > 0 or storage.skew is not None:
        raise Unsupported(f"files of {storage.serde.library} in buckets cannot be rewritten")
    if len(field) > 1:
        raise Unsupported(f"files of {storage.serde.library} with ids in a struct cannot be rewritten")
    here, there = (
        [(at, each.type) for at, each in enumerate(columns) if each.name.lower() == field[0]]
        for columns in (storage.columns or data_columns(table), data_columns(table))
    )
    if here != there:
        raise Unsupported(
            f"files of {storage.serde.library} cannot be rewritten where the partition's column {field[0]} has another"
            " type or position than its table's"
        )


def _index(table: Table, storage: Storage, field: tuple[str, ...]) -> int:
    """Returns the column's index in the files: a partition's columns may differ from its table's by position."""
    for columns in (storage.columns, data_columns(table)):
        for index, column in enumerate(columns):
            if column.name.lower() == field[0]:
                return index
    raise Unsupported(f"it has no column {field[0]}")


def _letter(text: str) -> str:
    """Parses a separator, which Hive writes as itself or as its number (LazyUtils.getByte); uses only the first
    character, and only one byte of it."""
    if text.lstrip("+-").isdecimal() and -128 <= int(text) <= 127:
        return chr(int(text) % 256)
    return chr(ord(text[0]) & 0xFF) if text else ""
