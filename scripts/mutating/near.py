"""Which test modules are the likeliest to notice a mutant: those that import its module over the fewest others."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

PRODUCT = ["cmroot", "replicator"]


def nearest(root: Path, module: str, tests: Iterable[str]) -> list[str]:
    """The test modules of `tests` (files and directories below `root`), the nearest to the module first; of equally
    near ones those that are named after it, then those that import the least."""
    steps = _steps_to(root, module)
    files = {
        file for test in tests for file in ([root / test] if test.endswith(".py") else (root / test).rglob("test_*.py"))
    }

    def distance(file: Path) -> tuple[int, bool, int, str]:
        imports = list(_imports(root, file))
        near = min((steps[each] for each in imports if each in steps), default=len(steps))
        return near, Path(module).stem not in file.stem, len(imports), str(file)

    return [str(file.relative_to(root)) for file in sorted(files, key=distance)]


def _steps_to(root: Path, module: str) -> dict[str, int]:
    """How many imports lead from each module of the product to this one; those that never do are left out."""
    imports = {
        str(file.relative_to(root)): set(_imports(root, file)) for top in PRODUCT for file in (root / top).rglob("*.py")
    }
    steps, found = {module: 0}, [module]
    while found:
        found = [each for each in imports if each not in steps and imports[each] & set(found)]
        steps |= dict.fromkeys(found, max(steps.values()) + 1)
    return steps


def _imports(root: Path, file: Path) -> Iterator[str]:
    """The modules of the product that a module imports, each once or more, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        else:
            continue
        for path in (name.replace(".", "/") for name in names):
            yield from (each for each in (f"{path}.py", f"{path}/__init__.py") if (root / each).is_file())
