"""Work that may hang, such as on an unreachable mount: each in a thread of its own, so that nothing else waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

log = logging.getLogger(__name__)


@dataclass
class Apart:
    """Threads for work that may hang. at_once: maximum concurrent work. patience: seconds after which work no longer
    counts; its thread remains, at most one per name."""

    at_once: int
    patience: float
    _at_work: dict[str, tuple[float, threading.Thread]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, name: str, work: Callable[[], object]) -> bool:
        """Starts the work and returns True. Returns False while work of the same name is running, and if no capacity or
        thread is free. `work` must store its failures as values, not raise them."""
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
            except RuntimeError as error:  # too many threads or processes exist
                log.warning("%s is not begun: %s", name, error)
                return False
            self._at_work[name] = (time.monotonic(), thread)
        return True

    def wait(self, name: str, seconds: float) -> bool:
        """Waits up to `seconds` for the work of this name. Returns True if it has ended."""
        with self._lock:
            _, thread = self._at_work.get(name, (0.0, None))
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()
