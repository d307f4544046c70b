"""The counts of a partitioned table as a whole, in its own properties: they change as its partitions' did. Acts.

What a run is about to change stands in its record before, so that after a kill the next one knows whether it came.
"""

from __future__ import annotations

import time

import msgspec

from replicator.core.model import Table
from replicator.errors import ObjectNotFound
from replicator.lifecycle.purge.state import Counted, PurgeRun, RunDirectory
from replicator.lifecycle.purge.swapping import STATISTICS_OF_SPARK
from replicator.metastore.client import Metastore

_ROWS, _SIZE = "numRows", "totalSize"
_COUNTS = {_ROWS: 0, _SIZE: 1, "numFiles": 2, STATISTICS_OF_SPARK + _ROWS: 0, STATISTICS_OF_SPARK + _SIZE: 1}
"""Properties, and which of (rows, bytes, files) they count."""

_Sums = tuple[int, int, int]
"""Rows, bytes and files by which the swaps of a run have changed a table."""

_NOTHING = (0, 0, 0)


def settle_counts(metastore: Metastore, directory: RunDirectory, run: PurgeRun, name: str) -> PurgeRun:
    """After the swaps of a table ("db.table"): its counts become what they are now, and extremes that Spark keeps go. A
    count that cannot be right goes. The run, with what it has counted. Safe to run twice, and after a kill."""
    units = [unit for unit in directory.units().values() if unit.table == name and unit.state == "DONE"]
    sums = (
        sum(unit.rows_after - unit.rows for unit in units),
        sum(unit.bytes_after - unit.bytes for unit in units),
        sum(unit.files - unit.files_before for unit in units),
    )
    try:
        table = metastore.table(*name.split(".", 1))
    except ObjectNotFound:
        return run
    now = {key: value for key, value in table.parameters.items() if table.is_partitioned and key in _COUNTS}
    counted = _counted(run, name, now, sums)
    after = now if counted == sums else _changed(now, counted, sums)
    if after != now:
        run = msgspec.structs.replace(
            run, counted={**run.counted, name: Counted(counted or _NOTHING, sums, now, after)}
        )
        directory.write_run(run)
    _set(metastore, table, after)
    return run


def _counted(run: PurgeRun, name: str, now: dict[str, str], sums: _Sums) -> _Sums | None:
    """What of the sums the counts have in them already. None: nobody knows, as somebody else has counted since; where
    nothing was swapped after that, his counts are right."""
    last = run.counted.get(name)
    if last is None:
        return _NOTHING
    if now == last.before:
        return last.was
    return last.sums if now == last.after or sums == last.sums else None


def _changed(now: dict[str, str], counted: _Sums | None, sums: _Sums) -> dict[str, str]:
    after: dict[str, str] = {}
    if counted is None:
        return after
    for key, value in now.items():
        count = int(value) + sums[_COUNTS[key]] - counted[_COUNTS[key]] if value.isascii() and value.isdecimal() else -1
        if count >= 0:
            after[key] = str(count)
    return after


def _set(metastore: Metastore, table: Table, counts: dict[str, str]) -> None:
    kept = {
        key: value
        for key, value in table.parameters.items()
        if not key.startswith(STATISTICS_OF_SPARK + "colStats.") and (not table.is_partitioned or key not in _COUNTS)
    }
    parameters = kept | counts
    if parameters != table.parameters:
        parameters["transient_lastDdlTime"] = str(int(time.time()))
        metastore.alter_table(table.db, table.name, msgspec.structs.replace(table, parameters=parameters))
