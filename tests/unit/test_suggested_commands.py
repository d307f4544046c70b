"""Each command that the product, its pages or its documentation suggest is one that the command line takes."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from replicator.cli import table
from replicator.cli.main import cli

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").exists())
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEMPLATES = sorted((ROOT / "replicator").rglob("*.html"))
CODE = sorted(path for top in ("replicator", "cmroot") for path in (ROOT / top).rglob("*.py"))
INLINE = re.compile(r"`([^`\n]+)`")
VALUE = "x"
"""In place of what an f-string inserts."""

NONE = {"replicator formx"}
"""Texts that only look like a command: the label of an HMAC."""

ENDS = re.compile(r"^(\||>|>>|2>|2>&1|<|&&|\|\||;|&|#.*|.*;)$")


def texts(code: str) -> Iterator[tuple[int, str]]:
    """Texts of a module with their lines; what an f-string inserts is `x`."""
    tree = ast.parse(code)
    parts = {id(each) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for each in node.values}
    parts |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found = "".join(str(each.value) if isinstance(each, ast.Constant) else VALUE for each in node.values)
            yield node.lineno, found
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value


def lines(text: str) -> Iterator[str]:
    """Lines of a text that are commands: `replicator ...`, perhaps after a prompt or an assignment."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if match := re.match(r"\s*(?:\$ )?(?:[A-Z_]+=\S* )*(?:sudo \S+ )?(replicator [a-z].*)", line):
            yield match[1]


def said_by(expression: str) -> str:
    """The text of an expression of a template: its literals, and what is between two of them."""
    literals = re.findall(r'"([^"]*)"', expression)
    end = "" if expression.rstrip().endswith('"') else VALUE
    return (VALUE.join(literals) + end).replace("\\n", "\n")


def suggested() -> Iterator[tuple[str, str]]:
    """Where something that may be a command stands, and its line."""
    for path in [*PAGES, *TEMPLATES]:
        name, text = str(path.relative_to(ROOT)), path.read_text()
        if path in TEMPLATES:
            text = "\n".join(map(said_by, re.findall(r"m\.command\((.*?)\) *\}\}", text, re.DOTALL)))
        yield from ((name, line) for line in (*lines(text), *INLINE.findall(text)))
    for path in CODE:
        name = str(path.relative_to(ROOT))
        for number, text in texts(path.read_text()):
            yield from ((f"{name}:{number}", line) for line in (*lines(text), *INLINE.findall(text)))


def words(line: str) -> list[str]:
    """The words of a command up to a pipe, a redirection, a comment or an explanation in a column. `[--x X]` counts."""
    line = re.sub(r"\[(--[^\]]*)\]", r"\1", re.split(r" {4,}[^-]|</", line)[0])
    try:
        found = shlex.split(line, comments=True)
    except ValueError:
        found = line.split()
    end = next((index for index, word in enumerate(found) if ENDS.match(word)), len(found))
    return found[:end]


def fault(given: list[str], *, complete: bool) -> str:
    """What the command line refuses of it; empty: nothing."""
    try:
        return _fault(cli, None, given, complete=complete)
    except click.BadOptionUsage as error:  # of a mention: `show --table`
        return error.format_message() if complete else ""
    except click.UsageError as error:
        return error.format_message()


def _fault(of: click.Command, parent: click.Context | None, given: list[str], *, complete: bool) -> str:
    context = click.Context(of, parent, info_name=of.name, resilient_parsing=not complete)
    values, left, _ = of.make_parser(context).parse_args(args=list(given))
    if isinstance(of, click.Group) and left:
        _, below, rest = of.resolve_command(context, left)
        return _fault(below, context, rest, complete=complete) if below else f"no command {left[0]}"
    if left:
        return f"unexpected {' '.join(left)}"
    missing = [each for each in of.params if each.required and values.get(each.name or "") in (None, ())]
    return f"missing {missing[0].name}" if complete and missing else ""


def commands() -> Iterator[tuple[str, str, str]]:
    """Where each stands, the command, and what is wrong with it."""
    for where, line in suggested():
        given = words(line)
        complete = False
        if given[:1] == ["replicator"]:
            given = given[1:]
            complete = not all(re.match("-|[a-z-]+$", each) for each in given)  # else a mention: `role set --force`
        elif not (given and given[0] in table.COMMANDS and any(each.startswith("--") for each in given)):
            continue
        if given and given[0] != VALUE and line not in NONE and "..." not in line:
            yield where, line, fault(given, complete=complete)


def test_every_suggested_command_is_taken() -> None:
    found = list(commands())
    assert len(found) > 300
    assert [(where, line, why) for where, line, why in found if why] == []
