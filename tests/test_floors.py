"""The floors of docs/design.md: imports point down. Changed only together with the design."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = [
    {"cmroot"},
    {
        "replicator", "replicator.errors", "replicator.model", "replicator.config", "replicator.delta_log",
        "replicator.engine",
        "replicator.grouping", "replicator.java_properties", "replicator.not_replicated", "replicator.policy",
        "replicator.partition_filter", "replicator.progress",
        "replicator.printable", "replicator.quantity", "replicator.report",
        "replicator.roles", "replicator.shadow", "replicator.sql_text", "replicator.table_format",
    },
    {"replicator.metastore"},
    {"replicator.events"},
    {"replicator.dump", "replicator.gateway"},
    {"replicator.load"},
    {"replicator.sync", "replicator.lifecycle", "replicator.guard"},
    {"replicator.housekeeping", "replicator.retention", "replicator.purge"},
    {"replicator.api", "replicator.cm"},
    {"replicator.lives"},
    {"replicator.demo", "replicator.cli"},
]  # fmt: skip
ROOMS_OF_LIBRARIES = {
    "pyspark": {"replicator.engine", "replicator.demo", "replicator.metastore"},
    "thrift": {"replicator.metastore"},
    "hmsclient": {"replicator.metastore"},
    "click": {"replicator.cli"},
    "sqlite3": {"replicator.events", "replicator.guard"},
    "sqlalchemy": {"replicator.housekeeping"},
    "alembic": {"replicator.housekeeping"},
}


def modules() -> list[Path]:
    return sorted([*ROOT.glob("cmroot/**/*.py"), *ROOT.glob("replicator/**/*.py")])


def room(module: str) -> str:
    if module.split(".")[0] == "cmroot":
        return "cmroot"
    return ".".join(module.split(".")[:2])


def floor(module: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room(module) in rooms)


def imports(path: Path) -> set[str]:
    """Modules that a file imports when it is imported; those inside functions are deferred, and counted too, except for
    the callable packages' own door to the API."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down_the_floors(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for imported in imports(path):
        if imported.split(".")[0] in ("cmroot", "replicator"):
            door = imported == "replicator.api" and module in ("replicator.dump", "replicator.load", "replicator.sync")
            assert door or floor(imported) <= floor(module), f"{module} imports {imported}, which is above it"
        rooms = ROOMS_OF_LIBRARIES.get(imported.split(".")[0])
        assert rooms is None or room(module) in rooms, f"{imported} belongs to {rooms}, not to {module}"
