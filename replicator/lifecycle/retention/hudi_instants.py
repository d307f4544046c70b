"""The states of a Hudi table: completed writes of its timeline, and base files that only past ones show. Reads only.

Hudi's cleaner ends the first states. Given a first instant to retain, it deletes the files that a later file of their
file group, or a replacement of the group, had superseded before that instant; of a group that is replaced later, none.
So the state before the first retained one keeps its files, although Hudi refuses to read it.

A state that has no file that its successor lacks is not listed: it ends when Hudi archives its instant.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from cmroot.errors import FormatError
from cmroot.keep.journal import files_at
from cmroot.store import hudi
from cmroot.store.blocks import AvroRecords
from cmroot.store.place import join, located, name_of, normal
from replicator.errors import Error
from replicator.lifecycle.purge.hudi_search import properties_of
from replicator.lifecycle.purge.lake_search import Unsearchable

_WRITES = ("commit", "deltacommit", "replacecommit")
_NEVER = "~"  # after all times


class Past(NamedTuple):
    """A base file that is superseded: when it was written and superseded, and the first instant to retain with which
    the cleaner deletes it."""

    begin: str
    end: str
    leaves: str


class Instants:
    """The timeline of the table at a location, as it is now. writes: times of completed writes, in order; in_flight: of
    the first write that has begun and not ended, "" for none; savepoints: instants that these protect; cleans: those
    that have begun and not ended; past: superseded base files, by path in the table."""

    def __init__(self, location: str) -> None:
        """Raises Error for a table that cannot be read; OSError."""
        self.location = location
        try:
            self._properties = properties_of(location)
        except Unsearchable as error:
            raise Error(str(error)) from error
        files = [name for name, _ in files_at(location)]
        found = [(name, each) for name in files if (each := hudi.instant_of(name)) and not each.of_metadata]
        self._completed = {
            each.time: name for name, each in found if each.state == hudi.COMPLETED and each.action in _WRITES
        }
        self.writes = sorted(self._completed)
        begun = {each.time for _, each in found if each.action in (*_WRITES, "clustering")}
        self.in_flight = min(begun - self._completed.keys(), default="")
        self.savepoints = {each.time for _, each in found if each.is_savepoint and each.state == hudi.COMPLETED}
        cleans = [each for _, each in found if each.action == "clean"]
        self.cleans = {each.time for each in cleans} - {each.time for each in cleans if each.state == hudi.COMPLETED}
        self.past = dict[str, Past]()
        for group, several in self._groups(files).items():
            replaced = self._replaced.get(group, "")
            for (time, name), (end, _) in pairwise([*sorted(several), (replaced, "")]):
                if end:
                    self.past[name] = Past(time, end, self.after(replaced or end))

    def after(self, time: str) -> str:
        """Returns the first write after an instant; a text after all of them for the newest."""
        number = bisect_right(self.writes, time)
        return self.writes[number] if number < len(self.writes) else _NEVER

    @property
    def version(self) -> str:
        """The version of the table."""
        return self._properties.get("hoodie.table.version", "0")

    def _groups(self, files: list[str]) -> dict[tuple[str, str], list[tuple[str, str]]]:
        """Returns the base files of completed writes, by file groups: their times and paths."""
        groups, state = dict[tuple[str, str], list[tuple[str, str]]](), hudi.State(files)
        for name in files:
            partition, _, last = name.rpartition("/")
            if not name.startswith(f"{hudi.HOME}/") and (base := hudi.base_file(last)) and state.has(name):
                groups.setdefault((partition, base[0]), []).append((base[1], name))
        return groups

    @cached_property
    def _replaced(self) -> dict[tuple[str, str], str]:
        """The instants at which file groups were replaced, as by clustering."""
        found = dict[tuple[str, str], str]()
        for time, name in self._completed.items():
            if name.endswith(".replacecommit"):
                data = located(join(self.location, name)).read_bytes()
                found |= dict.fromkeys(hudi.replaced_groups(name, data), time)
        return found

    @property
    def states(self) -> list[str]:
        """The writes from the first on that have a file that their successor lacks; and the newest one."""
        first = min((past.end for past in self.past.values() if not self._spares(past)), default=_NEVER)
        return [time for time in self.writes if self.after(time) >= first]

    def ending(self, first: str) -> list[str]:
        """Returns the base files that the cleaner deletes with a first instant to retain."""
        return [name for name, past in self.past.items() if past.leaves <= first and not self._spares(past)]

    def staying(self, last: str) -> dict[str, str]:
        """Returns the base files of states up to one that the cleaner does not delete when they end, as their group was
        replaced later; with the replaced group's last instant."""
        following = self.after(last)
        return {
            name: self.writes[bisect_left(self.writes, past.leaves) - 1]
            for name, past in self.past.items()
            if past.end <= following and past.leaves > self.after(following) and not self._spares(past)
        }

    def _spares(self, past: Past) -> bool:
        """Returns True if a savepoint protects a file."""
        return any(past.begin <= each < past.end for each in self.savepoints)

    def unplanned(self, clean: str, first: str) -> str:
        """Returns what else a plan of the cleaner would do, "" if nothing: its first instant to retain must be the
        given one, and it must remove no other base file than those of earlier ones. A plan that cannot be read may do
        anything."""
        place, ending, top = join(self.location, self._plan_of(clean)), set(self.ending(first)), f"{self.location}/"
        try:
            plan = next(AvroRecords(located(place).read_bytes(), place).records())
            retained, files = plan["earliestInstantToRetain"]["timestamp"], plan["filePathsToBeDeletedPerPartition"]
            removed = [normal(each["filePath"]).removeprefix(top) for several in files.values() for each in several]
        except (FormatError, OSError, StopIteration, LookupError, TypeError, AttributeError) as error:
            return f"by a plan that cannot be read: {error}"
        if retained != first:
            return f"those before {retained}, not before {first}"
        others = (path for path in removed if hudi.base_file(name_of(path)) and path not in ending)
        return next((f"with {path}" for path in others), "")

    def _plan_of(self, clean: str) -> str:
        directory = hudi.TIMELINES[0] if int(self.version) >= hudi.FIRST_WITH_TIMELINE else hudi.HOME
        return f"{directory}/{clean}.clean.{hudi.REQUESTED}"

    def time_of(self, instant: str) -> datetime:
        """Returns the time of an instant. LOCAL, Hudi's default, is the time zone of its writers, and here that of this
        process."""
        is_utc = self._properties.get("hoodie.table.timeline.timezone", "LOCAL").upper() == "UTC"
        try:
            time = datetime.strptime(f"{instant[:14]}{instant[14:] or '000'}000", "%Y%m%d%H%M%S%f")
        except ValueError as error:
            raise Error(f"{self.location}: the instant {instant} is no time", hint="see its timeline") from error
        return time.replace(tzinfo=UTC) if is_utc else time.astimezone(UTC)
