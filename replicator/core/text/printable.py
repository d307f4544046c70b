"""Text for people: names come from metastores and stores, and a terminal obeys some characters. Pure.

What is written for programs (JSON) stays exact, and never passes here.
"""

from __future__ import annotations

import logging
import re
from types import TracebackType

_OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, delete, C1: cursor, colours, titles, new lines
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of writing: what follows reads backwards
    "\u2028\u2029"  # line and paragraph ends
    "\ud800-\udfff]"  # no characters: bytes of names that are not UTF-8
)
_CONTINUED = "  | "


def printable(text: str) -> str:
    """The text on one line, with everything escaped that a terminal would obey instead of show."""
    return _OBEYED.sub(_escaped, text) if _OBEYED.search(text) else text


def printable_lines(text: str) -> str:
    """The same for a text of several lines: those after the first are marked, so that none of them passes for ours."""
    return f"\n{_CONTINUED}".join(map(printable, text.split("\n")))


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # as Python reads bytes of a file's name
        return f"\\x{code - 0xDC00:02x}"
    short = {9: "\\t", 10: "\\n", 13: "\\r"}.get(code)
    return short or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


class PrintableFormatter(logging.Formatter):
    """Log lines: one for each record, whatever names are in it; the lines of a traceback follow, marked."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        return _CONTINUED + printable_lines(super().formatException(ei))
