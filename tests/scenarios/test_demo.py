"""The demos: what they need, that a check which fails is a failure, and, in long runs, the whole of both."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import replicator
from replicator.commands.demos import landing_story, spark_sql
from replicator.commands.demos.landing_story import LandingStory
from replicator.commands.demos.spark_sql import SparkSql
from replicator.commands.demos.story import Story, own_environment, shortened
from replicator.errors import ConfigError, Error, UsageError
from replicator.metastore.embedded import running as embedded


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


@pytest.mark.long
def test_the_demo_ends_with_a_page_on_both_replicas_and_leaves_nothing(tmp_path: Path) -> None:
    temporary, kept = tmp_path / "temporary", tmp_path / "kept"
    temporary.mkdir()
    line = [sys.executable, "-m", "replicator", "demo", "--keep", str(kept)]
    java = f"-Djava.io.tmpdir={temporary}"
    environment = {**os.environ, "TMPDIR": str(temporary), "JAVA_TOOL_OPTIONS": java}
    demo = subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said: list[str] = []
    try:
        assert demo.stdout is not None
        for text in demo.stdout:
            said.append(text)
            if text.startswith("page: "):
                with urllib.request.urlopen(text.split()[1]) as page:
                    assert "west" in page.read().decode()
                demo.send_signal(signal.SIGINT)
        assert demo.wait() == 0, "".join(said)
    finally:
        demo.kill()
    printed = "".join(said)
    assert "same: " in printed and not re.search(r"WARN|\[Stage|Traceback|Setting|Picked up", printed)
    steps = [text for text in said if re.match(r"\d+\. ", text)]
    assert len(steps) == 7 and f"cd {kept}" in printed
    assert not list(temporary.iterdir()) and not (kept / "tmp").exists()
    assert not any(str(tmp_path) in each for each in command_lines()), "it ends what it started"


def test_the_page_is_served_until_it_is_interrupted(tmp_path: Path) -> None:
    sides = "source = 'thrift://127.0.0.1:1'\ntarget = 'thrift://127.0.0.1:2'\ndatabases = 'shop'\nschedule = '1d'\n"
    roots = "".join(f"{name} = '{tmp_path}/{name}'\n" for name in ("cmroot", "target_cmroot", "dumps", "warehouse"))
    (tmp_path / "replicator.toml").write_text(f"[policies.west]\n{sides}{roots}")
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("page: "):
            with urllib.request.urlopen(line.split()[1]) as page:
                assert "west" in page.read().decode()
        elif "replicator init" in line:
            os.kill(os.getpid(), signal.SIGINT)

    Story(tmp_path, say).serve()
    assert [line.split()[0] for line in said] == ["page:", "next:", "on"]
    assert not any(str(tmp_path) in each for each in command_lines())


def test_a_command_that_fails_ends_the_demo_with_its_message(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(Error, match=r"`replicator sync nowhere` failed: error: .*replicator\.toml"):
        Story(tmp_path, said.append)._typed("sync nowhere")
    assert said == ["  $ replicator sync nowhere"]
    assert shortened([str(number) for number in range(20)], 5) == ["0", "1", "... 16 more lines", "18", "19"]


def test_its_processes_have_the_settings_of_what_they_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = ("REPLICATOR_CACHE", "REPLICATOR_LISTENER_JAR", "REPLICATOR_MAVEN_REPOSITORY")
    for name in (*fetched, "REPLICATOR_CONFIG"):
        monkeypatch.setenv(name, "given")
    assert sorted(each for each in own_environment(tmp_path) if each.startswith("REPLICATOR_")) == list(fetched)


def test_a_spark_that_does_not_end_is_killed_and_the_metastores_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_sql, "ENDS", 0.1)
    story = Story(tmp_path, print)
    side = embedded.start(tmp_path / "source", env=os.environ)
    stuck = SparkSql(side.uri, side.warehouse)
    os.kill(stuck._process.pid, signal.SIGSTOP)
    story._open.append(stuck)
    story.close()
    assert stuck._process.poll() == -signal.SIGKILL
    assert not any(str(tmp_path) in each for each in command_lines())


def servers() -> set[str]:
    """Of PostgreSQL, of demos."""
    return {each for each in command_lines() if "replicator-pg-" in each}


def command_lines() -> Iterator[str]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield file.read_text(errors="replace")
