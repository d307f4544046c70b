"""The steps of a job, in order; each may run twice, and its results are stored when it completes:
describe   checks the table at the source, and whether its columns may be landed
copy       copies its rows into a directory of this claim, from one snapshot if the source offers one
verify     compares the directory's rows with the source's statistics, by another reader
settle     removes data subjects erased here, regardless of the request, and merges into existing rows if required
publish    makes the rows visible by a single metastore call; constrain adds the source's keys, which are not enforced
grant      grants read privileges to the consumers
clean      deletes directories of earlier claims of this job
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from cmroot.store.place import Place, parent
from cmroot.store.spelling import hadoop_place
from replicator.core.model import Column, Table
from replicator.core.text import parse_duration, quoted_name, quoted_text
from replicator.ingestion.drop_directory import DAY
from replicator.ingestion.file_description import PARENT, ROW
from replicator.ingestion.ingestion_request import check_scope
from replicator.ingestion.landing.erased import refuse_empty_list, without_erased
from replicator.ingestion.landing.file_steps import copy_files, landed_days, look_at_files, publish_days, written
from replicator.ingestion.landing.increments import (
    Bounds,
    bounds,
    compared,
    converted,
    is_due,
    key_of,
    key_values,
    merged,
    repeats,
    source_count,
    waiting_rows,
    window,
    without_landed,
)
from replicator.ingestion.landing.landing_log import (
    CopyDiffers,
    Facts,
    Work,
    carry_rights,
    clean,
    columns_for,
    grant,
    prepare,
    read,
    read_all,
    sizes_of,
)
from replicator.ingestion.landing.landing_schema import (
    SINCE,
    constraints_of,
    keep_constraints,
    key_holds,
    landed_until,
    schema_hash,
    watermark_text,
)
from replicator.ingestion.landing.publishing import (
    BaseChanged,
    Landed,
    landed_rows,
    landing_of,
    make_database,
    partitions_since,
    publish,
    recreates,
    refuse_loss,
    refuse_rows,
)
from replicator.ingestion.reading.figures import Figures, differences, landed_figures
from replicator.ingestion.reading.request_selection import check_selection, selected
from replicator.ingestion.reading.source import SourceDatabase, opened
from replicator.ingestion.reading.source_errors import source_error
from replicator.ingestion.reading.source_table import SourceTable

SETTLED = 900.0
"""Seconds for which the applied list of erased data subjects is recent enough to publish."""

ATTEMPTS = 3
"""Maximum number of merges of an increment into a table that is replaced concurrently."""


def describe(work: Work, facts: Facts) -> Facts:
    _check_scope(work, ())
    check_selection(work.request, work.asset)
    remembered = {"consumers": [], "erasure_ids": 0}  # the latter also for a job without rows to apply the list to
    kept = {"base": _base(work), **{name: work.remembered.get(name, none) for name, none in remembered.items()}}
    if work.source.path:
        return {**look_at_files(work), **kept}
    with opened(work.session, work.request.source, work.source) as database:
        _, table = database.of_request(work.request)
        return {"columns": _columns_of(work, selected(database.dialect, table, work.request)), **kept}


def _check_scope(work: Work, parts: Iterable[str]) -> None:
    """Raises OutOfScope. parts: tables into which nested rows were flattened."""
    db, table = work.request.target
    check_scope(work.asset, db, [table, *(work.part(name).request.target[1] for name in parts)], work.config)


def _columns_of(work: Work, source: SourceTable) -> list[list[str]]:
    return columns_for(work, [Column(column.name, column.type) for column in source.columns])


def _base(work: Work, before: str | None = None) -> str | None:
    """Returns the location of the rows into which others are merged. before: their former location; it is still valid,
    and its rows count, if the table is missing because it was being recreated with other columns."""
    if work.request.mode != "merge":
        return None
    if table := landing_of(work.metastore, work.asset, work.request):
        return table.location
    return before if before and Place(before).exists() else None


def copy(work: Work, facts: Facts) -> Facts:
    return copy_files(work) if work.source.path else _copy_table(work)


def _copy_table(work: Work, end: str = "") -> Facts:
    """Copies a table into a directory of this claim. end: a suffix of the directory's name."""
    request, source, began = work.request, work.source, time.time()
    check_selection(request, work.asset)
    directory = work.directory("in" if work.settles else "v") + end
    with opened(work.session, request.source, source) as given, contextlib.ExitStack() as stack:
        bounded = _bounds(work, given.of_request(request)[0])
        snapshot = stack.enter_context(given.snapshot(request.schema, request.table))
        database, table = given.of_request(request)  # it may have changed since it was described
        landed = selected(database.dialect, table, request)
        columns = _columns_of(work, landed)
        landing = landing_of(work.metastore, work.asset, request)
        low = landed_until(work.metastore, landing, request, _named(columns), work.claimed.job, work.remembered)
        where, high, more = "", None, Facts()
        if bounded is not None:
            known = None if request.rebuild else low
            where, high = window(database, table, request, known, bounded, parse_duration(work.config.ahead))
            more["late"] = msgspec.to_builtins(waiting_rows(database, table, request, bounded))
            more["counted"] = work.remembered.get("counted", {}) if not work.asset.erasure_ids else {}
            if is_due(more["counted"], work.config.recount) and not work.asset.erasure_ids:
                more["counted"] = source_count(database, table, request, high or known)
        ranges = database.ranges(table, request.split, source.readers, where, landed)
        frame = database.frame(landed, ranges, snapshot, where)
        names = {name.lower(): name for name in frame.columns}
        rows = frame.selectExpr(*(f"{quoted_name(names[name])} AS {quoted_name(name)}" for name, _ in columns))

        def write() -> None:
            try:
                rows.write.format(request.format).save(hadoop_place(directory))
            except Exception as error:
                raise source_error(error, request.source, source.secret(request.source)) from None

        before, figures = database.counted(landed, snapshot, where, write)
    return {
        "columns": columns,
        "source": msgspec.to_builtins(landed),
        "directory": directory,
        "figures": msgspec.to_builtins(figures),
        "checksum": hashlib.blake2s(msgspec.json.encode(figures), digest_size=16).hexdigest(),
        "changed_meanwhile": before != figures,
        "consistent": snapshot.consistent,
        "splits": len(ranges.predicates),
        "method": ranges.method,
        "low": low,
        "watermark": watermark_text(request, high or (None if request.rebuild else low)),
        "copy_seconds": round(time.time() - began, 3),
        **more,
    }


def _bounds(work: Work, database: SourceDatabase) -> Bounds | None:
    """Returns the bounds of an increment; None: all rows are read. Called before the snapshot: it has the rows of
    transactions that end until then."""
    request = work.request
    if request.watermark is None:
        return None
    table = database.table(request.schema, request.table)
    return bounds(database, table, request, work.claimed.job, work.remembered.get("late", {}))


def verify(work: Work, facts: Facts) -> Facts:
    """Compares the copy with the source; a copy of an earlier claim that differs is repeated. Raises CopyDiffers,
    unless the source changed during a copy without a snapshot: `consistent` records that."""
    found = _compared(work, facts)
    is_ours = facts["directory"] == work.directory("in" if work.settles else "v")
    if found["differs"] and not facts["changed_meanwhile"] and not is_ours:
        found = _compared(work, {**facts, **copy(work, facts)})
    return _agreed(work, found)


def _agreed(work: Work, found: Facts) -> Facts:
    if found["differs"] and not found["changed_meanwhile"]:
        told = f"{work.request.schema}.{work.request.table}: {'; '.join(found['differs'][:5])}"
        raise CopyDiffers(told, hint="it is copied again")
    return found


def _compared(work: Work, facts: Facts) -> Facts:
    """Returns the facts, with the numbers of rows that arrived in all tables into which they were flattened, and with
    differences from the source."""
    parts = {name: _compared(work.part(name), part) for name, part in facts.get("parts", {}).items()}
    landed = _figures(work, facts["directory"], facts)
    figures = facts["figures"]
    differs = differences(msgspec.convert(figures, Figures), landed) if figures is not None else []
    told = [f"{name}: {each}" for name, part in parts.items() for each in part["differs"]]
    return {**facts, **_with(parts), "came": landed.rows, "rows": landed.rows, "differs": differs + told}


def _with(parts: Mapping[str, Facts]) -> Facts:
    return {"parts": dict(parts)} if parts else {}


def _figures(work: Work, directory: str, facts: Facts) -> Figures:
    columns = msgspec.convert(facts["source"], SourceTable).columns
    sizes = sizes_of(directory)
    engine = work.engines.for_work(sizes["files"], sizes["bytes"])
    return landed_figures(engine, directory, columns, work.request.format)


def settle(work: Work, facts: Facts) -> Facts:
    found = _settled(work, facts)
    _judge(work, {**facts, **found})
    return found


def _judge(work: Work, facts: Facts) -> None:
    """Raises RowsRefused if the landing table would not have what the request demands."""
    request, columns, landed, before = work.request, _columns(facts), None, 0
    if not (request.not_null or request.unique or request.least_rows is not None):
        return
    landing = landing_of(work.metastore, work.asset, request) if request.mode == "append" else None
    if landing is not None and not facts.get("whole") and not request.rebuild:
        before = landed_rows(work.metastore, request, work.claimed.job)
        places = partitions_since(work.metastore, landing, 0, work.claimed.job) if request.unique else []
        landed = read_all(work.session, places, request.format, columns)
    rows = read(work.session, facts["location"], request.format, columns)
    refuse_rows(request, rows, landed, facts["rows"] + before)


def _settled(work: Work, facts: Facts, end: str = "") -> Facts:
    """Writes the rows to be published into a directory of this claim. end: a suffix of its name. Raises CopyDiffers if
    not all rows arrive there, RowsRefused for rows that cannot be landed, and as `check_selection`."""
    check_selection(work.request, work.asset)
    came = facts.get("parts", {})
    if not work.settles or ("days" in facts and not facts["came"]):
        return {**_as_they_came(facts), **_with({name: _as_they_came(part) for name, part in came.items()})}
    prepare(work.session)
    columns = _columns(facts)
    rows = read(work.session, facts["directory"], work.request.format, columns)
    base = _base(work, facts["base"] if end else None)
    keeps = base is not None and not work.request.rebuild
    before = read(work.session, base, work.request.format, columns) if base is not None and keeps else None
    erased: dict[str, int] = {}
    holds: Facts = {}
    if work.asset.erasure_ids and work.asset.erasure_column:
        rows, known = without_erased(work.session, rows, work.asset, columns)
        refuse_empty_list(work, known)
        erased = {"erasure_ids": known.ids, "strange_ids": known.strange, "erased_rows": facts["came"] - rows.count()}
        before = without_erased(work.session, before, work.asset, columns)[0] if before is not None else None
    if work.request.mode == "merge":
        source = msgspec.convert(facts["source"], SourceTable)
        rows = merged(before if before is not None else rows.limit(0), rows, work.request.key, source)
        holds["key_holds"] = not repeats(rows, key_values(source, work.request.key))
    if work.request.mode == "append" and _reads_again(work, facts):
        rows = _without_landed(work, facts, rows)
    if (landed := _landed_rows(work, columns, facts)) is not None:
        holds |= {"whole": True, **_all_days(work, facts)}
        if erased:
            landed = without_erased(work.session, landed, work.asset, columns)[0]
        rows = landed.unionByName(rows)
        facts = {**facts, **holds}
    done = {**_arrived(work, facts, rows, end), "base": base, "settled": time.time(), **erased, **holds}
    parts: dict[str, Facts] = {}
    for name, part in came.items():  # parents first
        of = parts.get(part["parent"], done)["location"]
        some = read(work.session, part["directory"], work.request.format, _columns(part))
        rows = read(work.session, of, work.request.format, [Column(ROW, "string")])
        kept = some.join(rows.selectExpr(f"{ROW} AS {PARENT}"), PARENT, "left_semi").select(*some.columns)
        if erased and (work.asset.erasure_column or "").lower() in kept.columns:  # may be another data subject
            belonging = kept.count()
            kept = without_erased(work.session, kept, work.asset, _columns(part))[0]
            done["erased_rows"] += belonging - kept.count()
        mine = work.part(name)
        if (landed := _landed_rows(mine, _columns(part), part)) is not None:
            part = {**part, "whole": True, **_all_days(mine, part)}
            kept = landed.unionByName(kept)
        parts[name] = {**part, **_arrived(mine, part, kept, end)}
    return {**done, **_with(parts)}


def _all_days(work: Work, facts: Facts) -> Facts:
    """Returns the days of a table that is replaced as a whole: landed ones, and those of this job, also by
    themselves."""
    if "days" not in facts:
        return {}
    landing, own = landing_of(work.metastore, work.asset, work.request), _own_days(facts)
    return {"days": {**landed_days(work.metastore, landing), **own}, "own_days": own}


def _own_days(facts: Facts) -> dict[str, str]:
    """Returns the days that this job lands: all others are rows of the table only."""
    return dict(facts["own_days"] if "own_days" in facts else facts["days"])


def _reads_again(work: Work, facts: Facts) -> bool:
    """Returns True if some of the rows may have landed before."""
    again = facts.get("late", {}).get("by") == "overlap" or work.request.backfill is not None
    return again and not work.request.rebuild


def _without_landed(work: Work, facts: Facts, rows: Any) -> Any:
    """Returns rows, some of which were read again, without those whose key has landed. Reads only partitions of jobs
    since the one at whose mark the overlap begins."""
    source = msgspec.convert(facts["source"], SourceTable)
    key = key_of(work.request, source)
    landing = landing_of(work.metastore, work.asset, work.request)
    since = 0 if work.request.backfill is not None else facts["late"].get("since", 0)
    places = partitions_since(work.metastore, landing, since, work.claimed.job)
    if not places:
        return rows
    of_key = [column for column in _columns(facts) if column.name in key]
    return without_landed(rows, read_all(work.session, places, work.request.format, of_key), key, source)


def _landed_rows(work: Work, columns: Sequence[Column], facts: Facts) -> Any:
    """Returns the rows of a partitioned table that is replaced by one with these columns, except those of days that
    this job lands; None: it is not replaced."""
    landing = landing_of(work.metastore, work.asset, work.request)
    if landing is None or landing.storage is None or not recreates(landing, columns, work.request):
        return None
    former = {column.name: column.type for column in landing.storage.columns}
    if "days" in facts:
        name = quoted_name(*work.request.target)
        work.session.sql(f"REFRESH TABLE {name}")
        rows = work.session.table(name)
        days = ", ".join(f"DATE {quoted_text(day)}" for day in _own_days(facts))
        return converted(rows.where(f"{DAY} NOT IN ({days})") if days else rows, {**former, DAY: "date"}, columns)
    places = partitions_since(work.metastore, landing, 0, work.claimed.job)
    rows = read_all(work.session, places, work.request.format, landing.storage.columns)
    return converted(rows, former, columns)


def _as_they_came(facts: Facts) -> Facts:
    return {**facts, "location": facts["directory"], **sizes_of(facts["directory"])}


def _arrived(work: Work, facts: Facts, rows: Any, end: str) -> Facts:
    """Writes rows, and counts them by another reader. Raises CopyDiffers."""
    location, wanted = work.directory("v") + end, rows.count()
    written(rows, work.request.format, location, facts)
    landed = _figures(work, location, facts).rows
    if landed != wanted:
        raise CopyDiffers(f"{location}: {landed} of {wanted} rows arrived", hint="it is retried")
    return {"location": location, "rows": landed, **sizes_of(location)}


def _columns(facts: Facts) -> tuple[Column, ...]:
    """Returns the columns of the files: if each day has a directory, the day is in its name."""
    day = [Column(DAY, "date")] if facts.get("days") else []
    return (*_named(facts["columns"]), *day)


def _named(columns: Iterable[Sequence[str]]) -> tuple[Column, ...]:
    return tuple(Column(*each) for each in columns)


def publish_rows(work: Work, facts: Facts) -> Facts:
    _check_scope(work, facts.get("parts", ()))
    make_database(work.metastore, work.asset, work.request, parent(work.home))
    parts = facts.get("parts", {})
    found = [landing_of(each.metastore, each.asset, each.request) for each in (work, *map(work.part, parts))]
    refuse_loss(work.metastore, work.request, found[0], facts["came"], work.config.max_loss)
    replaced = any(_is_replaced(work, *each) for each in zip((facts, *parts.values()), found, strict=True))
    if work.settles and facts["came"] and time.time() - facts.get("settled", 0.0) > SETTLED and not replaced:
        facts = _settled_again(work, facts)  # data subjects erased since then must not be restored
    for _ in range(ATTEMPTS):
        try:
            return _published(work, facts)
        except BaseChanged:
            facts = _settled_again(work, facts, copied=work.request.watermark is not None)
    return _published(work, facts)


def _is_replaced(work: Work, facts: Facts, table: Table | None) -> bool:
    """Returns True if an earlier claim has dropped the table: all its rows are in this job's directory only."""
    dropped = table is None or table.parameters.get(SINCE) == str(work.claimed.job)
    return bool(facts.get("whole")) and dropped


def _settled_again(work: Work, facts: Facts, *, copied: bool = False) -> Facts:
    """Settles again into another directory, because the former one may have been published by a call whose response was
    lost. copied: copies again first."""
    left = [*facts.get("left", []), facts["location"]]
    end = f"-{len(left)}"
    if copied:
        facts = _agreed(work, _compared(work, {**facts, **_copy_table(work, end)}))
    again = _settled(work, facts, end)
    _judge(work, {**facts, **again})
    for part, before in ((part, facts["parts"][name]) for name, part in again.get("parts", {}).items()):
        part["left"] = [*before.get("left", []), before["location"]]
    return {**facts, **again, "left": left}


def _published(work: Work, facts: Facts) -> Facts:
    """Publishes the rows. Tables into which they were flattened come first, so that readers of the rows find them."""
    parts = {name: _published(work.part(name), part) for name, part in facts.get("parts", {}).items()}
    if work.request.rebuild and work.request.mode == "append":
        facts = {**facts, "whole": True}
    claimed = work.claimed
    landed = Landed.of(facts, job=claimed.job, fence=claimed.fence, home=work.home, remembered=work.remembered)
    lacking = [carry_rights(work, landed, facts.get("days", ())), *(part["rights"] for part in parts.values())]
    if "days" in facts:
        done = publish_days(work.metastore, work.asset, work.request, landed, facts["days"])
    else:
        done = publish(work.metastore, work.asset, work.request, landed)
    if "source" in (counted := facts.get("counted", {})) and "landed" not in counted:
        facts = {**facts, "counted": compared(counted, landed_rows(work.metastore, work.request))}
    appends = work.request.mode == "append"  # such tables are sealed once, on creation
    hashed = schema_hash(landed.columns, work.request.format, appends)
    found = {"event": done.event, "schema_changed": done.schema_changed, "schema_hash": hashed, "sealed": not appends}
    found["rights"] = next(filter(None, lacking), "")
    return {**facts, **_with(parts), **found, **({"location": ""} if done.empty else {})}


def constrain(work: Work, facts: Facts) -> Facts:
    source = msgspec.convert(facts["source"], SourceTable)
    wanted = constraints_of(source, work.request, holds=key_holds(work.request, facts, source))
    refused = keep_constraints(work.metastore, work.request, wanted)
    below = [constrain(work.part(name), part) for name, part in facts.get("parts", {}).items()]
    return {"constraints_refused": [*refused, *(told for each in below for told in each["constraints_refused"])]}


def grant_reading(work: Work, facts: Facts) -> Facts:
    asset, former = work.asset, work.remembered.get("consumers", ())
    granted = grant(work.metastore, *work.request.target, asset.consumers, asset.owner, former)
    for name, part in facts.get("parts", {}).items():
        grant_reading(work.part(name), part)
    return {"granted": granted, "consumers": list(asset.consumers)}


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
"""Steps by name, in order."""


def remaining(first: str) -> list[str]:
    """Returns the names of the steps from `first` on; of all steps if it is empty."""
    names = list(STEPS)
    return names[names.index(first) :] if first else names
