"""What a command prints: one JSON object for programs, aligned text for people, errors as either.

All of standard output passes through here."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import time as clocks
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from replicator.cli.logs import logged, noted
from replicator.core.not_replicated import Report
from replicator.core.text import count_text as count_text
from replicator.core.text import duration_text as duration_text
from replicator.core.text import printable, printable_lines
from replicator.core.text import size_text as size_text
from replicator.core.text import time_text as time_text
from replicator.errors import Error

SHOWN = 20  # things a person sees one by one; JSON has all of them
BROKEN_PIPE = 141  # 128 + SIGPIPE


def emit(value: Mapping[str, Any] | Any, as_json: bool, lines: Iterable[str] | None = None) -> None:
    """A command's answer: `value` (a mapping or a dataclass) as one JSON object, or `lines` for a person (without any:
    the value's fields, aligned)."""
    if isinstance(value, Report):
        fields: Mapping[str, Any] = value.to_dict()
    else:
        fields = value if isinstance(value, Mapping) else dataclasses.asdict(value)
    if as_json:
        write([json.dumps(fields)])
    else:
        write(aligned(fields.items()) if lines is None else lines)


def write(lines: Iterable[str]) -> None:
    """Lines to standard output. A reader that went away (`| head`) ends the command quietly."""
    try:
        for line in lines:  # JSON is written in ASCII, and stays as it is
            sys.stdout.write(printable(line) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  the interpreter flushes it once more at its end
        raise SystemExit(BROKEN_PIPE) from None


def note(text: str, level: int = logging.INFO) -> None:
    """A remark beside the answer, to standard error, and to the log where that is a file."""
    noted(text, level)
    if not logged(text, level):
        click.echo(printable_lines(text), err=True)


def show_error(fields: Mapping[str, Any], as_json: bool) -> None:
    """A failure: `message`, `hint` and the rest as `failure` made them."""
    about = {key: fields[key] for key in ("error", "hint", "exit_code") if fields.get(key) not in (None, "")}
    said = logged(fields["message"], logging.ERROR, **about)
    if as_json:
        write([json.dumps(fields)])
        return
    if said:
        return
    click.echo(printable_lines(f"error: {fields['message']}"), err=True)
    if fields["hint"]:
        click.echo(printable_lines(f"hint: {fields['hint']}"), err=True)


def failure(error: Error) -> dict[str, Any]:
    return {**error.as_json(), "exit_code": error.exit_code}


def aligned(pairs: Iterable[tuple[str, Any]]) -> list[str]:
    """`name  value` lines, names padded to one width; None is left out, a list takes a line for each entry."""
    rows = [(name, value) for name, value in pairs if value is not None and value != []]
    width = max((len(name) for name, _ in rows), default=0)
    lines = []
    for name, value in rows:
        values = [printable(str(each)) for each in (value if isinstance(value, list | tuple) else [value])]
        lines += [f"{name if index == 0 else '':<{width}}  {text}" for index, text in enumerate(values)]
    return lines


def value_text(value: Any) -> str:
    """Any value for a person, without the notation of a program: none, yes, `a = 1, b = 2`; quotes only around text
    whose ends would not be seen."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case str():
            return value if value and value == value.strip() else f'"{value}"'
        case Mapping():
            return ", ".join(f"{name} = {value_text(each)}" for name, each in value.items()) or "none"
        case list() | tuple() | set() | frozenset():
            return ", ".join(map(value_text, value)) or "none"
        case _:
            return str(value)


def columns(head: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[str] = ()) -> list[str]:
    """A table: a line of headings, then a line for each row, padded; columns named in `right` are aligned there."""
    lines = [list(head), *([("" if cell is None else printable(str(cell))) for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(head))]
    aligns = [">" if name in right else "<" for name in head]
    return [
        "  ".join(f"{cell:{align}{width}}" for cell, align, width in zip(line, aligns, widths, strict=True)).rstrip()
        for line in lines
    ]


def shortened(things: Iterable[str]) -> list[str]:
    """The first things, and how many more there are."""
    all_ = list(things)
    return all_ if len(all_) <= SHOWN else [*all_[:SHOWN], f"... and {len(all_) - SHOWN} more (--json lists all)"]


def took(seconds: float) -> str:
    """How long a person has waited: since the command was started, with imports, connections and Spark's start.
    seconds: of its work, which counts where no command runs."""
    context = click.get_current_context(silent=True)
    began = getattr(context.obj, "began", None) if context else None
    return f"{clocks.monotonic() - began if began else seconds:.1f} s"
