"""Time limits of queries: each runs in a thread of its own that is abandoned after the limit, so that a store or
metastore that hangs blocks neither the server nor queries about others; a long one runs in a process that is ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from replicator.service.children import Child, answer_of

T = TypeVar("T")

log = logging.getLogger(__name__)

AT_ONCE, OF_ONE = 24, 6
"""Maximum concurrent queries; of these, about one root or policy."""

PROCESSES = 2
"""Maximum concurrent queries in processes."""

GRACE = 2.0  # seconds from SIGTERM to SIGKILL
LOOK = 0.02  # seconds between polls of a process


class Late(Exception):
    """An exceeded time limit. begun: False: other queries were running all the time."""

    def __init__(self, *, begun: bool) -> None:
        super().__init__(begun)
        self.begun = begun


class Askers:
    """Threads for queries. Used by one event loop."""

    def __init__(self) -> None:
        self._all, self._processes = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(PROCESSES)
        self._of: dict[tuple[str, bool], asyncio.Semaphore] = {}

    async def ask(self, about: str, seconds: float, do: Callable[[], T], *, process: bool = False) -> T:
        """Returns or raises what `do` returns or raises. about: a root, a policy or "", about which the number of
        concurrent queries is limited. process: it runs a command. Raises Late; then `do` continues, and occupies its
        capacity until it ends."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        mine = self._of.setdefault((about, process), asyncio.Semaphore(OF_ONE))
        taken: list[asyncio.Semaphore] = []
        try:
            async with asyncio.timeout_at(deadline):
                for each in (mine, self._processes if process else self._all):
                    await each.acquire()
                    taken.append(each)
        except TimeoutError:
            _release(taken)
            raise Late(begun=False) from None
        except asyncio.CancelledError:
            _release(taken)
            raise
        future: asyncio.Future[T] = loop.create_future()

        def finish(result: Callable[[], T]) -> None:
            _release(taken)
            if not future.done():
                try:
                    future.set_result(result())
                except BaseException as error:
                    future.set_exception(error)

        def work() -> None:
            result = _outcome(do)
            with contextlib.suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(finish, result)

        try:
            threading.Thread(target=work, name=f"asks {about}", daemon=True).start()
        except RuntimeError as error:  # too many threads or processes exist
            _release(taken)
            log.warning("%s is not asked: %s", about, error)
            raise Late(begun=False) from error
        try:
            async with asyncio.timeout_at(deadline):
                return await future
        except TimeoutError:
            raise Late(begun=True) from None


def _release(taken: list[asyncio.Semaphore]) -> None:
    for each in taken:
        each.release()


def _outcome(do: Callable[[], T]) -> Callable[[], T]:
    """Calls `do`. Returns a function that returns its result or raises its error."""
    try:
        found = do()
    except BaseException as error:
        said = error

        def again() -> T:
            raise said

        return again
    return lambda: found


def run_command(arguments: Sequence[str], seconds: float) -> tuple[int | None, Any]:
    """Runs a command line in a process of its own. Returns its exit code and its `--json` report. Raises Late after
    ending the process."""
    deadline, late = time.monotonic() + seconds, False
    with tempfile.TemporaryDirectory(prefix="replicator-query-") as made:
        child = Child("a query", [*arguments, "--json"], Path(made), GRACE)
        while (ended := child.ended()) is None:
            if time.monotonic() > deadline:
                late = True
                child.stop("it took too long")
            time.sleep(LOOK)
        if late:
            raise Late(begun=True)
        return ended.exit_code, answer_of(Path(made))
