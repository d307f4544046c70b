"""Ceilings that may only be lowered: files of the product, lines of a file, and words that no engineer searches for."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").exists())
FILES = 432
LINES = 465  # of one file
WORDS = dict.fromkeys(("anew", "at work", "beside", "errand", "goes on", "meanwhile", "nobody", "somebody"), 0)
"""In docstrings and comments: how often each may stand there still."""

IN_MESSAGES = {"anew": 0, "at work": 0, "beside": 0, "goes on": 0, "meanwhile": 0, "nobody": 1, "somebody": 0}
"""The same in texts that people read."""

WITHOUT_SUBJECT = 5
"""Docstrings that still begin with a relative pronoun or a preposition."""

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


def test_words_of_no_field_become_fewer_in_messages_too() -> None:
    found = Counter[str]()
    for path in FILES_OF_THE_PRODUCT:
        apart, texts = set[int](), list[ast.Constant]()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Expr):
                apart.add(id(node.value))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                texts.append(node)
        said = "\n".join(str(node.value) for node in texts if id(node) not in apart)
        found.update({word: len(re.findall(rf"\b{word}\b", said)) for word in IN_MESSAGES})
    assert {word: count for word, count in found.items() if count > IN_MESSAGES[word]} == {}


def test_docstrings_begin_with_a_subject_or_a_verb() -> None:
    """Not with `What ...`, `Whether ...` and their like, for which nobody can search."""
    begins = re.compile(r"(What|Whether|Of|As|By|Who|Where|When|Which|How|Why|Those|That|Is)\b")
    found = [text for path in FILES_OF_THE_PRODUCT for text in docstrings(path.read_text()) if begins.match(text)]
    assert len(found) <= WITHOUT_SUBJECT, found[:20]


def docstrings(source: str) -> list[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    return [text for text in found if text]


def prose(source: str) -> str:
    """The docstrings and comments of a file."""
    strings = [
        node.value.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return "\n".join([*strings, *re.findall(r"#.*", source)]).lower()
