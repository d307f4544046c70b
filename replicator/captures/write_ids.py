"""Write ids of transactional tables in a capture: one moment for all tables, and the files of that moment.

A capture asks for the open transactions, then for the write ids of transactional tables as those see them, and then
lists directories: each holds what its name says (`cmroot.store.acid`). If a compactor has replaced directories since,
the capture takes a newer moment. It asks for tables that events name or whose directories are to be listed. Events name
transactions, too: a load ends those together that a transaction of the source has ended, in the source's order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import msgspec
import pyarrow.compute as pc
import pyarrow.orc as orc

from cmroot.store import acid
from cmroot.store.listing import FileState, Listing
from cmroot.store.place import join, located
from replicator.captures.inventory import DataObject
from replicator.captures.recording import Recording
from replicator.captures.unlistable import beside_others
from replicator.core.formats import FORMATS, is_transactional
from replicator.core.formats.interface import INSERT_ONLY
from replicator.core.model import Name, NotificationEvent, WriteIds
from replicator.errors import FormatError
from replicator.metastore.client import MetastoreReader
from replicator.metastore.events.facts import SetWriteIds, Written
from replicator.metastore.events.notification_log import TRANSACTIONS, message_of
from replicator.metastore.transactions import unnamed

_KEY = "transactions"  # state of a manifest


def state_of(ids: WriteIds, *, insert_only: bool) -> acid.State:
    return acid.State(ids.high, frozenset(ids.open), frozenset(ids.aborted), insert_only)


NEW = -1  # in place of the number of open ids
_OPEN = f"CASE WHEN w.body IS NULL THEN {NEW} ELSE json_array_length(CAST(w.body AS TEXT), '$.ids.open') END"
_UNLISTED = "NOT t.listed OR t.id IN (SELECT table_id FROM partitions WHERE NOT listed)"
_TABLES = f"""SELECT t.db, t.name, coalesce({_OPEN}, 0), {_UNLISTED} FROM scope s JOIN tables t ON t.db = s.db
  JOIN formats x ON x.table_id = t.id LEFT JOIN write_ids w ON w.table_id = t.id WHERE x.format = ? ORDER BY t.id"""


class _Seen(msgspec.Struct):
    """Facts of events about transactions that no record contains yet. `allocated`: database, table, write id and
    transaction; `ended`: transaction and event."""

    allocated: list[tuple[str, str, int, int]] = []
    ended: list[tuple[int, int]] = []


class Transactions:
    """The write ids of one capture. `everything`: it asks for those of all tables."""

    def __init__(self, source: MetastoreReader, log: Recording) -> None:
        self._source, self._log, self._known = source, log, log.manifest
        seen = msgspec.json.decode(self._known.recall(_KEY) or "{}", type=_Seen)
        self._allocated: dict[Name, dict[int, int]] = {}  # write id -> transaction
        for db, table, each, transaction in seen.allocated:
            self._allocated.setdefault((db, table), {})[each] = transaction
        self._ended = dict(seen.ended)
        self._snapshot = ""
        self._is_old = False  # transactions have begun or ended since the snapshot
        self._asked = set[Name]()  # as of the snapshot
        self._compacted: set[Name] = set()  # since the snapshot
        self._states: dict[Name, acid.State | None] = {}
        self.everything = False

    def note(self, event: NotificationEvent) -> None:
        """Notes the write ids that an event allocates, or the transaction that it ends."""
        if event.type not in TRANSACTIONS or (message := message_of(event)) is None:
            return
        self._is_old = True
        if "txnid" in message:
            self._ended[int(message["txnid"])] = event.id
        elif (db := message.get("dbName")) in self._known.scope():
            ids = self._allocated.setdefault((db, message["tableName"]), {})
            for transaction, each in zip(message["txnIdList"], message["writeIdList"], strict=True):
                ids[int(each)] = int(transaction)

    def look(self, *, again: bool = False) -> None:
        """Reads write ids of transactional tables: as of now if it is the first call, if events about transactions were
        noted since the last one, or with `again`; otherwise those of new tables, as of that moment. So tables of all
        formats are captured at the moment of the last events. Records the ids that have changed: all files of these
        tables are to be listed.

        Asks for tables that events name, that had open ids, that are new, or of which objects are to be listed: a write
        without an event is found as that to a plain table, by a scan."""
        again, self._is_old = again or self._is_old or not self._snapshot, False
        wanted = self._wanted(again=again) if self._source.keeps_transactions() else []
        if again and wanted:
            self._snapshot = self._source.snapshot()
        found = self._source.write_ids(wanted, self._snapshot) if wanted else {}
        for name in wanted:
            ids, before = found.get(name, WriteIds(0)), self._known.write_ids(*name)
            if before is None or before.ids != ids:
                self._log.observe(self._change(name, ids, before))
                self._known.unlist_table(*name)
            self._states.pop(name, None)

    def _wanted(self, *, again: bool) -> list[Name]:
        """Returns the tables to ask for, each once. again: as of a new moment."""
        self._asked = set() if again else self._asked
        named, self._compacted = {*self._allocated, *self._compacted}, set()
        wanted = [
            (db, name)
            for db, name, opened, unlisted in self._tables()
            if self.everything or opened or unlisted or (db, name) in named
            if (db, name) not in self._asked
        ]
        wanted = [name for name in wanted if (table := self._known.table(*name)) and is_transactional(table)]
        self._asked |= set(wanted)
        return wanted

    def _tables(self) -> list[tuple[str, str, int, bool]]:
        """Returns the tables in formats with write ids: database, name, how many ids are open, or NEW, and whether
        objects are to be listed."""
        formats = [each.name for each in FORMATS.values() if each.write_ids]
        return [row for format in formats for row in self._known.select(_TABLES, format)]

    def state(self, db: str, name: str) -> acid.State | None:
        """Returns the write ids with which files of a table are captured; None if it is not transactional."""
        if (db, name) not in self._states:
            record = self._known.write_ids(db, name) if self._snapshot else None
            table = self._known.table(db, name) if record else None
            kind = is_transactional(table) if table else ""
            ids = state_of(record.ids, insert_only=kind == INSERT_ONLY) if record and kind else None
            self._states[db, name] = ids
        return self._states[db, name]

    def _change(self, name: Name, ids: WriteIds, before: SetWriteIds | None) -> SetWriteIds:
        known = {each.id: each.transaction for each in before.written} if before else {}
        allocated = self._allocated.get(name, {})
        named = [each for each in allocated if each <= ids.high]
        fresh = (*before.ids.open, *range(before.ids.high + 1, ids.high + 1)) if before else named
        written = []
        for each in sorted({*fresh, *ids.open}):
            transaction = allocated.pop(each, None) or known.get(each) or unnamed(name, each)
            ended = 0 if each in ids.open else self._ended.get(transaction, 0)
            if ended or each in known or each in ids.open:
                written.append(Written(each, transaction, ended))
        return SetWriteIds(db=name[0], table=name[1], ids=ids, written=tuple(written))

    def remember(self) -> None:
        """Stores what later captures need of the events."""
        allocated = [
            (*name, each, transaction)
            for name, ids in self._allocated.items()
            if (state := self.state(*name))
            for each, transaction in ids.items()
            if each > state.high
        ]
        waiting = {each for *_, each in allocated}
        for db, name, opened, _ in self._tables():
            if opened and (record := self._known.write_ids(db, name)) is not None:
                waiting |= {each.transaction for each in record.written if each.id in record.ids.open}
        ended = [(transaction, event) for transaction, event in self._ended.items() if transaction in waiting]
        if allocated or ended or self._known.recall(_KEY):
            self._known.remember(_KEY, msgspec.json.encode(_Seen(allocated, ended)).decode())

    def passed(self, names: Mapping[DataObject, Collection[str]]) -> bool:
        """Returns True if a newer moment, read now, has directories that the one before could not judge: a compactor
        has made them. Otherwise they are of writers that have not ended."""
        tables = self._compacted = {(obj.db, obj.table) for obj in names}
        now = self._source.write_ids(sorted(tables), self._source.snapshot())
        for obj, some in names.items():
            name = (obj.db, obj.table)
            ids, before = now.get(name, WriteIds(0)), self.state(*name)
            state = state_of(ids, insert_only=before is not None and before.insert_only)
            if acid.chosen(some, state, lambda base: True).unclear != set(some):
                return True
        return False


# ---- on executors ----------------------------------------------------------------------------------------------------


def files_of(listing: Listing, location: str, state: acid.State) -> tuple[list[FileState], acid.Chosen]:
    """Returns the files of a table or partition that belong to a state. Raises FileNotFoundError if a file
    that decides this is gone by now, FormatError if it is damaged."""
    paths = {file.path_relative for file in listing.files}
    tops = {path.partition("/")[0] for path in paths if "/" in path}
    found = acid.chosen(
        tops, state, partial(_is_compacted, paths, location), partial(_is_clean, listing.files, location, state)
    )
    return [file for file in listing.files if _belongs(file.path_relative, found)], found


def as_on_replica(listing: Listing, location: str, state: acid.State) -> tuple[Listing, dict[str, str], str]:
    """Returns the listing of a state as a replica has it, the paths that differ there (replica's -> source's), and why
    replicas lack some of its committed rows ("": none)."""
    files, found = files_of(listing, location, state)
    paths = {each.path_relative: acid.replica_path(each.path_relative) for each in files}
    there = [msgspec.structs.replace(each, path_relative=paths[each.path_relative]) for each in files]
    differ = {new: old for old, new in paths.items() if new != old}
    left_out = found.left_out(state)
    return Listing(there, [], listing.unnamed), differ, beside_others(left_out) if left_out else ""


def _is_compacted(paths: Collection[str], location: str, base: str) -> bool:
    path = f"{base}/{acid.MADE_BY}"
    if path not in paths:
        return False
    place = join(location, path)
    with located(place).open_read() as source:
        try:
            return bool(msgspec.json.decode(source.read(), type=dict[str, str]).get("dataFormat") == acid.COMPACTED)
        except msgspec.DecodeError as error:
            raise FormatError(f"{place} cannot be read: {error}") from error


def _belongs(path: str, found: acid.Chosen) -> bool:
    directory = acid.directory_of(path)
    return found.originals if directory is None else directory.name in found.names


def _is_clean(files: Sequence[FileState], location: str, state: acid.State, name: str) -> bool:
    """Returns True if no row of a directory was written by an aborted id: it is a compactor's, not one of a writer that
    streams into one file in several transactions."""
    if state.insert_only:
        return True
    for file in files:
        below, _, base = file.path_relative.rpartition("/")
        if below == name and base.startswith("bucket_") and not base.endswith("_flush_length"):
            place = join(location, file.path_relative)
            with located(place).open_read() as source:
                try:
                    ids = orc.ORCFile(source).read(["currentTransaction"])["currentTransaction"]
                except OSError as error:
                    if error.errno is not None:
                        raise
                    raise FormatError(f"{place} is not a file of a transactional table: {error}") from error
            if set(pc.unique(ids).to_pylist()) & state.aborted:
                return False
    return True
