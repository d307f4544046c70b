"""The steps of a job, in their order: each may be repeated, and what it found is written with its end.

describe   the table at the source, and whether its columns may be landed
copy       its rows into a directory of this claim's own, read at one moment where the source offers one
verify     the directory's rows against the source's figures, by another reader
settle     rows without erased people, merged into those that are there, where the asset or the request wants it
publish    the one call of the metastore after which they are there
constrain  the source's keys, which nobody enforces
grant      read rights of the consumers
clean      directories of earlier claims of this job
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from cmroot.store.place import Place, join, name_of, parent
from replicator.core.connections.source_config import IngestionConfig
from replicator.core.engine import AutoEngine
from replicator.core.model import Column
from replicator.errors import Error
from replicator.ingestion.ingestion_job import Claimed
from replicator.ingestion.ingestion_request import Asset, Request
from replicator.ingestion.landing.granting import grant
from replicator.ingestion.landing.landing_schema import RowsRefused, format_of, landed_columns, schema_hash
from replicator.ingestion.landing.publishing import BaseChanged, Landed, columns_of, landing_of, make_database, publish
from replicator.ingestion.landing.settling import Erased, merged, prepare, read, without_erased
from replicator.ingestion.landing.source_keys import constraints_of, keep_constraints
from replicator.ingestion.landing.watermarks import landed_until, watermark_text, window
from replicator.ingestion.reading.figures import Figures, differences, landed_figures
from replicator.ingestion.reading.source import opened
from replicator.ingestion.reading.source_errors import source_error
from replicator.ingestion.reading.source_table import SourceTable
from replicator.metastore.client import Metastore
from replicator.purge.search.ids import hadoop_place
from replicator.text.sql_text import quoted_name

Facts = dict[str, Any]
"""What the steps of a job have found so far: JSON."""


SETTLED = 900.0
"""Seconds for which the list of erased people that was applied is new enough to publish."""

ATTEMPTS = 3
"""Merges of an increment into a table that is replaced meanwhile."""


_OF_A_CLAIM = re.compile(r"(in|v)-(?P<job>\d+)-\d+")
"""Directories that only a step before the publication writes."""


class CopyDiffers(Error):
    """The rows that arrived are not those of the source."""

    exit_code = 75
    transient = True


@dataclass(frozen=True)
class Work:
    """A claimed job, and all that its steps work with. session: a Spark session on the landing warehouse, of this job's
    own. remembered: what the newest published job of the same request has found. unpublished: whether another job, by
    its number, has ended without a publication."""

    claimed: Claimed
    asset: Asset
    config: IngestionConfig
    metastore: Metastore
    engines: AutoEngine
    session: Any
    remembered: Facts
    unpublished: Callable[[int], bool]

    @property
    def request(self) -> Request:
        return self.claimed.request

    @property
    def home(self) -> str:
        """The directory of the landing table."""
        return join(self.config.landing, self.asset.name.lower(), self.request.schema.lower(), self.request.target[1])

    @property
    def settles(self) -> bool:
        """Whether rows are not published as they came."""
        return self.request.mode == "merge" or bool(self.asset.erasure_ids and self.asset.erasure_column)

    def directory(self, kind: str) -> str:
        """Of this claim: "v", what is published, or "in", rows as they came."""
        return join(self.home, f"{kind}-{self.claimed.job}-{self.claimed.fence}")


def describe(work: Work, facts: Facts) -> Facts:
    with opened(work.session, work.request.source, work.config.sources[work.request.source]) as database:
        table = database.table(work.request.schema, work.request.table)
    return {"columns": _columns_of(work, table), "base": _base(work)}


def _columns_of(work: Work, source: SourceTable) -> list[list[str]]:
    """The columns that the landing table will have. Raises SchemaRefused, and RowsRefused for a column that the request
    or the asset names and that is not there."""
    found = landed_columns([Column(column.name, column.type) for column in source.columns])
    names = {column.name for column in found}
    erased = work.asset.erasure_column if work.asset.erasure_ids else None
    for name in filter(None, (*work.request.key, work.request.watermark, erased)):
        if name.lower() not in names:
            told = f"{work.request.schema}.{work.request.table} has no column {name}"
            raise RowsRefused(told, hint=f"it has {', '.join(sorted(names))}")
    table = landing_of(work.metastore, work.asset, work.request)
    return [[column.name, column.type] for column in columns_of(table, found, work.request)]


def _base(work: Work) -> str | None:
    """Where the rows are into which others are merged."""
    table = landing_of(work.metastore, work.asset, work.request) if work.request.mode == "merge" else None
    return table.location if table else None


def copy(work: Work, facts: Facts) -> Facts:
    request, source = work.request, work.config.sources[work.request.source]
    directory = work.directory("in" if work.settles else "v")
    began = time.time()
    with opened(work.session, request.source, source) as database, database.snapshot() as snapshot:
        table = database.table(request.schema, request.table)
        columns = _columns_of(work, table)  # it may have changed since it was described
        landing = landing_of(work.metastore, work.asset, request)
        low = landed_until(work.metastore, landing, request, work.remembered.get("watermark"))
        where, high = window(database, table, request.watermark, low) if request.watermark else ("", None)
        ranges = database.ranges(table, request.split, source.readers, where)
        before = database.figures(table, snapshot, where)  # first: it names a column whose values do not fit
        frame = database.frame(table, ranges, snapshot, where)
        given = {name.lower(): name for name in frame.columns}
        rows = frame.selectExpr(*(f"{quoted_name(given[name])} AS {quoted_name(name)}" for name, _ in columns))
        try:
            rows.write.format(request.format).save(hadoop_place(directory))
        except Exception as error:
            raise source_error(error, request.source, source.secret(request.source)) from None
        figures = before if snapshot.consistent else database.figures(table, snapshot, where)
    return {
        "columns": columns,
        "source": msgspec.to_builtins(table),
        "directory": directory,
        "figures": msgspec.to_builtins(figures),
        "checksum": hashlib.blake2s(msgspec.json.encode(figures), digest_size=16).hexdigest(),
        "changed_meanwhile": before != figures,
        "consistent": snapshot.consistent,
        "splits": len(ranges.predicates),
        "method": ranges.method,
        "watermark": watermark_text(request, high or low),
        "copy_seconds": round(time.time() - began, 3),
    }


def verify(work: Work, facts: Facts) -> Facts:
    """Copies once more what an earlier claim has found to differ. Raises CopyDiffers, but where the source changed
    during a copy for which it offers no single moment: that is what `consistent` says."""
    rows, found = _compared(work, facts)
    is_ours = facts["directory"] == work.directory("in" if work.settles else "v")
    if found and not facts["changed_meanwhile"] and not is_ours:
        facts = {**facts, **copy(work, facts)}
        rows, found = _compared(work, facts)
    if found and not facts["changed_meanwhile"]:
        told = f"{work.request.schema}.{work.request.table}: {'; '.join(found[:5])}"
        raise CopyDiffers(told, hint="it is copied again")
    return {**facts, "came": rows, "rows": rows, "differs": found}


def _compared(work: Work, facts: Facts) -> tuple[int, list[str]]:
    """Rows that arrived, and what differs from the source."""
    landed = _figures(work, facts["directory"], facts)
    return landed.rows, differences(msgspec.convert(facts["figures"], Figures), landed)


def _figures(work: Work, directory: str, facts: Facts) -> Figures:
    columns = msgspec.convert(facts["source"], SourceTable).columns
    sizes = _sizes(directory)
    engine = work.engines.for_work(sizes["files"], sizes["bytes"])
    return landed_figures(engine, directory, columns, work.request.format)


def settle(work: Work, facts: Facts) -> Facts:
    return _settled(work, facts, work.directory("v"))


def _settled(work: Work, facts: Facts, location: str) -> Facts:
    """Raises CopyDiffers where not all rows arrive in `location`, and RowsRefused for those that cannot be landed."""
    if not work.settles:
        return {"location": facts["directory"], **_sizes(facts["directory"])}
    prepare(work.session)
    columns = _columns(facts)
    rows = read(work.session, facts["directory"], work.request.format, columns)
    base = _base(work)
    before = None
    if base is not None:
        format = format_of(work.metastore.table(*work.request.target)) or work.request.format
        before = read(work.session, base, format, columns)
    erased: dict[str, int] = {}
    if work.asset.erasure_ids and work.asset.erasure_column:
        rows, known = without_erased(work.session, rows, work.asset, columns)
        _refuse_empty_list(work, known)
        erased = {"erasure_ids": known.ids, "strange_ids": known.strange, "erased_rows": facts["came"] - rows.count()}
        before = without_erased(work.session, before, work.asset, columns)[0] if before is not None else None
    if work.request.mode == "merge":
        rows = merged(before if before is not None else rows.limit(0), rows, work.request.key)
    wanted = rows.count()
    rows.write.format(work.request.format).save(hadoop_place(location))
    landed = _figures(work, location, facts).rows
    if landed != wanted:
        raise CopyDiffers(f"{location}: {landed} rows arrived of {wanted}", hint="it is tried again")
    return {"location": location, "rows": landed, "base": base, "settled": time.time(), **erased, **_sizes(location)}


def _refuse_empty_list(work: Work, known: Erased) -> None:
    if not known.ids and work.remembered.get("erasure_ids"):
        raise RowsRefused(
            f"{work.asset.erasure_ids} had {work.remembered['erasure_ids']} erased people, and has none now",
            hint="an empty list is more often a failed export; who was erased would come back",
        )


def _sizes(directory: str) -> dict[str, int]:
    files = bytes_ = 0
    for child in Place(directory).children():
        if not name_of(child.path).startswith(("_", ".")):
            files, bytes_ = files + 1, bytes_ + child.size
    return {"files": files, "bytes": bytes_}


def _columns(facts: Facts) -> tuple[Column, ...]:
    return tuple(Column(name, kind) for name, kind in facts["columns"])


def publish_rows(work: Work, facts: Facts) -> Facts:
    if work.request.mode == "append" and not facts["rows"] and landing_of(work.metastore, work.asset, work.request):
        return {"event": work.metastore.current_event_id(), "schema_changed": False, "location": ""}
    make_database(work.metastore, work.asset, work.request, parent(work.home))
    if work.settles and time.time() - facts["settled"] > SETTLED:  # who was erased since then must not come back
        facts = _settled_again(work, facts)
    for _ in range(ATTEMPTS):
        try:
            return _published(work, facts)
        except BaseChanged:
            facts = _settled_again(work, facts)
    return _published(work, facts)


def _settled_again(work: Work, facts: Facts) -> Facts:
    """Beside what may have been published, by a call whose answer was lost."""
    left = [*facts.get("left", []), facts["location"]]
    return {**facts, **_settled(work, facts, f"{work.directory('v')}-{len(left)}"), "left": left}


def _published(work: Work, facts: Facts) -> Facts:
    columns = _columns(facts)
    landed = Landed(
        job=work.claimed.job,
        fence=work.claimed.fence,
        columns=columns,
        location=facts["location"],
        home=work.home,
        rows=facts["rows"],
        files=facts["files"],
        bytes=facts["bytes"],
        base=facts.get("base"),
        watermark=facts.get("watermark"),
    )
    done = publish(work.metastore, work.asset, work.request, landed)
    said = schema_hash(columns, work.request.format, work.request.mode == "append")
    return {**facts, "event": done.event, "schema_changed": done.schema_changed, "schema_hash": said}


def constrain(work: Work, facts: Facts) -> Facts:
    source = msgspec.convert(facts["source"], SourceTable)
    refused = keep_constraints(work.metastore, work.request, constraints_of(source, work.request))
    return {"constraints_refused": refused}


def grant_reading(work: Work, facts: Facts) -> Facts:
    granted = grant(work.metastore, *work.request.target, work.asset.consumers, work.asset.owner)
    return {"granted": granted}


def clean(work: Work, facts: Facts) -> Facts:
    """Removes what this job's other claims left, and jobs of this table that ended before: copies that were never
    published. What may have been published for a moment is housekeeping's."""
    kept = {Place(each) for each in (facts["location"], *facts.get("left", [])) if each}
    _remove(work, lambda job: job == work.claimed.job or (job < work.claimed.job and work.unpublished(job)), kept)
    return {}


def discard(work: Work) -> None:
    """Removes all that a job has written that ends before its publication."""
    _remove(work, lambda job: job == work.claimed.job, set())


def _remove(work: Work, whose: Callable[[int], bool], kept: Collection[Place]) -> None:
    home = Place(work.home)
    for child in home.children() if home.exists() else ():
        found = _OF_A_CLAIM.fullmatch(name_of(child.path))
        if found and home / name_of(child.path) not in kept and whose(int(found["job"])):
            (home / name_of(child.path)).remove_tree()


STEPS: Mapping[str, Callable[[Work, Facts], Facts]] = {
    "describe": describe,
    "copy": copy,
    "verify": verify,
    "settle": settle,
    "publish": publish_rows,
    "constrain": constrain,
    "grant": grant_reading,
    "clean": clean,
}
"""By their names, in their order."""


def remaining(first: str) -> list[str]:
    """The steps from one on; all of them from none on."""
    names = list(STEPS)
    return names[names.index(first) :] if first else names
