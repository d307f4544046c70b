"""Runs a piece of work in a child process that is killed (SIGKILL) at its n-th change of the filesystem.

Each call below changes something on disk, so a kill before each of them leaves every state a kill can leave. A test
goes on with n = 1, 2, 3 ... until the child comes to its end, so no step can be left out. One process imports what is
needed; each child is forked from it, and runs to its end as a script would.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable

CHANGING = [
    "link",
    "symlink",
    "rename",
    "replace",
    "unlink",
    "mkdir",
    "rmdir",
    "write",
    "fsync",
    "truncate",
    "ftruncate",
]

PRELUDE = """
import os, signal, sys
sys.path[:0] = {path!r}
import xxhash, msgspec, cmroot.keep.keepers, cmroot.lease, cmroot.root, cmroot.store.place{imports}
left = 0  # it is never counted down to 0 from there

def step(*ignored):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def counted(real):
    def call(*arguments, **named):
        step()
        return real(*arguments, **named)
    return call

for name in {changing!r}:
    setattr(os, name, counted(getattr(os, name)))
real_open = os.open
def counted_open(path, flags, *arguments, **named):
    if flags & os.O_CREAT:
        step()
    return real_open(path, flags, *arguments, **named)
os.open = counted_open
import builtins, io
def counted_builtin(file, mode="r", *arguments, **named):
    if set(mode) & set("wxa+"):
        step()
    return io.open(file, mode, *arguments, **named)
builtins.open = counted_builtin

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        left = int(line)
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    sys.exit()
"""


def at_every_step(work: str, prepare: Callable[[], None], check: Callable[[int], None], imports: str = "") -> int:
    """For each step: prepare, run `work` (Python source) up to that step, kill, check. Returns the number of kills."""
    prelude = PRELUDE.format(path=[], changing=CHANGING, imports=imports)
    with tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-c", prelude + work]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, bufsize=1
        ) as parent:
            assert parent.stdin and parent.stdout
            for number in range(1, 1000):
                prepare()
                parent.stdin.write(f"{number}\n")
                code = parent.stdout.readline().strip()
                if code not in ("0", str(-signal.SIGKILL)):
                    said.seek(0)
                    raise AssertionError(f"step {number}: {code}: {said.read()}")
                check(number)
                if code == "0":
                    return number - 1
    raise AssertionError("the work never ends")
