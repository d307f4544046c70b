"""File names that are not UTF-8, which logs, dumps, Spark and the metastore cannot contain. Python reads their bytes as
lone surrogates, which cannot be encoded.

Such a file is never table data: it is reported by name and skipped. When the replicator removes such a file, its bytes
are retained like those of any other file, and its record contains the name in the form returned by `shown`.
"""

from __future__ import annotations

import os
import re

UNSAFE = r"(^|/)\.{0,2}(/|$)|\x00"
"""Matches a relative path that may lead outside: one with an empty part, `.` or `..`, at any position."""

unsafe = re.compile(UNSAFE.replace("$", r"\Z")).search
"""Finds `UNSAFE` in a relative path; None: the path stays below the directory it is joined to."""


def is_text(name: str) -> bool:
    """Returns True if a name, as returned by the operating system, is UTF-8."""
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(name: str) -> str:
    """Returns a name or path as text: bytes that are not UTF-8 become `\\xNN`, valid text is unchanged."""
    try:
        return name if is_text(name) else os.fsencode(name).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a lone UTF-16 surrogate, which JSON may contain, encodes no byte
        return name.encode("utf-8", "backslashreplace").decode()
