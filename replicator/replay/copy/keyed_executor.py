"""A keyed executor: parallel work that keeps the order of each key's tasks, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, Thread

Key = tuple[str, str]

QUEUED = 8  # tasks that wait: bounds the driver's memory


class KeyedExecutor:
    """Work side by side, and that of one key in order. `width`: how many tasks run at once, asked each time; a full
    queue makes the caller wait. The first error ends it: what has not begun is not begun any more."""

    def __init__(self, width: Callable[[], int]) -> None:
        self._width, self._changed = width, Condition()
        self._waiting: dict[Key, deque[Callable[[], None]]] = {}  # of keys that have work
        self._ready: deque[Key] = deque()  # of these, keys of which none runs
        self._running, self._left, self._over = 0, 0, False  # _left: tasks that have not begun
        self._threads: list[Thread] = []
        self._error: BaseException | None = None

    def submit(self, key: Key, work: Callable[..., None], *arguments: object) -> None:
        """Raises the first error of earlier work."""
        width = self._width()
        with self._changed:
            while self._left >= QUEUED and not self._error:
                self._changed.wait()
            self._raise()
            if key not in self._waiting:
                self._waiting[key] = deque()
                self._ready.append(key)
            self._waiting[key].append(lambda: work(*arguments))
            self._left += 1
            if len(self._threads) < min(width, self._left + self._running):
                self._threads.append(Thread(target=self._run, name="replay", daemon=True))
                self._threads[-1].start()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            width = self._width()
            with self._changed:
                while not self._over and (not self._ready or self._running >= width):
                    self._changed.wait()
                    width = self._width()
                if not self._ready or self._error:
                    return
                key = self._ready.popleft()
                work = self._waiting[key].popleft()
                self._running, self._left = self._running + 1, self._left - 1
            error: BaseException | None = None
            try:
                work()
            except BaseException as raised:
                error = raised
            self._ended(key, error)

    def _ended(self, key: Key, error: BaseException | None) -> None:
        with self._changed:
            self._running -= 1
            self._error = self._error or error
            self._over = self._over or self._error is not None
            if not self._waiting[key]:
                del self._waiting[key]
            elif not self._over:
                self._ready.append(key)
            self._changed.notify_all()

    def _raise(self) -> None:
        if self._error:
            raise self._error

    def __enter__(self) -> KeyedExecutor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._changed:
            while kind is None and not self._error and (self._left or self._running):
                self._changed.wait()
            self._over = True
            if kind is not None:
                self._ready.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        if kind is None:
            self._raise()
