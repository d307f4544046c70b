"""Hive tables as datasets: tables selected by white and black lists, and their partitions as versions. Reads only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

from cmroot.store.place import is_local, located
from cmroot.store.spelling import split_authority
from replicator.core.grouping import batched
from replicator.core.model import DEFAULT_PARTITION, Table, partition_name, partition_spec
from replicator.core.named_files import ON_NODES, is_on_nodes
from replicator.core.roles import is_shadow
from replicator.errors import ConfigError, Error, ObjectNotFound
from replicator.lifecycle.retention.config_store import Settings
from replicator.lifecycle.retention.dataset_versions import TIME, Listed, Pair, Version, checked_pattern, doubts
from replicator.lifecycle.retention.job_configuration import VERSIONS, Unreadable
from replicator.metastore.client import MetastoreReader, warehouse_of

_TABLES = 500  # fetched at once


@dataclass(frozen=True)
class Names:
    """White and black lists, as `db.table1|table2,db2`: `*` is a wild card, everything else a regular expression for
    complete names. The black list has precedence; an empty white list accepts everything."""

    white: tuple[tuple[str, tuple[str, ...]], ...]
    black: tuple[tuple[str, tuple[str, ...]], ...]
    ignore_case: bool = True

    def accepts(self, db: str, table: str) -> bool:
        if self._any(self.black, db, table):
            return False
        return not self.white or self._any(self.white, db, table)

    def may_have(self, db: str) -> bool:
        """Returns True if a database may contain an accepted table."""
        if any(self._is(pattern, db) and "*" in tables for pattern, tables in self.black):
            return False
        return not self.white or any(self._is(pattern, db) for pattern, _ in self.white)

    def _any(self, entries: tuple[tuple[str, tuple[str, ...]], ...], db: str, table: str) -> bool:
        return any(self._is(one, db) and any(self._is(each, table) for each in tables) for one, tables in entries)

    def _is(self, pattern: str, name: str) -> bool:
        regex = re.compile(pattern.replace("*", ".*"), re.IGNORECASE if self.ignore_case else 0)
        return regex.fullmatch(name) is not None


def parse_names(white: str, black: str, *, ignore_case: bool = True, where: str = "") -> Names:
    """Parses both lists. Raises ConfigError for an entry with two dots, or an invalid regular expression."""
    return Names(_entries(white, where), _entries(black, where), ignore_case)


def _entries(text: str, where: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        db, dot, tables = each.partition(".")
        if "." in tables.replace(".*", "") or not db:
            raise ConfigError(f"{where}{each!r} is not db.table1|table2", hint="write one dot; * matches any name")
        names = tuple(name for name in tables.split("|") if name) if dot else ("*",)
        for pattern in (db, *names):
            try:
                re.compile(pattern.replace("*", ".*"))
            except re.error as error:
                raise ConfigError(
                    f"{where}{pattern!r} is not a valid pattern: {error}", hint="* matches any name"
                ) from error
        found.append((db, names or ("*",)))
    return tuple(found)


def names_of(job: Settings) -> Names:
    """Returns the tables that a job's `hive.dataset.*` keys select. Raises ConfigError if they select none, or name a
    class."""
    for key in ("hive.dataset.tableFilter", "org.apache.gobblin.config.management.datasetUriBuilderClass"):
        if job.find(key) is not None:
            raise job.wrong(key, job.find(key), "names a class, which cannot be run here: use white and black lists")
    ignore = job.truth("hive.dataset.whitelistBlacklist.ignoreCase", "whitelistBlacklist.ignoreCase", default=True)
    db = job.text("hive.dataset.database")
    if db is not None:
        pattern = job.text("hive.dataset.table.pattern") or "*"
        return parse_names(f"{db}.{pattern}", "", ignore_case=ignore, where="hive.dataset.database: ")
    white, black = (",".join(job.texts(f"hive.dataset.{kind}") or []) for kind in ("whitelist", "blacklist"))
    if not white and not black:
        raise job.missing("hive.dataset.whitelist")
    return parse_names(white, black, ignore_case=ignore, where="hive.dataset: ")


def tables_of(metastore: MetastoreReader, names: Names, folder: str | None) -> Iterator[Table]:
    """Yields the accepted tables, in batches. folder: `tableFolderAllowlistFilter`, for complete locations or for their
    paths without scheme and authority."""
    for db in filter(names.may_have, metastore.database_names()):
        with suppress(ObjectNotFound):  # dropped concurrently
            if is_shadow(metastore.database(db)):
                continue
            accepted = [name for name in metastore.table_names(db) if names.accepts(db, name)]
            for some in batched(accepted, _TABLES):
                for table in metastore.tables(db, some):
                    if folder is None or any(re.fullmatch(folder, each) for each in _written(table.location or "")):
                        yield table


def _written(location: str) -> tuple[str, str]:
    """Returns a location as the metastore has it, and its path."""
    return location, split_authority(location)[1] if location else ""


PartitionFinder = Callable[[MetastoreReader, Table], Listed]


def partition_finder(pair: Pair) -> PartitionFinder:
    """Returns a finder by a date in a partition's value (the default) or by directory time. Raises ConfigError."""
    kind = pair.class_of("version.finder.class", VERSIONS, "version finder") or "hive_date"
    if kind == "hive_modification":
        return _by_modification
    if kind != "hive_date":
        raise pair.own.wrong("version.finder.class", pair.own.find("version.finder.class"), "does not find partitions")
    key = (pair.text("hive.partition.key.name") or "datepartition").lower()
    pattern = pair.text("hive.partition.value.datetime.pattern") or "yyyy-MM-dd-HH"
    zone = pair.text("hive.partition.value.datetime.timezone")
    dates = checked_pattern(pair, "hive.partition.value.datetime.pattern", pattern, zone)

    def find(metastore: MetastoreReader, table: Table) -> Listed:
        listed = Listed(TIME, doubts=doubts(dates, zone is not None))
        if key not in [column.name.lower() for column in table.partition_keys]:
            raise Error(f"{table.db}.{table.name} has no partition key {key}", hint="set hive.partition.key.name")
        for name in metastore.partition_names(table.db, table.name):
            keys, values = partition_spec(name)
            value = dict(zip((each.lower() for each in keys), values, strict=True))[key]
            try:
                if value == DEFAULT_PARTITION:
                    raise Unreadable(f"{name} has no value")
                listed.versions.append(Version("", name, dates.read_start(value), partition=name))
            except Unreadable as error:
                listed.ignore(str(error))
        return listed

    return find


def _by_modification(metastore: MetastoreReader, table: Table) -> Listed:
    listed, homes = Listed(TIME), cache(lambda: (metastore.database(table.db).location, warehouse_of(metastore)))
    for batch in metastore.all_partitions(table.db, table.name):
        for partition in batch:
            name = partition_name(table.partition_keys, partition.values)
            if partition.location and is_local(partition.location) and is_on_nodes(partition.location, *homes()):
                listed.ignore(f"{name}: {ON_NODES}")
                continue
            found = located(partition.location).child() if partition.location else None
            if found is None or found.mtime is None:
                listed.ignore(f"{name} has no directory with a modification time")
                continue
            moment = datetime.fromtimestamp(found.mtime, UTC)
            listed.versions.append(Version(partition.location or "", name, moment, partition=name, mtime=found.mtime))
    return listed
