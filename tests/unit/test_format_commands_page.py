"""Each cell of the table "Commands by format" in docs/formats.md has a test that runs it."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").exists())
TESTS = tomllib.loads((ROOT / "tests/format_commands.toml").read_text())
"""By row, and by test: the columns of the cells that it runs."""


def page() -> dict[tuple[str, str], str]:
    """The cells of the table, by row and column."""
    section = (ROOT / "docs/formats.md").read_text().partition("\n## Commands by format\n")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    columns, rows = lines[0], lines[2:]
    return {(row, column): cell for row, *cells in rows for column, cell in zip(columns, cells, strict=True)}


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_page_has_the_table() -> None:
    assert {("`restore`", "plain"), ("`purge`", "Iceberg tables"), ("`drill`", "symlink")} <= page().keys()


def test_each_cell_has_a_test() -> None:
    run = {(row, column) for row, tests in TESTS.items() for columns in tests.values() for column in columns}
    wanted = {cell for cell, text in page().items() if text != "-"}
    assert run == wanted, (
        sorted(wanted - run),
        "have no test in format_commands.toml",
        sorted(run - wanted),
        "no cell",
    )


@pytest.mark.parametrize("test", sorted({test for tests in TESTS.values() for test in tests}))
def test_the_tests_exist(test: str) -> None:
    file, _, name = test.partition("::")
    assert name.partition("[")[0] in functions(file)
