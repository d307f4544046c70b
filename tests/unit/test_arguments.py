"""No function takes more than seven arguments: what goes together through many calls has a name, such as `Runtime`,
`Sides`, `Comparison` or a command's options."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").exists())
MOST = 7


def files() -> Iterator[Path]:
    for name in ("cmroot", "replicator", "scripts"):
        for path in sorted((ROOT / name).rglob("*")):
            if path.suffix == ".py" or (path.is_file() and b"python" in path.read_bytes().partition(b"\n")[0]):
                yield path


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Without the instance or class of a method."""
    given = function.args
    named = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    rest = [each.arg for each in (given.vararg, given.kwarg) if each]
    return [*(named[1:] if named[:1] in (["self"], ["cls"]) else named), *rest]


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_take_few_arguments(path: Path) -> None:
    functions = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    wide = {each.name: arguments(each) for each in functions if len(arguments(each)) > MOST}
    assert wide == {}, f"{path}: give what goes together a value of its own"
