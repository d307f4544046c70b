"""Increments: which rows of a source a job lands, and up to which value of the watermark they are complete.

A row may become visible after rows with a greater watermark have landed: its transaction drew a value first, and
committed last. Three ways to land it nevertheless:
transactions   a job reads up to a value that was the greatest before the oldest running transaction began
overlap        a job reads rows of the last `late` again, and lands those whose key has not landed
declared       `late = "0s"`: rows never become visible late
If none is possible, the job says why, and counts are compared (`missing`) whatever the way is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from replicator.core.model import Column, Value
from replicator.core.text import parse_duration, quoted_name
from replicator.errors import SourceRefused
from replicator.ingestion.ingestion_request import Request
from replicator.ingestion.landing.landing_schema import RowsRefused
from replicator.ingestion.reading.source import SourceDatabase
from replicator.ingestion.reading.source_table import SourceColumn, SourceTable

MARKS = 100
"""Maximum number of observations that a job passes on to the next one."""

POLL = 0.25
"""Seconds between two looks at the source's transactions."""

NOTHING = "1 = 0"


class Mark(Value, frozen=True, omit_defaults=True):
    """An observation of a source. until: the greatest value of the watermark. at: the time of this machine's clock, in
    seconds since 1970. job: which observed it. open: transactions that were open after `until` was read; below: on a
    standby, the first transaction number that had not been assigned then."""

    until: str
    at: float
    job: int
    open: tuple[str, ...] = ()
    below: int = 0


class Bounds(Value, frozen=True, omit_defaults=True):
    """How an increment is bounded. column: the watermark. by: transactions, overlap, declared or none. why: the reason
    for none. start: an overlap begins after this value; None: with all rows. since: the job that observed it. end: rows
    up to this value are complete; None: none are known to be. held_by: transactions that hold back later rows.
    held_back: visible rows that wait for them. marks: for the next job. final: up to this mark rows were complete when
    this job read, by `late`. floor: a watermark set by a user: an overlap has no rows up to it."""

    column: str
    by: str
    why: str = ""
    start: str | None = None
    since: int = 0
    end: str | None = None
    held_by: tuple[str, ...] = ()
    held_back: int = 0
    marks: tuple[Mark, ...] = ()
    final: Mark | None = None
    floor: str | None = None


@dataclass(frozen=True)
class OpenTransactions:
    """Transactions of a source at one moment. ids: those that may still write. prepared: of them, those whose session
    has ended. oldest, next: on a standby, the oldest running transaction's number, and the next one to assign."""

    ids: tuple[str, ...]
    prepared: bool = False
    oldest: int = 0
    next: int = 0

    def block(self, mark: Mark) -> bool:
        """Returns True if a transaction that was open at the mark may still be. A prepared one has lost its name."""
        if bool(self.next) != bool(mark.below):
            return True  # observed on the primary, and now on a standby, or the reverse: nothing is known
        return self.prepared or bool({*self.ids} & {*mark.open}) or self.oldest < mark.below


# ---- running transactions --------------------------------------------------------------------------------------------


_WRITES = """ AND EXISTS (SELECT FROM pg_catalog.pg_locks w WHERE w.pid = l.pid AND w.granted AND (
  w.locktype = 'transactionid' OR w.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'AccessExclusiveLock')))"""
"""A number is drawn from a sequence with a lock on the sequence or on the table, which lasts as long as the
transaction. A time may be that of its begin, before it has locked anything."""

_POSTGRES_OPEN = """SELECT l.pid::text || '-' || l.virtualtransaction FROM pg_catalog.pg_locks l
JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'virtualxid' AND l.granted AND l.pid <> pg_catalog.pg_backend_pid() AND a.usesysid <> 0
  AND a.datname = pg_catalog.current_database()
  AND NOT (a.usename = CURRENT_USER AND a.application_name = 'replicator'){writes}
UNION ALL SELECT 'prepared ' || transaction::text FROM pg_catalog.pg_prepared_xacts
WHERE database = pg_catalog.current_database()"""
"""Each transaction has a virtual number, which all users see. Readers of this program write nothing."""

_POSTGRES_STANDBY = """SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN 1 ELSE 0 END,
  pg_catalog.txid_snapshot_xmin(s), pg_catalog.txid_snapshot_xmax(s) FROM pg_catalog.txid_current_snapshot() s"""

_INNODB_OPEN = """SELECT CASE WHEN trx_mysql_thread_id = 0 THEN CONCAT('prepared ', trx_id)
  ELSE CONCAT(trx_mysql_thread_id, '-', trx_started) END FROM information_schema.INNODB_TRX
WHERE trx_mysql_thread_id <> CONNECTION_ID() AND trx_is_read_only = 0 AND trx_autocommit_non_locking = 0
  AND (trx_rows_modified > 0 OR trx_query IS NOT NULL OR trx_lock_structs > 0)"""
"""A value is drawn by the statement that inserts the row: idle transactions without a change have drawn none."""

_INNODB_REPLICA = """SELECT COUNT(*) FROM information_schema.PROCESSLIST
WHERE USER = 'system user' AND COMMAND <> 'Daemon'"""


def open_transactions(database: SourceDatabase, column: SourceColumn) -> OpenTransactions:
    """Returns transactions that may write a value of the column that they have drawn already. Raises SourceRefused if
    the source does not show them to its user."""
    control = database.control
    if database.source.kind != "postgresql":
        control.rows("SELECT SLEEP(0.11)")  # the server shows transactions as they were up to 0.1 seconds ago
        ids = tuple(row[0] or "" for row in control.rows(_INNODB_OPEN))
        return OpenTransactions(ids, any(each.startswith("prepared ") for each in ids))
    standby, oldest, following = (int(each or 0) for each in control.rows(_POSTGRES_STANDBY)[0])
    if standby:
        return OpenTransactions((), False, oldest, following)
    writes = "" if column.type.startswith(("date", "timestamp")) else _WRITES
    ids = tuple(row[0] or "" for row in control.rows(_POSTGRES_OPEN.format(writes=writes)))
    return OpenTransactions(ids, any(each.startswith("prepared ") for each in ids))


def _hidden(database: SourceDatabase, table: SourceTable, column: SourceColumn) -> str:
    """Returns why running transactions cannot be known, or ""."""
    if table.is_foreign:
        return "it is a foreign table: transactions of its own server are not visible"
    if database.source.kind == "jdbc":
        return "a database of its kind does not show its transactions"
    try:
        if database.source.kind != "postgresql" and database.control.rows(_INNODB_REPLICA)[0][0] != "0":
            return "the source is a replica: transactions of its primary are not visible"
        open_transactions(database, column)
    except SourceRefused as error:
        return f"its user may not see transactions ({error.message[:200]}); grant PROCESS"
    return ""


# ---- bounds ----------------------------------------------------------------------------------------------------------


def bounds(
    database: SourceDatabase,
    table: SourceTable,
    request: Request,
    job: int,
    before: Mapping[str, Any],
    pause: Callable[[float], None] = time.sleep,
) -> Bounds:
    """Returns the bounds of an increment; called before the snapshot of the rows is taken. before: bounds of the job
    before, in JSON; may be empty. Waits for running transactions for a few seconds."""
    assert request.watermark
    column = table.column(request.watermark)
    former = msgspec.convert(before, Bounds) if before.get("column") == column.name.lower() else Bounds("", "none")
    made = Bounds(column.name.lower(), "none")
    if request.late is not None:
        return _overlap(database, table, request, job, (made, former))
    if why := _hidden(database, table, column):
        return msgspec.structs.replace(made, why=f"{table.schema}.{table.name}: {why}")
    until = database.greatest(table, column.name)
    now = open_transactions(database, column)
    marks = former.marks
    if until is not None:
        mark = Mark(until, time.time(), job, now.ids, now.next)
        marks = (*marks, mark)
        ended = time.monotonic() + database.patience.open
        while now.block(mark) and time.monotonic() < ended:
            pause(POLL)
            now = open_transactions(database, column)
    free = [number for number, each in enumerate(marks) if not now.block(each)]
    last = free[-1] if free else -1
    held = until is not None and last < len(marks) - 1
    return msgspec.structs.replace(
        made,
        by="transactions",
        end=marks[last].until if free else None,
        held_by=(now.ids or (f"transaction {now.oldest} of the primary",))[:10] if held else (),
        marks=marks[max(last, len(marks) - MARKS, 0) :],
    )


def _overlap(
    database: SourceDatabase, table: SourceTable, request: Request, job: int, known: tuple[Bounds, Bounds]
) -> Bounds:
    """Returns bounds by `late`: rows up to a mark are complete if the mark is older than that. So the next job begins
    at the newest mark that was complete when this one read."""
    made, former = known
    assert request.watermark and request.late is not None
    late = parse_duration(request.late).total_seconds()
    if not late:
        return msgspec.structs.replace(made, by="declared")
    if request.mode == "append" and not key_of(request, table):
        raise _no_key(table, "late")
    until, now = database.greatest(table, request.watermark), time.time()
    marks = former.marks if until is None else (*former.marks, Mark(until, now, job))
    old = [each for each in marks if each.at + late <= now]
    young = [each for each in marks if each.at + late > now]
    apart = max(1, -(-len(young) // MARKS))
    began = former.final
    return msgspec.structs.replace(
        made,
        by="overlap",
        start=began.until if began else None,
        since=began.job if began else 0,
        marks=(*old[-1:], *young[::apart]),
        final=old[-1] if old else began,
        floor=former.floor,
    )


def with_mark(late: Mapping[str, Any], value: str | None, job: int) -> dict[str, Any]:
    """Returns the bounds of a job, in JSON, after its watermark was set to a value, or removed: an overlap begins
    there."""
    if late.get("by") != "overlap":
        return dict(late)
    former = msgspec.convert(late, Bounds)
    final = former.final if value is None else Mark(value, time.time(), job)
    return dict(msgspec.to_builtins(msgspec.structs.replace(former, floor=value, final=final)))


def _no_key(table: SourceTable, why: str) -> RowsRefused:
    return RowsRefused(
        f"{table.schema}.{table.name} has no primary key: rows that are read again cannot be recognized",
        hint=f"name columns that identify a row as the key, or request without {why}",
    )


def key_of(request: Request, table: SourceTable) -> tuple[str, ...]:
    """Returns the columns that identify a row, in lower case; may be empty."""
    return tuple(each.lower() for each in request.key or table.primary_key)


# ---- the window ------------------------------------------------------------------------------------------------------


def _beyond(column: SourceColumn, text: str, now: float, ahead: timedelta) -> str:
    """Returns why the text of a date or time is no bound for later rows, or ""."""
    if not column.type.startswith(("date", "timestamp")):
        return ""
    match = re.match(r"(\d{4,6})-(\d\d)-(\d\d)", text)
    if match is None or "00" in match.groups()[1:]:
        return "which is no date"
    latest = datetime.fromtimestamp(now, UTC) + ahead
    return "which is in the future" if tuple(map(int, match.groups())) > latest.timetuple()[:3] else ""


def window(
    database: SourceDatabase,
    table: SourceTable,
    request: Request,
    low: str | None,
    bounded: Bounds,
    ahead: timedelta = timedelta(days=1),
) -> tuple[str, str | None]:
    """Returns a condition for the rows to read, and the greatest value among the new ones; None: there are none. A
    merge reads rows with the value `low` again, because rows may have been added with it since, and duplicates are
    resolved by key. ahead: how far a time may be ahead of this machine's clock. Raises RowsRefused for rows without a
    value, which would never be read, and for a greatest value after which none would."""
    assert request.watermark
    column = table.column(request.watermark)
    name = column.name
    if re.match(r"(enum|set)\(", column.source_type, re.IGNORECASE):
        raise RowsRefused(
            f"the watermark {name} of {table.schema}.{table.name} is {column.source_type[:60]}: its greatest value is"
            " not that of the newest row",
            hint="choose a number or a time that grows with each row",
        )
    if nulls := database.nulls(table, name):
        raise RowsRefused(
            f"{nulls} rows of {table.schema}.{table.name} have NULL in the watermark {name}: they would never land",
            hint="choose a column without NULL, or request mode overwrite",
        )
    same = request.mode == "merge"
    new = [database.after(table, name, low, same=same)] if low else []
    if bounded.by == "transactions":
        new.append(f"NOT ({database.after(table, name, bounded.end)})" if bounded.end is not None else NOTHING)
    high = database.greatest(table, name, _all(new))
    if high is not None and (why := _beyond(column, high, time.time(), ahead)):
        raise RowsRefused(
            f"the greatest watermark {name} of {table.schema}.{table.name} is {high[:40]}, {why}: rows with present"
            " times would never land after it",
            hint="correct the row at the source, land a view without such rows, or choose another watermark",
        )
    if bounded.by == "overlap" and low is not None:
        starts = (each for each in (bounded.start, bounded.floor) if each is not None)
        new = [database.after(table, name, each, same=same) for each in dict.fromkeys(starts)]
        high = high if high is not None else low
    if request.backfill is not None and request.mode == "append" and not key_of(request, table):
        raise _no_key(table, "backfill")
    if request.backfill is not None and low is not None:
        new = [database.after(table, name, request.backfill, same=True)]
        high = high if high is not None else low
    if high is None:
        return _all(new), None
    until = f"NOT ({database.after(table, name, high)})"  # rows added concurrently are read by the next job
    return _all([*new, until]), high


def _all(conditions: Iterable[str]) -> str:
    return " AND ".join(f"({each})" for each in conditions)


def waiting_rows(database: SourceDatabase, table: SourceTable, request: Request, bounded: Bounds) -> Bounds:
    """Returns the bounds with the number of visible rows that wait for a transaction."""
    if not bounded.held_by or request.watermark is None:
        return bounded
    where = database.after(table, request.watermark, bounded.end) if bounded.end is not None else ""
    return msgspec.structs.replace(bounded, held_back=database.count(table, where))


# ---- joining the landed rows -----------------------------------------------------------------------------------------


_SIMPLE = re.compile(
    r"(latin1|ascii|utf8|utf8mb3|utf8mb4)_(general|unicode|unicode_520|uca1400|0900)(_nopad)?(_a[is])?_c[is]"
    r"|(latin1|ascii|utf8|utf8mb3|utf8mb4)(_0900|_nopad)?_bin|latin1_swedish(_nopad)?_ci|citext"
)
"""Collations by which ASCII texts are equal if, and only if, they differ at most in case and trailing blanks."""

_OTHER = "[^ -~]"


def match_of(collation: str) -> tuple[str, ...] | None:
    """Returns how texts compare by a collation: casefold, trim (trailing blanks), ascii (only texts of ASCII compare
    so); None: unknown. Without a collation they compare by their bytes."""
    trim = () if re.search("nopad|_0900_|^citext$", collation) else ("trim",)
    if collation in ("", "binary"):
        return ()
    if collation.endswith("_bin"):
        return trim if _SIMPLE.fullmatch(collation) else None
    if not _SIMPLE.fullmatch(collation):
        return None
    return ("ascii", *trim) if collation.endswith("_cs") else ("ascii", "casefold", *trim)


def key_values(table: SourceTable, key: Sequence[str], *frames: Any) -> list[str]:
    """Returns SQL for the values of a key that are equal if the source's are. frames: rows whose keys are compared.
    Raises RowsRefused, naming the collation, for values of which this is not known."""
    collations = {each.name.lower(): each.collation for each in table.columns}
    found = []
    for each in key:
        name, collation = quoted_name(each.lower()), collations.get(each.lower(), "")
        rules = match_of(collation)
        if rules is None or ("ascii" in rules and any(_has_other_than_ascii(frame, name) for frame in frames)):
            which = "its texts" if rules is None else "texts other than ASCII"
            raise RowsRefused(
                f"column {each} of the key has the collation {collation}, by which {which} may be equal though their"
                " bytes differ",
                hint="land a view whose key has a binary collation, or is a number",
            )
        trimmed = f"rtrim({name})" if "trim" in rules else name
        found.append(f"lower({trimmed})" if "casefold" in rules else trimmed)
    return found


def _has_other_than_ascii(frame: Any, name: str) -> bool:
    return bool(frame.where(f"{name} RLIKE '{_OTHER}'").limit(1).count())


def merged(base: Any, increment: Any, key: Sequence[str], table: SourceTable) -> Any:
    """Returns the base's rows except those whose key is in the increment, and the increment's rows. Keys compare as in
    their source `table`. Raises RowsRefused if a key in the increment is null or not unique: it would be ambiguous
    which row counts."""
    names = [quoted_name(each.lower()) for each in key]
    null = increment.where(" OR ".join(f"{name} IS NULL" for name in names)).limit(1).count()
    if null:
        raise RowsRefused(f"rows have NULL in the key ({', '.join(key)})", hint="request a key without NULL")
    values = key_values(table, key, base, increment)
    if repeats(increment, values):
        raise RowsRefused(f"the key ({', '.join(key)}) is not unique in the source", hint="request the primary key")
    return _without(base, increment, values).unionByName(increment)


def repeats(rows: Any, values: Sequence[str]) -> bool:
    """Returns True if rows have equal keys. values: see `key_values`."""
    keys = rows.selectExpr(f"struct({', '.join(values)}) AS key")
    return bool(keys.groupBy("key").count().where("count > 1").limit(1).count())


def without_landed(increment: Any, landed: Any, key: Sequence[str], table: SourceTable) -> Any:
    """Returns the increment's rows whose key has not landed. landed: at least the columns of the key."""
    return _without(increment, landed, key_values(table, key, increment, landed))


def _without(rows: Any, others: Any, values: Sequence[str]) -> Any:
    """Returns the rows, in their columns, whose key is not in others."""
    names = [f"key {number}" for number in range(len(values))]
    made = [f"{value} AS {quoted_name(name)}" for value, name in zip(values, names, strict=True)]
    kept = rows.selectExpr("*", *made).join(others.selectExpr(*made), names, "left_anti")
    return kept.select(*map(quoted_name, rows.columns))


def converted(rows: Any, former: Mapping[str, str], columns: Sequence[Column]) -> Any:
    """Returns landed rows with other columns: without those that no longer exist, and with NULL in new ones. former:
    the types of their columns, by name. Raises RowsRefused, naming a column, for values that another type would
    change."""
    changed = [each for each in columns if former.get(each.name, each.type) != each.type]
    for each in changed:
        name, type_ = quoted_name(each.name), former[each.name]
        lossy = f"NOT try_cast(try_cast({name} AS {each.type}) AS {type_}) <=> {name}"
        if example := rows.where(lossy).selectExpr(name).first():
            value = str(example[0])[:60]
            raise RowsRefused(
                f"landed values of column {each.name} ({type_}), such as {value!r}, do not fit {each.type}",
                hint="drop the table, not its files, and land all rows again",
            )
    values = ((quoted_name(each.name) if each.name in former else "NULL", each) for each in columns)
    return rows.selectExpr(*(f"CAST({value} AS {each.type}) AS {quoted_name(each.name)}" for value, each in values))


# ---- counts ----------------------------------------------------------------------------------------------------------


def is_due(before: Mapping[str, Any], every: str) -> bool:
    """Returns True if counts of source and landing table are to be compared. before: the comparison before, if any."""
    return (
        bool(before.get("missing"))
        or float(before.get("at", 0.0)) + parse_duration(every).total_seconds() <= time.time()
    )


def source_count(
    database: SourceDatabase, table: SourceTable, request: Request, until: str | None
) -> Mapping[str, Any]:
    """Returns the number of the source's rows up to a value, with the time."""
    assert request.watermark
    where = f"NOT ({database.after(table, request.watermark, until)})" if until is not None else NOTHING
    return {"source": database.count(table, where), "until": until, "at": time.time()}


def compared(counted: Mapping[str, Any], landed: int) -> dict[str, Any]:
    """Returns a comparison with the landed rows. missing: rows of the source that have not landed; the landing table
    may have more, which the source has deleted."""
    return {**counted, "landed": landed, "missing": max(int(counted["source"]) - landed, 0)}


def lacking(facts: Mapping[str, Any], table: str) -> str:
    """Returns what a landing table lacks, as a sentence, or ""."""
    counted = facts.get("counted", {})
    if not counted.get("missing"):
        return ""
    return (
        f"{table}: {counted['landed']:,} of the source's {counted['source']:,} rows up to {counted['until']} have"
        " landed; request late, or land it again"
    )


def unguarded(facts: Mapping[str, Any]) -> str:
    """Returns why rows of transactions that commit late may be missed, or ""."""
    return str(facts.get("late", {}).get("why", ""))
