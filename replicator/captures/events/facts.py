"""Facts that changes tell of themselves, so that who counts, chooses or shows them needs not know their kinds."""

from __future__ import annotations

from replicator.core.model import Database, Function, Partition, Table, Value

Name = tuple[str, str]
"""(database, table)."""


class Facts(Value, frozen=True, omit_defaults=True):
    """Those of a change that is about nothing; each kind overrides what it has."""

    @property
    def touched(self) -> Name | None:
        """The table it is about, by the name it has afterwards; None for databases, functions and markers."""
        return None

    @property
    def touched_db(self) -> str | None:
        """The database it is about, by the name it has afterwards; None for markers."""
        return self.touched[0] if self.touched else None

    @property
    def rename(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """The name before and after, as (database, table) or (database, table, partition); None: nothing is renamed."""
        return None

    @property
    def tables(self) -> tuple[Name, ...]:
        """The tables it is about: the one that it touches, and the one before a rename."""
        before = ((self.rename[0][0], self.rename[0][1]),) if self.rename else ()
        return tuple(dict.fromkeys((self.touched, *before))) if self.touched else ()

    @property
    def databases(self) -> frozenset[str]:
        """The databases it is about."""
        db = self.touched_db
        return frozenset(name for name, _ in self.tables) | ({db} if db is not None else frozenset())

    @property
    def partition_names(self) -> tuple[str, ...]:
        """Partitions that begin, change or end with it, by escaped name; of a rename both names."""
        return ()

    @property
    def written_partitions(self) -> tuple[str, ...]:
        """Names of partitions that are in it as text, not made from values."""
        return self.partition_names

    @property
    def objects(self) -> tuple[Database | Table | Partition | Function, ...]:
        """Objects that are in it whole, as they are afterwards."""
        return ()

    @property
    def size(self) -> int:
        """How many objects it tells of: a batch of partitions weighs more than a table."""
        return 1

    @property
    def creates(self) -> Database | Table | None:
        """A database or table that begins with it."""
        return None

    @property
    def altered_database(self) -> Database | None:
        """A database that was there before, with the properties it has from here on."""
        return None

    @property
    def is_marker(self) -> bool:
        """Whether it says only how far events were read."""
        return False

    @property
    def unread(self) -> str | None:
        """The type of an event that this release cannot read; None for all others."""
        return None

    @property
    def lost(self) -> range:
        """Ids of events that nobody has read."""
        return range(0)

    @property
    def is_repaired(self) -> bool:
        """Whether everything was compared since, where events were lost."""
        return True

    @property
    def object(self) -> str:
        """For people: what it is about, by the name it has before."""
        return ".".join(self.touched) if self.touched else self.touched_db or ""

    @property
    def detail(self) -> str:
        """For people: a few words on it."""
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
    """A change of one table, which keeps its name."""

    db: str
    table: str

    @property
    def touched(self) -> Name:
        return self.db, self.table
