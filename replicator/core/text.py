"""Text that users and servers write, parsed and formatted: quantities, Java properties, Spark SQL, partition filters.

Durations and sizes are as users write them: `10s`, `5m`, `7d`; `500MB`, `10GiB`. Java properties are parsed as
`java.util.Properties` does. Quoting for Spark SQL is the only way to insert names, values and types of tables into a
statement. Pure.
"""

from __future__ import annotations

import calendar
import logging
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from types import TracebackType
from typing import Any

import msgspec

from cmroot.store.spelling import normal, scheme, split_authority

# ---- durations and sizes ---------------------------------------------------------------------------------------------


_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
_UNIT = {unit.lower(): factor for unit, factor in _BYTES.items()}


def parse_duration(text: str) -> timedelta:
    """Parses `500ms`, `10s`, `5m`, `1.5h`, `7d`; a bare number is seconds. Raises ValueError with a readable text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", text.strip(), re.ASCII)
    if not match:
        raise ValueError(f"{text!r} is not a duration such as 10s, 5m or 1h")
    try:
        return timedelta(seconds=float(match[1]) * _SECONDS[match[2] or "s"])
    except OverflowError:
        raise ValueError(f"{text!r} is longer than any duration that can be counted") from None


def parse_size(text: str) -> int:
    """Parses bytes: `500MB` (10^6), `10GiB` (2^30); a bare number is bytes. Raises ValueError with a readable text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip(), re.ASCII)
    factor = _UNIT.get((match[2] or "B").lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a size such as 500MB or 10GiB")
    return int(float(match[1]) * factor)


LEAST_RATE = 100_000


def parse_rate(text: str) -> int:
    """Parses bytes per second: `50MB`, `50MB/s`. Raises ValueError with a readable text, also below LEAST_RATE."""
    rate = parse_size(text.strip().removesuffix("/s"))
    if rate < LEAST_RATE:
        raise ValueError(f"{text!r} is less than 100kB a second")
    return rate


def duration_text(seconds: float) -> str:
    """Formats seconds for users: `45 s`, `12 min`, `5.5 h`, `3.2 d`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"


def bound_text(seconds: float) -> str:
    """Formats an upper bound as `duration_text`, rounded up: `at most 2 min` would be false of 149 s."""
    step = 1 if seconds < 120 else 60 if seconds < 7200 else 360 if seconds < 172_800 else 8640
    return duration_text(math.ceil(round(seconds / step, 6)) * step)


def size_text(size: int) -> str:
    """Formats bytes for users, in binary units: `512 B`, `1.5 GiB`."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    step = min(max(size, 1).bit_length() - 1, 59) // 10
    return f"{size} B" if step == 0 else f"{size / 1024**step:.1f} {units[step]}"


def count_text(number: int, noun: str) -> str:
    """Formats a count: `1 file`, `12,345 files`, `2 entries`, `2 classes`. Of several words the last is inflected."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def time_text(seconds: float | None) -> str | None:
    """Formats seconds since the epoch as UTC, ISO 8601."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


# ---- period ----------------------------------------------------------------------------------------------------------
# Periods: ISO 8601 as java.time parses it (`P3D`, `P2W`, `P1Y2M3DT4H5M6S`, `PT36H`), and their addition to a time.
# Pure.
#
# Any letter case, signs, years and months before days before the time of day. Years, months and days are those of the
# calendar, in the zone of the time that they are added to: the end of a month clamps (31 January + P1M = 28 February),
# and a day across the change to daylight saving time has 23 hours.


_NUMBER = r"([-+]?[0-9]{1,9})"
_PERIOD = re.compile(
    rf"([-+]?)P(?:{_NUMBER}Y)?(?:{_NUMBER}M)?(?:{_NUMBER}W)?(?:{_NUMBER}D)?"
    rf"(?:(T)(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}(?:[.,][0-9]{{0,9}})?S)?)?",
    re.ASCII | re.IGNORECASE,
)
_FIRST, _LAST = 0, 253_402_300_799  # 1970, and the end of the year 9999


@dataclass(frozen=True)
class Period:
    """Months, days and seconds, added in this order. `text`: as written. Fractions of a second are truncated."""

    text: str
    months: int = 0
    days: int = 0
    seconds: int = 0

    @property
    def fixed(self) -> int | None:
        """The length in seconds; None if it depends on the calendar."""
        return None if self.months else self.days * 86_400 + self.seconds

    @property
    def is_positive(self) -> bool:
        return self.end(0) > 0

    def after(self, moment: datetime) -> datetime:
        """Returns `moment` (with a zone) plus this period, clamped to the calendar's first and last timestamp."""
        try:
            year, month = divmod(moment.year * 12 + moment.month - 1 + self.months, 12)
            day = min(moment.day, calendar.monthrange(year, month + 1)[1])
            local = moment.replace(year=year, month=month + 1, day=day) + timedelta(days=self.days)
            return (local.astimezone(UTC) + timedelta(seconds=self.seconds)).astimezone(moment.tzinfo)
        except (ValueError, OverflowError, IndexError):
            forward = self.months * 31 + self.days + self.seconds // 86_400 > 0
            return (datetime.max if forward else datetime.min).replace(tzinfo=UTC)

    def end(self, moment: int) -> int:
        """Returns the end of a period that begins at `moment`, in UTC; both in seconds since 1970, and not negative."""
        later = self.after(datetime.fromtimestamp(min(moment, _LAST), UTC))
        return min(max(int(later.timestamp()), _FIRST), _LAST)


def parse_period(text: str) -> Period:
    """Parses an ISO 8601 period; blanks are not stripped. Raises ValueError with a readable text for any other."""
    match = _PERIOD.fullmatch(text)
    if match:
        sign, years, months, weeks, days, timed, hours, minutes, seconds = match.groups()
        date, time = (years, months, weeks, days), (hours, minutes, seconds)
        if any(date + time) and (not timed or any(time)):
            factor = -1 if sign == "-" else 1
            return Period(
                text,
                factor * (int(years or 0) * 12 + int(months or 0)),
                factor * (int(weeks or 0) * 7 + int(days or 0)),
                factor * (int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)),
            )
    raise ValueError(f"{text!r} is not an ISO 8601 period such as P3D, P2W or PT36H")


# ---- moments ---------------------------------------------------------------------------------------------------------
# Timestamps as written by users: absolute, or relative to now: `-90m`, `-1d`, `yesterday`.


# ---- printable -------------------------------------------------------------------------------------------------------
# Text for terminals: names come from metastores and stores, and a terminal interprets some characters. Pure.
#
# Output for programs (JSON) remains exact, and is never passed through here.


_OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, delete, C1: cursor, colours, titles, new lines
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of writing: would reverse the text that follows
    "\u2028\u2029"  # line and paragraph ends
    "\ud800-\udfff]"  # not characters: bytes of names that are not UTF-8
)
_CONTINUED = "  | "


def printable(text: str) -> str:
    """Returns the text on one line, with all characters escaped that a terminal would interpret instead of display."""
    return _OBEYED.sub(_escaped, text) if _OBEYED.search(text) else text


def printable_lines(text: str) -> str:
    """Returns the same for several lines, marking those after the first: none looks like this program's own."""
    return f"\n{_CONTINUED}".join(map(printable, text.split("\n")))


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # Python's escape of an undecodable byte in a file name
        return f"\\x{code - 0xDC00:02x}"
    short = {9: "\\t", 10: "\\n", 13: "\\r"}.get(code)
    return short or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


class PrintableFormatter(logging.Formatter):
    """A formatter of log lines: one for each record, whatever its names, then the marked lines of a traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        return _CONTINUED + printable_lines(super().formatException(ei))


# ---- Java properties -------------------------------------------------------------------------------------------------


_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS = " \t\f"
_ENTRY = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def decode_properties(data: bytes) -> str:
    """Decodes a file: as UTF-8, as Gobblin does, or else as ISO-8859-1, as Java does."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def property_entries(text: str) -> Iterator[tuple[str, str, int]]:
    """Yields keys, values and their first lines: `key=value`, `key: value` or `key value`, comments with `#` or `!`,
    with escapes decoded and lines continued after a backslash. Raises ValueError naming the line."""
    lines = enumerate(_LINE_END.split(text), 1)
    for number, first in lines:
        line = first.lstrip(_BLANKS)
        if not line or line[0] in "#!":
            continue
        while _goes_on(line):
            _, more = next(lines, (0, ""))
            line = line[:-1] + more.lstrip(_BLANKS)
        match = _ENTRY.match(line)
        assert match
        try:
            yield _unescaped(match[1]), _unescaped(match[2]), number
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error


def _goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    found = _ESCAPE.sub(lambda match: _sign(match[1]), text)
    return found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins surrogate pairs


def _sign(escaped: str) -> str:
    if escaped == "u":
        raise ValueError("\\u without four hexadecimal digits")
    return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _CONTROL.get(escaped, escaped)


# ---- credentials -----------------------------------------------------------------------------------------------------
# Credentials in text: redaction of URLs in user input. Pure.


_CREDENTIALS = re.compile(r"([a-zA-Z][\w+.-]*://)[^\s/@]*:[^\s@]*@[^\s']*")
_QUERY = re.compile(r"(https?://[^\s?'\"]+\?)[^\s'\"]+", re.IGNORECASE)  # signatures, tokens


def without_credentials(text: str) -> str:
    """Returns the text, with URLs that contain user and password reduced to their scheme, and without queries of
    HTTP."""
    text = _CREDENTIALS.sub(r"\1***@...", text) if "@" in text else text
    return _QUERY.sub(r"\1...", text) if "?" in text else text


# ---- queues of buckets -----------------------------------------------------------------------------------------------
# Notification queues of buckets, as written by users. Pure.


def check_queues(queues: Mapping[str, str]) -> None:
    """Checks `queues`, URLs by bucket (`s3://name`). Raises ValueError for an invalid bucket or URL, and if a bucket
    has two queues, or a queue two buckets."""
    for bucket, url in queues.items():
        if scheme(bucket) != "s3" or split_authority(bucket)[1].strip("/") or "://" not in url:
            raise ValueError(f"{bucket}={url} is not a bucket and its queue")
    if len({normal(bucket) for bucket in queues}) < len(queues):
        raise ValueError("one bucket with two queues")
    if len(set(queues.values())) < len(queues):
        raise ValueError("two buckets with one queue")


# ---- Spark SQL -------------------------------------------------------------------------------------------------------


SETTINGS = {
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
}
"""Settings of a session in which quoted text is literal: no `${...}`, no other escapes, no patterns."""

_SCALAR = re.compile(
    r"tinyint|smallint|int|integer|bigint|float|double|real|boolean|binary|date|timestamp(_ntz|_ltz)?"
    r"|string( collate \w+(\.\w+)*)?|(decimal|numeric)(\(\d+(,\s*-?\d+)?\))?|(char|varchar)\(\d+\)|interval[a-z ]*",
    re.ASCII | re.IGNORECASE,
)


def quoted_name(*parts: str) -> str:
    """Returns a name, or several joined by dots, in backticks."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def quoted_text(text: str) -> str:
    """Returns a literal; characters that could end it, begin a variable or are not printable are escaped by number."""
    return "'" + "".join(letter if _is_plain(letter) else _number(letter) for letter in text) + "'"


def _is_plain(letter: str) -> bool:
    return letter.isprintable() and letter not in "'\\$"


def _number(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"


def scalar_type(text: str) -> str:
    """Returns a scalar type unchanged. Raises ValueError for anything else."""
    if not _SCALAR.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is not a scalar type")
    return text


# ---- partition filter ------------------------------------------------------------------------------------------------
# Partition filters of a policy: `day >= '2026-01-01' and hour < 12` as a value, and matching of partitions. Pure.
#
# A filter consists of `key op literal` with op one of = != < <= > >=, joined by `and` and `or`; `and` binds closer. A
# quoted literal is compared as text with the text of the partition's value; a number without quotes is compared as a
# number. As in SQL, a partition without a value (Hive's default partition) matches no condition, except equality with
# this very name. A value that is not a number matches no numeric condition.


_DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CONDITION = re.compile(
    r"""\s*(?P<key>\w+)\s*(?P<op><=|>=|!=|=|<|>)\s*
    (?:'(?P<single>(?:[^']|'')*)'|"(?P<double>(?:[^"]|"")*)"|(?P<number>[+-]?\d+(?:\.\d+)?)(?![\w.]))\s*""",
    re.VERBOSE,
)
_JOINED = re.compile(r"(?:and|(?P<or>or))\b", re.IGNORECASE)


class Condition(msgspec.Struct, frozen=True):
    """A condition `key op text`; `numeric`: the literal is a number and is compared as one. `key` is lower-case."""

    key: str
    op: str
    text: str
    numeric: bool = False

    def matches(self, value: str) -> bool:
        if not value or value == _DEFAULT_PARTITION:
            return self.op == "=" and self.text == _DEFAULT_PARTITION
        compare = _OPERATORS[self.op]
        if not self.numeric:
            return compare(value, self.text)
        number = _numeric_literal(value)
        return number is not None and compare(number, Decimal(self.text))


class PartitionFilter(msgspec.Struct, frozen=True):
    """A disjunction of alternatives; all conditions of one alternative must hold. `text`: as written."""

    text: str
    alternatives: tuple[tuple[Condition, ...], ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The partition keys that it refers to, each once."""
        return tuple(dict.fromkeys(condition.key for each in self.alternatives for condition in each))

    def unknown_keys(self, keys: Sequence[str]) -> list[str]:
        """Returns keys of the filter that a table with these partition keys does not have."""
        having = {key.lower() for key in keys}
        return [key for key in self.keys if key not in having]

    def matches(self, keys: Sequence[str], values: Sequence[str]) -> bool:
        """Returns True if a partition matches. `values` are unescaped, in the order of `keys`. Raises KeyError for a
        key of the filter that the table does not have: the caller checks `unknown_keys` once per table."""
        value = dict(zip((key.lower() for key in keys), values, strict=True))
        return any(all(condition.matches(value[condition.key]) for condition in each) for each in self.alternatives)


def parse_partition_filter(text: str) -> PartitionFilter:
    """Parses a filter. Raises ValueError with a readable text for anything else than joined conditions."""
    alternatives: list[list[Condition]] = [[]]
    place = 0
    while True:
        match = _CONDITION.match(text, place)
        if match is None:
            rest = text[place:].strip() or "its end"
            raise ValueError(f"{text!r} cannot be read at {rest!r}: write conditions such as day >= '2026-01-01'")
        alternatives[-1].append(_condition(match))
        place = match.end()
        if place == len(text):
            return PartitionFilter(text, tuple(map(tuple, alternatives)))
        joined = _JOINED.match(text, place)
        if joined is None:
            raise ValueError(f"{text!r} cannot be read at {text[place:]!r}: conditions are joined by `and` and `or`")
        if joined["or"]:
            alternatives.append([])
        place = joined.end()


def _condition(match: re.Match[str]) -> Condition:
    key, op = match["key"].lower(), match["op"]
    if match["number"] is not None:
        return Condition(key, op, match["number"], numeric=True)
    if match["single"] is not None:
        return Condition(key, op, match["single"].replace("''", "'"))
    return Condition(key, op, match["double"].replace('""', '"'))


def _numeric_literal(text: str) -> Decimal | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
