"""`replicator purge`: erase the rows of people from tables, prove it, keep and bring back what was before."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replicator.cli.guard import guard_options
from replicator.cli.options import (
    EngineChoice,
    Session,
    cmroot_option,
    dry_run_option,
    engine_options,
    json_option,
    pass_session,
)
from replicator.cli.output import aligned, count_text, emit, shortened, size_text
from replicator.errors import UsageError

if TYPE_CHECKING:
    from replicator.guard.removal import Limits
    from replicator.purge.run import Purged

metastore_option = click.option(
    "--metastore", required=True, metavar="METASTORE", help="thrift://host:port, or a configured name."
)
ids_option = click.option("--ids", metavar="DB.TABLE:COLUMN", help="The table of ids to erase, and its column.")
whitelist_option = click.option(
    "--table-whitelist",
    metavar="LIST",
    help="Tables considered: 'db.table1|table2,db2'; `*` is any text; default: all.",
)
field_path_option = click.option(
    "--field-path", metavar="PATH", help="Where in a table's dataset.descriptor the name of its column of ids stands, "
    "e.g. privacy.column.",
)  # fmt: skip
properties_option = click.option(
    "--properties", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Properties of a Gobblin compliance job, for what no option gives.",
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
@whitelist_option
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
def run(
    session: Session, metastore: str, cmroot: str, ids: str | None, table_whitelist: str | None,
    field_path: str | None, properties: Path | None, attempts: int, allow_gaps: bool, limits: Limits, dry_run: bool,
    engine: EngineChoice, as_json: bool,
) -> int:  # fmt: skip
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
    from cmroot.root import create_or_open, open_existing
    from replicator.purge.options import PurgeOptions
    from replicator.purge.run import purge as erase

    old = _properties(properties)
    if ids is None and "purger.complianceIdTable" in old:
        ids = f"{old['purger.complianceIdTable']}:{old.get('purger.complianceId', '')}"
    if not ids:
        raise UsageError("nobody says which ids to erase", hint="give --ids db.table:column")
    field_path = field_path or old.get("dataset.descriptor.fieldPath") or ""
    whitelist = table_whitelist or old.get("dataset.whitelist") or ""
    options = PurgeOptions(ids, whitelist, field_path, attempts, limits)
    root = open_existing(cmroot) if dry_run else create_or_open(cmroot)
    with session.metastore(metastore) as opened, session.engines(engine) as engines:
        done = erase(opened, root, options, engines=engines, progress=session.progress, dry_run=dry_run)
    emit(done, as_json, _purged_lines(done))
    return 0 if done.is_whole and (allow_gaps or not done.gaps) else 3


def _properties(path: Path | None) -> dict[str, str]:
    """Without their prefix."""
    from replicator.purge.options import gobblin, read_properties

    if path is None:
        return {}
    try:
        return gobblin(read_properties(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", hint="check --properties") from error


def _purged_lines(done: Purged) -> Iterable[str]:
    would = "would erase" if done.status == "planned" else "erased"
    return aligned(
        [
            (done.status, f"run {done.run}{', taken up again' if done.resumed else ''}" if done.run else "dry run"),
            ("ids", f"{done.ids:,}"),
            (would, f"{count_text(done.rows_erased, 'row')} in {count_text(done.partitions_swapped, 'partition')}"),
            ("tables", shortened(_table_line(table) for table in done.tables)),
            ("not purged", shortened(_failures(done))),
            ("not described", shortened(f"{gap['table']}: {gap['reason']}" for gap in done.gaps)),
            ("took", f"{done.seconds:.1f} s"),
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
