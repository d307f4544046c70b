"""View text: replacing database names in the SQL of a view. Pure.

A parser (sqlglot) finds the names of databases and their offsets; all other text is unchanged, byte for byte. A
database qualifies a relation, a function, or a column of a relation that has no alias. Aliases, common table
expressions and columns with the name of a database are not database names, and remain unchanged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from cmroot.errors import FormatError
from replicator.core.model import Table
from replicator.metastore.fields import ids

_DIALECTS = ("spark", "hive")
NO_VIEW = "a view in SQL that is not understood"  # prefix of the reason why a target does not have one
_CATALOGS = {"spark_catalog", "hive", "hive_metastore"}


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
    if not (why := not_understood(databases, table.view_original, table.view_expanded)):
        return ""
    return f"{NO_VIEW}, and {why}, which has another name on the target: create it there by hand"


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
    return parts[1:] if len(parts) > 2 and parts[0].name.lower() in _CATALOGS else parts


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
        if read := _read_by(table):
            waiting[table.db, table.name] = read, thing
        else:
            (views if table.is_view else tables).append(thing)
    waves = [tables, views]
    while waiting:
        ready = [name for name, (read, _) in waiting.items() if not (read - {name}) & waiting.keys()]
        waves.append([waiting.pop(name)[1] for name in ready or list(waiting)])
    return [wave for wave in waves if wave]


def _read_by(table: Table) -> frozenset[tuple[str, str]]:
    """Returns the tables and views that a materialized view reads; an empty set for any other table."""
    found = set()
    for key in table.extra.keys() & CREATION:
        fields = table.extra[key]["rec"]
        for name in fields.get("4", {"set": ("str", 0)})["set"][2:]:
            db, _, read = name.rpartition(".")
            found.add((db.rpartition(".")[2], read))
    return frozenset(found)
