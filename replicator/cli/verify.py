"""`replicator verify`: compare a target with its source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from replicator.cli.options import (
    EngineChoice,
    Session,
    engine_options,
    exclude_option,
    include_option,
    json_option,
    map_option,
    pass_session,
    rename_option,
    source_option,
    target_option,
)
from replicator.cli.output import count_text, emit, size_text

if TYPE_CHECKING:
    from replicator.sync.differences import Difference
    from replicator.sync.verify import Verified

DIFFERENT = 4


@click.command()
@source_option
@target_option
@click.option("--db", multiple=True, required=True, metavar="NAME", help="A database, by its source name; repeatable.")
@rename_option
@map_option
@include_option
@exclude_option
@click.option("--level", type=click.Choice(["metadata", "size", "checksum"]), default="checksum", show_default=True,
              help="How far files are compared: not at all, by name and size, by content.")  # fmt: skip
@engine_options
@json_option
@pass_session
def verify(
    session: Session, source: str, target: str, db: tuple[str, ...], rename_db: tuple[str, ...],
    map_location: tuple[str, ...], include: tuple[str, ...], exclude: tuple[str, ...], level: Any, engine: EngineChoice,
    as_json: bool,
) -> int:  # fmt: skip
    """Compare every object and file of both sides, read anew from both, and list each difference. Exit code 4 if any.

    \b
    Example:
      replicator verify --source thrift://a:9083 --target thrift://b:9083 --db sales --rename-db sales=sales_copy
      replicator verify --source prod --target dr --db sales --level size
    """
    from replicator.events.scope import Patterns
    from replicator.load.placement import parse_pairs
    from replicator.sync.verify import verify as compare

    rename, mappings = parse_pairs(rename_db, "--rename-db"), parse_pairs(map_location, "--map-location")
    with (
        session.metastore(source) as here,
        session.metastore(target) as there,
        session.engines(engine) as engines,
    ):
        report = compare(
            here, there, list(dict.fromkeys(db)), rename=rename, map_locations=mappings,
            patterns=Patterns.parse(include, exclude), level=level, engine=engines, progress=session.progress,
        )  # fmt: skip
    emit(report, as_json, _lines(report))
    return DIFFERENT if report.difference_count else 0


def _lines(report: Verified) -> Iterable[str]:
    for each in report.differences:
        yield _line(each)
    hidden = report.difference_count - len(report.differences)
    if hidden:
        yield f"... and {count_text(hidden, 'more difference')}"
    compared = count_text(report.objects, "object")
    if report.level != "metadata":
        compared += f" and {count_text(report.files, 'file')} ({size_text(report.bytes)}, by {report.level})"
    found = f"{count_text(report.difference_count, 'difference')} in " if report.difference_count else ""
    yield f"{report.status}: {found}{compared}, {report.seconds:.1f} s"


def _line(each: Difference) -> str:
    """`db.table  column comment  c1: 'a' at the source, 'b' on the target`."""
    what = f"{each.kind} {each.field}".strip()
    sides = [("nothing" if value is None else repr(value)) for value in (each.source, each.target)]
    return f"{each.object}  {what}: {sides[0]} expected, {sides[1]} found"
