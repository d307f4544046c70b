"""Publishing days: each is a partition, which moves to another directory where files came late. May run twice, as all
of publishing."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cmroot.store.place import Place, join
from replicator.core.model import Column, Partition, Table
from replicator.errors import CommitOutcomeUnknown, ObjectExists, ObjectNotFound
from replicator.ingestion.ingestion_request import Asset, Request
from replicator.ingestion.landing.landing_schema import (
    FILES,
    SCHEMA_HASH,
    SINCE,
    SchemaRefused,
    landing_table,
    marked,
    schema_hash,
    written_text,
)
from replicator.ingestion.landing.landing_work import sizes_of
from replicator.ingestion.landing.publishing import ATTEMPTS, Landed, Overtaken, Publication, landing_of, settle_table
from replicator.lifecycle.purge.swapping import WRITTEN
from replicator.metastore.client import Metastore

DAY_KEY = Column("day", "date", "the day of the files, in UTC")
"""The partition key of what lies in a directory for each day."""


def landed_days(metastore: Metastore, table: Table | None) -> dict[str, str]:
    """Days that have landed, and the digests of their files. Raises SchemaRefused for a table without days."""
    if table is None:
        return {}
    _refuse_other_keys(table)
    some = metastore.all_partitions(table.db, table.name)
    return {part.values[0]: part.parameters.get(FILES, "") for parts in some for part in parts}


def publish_days(
    metastore: Metastore, asset: Asset, request: Request, landed: Landed, days: Mapping[str, str]
) -> Publication:
    """days: those whose rows lie in `landed.location`, with the digests of their files. Raises Overtaken, ForeignTable,
    SchemaRefused; CommitOutcomeUnknown when nobody can look."""
    for _ in range(ATTEMPTS):
        try:
            made = _settle_table(metastore, asset, request, landed)
            if days:
                _settle_partitions(metastore, request, landed, days)
            return Publication(metastore.current_event_id(), made, empty=not days)
        except (CommitOutcomeUnknown, ObjectExists, ObjectNotFound):
            continue  # the next look says what is true
    raise CommitOutcomeUnknown(
        f"{'.'.join(request.target)}: changes that nobody answers", hint="it is tried again when the metastore answers"
    )


def _refuse_other_keys(table: Table) -> None:
    if [key.name for key in table.partition_keys] != [DAY_KEY.name]:
        raise SchemaRefused(
            f"{table.db}.{table.name} was not landed by days", hint="drop it, or ask in the mode in which it was landed"
        )


def _settle_table(metastore: Metastore, asset: Asset, request: Request, landed: Landed) -> bool:
    """Whether it was made, or its columns changed."""
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
            f"{db}.{name}: day {late[0]} was published by job {there[late[0]][0]} already", hint="nothing is lost"
        )
    new, moved = list[Partition](), list[Partition]()
    for day, digest in days.items():
        place = join(landed.location, f"{DAY_KEY.name}={day}")
        Place(place).mkdirs()  # of a day whose files have no rows, too
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
