"""Completion: the scripts that shells read, and the names that they get."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = """
[metastores.prod]
uri = "thrift://a:9083"
[metastores.west]
uri = "thrift://b:9083"
[policies.nightly]
source = "prod"
target = "west"
databases = ".*"
cmroot = "/a"
target_cmroot = "/b"
dumps = "/c"
"""
PROGRAM = [sys.executable, "-m", "replicator.cli.main"]


def completed(line: str, directory: Path) -> list[str]:
    words = line.split(" ")
    environment = os.environ | {
        "_REPLICATOR_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(PROGRAM, env=environment, cwd=directory, capture_output=True, text=True, check=True)
    return [row.partition(",")[2] for row in done.stdout.splitlines() if row]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_read_its_script(shell: str, tmp_path: Path) -> None:
    script = subprocess.run([*PROGRAM, "completion", shell], capture_output=True, text=True, check=True).stdout
    assert "_REPLICATOR_COMPLETE" in script and "replicator" in script
    if shell != "fish" and (program := shutil.which(shell)):
        (tmp_path / "script").write_text(script)
        subprocess.run([program, "-n", str(tmp_path / "script")], check=True)


def test_names_of_the_configuration_are_completed(tmp_path: Path) -> None:
    (tmp_path / "replicator.toml").write_text(CONFIG)
    assert completed("replicator sync n", tmp_path) == ["nightly"]
    assert completed("replicator verify n", tmp_path) == ["nightly"]
    assert completed("replicator load /dumps/1 --policy ", tmp_path) == ["nightly"]
    assert completed("replicator cm hold x --policy n", tmp_path) == ["nightly"]
    assert completed("replicator init --policy n", tmp_path) == []
    assert completed("replicator dump --source ", tmp_path) == ["prod", "west"]
    assert completed("replicator switch", tmp_path) == ["switchover"]
    assert completed("replicator cm slots d", tmp_path) == ["drop"]


@pytest.mark.parametrize("text", [None, "not toml"])
def test_a_configuration_that_cannot_be_read_completes_to_nothing(text: str | None, tmp_path: Path) -> None:
    if text:
        (tmp_path / "replicator.toml").write_text(text)
    assert completed("replicator sync ", tmp_path) == []
