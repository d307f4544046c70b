"""No function takes more than seven arguments: what goes together through many calls has a name, such as `Runtime`,
`Sides`, `Comparison` or a command's options."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

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


def test_functions_take_few_arguments() -> None:
    given = {  # the names alone: all trees at once would keep the collector of garbage busy
        f"{path.relative_to(ROOT)}:{each.lineno} {each.name}": arguments(each)
        for path in files()
        for each in ast.walk(ast.parse(path.read_text()))
        if is_function(each)
    }
    assert len(given) > 5000
    wide = {function: names for function, names in given.items() if len(names) > MOST}
    assert wide == {}, "give what goes together a value of its own"


def is_function(node: ast.AST) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
