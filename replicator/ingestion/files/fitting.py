"""Texts of files as values of the types that a description says: exactly, or refused by column with an example.

Spark's readers round decimals, take "12:30" for a time of today and "2020" for the first of January. So they read such
values as texts, also within structures, lists and maps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from replicator.core.text.sql_text import quoted_name, quoted_text
from replicator.errors import SourceRefused, TypeRefused
from replicator.ingestion.files.description import Description, FileColumn
from replicator.ingestion.files.nesting import Type

_NUMBERS = ("byte", "short", "integer", "long", "float", "double", "boolean")
_TIMES = ("date", "timestamp", "timestamp_ntz")
_SIZED = re.compile(r"(?:char|varchar)\((\d+)\)", re.ASCII | re.IGNORECASE)
_DAY = quoted_text(r"^\s*[+-]?[0-9]{4,}-[0-9]{1,2}-[0-9]{1,2}")
_TOO_FINE = quoted_text(r"[.,][0-9]{6,}[1-9]")
"""More than microseconds, which Spark's times have."""

_NUMBER = quoted_text(r"^\s*[-+.0-9eE]+\s*$")
_NO_DIGIT = quoted_text("[eE].*$|[^0-9]")


def types_of(session: Any, columns: Sequence[FileColumn]) -> list[Type]:
    """As Spark writes types in JSON; a text of limited length is a string there. Raises SourceRefused for what is
    several types, and what Spark raises for what is none."""
    said = ", ".join(f"{quoted_name(each.name)} {_SIZED.sub('string', each.type)}" for each in columns)
    found = [field["type"] for field in session.createDataFrame([], said).schema.jsonValue()["fields"]]
    if len(found) != len(columns):
        raise SourceRefused("a column of the description has several types", hint="give each of them a name")
    return found


def read_as(type_: Type, format_: str) -> str:
    """The type, in the words of SQL, as which Spark's reader of a format reads a value: a text where it would change
    it."""
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
    """Columns of their types out of texts. also: columns that stay. Raises TypeRefused naming columns with values that
    do not fit."""
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
        raise TypeRefused("; ".join(told[:5]), hint="correct them, or describe the column by another type or format")
    named = (f"{value} AS {quoted_name(each.name)}" for each, (value, _) in zip(columns, made, strict=True))
    return texts.selectExpr(*named, *also)


def _fit(at: str, type_: Type, column: FileColumn, format_: str, depth: int) -> tuple[str, str]:
    """In SQL: the value of what was read at a place, and the first text in it that does not fit, else NULL."""
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
    """Exact, or NULL: a decimal is never rounded, a year is no date, a time of day no time, no digit of a second is
    cut."""
    if type_ == "string":
        sized = _SIZED.fullmatch(column.type)
        return f"CASE WHEN char_length({text}) <= {sized[1]} THEN {text} END" if sized else text
    if type_ in _TIMES:
        if column.format is None and type_ != "date":  # by way of a moment: a zone in the text counts
            fits = f"{text} RLIKE {_DAY} AND NOT {text} RLIKE {_TOO_FINE}"
            return f"CASE WHEN {fits} THEN CAST(try_cast({text} AS timestamp) AS {type_}) END"
        moment = f"CAST(try_to_timestamp({text}, {quoted_text(column.format or 'yyyy-MM-dd')}) AS {type_})"
        may_be_finer = "SSSSSSS" in (column.format or "")
        return f"CASE WHEN NOT {text} RLIKE {_TOO_FINE} THEN {moment} END" if may_be_finer else moment
    made = f"try_cast({text} AS {type_})"
    if type_ in ("float", "double"):  # a number is finite
        return f"CASE WHEN ({text} RLIKE {_NUMBER}) = (abs({made}) < double('infinity')) THEN {made} END"
    if type_.startswith("decimal"):  # rounding changes the digits, whatever the exponent
        return f"CASE WHEN {_digits(text)} = {_digits(f'CAST({made} AS string)')} THEN {made} END"
    return made


def _digits(text: str) -> str:
    """Of a number, without zeros before and after them."""
    return f"trim(BOTH '0' FROM regexp_replace({text}, {_NO_DIGIT}, ''))"
