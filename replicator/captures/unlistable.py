"""Objects that a capture could not list (no readable directory), and files without a UTF-8 name.

An unreadable object is not necessarily empty: a mount may be missing, or a directory being moved. The files known to
the log are retained, and each capture's marker names the object, until it is readable, dropped, or declared empty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from cmroot.errors import FormatError
from cmroot.log.captured import Segment
from cmroot.text import unsafe
from replicator.captures.inventory import DataObject
from replicator.captures.manifest import Manifest
from replicator.core.model import Value
from replicator.core.not_replicated import OF_SERVERS, UNLISTED, NotReplicated
from replicator.core.roles import is_shadow
from replicator.errors import ObjectNotFound, UsageError
from replicator.metastore.client import MetastoreReader, ObjectKind, ServerObject

UNSEEN, EMPTY = "unseen", "declared_empty"  # keys of a marker's `about`
REFUSED = "the metastore does not give it"  # start of the reason for a refused table
NAMED = 20  # partitions of one table that are named; more are replaced by their table, so that a marker stays small

Key = tuple[str, str, str]


class Uncaptured(Value, frozen=True, omit_defaults=True):
    """One object, or one table that stands for many of its partitions. `reason`: a sentence. `bytes`: size of the files
    last seen; `since`: start of the first capture that could not read it, in seconds."""

    db: str
    table: str
    reason: str
    partition: str = ""
    location: str = ""
    bytes: int = 0
    since: int = 0

    @property
    def key(self) -> Key:
        return self.db, self.table, self.partition

    @property
    def label(self) -> str:
        """The object in messages: `db.table/partition at location`."""
        name = f"{self.db}.{self.table}" + (f"/{self.partition}" if self.partition else "")
        return f"{name} at {self.location}" if self.location else name

    def reported(self) -> NotReplicated:
        return NotReplicated(
            f"{self.db}.{self.table}", self.reason, self.partition, self.bytes or None, self.since or None, unknown=True
        )


class Empty(Value, frozen=True, omit_defaults=True):
    """An object without a directory that the operator has declared empty. A table stands for all of its partitions that
    have neither a directory nor files in the log."""

    db: str
    table: str
    partition: str = ""
    location: str = ""


class Sight(Value, frozen=True, omit_defaults=True):
    """The objects that the end of a capture could not read."""

    unseen: tuple[Uncaptured, ...] = ()
    empty: tuple[Empty, ...] = ()

    def about(self) -> dict[str, Any]:
        """Returns the lists for a segment's marker; empty if everything was read."""
        lists = {UNSEEN: self.unseen, EMPTY: self.empty}
        return {key: msgspec.to_builtins(value) for key, value in lists.items() if value}

    def differs(self, other: Sight) -> bool:
        """Returns True if other objects are unreadable or declared empty; sizes and times may differ."""
        return {(each.key, each.location) for each in self.unseen} != {
            (each.key, each.location) for each in other.unseen
        } or set(self.empty) != set(other.empty)

    def is_empty(self, obj: DataObject) -> bool:
        """Returns True if the object was declared empty. `obj`: an object without files in the log."""
        return any(
            (each.db, each.table) == (obj.db, obj.table)
            and (not each.partition or each.partition == obj.partition)
            and (not each.location or each.location == obj.location)
            for each in self.empty
        )


def sight_at(log: Sequence[Segment], position: int) -> Sight:
    """Returns the sight of the last capture that ended at or before a position."""
    for segment in reversed(log):
        for capture in reversed(segment.captures) if segment.first <= position else ():
            if capture.last <= position:
                return _read(capture.about, segment.place)
    return Sight()


def _read(about: Mapping[str, Any], place: str) -> Sight:
    try:
        return msgspec.convert({"unseen": about.get(UNSEEN, ()), "empty": about.get(EMPTY, ())}, Sight)
    except msgspec.ValidationError as error:
        raise FormatError(f"{place}: its marker cannot be read: {error}", hint="restore it from a copy") from error


def gathered(things: Iterable[Uncaptured], before: Sight, now: int) -> tuple[Uncaptured, ...]:
    """Returns the objects sorted, each with the time since when it is unreadable; tables replace many partitions."""
    tables: dict[tuple[str, str], list[Uncaptured]] = {}
    for each in things:
        tables.setdefault((each.db, each.table), []).append(each)
    known = {each.key: each.since for each in before.unseen}
    found = [one for some in tables.values() for one in _few(some)]
    dated = (msgspec.structs.replace(each, since=known.get(each.key, now)) for each in found)
    return tuple(sorted(dated, key=lambda each: each.key))


def _few(some: Sequence[Uncaptured]) -> Iterator[Uncaptured]:
    if len(some) <= NAMED:
        yield from some
        return
    first = some[0]
    reason = f"{len(some):,} of its partitions cannot be read, such as {first.partition}: {first.reason}"
    yield Uncaptured(first.db, first.table, reason, bytes=sum(each.bytes for each in some))


def parse_name(text: str) -> Key:
    """Parses `db.table` or `db.table/partition`. Raises UsageError for anything else."""
    table, _, partition = text.partition("/")
    db, dot, name = table.lower().partition(".")
    if not (db and dot and name) or "." in name:
        raise UsageError(
            f"--empty {text!r} is neither a table nor a partition", hint="write db.table, or db.table/day=2026-01-01"
        )
    return db, name, partition


_KEY = "unnamed"
_SHOWN = 5  # names of one object that are reported; more are counted


def not_text(obj: DataObject, names: Sequence[str]) -> NotReplicated:
    """Reports an object that has files with invalid names."""
    some = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    files = "a file whose name is" if len(names) == 1 else f"{len(names)} files whose names are"
    what = "invalid as a path" if any(unsafe(name.rstrip("/")) for name in names) else "not UTF-8"
    return NotReplicated(f"{obj.db}.{obj.table}", f"it has {files} {what}: {some}", obj.partition)


def beside_others(directories: Sequence[str]) -> str:
    """Returns the reason why rows of a transactional table are left out: their files have rows of others, too."""
    some = ", ".join(directories[:_SHOWN]) + (", ..." if len(directories) > _SHOWN else "")
    return f"its rows in {some} share files with rows of aborted or open transactions, until it is compacted"


def remembered(manifest: Manifest) -> list[NotReplicated]:
    """Returns the objects with invalid file names that were reported before and still exist."""
    found = msgspec.json.decode(manifest.recall(_KEY) or "[]", type=list[NotReplicated])
    return [each for each in found if _is_there(manifest, each)]


def remember(manifest: Manifest, listed: Mapping[tuple[str, str, str], NotReplicated | None]) -> None:
    """Stores them for the objects that a capture has listed, by (db, table, partition); None: all names are valid."""
    before = remembered(manifest)
    kept = [each for each in before if (*_names(each), each.partition) not in listed]
    now = [*kept, *(each for each in listed.values() if each is not None)]
    if now or manifest.recall(_KEY):
        manifest.remember(_KEY, msgspec.json.encode(now).decode())


def _is_there(manifest: Manifest, obj: NotReplicated) -> bool:
    db, table = _names(obj)
    if obj.partition:
        return bool(manifest.partitions_by_name(db, table, [obj.partition]))
    return manifest.table(db, table) is not None


def _names(obj: NotReplicated) -> tuple[str, str]:
    db, _, table = obj.object.partition(".")
    return db, table


# ---- ungiven ---------------------------------------------------------------------------------------------------------
# Tables that the source's metastore does not return to a capture: damaged metadata, or access denied.
#
# The state known to the log is retained, and each capture's marker names them, until they are returned or dropped.


class Refusals:
    """Refused tables of one capture. For tables that it does not request, earlier refusals remain."""

    def __init__(self, before: Sight) -> None:
        self._found: dict[str, dict[str, str]] = {}  # database -> table -> the reason
        self._before = {(each.db, each.table): each.reason for each in before.unseen if each.reason.startswith(REFUSED)}

    def asked(self, db: str) -> dict[str, str]:
        """Returns the dictionary for refusals of a database whose tables are all requested; discards earlier ones."""
        self._before = {key: reason for key, reason in self._before.items() if key[0] != db}
        return self._found.setdefault(db, {})

    def asked_again(self, db: str, names: Sequence[str]) -> dict[str, str]:
        """Returns the dictionary for refusals of a database of which only some tables are requested."""
        for name in names:
            self.dropped(db, name)
        return self._found.setdefault(db, {})

    def dropped(self, db: str, name: str) -> None:
        self._before.pop((db, name), None)
        self._found.get(db, {}).pop(name, None)

    def found(self) -> list[Uncaptured]:
        now = {(db, name): f"{REFUSED}: {said}" for db, some in self._found.items() for name, said in some.items()}
        return [Uncaptured(*key, reason) for key, reason in (self._before | now).items()]


# ---- objects that no load replicates ---------------------------------------------------------------------------------


DEFAULT = "default"  # the database that every metastore has
_GRANTS_KEY = "grants_left_out"
_FORMAT_KEY = "connectors"  # state of a manifest


_NO_REPLICA: dict[ObjectKind, str] = {
    "data connector": "it may have passwords: create it by hand where it is needed",
    "resource plan": "it divides the source's cluster among its users: create it by hand where it is needed",
    "stored procedure": "stored procedures are not replicated: create it by hand on the target",
    "package": "packages of stored procedures are not replicated: create it by hand on the target",
}


def server_objects(
    source: MetastoreReader, databases: Collection[str], selected: Callable[[tuple[str, str]], bool] = lambda name: True
) -> list[NotReplicated]:
    """Returns the objects of a metastore that no replica has: stored procedures and packages of the databases, as far
    as they are selected, and those of the server (see `of_server`)."""
    found = [_no_replica(each) for each in source.server_objects(databases)]
    chosen = [each for each in found if _is_selected(each.object, selected)]
    return [*of_server(chosen, source, databases), *(each for each in chosen if not _has_no_database(each.object))]


def of_server(
    found: Iterable[NotReplicated], source: MetastoreReader, databases: Collection[str]
) -> list[NotReplicated]:
    """Returns the objects that belong to no database: kinds that the server does not list; and data connectors and
    resource plans, if the databases are all that the metastore has except for a `default` without tables and those of
    drills."""
    of_it = [each for each in found if _has_no_database(each.object)]
    listed = any(each.object.startswith(OF_SERVERS) for each in of_it)
    if not listed or all(_is_aside(source, name) for name in source.database_names() if name not in databases):
        return of_it
    return [each for each in of_it if each.object.startswith(UNLISTED)]


def _has_no_database(label: str) -> bool:
    return label.startswith((*OF_SERVERS, UNLISTED))


def _no_replica(found: ServerObject) -> NotReplicated:
    """Only the label of an object of a database begins with the name of a database and a dot."""
    kind, db, name, refusal = found.kind, found.db, found.name, found.refusal
    label = f"{kind} {name}" if name else f"{UNLISTED}{kind}s"
    if db:
        label = f"{db}.{name or '*'} ({kind})"
    return NotReplicated(label, f"the metastore does not list {kind}s: {refusal}" if refusal else _NO_REPLICA[kind])


def _is_selected(label: str, selected: Callable[[tuple[str, str]], bool]) -> bool:
    db, _, name = label.partition(".")
    return _has_no_database(label) or selected((db, name))


def _is_aside(source: MetastoreReader, db: str) -> bool:
    try:
        return is_shadow(source.database(db)) or (db == DEFAULT and not source.table_names(db))
    except ObjectNotFound:
        return True


def remember_objects(manifest: Manifest, found: Sequence[NotReplicated]) -> None:
    """Stores the objects that `server_objects` returned to a capture, for dumps."""
    if found or manifest.recall(_FORMAT_KEY):
        manifest.remember(_FORMAT_KEY, msgspec.json.encode(found).decode())


def remembered_objects(
    manifest: Manifest, databases: Collection[str], selected: Callable[[tuple[str, str]], bool]
) -> list[NotReplicated]:
    """Returns the objects that the last capture found: those that are selected, and those that belong to no database if
    these are all captured databases."""
    found = msgspec.json.decode(manifest.recall(_FORMAT_KEY) or "[]", type=list[NotReplicated])
    if not {each.name for each in manifest.databases()}.issubset({DEFAULT, *databases}):
        found = [each for each in found if not each.object.startswith(OF_SERVERS)]
    return [each for each in found if _is_selected(each.object, selected)]


_UNREAD_KEY = "unread_files"


def unread_files(manifest: Manifest) -> dict[str, NotReplicated]:
    """Returns the files that metadata names and the last look could not read, by database and path (`db/path`)."""
    return msgspec.json.decode(manifest.recall(_UNREAD_KEY) or "{}", type=dict[str, NotReplicated])


def remember_unread_files(manifest: Manifest, found: Mapping[str, NotReplicated]) -> None:
    """Stores them, for later captures and for dumps."""
    if found or manifest.recall(_UNREAD_KEY):
        manifest.remember(_UNREAD_KEY, msgspec.json.encode(found).decode())


def remember_grants(manifest: Manifest, found: Sequence[NotReplicated]) -> None:
    """Stores the databases whose grants a capture left out, for dumps."""
    if found or manifest.recall(_GRANTS_KEY):
        manifest.remember(_GRANTS_KEY, msgspec.json.encode(found).decode())


def remembered_grants(manifest: Manifest, databases: Collection[str]) -> list[NotReplicated]:
    """Returns those of the databases whose grants the last reading left out."""
    found = msgspec.json.decode(manifest.recall(_GRANTS_KEY) or "[]", type=list[NotReplicated])
    return [each for each in found if each.object in databases]
