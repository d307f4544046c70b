"""`replicator ingest` for landing tables: `verify` compares them with their sources, `mark` shows and sets their
watermarks, `watch` finds writes by others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click

from replicator.cli.options import Session, json_option, json_options, options_of, pass_session
from replicator.cli.output import aligned, columns, count_text, emit
from replicator.commands.landing_tables import LandingsVerified, Watched, ingest_mark, ingest_verify, ingest_watch
from replicator.core.not_replicated import PARTIAL
from replicator.ingestion.comparison import TableCompared
from replicator.ingestion.ingestion_request import SINGLE_USER
from replicator.ingestion.ingestion_shown import IngestionReport

DIFFERENT = 4


def emit_report(report: IngestionReport, as_json: bool, lines: Iterable[str]) -> None:
    """Writes a report; in single-user mode, the warning comes first."""
    emit(report, as_json, [f"single-user mode, {SINGLE_USER}", *lines] if report.single_user else lines)


@click.command()
@options_of(ingest_verify, engine=True)
@json_options
@pass_session
def verify(session: Session, /, as_json: bool, **given: Any) -> int:
    """Compare landing tables with their sources, by ranges of the key that each side counts and hashes on its own.

    Rows that differ are named by their keys: missing at the landing, deleted at the source, or different. Exit code 4
    if a table differs, 3 if none does and something was not compared. An increment is compared up to its watermark;
    changes of the source since then, and since an overwrite, are differences.

    \b
    Example:
      replicator ingest verify crm
      replicator ingest verify crm:public.orders --limit 1000
      replicator ingest verify 17
    """
    report = session.call(ingest_verify, **given)
    emit_report(report, as_json, _verify_lines(report))
    return {"different": DIFFERENT, "partial": PARTIAL}.get(report.status, 0)


def _verify_lines(report: LandingsVerified) -> Iterator[str]:
    for each in report.tables:
        yield from (f"{each.table}  {row.kind}: {_key(row.key)}" for row in each.rows)
        hidden = each.missing + each.deleted + each.different - len(each.rows)
        if hidden > 0:
            yield f"{each.table}  ... and {count_text(hidden, 'more row')} (--limit)"
        for one in each.unnamed:
            span = f"{one.column or 'all rows'} from {one.begin or 'the first'} to {one.end or 'the last'}"
            yield f"{each.table}  {span}: {one.landed:,} landed, {one.source:,} at the source; {one.why}"
        yield from (f"{each.table}  not compared: {why}" for why in each.not_compared)
        yield f"{each.table}: {_summary(each)}"
    yield report.status


def _key(key: tuple[str | None, ...]) -> str:
    return ", ".join("NULL" if each is None else each for each in key)


def _summary(each: TableCompared) -> str:
    told = [f"landed {each.landed:,}, source {each.source_rows:,}", count_text(each.ranges, "range")]
    told += [f"up to {each.until}"] if each.until is not None else []
    for name in ("missing", "deleted", "different", "waiting", "erased"):
        told += [f"{getattr(each, name):,} {name}"] if getattr(each, name) else []
    return ", ".join(told)


@click.command()
@options_of(ingest_mark)
@json_option
@pass_session
def mark(session: Session, /, as_json: bool, **given: Any) -> int:
    """Show the watermarks of landing tables, or change that of one table; `ingest show` lists changes with user and
    reason.

    A mark of an appended table only moves forward: rows between are left out. To read rows again, use
    `ingest request --backfill`.

    \b
    Example:
      replicator ingest mark crm
      replicator ingest mark crm:public.orders --set 2026-01-01 --reason "corrected at the source"
      replicator ingest mark crm:public.orders --clear --reason "read all rows again"
    """
    shown = session.call(ingest_mark, **given)
    rows = [(one.table, one.source, one.mode, one.column, one.value or "none", one.job) for one in shown.marks]
    head = ("table", "from", "mode", "column", "value", "job")
    emit(shown, as_json, columns(head, rows, right=("job",)) if rows else ["no watermarks"])
    return 0


@click.command()
@options_of(ingest_watch, engine=True)
@json_options
@pass_session
def watch(session: Session, /, as_json: bool, **given: Any) -> int:
    """Find changes by other writers to landing tables, which only ingestion may change.

    Compares each table with the publication of its newest job, and names those that policies replicate although their
    classification does not allow it. If there are any, the exit code is 3, and receivers of [ingestion.notify]
    failures get a message, with the users that files and the metastore name. The exit code is also 3 if a table
    differs while a job may be publishing it.

    \b
    Example: replicator ingest watch
    """
    done = session.call(ingest_watch, **given)
    emit_report(done, as_json, _watch_lines(done))
    return PARTIAL if done.status != "quiet" or done.untold else 0


def _watch_lines(done: Watched) -> list[str]:
    lines: list[tuple[str, str | None]] = [(done.status, count_text(done.tables, "landing table"))]
    for each in done.found:
        by = ", ".join(each.by) or "unknown user"
        lines += [(each.table, what) for what in each.what]
        lines.append(("by", f"{by}; events: {', '.join(each.events) or 'none'}"))
    lines += [("unsure", f"{each} differs, and a job may have published it") for each in done.unsure]
    lines += [("beyond", f"policy {policy} replicates {', '.join(each)}") for policy, each in done.beyond.items()]
    return aligned([*lines, *(("untold", name) for name in done.untold)])
