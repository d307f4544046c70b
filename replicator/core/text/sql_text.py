"""Foreign text in Spark's SQL: the only way that names, values and types of tables come into a statement. Pure."""

from __future__ import annotations

import re

SETTINGS = {
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
}
"""Of a session in which quoted text is just text: no `${...}`, no other escapes, no patterns."""

_SCALAR = re.compile(
    r"tinyint|smallint|int|integer|bigint|float|double|real|boolean|binary|date|timestamp(_ntz|_ltz)?"
    r"|string( collate \w+(\.\w+)*)?|(decimal|numeric)(\(\d+(,\s*-?\d+)?\))?|(char|varchar)\(\d+\)|interval[a-z ]*",
    re.ASCII | re.IGNORECASE,
)


def quoted_name(*parts: str) -> str:
    """A name, or several with dots between: in backticks."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def quoted_text(text: str) -> str:
    """A literal; what could end it, begin a variable or not be printed goes in as its number."""
    return "'" + "".join(letter if _is_plain(letter) else _number(letter) for letter in text) + "'"


def _is_plain(letter: str) -> bool:
    return letter.isprintable() and letter not in "'\\$"


def _number(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"


def scalar_type(text: str) -> str:
    """A type without parts, as it is. Raises ValueError for anything else."""
    if not _SCALAR.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is no type of single values")
    return text
