"""Conversion of text to the value that its reader returns: Hive's lazy serde, Spark's CSV and Spark's JSON. Pure.

A value has the form of `canonical` keys, or is NONE. Each rule is that of Hive 2.3 or Spark, verified with their rows.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable
from datetime import date, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from cmroot.store.blocks import Unsupported
from replicator.lifecycle.purge.rewrite.formats import FileFormat

NONE = object()
"""Null, or text that is not a valid value: equals no key."""

Read = Callable[[str], Any]

_BLANKS = "".join(map(chr, range(33)))  # the characters that Java trims
_DIGITS = Context(prec=200, rounding=ROUND_HALF_UP)
_LAZY_INTEGER = re.compile(r"([+-]?)(\d*)(?:\.\d*)?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_JAVA_DOUBLE = re.compile(
    r"([+-]?)(?:(NaN|Infinity)|((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[fFdD]?"
    r"|(0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+)[fFdD]?)",
    re.ASCII,
)
_HIVE_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})", re.ASCII)
_SPARK_DATE = re.compile(r"([+-]?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_BASE64 = re.compile(rb"[A-Za-z0-9+/_=\s-]*")
_GROUPS = re.compile(r"(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)*")


def canonical(keys: pa.Array, type_: str) -> list[Any]:
    """Returns keys in the form of the values read: days for dates, a single NaN, no trailing blanks of a CHAR."""
    if pa.types.is_date(keys.type):
        return list(keys.cast(pa.int32()).to_pylist())
    if pa.types.is_string(keys.type):  # which may be invalid text: Hive's reader accepts any bytes
        values = [value.decode("utf-8", "surrogateescape") for value in keys.cast(pa.binary()).to_pylist()]
        return [value.rstrip(" ") for value in values] if type_.startswith("char") else values
    values = list(keys.to_pylist())
    if pa.types.is_floating(keys.type):
        return [_number(value) for value in values]
    return values


def _number(value: float) -> Any:
    return "NaN" if value != value else value


def lazy(format_: FileFormat, type_: pa.DataType) -> Callable[[bytes, bytes], Any]:
    """Returns a reader of Hive's text. It requires a field as written, and with its escapes resolved: only strings are
    unescaped. Raises Unsupported."""
    if pa.types.is_string(type_):
        string = _string(format_.type, cuts=True)
        errors = "surrogateescape" if format_.type == "string" else "replace"  # lengths count characters
        return lambda _, unescaped: string(unescaped.decode("utf-8", errors))
    if pa.types.is_binary(type_):
        return lambda raw, _: _lenient_base64(raw)
    read = _scalar(type_, _lazy_integer, _java_double, _ascii_decimal, _hive_date)
    return lambda raw, _: read(raw.decode("utf-8", "replace"))


def of_csv(format_: FileFormat, type_: pa.DataType) -> Read:
    """Returns a reader of Spark's CSV. Raises Unsupported."""
    if pa.types.is_string(type_):
        return _string(format_.type)
    if pa.types.is_binary(type_):
        return lambda text: text.encode("utf-8", "surrogateescape")

    def double(text: str) -> Any:
        return {"Inf": float("inf"), "-Inf": float("-inf")}.get(text) or _java_double(text)

    return _scalar(type_, _integer, double, _grouped_decimal, _spark_date)


def of_json(format_: FileFormat, type_: pa.DataType) -> Read:
    """Returns a reader of Spark's JSON; its argument is the text of a value in the document. Raises Unsupported."""
    if pa.types.is_string(type_):
        string = _string(format_.type)
        return lambda text: NONE if text == "null" else string(unquoted(text) if text[0] in "\"'" else text)
    if pa.types.is_binary(type_):
        return lambda text: _strict_base64(unquoted(text)) if text[0] == '"' else NONE
    if pa.types.is_boolean(type_):
        return lambda text: {"true": True, "false": False}.get(text, NONE)
    if pa.types.is_date(type_):
        return lambda text: _spark_date_or_days(unquoted(text)) if text[0] in "\"'" else NONE
    number = _scalar(type_, _json_integer(type_), _java_double, _grouped_decimal, _spark_date)
    words = {"NaN", "Infinity", "+Infinity", "-Infinity"}

    def read(text: str) -> Any:
        if text[0] not in "\"'":
            return number(text) if text[0] in "-0123456789" or text in words else NONE
        text = unquoted(text)
        return number(text) if pa.types.is_decimal(type_) or text in words else NONE

    return read


def unquoted(text: str) -> str:
    """Returns the value of a JSON string, in quotes or apostrophes."""
    if text[0] == "'":
        text = '"' + text[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        return ""


def _scalar(type_: pa.DataType, integer: Read, double: Read, decimal: Read, day: Read) -> Read:
    if pa.types.is_integer(type_):
        most = 1 << (type_.bit_width - 1)
        return lambda text: value if (value := integer(text)) is not NONE and -most <= value < most else NONE
    if pa.types.is_float64(type_):
        return double
    if pa.types.is_float32(type_):
        return lambda text: NONE if (value := double(text)) is NONE else _single(value)
    if pa.types.is_decimal(type_):
        unit, most = Decimal(1).scaleb(-type_.scale), Decimal(10) ** (type_.precision - type_.scale)

        def fitting(text: str) -> Any:
            try:
                value = NONE if (found := decimal(text)) is NONE else found.quantize(unit, context=_DIGITS)
            except InvalidOperation:
                return NONE
            return value if value is not NONE and abs(value) < most else NONE

        return fitting
    if pa.types.is_date(type_):
        return day
    if pa.types.is_boolean(type_):
        return lambda text: {"true": True, "false": False}.get(text.lower(), NONE)
    raise Unsupported(f"ids of type {type_} cannot be found in text")


def _string(type_: str, cuts: bool = False) -> Read:
    """cuts: Hive truncates text that is too long for a CHAR or VARCHAR; Spark's own readers do not."""
    length = re.fullmatch(r"(?:var)?char\((\d+)\)", type_)
    most = int(length[1]) if cuts and length else None
    if type_.startswith("char"):
        return lambda text: text[:most].rstrip(" ")
    return (lambda text: text[:most]) if most is not None else (lambda text: text)


def _lazy_integer(text: str) -> Any:
    """Discards a fraction, which must consist of digits."""
    match = _LAZY_INTEGER.fullmatch(text)
    if match is None or not any("0" <= letter <= "9" for letter in text):
        return NONE
    value = int(match[2] or "0")
    return -value if match[1] == "-" else value


def _integer(text: str) -> Any:
    return int(text) if _INTEGER.fullmatch(text) else NONE


def _json_integer(type_: pa.DataType) -> Read:
    def read(text: str) -> Any:
        value = _integer(text)
        if type_.bit_width == 8 and value is not NONE and 128 <= value <= 255:
            return value - 256
        return value

    return read


def _java_double(text: str) -> Any:
    match = _JAVA_DOUBLE.fullmatch(text.strip(_BLANKS))
    if match is None:
        return NONE
    if match[2] == "NaN":
        return "NaN"
    try:
        value = float.fromhex(match[4]) if match[4] else float(match[2] or match[3])
    except OverflowError:
        value = float("inf")
    return -value if match[1] == "-" else value


def _single(value: Any) -> Any:
    try:
        return value if value == "NaN" else struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _decimal(text: str) -> Any:
    return Decimal(text) if _DECIMAL.fullmatch(text) else NONE


def _ascii_decimal(text: str) -> Any:
    return _decimal(text) if text.isascii() else NONE


def _grouped_decimal(text: str) -> Any:
    """Ignores commas at any position."""
    return _decimal(text.replace(",", ""))


def _hive_date(text: str) -> Any:
    """Excess days continue into the next month; the ten days that the calendar omitted are read as ten days later."""
    match = _HIVE_DATE.fullmatch(text)
    if match is None:
        return NONE
    year, month, day = map(int, match.groups())
    if not (year >= 1 and 1 <= month <= 12 and 1 <= day <= 31):
        return NONE
    if (1582, 10, 5) <= (year, month, day) <= (1582, 10, 14):
        day += 10
    return _days(date(year, month, 1) + timedelta(days=day - 1))


def _days(day: date) -> int:
    return day.toordinal() - date(1970, 1, 1).toordinal()


def _spark_date(text: str) -> Any:
    match = _SPARK_DATE.fullmatch(text.strip(_BLANKS))
    if match is None:
        return NONE
    year, month, day = (int(part or "1") for part in match.groups())
    shifted = (year % 400) + 400  # the calendar repeats
    try:
        return _days(date(shifted, month, day)) + (year - shifted) // 400 * 146097
    except ValueError:
        return NONE


def _spark_date_or_days(text: str) -> Any:
    """Spark 1.5 wrote dates as days since 1970, and Spark still reads them."""
    value = _spark_date(text)
    return _integer(text) if value is NONE else value


def _lenient_base64(raw: bytes) -> bytes:
    """Returns the text itself if it contains other characters, or decodes to nothing."""
    if not _BASE64.fullmatch(raw):
        return raw
    letters = re.sub(rb"\s", b"", raw).translate(bytes.maketrans(b"-_", b"+/")).partition(b"=")[0]
    letters = letters[: len(letters) - (len(letters) % 4 == 1)]
    return base64.b64decode(letters + b"=" * (-len(letters) % 4)) or raw


def _strict_base64(text: str) -> Any:
    """Decodes groups of four characters; each may be padded like a last one."""
    if not _GROUPS.fullmatch(text):
        return NONE
    return b"".join(base64.b64decode(text[at : at + 4]) for at in range(0, len(text), 4))
