"""Mutants: one small change of one module each. Pure: from source text to mutated source text."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OPERATORS = [
    "core/AddNot", "core/ReplaceAndWithOr", "core/ReplaceOrWithAnd", "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue", "core/ReplaceBreakWithContinue", "core/ReplaceContinueWithBreak",
    "core/ZeroIterationForLoop", "core/NumberReplacer", "core/ReplaceBinaryOperator_Add_Sub",
    "core/ReplaceBinaryOperator_Sub_Add", "core/ReplaceComparisonOperator_Eq_NotEq",
    "core/ReplaceComparisonOperator_NotEq_Eq", "core/ReplaceComparisonOperator_Lt_LtE",
    "core/ReplaceComparisonOperator_LtE_Lt", "core/ReplaceComparisonOperator_Gt_GtE",
    "core/ReplaceComparisonOperator_GtE_Gt",
]  # fmt: skip
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
    """So many random mutants of the modules, each equally likely; the same ones for the same seed and sources."""
    dice = random.Random(seed)
    found = [mutant for module in modules for mutant in all_mutants(root, module)]
    return sorted(dice.sample(found, min(number, len(found))), key=lambda each: (each.module, each.line))


def all_mutants(root: Path, module: str) -> Iterator[Mutant]:
    """Every mutant of one module that differs from it in more than comments."""
    text = (root / module).read_text()
    yield from _without_statements(module, text)
    yield from _by_operators(module, text)


def replaced(root: Path, module: str, before: str, after: str, what: str) -> Mutant:
    """A mutant by hand. Raises ValueError when the text to replace is not there exactly once: the module has changed,
    and so must the list."""
    text = (root / module).read_text()
    if text.count(before) != 1:
        raise ValueError(f"{module} has {text.count(before)} times: {before!r}")
    return _mutant(module, what, text, text.replace(before, after))


def _without_statements(module: str, text: str) -> Iterator[Mutant]:
    """A call that is made for its effect alone is left out: a check, a sync, a removal."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Yield) and node.end_lineno:
            before, after = lines[: node.lineno - 1], lines[node.end_lineno :]
            yield _mutant(module, REMOVED, text, "".join([*before, " " * node.col_offset + "pass\n", *after]))


def _by_operators(module: str, text: str) -> Iterator[Mutant]:
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    for name in OPERATORS:
        operator, occurrence = get_operator(name)(), 0
        while (mutated := mutate_code(text, operator, occurrence)) is not None:
            occurrence += 1
            yield _mutant(module, name.partition("/")[2], text, mutated)


def _mutant(module: str, what: str, text: str, mutated: str) -> Mutant:
    pairs = zip(text.splitlines(), mutated.splitlines(), strict=False)
    line, before, after = next((n, one, other) for n, (one, other) in enumerate(pairs, 1) if one != other)
    return Mutant(module, what, line, before, after, mutated)
