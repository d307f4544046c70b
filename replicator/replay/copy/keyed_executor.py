"""A keyed executor: parallel work that keeps the order of each key's tasks, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import BoundedSemaphore

QUEUED = 8  # batches that wait for a lane: bounds the driver's memory


class KeyedExecutor:
    """Ordered work side by side: all of one key runs in one lane, in order; full lanes make the caller wait."""

    def __init__(self, count: int) -> None:
        self._pools = [ThreadPoolExecutor(1) for _ in range(max(1, count))]
        self._room = BoundedSemaphore(QUEUED)
        self._futures: list[Future[None]] = []

    def submit(self, key: tuple[str, str], work: Callable[..., None], *arguments: object) -> None:
        """Raises the first error of earlier work."""
        self._reap()
        self._room.acquire()
        future = self._pools[hash(key) % len(self._pools)].submit(work, *arguments)
        future.add_done_callback(lambda _: self._room.release())
        self._futures.append(future)

    def _reap(self, *, wait: bool = False) -> None:
        while self._futures and (wait or self._futures[0].done()):
            self._futures.pop(0).result()

    def __enter__(self) -> KeyedExecutor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._reap(wait=True)
        finally:
            for pool in self._pools:
                pool.shutdown(cancel_futures=kind is not None)
