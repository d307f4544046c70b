"""A policy's dumps: `<dumps>/<policy>/<event>-<id>/`. An id begins with the time, so that a name tells its age.

4711-20260301T120000Z-5f2a90c1/
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from cmroot.pins import unpin_dump
from cmroot.root import ChangeRoot
from cmroot.store.resolve import as_written
from replicator.captures.dumps.layout import FINISHED, LOADS

KEPT_DUMPS = 1000  # that were loaded: a policy that runs each second makes more in an hour than anybody looks at

_NAME = re.compile(r"(\d+)-((\d{8}T\d{6}Z)-[0-9a-f]{8})")
_TIME = "%Y%m%dT%H%M%SZ"


def new_dump_id(clock: Callable[[], float]) -> str:
    return f"{datetime.fromtimestamp(clock(), UTC).strftime(_TIME)}-{uuid.uuid4().hex[:8]}"


class PolicyDumps:
    """The directory of one policy's dumps. Who holds the policy's lease writes."""

    def __init__(self, dumps: str, policy: str) -> None:
        self.place = as_written(dumps) / policy

    def place_of(self, event: int, id: str) -> str:
        return str(self.place / f"{event}-{id}")

    def find(self, id: str) -> str | None:
        """The finished dump of this id."""
        for name in self.place.list():
            match = _NAME.fullmatch(name)
            if match and match[2] == id and (self.place / name / FINISHED).exists():
                return str(self.place / name)
        return None

    def tidy(self, root: ChangeRoot, retention: timedelta, *, clock: Callable[[], float]) -> list[str]:
        """Removes dumps that are older than the retention, loaded ones beyond the newest thousand, and those that a
        killed run did not finish, with their pins in the source's `$cmroot`. Returns their places. Safe to run twice.

        A dump that was finished and not loaded stays as long as a plan may want it. What has another name stays."""
        names = [match for name in self.place.list() if (match := _NAME.fullmatch(name))]
        names.sort(key=lambda match: match[2], reverse=True)
        oldest = datetime.fromtimestamp(clock(), UTC) - retention
        removed = []
        for rank, match in enumerate(names):
            place = self.place / match[0]
            old = datetime.strptime(match[3], _TIME).replace(tzinfo=UTC) < oldest
            surplus = rank >= KEPT_DUMPS and bool((place / LOADS).list())
            if old or surplus or not (place / FINISHED).exists():
                (place / FINISHED).remove_own()  # first what makes it count
                place.remove_own_tree()
                unpin_dump(root.place, match[2])
                removed.append(str(place))
        return removed
