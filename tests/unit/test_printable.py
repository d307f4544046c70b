"""What people read: names come from metastores and stores, and no character of them is obeyed by a terminal."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab import Lab

from replicator.cli.main import run
from replicator.core.text import PrintableFormatter, printable, printable_lines

OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]")
TITLE = "\x1b]0;owned\x07\x1b[2K\u202e\x9b1A"
FORGED = "a\nsame, no differences"


@given(st.text())
def test_nothing_that_is_printed_is_obeyed(text: str) -> None:
    assert not OBEYED.search(printable(text)) and "\n" not in printable(text)
    assert not OBEYED.search(printable_lines(text))
    printable(text).encode()  # surrogates, too, have become text


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"])))
def test_text_of_any_script_stays_as_it_is(text: str) -> None:
    assert printable(text) == printable_lines(text) == text


def test_a_log_line_stays_one_line() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "call %s", (FORGED + TITLE,), None)
    text = PrintableFormatter("%(levelname)s %(message)s").format(record)
    assert text == "INFO call a\\nsame, no differences\\x1b]0;owned\\x07\\x1b[2K\\u202e\\x9b1A"


def test_lines_of_a_traceback_are_marked() -> None:
    try:
        raise ValueError("one\nERROR forged" + TITLE)
    except ValueError:
        record = logging.LogRecord("x", logging.INFO, "", 0, "failed", (), sys.exc_info())
    lines = PrintableFormatter("%(message)s").format(record).split("\n")
    assert lines[0] == "failed" and all(line.startswith("  | ") for line in lines[1:])
    assert not OBEYED.search("".join(lines))


@pytest.fixture
def fixture(fixture: Lab) -> Lab:
    """A partition and files whose names are orders to a terminal."""
    fixture.source.table("t", {f"part{TITLE}": "1\x01one\n", FORGED: "2\x01two\n"})
    return fixture


def test_names_of_files_reach_no_terminal_as_they_are(fixture: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    assert fixture.dump().code == 0 and fixture.load().code == 0
    for name in list((fixture.target.home / "t").iterdir()):
        name.unlink()
    fixture.source.write("t", {"third" + TITLE: "3\x01three\n"})
    sides = ["--source", fixture.source_uri, "--target", fixture.target_uri, "--db", fixture.name]
    commands = [
        ["verify", *sides, "--cmroot", str(fixture.cmroot), "--engine", "local"],
        ["show", str(fixture.last), "--files"],
        ["cm", "ls", "--cmroot", str(fixture.cmroot), "--engine", "local"],
        ["cm", "find", "t", "--cmroot", str(fixture.cmroot)],
        ["load", str(fixture.last), "--target", fixture.target_uri, "--rename-db", TITLE],
        ["-v", "show", f"/nowhere/{FORGED}{TITLE}"],
    ]
    capfd.readouterr()
    reported = ""
    for arguments in commands:
        run(arguments)
        out, err = capfd.readouterr()
        assert not OBEYED.search(out + err), (arguments, out + err)
        assert not re.search("^same, no differences", out + err, re.MULTILINE), (arguments, out + err)
        reported += out + err
    assert "\\x1b]0;owned\\x07" in reported and "a\\nsame" in reported


def test_json_stays_exact(fixture: Lab, capfd: pytest.CaptureFixture[str]) -> None:
    assert fixture.dump().code == 0
    capfd.readouterr()
    run(["show", str(fixture.last), "--files", "--json"])
    output: dict[str, Any] = json.loads(capfd.readouterr().out)
    paths = {entry["path"] for entry in output["files"]}
    assert f"part{TITLE}" in paths and FORGED in paths


def test_a_progress_bar_shows_names_as_they_are_written() -> None:
    """On a real terminal, in a process of its own."""
    code = (
        "from replicator.core.runtime import Bars\n"
        f"with Bars().task('walk [red]db{chr(27)}]0;owned{chr(7)}', total=2) as advance:\n    advance(1)\n"
    )
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.run([sys.executable, "-c", code], stderr=slave, check=True, env=environment)
    os.close(slave)
    shown = b""
    try:
        while data := os.read(master, 4096):
            shown += data
    except OSError:  # the end of a terminal
        pass
    os.close(master)
    assert process.returncode == 0
    assert b"]0;owned" in shown and b"\x1b]0;" not in shown and b"[red]db" in shown, shown
