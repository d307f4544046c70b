"""Searching one table for the ids: how it has to be read, and what no reading of it reaches. Changes no table.

A purge searches to erase and a certificate to prove; both say what was not searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from replicator.core.engine import AutoEngine
from replicator.core.model import Storage
from replicator.lifecycle.purge.onboarding import Onboarded, PurgeGap
from replicator.lifecycle.purge.partitions import Looked, Part, looks_tasks, run_looks_task
from replicator.lifecycle.purge.search import matching
from replicator.lifecycle.purge.search.ids import Ids
from replicator.lifecycle.purge.search.matching import Search

REPORTED = 100
"""Partitions of a table that are named as not searched; the rest is counted."""


def look_at_all(engines: AutoEngine, parts: Sequence[Part]) -> dict[str, Looked]:
    """What lies at each location. To be asked before a search, so that a change that comes after is noticed."""
    engine = engines.for_work(len(parts))
    tasks = looks_tasks(parts)
    return {each.location: each for answer in engine.run(run_looks_task, tasks) for each in answer}


def searched(
    ids: Ids, onboarded: Onboarded, parts: Sequence[Part], looked: Mapping[str, Looked]
) -> tuple[Search, list[PurgeGap]]:
    """The query, and what it does not reach of the table. Raises LossyIds.

    Spark's own readers take all partitions for files of the table's format and pass over sub-directories; where that
    would miss rows, it reads through Hive's serdes."""
    own = onboarded.table.storage
    nested = any(each.nested for each in looked.values())
    uniform = all(_format_key(part.storage) == (own and _format_key(own)) for part in parts)
    found = matching.search(ids, onboarded, converted=uniform and not nested)
    return found, list(_gaps(onboarded.name, parts, looked, deep=not found.escaped))


def _format_key(storage: Storage) -> tuple[str | None, str | None]:
    return storage.serde.library, storage.input_format


def _gaps(table: str, parts: Sequence[Part], looked: Mapping[str, Looked], *, deep: bool) -> Iterable[PurgeGap]:
    gaps = []
    for part in parts:
        each = looked[part.location]
        reasons = []
        if each.nested and not deep:
            reasons.append(f"files in sub-directories, such as {each.nested}")
        if each.misread:
            reasons.append(f"RCFiles packed with bzip2, of which Hive's reader misses rows, such as {each.misread}")
        if each.unread:
            reasons.append(f"files that no reader takes for rows: {each.unread}")
        if reasons:
            gaps.append(PurgeGap(f"{table}/{part.name}".rstrip("/"), f"not searched: {'; '.join(reasons)}"))
    yield from gaps[:REPORTED]
    if len(gaps) > REPORTED:
        yield PurgeGap(table, f"not searched: the like in {len(gaps) - REPORTED:,} more partitions")
