"""Two attempts of one task: Spark tries a task again when an executor is lost, and the first attempt may go on. Nothing
but whole files is ever published, and an attempt that was given up publishes nothing. Real processes, stopped (SIGSTOP)
in the middle of a copy."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from copy_tasks import bucket, task
from waiting import CEILING

from cmroot.log.captured import FILES
from cmroot.root import create_or_open
from replicator.core.audit import Removal, begin_audit
from replicator.core.engine import AutoEngine, LocalEngine, Result, Task
from replicator.core.spark import SparkEngine
from replicator.errors import FormatError, LeaseHeld
from replicator.lifecycle.purge.rewrite.formats import FileFormat
from replicator.lifecycle.purge.rewrite.rewrite_task import FilesTask, FileWork, run_files_task
from replicator.lifecycle.purge.rewrite.rewrite_task import sweep_staging as sweep_purge
from replicator.lifecycle.removal.job import Remover
from replicator.lifecycle.removal.live import LiveLocations, LiveReference
from replicator.lifecycle.removal.removal import Limits
from replicator.replay.apply.copy_task import run_copy_task
from replicator.replay.apply.staging import fenced, noted, sweep_staging
from replicator.replay.apply.transfer import CloneTask, run_clone_task
from replicator.replay.apply.work import RecycleTask, run_recycle_task
from replicator.replay.neighbours import Clearing

LARGE = 16 << 20
END = b"the end."
RUN = f"""
import contextlib, os, pickle, signal, sys, threading

def is_in_the_middle():
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            link = "/proc/self/fd/" + name
            if os.path.dirname(os.readlink(link)) == sys.argv[2] and 0 < os.stat(link).st_size < {LARGE}:
                return True

def look(frame, event, called):
    name = getattr(called, "__name__", "")
    if event == "c_return" and name in ("write", "sendfile") and not over and is_in_the_middle():
        over.append(name)
        os.kill(os.getpid(), signal.SIGSTOP)

over = []
function, task = pickle.load(open(sys.argv[1], "rb"))
threading.setprofile(look)
sys.setprofile(look)
print(repr(function(task)))
"""
"""Does a piece of work, and stops when it has written a part of a large file of a directory."""


def large_file(place: Path) -> None:
    """Of several blocks, so that a copy of it can be stopped in the middle."""
    with place.open("wb") as file:
        file.truncate(LARGE)
        file.seek(LARGE - len(END))
        file.write(END)


def large_bucket(tmp_path: Path) -> Path:
    """A bucket of one large file."""
    part = bucket(tmp_path, 1)
    source = tmp_path / "source" / "db.db" / "t" / "part-0"
    large_file(source)
    digest = xxhash.xxh3_128()
    with source.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    rows = pq.read_table(part).to_pylist()
    rows[0] |= {"size": LARGE, "checksum": digest.hexdigest()}
    pq.write_table(pa.Table.from_pylist(rows, FILES), part)
    return part


@contextlib.contextmanager
def stopped(tmp_path: Path, what: object, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """An attempt, (function, task), in a process of its own, that has written a part of a file there and stopped."""
    (tmp_path / "task").write_bytes(pickle.dumps(what))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    attempt = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path / "task"), str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        how = os.waitid(os.P_PID, attempt.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert how is not None and how.si_code == os.CLD_STOPPED, "the copy ended, and was nowhere in the middle"
        assert any(0 < size < LARGE for size in open_files(attempt.pid, directory))
        yield attempt
    finally:
        attempt.kill()
        attempt.wait()


def open_files(pid: int, directory: Path) -> Iterator[int]:
    """Sizes of the files of a directory that a process has open."""
    with contextlib.suppress(FileNotFoundError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if Path(os.readlink(link)).parent == directory:
                    yield link.stat().st_size


def go_on(attempt: subprocess.Popen[str]) -> tuple[int, str, str]:
    attempt.send_signal(signal.SIGCONT)
    out, err = attempt.communicate(timeout=CEILING)
    return attempt.returncode, out, err


def ends_whole(place: Path) -> bool:
    with place.open("rb") as file:
        file.seek(-len(END), os.SEEK_END)
        return file.tell() == LARGE - len(END) and file.read() == END


def test_a_slow_attempt_never_publishes_the_part_copy_of_another(tmp_path: Path) -> None:
    what = (run_copy_task, task(tmp_path, large_bucket(tmp_path), 0, 1))
    there = tmp_path / "target" / "db.db" / "t"
    there.mkdir(parents=True)
    with stopped(tmp_path, what, there) as first, stopped(tmp_path, what, there) as second:
        code, output, err = go_on(first)
        assert (code, "copied=1" in output) == (0, True), err
        assert ends_whole(there / "part-0")
        code, _, err = go_on(second)
        assert code == 0, err
    assert ends_whole(there / "part-0")
    assert [path.name for path in there.iterdir()] == ["part-0"]


def test_an_attempt_that_was_given_up_publishes_nothing_any_more(tmp_path: Path) -> None:
    copying = task(tmp_path, large_bucket(tmp_path), 0, 1)
    there = tmp_path / "target" / "db.db" / "t"
    there.mkdir(parents=True)
    with stopped(tmp_path, (run_copy_task, copying), there) as attempt:
        assert sweep_staging(copying.roots.target) == 1
        (there / "part-0").write_bytes(b"of a later load")
        code, _, err = go_on(attempt)
        assert code != 0 and "LeaseHeld" in err
    assert {path.name: path.read_bytes() for path in there.iterdir()} == {"part-0": b"of a later load"}


def test_what_an_attempt_leaves_after_it_was_given_up_is_removed_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped before it opened a file, and is killed before it asks again."""
    root = create_or_open(f"{tmp_path}/kept").place
    place = tmp_path / "t"
    place.mkdir()
    with contextlib.suppress(InterruptedError), noted(root, [f"{place}/f"]) as attempt:
        raise InterruptedError
    assert sweep_staging(root) == 0
    with pytest.raises(LeaseHeld):
        attempt.check()
    now = begun = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    for age in (0, 3600, 86400 - 60):
        now = begun + age
        Path(attempt.staging(str(place))).touch()
        assert sweep_staging(root) == 1
        assert list(place.iterdir()) == []
    assert len(list(Path(root, "copying").iterdir())) == 1
    now = begun + 86400 + 60
    assert sweep_staging(root) == 0 and list(Path(root, "copying").iterdir()) == []


@pytest.mark.parametrize("name", ["given-up-x-1", "given-up-", "given-up-\u0663-1"])
def test_a_note_without_a_time_is_named(name: str, tmp_path: Path) -> None:
    root = create_or_open(f"{tmp_path}/kept").place
    (Path(root) / "copying").mkdir(exist_ok=True)
    note = Path(root) / "copying" / name
    note.write_text("[]")
    with pytest.raises(FormatError, match=f"{note}: its name has no time"):
        sweep_staging(root)
    assert note.exists()


def test_what_is_carried_by_copy_is_whole_however_many_attempts_carry_it(tmp_path: Path, other_device: Path) -> None:
    root = task(tmp_path, tmp_path, 0, 1).roots.target
    (tmp_path / "old").mkdir()
    large_file(tmp_path / "old" / "f")
    what = (run_clone_task, CloneTask(root, [(str(tmp_path / "old"), str(other_device / "new"))]))
    there = other_device / "new"
    with stopped(tmp_path, what, there) as first, stopped(tmp_path, what, there) as second:
        code, _, err = go_on(first)
        assert code == 0, err
        assert ends_whole(there / "f")
        second.kill()
    assert len(list(there.iterdir())) == 2
    assert sweep_staging(root) == 1  # of the killed one
    assert [path.name for path in there.iterdir()] == ["f"]


def test_a_purge_stages_whole_files_however_many_attempts_write_them(tmp_path: Path, other_device: Path) -> None:
    large_file(tmp_path / "f")
    work = FileWork("p=1", "f", str(tmp_path / "f"), str(other_device / "new" / "f"), "", LARGE, 0, data=False)
    what = (run_files_task, FilesTask(FileFormat("text"), "", [work]))
    there = other_device / "new"
    with stopped(tmp_path, what, there) as first, stopped(tmp_path, what, there) as second:
        code, output, _ = go_on(first)
        assert (code, "error=''" in output) == (0, True), output
        assert ends_whole(there / "f")
        sweep_purge(str(there))
        code, output, _ = go_on(second)
        assert (code, "error=''" in output) == (0, False), output
    assert ends_whole(there / "f")
    assert [path.name for path in there.iterdir()] == ["f"]


class Lost(LocalEngine):
    """Runs its tasks, and may run them once more later: as an executor that was given up and goes on."""

    name = "lost"

    def __init__(self) -> None:
        super().__init__(1)
        self.late: list[Callable[[], object]] = []

    def run(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        tasks = list(tasks)
        self.late += [functools.partial(function, task) for task in tasks]
        return super().run(function, tasks)


class Unreferenced(LiveLocations):
    """No metastore refers to anything."""

    def __init__(self) -> None:
        pass

    def refresh(self) -> None:
        pass

    def references(self, path: str) -> Iterator[LiveReference]:
        return iter(())

    def follows(self, db: str) -> str:
        return ""

    def on_nodes(self, db: str, path: str) -> bool:
        return False


def test_a_guarded_removal_that_comes_late_takes_nothing(tmp_path: Path) -> None:
    root, place, engine = create_or_open(f"{tmp_path}/kept").place, tmp_path / "w/db/t", Lost()
    place.mkdir(parents=True)
    (place / "f").write_text("of a version that is past its policy")
    engines = AutoEngine(engine, SparkEngine("local[1]"), choice="local")
    remover = Remover(root, begin_audit(root, "test"), Unreferenced(), Limits(), engines)
    removal, notes = Removal(path=str(place), what="version", reason="old"), Path(root, "copying")
    notes.mkdir()
    (notes / "of-a-driver-that-was-killed").write_text("[]")
    assert [each.path for each in remover.remove([removal]).removals] == [str(place)]
    place.mkdir()
    (place / "f").write_text("of the next version of this name")
    with pytest.raises(LeaseHeld):
        engine.late[0]()
    assert (place / "f").read_text() == "of the next version of this name"
    assert list(notes.iterdir()) == []


def test_a_removal_that_comes_late_takes_nothing(tmp_path: Path) -> None:
    root, place, engine = create_or_open(f"{tmp_path}/kept").place, tmp_path / "t", Lost()
    place.mkdir()
    (place / "f").write_text("of a table that is dropped")
    tasks = [RecycleTask(root, [Clearing(str(place))])]
    assert list(fenced(engine, root, run_recycle_task, tasks)) == [1]
    place.mkdir()
    (place / "f").write_text("of the next table of this name")
    (late,) = engine.late
    with pytest.raises(LeaseHeld):
        late()
    assert (place / "f").read_text() == "of the next table of this name"
