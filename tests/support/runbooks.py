"""Runs the pages of docs/runbooks: each command that a page shows, in order, against real metastores, and compares what
it prints with what the page says it prints.

A page's commands stand in ```console blocks, as in a terminal:

    $ replicator verify --source {source} --target {target} --db {db} --json > {dir}/verify.json
    $ echo $?
    4

`{name}` is filled in from the values that the test gives. What follows a command is its output, standard output and
then standard error: lines are compared with runs of blanks as one; `...` in a line stands for any text, alone on a line
for any number of lines. No output shown: none is compared. A command must end with code 0, unless `$ echo $?` follows.
Only `replicator` is run, in this process; `>` writes its standard output to a file; a line that ends with a backslash
goes on in the next.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from replicator.cli.main import run

ROOT = Path(__file__).parents[2] / "docs" / "runbooks"
PROMPT = "$ "


@dataclass(frozen=True)
class Step:
    """A command of a page, with the line it stands on, and the output it shows."""

    page: str
    line: int
    command: str
    output: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.command}"


def steps(page: Path) -> list[Step]:
    """All commands of a page. Raises ValueError for a block that does not begin with one."""
    found: list[Step] = []
    lines = iter(enumerate(page.read_text().splitlines(), 1))
    for _, text in lines:
        if text.strip() == "```console":
            found += _block(page.name, lines)
    return found


def _block(page: str, lines: Iterator[tuple[int, str]]) -> Iterator[Step]:
    command, begun = "", 0
    output: list[str] = []
    for number, text in lines:
        if text.strip() == "```":
            break
        if command.endswith("\\"):
            command = command[:-1].rstrip() + " " + text.strip()
        elif text.startswith(PROMPT):
            if command:
                yield Step(page, begun, command, tuple(output))
            command, begun, output = text.removeprefix(PROMPT), number, []
        elif not command:
            raise ValueError(f"{page}:{number}: a block begins with a command, not with {text!r}")
        else:
            output.append(text)
    yield Step(page, begun, command, tuple(output))


def play(
    page: Path | str,
    values: Mapping[str, object],
    *,
    before: Mapping[int, Callable[[], object]] | None = None,
    by: Callable[[Sequence[str]], tuple[int, str]] | None = None,
    programs: Sequence[str] = ("replicator",),
) -> list[Step]:
    """Runs a page from its beginning to its end; returns its steps. `page`: a path, or a name in docs/runbooks.
    `before`: by the number of a step (from 0; `echo $?` counts), what happens just before it. `by`: runs a command's
    words in place of this process; returns the exit code, and standard output followed by standard error. `programs`:
    those that a page may run; of several, `by` gets the name, too.

    Raises AssertionError, naming the line, where a command ends or prints otherwise than the page says."""
    path = page if isinstance(page, Path) else ROOT / f"{page}.md"
    played = steps(path)
    assert played, f"{path} shows no command"
    for number, step in enumerate(played):
        if before and number in before:
            before[number]()
        if step.command.strip() == "echo $?":
            continue
        code, output = (by or run_words)(_words(step, values, programs))
        follows = played[number + 1] if number + 1 < len(played) else None
        wanted = 0
        if follows is not None and follows.command.strip() == "echo $?":
            wanted = int(follows.output[0])
        assert code == wanted, f"{step}\nended with {code} instead of {wanted}:\n{output}"
        if step.output:
            expected = [_filled(step, line, values) for line in step.output]
            assert _matches(expected, output.splitlines()), (
                f"{step}\nshould print:\n" + "\n".join(expected) + f"\nbut printed:\n{output}"
            )
    return played


def _filled(step: Step, text: str, values: Mapping[str, object]) -> str:
    """The placeholders are names in braces; other braces stay."""

    def value(match: re.Match[str]) -> str:
        assert match[1] in values, f"{step}: nobody gave a value for {match[0]}"
        return str(values[match[1]])

    return re.sub(r"\{([a-z_]+)\}", value, text)


def _words(step: Step, values: Mapping[str, object], programs: Sequence[str]) -> list[str]:
    words = [_filled(step, word, values) for word in shlex.split(step.command)]
    assert words[0] in programs, f"{step}: only {' and '.join(programs)} can be run"
    return words[1:] if len(programs) == 1 else words


def run_words(words: Sequence[str]) -> tuple[int, str]:
    """Exit code, and standard output followed by standard error."""
    file = None
    if ">" in words:
        file, words = Path(words[words.index(">") + 1]), words[: words.index(">")]
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = run(list(words))
    if file is None:
        return code, out.getvalue() + error.getvalue()
    file.write_text(out.getvalue())
    return code, error.getvalue()


def _matches(expected: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether lines are as expected; `...` alone is any number of lines."""
    if not expected:
        return all(not line.strip() for line in printed)
    first, *rest = expected
    if first.strip() == "...":
        return any(_matches(rest, printed[skipped:]) for skipped in range(len(printed) + 1))
    return bool(printed) and _line_matches(first, printed[0]) and _matches(rest, printed[1:])


def _line_matches(expected: str, printed: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in " ".join(expected.split()).split("..."))
    return re.fullmatch(pattern, " ".join(printed.split())) is not None
