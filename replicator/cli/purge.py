"""`replicator purge`: erase the rows of people from tables, prove it, keep and bring back what was before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from replicator.cli.first_run import tell_if_first
from replicator.cli.guard import guard_options
from replicator.cli.options import (
    Duration,
    Session,
    cmroot_option,
    dry_run_option,
    engine_options,
    json_option,
    pass_session,
)
from replicator.cli.output import aligned, columns, count_text, emit, shortened, size_text, took
from replicator.commands.purge import purge_certify, purge_run
from replicator.commands.purge_backups import purge_backups, purge_restore, purge_retain
from replicator.core.not_replicated import PARTIAL
from replicator.purge.run import Purged

F = TypeVar("F", bound=Callable[..., Any])

metastore_option = click.option(
    "--metastore", required=True, metavar="METASTORE", help="thrift://host:port, or a configured name."
)
ids_option = click.option("--ids", metavar="DB.TABLE:COLUMN", help="The table of ids to erase, and its column.")
field_path_option = click.option(
    "--field-path", metavar="PATH", help="Where in a table's dataset.descriptor the name of its column of ids stands, "
    "e.g. privacy.column.",
)  # fmt: skip
properties_option = click.option(
    "--properties", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Properties of a Gobblin compliance job, for what no option gives.",
)  # fmt: skip


def whitelist_option(command: str) -> Callable[[F], F]:
    return click.option(
        "--table-whitelist", "whitelist", envvar=f"REPLICATOR_PURGE_{command}_TABLE_WHITELIST", metavar="LIST",
        help="Tables considered: 'db.table1|table2,db2'; `*` is any text; default: all.",
    )  # fmt: skip


@click.group()
def purge() -> None:
    """Erase the rows of people from tables, everywhere, and prove it (Gobblin compliance).

    \b
    Example:
      ALTER TABLE sales.orders SET TBLPROPERTIES ('dataset.descriptor'='{"privacy": {"column": "customer"}}')
      replicator purge run --metastore prod --cmroot /cm --ids gdpr.requests:customer --table-whitelist sales \\
          --field-path privacy.column --dry-run
    """


@purge.command()
@metastore_option
@cmroot_option
@ids_option
@whitelist_option("RUN")
@field_path_option
@properties_option
@click.option("--attempts", type=click.IntRange(1, 100), default=3, show_default=True, help="For a partition that is "
              "written to meanwhile.")  # fmt: skip
@click.option("--allow-gaps", is_flag=True, help="End with 0 though tables on the white list are not described.")
@guard_options
@dry_run_option
@engine_options
@json_option
@pass_session
def run(session: Session, /, allow_gaps: bool, as_json: bool, **given: Any) -> int:
    """Erase the rows of all ids from the white-listed tables that are described.

    One Spark job a table finds the rows. Partitions with none are left alone; of the others, files with a row are
    written anew beside the old ones, in their own format, the other files are linked, and one metastore call swaps the
    location when the sums agree and nobody has changed anything. What was before stays as a backup; see `retain`.

    Safe to kill and to run again: the same command goes on where it was. Exit 3 when a partition could not be purged or
    a white-listed table is not described; 6 when there are no ids or no tables; 7 while another purge is at work.

    \b
    Example:
      replicator purge run --metastore prod --cmroot /cm --ids gdpr.requests:customer --table-whitelist sales --dry-run
      replicator purge run --metastore prod --cmroot /cm --properties compliance.pull
    """
    tell_if_first(given["cmroot"], given["dry_run"])
    done = session.call(purge_run, **given)
    emit(done, as_json, _purged_lines(done))
    return 0 if done.is_whole and (allow_gaps or not done.gaps) else PARTIAL


@purge.command()
@metastore_option
@cmroot_option
@properties_option
@click.option("--versions", type=click.IntRange(0), help="Of each partition keep the newest so many; default 1.")
@click.option("--days", type=Duration(), help="Keep none longer; default 7d.")
@click.option("--readers", type=Duration(), default="2h", show_default=True, help="Touch none younger than the longest "
              "query: it may still read it.")  # fmt: skip
@click.option("--trash", type=Duration(), help="Keep what restores replaced so long; default 7d.")
@guard_options
@dry_run_option
@engine_options
@json_option
@pass_session
def retain(session: Session, /, as_json: bool, **given: Any) -> int:
    """Recycle backups that are too many or too old, and remove what failed purges left.

    Files go to $cmroot, where they can be had until it expires them. Rows that a writer put into a backup after the
    swap are brought to their table first. Backup, staging and trash tables of Gobblin compliance are known by their
    names. Exit 3 when something had to stay; 6 when more would go than may; 7 while a purge is at work.

    \b
    Example:
      replicator purge retain --metastore prod --cmroot /cm --versions 1 --days 7d --dry-run
    """
    tell_if_first(given["cmroot"], given["dry_run"])
    done = session.call(purge_retain, **given)
    lines = [
        (done.status, f"{count_text(done.backups, 'backup')} known"),
        ("would go" if given["dry_run"] else "recycled", f"{count_text(done.files, 'file')}, {size_text(done.bytes)}"),
        ("removed", shortened(f"{each['path']}: {each['reason']}" for each in done.removed)),
        ("staging", shortened(done.staging)),
        ("adopted", shortened(f"{len(each['files'])} late files of {each['object']} {each['partition']}; not purged yet"
                              for each in done.adopted)),
        ("stays", shortened(f"{each['path']}: {each['refused']}" for each in done.refused)),
    ]  # fmt: skip
    emit(done, as_json, aligned(lines))
    return 0 if done.is_whole else PARTIAL


@purge.command()
@metastore_option
@cmroot_option
@click.argument("table", metavar="DB.TABLE")
@click.argument("partition", metavar="[PARTITION]", default="")
@click.option("--backup", metavar="TIME", help="The newest swapped out at or before then (ISO 8601), or a run's id; "
              "default: the newest.")  # fmt: skip
@click.option("--undo", is_flag=True, help="Put back what the last restore replaced.")
@dry_run_option
@json_option
@pass_session
def restore(session: Session, /, as_json: bool, **given: Any) -> int:
    """Put a backup of a partition back: one metastore call, no copy while its directory is there.

    Rows that were erased are back then, too: purge again when that is not what you want. What is replaced stays as
    trash until `retain` recycles it.

    \b
    Example:
      replicator purge restore --metastore prod --cmroot /cm sales.orders day=2026-03-01
      replicator purge restore --metastore prod --cmroot /cm sales.orders day=2026-03-01 --undo
    """
    done = session.call(purge_restore, **given)
    lines = [
        (done.status, f"{done.object} {done.partition}".rstrip()), ("at", done.location),
        ("replaced", done.replaced or None), ("backup of", done.backup),
        ("from $cmroot", count_text(done.from_cmroot, "file") if done.from_cmroot else None),
        ("warning", done.warnings),
    ]  # fmt: skip
    emit(done, as_json, aligned(lines))
    return 0


@purge.command()
@cmroot_option
@click.option("--table", metavar="DB.TABLE", help="Only this table's.")
@json_option
@pass_session
def backups(session: Session, /, as_json: bool, **given: Any) -> int:
    """List the backups that purges and restores have made, and what became of them.

    \b
    Example: replicator purge backups --cmroot /cm --table sales.orders
    """
    found = session.call(purge_backups, **given)
    head = ("table", "partition", "state", "time", "path")
    rows = [[row[name] for name in head] for row in found.backups]
    emit(found, as_json, columns(head, rows) if rows else ["no backups"])
    return 0


@purge.command()
@metastore_option
@cmroot_option
@ids_option
@whitelist_option("CERTIFY")
@field_path_option
@properties_option
@click.option("--run", envvar="REPLICATOR_PURGE_CERTIFY_RUN_", metavar="ID", help="The ids and tables of this purge, "
              "or of the `latest`, instead of --ids.")  # fmt: skip
@click.option("--replica-cmroot", multiple=True, metavar="PLACE", help="The root of a replica that no policy names; "
              "repeatable.")  # fmt: skip
@click.option("--expedite", is_flag=True, help="First recycle the backups, and expire what nobody needs.")
@click.option("--readers", type=Duration(), default="2h", show_default=True, help="Of --expedite: touch no backup "
              "younger than the longest query.")  # fmt: skip
@click.option("--allow-gaps", is_flag=True, help="Certify though something on the white list was not searched.")
@click.option("--out", metavar="FILE", help="Write the certificate there, too, as JSON; what is there is replaced.")
@guard_options
@engine_options
@json_option
@pass_session
def certify(session: Session, /, as_json: bool, **given: Any) -> int:
    """Prove that nothing holds what was erased any more, or list what does and until when.

    Searches the tables once more, and looks for the bytes of before in backups, in $cmroot, below the directories that
    the tables have and had, and, for every policy that replicates one of them from this metastore and root, at the
    replica and in its root. The certificate is kept in the audit. Capture or sync before, so that $cmroot knows of the
    purge. Exit 3 while something is left, and when something on the white list was not searched.

    \b
    Example:
      replicator purge certify --metastore prod --cmroot /cm --run latest
      replicator purge certify --metastore prod --cmroot /cm --run latest --expedite --out certificate.json
    """
    done = session.call(purge_certify, **given)
    lines = [
        (done.status, f"{count_text(done.count, 'id')} of {done.ids}, at event {done.event}"),
        ("searched", shortened(done.searched)),
        ("replicas", shortened(done.replicas)),
        ("expedited", f"{count_text(done.expedited_files, 'file')}" if given["expedite"] else None),
        ("left", shortened(_holding_line(each) for each in done.holding)),
        ("gaps", shortened(f"{gap['table']}: {gap['reason']}" for gap in done.gaps)),
        ("certificate", given["out"]),
        ("took", took(done.seconds)),
    ]
    emit(done, as_json, aligned(lines))
    return 0 if done.is_whole else PARTIAL


def _holding_line(each: dict[str, Any]) -> str:
    where = f" of {each['where']}" if each["where"] else ""
    return f"{each['what']}{where}: {each['object']} {each['path']}: {each['why']}; until {each['until']}"


def _purged_lines(done: Purged) -> Iterable[str]:
    would = "would erase" if done.status == "planned" else "erased"
    return aligned(
        [
            (done.status, f"run {done.run}{', taken up again' if done.resumed else ''}" if done.run else "dry run"),
            ("ids", f"{done.ids:,}"),
            (would, f"{count_text(done.rows_erased, 'row')} in {count_text(done.partitions_swapped, 'partition')}"),
            ("tables", shortened(_table_line(table) for table in done.tables)),
            ("not purged", shortened(_failures(done))),
            ("gaps", shortened(f"{gap['table']}: {gap['reason']}" for gap in done.gaps)),
            ("took", took(done.seconds)),
        ]
    )


def _table_line(table: Any) -> str:
    if not table.rows_erased:
        return f"{table.table}: no row has an id, in {count_text(table.partitions, 'partition')}"
    return (
        f"{table.table}: {count_text(table.rows_erased, 'row')} in {table.swapped:,} of"
        f" {count_text(table.partitions, 'partition')}, {count_text(table.files_rewritten, 'file')} written anew"
        + (f" ({size_text(table.bytes_rewritten)})" if table.bytes_rewritten else "")
    )


def _failures(done: Purged) -> Iterable[str]:
    for table in done.tables:
        if table.error:
            yield f"{table.table}: {table.error}"
        for unit in table.units:
            if unit["state"] not in ("DONE", "PENDING"):
                yield f"{table.table} {unit['partition']}: {unit['state']}, {unit.get('reason', '')}".replace("  ", " ")
