"""Runs the command line in a process that is killed (SIGKILL) at one step, given by what it does.

    python faults.py <moment> <kind> <pattern> <n> -- dump --source ...

A step is a change that outlives the process: a name that appears or goes in the filesystem or on HDFS, a commit of
the manifest, a request that changes a metastore. The child is killed `before` or `after` the n-th step of a kind whose
description matches a regular expression: the path (for a rename the new one), or what the metastore is asked. Kind
`any` counts every step. Without a fault (`-`), it runs to its end.

With the name of an error (`EIO`) as the moment nobody is killed: the n-th call fails with it. Kind `call` counts every
step and, of the calls that only look, those that name a place.

With FAULTS_TRIES_AT_ONCE in its environment, S3's client repeats a request at once that a store was too busy for.

When it is loaded and about to begin it says so on standard error, for those who kill it from outside; `trace` as the
kind kills nobody and prints every step. With FAULTS_STOP in its environment it stops (SIGSTOP) instead of dying.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from forked_commands import Forked
from waiting import CEILING

KINDS = ("rename", "link", "symlink", "unlink", "rmdir", "mkdir", "commit", "thrift", "any", "call", "trace")
ERRORS = ("EIO", "ESTALE", "EACCES", "ETIMEDOUT")
REACHED = "faults: reached"
LOOKS = ("open", "stat", "lstat", "scandir", "listdir", "chmod", "readlink")
BEGINS = "faults: the command begins"
STOPS = {"FAULTS_STOP": "1"}
TRIES_AT_ONCE = {"FAULTS_TRIES_AT_ONCE": "1"}


@dataclass(frozen=True)
class Fault:
    """Where a run is killed, stands still, or meets an error."""

    moment: str
    kind: str
    pattern: str = ""
    number: int = 1

    def __post_init__(self) -> None:
        assert self.moment in ("before", "after", *ERRORS) and self.kind in KINDS

    def __str__(self) -> str:
        return f"{self.moment} {self.kind} {self.pattern or 'step'} {self.number}"


@dataclass(frozen=True)
class Ended:
    """How a run ended: `killed`, or its exit code; and what it wrote."""

    killed: bool
    code: int
    out: str
    error: str
    seconds: float  # from the beginning of the command

    @property
    def reached(self) -> bool:
        """Whether the scripted step was reached."""
        return REACHED in self.error

    @property
    def steps(self) -> list[str]:
        """Of a traced run: "kind what", in order."""
        return [line.removeprefix("step ") for line in self.error.splitlines() if line.startswith("step ")]


def run_with(
    fault: Fault | None, arguments: Sequence[str], *, kill_after: float | None = None, must: bool = True
) -> Ended:
    """Runs a command line in a child with a fault, or one that is killed so many seconds after it began.

    Raises AssertionError when the scripted fault was never reached, unless it need not be (`must`)."""
    with _outputs() as (out, error):
        child, began = Forked(_words(fault, [*arguments, "--json"]), out, error), time.monotonic()
        with contextlib.suppress(TimeoutError):
            child.state(kill_after)
        ended = _ended(child, out, error, began)
    if fault is not None and fault.kind != "trace" and must and not ended.reached:
        raise AssertionError(f"the fault was never reached: {fault}; exit {ended.code}: {ended.out}{ended.error}")
    return ended


def killed_when(arguments: Sequence[str], asks: Callable[[Callable[[], None]], None]) -> Ended:
    """Runs a command line in a child that whoever got `kill` of `asks(kill)` ends, or that ends by itself; S3's client
    waits for no store."""
    with _outputs() as (out, error):
        child, began = Forked(_words(None, [*arguments, "--json"]), out, error, TRIES_AT_ONCE), time.monotonic()

        def end() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)

        asks(end)
        with contextlib.suppress(TimeoutError):
            child.state(CEILING)
        return _ended(child, out, error, began)


def _words(fault: Fault | None, arguments: Sequence[str]) -> list[str]:
    said = [fault.moment, fault.kind, fault.pattern, str(fault.number)] if fault else ["-"]
    return [*said, "--", *arguments]


@contextlib.contextmanager
def _outputs() -> Iterator[tuple[IO[str], IO[str]]]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        yield out, error


def _ended(child: Forked, out: IO[str], error: IO[str], began: float) -> Ended:
    """Kills what has not ended."""
    code, seconds = child.kill(), time.monotonic() - began
    for file in (out, error):
        file.seek(0)
    return Ended(code == -signal.SIGKILL, code, out.read(), error.read(), seconds)


@contextlib.contextmanager
def standing(fault: Fault, arguments: Sequence[str]) -> Iterator[None]:
    """A command line that stands still at a step for the length of the block, and is killed then."""
    with _outputs() as (out, error):
        child = Forked(_words(fault, arguments), out, error, STOPS)
        try:
            assert os.WIFSTOPPED(child.state()), f"the fault was never reached: {fault}"
            yield
        finally:
            child.kill()


def delayed(fault: Fault, arguments: Sequence[str], meanwhile: Callable[[], None]) -> Ended:
    """A command line that stands still at a step while something else happens, and then goes on to its end. When the
    step is never reached, nothing else happens (`reached`)."""
    with _outputs() as (out, error):
        child, began = Forked(_words(fault, [*arguments, "--json"]), out, error, STOPS), time.monotonic()
        try:
            if os.WIFSTOPPED(child.state()):
                meanwhile()
                child.go_on()
                child.state()
        finally:
            ended = _ended(child, out, error, began)
    return ended


# ---- in the child -------------------------------------------------------------------------------------------------


class Steps:
    """Counts steps, and ends the process at the one it was reported."""

    def __init__(self, fault: Fault) -> None:
        self._fault, self._left, self.looks = fault, fault.number, fault.kind == "call"
        self._pattern = re.compile(fault.pattern)
        self._lock = threading.Lock()  # two threads at work: the count is one

    def around(self, kind: str, what: str, work: Callable[[], Any]) -> Any:
        if self._fault.moment != "after":
            self._count(kind, what)
        answer = work()  # what fails has changed nothing, and is no step after which to kill
        if self._fault.moment == "after":
            self._count(kind, what)
        return answer

    def _count(self, kind: str, what: str) -> None:
        with self._lock:
            if self._fault.kind == "trace":
                print(f"step {kind} {what}", file=sys.stderr, flush=True)
            elif self._fault.kind in (kind, "any", "call") and self._pattern.search(what):
                self._left -= 1
                if self._left != 0:
                    return
                print(f"{REACHED}: {kind} {what}", file=sys.stderr, flush=True)
                if self._fault.moment in ERRORS:
                    code = getattr(errno, self._fault.moment)
                    raise OSError(code, os.strerror(code), what)
                os.kill(os.getpid(), signal.SIGSTOP if "FAULTS_STOP" in os.environ else signal.SIGKILL)


def install(steps: Steps) -> None:
    """Wraps what changes the world. Thrift is wrapped where a change is sent, so answers are read before `after`."""
    from cmroot.store.hdfs import Hdfs, HdfsStore
    from replicator.captures.manifest import Manifest
    from replicator.metastore.connection import Connections

    def named(kind: str, real: Callable[..., Any], position: int) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if not arguments or not isinstance(arguments[position], str | os.PathLike):  # a descriptor, a path in bytes
                return real(*arguments, **more)
            return steps.around(kind, os.fspath(arguments[position]), lambda: real(*arguments, **more))

        return call

    for name, kind, position in (
        ("rename", "rename", 1),
        ("replace", "rename", 1),
        ("link", "link", 1),
        ("symlink", "symlink", 1),
        ("unlink", "unlink", 0),
        ("rmdir", "rmdir", 0),
        ("mkdir", "mkdir", 0),
    ):
        setattr(os, name, named(kind, getattr(os, name), position))
    if steps.looks:
        for name in LOOKS:
            setattr(os, name, named(name, getattr(os, name), 0))
        builtins.open = named("open", builtins.open, 0)
        fsync = os.fsync
        os.fsync = lambda fd: steps.around(  # type: ignore[assignment]
            "fsync", os.readlink(f"/proc/self/fd/{fd}"), lambda: fsync(fd)
        )
    for owner, name, kind, position in (
        (Hdfs, "mv", "rename", 2),
        (Hdfs, "rm_file", "unlink", 1),
        (HdfsStore, "remove_tree", "rmdir", 1),
        (HdfsStore, "mkdirs", "mkdir", 1),
    ):
        setattr(owner, name, named(kind, getattr(owner, name), position))
    commit, change = Manifest.commit, Connections.change
    Manifest.commit = lambda self: steps.around("commit", "manifest", lambda: commit(self))  # type: ignore[method-assign]
    Connections.change = lambda self, what, call: steps.around(  # type: ignore[method-assign]
        "thrift", what, lambda: change(self, what, call)
    )


def _main() -> None:
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != Path(__file__).resolve().parent]
    import replicator  # noqa: F401  loaded before it begins

    run_command(sys.argv[1:], begins=True)


def run_command(words: Sequence[str], *, begins: bool = False) -> None:
    """In this process, which ends with it. words: of a fault, `--`, and of the command line. begins: says so."""
    from replicator.cli.main import main

    split = words.index("--")
    fault, sys.argv[1:] = words[:split], words[split + 1 :]
    if list(fault) != ["-"]:
        install(Steps(Fault(fault[0], fault[1], fault[2], int(fault[3]))))
    if "FAULTS_TRIES_AT_ONCE" in os.environ:
        from botocore.retries.standard import ExponentialBackoff

        ExponentialBackoff.delay_amount = lambda *_: 0.01  # type: ignore[method-assign]
    if begins:
        print(BEGINS, file=sys.stderr, flush=True)
    main()


if __name__ == "__main__":
    _main()
