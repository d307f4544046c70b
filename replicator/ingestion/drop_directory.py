"""A table's directory in a drop zone: a snapshot of its files, which of its days are closed, and its rows as a Spark
DataFrame built from their description.

The content is untrusted: names are treated as plain names, and symbolic links are refused, because they would expose
files that the writer may not read. Values that do not fit are refused by column, with an example, before any row is
copied.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from pathlib import Path
from secrets import token_hex
from typing import Any

from cmroot.store.local import Child
from cmroot.store.place import Place, join, located, name_of
from cmroot.store.spelling import hadoop_place
from replicator.core.source_config import SourceConfig
from replicator.core.text import SETTINGS, parse_duration, quoted_name, quoted_text
from replicator.errors import ConfigError, Error, SourceMissing, SourceRefused
from replicator.ingestion.file_description import (
    Days,
    Description,
    Type,
    digits,
    fitted,
    read_as,
    refuse_link,
    types_of,
)
from replicator.ingestion.reading.source_errors import give_drivers
from replicator.metastore.embedded.distributions import Artifact, fetch
from replicator.metastore.java import cache_directory, find_java

MOST = 100_000
"""Maximum files of one job: their names are held in memory. More files must be packed, or landed by day."""

DEEPEST = 32
"""Maximum nesting depth of directories."""

_HIDDEN, _COPYING = ("_", "."), "._COPYING_"  # the second: incomplete files of `hdfs dfs -put`


class SourceChanged(Error):
    """Files were added, removed or extended while they were read."""

    exit_code = 75
    transient = True


@dataclass(frozen=True)
class Listing:
    """names: of files to land, relative to the table's directory, in order; bytes: their total size. digest: of names,
    sizes and times of all files, including those of landed days. days: the digests of the closed days to land, by
    "YYYY-MM-DD"; empty if the directory has no days. open: number of days that are not closed."""

    names: tuple[str, ...]
    bytes: int
    digest: str
    days: dict[str, str] = field(default_factory=dict)
    open: int = 0


def table_directory(path: str, schema: str, table: str) -> Place:
    """Returns the directory of a table in a drop zone. Raises SourceMissing without one, SourceRefused for a link."""
    place = located(path)
    for name in (schema, table):
        if not re.fullmatch(r"\w+", name, re.ASCII):
            raise SourceMissing(f"{name!r} is not a valid directory name", hint="use letters, digits and underscores")
        place = place / name
        refuse_link(place)
    child = place.child()
    if child is None or not child.is_directory:
        raise SourceMissing(
            f"directory {place} does not exist", hint="files of SCHEMA.TABLE are expected in SCHEMA/TABLE"
        )
    return place


def listing_of(
    directory: Place, description: Description, now: datetime, landed: Mapping[str, str] | None = None
) -> Listing:
    """Lists the files to land. landed: digests of days that are skipped if unchanged. Raises SourceRefused for links
    and for too many files to land, SourceMissing if the watermark is missing."""
    days = description.days
    until = _written_until(directory, days, now) if days else now
    names, total, digest, closed, opened = list[str](), 0, _Digest(), dict[str, str](), 0
    # a day is one directory, so its files are consecutive
    for day, files in groupby(_files(directory, "", 0), lambda file: _day_of(directory, days, file[0])):
        if days is not None and day is not None and not _is_closed(day, days, until):
            opened += 1
            continue
        mine, size, own = list[str](), 0, _Digest()
        for name, child in files:
            own.add(name, child)
            digest.add(name, child)
            mine.append(name)
            size += child.size
            _refuse_many(directory, mine, days)
        if day is not None:
            if (landed or {}).get(str(day)) == own.text:
                continue
            closed[str(day)] = own.text
        names += mine
        total += size
        _refuse_many(directory, names, days)
    return Listing(tuple(sorted(names)), total, digest.text, dict(sorted(closed.items())), opened)


def _refuse_many(directory: Place, names: Sequence[str], days: Days | None) -> None:
    if len(names) > MOST:
        by_day = "advance the sink's watermark day by day"
        hint = f"pack them into fewer files, or {by_day if days else 'write a directory for each day'}"
        raise SourceRefused(f"{directory} has more than {MOST:,} files to land", hint=hint)


def _day_of(directory: Place, days: Days | None, name: str) -> date | None:
    if days is None:
        return None
    day = day_of(days, name)
    if day is None:
        raise SourceRefused(
            f"{directory}/{name} is not in a directory of a day", hint=f"the layout of days is {days.layout}"
        )
    return day


def day_of(days: Days, name: str) -> date | None:
    """Returns the day of a file, by its name below the table's directory; None if it has none."""
    found = re.match(days.pattern + "/", name)
    if not found:
        return None
    try:
        return date(*(int(found[group]) for group in days.order))
    except ValueError:
        return None


def directory_of(days: Days, day: str) -> str:
    """Returns the directory of a day, relative to the table's."""
    year, month, number = day.split("-")
    return days.layout.replace("%Y", year).replace("%m", month).replace("%d", number)


def _is_closed(day: date, days: Days, until: datetime) -> bool:
    end = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
    return end + parse_duration(days.lateness) <= until


def _written_until(directory: Place, days: Days, now: datetime) -> datetime:
    if days.watermark is None:
        return now
    place = directory / days.watermark
    refuse_link(place)
    child = place.child()
    if child is None or child.is_directory or child.size > 100:
        raise SourceMissing(
            f"watermark file {place} is missing", hint="the sink writes a time to it, such as 2026-01-31T12:00:00Z"
        )
    try:
        found = datetime.fromisoformat(place.read_bytes().decode().strip())
    except (ValueError, UnicodeDecodeError) as error:
        raise SourceRefused(f"{place}: {error}", hint="write an ISO time such as 2026-01-31T12:00:00Z") from error
    return min(now, found if found.tzinfo else found.replace(tzinfo=UTC))


def _files(directory: Place, below: str, depth: int) -> Iterator[tuple[str, Child]]:
    """Yields files that Spark would read, with their names relative to the table's directory."""
    if depth > DEEPEST:
        raise SourceRefused(f"{directory}: directories are nested too deeply", hint=f"at most {DEEPEST} levels")
    for child in directory.children():
        name = name_of(child.path)
        if name.startswith(_HIDDEN) or name.endswith(_COPYING):
            _refuse_what_spark_reads(directory, name, child.is_directory)
            continue
        place = directory / name
        refuse_link(place)
        if child.is_directory:
            yield from _files(place, f"{below}{name}/", depth + 1)
        else:
            yield f"{below}{name}", child


def _refuse_what_spark_reads(directory: Place, name: str, is_directory: bool) -> None:
    """Raises SourceRefused for names that are hidden here, but not to Spark (`HadoopFSUtils.shouldFilterOutPathName`):
    such files would be neither checked for links nor counted."""
    summary = is_directory and name.startswith(("_metadata", "_common_metadata"))
    if summary or (name.startswith("_") and "=" in name and not name.endswith(_COPYING)):
        raise SourceRefused(
            f"{directory / name} has an ambiguous name: hidden to ingestion, but not to Spark",
            hint="names of files not to be read yet begin with _ and contain no =",
        )


class _Digest:
    """A digest of files, independent of their order."""

    def __init__(self) -> None:
        self._sum = 0

    def add(self, name: str, child: Child) -> None:
        said = f"{name}\0{child.size}\0{child.mtime}".encode("utf-8", "surrogateescape")
        self._sum = (self._sum + int.from_bytes(hashlib.blake2s(said, digest_size=16).digest(), "big")) % (1 << 128)

    @property
    def text(self) -> str:
        return f"{self._sum:032x}"


# ---- files as rows ---------------------------------------------------------------------------------------------------


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
    if description.format == "json":
        return _exact(reader, places, rows, exact_texts=_is_utf8(description))
    return _with_values(session, rows, description) if description.format == "binary" else rows


EXACT = "decimal(38,18)"
"""The type of numbers that a double would round, as of `numeric` without digits in a database."""


def _is_utf8(description: Description) -> bool:
    """Returns True if Spark's reader of JSON can read the files without an encoding. With one, it reads a number as the
    text of its double."""
    return description.encoding.upper() in ("UTF-8", "US-ASCII")


def _exact(reader: Any, places: list[str], rows: Any, *, exact_texts: bool) -> Any:
    """Returns the rows of JSON with types by which no number is rounded: of a column whose inferred type has a double,
    the doubles are `EXACT` if one of its numbers has more digits than a double, and texts if one does not fit that.
    exact_texts: False: numbers cannot be read as exact texts, and all doubles are `EXACT`; sums are compared later."""
    schema = rows.schema.jsonValue()
    inferred = {each["name"]: each["type"] for each in schema["fields"]}
    with_doubles = [name for name, type_ in inferred.items() if _retyped(type_, "string") != type_]
    if not with_doubles:
        return rows
    if not exact_texts:
        exact = {name: _retyped(type_, EXACT) for name, type_ in inferred.items()}
        return reader.schema(_schema(rows, exact)).load(places)
    read = {name: _retyped(type_, "string") for name, type_ in inferred.items()}
    texts = reader.schema(_schema(rows, read)).load(places)
    asked = [
        f"count({_changed(quoted_name(name), inferred[name], kind, 0)})"
        for name in with_doubles
        for kind in ("double", EXACT)
    ]
    counts = texts.selectExpr(*asked).first()
    wanted = dict(inferred)
    for at, name in enumerate(with_doubles):
        if counts[2 * at]:
            wanted[name] = _retyped(inferred[name], "string" if counts[2 * at + 1] else EXACT)
    return rows if wanted == inferred else reader.schema(_schema(rows, wanted)).load(places)


def _schema(rows: Any, types: Mapping[str, Any]) -> Any:
    """Returns the schema of rows with other types."""
    found = rows.schema.jsonValue()
    return type(rows.schema).fromJson(
        {**found, "fields": [{**each, "type": types[each["name"]]} for each in found["fields"]]}
    )


def _retyped(type_: Type, number: str) -> Type:
    """Returns a type, in Spark's JSON, with another one instead of each double."""
    if isinstance(type_, str):
        return number if type_ == "double" else type_
    if type_["type"] == "struct":
        fields = [{**each, "type": _retyped(each["type"], number)} for each in type_["fields"]]
        return {**type_, "fields": fields}
    return {**type_, "elementType": _retyped(type_["elementType"], number)}  # JSON has no maps


def _changed(at: str, type_: Type, number: str, depth: int) -> str:
    """Returns SQL for the first text at a path that another type than text would change; NULL: none."""
    if isinstance(type_, str):
        return f"CASE WHEN {_rounds(at, number)} THEN {at} END" if type_ == "double" else "CAST(NULL AS string)"
    if type_["type"] == "struct":
        fields = (
            _changed(f"{at}.{quoted_name(each['name'])}", each["type"], number, depth) for each in type_["fields"]
        )
        return f"coalesce({', '.join(['CAST(NULL AS string)', *fields])})"
    one = f"x{depth}"
    each = f"transform({at}, {one} -> {_changed(one, type_['elementType'], number, depth + 1)})"
    return f"get(filter({each}, {one} -> {one} IS NOT NULL), 0)"


def _rounds(text: str, number: str) -> str:
    """Returns SQL that is true if a number type would change the digits of a text. A double has any 15 digits."""
    made = f"try_cast({text} AS {number})"
    if number != "double":
        return f"NOT {digits(text)} <=> {digits(f'CAST({made} AS string)')}"
    return (
        f"length({digits(text)}) > 15 OR NOT coalesce(abs({made}) < double('infinity'), {text} IS NULL)"
        f" OR ({made} = 0 AND {digits(text)} <> '')"
    )


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
            **_nulls_of(description),
            "multiLine": str(description.multiline).lower(),
            "maxCharsPerColumn": "-1",
            "columnPruning": "false",  # else the number of fields is not checked
        }
    if description.format == "json":
        given["multiLine"] = str(description.multiline).lower()
        return given if _is_utf8(description) else {**given, "encoding": description.encoding}
    return {**given, "rowTag": description.row} if description.format == "xml" else given


def _nulls_of(description: Description) -> dict[str, str]:
    """Returns the texts that Spark reads for an empty field and for "". A field is NULL if it equals the first: if ""
    is a text and an empty field is NULL, one that no field of a file has."""
    if description.quoted_empty == "null":
        return {"nullValue": description.null, "emptyValue": description.null}
    return {"nullValue": description.null or token_hex(16), "emptyValue": ""}


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
            f"{large[0]} has more than {LARGEST:,} bytes", hint="a file of this size cannot be the value of a column"
        )
    keys = sorted({key for each in (description.values, *description.files.values()) for key in each})
    said = [(name, *map(each.get, keys)) for name, each in sorted(description.files.items())]
    schema = ", ".join(f"{quoted_name(each)} string" for each in ("name", *(f"of {key}" for key in keys)))
    known = session.createDataFrame(said, schema)
    if not description.values and (strange := rows.join(known, "name", "left_anti").select("name").first()):
        raise SourceRefused(f"file {strange[0]} has no description", hint="name it in `files` of the description")
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
        told = f"{directory}: no row can be read" + (f", such as those of file {file[0]}" if file else "")
        raise SourceRefused(told, hint="check `format` of the description")
    bad = f"{CORRUPT} IS NOT NULL"
    asked = (f"first(CASE WHEN {bad} THEN {each} END, true)" for each in ("_metadata.file_name", CORRUPT))
    read = (f"count({quoted_name(each)})" for each in others)  # else Spark parses no value, and detects no bad row
    count, file, example, *_ = rows.selectExpr(f"count_if({bad})", *asked, *read).first()
    if count:
        raise SourceRefused(
            f"{directory}: {count:,} rows do not match the description, such as {example[:80]!r} in {file}",
            hint="correct the rows or the description",
        )


# ---- avro reader -----------------------------------------------------------------------------------------------------
# Spark's reader of Avro, which its distribution does not include: downloaded once, like the JDBC drivers.


AVRO = Artifact(
    "org.apache.spark:spark-avro_2.13:4.2.0", "4c186cedc03cbe4ee356a94b32232b347ef48611c3209400b3a77e4fe4abff4f"
)
"""Verified to work with Spark 4.3 as well."""

_HINT = "give the jar of spark-avro as `jar` of the source, or a mirror as REPLICATOR_MAVEN_REPOSITORY"


def avro_jar(session: Any, source: SourceConfig, env: Mapping[str, str]) -> Path:
    """Returns the jar. Raises ConfigError for a configured jar that is missing and for a Spark version that requires
    another one, otherwise the errors of `fetch`."""
    if source.jar:
        if not (given := Path(source.jar).expanduser()).is_file():
            raise ConfigError(f"the jar {given} of a source does not exist", hint="check `jar` of the source")
        return given.absolute()
    if not session.version.startswith("4."):
        raise ConfigError(
            f"Spark {session.version} requires its own spark-avro", hint="give its jar as `jar` of the source"
        )
    kept = cache_directory(env) / "jars"
    fetch([AVRO], kept, find_java(env), env, _HINT)
    return kept / AVRO.file_name
