"""`replicator ingest`: requests for landings, and the jobs that they become. And `asset`: who may land which data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import click

from replicator.cli.landing_tables import emit_report, mark, verify, watch
from replicator.cli.options import Session, json_option, json_options, options_of, pass_session
from replicator.cli.output import aligned, columns, count_text, duration_text, emit, note, size_text, time_text
from replicator.commands.asset import asset_approve, asset_create, asset_ls, asset_show
from replicator.commands.ingest import (
    ingest_cancel,
    ingest_drop_zone,
    ingest_ls,
    ingest_run,
    ingest_show,
    ingest_stats,
    ingest_take,
)
from replicator.commands.ingest_request import ingest_request
from replicator.core.not_replicated import PARTIAL
from replicator.core.runtime import Stopping
from replicator.ingestion.ingestion_request import JobDetail, Request
from replicator.ingestion.ingestion_shown import AssetShown, IngestionRequested, IngestionStats, TableRequested
from replicator.ingestion.job_queries import PERCENTILES
from replicator.ingestion.notices import Undelivered


@click.group()
def ingest() -> None:
    """Land tables of other databases in the warehouse, by request.

    \b
    Example:
      replicator ingest request crm:public.orders --asset crm
      replicator ingest run
      replicator ingest ls --asset crm
    """


@ingest.command(name="request")
@options_of(ingest_request, engine=True)
@json_options
@pass_session
def request(session: Session, /, as_json: bool, **given: Any) -> int:
    """Request that tables are landed; a controller does it later. Of waiting requests for one table, the last counts.

    Of several tables, each that is refused is named: exit code 3. --dry-run queues nothing: it reads the columns and a
    sample of the rows (of files, all rows), and shows columns, types, rows, ranges, and what would be refused.

    \b
    Example:
      replicator ingest request crm:public.orders --asset crm --dry-run
      replicator ingest request crm:public --include 'order.*' --exclude '.*_old' --asset crm
      replicator ingest request crm:public.log --asset crm --mode append --watermark id
      replicator ingest request crm:public.orders --asset crm --mode merge --key id --watermark changed
      replicator ingest request drop:day.clicks --asset web --mode append   # files of days that are closed
    """
    done = session.call(ingest_request, **given)
    emit_report(done, as_json, _request_lines(done))
    return PARTIAL if done.status in ("partial", "refused") else 0


def _request_lines(done: IngestionRequested) -> list[str]:
    if len(done.tables) == 1 and done.job:
        job, lands = f"{done.job}, {done.status}, position {done.position}", f"{done.source} in {done.target}"
        replaces = f"job {done.replaces}" if done.replaces else None
        unchecked = None if done.checked else f"not at the source: {done.unchecked}"
        return aligned([("job", job), ("lands", lands), ("replaces", replaces), ("checked", unchecked)])
    if any(each.plan for each in done.tables):
        return [line for one in done.tables for line in (*_plan_lines(one), "")][:-1]
    rows = [(one.table, f"job {one.job}" if one.job else one.status, one.target, _why(one)) for one in done.tables]
    return columns(("table", "became", "lands in", "remark"), rows)


def _why(one: TableRequested) -> str:
    hint = f" ({one.hint})" if one.hint else ""
    return f"{one.error}{hint}" if one.error else one.unchecked and f"not checked at the source: {one.unchecked}"


def _plan_lines(one: TableRequested) -> list[str]:
    if one.plan is None:
        return [f"{one.table} would be refused: {_why(one)}"]
    plan = one.plan
    rows = "rows" if plan.rows is None else f"{'' if plan.exact else 'about '}{count_text(plan.rows, 'row')}"
    readers = count_text(plan.readers, "reader") + (f" in ranges of {plan.split}" if plan.split else "")
    lines = [f"{one.table} would land in {one.target}: {rows}, {readers}"]
    lines += [f"nested rows would land in {name}" for name in plan.parts]
    shown = [(each.source, each.source_type, each.name, each.type) for each in plan.columns]
    return [*lines, *columns(("column", "at the source", "lands as", "with type"), shown)]


@ingest.command(name="run")
@options_of(ingest_run, engine=True)
@json_options
@pass_session
def run(session: Session, /, as_json: bool, **given: Any) -> int:
    """Run a controller, which processes jobs. Any number may run; if one is killed, another continues its jobs.

    Exit 3 if a job failed or a message was not delivered; a later run retries them automatically where possible. Also
    if a landing table has fewer rows than its source, may miss late rows, or lacks rights of the rows that it replaced.

    \b
    Example:
      replicator ingest run
      replicator ingest run --follow
    """
    with Stopping(timedelta(minutes=5)) as stop:
        done = session.call(ingest_run, stop=stop, **given)
    for each in done.errors:
        note(each)
    lines = [
        ("jobs", f"{done.done} done, {done.failed} failed, {done.lost} taken over"),
        ("landed", f"{count_text(done.rows, 'row')}, {size_text(done.bytes)}"),
        ("missing", done.missing),
        ("may miss rows", done.unguarded),
        ("lack rights", done.lacking),
        ("not delivered", count_text(done.undelivered, "message") if done.undelivered else None),
    ]
    emit_report(done, as_json, aligned(lines))
    return PARTIAL if done.status == "partial" else 0


@ingest.command(name="ls")
@options_of(ingest_ls)
@json_option
@pass_session
def list_jobs(session: Session, /, as_json: bool, **given: Any) -> int:
    """List jobs, newest first.

    \b
    Example:
      replicator ingest ls --asset crm
      replicator ingest ls --state failed --state failed_user --state failed_type
    """
    shown = session.call(ingest_ls, **given)
    rows = [
        (one.job, one.state, one.step, one.asset, one.source, one.requested_by, time_text(one.queued), one.error_text)
        for one in shown.jobs
    ]
    head = ("job", "state", "step", "asset", "from", "by", "queued", "error")
    lines = columns(head, rows, right=("job",)) if rows else ["no jobs"]
    if len(shown.jobs) == given["limit"]:
        lines.append(f"for more: --before {shown.jobs[-1].job}")
    emit_report(shown, as_json, lines)
    return 0


@ingest.command(name="show")
@options_of(ingest_show)
@json_option
@pass_session
def show(session: Session, /, as_json: bool, **given: Any) -> int:
    """Show a job: its request, its changes, its error in detail, and messages that were not delivered.

    \b
    Example: replicator ingest show 17
    """
    shown = session.call(ingest_show, **given)
    emit_report(shown, as_json, _job_lines(shown.detail, shown.undelivered))
    return 0


@ingest.command(name="stats")
@options_of(ingest_stats)
@json_option
@pass_session
def stats(session: Session, /, as_json: bool, **given: Any) -> int:
    """Show the state of ingestion: waits for a slot, times from request to publication, landed data by day.

    \b
    Example:
      replicator ingest stats
      replicator ingest stats --within 1d --json
    """
    shown = session.call(ingest_stats, **given)
    emit_report(shown, as_json, _stats_lines(shown))
    return 0


@ingest.command(name="cancel")
@options_of(ingest_cancel)
@json_option
@pass_session
def cancel(session: Session, /, as_json: bool, **given: Any) -> int:
    """Cancel a waiting or running job. Published data is kept; `replicator restore` restores the data it replaced.

    \b
    Example: replicator ingest cancel 17
    """
    done = session.call(ingest_cancel, **given)
    job = done.detail.job
    emit_report(
        done, as_json, aligned([(done.status, f"job {job.job}: {job.source}"), ("held by", job.holder or None)])
    )
    return 0


@ingest.command(name="take")
@options_of(ingest_take)
@json_option
@pass_session
def take(session: Session, /, as_json: bool, **given: Any) -> int:
    """Read requests from files or from a table, check and queue them, and answer at their origin. Each is read once.

    The requester is the file's owner, or the user who called replicator.request_ingestion in the database.

    \b
    Example:
      replicator ingest take --directory /srv/requests
      replicator ingest take --database crm
    """
    done = session.call(ingest_take, **given)
    rows = [
        (one.name, one.requested_by, f"job {one.job}" if one.job else "refused", one.error) for one in done.requests
    ]
    emit_report(done, as_json, columns(("request", "by", "became", "error"), rows) if rows else ["no requests"])
    return 0


@ingest.command(name="drop-zone")
@json_option
@pass_session
def drop_zone(session: Session, /, as_json: bool) -> int:
    """Print the SQL that lets users of a PostgreSQL database make requests. Its superuser runs it there once.

    \b
    Example: replicator ingest drop-zone | psql -v ON_ERROR_STOP=1 crm
    """
    found = session.call(ingest_drop_zone)
    emit(found, as_json, found.sql.splitlines())
    return 0


def _late(facts: Mapping[str, Any]) -> str | None:
    """Returns how rows are landed that become visible after greater values of the watermark."""
    late = facts.get("late", {})
    ways = {
        "transactions": "up to the oldest running transaction",
        "overlap": "read again, and landed once by their key",
        "declared": "declared not to occur",
        "none": f"may be missed: {late.get('why', '')}",
    }
    waits = ""
    if late.get("held_back"):
        waits = f"; {count_text(late['held_back'], 'row')} wait for {', '.join(late['held_by'])}"
    return ways[late["by"]] + waits if late else None


def _compared(facts: Mapping[str, Any]) -> str | None:
    counted = facts.get("counted", {})
    if "landed" not in counted:
        return None
    rows = f"{counted['landed']:,} landed, {counted['source']:,} at the source up to {counted['until']}"
    return f"{rows}, {counted['missing']:,} missing" if counted["missing"] else rows


def _selected(request: Request) -> list[str]:
    columns = [f"columns {', '.join(request.columns)}"] if request.columns else []
    rows = [f"rows with {request.where}"] if request.where else []
    return [*columns, *rows, *(f"{name} masked by {rule}" for name, rule in request.masks.items())]


def _demanded(request: Request) -> list[str]:
    least = [f"{count_text(request.least_rows, 'row')} at least"] if request.least_rows else []
    filled = [f"{each} without NULL" for each in request.not_null]
    return [*least, *filled, *(f"{each} unique" for each in request.unique)]


def _job_lines(found: JobDetail, undelivered: Sequence[Undelivered]) -> list[str]:
    job, request = found.job, found.request
    told = [f"{each.receiver}: {each.key}, {each.tries} tries {each.error}".rstrip() for each in undelivered]
    size = "" if job.bytes is None else f", {size_text(job.bytes)}"
    mode = " ".join(filter(None, (job.mode, request.watermark, ", ".join(request.key))))
    lines = [
        ("job", f"{job.job}, {job.state}"),
        ("step", job.step or None),
        ("asset", job.asset),
        ("lands", f"{job.source} in {job.target}"),
        ("mode", mode),
        ("selects", _selected(request)),
        ("demands", _demanded(request)),
        ("requested by", f"{job.requested_by}, {time_text(job.queued)}"),
        ("approved by", job.approved_by),
        ("attempt", job.attempt or None),
        ("held by", job.holder or None),
        ("next try", time_text(job.due) if job.state == "failed" else None),
        ("landed", None if job.rows is None else count_text(job.rows, "row") + size),
        ("late rows", _late(found.facts)),
        ("compared", _compared(found.facts)),
        ("may remove", None if request.max_loss is None else f"{request.max_loss:.0%} of the landed rows"),
        ("event", job.event_id),
        ("cancelled by", job.cancelled_by or None),
        ("error", f"{job.error_text} ({job.error_kind})" if job.error_text else None),
        ("detail", found.error_detail.splitlines()),
        ("not delivered", told),
        ("note", request.note or None),
    ]
    rows = [(time_text(each.at), each.state, each.step, each.actor, each.error_text) for each in found.changes]
    return [*aligned(lines), "", *columns(("at", "state", "step", "by", "error"), rows)]


def _stats_lines(shown: IngestionStats) -> list[str]:
    queue, landed = shown.queue, shown.landed
    took = [(f"p{each}", getattr(landed, f"p{each}")) for each in PERCENTILES]
    lines = [
        ("slots", f"{queue.at_work} of {shown.slots} in use, at most {shown.cap} of an asset"),
        ("jobs", ", ".join(f"{number} {state}" for state, number in queue.states.items() if number) or "none open"),
        ("failing", ", ".join(f"{number} {kind}" for kind, number in queue.failing.items()) or None),
        ("published", f"{landed.published} since {time_text(landed.since)}"),
        ("ended", ", ".join(f"{number} {state}" for state, number in landed.ended.items()) or None),
    ]
    if landed.soon is not None and landed.late is not None:
        lines += [
            ("within 15 min", f"{landed.soon:.1%} of them"),
            ("within 2.5 h", f"{landed.late:.1%} of them"),
            ("from request on", ", ".join(f"{name} {duration_text(seconds)}" for name, seconds in took)),
        ]
    waits = [
        (one.asset, one.at_work, one.waiting, duration_text(one.waits_seconds or 0) if one.waiting else "", one.later)
        for one in queue.assets
    ]
    days = [(one.day, one.jobs, one.rows, size_text(one.bytes)) for one in landed.days]
    found = aligned(lines)
    if waits:
        head = ("asset", "slots", "waiting", "waits for", "later")
        found += ["", *columns(head, waits, right=("slots", "waiting", "later"))]
    if days:
        found += ["", *columns(("day", "jobs", "rows", "bytes"), days, right=("jobs", "rows", "bytes"))]
    return found


ingest.add_command(verify)
ingest.add_command(mark)
ingest.add_command(watch)


# ---- asset -----------------------------------------------------------------------------------------------------------


@click.group()
def asset() -> None:
    """Manage assets: name, owner, users who may land data and who may read it, sources, classification.

    \b
    Example: replicator asset create crm --producer crm_producer --source crm
    """


@asset.command(name="create")
@options_of(asset_create)
@json_option
@pass_session
def create(session: Session, /, as_json: bool, **given: Any) -> int:
    """Create an asset, or change one. Another user approves it with `replicator asset approve`.

    \b
    Example:
      replicator asset create crm --producer crm_producer --consumer analysts --source crm
      replicator asset create hr --owner olga --source hr --classification personal \\
        --erasure-ids privacy.erased:person --erasure-column person_id
    """
    return _tell_asset(session.call(asset_create, **given), as_json)


@asset.command(name="ls")
@json_option
@pass_session
def list_assets(session: Session, /, as_json: bool) -> int:
    """List assets, including those not approved yet.

    \b
    Example: replicator asset ls
    """
    shown = session.call(asset_ls)
    rows = [
        (one.name, one.owner, one.classification, ", ".join(one.sources), ", ".join(one.producers), one.approved_by)
        for one in shown.assets
    ]
    head = ("name", "owner", "classification", "sources", "producers", "approved by")
    emit_report(shown, as_json, columns(head, rows) if rows else ["no assets"])
    return 0


@asset.command(name="show")
@options_of(asset_show)
@json_option
@pass_session
def show_asset(session: Session, /, as_json: bool, **given: Any) -> int:
    """Show an asset.

    \b
    Example: replicator asset show crm
    """
    return _tell_asset(session.call(asset_show, **given), as_json)


@asset.command(name="approve")
@options_of(asset_approve)
@json_option
@pass_session
def approve(session: Session, /, as_json: bool, **given: Any) -> int:
    """Approve an asset: its owner and its producers may make requests from now on. Its author
    cannot approve it, except with [ingestion] single_user, to try it alone.

    \b
    Example: replicator asset approve crm
    """
    return _tell_asset(session.call(asset_approve, **given), as_json)


def _tell_asset(done: AssetShown, as_json: bool) -> int:
    one = done.asset

    def of(name: str, value: str | None) -> str | None:
        """Returns the value, with the name of the class that defines it."""
        by = done.given_by.get(name, "asset")
        return value if value is None or by == "asset" else f"{value} (of {by})"

    lines = [
        (done.status, one.name),
        ("owner", one.owner),
        ("producers", ", ".join(one.producers) or "none"),
        ("consumers", ", ".join(one.consumers) or "none"),
        ("sources", ", ".join(one.sources) or "none"),
        ("classification", one.classification),
        ("erasure ids", of("erasure_ids", one.erasure_ids)),
        ("erasure column", of("erasure_column", one.erasure_column)),
        ("erasure match", of("erasure_match", ", ".join(one.erasure_match or ()) or None)),
        ("exemption", one.exemption or None),
        ("retention", of("retention", one.retention)),
        ("replicated by", None if done.policies is None else ", ".join(done.policies) or "no policy"),
        ("note", one.note or None),
        ("created by", one.created_by),
        ("approved by", one.approved_by or "not approved yet"),
        ("digest", done.digest),
    ]
    lines += [("not created", each) for each in done.not_made]
    lines += [("mark", f"{each.table}: {each.column} {each.value or 'none'}") for each in done.marks]
    emit_report(done, as_json, aligned(lines))
    return 0
