"""Java properties as `java.util.Properties` reads them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS = " \t\f"
_ENTRY = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def decoded(data: bytes) -> str:
    """The text of a file: UTF-8 as Gobblin reads it, and where it is none ISO-8859-1, as Java does."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def entries(text: str) -> Iterator[tuple[str, str, int]]:
    """Keys, values and the lines they begin at: `key=value`, `key: value` or `key value`, comments with `#` or `!`,
    escapes undone, lines that go on after a backslash. Raises ValueError naming the line."""
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
    return found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # halves of a letter become one


def _sign(escaped: str) -> str:
    if escaped == "u":
        raise ValueError("\\u without four hexadecimal digits")
    return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _CONTROL.get(escaped, escaped)
