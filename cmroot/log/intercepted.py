"""Files that were taken into the root before an event was written: by whom deletes first and lets the event follow.

`taken/<event>-<unique>.parquet` holds their file entries (cmroot.log.FILES, positions null) until a capture has
read the event and recorded them. `taking/<id>/journal.json` says that an intercept is under way whose outcome is not
known yet; its key `before_event` is the newest event from before it. Nothing here takes or files bytes.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.errors import UNREADABLE, FormatError
from cmroot.log.captured import FILES
from cmroot.log.parts import conform
from cmroot.names import check_entries
from cmroot.store.place import Place

_NAME = re.compile(r"(\d{20})-[0-9a-f]{32}\.parquet")
JOURNAL = "journal.json"


@dataclass(frozen=True)
class Intercepted:
    """What was taken before an event: its id, and the file that holds the entries."""

    event: int
    place: str

    def rows(self) -> pa.Table:
        """The entries. FormatError when the file is damaged."""
        try:
            with Place(self.place).open_read() as file:
                rows = conform(pq.read_table(file), FILES)
                check_entries(rows, self.place, pending=True)
                return rows
        except (pa.ArrowException, OSError) as error:
            raise FormatError(
                f"{self.place}: {error}", hint="remove it: the bytes stay kept, the record will not name them"
            ) from error


def write_intercepted(root: str, event: int, rows: pa.Table, unique: str | None = None) -> Intercepted:
    """Leave entries for the capture that reads an event; durable when it returns. The bytes must be kept by then.

    `unique`: 32 hex digits of the caller's; writing again with the same ones replaces what was written."""
    place = Place(root) / "taken" / f"{event:020d}-{unique or uuid.uuid4().hex}.parquet"
    with place.open_write() as file:
        pq.write_table(conform(rows, FILES), file, compression="zstd")
    return Intercepted(event, str(place))


def read_intercepted(root: str, until: int) -> list[Intercepted]:
    """Everything that was taken before events up to and with `until`, in their order."""
    directory = Place(root) / "taken"
    found = [(int(match[1]), name) for name in directory.list() if (match := _NAME.fullmatch(name))]
    return [Intercepted(event, str(directory / name)) for event, name in found if event <= until]


def remove_intercepted(taken: Intercepted) -> None:
    """After the segment that records it was published. Safe to run twice."""
    Place(taken.place).remove_own()


class _Source(msgspec.Struct, frozen=True):
    table: str


class _Journal(msgspec.Struct, frozen=True):
    before_event: int
    db: str = ""
    sources: tuple[_Source, ...] = ()


def undecided_since(root: str) -> int | None:
    """The newest event from before the oldest taking that is under way; None when there is none. Events after it may
    be about files whose entries are yet to come."""
    return min((journal.before_event for journal in _journals(root)), default=None)


def under_way(root: str) -> set[tuple[str, str]]:
    """(database, table) of what is being taken: its directories may be out of sight, and may come back."""
    return {(journal.db, source.table) for journal in _journals(root) for source in journal.sources}


def _journals(root: str) -> Iterator[_Journal]:
    intercept = Place(root) / "taking"
    for name in intercept.list():
        journal = intercept / name / JOURNAL
        try:
            yield msgspec.json.decode(journal.read_bytes(), type=_Journal)
        except FileNotFoundError:
            continue  # decided this moment
        except UNREADABLE as error:
            raise FormatError(
                f"{journal}: {error}", hint="start the gateway on this root once: it puts it right"
            ) from error
