"""Whether the clock of whoever lets things expire can be believed: it decides how old everything is.

It is compared with the store's own (of which a filesystem on the same machine tells nothing) and with the newest
capture, which another machine may have made.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from cmroot.keep.content import fresh_incoming
from cmroot.log.captured import segments
from cmroot.root import ChangeRoot
from cmroot.store.listing import file_state
from cmroot.store.place import Place
from replicator.core.text.quantity import duration_text
from replicator.errors import Refused

STORE_MARGIN = timedelta(minutes=5)
"""How far a clock may be ahead of the store's: what Kerberos and S3's signatures allow at most is 5 and 15 minutes."""

IDLE = timedelta(days=1)
"""How long ago the newest capture may have been, unless an operator says otherwise."""


def refuse_clock_ahead(root: ChangeRoot, clock: Callable[[], float], idle: timedelta = IDLE) -> None:
    """Raises Refused when the clock is ahead of the store's by more than STORE_MARGIN, or of the newest capture by more
    than `idle`. A root without captures, and a store that tells no times, say nothing. Writes a small file in
    `incoming/` and removes it."""
    ahead = _ahead_of_store(root.place, clock)
    if ahead > STORE_MARGIN.total_seconds():
        raise Refused(
            f"this machine's clock is {duration_text(ahead)} ahead of that of {root.place}: all that is there seems"
            " older than it is, and nothing was removed",
            hint="set the clock, or run this on a machine whose clock is right",
            details={"ahead_seconds": ahead},
        )
    newest = _newest_capture(root.place)
    if newest is not None and clock() - newest > idle.total_seconds():
        since = clock() - newest
        raise Refused(
            f"{root.place}: by this machine's clock the newest capture was {duration_text(since)} ago: either the clock"
            " is ahead, or captures have stopped; nothing was removed",
            hint="compare the clock with another machine's, and run a capture; if both are as they should be, allow it"
            " with --idle",
            details={"newest_capture_seconds_ago": since},
        )


def _ahead_of_store(root: str, clock: Callable[[], float]) -> float:
    probe = Place(fresh_incoming(root, "probe"))
    before = clock()  # before the store looks at its own
    try:
        probe.write_bytes(b"")
        written = file_state(str(probe)).mtime_ns
    finally:
        probe.remove_own()
    return before - written / 1e9 if written else 0.0


def _newest_capture(root: str) -> float | None:
    log = segments(root)
    times = [capture.about.get("time") for capture in log[-1].captures] if log else []
    return max((float(each) for each in times if isinstance(each, int | float)), default=None)
