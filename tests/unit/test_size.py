"""Ceilings that may only be lowered: files of the product, lines of a file, and words that no engineer searches for."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").exists())
FILES = 488
LINES = 465  # of one file
WORDS = {
    "anew": 3,
    "at work": 34,
    "beside": 93,
    "errand": 0,
    "goes on": 6,
    "meanwhile": 84,
    "nobody": 210,
    "somebody": 100,
}
"""In docstrings and comments: how often each may stand there still."""

FILES_OF_THE_PRODUCT = sorted(path for top in ("cmroot", "replicator") for path in (ROOT / top).rglob("*.py"))


def test_there_are_no_more_files() -> None:
    assert len(FILES_OF_THE_PRODUCT) <= FILES


def test_no_file_is_longer_than_a_reader_can_follow() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES_OF_THE_PRODUCT}
    assert {name: size for name, size in sizes.items() if size > LINES} == {}


def test_words_of_no_field_become_fewer() -> None:
    found = Counter[str]()
    for path in FILES_OF_THE_PRODUCT:
        text = prose(path.read_text())
        found.update({word: len(re.findall(rf"\b{word}\b", text)) for word in WORDS})
    assert {word: count for word, count in found.items() if count > WORDS[word]} == {}


def prose(source: str) -> str:
    """The docstrings and comments of a file."""
    strings = [
        node.value.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return "\n".join([*strings, *re.findall(r"#.*", source)]).lower()
