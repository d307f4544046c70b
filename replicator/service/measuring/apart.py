"""Work that may hang, such as on a mount that is gone: each in a thread of its own, so that nothing else waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

log = logging.getLogger(__name__)


@dataclass
class Apart:
    """at_once: so many works at a time. patience: seconds after which a work takes no place any more; its thread stays,
    one for each name at most."""

    at_once: int
    patience: float
    _at_work: dict[str, tuple[float, threading.Thread]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, name: str, work: Callable[[], object]) -> bool:
        """Whether the work begins: not while one of the same name is not ended, nor without a free place or thread.
        `work` keeps its failures as values."""
        with self._lock:
            recent = time.monotonic() - self.patience
            if name in self._at_work or sum(begun > recent for begun, _ in self._at_work.values()) >= self.at_once:
                return False

            def run() -> None:
                try:
                    work()
                finally:
                    with self._lock:
                        del self._at_work[name]

            thread = threading.Thread(target=run, name=f"apart {name}", daemon=True)
            try:
                thread.start()  # its end waits for the lock
            except RuntimeError as error:  # there are too many threads or processes
                log.warning("%s is not begun: %s", name, error)
                return False
            self._at_work[name] = (time.monotonic(), thread)
        return True

    def wait(self, name: str, seconds: float) -> bool:
        """Whether the work of this name has ended, within so long."""
        with self._lock:
            _, thread = self._at_work.get(name, (0.0, None))
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()
