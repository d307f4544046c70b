"""`_description.json`: what the files in a table's directory of a drop zone are. Whoever fills the directory writes it.

{"format": "csv", "delimiter": ";", "columns": [{"name": "id", "type": "bigint"}, {"name": "born", "type": "date"}]}
"""

from __future__ import annotations

import os
import re
from typing import Literal

import msgspec

from cmroot.store.place import Place, is_local
from replicator.core.model import Value
from replicator.core.text.quantity import parse_duration
from replicator.core.text.sql_text import scalar_type
from replicator.errors import SourceMissing, SourceRefused

FILE = "_description.json"
"""Beside the files; Spark reads no file whose name begins so."""

LARGEST = 16 << 20
"""Bytes of a description."""

FileFormat = Literal["csv", "json", "avro", "parquet", "orc", "xml", "binary"]

_ENCODINGS = ("UTF-8", "US-ASCII", "ISO-8859-1", "UTF-16", "UTF-16BE", "UTF-16LE")
_NESTED = re.compile(r"[\w<>:,() ]{1,2000}", re.ASCII)
_TIME = re.compile(r"date|timestamp(_ntz|_ltz)?", re.IGNORECASE)
_LAYOUT = re.compile(r"(?:[\w=.-]|%[Ymd]|/(?!/))+", re.ASCII)


class FileColumn(Value, frozen=True, forbid_unknown_fields=True):
    """type: in the words of Hive and Spark. format: of a date or time, as Spark's patterns are written."""

    name: str
    type: str = "string"
    format: str | None = None


class Days(Value, frozen=True, forbid_unknown_fields=True):
    """A directory for each day. layout: its name below the table's directory, with %Y, %m and %d, in UTC. lateness: how
    long after its end a day stays open. watermark: a file below the table's directory that says, as an ISO time, up to
    when the sink has written; None: up to now."""

    layout: str = "year=%Y/month=%m/day=%d"
    lateness: str = "0s"
    watermark: str | None = None

    @property
    def pattern(self) -> str:
        """A regular expression of the layout; groups: year, month, day, in the order of `order`."""
        text = re.escape(self.layout).replace("%Y", r"([0-9]{4})")
        return text.replace("%m", r"([0-9]{2})").replace("%d", r"([0-9]{2})")

    @property
    def order(self) -> tuple[int, int, int]:
        """The numbers of the groups of year, month and day."""
        found = re.findall("%([Ymd])", self.layout)
        return found.index("Y") + 1, found.index("m") + 1, found.index("d") + 1


class Description(Value, frozen=True, forbid_unknown_fields=True):
    """columns: needed for csv; for json and xml: all of them, where they shall not be inferred. delimiter, quote,
    escape, header, encoding, null: of csv; null: the text that stands for NULL. multiline: a value of csv may have line
    breaks; a file of json is one document. row: the tag of a row in xml. values: what describes binary files, all of
    them; files: or one, by its name. days: where a sink fills a directory for each day."""

    format: FileFormat
    columns: tuple[FileColumn, ...] = ()
    delimiter: str = ","
    quote: str = '"'
    escape: str | None = None
    header: bool = True
    encoding: str = "UTF-8"
    null: str = ""
    multiline: bool = False
    row: str = ""
    values: dict[str, str] = msgspec.field(default_factory=dict)
    files: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    days: Days | None = None


def refuse_link(place: Place) -> None:
    """Raises SourceRefused for a symbolic link: who wrote it may not read what it leads to."""
    if is_local(str(place)) and os.path.islink(place.local):
        raise SourceRefused(f"{place} is a symbolic link", hint="copy the file; links are not followed")


def read_description(directory: Place) -> Description:
    """Of a table's directory. Raises SourceMissing without one, SourceRefused naming what is wrong in it."""
    place = directory / FILE
    about = str(place)
    refuse_link(place)
    child = place.child()
    if child is None or child.is_directory:
        raise SourceMissing(
            f"{directory} has no {FILE}",
            hint='describe its files, such as {"format": "csv", "columns": [{"name": "id", "type": "bigint"}]}',
        )
    if child.size > LARGEST:
        raise SourceRefused(f"{about}: has {child.size:,} bytes", hint=f"write up to {LARGEST:,}")
    try:
        found = msgspec.json.decode(place.read_bytes(), type=Description)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SourceRefused(f"{about}: {error}", hint="docs/ingestion.md has all fields") from error
    _check(found, about)
    return found


def _check(found: Description, about: str) -> None:
    def refuse(told: str, hint: str) -> None:
        raise SourceRefused(f"{about}: {told}", hint=hint)

    if found.format == "csv" and not found.columns:
        refuse("csv has no columns", "name them with their types, in their order")
    if found.format == "xml" and not found.row:
        refuse("xml has no row", "name the tag of a row")
    if found.format == "binary" and not (found.values or found.files):
        refuse("nothing describes the files", "give `values` for all of them, or `files` by their names")
    if found.columns and found.format not in ("csv", "json", "xml"):
        refuse(f"{found.format} has its own columns", "leave them out")
    for name in ("delimiter", "quote"):
        if len(getattr(found, name).encode()) != 1:
            refuse(f"{name} is not one letter", "csv has one, of ASCII")
    if found.escape is not None and len(found.escape.encode()) != 1:
        refuse("escape is not one letter", "leave it out where a quote is doubled")
    if found.encoding.upper() not in _ENCODINGS:
        refuse(f"encoding {found.encoding[:40]!r}", f"one of {', '.join(_ENCODINGS)}")
    for column in found.columns:
        _check_column(found, column, about)
    if found.days is not None:
        _check_days(found.days, about)


def _check_column(found: Description, column: FileColumn, about: str) -> None:
    try:
        if found.format == "csv":
            scalar_type(column.type)
        elif not _NESTED.fullmatch(column.type):
            raise ValueError(f"{column.type[:80]!r} is no type")
    except ValueError as error:
        raise SourceRefused(f"{about}: column {column.name}: {error}", hint="write a type of Hive") from error
    if column.format is not None and not _TIME.fullmatch(column.type):
        raise SourceRefused(f"{about}: column {column.name}: a format of {column.type[:80]}", hint="leave it out")
    if re.search(r"(?<![.,S])S{7}", column.format or ""):
        told = f"{about}: column {column.name}: nothing is before more than six digits of a second"
        raise SourceRefused(told, hint="write a point before them, or six: times have microseconds")
    if not column.name.strip():
        raise SourceRefused(f"{about}: a column has no name", hint="name it")


def _check_days(days: Days, about: str) -> None:
    if not _LAYOUT.fullmatch(days.layout) or ".." in days.layout or days.layout.startswith("/"):
        raise SourceRefused(f"{about}: layout {days.layout[:80]!r}", hint='write it as "year=%Y/month=%m/day=%d"')
    if sorted(re.findall("%([Ymd])", days.layout)) != ["Y", "d", "m"]:
        raise SourceRefused(f"{about}: the layout has not %Y, %m and %d once each", hint="a day has a directory")
    try:
        parse_duration(days.lateness)
    except ValueError as error:
        raise SourceRefused(f"{about}: lateness: {error}", hint="write a duration such as 2h") from error
    if days.watermark is not None and not re.fullmatch(r"_?[\w-][\w.-]*", days.watermark, re.ASCII):
        raise SourceRefused(f"{about}: watermark {days.watermark[:80]!r}", hint="name a file beside the description")
