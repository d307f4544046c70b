"""Files as rows: a Spark DataFrame built from their description. Values that do not fit are refused by column, with an
example, before any row is copied."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cmroot.store.place import Place, join
from replicator.core.text import SETTINGS, quoted_name, quoted_text
from replicator.errors import SourceRefused
from replicator.ingestion.files.description import Description, fitted, read_as, types_of
from replicator.ingestion.reading.source_errors import give_drivers
from replicator.lifecycle.purge.ids import hadoop_place

DAY = "day"
"""The column, or the partition key, of rows from a directory for each day."""

CORRUPT = "_corrupt_record"

LARGEST = 256 << 20
"""Maximum bytes of a binary file, whose content is one value."""


def rows_of(session: Any, directory: Place, paths: Sequence[str], description: Description, avro: Path | None) -> Any:
    """Returns the files' rows, and the day of their directory as `day`, if each day has one. paths: of directories or
    files, relative to the table's. avro: the jar of Spark's reader. Raises SourceRefused and TypeRefused."""
    for key, value in {**SETTINGS, "spark.sql.session.timeZone": "UTC"}.items():
        session.conf.set(key, value)
    if avro is not None:
        give_drivers(session, [avro])
    found = _read(session, [hadoop_place(join(str(directory), path)) for path in paths], description)
    _refuse_corrupt(found, directory)
    day = [] if description.days is None else [f"{_day(directory, description)} AS {DAY}"]
    return found.selectExpr("*", *day).drop(CORRUPT, "_metadata")


def _read(session: Any, places: list[str], description: Description) -> Any:
    reader = session.read.format("binaryFile" if description.format == "binary" else description.format)
    for key, value in _options(description).items():
        reader = reader.option(key, value)
    if description.columns:
        types = types_of(session, description.columns)
        read = [
            f"{quoted_name(each.name)} {read_as(type_, description.format)}"
            for each, type_ in zip(description.columns, types, strict=True)
        ]
        texts = reader.schema(", ".join([*read, f"{CORRUPT} string"])).load(places)
        return fitted(texts, description, types, (CORRUPT, "_metadata"))
    rows = reader.load(places)
    return _with_values(session, rows, description) if description.format == "binary" else rows


def _options(description: Description) -> dict[str, str]:
    given = {"recursiveFileLookup": "true", "columnNameOfCorruptRecord": CORRUPT}
    if description.format in ("parquet", "orc"):
        return {**given, "mergeSchema": "true"}
    if description.format == "csv":
        return {
            **given,
            "sep": description.delimiter,
            "quote": description.quote,
            "escape": description.escape or description.quote,
            "header": str(description.header).lower(),
            "encoding": description.encoding,
            "nullValue": description.null,
            "emptyValue": description.null,
            "multiLine": str(description.multiline).lower(),
            "maxCharsPerColumn": "-1",
            "columnPruning": "false",  # else the number of fields is not checked
        }
    if description.format == "json":
        return {**given, "multiLine": str(description.multiline).lower(), "encoding": description.encoding}
    return {**given, "rowTag": description.row} if description.format == "xml" else given


def _day(directory: Place, description: Description) -> str:
    assert description.days is not None
    home = "/".join(str(directory).rstrip("/").split("/")[-2:])
    pattern = quoted_text(f"^.*?/{home}/{description.days.pattern}/.*")  # the first match: names below it are arbitrary
    year, month, day = (f"regexp_extract(_metadata.file_path, {pattern}, {n})" for n in description.days.order)
    return f"CAST(concat_ws('-', {year}, {month}, {day}) AS date)"


def _with_values(session: Any, files: Any, description: Description) -> Any:
    """Returns binary files with their descriptive values. Raises SourceRefused for a file without a description, and
    for one that is too large."""
    rows = files.selectExpr(
        "element_at(split(path, '/'), -1) AS name",
        "modificationTime AS modified",
        "length AS size",
        "sha2(content, 256) AS sha256",
        "content",
        "_metadata",
    )
    if large := rows.where(f"size > {LARGEST}").select("name").first():
        raise SourceRefused(
            f"{large[0]} has more than {LARGEST:,} bytes", hint="a value of a column is no place for it"
        )
    keys = sorted({key for each in (description.values, *description.files.values()) for key in each})
    said = [(name, *map(each.get, keys)) for name, each in sorted(description.files.items())]
    schema = ", ".join(f"{quoted_name(each)} string" for each in ("name", *(f"of {key}" for key in keys)))
    known = session.createDataFrame(said, schema)
    if not description.values and (strange := rows.join(known, "name", "left_anti").select("name").first()):
        raise SourceRefused(f"nothing describes the file {strange[0]}", hint="name it in `files` of the description")
    return rows.join(known, "name", "left").selectExpr(
        *rows.columns, *(f"{_value(description, key)} AS {quoted_name(key)}" for key in keys)
    )


def _value(description: Description, key: str) -> str:
    """Returns SQL for a value of the file itself, otherwise the default for all files."""
    own = quoted_name(f"of {key}")
    return f"coalesce({own}, {quoted_text(description.values[key])})" if key in description.values else own


def _refuse_corrupt(rows: Any, directory: Place) -> None:
    if CORRUPT not in rows.columns:
        return
    others = [each for each in rows.columns if each not in (CORRUPT, "_metadata")]
    if not others:
        file = rows.selectExpr("_metadata.file_name").first()
        told = f"{directory}: no row can be read" + (f", such as those of {file[0]}" if file else "")
        raise SourceRefused(told, hint="check the format that the description says")
    bad = f"{CORRUPT} IS NOT NULL"
    asked = (f"first(CASE WHEN {bad} THEN {each} END, true)" for each in ("_metadata.file_name", CORRUPT))
    read = (f"count({quoted_name(each)})" for each in others)  # else Spark parses no value, and detects no bad row
    count, file, example, *_ = rows.selectExpr(f"count_if({bad})", *asked, *read).first()
    if count:
        raise SourceRefused(
            f"{directory}: {count:,} rows are not as described, such as {example[:80]!r} in {file}",
            hint="correct them, or the description",
        )
