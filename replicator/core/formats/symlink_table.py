"""Symlink text tables: each line of their files names a file or directory, of another table, that has the rows.

Hive reads a line up to its break as Hadoop's path: blanks at its end and `%20` are parts of names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replicator.core.formats.interface import Loading, TableFile, TableFormat

UNTRANSLATED = "a table of symbolic links: its files name the source's files"  # of releases that translated none
NOT_TEXT = "in text that is not UTF-8"  # in place of a location
SHOWN = 500  # characters of a line that a report names

_LINE = re.compile(r"[^\r\n]+")


@dataclass(frozen=True)
class SymlinkTable(TableFormat):
    """The format."""

    def names_places(self, path: str) -> bool:
        return not any(name.startswith("_") for name in path.split("/"))

    def waits(self, path: str) -> bool:
        return self.names_places(path)

    def publish(self, files: Sequence[TableFile], load: Loading) -> None:
        for file in files:
            load.place(file)

    def translated_places(self, data: bytes, move: Callable[[str], str | None]) -> tuple[bytes, str]:
        left = ""

        def line(found: re.Match[str]) -> str:
            nonlocal left
            place = found[0]
            if place.isspace():
                return place
            now = None if {".", ".."} & set(place.split("/")) else move(place)  # readers resolve `..`
            left = left or ("" if now is not None else place[:SHOWN])
            return place if now is None else now

        try:
            return _LINE.sub(line, data.decode()).encode(), left
        except UnicodeDecodeError:
            return data, NOT_TEXT


SYMLINK = SymlinkTable(
    "symlink",
    "a table of symbolic links",
    "symbolic links",
    readers=("org.apache.hadoop.hive.ql.io.symlinktextinputformat.",),
    no_purge="a table of symbolic links: its rows are other tables' files, so erase them there",
    special=True,
    lists_places=True,
)
