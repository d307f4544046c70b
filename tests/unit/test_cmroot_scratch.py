"""Scratch directories: what a killed process left goes with the next one's, and nobody loses a living one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from cmroot.store.place import scratch

HOLD = """
import os, signal, sys
from cmroot.store.place import scratch
with scratch(sys.argv[1], sys.argv[2]) as here:
    (here / "file").write_text("of a process")
    print(here, flush=True)
    signal.pause()
"""


def hold(kind: str, directory: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLD, kind, str(directory)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_what_a_killed_process_left_goes_and_what_a_living_one_has_stays(tmp_path: Path) -> None:
    (tmp_path / "replicator-test-elsewhere-x").mkdir()
    with hold("test", tmp_path) as killed, hold("test", tmp_path) as living:
        assert killed.stdout and living.stdout
        left, kept = (Path(each.stdout.readline().strip()) for each in (killed, living))
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert (left / "file").exists()
        with scratch("other", str(tmp_path)):
            assert (left / "file").exists()
        with scratch("test", str(tmp_path)) as here:
            assert here.is_dir() and not left.exists() and (kept / "file").exists()
        living.kill()
    assert {path.name for path in tmp_path.iterdir()} == {"replicator-test-elsewhere-x", kept.name}
