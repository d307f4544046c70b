"""`replicator verify`: compare a target with its source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from replicator.cli.options import (
    Session,
    Size,
    catalog_option,
    engine_options,
    exclude_option,
    formats_option,
    include_option,
    json_options,
    map_option,
    of_policy_argument,
    pass_session,
    rename_option,
    source_option,
    target_catalog_option,
    target_option,
)
from replicator.cli.output import count_text, duration_text, emit, shortened, size_text, took
from replicator.cli.renamed import renamed_option
from replicator.commands.verify import verify as run
from replicator.compare.differences import Difference
from replicator.compare.sampling import Sampled
from replicator.compare.verify import Verified
from replicator.core.not_replicated import PARTIAL

DIFFERENT = 4


@click.command()
@of_policy_argument
@source_option
@catalog_option
@target_option
@target_catalog_option
@click.option("--db", multiple=True, metavar="NAME", help="A database, by its source name; repeatable.")
@rename_option
@map_option
@include_option
@exclude_option
@click.option(
    "--level",
    type=click.Choice(["metadata", "size", "crc", "checksum"]),
    default="checksum",
    show_default=True,
    help="Comparison of files: none, name and size, the 32-bit CRCs that HDFS keeps (nobody reads the files; those of "
    "other stores are read), or content.",
)
@click.option(
    "--sample", type=click.IntRange(1), metavar="N", help="Compare only N tables: those with the oldest comparison."
)
@click.option(
    "--sample-bytes",
    type=Size(),
    metavar="SIZE",
    help="The same, with a limit of bytes to read; a larger table is read in shares, one per run.",
)
@renamed_option(
    "--target-cmroot",
    old="--cmroot",
    metavar="PLACE",
    help="For samples: the target's change-management root, which stores the times of comparisons.",
)
@formats_option
@engine_options
@json_options
@pass_session
def verify(session: Session, /, as_json: bool, **given: Any) -> int:
    """Compare every object and file of both sides, and list each difference. Exit code 4 if any.

    With --sample or --sample-bytes, each run compares some tables, and successive runs all of them in turn. Differing
    tables that the source changed since the last load are reported as behind.

    \b
    Example:
      replicator verify west
      replicator verify --source thrift://a:9083 --target thrift://b:9083 --db sales --rename-db sales=sales_copy
      replicator verify --source prod --target dr --db sales --level size
      replicator verify --source prod --target dr --db sales --sample 100 --sample-bytes 50GiB \\
          --target-cmroot /cm-of-dr
    """
    report = session.call(run, **given)
    more = _sample_lines(report) if isinstance(report, Sampled) else []
    emit(report, as_json, [*_lines(report), *more])
    return DIFFERENT if report.difference_count else PARTIAL if report.not_replicated else 0


def _lines(report: Verified | Sampled) -> Iterable[str]:
    for each in report.differences:
        yield _line(each)
    hidden = report.difference_count - len(report.differences)
    if hidden:
        yield f"... and {count_text(hidden, 'more difference')}"
    yield from (f"not compared: {each}" for each in shortened(map(str, report.not_replicated)))
    compared = count_text(report.objects, "object")
    if report.level != "metadata":
        read = f", {report.files_read:,} read for want of a CRC" if report.files_read else ""
        compared += f" and {count_text(report.files, 'file')} ({size_text(report.bytes)}, by {report.level}{read})"
    found = f"{count_text(report.difference_count, 'difference')} in " if report.difference_count else ""
    yield f"{report.status}: {found}{compared}, {took(report.seconds)}"


def _sample_lines(report: Sampled) -> Iterable[str]:
    yield from (f"behind: {name}" for name in shortened(report.behind))
    yield from (f"warning: {each}" for each in report.warnings)
    waits = f", the longest waiting {duration_text(report.oldest)}" if report.oldest is not None else ""
    yield (
        f"sampled: {report.sampled:,} of {count_text(report.tables, 'table')}; {report.never:,} never compared{waits}; "
        f"{report.open:,} different when last compared"
    )


def _line(each: Difference) -> str:
    """`db.table  column comment  c1: 'a' at the source, 'b' on the target`."""
    what = f"{each.kind} {each.field}".strip()
    sides = [("nothing" if value is None else repr(value)) for value in (each.source, each.target)]
    return f"{each.object}  {what}: {sides[0]} expected, {sides[1]} found"
