"""Steps of a job that reads files of a drop zone instead of a database table: inspects the files, and copies their
rows, flattening nested ones."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from cmroot.store.place import Place, join, name_of
from cmroot.store.spelling import hadoop_place
from replicator.core.model import Column, Partition, Table
from replicator.core.text import quoted_name, quoted_text
from replicator.errors import CommitOutcomeUnknown, ObjectExists, ObjectNotFound, TypeRefused
from replicator.ingestion.drop_directory import (
    DAY,
    Listing,
    SourceChanged,
    avro_jar,
    directory_of,
    listing_of,
    rows_of,
    table_directory,
)
from replicator.ingestion.file_description import (
    PARENT,
    POSITION,
    ROW,
    Description,
    Part,
    frames_of,
    keys_of,
    parts_of,
    read_description,
)
from replicator.ingestion.file_figures import file_figures
from replicator.ingestion.ingestion_request import Asset, Format, Request
from replicator.ingestion.landing.landing_log import CopyDiffers, Facts, Work, columns_for, sizes_of
from replicator.ingestion.landing.landing_schema import (
    FILES,
    SCHEMA_HASH,
    SINCE,
    RowsRefused,
    SchemaRefused,
    common_types,
    landing_table,
    lossy,
    marked,
    schema_hash,
    written_text,
)
from replicator.ingestion.landing.publishing import ATTEMPTS, Landed, Overtaken, Publication, landing_of, settle_table
from replicator.ingestion.reading.figures import Figures
from replicator.ingestion.reading.source_errors import source_error
from replicator.ingestion.reading.source_table import ForeignKey, SourceColumn, SourceTable
from replicator.lifecycle.purge.swapping import WRITTEN
from replicator.metastore.client import Metastore

# ---- publishing days -------------------------------------------------------------------------------------------------
# Publishing of days: each is a partition, which is switched to another directory if files arrived late. May run twice,
# like all of publishing.


DAY_KEY = Column("day", "date", "the day of the files, in UTC")
"""The partition key of tables whose source has a directory for each day."""


def landed_days(metastore: Metastore, table: Table | None) -> dict[str, str]:
    """Returns landed days with the digests of their files. Raises SchemaRefused for a table that is not partitioned by
    day."""
    if table is None:
        return {}
    _refuse_other_keys(table)
    some = metastore.all_partitions(table.db, table.name)
    return {part.values[0]: part.parameters.get(FILES, "") for parts in some for part in parts}


def publish_days(
    metastore: Metastore, asset: Asset, request: Request, landed: Landed, days: Mapping[str, str]
) -> Publication:
    """Publishes days as partitions. days: those whose rows are stored in `landed.location`, with the digests of their
    files. Raises Overtaken, ForeignTable, SchemaRefused; CommitOutcomeUnknown if the outcome cannot be determined."""
    for _ in range(ATTEMPTS):
        try:
            made = _settle_table(metastore, asset, request, landed)
            if days:
                _settle_partitions(metastore, request, landed, days)
            return Publication(metastore.current_event_id(), made, empty=not days)
        except (CommitOutcomeUnknown, ObjectExists, ObjectNotFound):
            continue  # the next attempt reads the outcome
    raise CommitOutcomeUnknown(
        f"{'.'.join(request.target)}: the metastore does not confirm changes",
        hint="it is retried when the metastore responds",
    )


def _refuse_other_keys(table: Table) -> None:
    if [key.name for key in table.partition_keys] != [DAY_KEY.name]:
        raise SchemaRefused(
            f"{table.db}.{table.name} was not landed by day", hint="drop it, or request the mode in which it was landed"
        )


def _settle_table(metastore: Metastore, asset: Asset, request: Request, landed: Landed) -> bool:
    """Creates, updates or replaces the table. Returns True if it was created or its columns changed."""
    table = landing_of(metastore, asset, request)
    if table is not None and landed.whole and table.parameters.get(SINCE) != str(landed.job):
        some = metastore.all_partitions(table.db, table.name)
        if late := [part.values[0] for parts in some for part in parts if marked(part.parameters) > landed.mark]:
            raise Overtaken(f"{table.db}.{table.name}: day {late[0]} was published later", hint="nothing is lost")
        metastore.drop_table(table.db, table.name)  # not its rows; a claim that dies here creates the table, as below
        table = None
    if table is None:
        made = landing_table(asset, request, landed.columns, landed.home, DAY_KEY)
        said = schema_hash(landed.columns, request.format, True)
        metastore.create_table(
            msgspec.structs.replace(made, parameters={**made.parameters, SCHEMA_HASH: said, SINCE: str(landed.job)})
        )
        return True
    _refuse_other_keys(table)
    return settle_table(metastore, asset, request, table, landed)[1]


def _settle_partitions(metastore: Metastore, request: Request, landed: Landed, days: Mapping[str, str]) -> None:
    db, name = request.target
    table = metastore.table(db, name)
    assert table.storage is not None
    some = metastore.partitions(db, name, [f"{DAY_KEY.name}={day}" for day in days])
    there = {part.values[0]: marked(part.parameters) for parts in some for part in parts}
    mine = landed.mark
    if late := [day for day, by in there.items() if by > mine]:
        raise Overtaken(
            f"{db}.{name}: day {late[0]} was already published by job {there[late[0]][0]}", hint="nothing is lost"
        )
    new, moved = list[Partition](), list[Partition]()
    for day, digest in days.items():
        place = join(landed.location, f"{DAY_KEY.name}={day}")
        Place(place).mkdirs()  # also for a day whose files have no rows
        sizes = sizes_of(place)
        parameters = {key: value for key, value in landed.parameters.items() if key != "numRows"}
        parameters |= {FILES: digest, "numFiles": str(sizes["files"]), "totalSize": str(sizes["bytes"])}
        parameters[WRITTEN] = written_text(sizes["files"], sizes["bytes"])
        storage = msgspec.structs.replace(table.storage, columns=table.storage.columns, location=place)
        part = Partition(values=(day,), storage=storage, parameters=parameters)
        if day not in there:
            new.append(part)
        elif there[day] < mine:
            moved.append(part)
    if new:
        metastore.add_partitions(db, name, new)
    if moved:
        metastore.alter_partitions(db, name, moved)


# ---- file steps ------------------------------------------------------------------------------------------------------


_OWN = (ROW, PARENT, POSITION)

INFERRED = ("json", "xml")
"""Formats whose types are inferred if the description has no columns."""


@dataclass(frozen=True)
class _Drop:
    """A snapshot of a table's directory. listing: files closed at `now` that are to be landed. landed: digests of the
    days that have landed; None: the table is not landed by day."""

    now: datetime
    directory: Place
    description: Description
    listing: Listing
    landed: dict[str, str] | None

    @property
    def paths(self) -> list[str]:
        """Paths for Spark, which finds the files in them."""
        days = self.description.days
        return [""] if days is None else [directory_of(days, day) for day in self.listing.days]

    @property
    def is_by_day(self) -> bool:
        return self.description.days is not None


def look_at_files(work: Work) -> Facts:
    """Returns the numbers of source files and open days. Raises SourceMissing and SourceRefused if the directory or its
    description is missing or invalid."""
    drop = _opened(work)
    return {"source_files": len(drop.listing.names), "open_days": drop.listing.open}


def _opened(work: Work) -> _Drop:
    directory = table_directory(work.source.path, work.request.schema, work.request.table)
    description = read_description(directory)
    appends = work.request.mode == "append"
    if appends and description.days is None:
        raise RowsRefused(
            f"{directory}: files are appended by day, but the description has no days", hint="request mode overwrite"
        )
    table = landing_of(work.metastore, work.asset, work.request) if appends else None
    landed = landed_days(work.metastore, table) if appends else None
    now = datetime.now(UTC)
    listing = listing_of(directory, description, now, landed)
    if not appends and not listing.names:
        raise RowsRefused(f"{directory} has no files to land", hint="an empty directory is usually a failed export")
    return _Drop(now, directory, description, listing, landed)


def planned_files(work: Work) -> tuple[list[Part], int]:
    """Returns the tables into which the rows of the files would be flattened, and the number of these rows. Reads all
    files, and writes nothing. Raises as `copy_files`."""
    drop = _opened(work)
    if not drop.listing.names:
        raise RowsRefused(f"{drop.directory}: no further day is closed", hint="a closed day lands once")
    try:
        rows = rows_of(work.session, drop.directory, drop.paths, drop.description, _avro(work, drop.description))
        parts = _parts_of(work, drop, rows)
        if len(parts) == 1:  # those of lists need a number for each row
            parts = _as_landed(work, drop, rows, parts)
        engine = work.engines.for_work(len(drop.listing.names), drop.listing.bytes)
        counted = file_figures(engine, drop.directory, drop.listing.names, drop.description, parts)
        keys = [Column(name, kind) for name, kind in keys_of(parts[0], _is_nested(work, parts))]
        day = [Column(DAY, "date")] if drop.is_by_day and work.request.mode != "append" else []
        _ = columns_for(work, [*keys, *(Column(each.name, each.type) for each in parts[0].columns), *day])
        return parts, counted[""].rows
    except Exception as error:
        raise source_error(error, work.request.source, of_files=True) from None


def copy_files(work: Work) -> Facts:
    """Copies the rows of the files. Raises SourceChanged if files were added, removed or changed during the copy,
    RowsRefused and TypeRefused for files that cannot be landed."""
    began = time.time()
    drop = _opened(work)
    if not drop.listing.names:
        return _nothing(work, drop)
    try:
        found = _copied(work, drop)
    except Exception as error:
        raise source_error(error, work.request.source, of_files=True) from None
    if listing_of(drop.directory, drop.description, drop.now, drop.landed).digest != drop.listing.digest:
        raise SourceChanged(f"{drop.directory}: files were added or changed while they were read", hint="it is retried")
    return {**found, "copy_seconds": round(time.time() - began, 3)}


def _nothing(work: Work, drop: _Drop) -> Facts:
    """Returns the facts of a copy without new days. (Without a table the columns are unknown.)"""
    table = landing_of(work.metastore, work.asset, work.request)
    if table is None or table.storage is None:
        hint = "a day is closed when its lateness has passed after its end"
        raise RowsRefused(f"{drop.directory}: no day is closed yet", hint=hint)
    columns = [[column.name, column.type] for column in table.storage.columns]
    place = work.directory("in" if work.settles else "v")
    Place(place).mkdirs()
    source = SourceTable(work.request.schema, work.request.table, ())
    below = _empty(work, drop, ())  # their grants may have changed
    facts = {**_facts(drop, columns, source, place, Figures(0, {}, {})), "days": {}}
    return {**facts, **({"parts": below} if below else {})}


def _copied(work: Work, drop: _Drop) -> Facts:
    rows = rows_of(work.session, drop.directory, drop.paths, drop.description, _avro(work, drop.description))
    if (seen := len(rows.inputFiles())) != len(drop.listing.names):
        raise SourceChanged(
            f"{drop.directory} had {len(drop.listing.names):,} files when listed, {seen:,} when read",
            hint="it is retried",
        )
    parts = _parts_of(work, drop, rows)
    nested = _is_nested(work, parts)
    also = (*((DAY,) if drop.is_by_day else ()), *((ROW,) if nested and len(parts) == 1 else ()))
    if nested:  # written once, so that a row has the same id in all tables
        ids = quoted_text(f"{work.claimed.job}-{work.claimed.fence}-")
        numbered = rows.selectExpr(f"concat({ids}, monotonically_increasing_id()) AS {ROW}", "*")
        numbered.write.format("parquet").save(hadoop_place(work.directory("st")))
        rows = work.session.read.format("parquet").load(hadoop_place(work.directory("st")))
    parts = _as_landed(work, drop, rows, parts)
    listing = drop.listing
    engine = work.engines.for_work(len(listing.names), listing.bytes)
    figures = file_figures(engine, drop.directory, listing.names, drop.description, parts)
    frames = frames_of(rows, parts, also)
    found = {
        part.name: _written_part(work, drop, part, nested, frames[part.name], figures.get(part.name)) for part in parts
    }
    own = found.pop("")
    below = {part.name: {**found[part.name], "parent": part.parent} for part in parts[1:]} | _empty(work, drop, found)
    return {**own, **({"parts": below} if below else {})}


def _as_landed(work: Work, drop: _Drop, rows: Any, parts: list[Part]) -> list[Part]:
    """Returns parts whose types are inferred with types that their landing tables may have."""
    if drop.description.format not in INFERRED or drop.description.columns:
        return parts
    frames = frames_of(rows, parts, (DAY,) if drop.is_by_day else ())
    return [_fitted(work.part(part.name) if part.name else work, part, frames[part.name]) for part in parts]


def _fitted(work: Work, part: Part, frame: Any) -> Part:
    """Returns a part with the types of its landing table for columns whose values all fit them: a day with whole prices
    only does not change the table. Other columns have the least type for the values of both, if the request may
    recreate the table."""
    recreates = work.request.schema_policy == "recreate"
    if recreates and work.request.mode == "overwrite":
        return part
    table = landing_of(work.metastore, work.asset, work.request)
    there = {each.name: each.type for each in table.storage.columns} if table and table.storage else {}
    differ = [each for each in part.columns if there.get(each.name.lower(), each.type) != each.type]
    if not differ:
        return part
    types = {each: common_types(each.type, there[each.name.lower()], widen=recreates) for each in differ}
    asked = [
        f"count_if({lossy(quoted_name(each.name.lower()), each.type, type_)})"
        for each in differ
        for type_ in types[each]
    ]
    counts = iter(frame.selectExpr("count(*)", *asked).first()[1:])
    fitting = {each: [type_ for type_ in types[each] if not next(counts)] for each in differ}
    columns = (replace(each, type=next(iter(fitting.get(each, ())), each.type)) for each in part.columns)
    return replace(part, columns=tuple(columns))


def _parts_of(work: Work, drop: _Drop, rows: Any) -> list[Part]:
    """Returns the tables into which rows are flattened. Raises TypeRefused and RowsRefused."""
    also = (DAY,) if drop.is_by_day else ()
    parts = parts_of(rows.drop(*also).schema.jsonValue())
    _refuse_names(parts, _is_nested(work, parts), also)
    if len(parts) > 1 and work.request.mode == "merge":
        raise RowsRefused(f"{drop.directory}: nested rows cannot be merged", hint="request mode overwrite")
    return parts


def _is_nested(work: Work, parts: Sequence[Part]) -> bool:
    """Returns True if rows have ids: because of their lists, or of lists that landed before. Rows without any list do
    not change the table."""
    if len(parts) > 1 or work.request.mode == "merge" or not work.remembered.get("parts"):
        return len(parts) > 1
    table = landing_of(work.metastore, work.asset, work.request)
    return bool(table and table.storage and ROW in {each.name for each in table.storage.columns})


def _empty(work: Work, drop: _Drop, found: Collection[str]) -> Facts:
    """Returns empty parts for lists that no row has any more: their tables would retain rows without a parent."""
    parts = {}
    for name, before in work.remembered.get("parts", {}).items():
        if name not in found:
            mine = work.part(name)
            source = msgspec.structs.replace(msgspec.convert(before["source"], SourceTable), columns=())
            directory = mine.directory("in" if work.settles else "v")
            facts = _facts(drop, before["columns"], source, directory, Figures(0, {}, {}))
            columns = [*before["columns"], *([[DAY, "date"]] if "days" in facts else [])]
            schema = ", ".join(f"{quoted_name(each)} {kind}" for each, kind in columns)
            written(work.session.createDataFrame([], schema), work.request.format, directory, facts)
            parts[name] = {**facts, "parent": before["parent"]}
    return parts


def _written_part(work: Work, drop: _Drop, part: Part, nested: bool, frame: Any, figures: Figures | None) -> Facts:
    """Writes the rows of one part, and returns its facts. figures: None if no other reader counts the part."""
    mine = work.part(part.name) if part.name else work
    columns = [Column(name, kind) for name, kind in keys_of(part, nested)]
    columns += [Column(each.name, each.type) for each in part.columns]
    columns += _optional(mine, drop.description, {each.name.lower() for each in columns})
    appends = work.request.mode == "append"
    if drop.is_by_day and not appends:
        columns.append(Column(DAY, "date"))
    wanted = columns_for(mine, columns) if not part.name else _columns_of_part(mine, columns)
    directory = mine.directory("in" if work.settles else "v")
    there = {name.lower() for name in frame.columns}
    selected = [
        f"CAST({quoted_name(name) if name in there else 'NULL'} AS {kind}) AS {quoted_name(name)}"
        for name, kind in wanted
    ]
    facts = _facts(drop, wanted, _source_of(work, part, nested, figures), directory, figures)
    written(
        frame.selectExpr(*selected, *([DAY] if "days" in facts and appends else [])),
        work.request.format,
        directory,
        facts,
    )
    return facts


def _optional(work: Work, description: Description, there: Collection[str]) -> list[Column]:
    """Returns landed columns that the rows of these days lack, as far as columns are inferred: no row has the field,
    and the table is not recreated without it. there: names of columns that the rows have."""
    appends = work.request.mode == "append" and work.request.schema_policy == "recreate" and not work.request.rebuild
    if not appends or description.format not in INFERRED or description.columns:
        return []
    table = landing_of(work.metastore, work.asset, work.request)
    return [each for each in table.storage.columns if each.name not in there] if table and table.storage else []


def _columns_of_part(work: Work, columns: Sequence[Column]) -> list[list[str]]:
    """Like `columns_for`: columns named by the request and the asset are only in the rows themselves."""
    asset = msgspec.structs.replace(work.asset, erasure_ids=None, erasure_column=None)
    return columns_for(replace(work, asset=asset), columns)


def _facts(
    drop: _Drop, columns: list[list[str]], source: SourceTable, directory: str, figures: Figures | None
) -> Facts:
    return {
        "columns": columns,
        "source": msgspec.to_builtins(source),
        "directory": directory,
        "figures": msgspec.to_builtins(figures),
        "compared": "nothing" if figures is None else "figures" if figures.counts else "rows",
        "checksum": hashlib.blake2s(drop.listing.digest.encode(), digest_size=16).hexdigest(),
        "changed_meanwhile": False,
        "consistent": True,
        "source_files": len(drop.listing.names),
        "open_days": drop.listing.open,
        **({"days": dict(drop.listing.days)} if drop.landed is not None else {}),
    }


def _source_of(work: Work, part: Part, nested: bool, figures: Figures | None) -> SourceTable:
    """Returns a part as a source table. Columns: those whose statistics are compared."""
    counted = figures.counts if figures else {}
    columns = tuple(
        SourceColumn(each.name.lower(), each.type, each.type, True, "", summed=each.summed or each.type == "binary")
        for each in part.columns
        if each.name.lower() in counted
    )
    name = work.request.table
    own, above = (f"{name}__{each}" if each else name for each in (part.name, part.parent))
    refers = (ForeignKey("parent", (PARENT,), work.request.schema, above, (ROW,)),) if part.name else ()
    return SourceTable(work.request.schema, own, columns, (ROW,) if nested else (), foreign_keys=refers)


def written(rows: Any, format_: Format, directory: str, facts: Facts) -> None:
    """Writes rows into their directory; if days are published, into a subdirectory for each day. Raises CopyDiffers for
    a day that is not to be published: its rows would be lost."""
    writer = rows.write.format(format_)
    if "days" not in facts:
        writer.save(hadoop_place(directory))
        return
    writer.partitionBy(DAY).save(hadoop_place(directory))
    found = (name_of(child.path) for child in Place(directory).children() if child.is_directory)
    days = {name for name in found if name.startswith(f"{DAY}=")}
    if strange := days - {f"{DAY}={day}" for day in facts["days"]}:
        told = f"{min(strange)} was written, but is not one of the days to land"
        raise CopyDiffers(told, hint="it is copied again; check for nested directories of days")


def _refuse_names(parts: Sequence[Part], nested: bool, also: Sequence[str]) -> None:
    for part in parts:
        names = {each.name.lower() for each in part.columns}
        if taken := names & {*(_OWN if nested else ()), *also}:
            raise TypeRefused(f"column {min(taken)} has a reserved name", hint="rename it")


def _avro(work: Work, description: Description) -> Path | None:
    return avro_jar(work.session, work.source, os.environ) if description.format == "avro" else None
