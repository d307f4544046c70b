"""`replicator drill`: rehearse the day on which the replica is needed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click
import msgspec

from replicator.cli.options import Session, dry_run_option, json_option, parse_settings, pass_session
from replicator.cli.output import aligned, columns, count_text, emit, note, shortened, took
from replicator.cli.sync import policy_argument
from replicator.errors import UsageError
from replicator.text.quantity import duration_text

if TYPE_CHECKING:
    from replicator.core.policy import Policy
    from replicator.drills.drill_record import Asked, Drill
    from replicator.drills.queries import Asking
    from replicator.drills.sweep import Swept
    from replicator.metastore.client import Metastore

NOT_ALL_GOOD = 3


@click.command()
@policy_argument
@click.option("--query", "queries", multiple=True, metavar="SQL", help="A query on the replica that is asked of the "
              "shadows, after those of the policy's `smoke`; repeatable.")  # fmt: skip
@click.option("--db", multiple=True, metavar="NAME", help="Only this database, by the replica's name; repeatable.")
@click.option("--sample", type=click.IntRange(0), default=20, show_default=True, metavar="N",
              help="Count the rows of N tables besides, drawn anew each time.")  # fmt: skip
@click.option("--prefix", default="drill_", show_default=True, metavar="TEXT", help="How shadows' names begin.")
@click.option("--keep", is_flag=True, help="Leave the shadows to look at, until the next drill or "
              "--clean. Read only: who writes to their tables writes to the replica's files.")  # fmt: skip
@click.option("--clean", is_flag=True, help="Only take down what drills of the policy left.")
@click.option("--list", "listing", is_flag=True, help="Only show the drills that were made.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="Of --list: the newest, so many.")
@click.option("--jobs", type=click.IntRange(1, 64), default=4, show_default=True, help="Tables made side by side.")
@click.option("--master", metavar="URL", help="Spark master; default: Spark's configuration, or local[*].")
@click.option("--spark-conf", multiple=True, metavar="KEY=VALUE", help="Spark setting; repeatable.")
@dry_run_option
@json_option
@pass_session
def drill(
    session: Session, policy: str, queries: tuple[str, ...], db: tuple[str, ...], sample: int, prefix: str, keep: bool,
    clean: bool, listing: bool, limit: int, jobs: int, master: str | None, spark_conf: tuple[str, ...], dry_run: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Promote a policy's replica into shadow databases, ask queries of them, and take them down; measure how long the
    first good answer took.

    No data is copied: a shadow's tables are external and show the replica's own files. Replication goes on meanwhile.
    What a killed drill left is swept by the next. Exit code 3 when a query failed or answered otherwise than exact
    statistics say.

    \b
    Example:
      replicator drill west --query "SELECT max(day) FROM sales.orders"
      replicator drill west --db sales --keep
      replicator drill west --clean
      replicator drill west --list
    """
    from replicator.checks.check import impatient
    from replicator.drills.drill import DrillOptions, plan
    from replicator.drills.drill import drill as rehearse
    from replicator.drills.queries import spark_on
    from replicator.drills.sweep import clean as sweep_all

    if clean and listing:
        raise UsageError("--clean and --list exclude each other", hint="give one of them")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", prefix):
        raise UsageError(f"--prefix {prefix!r} cannot begin a database's name", hint="use a-z, 0-9 and _")
    found = session.config.policy(policy)
    if listing:
        return _list(found, limit, as_json)
    options = DrillOptions(databases=db, queries=queries, sample=sample, prefix=prefix, keep=keep, jobs=jobs)
    settings = session.config.spark | parse_settings(spark_conf, "--spark-conf")
    with ExitStack() as stack:
        source = stack.enter_context(impatient(found.source))  # it may be away: that is what drills are for
        target = stack.enter_context(session.metastore(found.target))
        if clean:
            swept = sweep_all(found, source, target, jobs=jobs)
            emit(swept, as_json, _swept_lines(swept))
            return NOT_ALL_GOOD if swept.staying else 0
        if dry_run:
            planned = plan(found, source, target, options)
            emit({**msgspec.to_builtins(planned), "status": "planned"}, as_json, _plan_lines(planned))
            return 0

        def asking(metastore: Metastore) -> Asking:
            return stack.enter_context(spark_on(metastore, master, settings))

        done = rehearse(found, source, target, asking, options)
    emit(msgspec.to_builtins(done), as_json, drill_lines(done))
    return 0 if done.status == "done" and not (done.staying or done.not_replicated) else NOT_ALL_GOOD


def _list(policy: Policy, limit: int, as_json: bool) -> int:
    from cmroot.root import open_existing
    from replicator.drills.drill_record import Drills
    from replicator.policies.memory import Memory

    drills, damaged = Drills(Memory(open_existing(policy.target_cmroot), policy.name)).read(limit)
    for path in damaged:
        note(f"{path}: cannot be understood, and is left out")
    answer = {"status": "shown", "policy": policy.name, "drills": msgspec.to_builtins(drills), "damaged": damaged}
    emit(answer, as_json, _list_lines(drills))
    return 0


def drill_lines(drill: Drill) -> Iterable[str]:
    """A drill for a person."""
    made = [
        count_text(drill.tables, "table"),
        count_text(drill.partitions, "partition"),
        count_text(drill.views, "view"),
    ]
    lag = f", {drill.lag_seconds:.0f} s behind" if drill.lag_seconds is not None else ""
    events = sorted({standing.event for standing in drill.checkpoint.values()})
    good = sum(each.outcome == "good" for each in drill.queries)
    first = drill.first_answer_seconds
    steps = ", ".join(f"{name} {took:.1f}" for name, took in drill.steps.items())
    yield from aligned(
        [
            (drill.status, f"{drill.policy}, drill {drill.id}" + (" (backwards)" if drill.reverse else "")),
            ("replica", f"{drill.metastore} at event {', '.join(map(str, events))}{lag}"),
            ("shadows", shortened(f"{replica} as {shadow}" for replica, shadow in drill.databases.items())),
            ("made", ", ".join([*made, count_text(drill.functions, "function")])),
            ("skipped", shortened(f"{name}: {why}" for name, why in drill.skipped.items())),
            ("not replicated", shortened(map(str, drill.not_replicated))),
            ("ready", f"after {drill.ready_seconds:.1f} s" if drill.ready_seconds is not None else None),
            ("queries", f"{good} of {len(drill.queries)} good" if drill.queries else "none"),
            ("", shortened(_query_line(each) for each in drill.queries)),
            ("first answer", f"after {first:.1f} s" if first is not None else "none"),
            ("moved on", shortened(drill.moved)),
            ("staying", shortened(drill.staying)),
            ("shadows", f"kept: replicator drill {drill.policy} --clean" if not drill.torn_down else "taken down"),
            ("warning", shortened(drill.warnings)),
            ("took", f"{took(drill.seconds)} ({steps})"),
        ]
    )  # fmt: skip


def _query_line(asked: Asked) -> str:
    text = asked.error or "; ".join(", ".join(map(str, row)) for row in asked.rows) or "no rows"
    wanted = f" (statistics say {asked.expected})" if asked.expected is not None and asked.outcome != "good" else ""
    return f"{asked.outcome}  {asked.query}: {text}{wanted} ({asked.seconds:.1f} s)"


def _plan_lines(drill: Drill) -> Iterable[str]:
    return aligned(
        [
            ("would show", f"{count_text(drill.tables, 'table or view')} of {drill.policy}"),
            ("shadows", shortened(f"{replica} as {shadow}" for replica, shadow in drill.databases.items())),
            ("warning", shortened(drill.warnings)),
        ]
    )


def _list_lines(drills: list[Drill]) -> Iterable[str]:
    if not drills:
        return ["no drill is remembered"]
    rows = [
        (
            drill.started[:19] + "Z", drill.id, drill.status, drill.by,
            max((standing.event for standing in drill.checkpoint.values()), default=None), drill.tables,
            sum(each.outcome == "good" for each in drill.queries), len(drill.queries),
            duration_text(drill.first_answer_seconds) if drill.first_answer_seconds is not None else None,
            drill.error or "; ".join(drill.warnings[:1]),
        )
        for drill in drills
    ]  # fmt: skip
    head = ("started", "drill", "status", "by", "at event", "tables", "good", "queries", "first answer", "said")
    return columns(head, rows, ("at event", "tables", "good", "queries", "first answer"))


def _swept_lines(swept: Swept) -> Iterable[str]:
    return aligned(
        [
            (swept.status, swept.policy),
            ("dropped", shortened(swept.dropped) or "nothing"),
            ("staying", shortened(swept.staying)),
            ("warning", shortened(swept.warnings)),
        ]
    )
