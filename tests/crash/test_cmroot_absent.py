"""Only what a store says is not there is absent: an answer that cannot be had stops whoever asks."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from faulty_files import faulty_files
from small_root import SmallRoot

from cmroot.errors import Error
from cmroot.log.captured import segments
from cmroot.root import create_or_open
from cmroot.store.listing import list_tree
from cmroot.store.place import Place, join

ERRORS = {"EIO": "Input/output error", "ESTALE": "Stale file handle", "EACCES": "Permission denied"}
STAT, OPEN = "stat,lstat,newfstatat,statx", "open,openat"


def with_error(path: str, calls: str, error: str, work: str) -> subprocess.CompletedProcess[str]:
    """Python source, run while the kernel's calls on a path answer with an error."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", path, "-e", f"inject={calls}:error={error}"]
    return subprocess.run([*command, sys.executable, "-c", work], capture_output=True, text=True)


@pytest.fixture
def log(local_root: str) -> SmallRoot:
    made = SmallRoot(local_root)
    made.keep("a", "b")
    made.capture(add="a")
    made.capture(add="b")
    return made


@pytest.mark.parametrize("error", ERRORS)
def test_a_marker_that_cannot_be_looked_at_is_not_absent(log: SmallRoot, error: str) -> None:
    """The sweep of the log took the newest segment for an unfinished one, and removed it."""
    marker = join(segments(log.root)[-1].place, "_segment.json")
    work = f"from cmroot.log.captured import sweep_log; sweep_log({log.root!r})"
    done = with_error(marker, STAT, error, work)
    assert [segment.last for segment in segments(log.root)] == [1, 2]
    assert done.returncode == 1 and ERRORS[error] in done.stderr and marker in done.stderr


@pytest.mark.parametrize("error", ERRORS)
def test_a_directory_that_cannot_be_listed_is_not_empty(log: SmallRoot, error: str) -> None:
    files = join(log.root, "files")
    work = f"from cmroot.store.local import LocalStore; LocalStore().find({files!r})"
    for path in (files, join(files, os.listdir(files)[0])):
        done = with_error(path, OPEN, error, work)
        assert done.returncode == 1 and ERRORS[error] in done.stderr and path in done.stderr


def test_a_circle_of_links_is_not_absent(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        Place(str(tmp_path / "a" / "b")).exists()
    (tmp_path / "f").write_text("")
    (tmp_path / "dangling").symlink_to("nothing")
    assert [Place(f"{tmp_path}/{name}").exists() for name in ("f", "f/b", "no", "dangling")] == [
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_what_a_store_behind_fsspec_cannot_tell_is_not_absent(tmp_path: Path, number: int) -> None:
    """fsspec's own `exists` answers False to every error, its `find` leaves out what it cannot list."""
    with faulty_files() as files:
        place = f"sftp://tests{tmp_path}"
        for name in ("t/f", "t/p=1/f", "t/p=2/f"):
            (Place(place) / name).write_bytes(b"1")
        files.faults = {f"{tmp_path}/t/p=1": number, f"{tmp_path}/t/f": number}
        for ask in (
            lambda: (Place(place) / "t/f").exists(),
            lambda: (Place(place) / "t").find(),
            lambda: list_tree(join(place, "t")),
            lambda: (Place(place) / "t").remove_tree(),
            lambda: (Place(place) / "t/p=1").list(),
            lambda: create_or_open(join(place, "t/p=1")),
        ):
            files.met.clear()
            with pytest.raises((Error, OSError), match=os.strerror(number)):
                ask()
            assert files.met, "the fault was reached"
        files.faults = {}
        assert (Place(place) / "t").find() == ["f", "p=1/f", "p=2/f"]
        assert not (Place(place) / "t/g").exists() and (Place(place) / "u").find() == []
