"""File names that are not UTF-8, which logs, dumps, Spark and the metastore cannot contain. Python reads such bytes as
lone surrogates, which no encoder takes.

Such a file is never data of ours to replicate: it is named in reports and left out. Where we remove one ourselves, its
bytes are kept like any others, and its record has the name as `shown` gives it.
"""

from __future__ import annotations

import os
import re

UNSAFE = r"(^|/)\.{0,2}(/|$)|\x00"
"""A relative path that may lead elsewhere has an empty part, `.` or `..`, at its begin, between slashes, at its end."""

unsafe = re.compile(UNSAFE.replace("$", r"\Z")).search
"""Finds `UNSAFE` in a relative path; None: it stays below what it is joined to."""


def is_text(name: str) -> bool:
    """Whether a name, as the operating system gave it, is UTF-8."""
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(name: str) -> str:
    """A name or path as text: bytes that are not UTF-8 as `\\xNN`. What is text stays as it is."""
    try:
        return name if is_text(name) else os.fsencode(name).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half a pair of UTF-16, as JSON may have one, stands for no byte
        return name.encode("utf-8", "backslashreplace").decode()
