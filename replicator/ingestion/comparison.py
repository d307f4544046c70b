"""The comparison of a landing table with its source, row by row: counts and checksums by ranges of the key, which each
side computes on its own. The source executes SQL, and Spark reads the table as its readers do; neither the copy nor its
figures take part. A range that differs is cut until its rows are few, and then its keys are compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import msgspec

from replicator.core.model import Column, Value
from replicator.core.text import SETTINGS, quoted_name
from replicator.errors import ObjectNotFound
from replicator.ingestion.comparison_sides import (
    FEW,
    AtAnotherSource,
    AtLanding,
    AtSource,
    ComparedColumn,
    ComparedColumns,
    Key,
    Range,
    Side,
    SourceRows,
    described,
)
from replicator.ingestion.ingestion_request import Asset, Request
from replicator.ingestion.landing.erased import without_erased
from replicator.ingestion.landing.landing_schema import LOAD, RowsRefused
from replicator.ingestion.reading.request_selection import selected
from replicator.ingestion.reading.source import SourceDatabase
from replicator.ingestion.reading.source_table import SourceTable

ROUNDS = 12
"""Maximum number of times that ranges are cut."""

COUNTED = 10_000
"""Differing rows, about, whose keys are compared; further ranges are counted only."""

MOST = 512
"""Maximum number of ranges of one query."""

Kind = Literal["missing", "deleted", "different"]


class RowDifference(Value, frozen=True):
    """A row by its key, as texts. kind: missing at the landing, deleted at the source, or different."""

    key: tuple[str | None, ...]
    kind: Kind


class RangeDifference(Value, frozen=True):
    """A range of `column`, from `begin` (inclusive; None: the first value) to `end` (exclusive; None: the last value),
    that differs and whose rows are not named: their number on either side, and why."""

    column: str
    begin: str | None
    end: str | None
    landed: int
    source: int
    why: str


class TableCompared(Value, frozen=True, omit_defaults=False):
    """The comparison of one landing table. job: of its newest publication. key: columns that identify a row. until: the
    watermark up to which rows are compared. landed, source_rows: numbers of rows. ranges: compared. missing, deleted,
    different: numbers of rows that are named; `rows` has as many of them as the limit permits. waiting: rows that
    changed at the source after the watermark: the next landing reads them. erased: rows that the source has of erased
    people. unnamed: ranges that differ, and whose rows are not named. not_compared: columns, or the table, with the
    reason."""

    table: str
    source: str
    job: int
    key: tuple[str, ...] = ()
    until: str | None = None
    landed: int = 0
    source_rows: int = 0
    ranges: int = 0
    missing: int = 0
    deleted: int = 0
    different: int = 0
    waiting: int = 0
    erased: int = 0
    rows: tuple[RowDifference, ...] = ()
    unnamed: tuple[RangeDifference, ...] = ()
    not_compared: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        return bool(self.missing or self.deleted or self.different or self.unnamed)


# ---- comparing -------------------------------------------------------------------------------------------------------


@dataclass
class _Found:
    """Differences found so far."""

    landed: int = 0
    source: int = 0
    ranges: int = 0
    waiting: int = 0
    rows: list[RowDifference] = field(default_factory=list)
    unnamed: list[tuple[Range, int, int, str]] = field(default_factory=list)
    people: dict[Key, str] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        return len(self.rows) >= COUNTED


def _compare(source: AtSource, landing: AtLanding, keyed: bool) -> _Found:
    """Compares ranges, and cuts those that differ. keyed: rows have a key by which they are named."""
    found, left = _Found(), _cut(landing, Range())
    for turn in range(ROUNDS + 1):
        here, there = landing.totals(left), source.totals(left)
        found.ranges += len(left)
        if not turn:
            found.landed, found.source = (sum(rows for rows, _ in each.values()) for each in (here, there))
        pieces = list[Range]()
        for index, each in enumerate(left):
            mine, theirs = here.get(index, (0, "")), there.get(index, (0, ""))
            if mine == theirs:
                continue
            landed, rows = mine[0], theirs[0]
            few = max(landed, rows) <= FEW
            cut = [] if few or turn == ROUNDS else _cut(landing if landed * 2 >= rows else source, each)
            if found.full or (few and not keyed) or (not few and len(cut) < 2):
                found.unnamed.append((each, landed, rows, _why(found, few, turn)))
            elif few:
                _name_rows(found, each, source, landing)
            elif len(pieces) + len(cut) > MOST:
                found.unnamed.append((each, landed, rows, "too many ranges differ"))
            else:
                pieces += cut
        left = pieces
        if not left:
            break
    return found


def _why(found: _Found, few: bool, turn: int) -> str:
    if found.full or turn == ROUNDS:
        return f"{len(found.rows):,} other rows differ, and no more are compared by their keys"
    return "no key is known" if few else "too many rows have one value of this column"


def _cut(side: Side, of: Range) -> list[Range]:
    """Returns parts of a range; the range itself if it has no value at which it could be cut."""
    values = [each for each in dict.fromkeys(side.values(of)) if each != of.begin]
    return [Range(*each) for each in pairwise([of.begin, *values, of.end])]


def _name_rows(found: _Found, of: Range, source: AtSource, landing: AtLanding) -> None:
    there, here = source.keyed(of), landing.keyed(of)
    differ = [key for key in there.keys() | here.keys() if sorted(there.get(key, ())) != sorted(here.get(key, ()))]
    waiting = source.waiting(of, sorted((key for key in differ if key not in there), key=str))
    found.waiting += len(waiting)
    people = source.people(of) if there.keys() & {*differ} - here.keys() else {}
    for key in sorted({*differ} - waiting, key=str):
        kind: Kind = "missing" if key not in here else "deleted" if key not in there else "different"
        found.rows.append(RowDifference(key, kind))
        if kind == "missing" and key in people:
            found.people[key] = people[key]


def compare_table(
    session: Any, database: SourceDatabase, asset: Asset, landed: Mapping[str, Any], most: int
) -> TableCompared:
    """Compares a landing table with its source. session: a Spark session of its own. landed: its newest published job:
    `job`, `request`, and its `facts`. most: rows to name. Reads only. Raises
    ObjectNotFound without the landing table, and as SourceDatabase."""
    request: Request = landed["request"]
    facts: Mapping[str, Any] = landed["facts"]
    for key, value in {**SETTINGS, "spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}.items():
        session.conf.set(key, value)
    name = quoted_name(*request.target)
    if not session.catalog.tableExists(name):
        hint = "land it again, or cancel its jobs"
        raise ObjectNotFound(f"landing table {'.'.join(request.target)} does not exist any more", hint=hint)
    session.sql(f"REFRESH TABLE {name}")
    table = session.table(name)
    with _one_moment(database):
        database, whole = database.of_request(request)
        source = selected(database.dialect, whole, request)
        columns, left_out = _columns(database, source, request, [each.lower() for each in table.columns])
        if not columns.all:
            return nothing_compared(request, landed["job"], *left_out, "no column can be compared")
        beyond, until = _beyond(database, source, request, facts)
        person = _person(source, columns, asset)
        place = database.dialect.name(source.schema, source.name)
        rows = SourceRows(database, place, columns, beyond, person)
        hashed = database.source.kind != "jdbc"
        side = AtSource(rows) if hashed else AtAnotherSource(rows)
        found = _compare(side, AtLanding(table, columns, hashed=hashed), bool(columns.key))
    try:
        types = {field.name.lower(): field.dataType.simpleString() for field in table.schema.fields}
        erased = _erased(session, asset, found, types)
    except RowsRefused as error:
        erased = set[Key]()
        left_out.append(f"rows of erased people, which are named as missing: {error.message}")
    named = [each for each in found.rows if each.key not in erased]
    by = columns.by.name if columns.by else ""
    return TableCompared(
        table=".".join(request.target),
        source=request.place,
        job=landed["job"],
        key=tuple(each.name for each in columns.key),
        until=until,
        landed=found.landed,
        source_rows=found.source,
        ranges=found.ranges,
        missing=sum(each.kind == "missing" for each in named),
        deleted=sum(each.kind == "deleted" for each in named),
        different=sum(each.kind == "different" for each in named),
        waiting=found.waiting,
        erased=len(erased),
        rows=tuple(named[:most]),
        unnamed=tuple(
            RangeDifference(by, of.begin, of.end, here, there, why) for of, here, there, why in found.unnamed[:most]
        ),
        not_compared=tuple(left_out),
    )


def nothing_compared(request: Request, job: int, *why: str) -> TableCompared:
    """Returns the report of a table that is not compared. why: sentences."""
    return TableCompared(".".join(request.target), request.place, job, not_compared=why)


@contextlib.contextmanager
def _one_moment(database: SourceDatabase) -> Iterator[None]:
    """All queries inside see the source's rows of one moment; of a database without a known dialect, by its default."""
    with database.control.transaction():
        if database.source.kind == "postgresql":
            database.control.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        elif database.source.kind != "jdbc":
            database.control.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")  # another one has no snapshot
            database.control.run("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        yield


def _columns(
    database: SourceDatabase, source: SourceTable, request: Request, there: list[str]
) -> tuple[ComparedColumns, list[str]]:
    """Returns the columns to compare, and a sentence for each that is left out."""
    found, left_out = dict[str, ComparedColumn](), []
    for each in source.columns:
        if each.name.lower() not in there:
            left_out.append(f"column {each.name}: it has not landed")
        elif (made := described(database, each)) is None:
            left_out.append(f"column {each.name} ({each.source_type}): the source writes its values with other digits")
        else:
            found[made.name] = made
    names = {LOAD.name, *(each.name.lower() for each in source.columns)}
    left_out += [
        f"column {each}: it has landed, and the source, or the request, lacks it" for each in there if each not in names
    ]
    if database.source.kind == "jdbc" and (texts := [each.name for each in found.values() if not each.summed]):
        told = "a database of this kind counts them, and they are compared where a range differs only"
        left_out.append(f"values of {', '.join(texts[:20])}: {told}")
    key = tuple(each.lower() for each in request.key or source.primary_key)
    keys = tuple(found[each] for each in key) if all(each in found for each in key) else ()
    if not keys:
        left_out.append("keys of differing rows: none is known; request a key, or declare a primary key")
    by = found.get((request.split.column or "").lower()) or next(iter(keys), None)
    if by is not None and not by.ordered:
        by = None
    return ComparedColumns(tuple(found.values()), keys, by), left_out


def _beyond(
    database: SourceDatabase, source: SourceTable, request: Request, facts: Mapping[str, Any]
) -> tuple[str, str | None]:
    """Returns SQL for rows after the landed watermark, and the watermark; empty if all rows must have landed."""
    if request.watermark is None:
        return "", None
    if not facts.get("watermark"):
        return "1 = 1", None
    _, value = msgspec.json.decode(facts["watermark"], type=tuple[str, str])
    return database.after(source, request.watermark, value), value


def _person(source: SourceTable, columns: ComparedColumns, asset: Asset) -> str:
    if not (asset.erasure_ids and asset.erasure_column):
        return ""
    name = asset.erasure_column.lower()
    return next((each.theirs for each in columns.all if each.name == name), "")


def _erased(session: Any, asset: Asset, found: _Found, landed: Mapping[str, str]) -> set[Key]:
    """Returns keys of missing rows whose person is on the asset's list of erased people, as when rows land. landed: the
    types of the table's columns, by name. Raises RowsRefused if the list is not available."""
    name = (asset.erasure_column or "").lower()
    if not found.people or not asset.erasure_ids or name not in landed:
        return set()
    given = session.createDataFrame([(each,) for each in sorted({*found.people.values()})], "`as text` string")
    people = given.selectExpr("`as text`", f"try_cast(`as text` AS {landed[name]}) AS {quoted_name(name)}")
    kept, _ = without_erased(session, people, asset, [Column(name, landed[name])])
    there = {row["as text"] for row in kept.collect()}
    return {key for key, person in found.people.items() if person not in there}
