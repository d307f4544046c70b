"""Rules of servers, as data: the changes that they make by themselves; and the SQL of views that they accept. Pure.

A replica on another version of Hive is never equal field by field. `as_served` turns the wanted object into what the
target's server makes of it, by rules (docs/compatibility.md); any remaining deviation is a difference.
In a view, a parser (sqlglot) finds the names of databases; all other text is unchanged, byte for byte.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from cmroot.errors import FormatError
from replicator.core.formats import format_of, is_transactional
from replicator.core.formats.iceberg_table import CATALOGS
from replicator.core.model import (
    CHECK,
    EXTERNAL,
    HIVE,
    MANAGED,
    MATERIALIZED_VIEW,
    ColumnStatistic,
    Constraint,
    Database,
    Partition,
    Statistics,
    Table,
    Value,
)
from replicator.core.not_replicated import REMOTE, NotReplicated
from replicator.metastore.fields import ids
from replicator.metastore.objects import plain_serde
from replicator.metastore.transactions import STRICT

# ---- text of views ---------------------------------------------------------------------------------------------------


_DIALECTS = ("spark", "hive")
NO_VIEW = "a view in SQL that is not understood"  # prefix of the reason why a target does not have one


def rename_databases(text: str | None, databases: Mapping[str, str]) -> str | None:
    """Replaces renamed databases (source name -> target name) wherever they qualify a table, a view or a function.
    Raises FormatError for a text that may name one of them and is not SQL that can be parsed."""
    renamed = {before.lower(): after for before, after in databases.items() if before.lower() != after.lower()}
    if not text or not any(re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE) for name in renamed):
        return text
    parts, end = [], 0
    for start, stop in _places(text, frozenset(renamed)):
        name = text[start:stop]
        after = renamed[_plain(name)]
        parts += [text[end:start], f"`{after}`" if name.startswith("`") else after]
        end = stop
    return "".join([*parts, text[end:]])


def not_understood(databases: Mapping[str, str], *texts: str | None) -> str:
    """Returns what a text may name for which `rename_databases` raises FormatError; "" if it does not raise."""
    try:
        for text in texts:
            rename_databases(text, databases)
    except FormatError as error:
        return error.message
    return ""


def why_no_view(table: Table, databases: Mapping[str, str]) -> str:
    """Returns why a target with other database names does not get a view; "" if it does."""
    why = not_understood(databases, table.view_original, table.view_expanded)
    why = why or format_of(table).view_problem(table.view_expanded or "", databases)
    return f"{NO_VIEW}, and {why}, which has another name on the target: create it there by hand" if why else ""


@lru_cache(1024)
def _places(text: str, names: frozenset[str]) -> list[tuple[int, int]]:
    """Returns begin and end of each name of a database, in the order of the text."""
    import sqlglot  # the import takes a tenth of a second, and views of renamed databases are rare

    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # the caller reports what it cannot parse
    for dialect in _DIALECTS:
        try:
            trees = sqlglot.parse(text, read=dialect)
        except (sqlglot.errors.SqlglotError, RecursionError):
            continue
        found = [each for tree in trees for each in _databases(tree, sqlglot.exp) if each.name.lower() in names]
        places = sorted({(each.meta["start"], each.meta["end"] + 1) for each in found})
        understood = all(tree is None or not tree.find(sqlglot.exp.Command) for tree in trees)
        if understood and all(_plain(text[start:end]) in names for start, end in places):
            return places
    raise FormatError(f"may name {', '.join(sorted(names))}")


def _databases(tree: Any, exp: Any) -> Iterator[Any]:
    """Yields the identifiers at the begin of dotted names that may be those of databases."""
    for node in tree.walk() if tree is not None else ():
        if isinstance(node, exp.Table):
            names = _without_catalog(node.parts)
        elif isinstance(node, exp.Column):
            names = _without_catalog(node.parts)
            names = names if _is_of_relation(node, names, exp) else []
        elif isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
            names = _without_catalog(list(node.flatten()))
        else:
            continue
        if len(names) > 1 and isinstance(names[0], exp.Identifier) and not node.find_ancestor(exp.Hint):
            yield names[0]


def _is_of_relation(column: Any, names: list[Any], exp: Any) -> bool:
    """Returns True if a, b of a.b.c are a database and its table in an enclosing query, not an alias and its field."""
    query = column.parent_select
    while query is not None and len(names) > 2:
        for table in query.find_all(exp.Table):
            written = [each.name.lower() for each in _without_catalog(table.parts)]
            if (
                table.parent_select is query
                and not table.alias
                and written == [each.name.lower() for each in names[:2]]
            ):
                return True
        query = query.parent_select
    return False


def _without_catalog(parts: list[Any]) -> list[Any]:
    return parts[1:] if len(parts) > 2 and parts[0].name.lower() in CATALOGS else parts


def _plain(name: str) -> str:
    return name.strip("`").lower()


# ---- view order ------------------------------------------------------------------------------------------------------
# The order of tables and views: a materialized view is created after the tables it reads, and dropped before. Pure.


T = TypeVar("T")

CREATION = ids("Table", "creationMetadata")


def in_waves(things: Iterable[tuple[Table, T]]) -> list[list[T]]:
    """Orders items by their tables: tables, then views, then materialized views, in as many waves as they read each
    other. Those that read each other in a cycle come last, together: the server accepts or refuses them."""
    tables, views, waiting = list[T](), list[T](), dict[tuple[str, str], tuple[frozenset[tuple[str, str]], T]]()
    for table, thing in things:
        if read := read_by(table):
            waiting[table.db, table.name] = read, thing
        else:
            (views if table.has_query else tables).append(thing)
    waves = [tables, views]
    while waiting:
        ready = [name for name, (read, _) in waiting.items() if not (read - {name}) & waiting.keys()]
        waves.append([waiting.pop(name)[1] for name in ready or list(waiting)])
    return [wave for wave in waves if wave]


def read_by(table: Table) -> frozenset[tuple[str, str]]:
    """Returns the tables and views that a materialized view reads; an empty set for any other table."""
    found = set()
    for key in table.extra.keys() & CREATION:
        fields = table.extra[key]["rec"]
        for name in fields.get("4", {"set": ("str", 0)})["set"][2:]:
            db, _, read = name.rpartition(".")
            found.add((db.rpartition(".")[2], read))
    return frozenset(found)


# ---- replica constraints ---------------------------------------------------------------------------------------------
# Constraints of a replica: those of the source as required on the target, and those that it cannot have. Pure.
#
# A table of the target has a note of missing constraints, so that loads retry them and comparisons recognise them.


NO_CONSTRAINT = "without constraints"  # prefix of the reason why a table differs from the source's
LACKING = "replicator.constraints"  # property of a table: the constraints that it should have, but does not
ROOM = 3500  # characters of the note: metastores store 4000 of a property


class Lack(Value, frozen=True, omit_defaults=True):
    """A constraint that the target should have, and the reason why it is missing."""

    constraint: Constraint
    reason: str

    def __str__(self) -> str:
        return f"{self.constraint}: {self.reason}"


def replica_constraints(
    constraints: Iterable[Constraint], kinds: frozenset[str], replica: Callable[[str], str | None]
) -> tuple[list[Constraint], list[Lack]]:
    """Returns the constraints that the target must have of a source's table, and those that it cannot. `kinds`: the
    target's; `replica`: a source database's name on the target, None for one that is not replicated with it."""
    wanted, lacking = [], []
    for each in constraints:
        db = replica(each.parent[0]) if each.parent else None
        if not each.columns and each.kind != CHECK:
            lacking.append(Lack(each, "the source's metastore has lost its columns: drop it and add it again there"))
        elif each.kind not in kinds:
            lacking.append(Lack(each, f"the target's metastore has no {each.kind} constraints"))
        elif each.parent and db is None:
            lacking.append(Lack(each, f"database {each.parent[0]} is not replicated with it"))
        else:
            wanted.append(msgspec.structs.replace(each, parent=each.parent and (db or "", each.parent[1])))
    return wanted, lacking


def not_replicated(table: str, lacking: Sequence[Lack]) -> NotReplicated:
    """Returns the entry about missing constraints of a table. `table`: by its name at the source."""
    return NotReplicated(table, f"{NO_CONSTRAINT} {'; '.join(map(str, lacking))}")


def noted_lack(parameters: Mapping[str, str]) -> list[Lack]:
    """Returns the missing constraints noted on a table of the target; an unreadable note counts as empty."""
    try:
        return msgspec.json.decode(parameters.get(LACKING, "[]"), type=list[Lack])
    except msgspec.DecodeError:
        return []


def with_lack(table: Table, lacking: Sequence[Lack]) -> Table:
    """Returns the table with this note, or without any. Constraints beyond its maximum size are not noted: they are
    retried only by a load that brings the table's constraints again."""
    parameters = {key: value for key, value in table.parameters.items() if key != LACKING}
    while lacking and len(text := msgspec.json.encode(lacking).decode()) > ROOM:
        lacking = lacking[: len(lacking) // 2]
    if lacking:
        parameters[LACKING] = text
    return msgspec.structs.replace(table, parameters=parameters)


# ---- server rules ----------------------------------------------------------------------------------------------------


V = TypeVar("V", bound=Value)
TRANSLATED = "TRANSLATED_TO_EXTERNAL"
ACCURATE = "COLUMN_STATS_ACCURATE"
NO_STATISTICS = "this metastore has no column statistics"  # prefix of the reason why a table has fewer
NOT_STORED = "this metastore stores no "  # prefix of the reason why an object is missing a field of its own
NO_GRANTS = "without its grants: "  # prefix of the reason why access to an object differs
_DETAILS = f"{NOT_STORED}description, serializer, deserializer or type of serdes"
STANDING = (NO_CONSTRAINT, NO_STATISTICS, NOT_STORED, NO_GRANTS)
"""Prefixes of reasons that remain valid until a dump brings what an object is missing."""


@dataclass(frozen=True)
class Rule:
    """A change, `what`, that `servers`, each by its version, make to objects of a class in `of`, because of `reason`.
    served: (wanted object of the target, existing one) -> the wanted one as the server returns it."""

    what: str
    servers: tuple[str, ...]
    reason: str
    of: tuple[type[Value], ...]
    served: Callable[[Any, Any], Any]


def _owner_of_database(wanted: Database, found: Database) -> Database:
    if wanted.owner or not found.owner:
        return wanted
    return msgspec.structs.replace(wanted, owner=found.owner)


def _owner_type(wanted: Any, found: Any) -> Any:
    types = {wanted.owner_type, found.owner_type}
    return msgspec.structs.replace(wanted, owner_type=found.owner_type) if types == {None, "USER"} else wanted


def _no_owner_type(wanted: Table, found: Table) -> Table:
    if wanted.owner_type in (None, "USER") or found.owner_type is not None:
        return wanted
    return msgspec.structs.replace(wanted, owner_type=None)


def _no_managed_location(wanted: Database, found: Database) -> Database:
    if found.managed_location or not found.extra.keys().isdisjoint(_SINCE_4):
        return wanted
    return msgspec.structs.replace(wanted, managed_location=None)


def _no_creation(wanted: Table, found: Table) -> Table:
    if not wanted.extra.keys() & CREATION or found.extra.keys() & CREATION:
        return wanted
    kept = {key: value for key, value in wanted.extra.items() if key not in CREATION}
    return msgspec.structs.replace(wanted, extra=kept)


def _no_details(wanted: Table, found: Table) -> Table:
    stored = plain_serde(found.storage) != found.storage
    return wanted if stored else msgspec.structs.replace(wanted, storage=plain_serde(wanted.storage))


def _no_other_engines(wanted: Statistics, found: Statistics) -> Statistics:
    """Drops statistics of engines that the server does not have. found: with the engines that it has."""
    kept = {engine: columns for engine, columns in wanted.others.items() if engine in found.others}
    return msgspec.structs.replace(wanted, others=kept)


_SINCE_4 = ids("Database", "createTime", "type")


def _no_connector(wanted: Database, found: Database) -> Database:
    return wanted if found.connector else msgspec.structs.replace(wanted, connector=None)


def _translated(wanted: Table, found: Table) -> Table:
    if wanted.kind != MANAGED or found.kind != EXTERNAL or found.parameters.get(TRANSLATED) != "TRUE":
        return wanted
    added = {key: found.parameters[key] for key in (TRANSLATED, "EXTERNAL") if key in found.parameters}
    purge = {"external.table.purge": "TRUE"}
    return msgspec.structs.replace(wanted, kind=EXTERNAL, parameters=purge | wanted.parameters | added)


def _default(key: str, value: str) -> Callable[[Any, Any], Any]:
    """Returns a rule for a property that one side has with this value, and the other does not have."""

    def served(wanted: Any, found: Any) -> Any:
        here, there = wanted.parameters.get(key), found.parameters.get(key)
        if {here, there} != {None, value}:
            return wanted
        rest = {name: each for name, each in wanted.parameters.items() if name != key}
        return msgspec.structs.replace(wanted, parameters=rest | ({key: there} if there is not None else {}))

    return served


def _basic_statistics(wanted: Any, found: Any) -> Any:
    """Accepts the mark if the server added it; one that is missing on the target is a difference."""
    here, there = wanted.parameters.get(ACCURATE), found.parameters.get(ACCURATE)
    columns = _columns_accurate(here)
    if not columns or "BASIC_STATS" in (here or "") or columns != _columns_accurate(there):
        return wanted
    return msgspec.structs.replace(wanted, parameters={**wanted.parameters, ACCURATE: there})


def _counted_view(wanted: Table, found: Table) -> Table:
    """Accepts only a count of no files: a count of some would be a difference."""
    if wanted.kind != MATERIALIZED_VIEW:
        return wanted
    counted = {key: "0" for key in ("numFiles", "totalSize") if found.parameters.get(key) == "0"}
    return msgspec.structs.replace(wanted, parameters=counted | wanted.parameters)


def _columns_accurate(text: str | None) -> Any:
    """Returns the column part of the property; the property's own text if it cannot be parsed."""
    try:
        return (json.loads(text or "{}")).get("COLUMN_STATS") or {}
    except (ValueError, AttributeError):
        return text


def _no_format(wanted: Table, found: Table) -> Table:
    stored = found.storage is None or _FORMAT in found.storage.serde.parameters
    if stored or not is_transactional(wanted) or wanted.storage is None:
        return wanted
    serde = wanted.storage.serde
    kept = {key: value for key, value in serde.parameters.items() if (key, value) != (_FORMAT, "1")}
    storage = msgspec.structs.replace(wanted.storage, serde=msgspec.structs.replace(serde, parameters=kept))
    return msgspec.structs.replace(wanted, storage=storage)


_FORMAT, _FILES = "serialization.format", "`numFilesErasureCoded=0`"
_HIVE_4, _STORED = ("4.0", "4.2"), (Table, Partition)
RULES: tuple[Rule, ...] = (
    Rule(
        "owner of a database without one: the server's user",
        ("4.0", "4.2"),
        "a database of Hive 4 always has an owner",
        (Database,),
        _owner_of_database,
    ),
    Rule(
        "owner type: none, or USER",
        ("3.1", "4.0", "4.2"),
        "Hive 2.3 stores no owner type of tables; newer ones return USER where none was given",
        (Database, Table),
        _owner_type,
    ),
    Rule(
        f"a managed table becomes external, with `{TRANSLATED}` and `external.table.purge`",
        ("4.0", "4.2"),
        "managed tables of Hive 4 are transactional; it converts others to external, and a drop still purges them."
        f" Loads do that on a Hive 3 with `{STRICT}`",
        (Table,),
        _translated,
    ),
    Rule(_FILES, _HIVE_4, "counted in addition to the number of files", _STORED, _default("numFilesErasureCoded", "0")),
    Rule(f"`BASIC_STATS` in `{ACCURATE}`", _HIVE_4, "written with statistics of columns", _STORED, _basic_statistics),
    Rule(f"`{_FORMAT}=1` of the serde of a transactional ORC table", _HIVE_4, "not stored", (Table,), _no_format),
    Rule(
        "`numFiles=0` and `totalSize=0` of a materialized view",
        ("2.3", "3.1", "4.0", "4.2"),
        "counted by the server when one is altered, by 2.3 when one is created",
        (Table,),
        _counted_view,
    ),
)


LACKS: tuple[Rule, ...] = (
    Rule(
        "owner of a table that is a role or a group",
        ("2.3",),
        f"{NOT_STORED}owner type of tables: its owner is a user there",
        (Table,),
        _no_owner_type,
    ),
    Rule(
        "`managedLocationUri` of a database",
        ("2.3", "3.1"),
        f"{NOT_STORED}managed location of databases",
        (Database,),
        _no_managed_location,
    ),
    Rule(
        "creation metadata of a materialized view",
        ("2.3",),
        f"{NOT_STORED}creation metadata of materialized views: queries are not rewritten to read it, and"
        " rebuilds do not know its sources",
        (Table,),
        _no_creation,
    ),
    Rule("description, serializer, deserializer, type of a table's serde", ("2.3",), _DETAILS, (Table,), _no_details),
    Rule(
        f"column statistics of other engines than `{HIVE}`",
        ("2.3", "3.1"),
        f"{NO_STATISTICS} of other engines than {HIVE}, or `statistics_engines` does not name them",
        (Statistics,),
        _no_other_engines,
    ),
    Rule("REMOTE database, and its data connector", ("2.3", "3.1", "4.0", "4.2"), REMOTE, (Database,), _no_connector),
)
"""Fields that a user can set, and some servers cannot store: reported as not replicated."""


def lacking(wanted: V, found: V) -> tuple[V, list[str]]:
    """Returns the wanted object without the fields that its server cannot store, and the reason for each."""
    reasons = []
    for rule in LACKS:
        if isinstance(wanted, rule.of) and (without := rule.served(wanted, found)) != wanted:
            wanted = without
            reasons.append(rule.reason)
    return wanted, reasons


def storable(statistics: Statistics, engines: Iterable[str]) -> tuple[Statistics, list[str]]:
    """Applies `lacking` for a server that has the statistics of these engines."""
    others: dict[str, tuple[ColumnStatistic, ...]] = dict.fromkeys(engines, ())
    return lacking(statistics, Statistics(db=statistics.db, table=statistics.table, others=others))


def as_served(wanted: V, found: V) -> V:
    """Returns the wanted object as its server returns it."""
    for rule in RULES:
        if isinstance(wanted, rule.of):
            wanted = rule.served(wanted, found)
    return wanted
