"""Runs a piece of work in a child process that is killed (SIGKILL) at its n-th change of the filesystem.

Each call below changes something on disk, so a kill before each of them leaves every state a kill can leave. A test
goes on with n = 1, 2, 3 ... until the child comes to its end, so no step can be left out.
"""

from __future__ import annotations

import signal
import subprocess
import sys
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
left = int(sys.argv[1])

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
"""


def at_every_step(work: str, prepare: Callable[[], None], check: Callable[[int], None], imports: str = "") -> int:
    """For each step: prepare, run `work` (Python source) up to that step, kill, check. Returns the number of kills."""
    prelude = PRELUDE.format(path=[], changing=CHANGING, imports=imports)
    for number in range(1, 1000):
        prepare()
        child = subprocess.run([sys.executable, "-c", prelude + work, str(number)], capture_output=True, text=True)
        if child.returncode not in (0, -signal.SIGKILL):
            raise AssertionError(f"step {number}: {child.stderr}")
        check(number)
        if child.returncode == 0:
            return number - 1
    raise AssertionError("the work never ends")
