"""The demo of ingestion: what it needs, that a check which fails is a failure, and, in long runs, the whole of it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import replicator
from replicator.commands.demos import landing_story
from replicator.commands.demos.landing_story import LandingStory
from replicator.errors import ConfigError, Error, UsageError


def test_it_says_what_it_needs_before_it_starts_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").write_text("")
    with pytest.raises(UsageError, match="is not empty"):
        replicator.demo(keep=tmp_path, ingest=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    with pytest.raises(ConfigError, match="psycopg") as raised, landing_story.running_postgres():
        pass
    assert "pip install" in (raised.value.hint or "")


def test_rows_that_differ_are_a_failure(tmp_path: Path) -> None:
    said: list[str] = []
    story = LandingStory(tmp_path, said.append)
    with pytest.raises(Error, match="1 rows instead of 2"):
        story._expect("what landed", [(1,)], [(1,), (2,)])
    assert story.reported.differences == 1 and not said


@pytest.mark.long
def test_the_whole_story_ends_well_and_leaves_nothing(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "replicator", "demo", "--ingest", "--json"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    before = servers()
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    reported = json.loads(done.stdout)
    assert (reported["status"], reported["differences"], len(reported["steps"])) == ("done", 0, 12)
    assert done.stderr.count("equal according to another reader") == 7
    assert not list(tmp_path.glob("replicator-*")) and servers() <= before, "it removes what it made"
    assert not any(str(tmp_path) in each for each in command_lines()), "and ends what it started"


def servers() -> set[str]:
    """Of PostgreSQL, of demos."""
    return {each for each in command_lines() if "replicator-pg-" in each}


def command_lines() -> Iterator[str]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield file.read_text(errors="replace")
