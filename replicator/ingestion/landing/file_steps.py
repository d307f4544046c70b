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
from replicator.core.model import Column, Partition, Table
from replicator.core.text import quoted_name, quoted_text
from replicator.errors import CommitOutcomeUnknown, ObjectExists, ObjectNotFound, TypeRefused
from replicator.ingestion.drop_directory import (
    DAY,
    Listing,
    SourceChanged,
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
    avro_jar,
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
    landing_table,
    marked,
    schema_hash,
    written_text,
)
from replicator.ingestion.landing.publishing import ATTEMPTS, Landed, Overtaken, Publication, landing_of, settle_table
from replicator.ingestion.reading.figures import Figures
from replicator.ingestion.reading.source_errors import source_error
from replicator.ingestion.reading.source_table import ForeignKey, SourceColumn, SourceTable
from replicator.lifecycle.purge.ids import hadoop_place
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
    """Creates or updates the table. Returns True if it was created or its columns changed."""
    table = landing_of(metastore, asset, request)
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
    mine = (landed.job, landed.fence)
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
    also = (DAY,) if drop.is_by_day else ()
    parts = parts_of(rows.drop(*also).schema.jsonValue())
    nested = len(parts) > 1
    _refuse_names(parts, nested, also)
    if nested and work.request.mode == "merge":
        raise RowsRefused(f"{drop.directory}: nested rows cannot be merged", hint="request mode overwrite")
    listing = drop.listing
    engine = work.engines.for_work(len(listing.names), listing.bytes)
    figures = file_figures(engine, drop.directory, listing.names, drop.description, parts)
    if nested:  # written once, so that a row has the same id in all tables
        ids = quoted_text(f"{work.claimed.job}-{work.claimed.fence}-")
        numbered = rows.selectExpr(f"concat({ids}, monotonically_increasing_id()) AS {ROW}", "*")
        numbered.write.format("parquet").save(hadoop_place(work.directory("st")))
        rows = work.session.read.format("parquet").load(hadoop_place(work.directory("st")))
    frames = frames_of(rows, parts, also)
    found = {
        part.name: _written_part(work, drop, part, nested, frames[part.name], figures.get(part.name)) for part in parts
    }
    own = found.pop("")
    below = {part.name: {**found[part.name], "parent": part.parent} for part in parts[1:]} | _empty(work, drop, found)
    return {**own, **({"parts": below} if below else {})}


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
