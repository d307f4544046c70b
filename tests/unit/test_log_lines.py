"""Log lines: what they have, where they go, and what is never in them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from waiting import CEILING, eventually

from cmroot.root import create_or_open
from replicator.cli.main import run
from replicator.cli.output import begin_logging, end_logging
from replicator.core.logging import LogConfig, lines_about, own_lines_about, step
from replicator.core.text import without_credentials
from replicator.service.runs import Child

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
OURS = logging.getLogger("replicator.tests")


@pytest.fixture(autouse=True)
def logging_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("replicator.core.logging._about", {})  # commands of other tests, in this process
    loggers = [logging.getLogger(name) for name in ("", "replicator", "cmroot", "replicator.core.spark")]
    before = [each.level for each in loggers]
    yield
    end_logging()
    for each, level in zip(loggers, before, strict=True):
        each.setLevel(level)


def program(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "replicator", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **more}, check=False)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_json_lines_are_all_that_standard_error_has(tmp_path: Path) -> None:
    done = program("--log-format", "json", "--log-level", "info", "show", f"{tmp_path}/nosuch")
    begun, failed, error = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1 and done.stdout == ""
    assert all(TIME.fullmatch(each["time"]) and each["command"] == "show" for each in (begun, failed, error))
    assert (begun["step"], begun["state"], failed["state"], failed["level"]) == ("show", "begun", "failed", "info")
    assert failed["seconds"] >= 0 and begun["run"] == error["run"] and re.fullmatch(r"[0-9a-f]{12}", error["run"])
    assert (error["level"], error["error"], error["exit_code"]) == ("error", "FormatError", 1) and error["hint"]


def test_a_file_gets_the_lines_and_standard_error_keeps_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "replicator.toml").write_text('[log]\nformat = "json"\nfile = "configured.log"\n')
    monkeypatch.chdir(tmp_path)
    assert run(["show", "nosuch"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert [each["level"] for each in lines(tmp_path / "configured.log")] == ["info", "info", "error"]
    monkeypatch.setenv("REPLICATOR_LOG_FILE", "environment.log")
    assert run(["--log-level", "error", "show", "nosuch"]) == 1
    assert [each["level"] for each in lines(tmp_path / "environment.log")] == ["error"]
    assert len(lines(tmp_path / "configured.log")) == 3


def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    file = tmp_path / "log"
    begin_logging(LogConfig(file=str(file), format="json"))
    OURS.info("one")
    file.rename(tmp_path / "log.1")
    OURS.info("two")
    assert [lines(each)[0]["message"] for each in (tmp_path / "log.1", file)] == ["one", "two"]


def test_a_log_that_cannot_be_opened_again_ends_no_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "logs" / "log"
    file.parent.mkdir()
    begin_logging(LogConfig(file=str(file), format="json"))
    OURS.info("one")
    shutil.rmtree(file.parent)
    with step("load"):
        OURS.info("two")
    assert capsys.readouterr().err.count("cannot be written") == 1
    file.parent.mkdir()
    OURS.info("three")
    assert [each["message"] for each in lines(file)] == ["three"]


def test_a_log_that_cannot_be_written_changes_no_outcome(tmp_path: Path) -> None:
    done = program("--log-file", "/dev/full", "show", f"{tmp_path}/nosuch", "--json")
    assert done.returncode == 1 and json.loads(done.stdout)["error"] == "FormatError"
    assert done.stderr.count("cannot be written") == 1 and "Traceback" not in done.stderr
    refused = program("--log-file", f"{tmp_path}/no/such/log", "show", "x")
    assert refused.returncode == 2 and "--log-file" in refused.stderr


def test_lines_for_people_are_one_each_whatever_names_are_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    begin_logging(LogConfig(level="info"))
    with lines_about(policy="west", run=None):
        OURS.info("t\n2026 error forged \x1b[2K", extra={"event_id": 7, "table": 'a "b\n'})
        try:
            raise ValueError("one\ntwo")
        except ValueError:
            OURS.exception("broken")
    first, broken, *trace = capsys.readouterr().err.splitlines()
    assert first.endswith(r'replicator.tests: t\n2026 error forged \x1b[2K policy=west event_id=7 table="a \"b\n"')
    assert " error   replicator.tests: broken policy=west" in broken and TIME.match(broken)
    assert trace and all(line.startswith("  | ") for line in trace)


def test_passwords_of_urls_and_others_debug_lines_stay_out(capsys: pytest.CaptureFixture[str]) -> None:
    begin_logging(LogConfig(level="debug", format="json"))
    OURS.info("postgresql://me:hush/@hush@db/x", extra={"store": "http://u:hush@h"})
    logging.getLogger("py4j.clientserver").debug("hush")
    logging.getLogger("botocore.auth").info("signs")
    OURS.debug("ours")
    err = capsys.readouterr().err
    assert "hush" not in err
    assert [json.loads(line)["message"] for line in err.splitlines()] == ["postgresql://***@...", "signs", "ours"]
    assert without_credentials("thrift://a:9083, s3://bucket/a@b") == "thrift://a:9083, s3://bucket/a@b"
    assert without_credentials("GET 'https://h/c?sig=abc&x=1' 200") == "GET 'https://h/c?...' 200"


def test_a_run_of_the_service_has_its_id_in_each_line(tmp_path: Path) -> None:
    child = Child("nightly", ["--log-format", "json", "-v", "show", f"{tmp_path}/nosuch"], tmp_path / "run-7", 1.0)
    ended = eventually(child.ended)
    assert (ended.state, ended.exit_code) == ("failed", 1)
    said = lines(tmp_path / "run-7" / "log.txt")
    assert said and {each["service_run"] for each in said} == {"run-7"}


def test_a_run_whose_report_does_not_fit_on_the_disk_has_done_its_work(
    tmp_path: Path, small: Callable[[str], Path]
) -> None:
    create_or_open(str(tmp_path / "cm"))
    logs = small("size=64k")
    with contextlib.suppress(OSError), (logs / "full").open("wb", buffering=0) as full:
        while full.write(bytes(4096)):
            pass
    child = Child("nightly", ["-v", "cm", "ls", "--cmroot", str(tmp_path / "cm"), "--json"], logs / "run-8", 1.0)
    ended = eventually(child.ended)
    assert (ended.state, ended.exit_code) == ("done", 0) and "disk of `logs`" in ended.message


def test_a_step_tells_its_seconds_also_when_it_fails(capsys: pytest.CaptureFixture[str]) -> None:
    begin_logging(LogConfig(level="info", format="json"))
    with step("copy") as facts:
        facts["files"] = 3
    with pytest.raises(ZeroDivisionError), step("count"):
        print(1 / 0)
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(each["step"], each["state"]) for each in said] == [
        ("copy", "begun"),
        ("copy", "ended"),
        ("count", "begun"),
        ("count", "failed"),
    ]
    assert said[1]["files"] == 3 and said[1]["seconds"] >= 0


def test_where_spark_runs_is_a_bare_line_unless_lines_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    spark = logging.getLogger("replicator.core.spark")
    for wanted, said in (
        (LogConfig(), r"Spark runs on yarn\n"),
        (LogConfig(level="info"), r"\S+Z info    replicator\.core\.spark: Spark runs on yarn\n"),
        (LogConfig(level="error"), ""),
    ):
        begin_logging(wanted)
        spark.info("Spark runs on %s", "yarn")
        spark.debug("not this")
        assert re.fullmatch(said, capsys.readouterr().err)


def test_a_thread_that_works_on_something_of_its_own_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs side by side: each line has its own job, also when another one has ended."""
    begin_logging(LogConfig(level="info", format="json"))
    inside, ended = threading.Event(), threading.Event()

    def longer() -> None:
        with own_lines_about(job=1):
            inside.set()
            ended.wait(CEILING)
            OURS.info("one")

    with lines_about(command="ingest run"), ThreadPoolExecutor(1) as pool:
        first = pool.submit(longer)
        inside.wait(CEILING)
        with own_lines_about(job=2):
            OURS.info("two")
        ended.set()
        first.result(CEILING)
        OURS.info("none")
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(each["message"], each["command"], each.get("job")) for each in said] == [
        ("two", "ingest run", 2),
        ("one", "ingest run", 1),
        ("none", "ingest run", None),
    ]
