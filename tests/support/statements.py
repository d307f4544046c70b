"""The statements of a Python file, those inside others too: what tests of the code itself look through."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

Statement = ast.stmt | ast.ExceptHandler | ast.match_case


@cache
def statements_of(path: Path) -> tuple[Statement, ...]:
    return tuple(inside(ast.parse(path.read_text())))


def inside(node: ast.AST) -> Iterator[Statement]:
    """Of a module or a statement. Expressions hold none, and most nodes of a file are in those."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, Statement):
            yield each
            yield from inside(each)
