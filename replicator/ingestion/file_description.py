"""`_description.json`: the description of the files in a table's directory of a drop zone, written by their producer.

    {"format": "csv", "delimiter": ";", "columns": [{"name": "id", "type": "bigint"}, {"name": "born", "type": "date"}]}

And the flattening of nested rows: structures become columns; lists and maps become tables of their own, which join
back. A row has a `row_id`; a row of a list has the `parent_id` of the row that contains the list, and its `position`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from cmroot.store.place import Place, is_local
from replicator.core.model import Value
from replicator.core.text import parse_duration, quoted_name, quoted_text, scalar_type
from replicator.errors import SourceMissing, SourceRefused, TypeRefused

# ---- nested rows -----------------------------------------------------------------------------------------------------


ROW, PARENT, POSITION = "row_id", "parent_id", "position"

DEEPEST = 20
"""Maximum nesting depth of lists."""

Type = str | Mapping[str, Any]
"""A type in Spark's JSON representation."""

_TYPES = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp",
    "void": "string",  # it has no values
}
_SIZED_AS_LANDED = re.compile(r"decimal\(\d+,\d+\)|(char|varchar)\(\d+\)", re.ASCII)


@dataclass(frozen=True)
class PartColumn:
    """name: as landed, except for its case. path: fields from the part's row. type: as written in Hive and Spark."""

    name: str
    path: tuple[str, ...]
    type: str

    @property
    def summed(self) -> bool:
        return self.type in ("tinyint", "smallint", "int", "bigint") or self.type.startswith("decimal")


@dataclass(frozen=True)
class Part:
    """One of the tables into which rows are flattened. name: "" for the rows themselves. parent: the part whose rows
    contain the list or map at the path `via`."""

    name: str
    parent: str
    via: tuple[str, ...]
    is_map: bool
    columns: tuple[PartColumn, ...]


def parts_of(schema: Mapping[str, Any]) -> list[Part]:
    """Returns the parts of a schema, each after its parent. schema: of a DataFrame, in Spark's JSON. Raises
    TypeRefused, naming the column, also for two lists whose tables would have the same name."""
    parts, seen = list(_parts("", "", (), False, schema, 0)), dict[str, Part]()
    for part in parts:
        other = seen.setdefault(part.name.lower(), part)
        if other is not part:
            told = " and ".join(".".join(filter(None, (each.parent, *each.via))) for each in (other, part))
            raise TypeRefused(f"{told} would both land in table {part.name}", hint="rename one of them")
    return parts


def _parts(name: str, parent: str, via: tuple[str, ...], is_map: bool, type_: Type, depth: int) -> Iterator[Part]:
    if depth > DEEPEST:
        raise TypeRefused(f"lists are nested too deeply: {name[:200]}", hint=f"at most {DEEPEST} levels")
    columns, lists = list[PartColumn](), list[tuple[tuple[str, ...], Type]]()
    for path, found in _leaves((), type_):
        if isinstance(found, str):
            columns.append(PartColumn("_".join(path) or "value", path, _type(found, path)))
        else:
            lists.append((path, found))
    yield Part(name, parent, via, is_map, tuple(columns))
    for path, found in lists:
        assert isinstance(found, Mapping)
        below = "_".join(path) or "elements"
        yield from _parts(
            f"{name}__{below}" if name else below, name, path, found["type"] == "map", _row_of(found), depth + 1
        )


def _leaves(path: tuple[str, ...], type_: Type) -> Iterator[tuple[tuple[str, ...], Type]]:
    """Yields single values, lists and maps below a type."""
    if isinstance(type_, Mapping) and type_["type"] == "struct":
        for each in type_["fields"]:
            yield from _leaves((*path, each["name"]), each["type"])
    elif isinstance(type_, Mapping) and type_["type"] not in ("array", "map"):
        raise TypeRefused(f"column {'.'.join(path)}: type {type_['type']} cannot be landed", hint="write a string")
    else:
        yield path, type_


def _row_of(type_: Mapping[str, Any]) -> Type:
    if type_["type"] == "array":
        return type_["elementType"]  # type: ignore[no-any-return]
    fields = [{"name": "key", "type": type_["keyType"]}, {"name": "value", "type": type_["valueType"]}]
    return {"type": "struct", "fields": fields}


def _type(found: str, path: tuple[str, ...]) -> str:
    if found in _TYPES:
        return _TYPES[found]
    if _SIZED_AS_LANDED.fullmatch(found):
        return found if found.startswith("decimal") else "string"
    raise TypeRefused(f"column {'.'.join(path)}: type {found[:80]} cannot be landed", hint="write it as a string")


def frames_of(rows: Any, parts: list[Part], also: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns DataFrames of the parts, by name. rows: with `row_id` if there are several parts. also: columns of the
    rows that are added to each part."""
    kept = [quoted_name(each) for each in also]
    if len(parts) == 1:
        return {"": rows.selectExpr(*_columns(parts[0], ()), *kept)}
    data = [quoted_name(each) for each in rows.columns if each not in (ROW, *also)]
    raw = {"": rows.selectExpr(ROW, f"struct({', '.join(data)}) AS element", *kept)}
    found = {"": raw[""].selectExpr(ROW, *_columns(parts[0], ("element",)), *kept)}
    for part in parts[1:]:
        place = quoted_name("element", *part.via)
        each = f"posexplode({f'map_entries({place})' if part.is_map else place}) AS ({POSITION}, element)"
        some = raw[part.parent].selectExpr(f"{ROW} AS {PARENT}", each, *kept)
        raw[part.name] = some.selectExpr(f"concat({PARENT}, '.', {POSITION}) AS {ROW}", *some.columns)
        found[part.name] = raw[part.name].selectExpr(ROW, PARENT, POSITION, *_columns(part, ("element",)), *kept)
    return found


def _columns(part: Part, below: tuple[str, ...]) -> list[str]:
    return [
        f"CAST({quoted_name(*below, *column.path)} AS {column.type}) AS {quoted_name(column.name.lower())}"
        for column in part.columns
    ]


def keys_of(part: Part, has_lists: bool) -> list[tuple[str, str]]:
    """Returns the columns of a part's table in addition to those of its rows: names and types."""
    if part.name:
        return [(ROW, "string"), (PARENT, "string"), (POSITION, "int")]
    return [(ROW, "string")] if has_lists else []


# ---- descriptions ----------------------------------------------------------------------------------------------------


FILE = "_description.json"
"""Stored next to the files; Spark ignores files whose name starts with an underscore."""

LARGEST = 16 << 20
"""Maximum bytes of a description."""

FileFormat = Literal["csv", "json", "avro", "parquet", "orc", "xml", "binary"]

_ENCODINGS = ("UTF-8", "US-ASCII", "ISO-8859-1", "UTF-16", "UTF-16BE", "UTF-16LE")
_NESTED = re.compile(r"[\w<>:,() ]{1,2000}", re.ASCII)
_TIME = re.compile(r"date|timestamp(_ntz|_ltz)?", re.IGNORECASE)
_LAYOUT = re.compile(r"(?:[\w=.-]|%[Ymd]|/(?!/))+", re.ASCII)


class FileColumn(Value, frozen=True, forbid_unknown_fields=True):
    """type: as written in Hive and Spark. format: of a date or time, as a Spark pattern. header: the name in the header
    of csv files; None: `name`."""

    name: str
    type: str = "string"
    format: str | None = None
    header: str | None = None


class Days(Value, frozen=True, forbid_unknown_fields=True):
    """A layout with a directory for each day. layout: its path below the table's directory, with %Y, %m and %d, in UTC.
    lateness: how long after its end a day remains open. watermark: a file below the table's directory that contains, as
    an ISO time, up to when the sink has written; None: up to now."""

    layout: str = "year=%Y/month=%m/day=%d"
    lateness: str = "0s"
    watermark: str | None = None

    @property
    def pattern(self) -> str:
        """A regular expression of the layout; groups: year, month, day, in the order of `order`."""
        text = re.escape(self.layout).replace("%Y", r"([0-9]{4})")
        return text.replace("%m", r"([0-9]{2})").replace("%d", r"([0-9]{2})")

    @property
    def order(self) -> tuple[int, int, int]:
        """The group numbers of year, month and day."""
        found = re.findall("%([Ymd])", self.layout)
        return found.index("Y") + 1, found.index("m") + 1, found.index("d") + 1


class Description(Value, frozen=True, forbid_unknown_fields=True):
    """columns: required for csv; for json and xml: all of them, unless they are to be inferred. delimiter, quote,
    escape, header, encoding, null: of csv; null: the text that represents NULL. header_match: exact, or loose: names in
    headers may differ in case, and in blanks and signs between words. quoted_empty: text or null: the value of "" in
    csv. multiline: csv values may contain line breaks; a json file is one document. row: the tag of a row in xml.
    values: descriptive values for all binary files; files: for one file, by its name. days: set if a sink fills a
    directory for each day."""

    format: FileFormat
    columns: tuple[FileColumn, ...] = ()
    delimiter: str = ","
    quote: str = '"'
    escape: str | None = None
    header: bool = True
    header_match: Literal["exact", "loose"] = "exact"
    quoted_empty: Literal["null", "text"] = "null"
    encoding: str = "UTF-8"
    null: str = ""
    multiline: bool = False
    row: str = ""
    values: dict[str, str] = msgspec.field(default_factory=dict)
    files: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    days: Days | None = None

    @property
    def headers(self) -> list[str]:
        """The names in the header of csv files."""
        return [each.name if each.header is None else each.header for each in self.columns]

    def has_header(self, found: Sequence[str]) -> bool:
        """Returns True if a csv file with this header has the described columns, in their order."""
        wanted = self.headers
        if self.header_match == "loose":
            return [*map(_loose, found)] == [*map(_loose, wanted)]
        return list(found) == wanted


def _loose(name: str) -> str:
    return re.sub(r"[\W_]+", "_", name).strip("_").casefold()


def refuse_link(place: Place) -> None:
    """Raises SourceRefused for a symbolic link: its writer may lack permission to read its target."""
    if is_local(str(place)) and os.path.islink(place.local):
        raise SourceRefused(f"{place} is a symbolic link", hint="copy the file; links are not followed")


def read_description(directory: Place) -> Description:
    """Reads the description of a table's directory. Raises SourceMissing without one, SourceRefused naming an invalid
    part."""
    place = directory / FILE
    about = str(place)
    refuse_link(place)
    child = place.child()
    if child is None or child.is_directory:
        raise SourceMissing(
            f"{directory} has no {FILE}",
            hint='describe its files, such as {"format": "csv", "columns": [{"name": "id", "type": "bigint"}]}',
        )
    if child.size > LARGEST:
        raise SourceRefused(f"{about} has {child.size:,} bytes", hint=f"write at most {LARGEST:,} bytes")
    try:
        found = msgspec.json.decode(place.read_bytes(), type=Description)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SourceRefused(f"{about}: {error}", hint="docs/ingestion.md lists all fields") from error
    _check(found, about)
    return found


def _check(found: Description, about: str) -> None:
    def refuse(told: str, hint: str) -> None:
        raise SourceRefused(f"{about}: {told}", hint=hint)

    if found.format == "csv" and not found.columns:
        refuse("format csv requires `columns`", "list them with their types, in their order")
    if found.format == "xml" and not found.row:
        refuse("format xml requires `row`", "set it to the tag of a row")
    if found.format == "binary" and not (found.values or found.files):
        refuse("format binary requires `values` or `files`", "give `values` for all files, or `files` by name")
    if found.columns and found.format not in ("csv", "json", "xml"):
        refuse(f"files of format {found.format} define their own columns", "omit `columns`")
    for name in ("delimiter", "quote"):
        if len(getattr(found, name).encode()) != 1:
            refuse(f"{name} is not a single character", "csv requires one ASCII character")
    if found.escape is not None and len(found.escape.encode()) != 1:
        refuse("escape is not a single character", "omit it if quotes are doubled")
    if found.encoding.upper() not in _ENCODINGS:
        refuse(f"encoding {found.encoding[:40]!r} is not supported", f"use one of {', '.join(_ENCODINGS)}")
    if found.format != "csv" and (found.header_match, found.quoted_empty) != ("exact", "null"):
        refuse(f"files of format {found.format} have no header and no quotes", "omit header_match and quoted_empty")
    for column in found.columns:
        _check_column(found, column, about)
    if found.days is not None:
        _check_days(found.days, about)


def _check_column(found: Description, column: FileColumn, about: str) -> None:
    try:
        if found.format == "csv":
            scalar_type(column.type)
        elif not _NESTED.fullmatch(column.type):
            raise ValueError(f"{column.type[:80]!r} is not a type")
    except ValueError as error:
        raise SourceRefused(f"{about}: column {column.name}: {error}", hint="use a Hive type") from error
    if column.format is not None and not _TIME.fullmatch(column.type):
        raise SourceRefused(f"{about}: column {column.name}: type {column.type[:80]} takes no format", hint="omit it")
    if re.search(r"(?<![.,S])S{7}", column.format or ""):
        told = f"{about}: column {column.name}: no point precedes more than six digits of a second"
        raise SourceRefused(told, hint="write a point before them, or at most six digits: times have microseconds")
    if column.header is not None and not (found.format == "csv" and found.header):
        raise SourceRefused(f"{about}: column {column.name}: the files have no header", hint="omit its header")
    if not column.name.strip():
        raise SourceRefused(f"{about}: a column has no name", hint="give it a name")


def _check_days(days: Days, about: str) -> None:
    if not _LAYOUT.fullmatch(days.layout) or ".." in days.layout or days.layout.startswith("/"):
        raise SourceRefused(f"{about}: invalid layout {days.layout[:80]!r}", hint='use "year=%Y/month=%m/day=%d"')
    if sorted(re.findall("%([Ymd])", days.layout)) != ["Y", "d", "m"]:
        raise SourceRefused(
            f"{about}: the layout must contain %Y, %m and %d once each", hint="each day has a directory"
        )
    try:
        parse_duration(days.lateness)
    except ValueError as error:
        raise SourceRefused(f"{about}: lateness: {error}", hint="write a duration such as 2h") from error
    if days.watermark is not None and not re.fullmatch(r"_?[\w-][\w.-]*", days.watermark, re.ASCII):
        told = f"{about}: invalid watermark {days.watermark[:80]!r}"
        raise SourceRefused(told, hint="name a file in the directory of the description")


# ---- fitting ---------------------------------------------------------------------------------------------------------
# Conversion of texts in files to the types of a description: exact, or refused by column with an example.
#
# Spark's readers round decimals, and read "12:30" as a time of today and "2020" as the first of January. So such values
# are read as texts, also within structures, lists and maps.


_NUMBERS = ("byte", "short", "integer", "long", "float", "double", "boolean")
_TIMES = ("date", "timestamp", "timestamp_ntz")
_SIZED = re.compile(r"(?:char|varchar)\((\d+)\)", re.ASCII | re.IGNORECASE)
_DAY = quoted_text(r"^\s*[+-]?[0-9]{4,}-[0-9]{1,2}-[0-9]{1,2}")
_TOO_FINE = quoted_text(r"[.,][0-9]{6,}[1-9]")
"""More digits than microseconds, the precision of Spark's times."""

_NUMBER = quoted_text(r"^\s*[-+.0-9eE]+\s*$")
_NO_DIGIT = quoted_text("[eE].*$|[^0-9]")


def types_of(session: Any, columns: Sequence[FileColumn]) -> list[Type]:
    """Returns types in Spark's JSON; a text of limited length is a string there. Raises SourceRefused for a text with
    several types, and Spark's error for one that is not a type."""
    said = ", ".join(f"{quoted_name(each.name)} {_SIZED.sub('string', each.type)}" for each in columns)
    found = [field["type"] for field in session.createDataFrame([], said).schema.jsonValue()["fields"]]
    if len(found) != len(columns):
        raise SourceRefused("a column of the description has several types", hint="list each of them as a named column")
    return found


def read_as(type_: Type, format_: str) -> str:
    """Returns the SQL type as which Spark's reader of a format reads a value: a text if it would change the value."""
    if isinstance(type_, str):
        fitted = type_ in (*_NUMBERS, *_TIMES) or type_.startswith("decimal") or format_ == "csv"
        return "string" if fitted else type_  # bytes of JSON are in base64
    if type_["type"] == "struct":
        fields = (f"{quoted_name(each['name'])}: {read_as(each['type'], format_)}" for each in type_["fields"])
        return f"struct<{', '.join(fields)}>"
    if type_["type"] == "array":
        return f"array<{read_as(type_['elementType'], format_)}>"
    return f"map<{type_['keyType']}, {read_as(type_['valueType'], format_)}>"


def fitted(texts: Any, description: Description, types: Sequence[Type], also: Sequence[str]) -> Any:
    """Converts texts to columns of their types. also: columns passed through. Raises TypeRefused naming columns with
    values that do not fit."""
    columns = description.columns
    made = [
        _fit(quoted_name(each.name), type_, each, description.format, 0)
        for each, type_ in zip(columns, types, strict=True)
    ]
    asked = [part for _, bad in made for part in (f"count({bad})", f"first({bad}, true)")]
    row = texts.selectExpr(*asked).first()
    told = [
        f"column {each.name} ({each.type}) has {row[2 * at]:,} values that do not fit, such as {row[2 * at + 1][:60]!r}"
        for at, each in enumerate(columns)
        if row[2 * at]
    ]
    if told:
        raise TypeRefused("; ".join(told[:5]), hint="correct them, or describe the column with another type or format")
    named = (f"{value} AS {quoted_name(each.name)}" for each, (value, _) in zip(columns, made, strict=True))
    return texts.selectExpr(*named, *also)


def _fit(at: str, type_: Type, column: FileColumn, format_: str, depth: int) -> tuple[str, str]:
    """Returns SQL for the converted value at a path, and for the first text in it that does not fit, else NULL."""
    if isinstance(type_, str):
        return _fit_one(at, type_, column, format_)
    if type_["type"] == "struct":
        names = [each["name"] for each in type_["fields"]]
        fields = [
            _fit(f"{at}.{quoted_name(each['name'])}", each["type"], column, format_, depth) for each in type_["fields"]
        ]
        made = ", ".join(f"{quoted_text(name)}, {value}" for name, (value, _) in zip(names, fields, strict=True))
        bad = ", ".join(["CAST(NULL AS string)", *(bad for _, bad in fields)])
        return f"CASE WHEN {at} IS NOT NULL THEN named_struct({made}) END", f"coalesce({bad})"
    one, is_map = f"x{depth}", type_["type"] == "map"
    value, bad = _fit(one, type_["valueType" if is_map else "elementType"], column, format_, depth + 1)
    made = f"transform_values({at}, (key, {one}) -> {value})" if is_map else f"transform({at}, {one} -> {value})"
    each = f"transform({f'map_values({at})' if is_map else at}, {one} -> {bad})"
    return made, f"get(filter({each}, {one} -> {one} IS NOT NULL), 0)"


def _fit_one(at: str, type_: str, column: FileColumn, format_: str) -> tuple[str, str]:
    if read_as(type_, format_) != "string":
        return at, "CAST(NULL AS string)"
    text = f"nullif({at}, '')" if format_ == "xml" and type_ != "string" else at  # an empty tag
    made = _value(text, type_, column)
    return made, f"CASE WHEN {text} IS NOT NULL AND ({made}) IS NULL THEN {text} END"


def _value(text: str, type_: str, column: FileColumn) -> str:
    """Returns SQL for the exact value, or NULL: decimals are never rounded, a year is not a date, a time of day is not
    a timestamp, digits of a second are never truncated."""
    if type_ == "string":
        sized = _SIZED.fullmatch(column.type)
        return f"CASE WHEN char_length({text}) <= {sized[1]} THEN {text} END" if sized else text
    if type_ in _TIMES:
        if column.format is None and type_ != "date":  # converted via a timestamp: a zone in the text is honoured
            fits = f"{text} RLIKE {_DAY} AND NOT {text} RLIKE {_TOO_FINE}"
            return f"CASE WHEN {fits} THEN CAST(try_cast({text} AS timestamp) AS {type_}) END"
        moment = f"CAST(try_to_timestamp({text}, {quoted_text(column.format or 'yyyy-MM-dd')}) AS {type_})"
        may_be_finer = "SSSSSSS" in (column.format or "")
        return f"CASE WHEN NOT {text} RLIKE {_TOO_FINE} THEN {moment} END" if may_be_finer else moment
    made = f"try_cast({text} AS {type_})"
    if type_ in ("float", "double"):  # a number is finite
        return f"CASE WHEN ({text} RLIKE {_NUMBER}) = (abs({made}) < double('infinity')) THEN {made} END"
    if type_.startswith("decimal"):  # rounding changes the digits, regardless of the exponent
        return f"CASE WHEN {digits(text)} = {digits(f'CAST({made} AS string)')} THEN {made} END"
    return made


def digits(text: str) -> str:
    """Returns SQL for the digits of a number, without leading and trailing zeros."""
    return f"trim(BOTH '0' FROM regexp_replace({text}, {_NO_DIGIT}, ''))"
