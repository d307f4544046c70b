"""The tests of `long.toml` get the marker `long`, and each is there with what else proves its promise.

A pytest plugin. A key of the table is the name of a test, or of some of its cases: `*` is anything. A value is one test
of the same file, or several of any, which together prove the same; or an empty list, where nothing else does. A proof
is a test of every run, or a row with an empty list.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

TABLE = Path(__file__).parent.parent / "long.toml"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Raises UsageError where all tests are collected and the table names what is not there, or a proof is no proof."""
    table = read_table()
    long = covered([item.nodeid for item in items], table)
    for item in items:
        if item.nodeid in long:
            item.add_marker(pytest.mark.long)
    if config.args == config.getini("testpaths"):
        usual = [item.nodeid for item in items if not item.get_closest_marker("long")]
        if wrong := list(mistakes(table, [item.nodeid for item in items], usual)):
            raise pytest.UsageError(f"{TABLE.name}: {'; '.join(wrong)}")


def read_table() -> dict[str, list[str]]:
    """By pattern of node ids, those that prove the same."""
    found = {}
    for file, rows in tomllib.loads(TABLE.read_text()).items():
        for test, proofs in rows.items():
            found[f"{file}::{test}"] = [
                proof if "::" in proof else f"{file}::{proof}"
                for proof in ([proofs] if isinstance(proofs, str) else proofs)
            ]
    return found


def covered(nodes: Iterable[str], patterns: Iterable[str]) -> set[str]:
    """Those of the nodes that a pattern names: a test with all its cases, or some of them."""
    named = "|".join(".*".join(map(re.escape, each.split("*"))) for each in patterns)
    wanted = re.compile(rf"({named})(\[.*)?", re.DOTALL)
    return {node for node in nodes if wanted.fullmatch(node)}


def mistakes(table: Mapping[str, Sequence[str]], nodes: Sequence[str], usual: Sequence[str]) -> Iterable[str]:
    """`usual`: those of the nodes that every run has."""
    alone = covered(nodes, [pattern for pattern, proofs in table.items() if not proofs])
    for pattern, proofs in table.items():
        if not covered(nodes, [pattern]):
            yield f"{pattern} is no test"
        for proof in proofs:
            if not covered([*usual, *alone], [proof]):
                yield f"{proof} is no test of every run, nor a long one without proofs"
