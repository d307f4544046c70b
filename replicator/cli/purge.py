"""`replicator purge`: erase the rows of data subjects from tables, certify it, retain and restore the replaced data.
And `audit` and `legal-hold`: the removals of all jobs, and exemptions from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from replicator.cli.options import Session, json_option, json_options, options_of, pass_session
from replicator.cli.output import aligned, columns, count_text, emit, shortened, size_text, took
from replicator.cli.table import renamed_command
from replicator.cli.tools import tell_if_first
from replicator.commands.guard import audit_ls, audit_undo, legal_hold_add, legal_hold_ls, legal_hold_release
from replicator.commands.purge import (
    purge_backups,
    purge_certificate,
    purge_certify,
    purge_retain,
    purge_run,
    purge_undo,
)
from replicator.core.audit import AuditShown
from replicator.core.not_replicated import PARTIAL
from replicator.lifecycle.purge.certificate_file import Certificate
from replicator.lifecycle.purge.run import Purged

metastore_option = click.option("--metastore", metavar="METASTORE", help="thrift://host:port, or a configured name.")


@click.group()
def purge() -> None:
    """Erase the rows of data subjects from tables, backups and replicas, and prove it (Gobblin compliance).

    \b
    Example:
      ALTER TABLE sales.orders SET TBLPROPERTIES ('dataset.descriptor'='{"privacy": {"column": "customer"}}')
      replicator purge run --metastore prod --cmroot /cm --ids gdpr.requests:customer --table-whitelist sales \\
          --field-path privacy.column --dry-run
    """


@purge.command()
@options_of(purge_run, engine=True)
@json_options
@pass_session
def run(session: Session, /, as_json: bool, **given: Any) -> int:
    """Erase the rows of all ids from the described tables.

    These are the white-listed tables with a descriptor. One Spark job per table finds the rows. Partitions without
    matching rows are left alone. In the others, files with a matching row are rewritten in their own format, checked,
    and renamed over the old ones if nothing has changed concurrently; the location stays. The old files are kept as
    a backup; see `retain`. Of an Iceberg table there is none: Iceberg, which Spark must have, deletes the rows and
    expires the snapshots with them.

    Spark reads the rows, and only in the server's default catalog (Hive 3 and newer), so there is no --catalog.

    Safe to kill and to run again: the same command continues. Exit 3 if a partition could not be purged or a
    white-listed table has no descriptor, or with --certify while copies remain; 6 if there are no ids or no tables; 7
    while another purge holds the lease.

    \b
    Example:
      replicator purge run --metastore prod --cmroot /cm --ids gdpr.requests:customer --table-whitelist sales --dry-run
      replicator purge run --metastore prod --cmroot /cm --properties compliance.pull
      replicator purge run --metastore prod --cmroot /cm --ids gdpr.requests:customer --certify --expedite --grace 0s
    """
    tell_if_first(given["cmroot"], given["dry_run"])
    done = session.call(purge_run, **given)
    lines = [*_purged_lines(done), *(_certificate_lines(done.certificate, given) if done.certificate else ())]
    emit(done, as_json, lines)
    is_certified = done.certificate is None or done.certificate.is_whole
    return 0 if done.is_whole and is_certified and (given["allow_gaps"] or not done.gaps) else PARTIAL


@purge.command()
@options_of(purge_retain, engine=True)
@json_options
@pass_session
def retain(session: Session, /, as_json: bool, **given: Any) -> int:
    """Recycle excess and expired backups, and remains of failed purges.

    Files are moved to $cmroot, and can be restored until they expire. Rows that a writer added to a backup after the
    swap are first linked into their table. Backup, staging and trash tables of Gobblin compliance are recognised by
    their names. Exit 3 if backups had to be kept; 6 if the limits of removals are exceeded; 7 while a purge holds the
    lease.

    \b
    Example:
      replicator purge retain --metastore prod --cmroot /cm --versions 1 --days 7d --dry-run
    """
    tell_if_first(given["cmroot"], given["dry_run"])
    done = session.call(purge_retain, **given)
    lines = [
        (done.status, f"{count_text(done.backups, 'backup')} known"),
        (
            "would recycle" if given["dry_run"] else "recycled",
            f"{count_text(done.files, 'file')}, {size_text(done.bytes)}",
        ),
        ("removed", shortened(f"{each['path']}: {each['reason']}" for each in done.removed)),
        ("staging", shortened(done.staging)),
        (
            "adopted",
            shortened(
                f"{len(each['files'])} late files of {each['object']} {each['partition']}; not purged yet"
                for each in done.adopted
            ),
        ),
        ("kept", shortened(f"{each['path']}: {each['refused']}" for each in done.refused)),
    ]
    emit(done, as_json, aligned(lines))
    return 0 if done.is_whole else PARTIAL


@purge.command()
@options_of(purge_undo)
@json_option
@pass_session
def undo(session: Session, /, as_json: bool, **given: Any) -> int:
    """Restore a backup: its files return to their places by renames.

    The erased rows are then back, too: purge again if that is not intended. The replaced data is kept as trash
    until `retain` recycles it.

    \b
    Example:
      replicator purge undo --metastore prod --cmroot /cm sales.orders day=2026-03-01
      replicator purge undo --metastore prod --cmroot /cm sales.orders day=2026-03-01 --revert
    """
    done = session.call(purge_undo, **given)
    lines = [
        (done.status, f"{done.object} {done.partition}".rstrip()),
        ("at", done.location),
        ("replaced", done.replaced or None),
        ("backup of", done.backup),
        ("from $cmroot", count_text(done.from_cmroot, "file") if done.from_cmroot else None),
        ("warning", done.warnings),
    ]
    emit(done, as_json, aligned(lines))
    return 0


renamed_command(purge, "restore", undo)


@purge.command()
@options_of(purge_backups)
@json_option
@pass_session
def backups(session: Session, /, as_json: bool, **given: Any) -> int:
    """List the backups of purges and restores, with their states.

    \b
    Example: replicator purge backups --cmroot /cm --table sales.orders
    """
    found = session.call(purge_backups, **given)
    head = ("table", "partition", "state", "time", "path")
    rows = [[row[name] for name in head] for row in found.backups]
    emit(found, as_json, columns(head, rows) if rows else ["no backups"])
    return 0


@purge.command()
@options_of(purge_certify, engine=True)
@json_options
@pass_session
def certify(session: Session, /, as_json: bool, **given: Any) -> int:
    """Prove that no copy of erased rows remains, or list the copies.

    Searches the tables again, and looks for the original files in backups, in $cmroot, below the tables' present and
    former directories, and, for every policy that replicates one of them from this metastore and root, at the replica
    and in its root. Lists each remaining copy with the event that removes it. The certificate is stored in the audit.
    Capture or sync before, so that the captured log has the purge. Covers only the server's default catalog, as `run`
    does. Exit 3 while copies remain, and if white-listed tables or partitions were not searched.

    \b
    Example:
      replicator purge certify --metastore prod --cmroot /cm --run latest
      replicator purge certify --metastore prod --cmroot /cm --run latest --expedite --out certificate.json
    """
    done = session.call(purge_certify, **given)
    emit(done, as_json, _certificate_lines(done, given))
    return 0 if done.is_whole else PARTIAL


@purge.command()
@options_of(purge_certificate)
@json_option
@pass_session
def certificate(session: Session, /, as_json: bool, **given: Any) -> int:
    """Show a certificate that `certify` created, from the audit, and write it to a file. Searches nothing.

    Exit 3 if it lists remaining copies, or tables or partitions that were not searched.

    \b
    Example: replicator purge certificate --cmroot /cm --out certificate.html
    """
    done = session.call(purge_certificate, **given)
    emit(done, as_json, _certificate_lines(done, given))
    return 0 if done.is_whole else PARTIAL


def _certificate_lines(done: Certificate, given: dict[str, Any]) -> list[str]:
    lines = [
        (done.status, f"{count_text(done.count, 'id')} of {done.ids}, at event {done.event}"),
        ("never found", _never_found(done.never_found, done.near_misses)),
        ("erased", shortened(f"{table}: {count_text(rows, 'row')}" for table, rows in sorted(done.erased.items()))),
        ("searched", shortened(done.searched)),
        ("no persons", _without_persons(done.without_persons)),
        ("views", shortened(f"{each['view']} reads {each['reads']}" for each in done.views)),
        ("replicas", shortened(done.replicas)),
        ("expedited", f"{count_text(done.expedited_files, 'file')}" if given.get("expedite") else None),
        ("left", shortened(_holding_line(each) for each in done.holding)),
        ("gaps", shortened(f"{gap['table']}: {gap['reason']}" for gap in done.gaps)),
        ("certificate", given["out"]),
        ("took", took(done.seconds)) if "expedite" in given else ("made", done.time),
    ]
    return aligned(lines)


def _never_found(count: int | None, near: int | None) -> str | None:
    if not count:
        return None
    return f"{count_text(count, 'id')}, in no table" + (f"; {near:,} of these have a near match" if near else "")


def _without_persons(stated: Iterable[dict[str, Any]]) -> Any:
    return shortened(f"{each['table']}: {each['reason']} (stated by {each['by']})" for each in stated)


def _holding_line(each: dict[str, Any]) -> str:
    where = f" of {each['where']}" if each["where"] else ""
    return f"{each['what']}{where}: {each['object']} {each['path']}: {each['why']}; until {each['until']}"


def _purged_lines(done: Purged) -> Iterable[str]:
    would = "would erase" if done.status == "planned" else "erased"
    return aligned(
        [
            (done.status, f"run {done.run}{', continued' if done.resumed else ''}" if done.run else "dry run"),
            ("ids", f"{done.ids:,}"),
            ("never found", _never_found(done.ids_never_found, done.ids_near_misses)),
            (would, f"{count_text(done.rows_erased, 'row')} in {count_text(done.partitions_swapped, 'partition')}"),
            ("tables", shortened(_table_line(table) for table in done.tables)),
            ("not purged", shortened(_failures(done))),
            ("gaps", shortened(f"{gap['table']}: {gap['reason']}" for gap in done.gaps)),
            ("no persons", _without_persons(done.without_persons)),
            ("took", took(done.seconds)),
        ]
    )


def _table_line(table: Any) -> str:
    if not (table.rows_erased or table.dropped):
        return f"{table.table}: no row has an id, in {count_text(table.partitions, 'partition')}"
    return (
        f"{table.table}: {count_text(table.rows_erased, 'row')} in {table.swapped:,} of"
        f" {count_text(table.partitions, 'partition')}, {count_text(table.files_rewritten, 'file')} rewritten"
        + (f" ({size_text(table.bytes_rewritten)})" if table.bytes_rewritten else "")
        + (f", {count_text(table.dropped, 'partition')} dropped" if table.dropped else "")
    )


def _failures(done: Purged) -> Iterable[str]:
    for table in done.tables:
        if table.error:
            yield f"{table.table}: {table.error}"
        for unit in table.units:
            if unit["state"] not in ("DONE", "PENDING"):
                yield f"{table.table} {unit['partition']}: {unit['state']}, {unit.get('reason', '')}".replace("  ", " ")


# ---- legal holds, and the audit of removals --------------------------------------------------------------------------


@click.group()
def audit() -> None:
    """Show the removals of housekeeping, retention and purge with user, time, reason and kept files; restore files.

    The record is Parquet in $cmroot/audit, which Spark reads as one dataset.

    \b
    Example: replicator audit ls --cmroot /cm --object sales.orders
    """


@audit.command(name="ls")
@options_of(audit_ls)
@json_option
@pass_session
def ls(session: Session, /, as_json: bool, **given: Any) -> int:
    """List removals and refusals of jobs, by job, run and time. Filters narrow each other.

    \b
    Example:
      replicator audit ls --cmroot /cm --job purge --since -1d
      replicator audit ls --cmroot /cm --outcome refused --json
    """
    shown = session.call(audit_ls, **given)
    emit(shown, as_json, _audit_lines(shown))
    return 0


@audit.command(name="undo")
@options_of(audit_undo)
@json_option
@pass_session
def undo_removals(session: Session, /, as_json: bool, **given: Any) -> int:
    """Restore the files that a run removed to their paths, from $cmroot. Replaces nothing. Exit 3 if some are lost.

    Restore their metadata with `replicator restore`, or recreate it by hand.

    \b
    Example: replicator audit undo --cmroot /cm --run 20261121T020000Z-1f2e3d4c --path /w/sales.db/orders/day=1
    """
    done = session.call(audit_undo, **given)
    lines = [
        (done.status, f"{count_text(done.files, 'file')}, {size_text(done.bytes)}"),
        ("present", count_text(len(done.there), "file") if done.there else None),
        ("lost", shortened(f"{path}: {why}" for path, why in done.lost.items())),
        ("found", f"files that a killed run had moved; undo run {done.found_run}, too" if done.found_run else None),
    ]
    emit(done, as_json, aligned(lines))
    return 3 if done.lost else 0


renamed_command(audit, "restore", undo_removals)


@click.group(name="legal-hold")
def legal_hold() -> None:
    """Protect data from removal by any job and policy. (`cm hold` protects a past state instead.)

    \b
    Example: replicator legal-hold add case-17 --cmroot /cm --on 'sales.orders/day=2026-*' --reason 'case 17'
    """


@legal_hold.command(name="add")
@options_of(legal_hold_add)
@json_option
@pass_session
def add(session: Session, /, as_json: bool, **given: Any) -> int:
    """Add a legal hold. A hold on a table covers its partitions; one on a location, the paths below and above it.

    \b
    Example: replicator legal-hold add litigation --cmroot /cm --on s3://lake/claims --reason 'case 17'
    """
    added = session.call(legal_hold_add, **given)
    emit(added, as_json, [f"added    {added.name}: {given['pattern']}"])
    return 0


@legal_hold.command(name="ls")
@options_of(legal_hold_ls)
@json_option
@pass_session
def list_holds(session: Session, /, as_json: bool, **given: Any) -> int:
    """List legal holds, also those that have ended.

    \b
    Example: replicator legal-hold ls --cmroot /cm
    """
    shown = session.call(legal_hold_ls, **given)
    rows = [(hold.name, hold.pattern, hold.until or "no end", hold.by, hold.reason) for hold in shown.holds]
    lines = columns(("name", "on", "until", "by", "reason"), rows) if rows else ["no legal holds"]
    emit(shown, as_json, lines)
    return 0


@legal_hold.command(name="release")
@options_of(legal_hold_release)
@json_option
@pass_session
def release(session: Session, /, as_json: bool, **given: Any) -> int:
    """Release a legal hold. Jobs may remove the covered data from now on.

    \b
    Example: replicator legal-hold release case-17 --cmroot /cm
    """
    released = session.call(legal_hold_release, **given)
    emit(released, as_json, [f"released    {released.name}"])
    return 0


def _audit_lines(answer: AuditShown) -> Iterable[str]:
    if not answer.found:
        return ["no records"]
    shown = [
        (
            row.time,
            row.job,
            row.run,
            row.outcome,
            row.what,
            row.object,
            row.partition or row.path,
            row.detail or row.reason,
        )
        for row in answer.found
    ]
    lines = list(columns(("time", "job", "run", "outcome", "what", "object", "path", "why"), shown))
    return [*lines, "more rows exist: see --limit"] if answer.more else lines
