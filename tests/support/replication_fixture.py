"""One database replicated through the command line: source, `$cmroot`, dumps, target.

Every test gets a story of its own on a pair of metastores that its module shares.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from names import unique
from plain_tables import PlainDatabase

from cmroot.log.captured import segments
from replicator.cli.main import run
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

UNLEASED = ("slots", "holds", "dumps")
"""Directories of a root in which pins are written without its lease."""


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


class ReplicationFixture:
    """`here` is a directory of the test; the source's `$cmroot` and the dumps are in it."""

    def __init__(self, source: Running, target: Running, here: Path, *, warehouse: Path | None = None) -> None:
        """`warehouse`: where the target's data goes, if not beside its metastore's own, in which Hive 4 places
        databases itself."""
        self.db = unique("db")
        self.source_uri, self.target_uri = source.uri, target.uri
        # A story of its own has a $cmroot of its own.
        self.warehouse = warehouse or target.warehouse.with_name("replicas") / self.db
        self.source = PlainDatabase(connect(source.uri), self.db, source.warehouse)
        self.target = PlainDatabase(connect(target.uri), self.db, self.warehouse)
        self.here, self.cmroot = here, here / "cmroot"
        self.target_cmroot = self.warehouse / ".cmroot"
        self.dumps = 0

    # ---- commands -------------------------------------------------------------------------------------------------

    def capture(self, *more: str, source: str | None = None, cmroot: Path | None = None) -> Answer:
        return command(*self.capture_arguments(source=source, cmroot=cmroot), *more)

    def dump(self, *more: str, out: Path | None = None, **given: Any) -> Answer:
        """A dump into a new directory (see `last`), or into `out`."""
        if out is None:
            self.dumps += 1
        return command(*self.dump_arguments(out or self.last, **given), *more)

    def load(self, dump: Path | None = None, *more: str, target: str | None = None) -> Answer:
        return command(*self.load_arguments(dump or self.last, target=target), *more)

    @property
    def last(self) -> Path:
        """The newest dump."""
        return self.here / f"dump{self.dumps}"

    def capture_arguments(self, *, source: str | None = None, cmroot: Path | None = None) -> list[str]:
        return [
            "capture",
            "--source",
            source or self.source_uri,
            "--cmroot",
            str(cmroot or self.cmroot),
            "--db",
            self.db,
            "--engine",
            "local",
        ]

    def dump_arguments(
        self, out: Path, *, since: Path | str | None = None, source: str | None = None, cmroot: Path | None = None
    ) -> list[str]:
        begin = [] if since is None else ["--since", str(since)]
        rest = self.capture_arguments(source=source, cmroot=cmroot)[1:]
        return ["dump", *rest, "--out", str(out), *begin]

    def load_arguments(self, dump: Path, *, target: str | None = None) -> list[str]:
        return [
            "load",
            str(dump),
            "--target",
            target or self.target_uri,
            "--warehouse",
            str(self.warehouse),
            "--engine",
            "local",
        ]

    # ---- the two steps most tests begin and end with --------------------------------------------------------------

    def bootstrap(self) -> None:
        for answer in (self.dump(), self.load()):
            assert answer.code == 0, answer
        self.is_same()

    def catch_up(self) -> None:
        """The next incremental dump, loaded: afterwards both sides are equal and the roots are in order."""
        before = self.last
        dumped = self.dump(since=before)
        assert dumped.code == 0, dumped
        loaded = self.load()
        assert loaded.code == 0, loaded
        self.is_same()

    def is_same(self) -> None:
        shown, wanted = self.target.shown(), self.source.shown()
        names = [name for name in wanted | shown if shown.get(name) != wanted.get(name)]
        assert not names, [(name, wanted.get(name), shown.get(name)) for name in names]
        self.roots_are_in_order(UNLEASED)

    def roots_are_in_order(self, unswept: Collection[str] = ()) -> None:
        """The log is continuous (or reading it raises), and nothing of a crash is left, but for pins half written in
        the directories `unswept`: an expiry takes those when they are a day old."""
        for segment in segments(str(self.cmroot)):
            segment.verify()
        for root in (self.cmroot, self.target_cmroot):
            assert sorted(path.name for path in (root / "incoming").iterdir()) == []
            left = [path for path in root.rglob(".aside-*") if path.parent not in {root / each for each in unswept}]
            assert not left
            assert not (root / "loads").exists() or not any((root / "loads").iterdir())
        assert [path.name for path in (self.cmroot / "log").iterdir() if "writing" in path.name] == []
        assert [path.name for path in self.target.home.rglob(".replicating-*")] == []
