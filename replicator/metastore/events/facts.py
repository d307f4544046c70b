"""Properties common to all changes, so that code that counts, selects or shows them need not know their kinds; renames;
and the changes of grants and of write ids, which `record` adds to its kinds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from replicator.core.model import Database, Function, Grant, Name, Partition, RoleMembers, Table, Value, WriteIds


class Facts(Value, frozen=True, omit_defaults=True):
    """The properties of a change without an object; each kind overrides those that apply to it."""

    @property
    def touched(self) -> Name | None:
        """The table of the change, by its name afterwards; None for databases, functions and markers."""
        return None

    @property
    def touched_db(self) -> str | None:
        """The database of the change, by its name afterwards; None for markers."""
        return self.touched[0] if self.touched else None

    @property
    def rename(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Names before and after, as (database, table) or (database, table, partition); None if it is not a rename."""
        return None

    @property
    def tables(self) -> tuple[Name, ...]:
        """The tables of the change: the one that it touches, by its names after and before it."""
        before = ((self.rename[0][0], self.rename[0][1]),) if self.rename else ()
        return tuple(dict.fromkeys((self.touched, *before))) if self.touched else ()

    @property
    def databases(self) -> frozenset[str]:
        """The databases of the change."""
        db = self.touched_db
        return frozenset(name for name, _ in self.tables) | ({db} if db is not None else frozenset())

    @property
    def partition_names(self) -> tuple[str, ...]:
        """The partitions that it creates, changes or drops, by escaped name; both names of a renamed one."""
        return ()

    @property
    def written_partitions(self) -> tuple[str, ...]:
        """The names of partitions that the change contains as text, not built from values."""
        return self.partition_names

    @property
    def objects(self) -> tuple[Database | Table | Partition | Function, ...]:
        """The complete objects in the change, as they are afterwards."""
        return ()

    @property
    def size(self) -> int:
        """The number of objects in the change: a batch of partitions weighs more than a table."""
        return 1

    @property
    def creates(self) -> Database | Table | None:
        """The database or table that the change creates."""
        return None

    @property
    def drops(self) -> tuple[str, ...]:
        """The name of the database or table that the change drops, (database,) or (database, table); () if none."""
        kind = self.__struct_config__.tag
        if kind == "drop_database":
            return (self.touched_db or "",)
        return self.touched or () if kind == "drop_table" else ()

    @property
    def dropped_partitions(self) -> tuple[str, ...]:
        """The partitions that the change drops, by escaped name."""
        return self.partition_names if self.__struct_config__.tag == "drop_partitions" else ()

    @property
    def added_partitions(self) -> tuple[str, ...]:
        """The partitions that exist from the change on, and begin without files, by escaped name."""
        return self.partition_names if getattr(self, "replace", False) else ()

    @property
    def altered_database(self) -> Database | None:
        """A database that existed before, with its properties from here on."""
        return None

    @property
    def moment(self) -> str:
        """The state of the table in the terms of its format, as far as the change itself has it."""
        return ""

    @property
    def brings_files(self) -> bool:
        """True if the record may have file entries of the table itself."""
        return self.__struct_config__.tag in ("create_table", "alter_table", "change_files")

    @property
    def is_marker(self) -> bool:
        """True if the change only records up to which event the log was read."""
        return False

    @property
    def unread(self) -> str | None:
        """The type of an event that this release cannot parse; None for all others."""
        return None

    @property
    def lost(self) -> range:
        """The ids of events that were lost before they were read."""
        return range(0)

    @property
    def is_repaired(self) -> bool:
        """False if events were lost and the databases were not compared since."""
        return True

    @property
    def object(self) -> str:
        """The object of the change for display, by its name before."""
        return ".".join(self.touched) if self.touched else self.touched_db or ""

    @property
    def detail(self) -> str:
        """A short description for display."""
        return ""


class OfDatabase(Facts, frozen=True, omit_defaults=True):
    """A database as it is from here on."""

    database: Database

    @property
    def objects(self) -> tuple[Database]:
        return (self.database,)

    @property
    def touched_db(self) -> str:
        return self.database.name

    @property
    def detail(self) -> str:
        return self.database.location or ""


class OfTable(Facts, frozen=True, omit_defaults=True):
    """A change of one table, which is not renamed."""

    db: str
    table: str

    @property
    def touched(self) -> Name:
        return self.db, self.table


# ---- grants ----------------------------------------------------------------------------------------------------------


class SetGrants(Facts, frozen=True, omit_defaults=True, tag_field="kind", tag="set_grants"):
    """The grants of objects are these from here on, by partition: "" for the table with its columns, or for the
    database, if `table` is empty. A scan finds them, as no event announces grants. `first`: the first reading of an
    object that was captured without grants before: a target's own grants on it remain."""

    db: str
    grants: dict[str, tuple[Grant, ...]]
    table: str = ""
    first: bool = False

    @property
    def touched(self) -> Name | None:
        return (self.db, self.table) if self.table else None

    @property
    def touched_db(self) -> str:
        return self.db

    @property
    def written_partitions(self) -> tuple[str, ...]:
        return tuple(name for name in self.grants if name)

    @property
    def detail(self) -> str:
        some = [each for grants in self.grants.values() for each in grants]
        return "; ".join(map(str, some[:2])) + (f" and {len(some) - 2} more" if len(some) > 2 else "") or "no grants"


class SetRoles(Facts, frozen=True, omit_defaults=True, tag_field="kind", tag="set_roles"):
    """The roles to which a database's objects are granted, and their members, are these from here on."""

    db: str
    roles: tuple[RoleMembers, ...] = ()

    @property
    def touched_db(self) -> str:
        return self.db

    @property
    def detail(self) -> str:
        return "; ".join(f"{each.name}: {', '.join(map(str, each.members)) or 'nothing'}" for each in self.roles)


# ---- write ids -------------------------------------------------------------------------------------------------------


class Written(Value, frozen=True, omit_defaults=True):
    """A write id of a table, and the source's transaction that has it. `commit`: the id of the event of its end; 0 if
    it is open, or if that is unknown."""

    id: int
    transaction: int
    commit: int = 0


class SetWriteIds(OfTable, frozen=True, omit_defaults=True, tag_field="kind", tag="set_write_ids"):
    """The write ids of a transactional table are these from here on: a capture reads those of all tables at one moment,
    before it lists their files. `written`: of all open ids, and of those that ended since the last record, as far as
    events named their transactions."""

    ids: WriteIds
    written: tuple[Written, ...] = ()

    @property
    def moment(self) -> str:
        """The state of the table in the terms of its format."""
        ids = self.ids
        return f"write ids to {ids.high}, {len(ids.open)} open, {len(ids.aborted)} aborted"

    def at(self, db: str, table: str) -> SetWriteIds:
        """Returns the ids for a complete dump, under the table's present name: only open transactions matter there."""
        written = tuple(each for each in self.written if each.id in self.ids.open)
        return SetWriteIds(db=db, table=table, ids=self.ids, written=written)


Unannounced = SetGrants | SetRoles | SetWriteIds
"""Changes that no event tells of."""


# ---- renames ---------------------------------------------------------------------------------------------------------
# Renames: map the name of an object at one position to its later name.


@dataclass(frozen=True)
class Rename:
    """A rename of a table (db, name) or a partition (db, table, name), effective from a position on."""

    position: int
    before: tuple[str, ...]
    after: tuple[str, ...]

    def follow(self, key: tuple[str, str, str], position: int) -> tuple[str, str, str] | None:
        """Returns the key (db, table, partition) that an object seen at a position has after this rename. Returns None
        if another object took its name, because the object no longer existed then."""
        if self.position <= position:
            return key
        if key[: len(self.before)] == self.before:
            db, table, partition = (*self.after, *key[len(self.before) :])
            return db, table, partition
        return None if key[: len(self.after)] == self.after else key

    @classmethod
    def of(cls, position: int, change: Facts) -> Rename | None:
        return cls(position, *change.rename) if change.rename else None


def followed(key: tuple[str, str, str], position: int, renames: Iterable[Rename]) -> tuple[str, str, str] | None:
    """Returns the later key of an object seen at a position, after all renames in order; None if it was replaced."""
    now: tuple[str, str, str] | None = key
    for rename in renames:
        now = rename.follow(now, position) if now else None
    return now
