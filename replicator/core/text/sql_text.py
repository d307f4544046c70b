"""Quoting for Spark SQL: the only way to insert names, values and types of tables into a statement. Pure."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

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
        raise ValueError(f"{text[:80]!r} is no type of single values")
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
