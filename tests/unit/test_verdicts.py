"""No verdict of a test depends on how long something took: no sleeping, no comparison of clocks, no short timeouts.

What is left is listed with its reason. `waiting` is where tests wait.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
WAITING = TESTS / "support" / "waiting.py"
CLOCKS = {"time", "monotonic", "perf_counter", "time_ns", "monotonic_ns"}
WAITS = {"join", "wait", "communicate", "result"}
SHORTEST = 60.0
"""Seconds. A machine that stalls for some of them must not turn a run red."""

ALLOWED = {
    "support/distance.py::distant": "a network's latency is what is made here",
    "support/distance.py::pump": "a network's latency is what is made here",
    "support/hadoop.py::_ready": "a probe of a server that starts; it is repeated",
    "support/key_server.py::_answers": "a probe of a server that starts; it is repeated",
    "support/object_servers.py::_answers": "a probe of a server that starts; it is repeated",
}
"""`path::function` -> why a real clock or a short timeout has to be there."""


def uses(file: Path) -> Iterator[tuple[str, int, str]]:
    """(function, line, what) of each use in a file."""
    tree = ast.parse(file.read_text())
    for outer in ast.walk(tree):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            outer_nodes = ast.walk(outer)
            for node in outer_nodes:
                if what := _found(node):
                    yield outer.name, node.lineno, what  # type: ignore[attr-defined]


def _found(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        name = _name(node.func)
        zero = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        if name in ("time.sleep", "asyncio.sleep") and not zero:
            return name
        short = [each.value for each in node.keywords if each.arg == "timeout"]
        if name.rpartition(".")[2] in WAITS:
            short += node.args[:1]
        if any(_seconds(each) for each in short):
            return f"{name} with a timeout below {SHORTEST:.0f} s"
    if isinstance(node, ast.Compare) and any(_is_clock(each) for each in ast.walk(node)):
        return "a comparison of clocks"
    return ""


def _seconds(node: ast.expr) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < SHORTEST


def _is_clock(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    module, _, name = _name(node.func).rpartition(".")
    return (module == "time" and name in CLOCKS) or (module.endswith("datetime") and name in ("now", "utcnow"))


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_no_verdict_depends_on_elapsed_time() -> None:
    found = {
        f"{file.relative_to(TESTS)}::{function}": f"line {line}: {what}"
        for file in sorted(TESTS.rglob("*.py"))
        if file not in (WAITING, Path(__file__))
        for function, line, what in uses(file)
    }
    assert [f"{key}, {what}" for key, what in found.items() if key not in ALLOWED] == []
    assert ALLOWED.keys() - found.keys() == set(), "entries without a use"


def test_no_test_module_imports_another_or_a_private_name() -> None:
    wrong = []
    for file in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                private = [each.name for each in node.names if each.name.startswith("_")]
                if (node.module or "").rpartition(".")[2].startswith("test_") or private:
                    wrong.append(f"{file.relative_to(TESTS)}:{node.lineno}: {node.module} {private}")
            elif isinstance(node, ast.Import):
                wrong += [
                    f"{file.relative_to(TESTS)}:{node.lineno}" for each in node.names if each.name.startswith("test_")
                ]
    assert wrong == []
