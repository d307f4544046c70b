"""The filesystems of the tests: temporary directories are in memory, where a machine has enough, and a second device.

A pytest plugin. Programs of the tests make a hundred directories and files durable in each of a thousand stories: on a
disk they wait for it most of their time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
ENOUGH = 28 << 30  # bytes that must be available: servers take 19 GB of them at most, files 4
HOME = f"replicator-tests-{os.getuid()}"
"""In MEMORY, this user's: a directory `run-PID` for each run, which a run that passes removes, and each later one."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Of the controller, before it or a worker makes a directory. TMPDIR and --basetemp decide when they are set."""
    if hasattr(config, "workerinput") or "TMPDIR" in os.environ or config.option.basetemp or not has_enough(MEMORY):
        return
    home = MEMORY / HOME
    with contextlib.suppress(FileExistsError):
        home.mkdir()
    if home.is_symlink() or home.lstat().st_uid != os.getuid():
        return
    home.chmod(0o1777)  # as /tmp: databases run as users of their own
    for run in home.glob("run-*"):
        if run.lstat().st_uid == os.getuid() and not Path("/proc", run.name.removeprefix("run-")).exists():
            shutil.rmtree(run, ignore_errors=True)
    os.environ["TMPDIR"] = str(home)
    tempfile.tempdir = None  # it is found again
    config.option.basetemp = str(home / f"run-{os.getpid()}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Gives the memory back, unless somebody may want to look at the files of a failure."""
    run = Path(session.config.option.basetemp or "")
    if run.parent == MEMORY / HOME and run.name == f"run-{os.getpid()}" and exitstatus == pytest.ExitCode.OK:
        shutil.rmtree(run, ignore_errors=True)


def has_enough(memory: Path) -> bool:
    """Whether a run may have its files there: it is large, programs may be started from it, and the machine has as
    much memory to give."""
    try:
        about = os.statvfs(memory)
        meminfo = Path("/proc/meminfo").read_text()
    except OSError:
        return False
    available = next(int(line.split()[1]) << 10 for line in meminfo.splitlines() if line.startswith("MemAvailable"))
    programs = not about.f_flag & os.ST_NOEXEC
    return programs and min(about.f_bavail * about.f_frsize, available) >= ENOUGH and os.access(memory, os.W_OK)


@pytest.fixture
def other_device(tmp_path: Path) -> Iterator[Path]:
    """A directory on another device than `tmp_path`, into which nothing can be linked."""
    device = tmp_path.stat().st_dev
    for place in (MEMORY, Path("/var/tmp"), Path.home()):
        if place.is_dir() and os.access(place, os.W_OK) and place.stat().st_dev != device:
            made = Path(tempfile.mkdtemp(prefix="replicator-test-", dir=place))
            yield made
            shutil.rmtree(made)
            return
    pytest.skip("no second device")
