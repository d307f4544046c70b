"""`replicator verify`: compare a target with its source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from replicator.cli.options import (
    EngineChoice,
    Session,
    Size,
    engine_options,
    exclude_option,
    formats_option,
    include_option,
    json_option,
    map_option,
    pass_session,
    rename_option,
    source_option,
    target_option,
)
from replicator.cli.output import count_text, duration_text, emit, shortened, size_text, took
from replicator.core.not_replicated import PARTIAL
from replicator.errors import UsageError

if TYPE_CHECKING:
    from replicator.compare.differences import Difference
    from replicator.compare.sampling import Sampled
    from replicator.compare.verify import Verified
    from replicator.core.table_format import FormatChoice

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
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Compare only the next N tables: those compared "
              "longest ago.")  # fmt: skip
@click.option("--sample-bytes", type=Size(), metavar="SIZE", help="The same, with a limit of bytes to read; a table "
              "that is larger is read in shares, one a run.")  # fmt: skip
@click.option("--cmroot", metavar="PLACE", help="For samples: the target's own root, which remembers when each table "
              "was compared.")  # fmt: skip
@formats_option
@engine_options
@json_option
@pass_session
def verify(
    session: Session, source: str, target: str, db: tuple[str, ...], rename_db: tuple[str, ...],
    map_location: tuple[str, ...], include: tuple[str, ...], exclude: tuple[str, ...], level: Any, sample: int | None,
    sample_bytes: int | None, cmroot: str | None, formats: FormatChoice, engine: EngineChoice, as_json: bool,
) -> int:  # fmt: skip
    """Compare every object and file of both sides, read anew from both, and list each difference. Exit code 4 if any.

    With --sample or --sample-bytes, each run compares some tables, and in the end all of them, round and round. Tables
    that differ and were changed at the source since the last load are told apart: they are only behind.

    \b
    Example:
      replicator verify --source thrift://a:9083 --target thrift://b:9083 --db sales --rename-db sales=sales_copy
      replicator verify --source prod --target dr --db sales --level size
      replicator verify --source prod --target dr --db sales --sample 100 --sample-bytes 50GiB --cmroot /cm-of-dr
    """
    from cmroot.root import open_existing
    from replicator.compare.sampling import Budget, memory_of, verify_sample
    from replicator.compare.verify import verify as compare
    from replicator.events.scope import Patterns
    from replicator.replay.places.placement import parse_pairs, parse_renames

    sampling = sample is not None or sample_bytes is not None
    if sampling and cmroot is None:
        raise UsageError("--sample needs a place to remember what was compared when", hint="give --cmroot")
    rename, mappings = parse_renames(rename_db), parse_pairs(map_location, "--map-location")
    _refuse_itself(session.config.metastore_uri(source), session.config.metastore_uri(target), db, dict(rename))
    with (
        session.metastore(source) as here,
        session.metastore(target) as there,
        session.engines(engine) as engines,
    ):
        given: dict[str, Any] = {
            "rename": rename, "map_locations": mappings, "patterns": Patterns.parse(include, exclude), "level": level,
            "formats": formats, "engine": engines, "progress": session.progress,
        }  # fmt: skip
        databases = list(dict.fromkeys(db))
        report: Verified | Sampled
        if sampling and cmroot is not None:
            budget, place = Budget(sample, sample_bytes), memory_of(open_existing(cmroot).place)
            report = sampled = verify_sample(here, there, databases, budget, place, **given)
            more = _sample_lines(sampled)
        else:
            report, more = compare(here, there, databases, **given), []
    emit(report, as_json, [*_lines(report), *more])
    return DIFFERENT if report.difference_count else PARTIAL if report.not_replicated else 0


def _refuse_itself(source: str, target: str, databases: Sequence[str], rename: Mapping[str, str]) -> None:
    from replicator.core.policy import same_metastore

    renamed = {name.lower(): after.lower() for name, after in rename.items()}
    itself = [name for name in databases if renamed.get(name.lower(), name.lower()) == name.lower()]
    if itself and same_metastore(source, target):
        raise UsageError(
            f"--source and --target are one metastore, {source}: {', '.join(itself)} would be compared with itself",
            hint="name another target, or --rename-db when the copy has another name on the same metastore",
        )


def _lines(report: Verified | Sampled) -> Iterable[str]:
    for each in report.differences:
        yield _line(each)
    hidden = report.difference_count - len(report.differences)
    if hidden:
        yield f"... and {count_text(hidden, 'more difference')}"
    yield from (f"not compared: {each}" for each in shortened(map(str, report.not_replicated)))
    compared = count_text(report.objects, "object")
    if report.level != "metadata":
        compared += f" and {count_text(report.files, 'file')} ({size_text(report.bytes)}, by {report.level})"
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
