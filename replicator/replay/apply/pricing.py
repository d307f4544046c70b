"""Pricing: what a load would change, copy and take away, in words and numbers, before anything is done. Reads only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from replicator.captures.dumps.layout import DumpReader
from replicator.core.not_replicated import NotReplicated, Report
from replicator.replay.apply.planning import compare
from replicator.replay.apply.transfer import run_files
from replicator.replay.apply.weighing import Brake, Gone, Weight, excess, shown, weigh
from replicator.replay.apply.work import Replay
from replicator.replay.copy.copy_task import COMPARE, CopyReport
from replicator.replay.plan.plan import Plan
from replicator.replay.plan.squash import surviving_partitions

CHANGES = (
    "create_databases",
    "drop_databases",
    "drop_tables",
    "rename_tables",
    "create_tables",
    "alter_tables",
    "functions",
    "drop_functions",
)
"""Fields of a plan that name what changes."""


@dataclass(frozen=True)
class Price:
    """What a load would copy and take away: files and bytes by their contents, not as the dump names them. `missing`:
    files whose bytes are not to be had. files_from_...: where the files' bytes would come from, by name and size; those
    from the target are what its `$cmroot` keeps. `weight`: what goes, by name."""

    files: int
    bytes: int
    files_removed: int
    bytes_removed: int
    partitions_removed: int
    missing: int
    files_from_source: int = 0
    files_from_cmroot: int = 0
    files_from_target: int = 0
    weight: Weight = field(default_factory=Weight)


def price(replay: Replay) -> Price:
    """Compares every file of a dump with what lies at its place on the target. Changes nothing."""
    compare(replay)
    report = run_files(replay, COMPARE) if replay.reader.metadata.files else CopyReport()
    weight = weigh(replay)
    return Price(
        report.files_copied,
        report.bytes_copied,
        weight.files,
        weight.bytes,
        weight.partitions,
        report.missing_count,
        report.files_from_source,
        report.files_from_cmroot,
        report.files_from_target,
        weight,
    )


@dataclass(kw_only=True)
class LoadPlan(Report):
    """What a load would do; see docs/cli.md. `skipped`: why it would do nothing. `files`, `bytes`: that the dump
    names; those are copied that are not there yet. `gone`: what goes, by name (`goes`: the same in words); `refused`:
    why the load would be, empty when it would not."""

    status: str = "planned"
    dump: str
    skipped: str
    create_databases: list[str]
    drop_databases: list[str]
    drop_tables: list[str]
    rename_tables: list[str]
    create_tables: list[str]
    alter_tables: list[str]
    functions: list[str]
    drop_functions: list[str]
    partitions_touched: int
    files: int
    bytes: int
    files_to_remove: int
    locations: dict[str, str]
    not_replicated: list[NotReplicated]
    warnings: list[str]
    bytes_to_remove: int
    partitions_to_drop: int
    gone: list[Gone]
    goes: list[str]
    refused: str


def described(replay: Replay, brake: Brake | None) -> LoadPlan:
    """As `describe`, with what goes by name, and why the load would be refused, if it would."""
    plan, found = replay.plan, describe(replay.plan, replay.reader)
    if not plan.skipped:
        compare(replay)
    weight = Weight() if plan.skipped else weigh(replay)
    refusal = excess(plan, weight, brake) if brake else None
    found |= {
        "dump": replay.reader.place,
        "not_replicated": plan.not_replicated,
        "warnings": plan.warnings,
        "files_to_remove": weight.files,
        "bytes_to_remove": weight.bytes,
        "partitions_to_drop": weight.partitions,
        "gone": weight.gone,
        "goes": list(shown(weight)),
        "refused": refusal.message if refusal else "",
    }
    return LoadPlan(**found)


def describe(plan: Plan, reader: DumpReader) -> dict[str, Any]:
    """A plan for `--dry-run`: what would be changed, and how many files and bytes are named at most."""
    return {
        "skipped": plan.skipped,
        "create_databases": [each.name for each in plan.create_databases],
        "drop_databases": plan.drop_databases,
        "drop_tables": [f"{table.db}.{table.name}" for table in plan.drops],
        "rename_tables": [f"{'.'.join(s.rename_from)} -> {'.'.join(s.name)}" for s in plan.tables if s.rename_from],
        "create_tables": [".".join(step.name) for step in plan.tables if not step.exists],
        "alter_tables": [".".join(step.name) for step in plan.tables if step.exists],
        "functions": [f"{each.db}.{each.name}" for each in plan.put_functions],
        "drop_functions": [".".join(name) for name in plan.drop_functions],
        "partitions_touched": sum(
            len(named) for _, named in surviving_partitions(plan.squashed, reader.records(plan.after))
        ),
        "files": 0 if plan.skipped else reader.metadata.files,
        "bytes": 0 if plan.skipped else reader.metadata.bytes,
        "files_to_remove": 0 if plan.skipped else reader.metadata.removed,
        "locations": {
            ".".join(step.name): step.table.location for step in plan.tables if step.table and step.table.location
        },
        "not_replicated": [asdict(each) for each in plan.not_replicated],
        "warnings": plan.warnings,
    }
