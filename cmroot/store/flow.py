"""Flow: the bytes that this process copies and reads, as they pass."""

from __future__ import annotations


class Flow:
    """Bytes of contents that were copied, and that were read to be compared, since the process began. Counted without
    a lock, for those who watch: reports have the exact numbers."""

    def __init__(self) -> None:
        self.copied = 0
        self.read = 0

    def passed(self, size: int) -> None:
        """So many bytes were copied."""
        self.copied += size


FLOW = Flow()
"""Of this process."""
