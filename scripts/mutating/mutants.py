"""Mutants: one small change of one module each. Pure: from source text to mutated source text."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

OPERATORS = [
    "core/AddNot",
    "core/ReplaceAndWithOr",
    "core/ReplaceOrWithAnd",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceBreakWithContinue",
    "core/ReplaceContinueWithBreak",
    "core/ZeroIterationForLoop",
    "core/NumberReplacer",
    "core/ReplaceBinaryOperator_Add_Sub",
    "core/ReplaceBinaryOperator_Sub_Add",
    "core/ReplaceComparisonOperator_Eq_NotEq",
    "core/ReplaceComparisonOperator_NotEq_Eq",
    "core/ReplaceComparisonOperator_Lt_LtE",
    "core/ReplaceComparisonOperator_LtE_Lt",
    "core/ReplaceComparisonOperator_Gt_GtE",
    "core/ReplaceComparisonOperator_GtE_Gt",
]
"""Of cosmic-ray: those whose mutants are rarely nonsense."""

REMOVED = "statement removed"


@dataclass(frozen=True)
class Mutant:
    """`module`: path in the checkout; `text`: the whole mutated module; `line`: the first that differs; `what`: the
    operator, or what a named mutant is about."""

    module: str
    what: str
    line: int
    before: str
    after: str
    text: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.what}: `{self.before.strip()}` -> `{self.after.strip()}`"


def sample(root: Path, modules: list[str], number: int, seed: int) -> list[Mutant]:
    """So many random mutants of the modules, each equally likely, in random order: the first of them are a sample, too.
    The same ones for the same seed and sources."""
    places = [make for module in modules for make in _places(module, (root / module).read_text())]
    return [make() for make in random.Random(seed).sample(places, min(number, len(places)))]


def replaced(root: Path, module: str, before: str, after: str, what: str) -> Mutant:
    """A mutant by hand. Raises ValueError when the text to replace is not there exactly once: the module has changed,
    and so must the list."""
    text = (root / module).read_text()
    if text.count(before) != 1:
        raise ValueError(f"{module} has {text.count(before)} times: {before!r}")
    return _mutant(module, what, text, text.replace(before, after))


def _places(module: str, text: str) -> Iterator[Callable[[], Mutant]]:
    """Makers of every mutant of one module: to count them is quick, to make them is not."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Yield):
            yield partial(_without, module, text, node)
    nodes = list(ast_nodes(get_ast(text)))
    for name in OPERATORS:
        operator = get_operator(name)()
        for occurrence in range(sum(1 for node in nodes for _ in operator.mutation_positions(node))):
            yield partial(_operated, module, text, name, partial(mutate_code, text, operator, occurrence))


def _without(module: str, text: str, node: ast.Expr) -> Mutant:
    """A call that is made for its effect alone is left out: a check, a sync, a removal."""
    lines = text.splitlines(keepends=True)
    before, after = lines[: node.lineno - 1], lines[node.end_lineno :]
    return _mutant(module, REMOVED, text, "".join([*before, " " * node.col_offset + "pass\n", *after]))


def _operated(module: str, text: str, operator: str, mutated: Callable[[], str]) -> Mutant:
    return _mutant(module, operator.partition("/")[2], text, mutated())


def _mutant(module: str, what: str, text: str, mutated: str) -> Mutant:
    pairs = zip(text.splitlines(), mutated.splitlines(), strict=False)
    line, before, after = next((n, one, other) for n, (one, other) in enumerate(pairs, 1) if one != other)
    return Mutant(module, what, line, before, after, mutated)
