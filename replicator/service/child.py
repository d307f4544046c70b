"""The process of a run: `python -m replicator.service.child LEASH GRACE COMMAND...`. It does not outlive its server:
the file descriptor LEASH is a pipe that the server holds open; when it is closed, the process ends."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time


def hold(leash: int, grace: float) -> None:
    """Ends this process as SIGTERM does when the leash is closed, and kills its process group `grace` seconds later."""

    def watch() -> None:
        while os.read(leash, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
        os.killpg(0, signal.SIGKILL)

    os.set_inheritable(leash, False)
    threading.Thread(target=watch, name="leash", daemon=True).start()


if __name__ == "__main__":
    hold(int(sys.argv[1]), float(sys.argv[2]))
    sys.argv = ["replicator", *sys.argv[3:]]
    runpy.run_module("replicator.__main__", run_name="__main__", alter_sys=True)
