"""Commands at work on real metastores: log lines, JSON lines, heartbeats, and the rate of their copies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_line import command
from lab import Lab
from waiting import CEILING

import replicator
from cmroot.store.checksum import SLACK
from replicator.errors import ConfigError, UsageError

MB = 1_000_000


def said(pair: Lab, *arguments: str, before: tuple[str, ...] = ()) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, the lines of standard output, and standard error, of a process without a terminal."""
    command = [sys.executable, "-m", "replicator", "--config", str(pair.config()), *before, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_run_tells_its_steps_its_events_and_its_progress_and_last_its_report(pair: Lab) -> None:
    pair.db("a").table("t", {"first": "1" * 1000, "second": "2"})
    log = pair.here / "log"
    code, lines, err = said(
        pair, "sync", pair.name, "--json-lines", before=("--log-file", str(log), "--log-format", "json")
    )
    assert code == 0 and err == ""
    *while_running, report = lines
    assert "line" not in report and (report["status"], report["files_copied"]) == ("synced", 2)
    assert {each["line"] for each in while_running} == {"step", "progress", "event"}
    steps = [(each["step"], each["state"]) for each in while_running if each["line"] == "step"]
    assert steps[0] == ("sync", "begun") and steps[-1] == ("sync", "ended")
    assert [name for name, state in steps if state == "ended" and name in report["steps"]] == list(report["steps"])
    events = [(each["message"].split()[0], each["event_id"]) for each in while_running if each["line"] == "event"]
    assert events == [(what, report["to_event"]) for what in ("captured", "dumped", "loaded")]
    assert all(each["policy"] == pair.name and each["command"] == "sync" for each in while_running)
    within = [each for each in while_running if each.get("step") == "capture" or each["line"] == "event"]
    assert {each["run"] for each in within} == {report["run"]}
    copied = [each for each in while_running if each.get("progress") == "copy files"][-1]
    assert (copied["files"], copied["of_files"], copied["bytes"], copied["of_bytes"]) == (2, 2, 1001, 1001)

    logged = [json.loads(line) for line in log.read_text().splitlines()]
    assert {each["level"] for each in logged} == {"info"} and not [each for each in logged if "progress" in each]
    assert [each["step"] for each in logged if each.get("step") in report["steps"]]
    assert {each["run"] for each in logged if "event_id" in each} == {report["run"]}


def test_comparing_tells_bytes_and_a_failure_is_the_last_line(pair: Lab) -> None:
    pair.db("a").table("t", {"first": "1" * 1000})
    pair.sync()
    (pair.replica("a").home / "t" / "first").write_text("2" * 1000)
    code, lines, _ = said(pair, "verify", pair.name, "--level", "checksum", "--json-lines")
    compared = [each for each in lines if each.get("progress") == "compare objects"][-1]
    assert code == 4 and compared["files"] == 1 and compared["bytes"] == 1000
    assert compared["steps"] == compared["of_steps"] == 1, "tables"
    assert lines[-1]["status"] == "different"
    code, lines, _ = said(pair, "verify", "nosuch", "--json-lines")
    assert code == 2 and lines[-1]["exit_code"] == 2 and lines[-1]["error"] == "UsageError"


def test_a_following_has_a_heartbeat_when_nothing_happens(pair: Lab) -> None:
    pair.db("a").table("t", {"first": "1"})
    arguments = ["--heartbeat", "100ms", "sync", pair.name, "--follow", "--interval", "1h", "--json-lines"]
    child = subprocess.Popen(
        [sys.executable, "-m", "replicator", "--config", str(pair.config()), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "REPLICATOR_LOG_FILE": str(pair.here / "log")},
    )
    try:
        assert child.stdout is not None
        beats = 0
        for text in child.stdout:
            line = json.loads(text)
            beats += line["line"] == "heartbeat" and line["rounds"] == 1
            if beats == 3:
                break
        child.send_signal(signal.SIGTERM)
        rest = [json.loads(line) for line in child.stdout]
        assert child.wait(CEILING) == 128 + signal.SIGTERM
    finally:
        child.kill()
        child.wait()
    assert "line" not in rest[-1] and (rest[-1]["status"], rest[-1]["rounds"]) == ("stopped", 1)
    assert "running: rounds 1, failures_in_a_row 0" in Path(pair.here / "log").read_text()


def seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def test_a_policys_rate_holds_for_its_runs_and_an_option_overrides_it(pair: Lab) -> None:
    pair.keys["bandwidth"] = "1MB/s"
    pair.db("a").table("t", {"first": "1" * MB, "second": "2" * MB})
    config = str(pair.config())
    assert seconds(partial(command, "--config", config, "sync", pair.name)) >= 2 - SLACK
    pair.are_same()
    pair.db("a").write("t", {"third": "3" * MB})
    done = command("--config", config, "sync", pair.name, "--bandwidth", "500kB")
    assert done.output["bytes_copied"] == MB and done.output["steps"]["load"] >= 2 - SLACK
    (pair.replica("a").home / "t" / "first").write_text("x")
    repaired = partial(command, "--config", config, "repair", pair.name, "--bandwidth", "1MB")
    assert seconds(repaired) >= 1 - SLACK
    pair.are_same()


def test_what_is_no_rate_is_refused(pair: Lab) -> None:
    for wrong in ("1kB", "fast", "50MB/h"):
        answer = command("load", "x", "--bandwidth", wrong)
        assert answer.code == 2 and "--bandwidth" in answer.message, answer
        pair.keys["bandwidth"] = wrong
        with pytest.raises(ConfigError, match="bandwidth"):
            _ = pair.policy
    with pytest.raises(UsageError, match="--bandwidth"):
        replicator.sync("x", bandwidth=99)
