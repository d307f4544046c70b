"""Command lines in processes that are forked from one that has imported the product: to begin a Python and to import
everything takes longer than most of them.

    python forked_commands.py <descriptor of a socket>

Each request names arguments, environment and directory, and brings three descriptors: a socket on which is told what
becomes of the process, as `os.waitpid` says it, and its outputs.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import pkgutil
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

REQUEST = 1 << 17  # bytes, at most


class Forked:
    """A process that runs `faults` with these arguments. Only its state is ours to ask for: it is no child."""

    def __init__(self, arguments: Sequence[str], out: IO[str], error: IO[str], env: Mapping[str, str] = {}) -> None:
        self._events, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, **env}
        request = json.dumps({"arguments": list(arguments), "env": environment, "cwd": os.getcwd()}).encode()
        with theirs:
            socket.send_fds(_server(), [request], [theirs.fileno(), out.fileno(), error.fileno()])
        self.pid = int(self._events.recv(100))
        self.ended: int | None = None

    def state(self, timeout: float | None = None) -> int:
        """The next change of its state, as of `os.waitpid`. Raises TimeoutError."""
        self._events.settimeout(timeout)
        told = self._events.recv(100)
        assert told, "the process that looks after it is gone"
        if not os.WIFSTOPPED(int(told)):
            self.ended = os.waitstatus_to_exitcode(int(told))
            self._events.close()
        return int(told)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> int:
        """Its exit code."""
        if self.ended is None:
            os.kill(self.pid, signal.SIGKILL)
        while self.ended is None:
            self.state()
        return self.ended


@functools.cache
def _server() -> socket.socket:
    """It ends when this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


# ---- in the server ------------------------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> list[str]:
    """Until there are no more requests; returns in each process that is to run, with its arguments."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, REQUEST, 3)
        if not data:
            sys.exit()
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _look_after(json.loads(data), *descriptors)
        for each in descriptors:
            os.close(each)


def _look_after(request: dict[str, object], events: int, out: int, error: int) -> list[str]:
    """Forks once more, and tells what becomes of that process; returns in it only."""
    pid = os.fork()
    if pid == 0:
        os.close(events)
        for given, standard in ((out, 1), (error, 2)):
            os.dup2(given, standard)
            os.close(given)
        os.environ.clear()
        os.environ.update(request["env"])  # type: ignore[call-overload]
        os.chdir(str(request["cwd"]))
        random.seed()
        return list(request["arguments"])  # type: ignore[call-overload]
    os.close(out)
    os.close(error)
    with contextlib.suppress(OSError), socket.socket(fileno=events) as to:  # nobody may listen any more
        to.send(str(pid).encode())
        while True:
            _, status = os.waitpid(pid, os.WUNTRACED)
            to.send(str(status).encode())
            if not os.WIFSTOPPED(status):
                break
    os._exit(0)


def _main() -> None:
    here = str(Path(__file__).parent)
    from faults import run_command

    sys.path[:] = [place for place in sys.path if place != here]
    import pyarrow.parquet  # noqa: F401  what most commands import late
    import sqlglot  # noqa: F401

    import replicator.commands
    from replicator.cli.main import main  # noqa: F401

    for module in pkgutil.walk_packages(replicator.commands.__path__, "replicator.commands."):
        importlib.import_module(module.name)
    run_command(_serve(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    _main()
