"""The command line, run in this process: what it answers, and what it says on the way."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from typing import Any

from replicator.cli.main import run


@dataclass(frozen=True)
class Answer:
    """What a command said: its exit code, and its one JSON object."""

    code: int
    output: dict[str, Any]

    @property
    def error(self) -> str | None:
        return self.output.get("error")

    @property
    def message(self) -> str:
        return str(self.output.get("message", ""))


def command(*arguments: str) -> Answer:
    """Runs the command line in this process. Exactly one JSON object must come out."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run([*arguments, "--json"])
    return Answer(code, json.loads(out.getvalue()))


def command_in_lines(*arguments: str) -> tuple[Answer, list[dict[str, Any]]]:
    """The same by `--json-lines`: the answer, and the lines before it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run([*arguments, "--json-lines"])
    *lines, last = map(json.loads, out.getvalue().splitlines())
    return Answer(code, last), lines


def command_with_progress(*arguments: str) -> tuple[Answer, dict[str, dict[str, Any]]]:
    """The same: the answer, and the last line of progress of each task, by title."""
    answer, lines = command_in_lines(*arguments)
    return answer, {each["progress"]: each for each in lines if each["line"] == "progress"}
