"""View text: replacing database names in the SQL of a view. Pure.

Not a SQL parser: it reads tokens and knows where a relation may stand (after FROM and JOIN, after a comma between them
and the next clause), what a function call looks like, and that of three dotted names the first is a database. A
two-part name elsewhere is `alias.column` and stays, also when an alias has the name of a database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_TOKENS = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.)*" | --[^\n]* | /\*.*?\*/ | `(?:[^`]|``)+` | \w+ | . """,
    re.VERBOSE | re.DOTALL,
)
_OPENS_RELATIONS = {"from", "join"}
_ENDS_RELATIONS = {
    "select",
    "where",
    "group",
    "having",
    "order",
    "on",
    "using",
    "window",
    "union",
    "limit",
    "sort",
    "cluster",
    "distribute",
    "except",
    "intersect",
    "minus",
}
_CATALOGS = {"spark_catalog", "hive", "hive_metastore"}


def rename_databases(text: str | None, databases: Mapping[str, str]) -> str | None:
    """The text with the databases that are renamed (source name -> target name) replaced wherever they qualify a table,
    a view or a function. Literals and comments stay as they are."""
    renamed = {before.lower(): after for before, after in databases.items() if before != after}
    if not text or not renamed:
        return text
    words = _TOKENS.findall(text)
    solid = [index for index, word in enumerate(words) if not word.isspace() and not word.startswith(("--", "/*"))]
    relations = [False]  # per open parenthesis: whether a comma is followed by another relation
    expected = False  # whether a relation's name may begin here
    at = 0
    while at < len(solid):
        word = words[solid[at]].lower()
        chain = _chain(words, solid, at)
        if word in _OPENS_RELATIONS:
            relations[-1] = expected = True
        elif word in _ENDS_RELATIONS:
            relations[-1] = expected = False
        elif word == "(":
            relations.append(relations[-1] and expected)
        elif word == ")":
            relations = relations[:-1] or [False]
            expected = False
        elif word == ",":
            expected = relations[-1]
        elif chain:
            _rename(words, solid, chain, expected, renamed)
            expected = False
            at = chain[-1]
        at += 1
    return "".join(words)


def _chain(words: list[str], solid: list[int], at: int) -> list[int]:
    """Places (in `solid`) of the names of a dotted chain that begins at `at`; [] when none does."""
    if not _is_name(words[solid[at]]):
        return []
    chain = [at]
    while at + 2 < len(solid) and words[solid[at + 1]] == "." and _is_name(words[solid[at + 2]]):
        at += 2
        chain.append(at)
    return chain


def _rename(words: list[str], solid: list[int], chain: list[int], relation: bool, renamed: Mapping[str, str]) -> None:
    names = [words[solid[place]].strip("`").lower() for place in chain]
    if len(names) > 1 and names[0] in _CATALOGS:
        chain, names = chain[1:], names[1:]
    called = chain[-1] + 1 < len(solid) and words[solid[chain[-1] + 1]] == "("
    if names[0] in renamed and (len(names) > 2 or (len(names) == 2 and (relation or called))):
        index = solid[chain[0]]
        after = renamed[names[0]]
        words[index] = f"`{after}`" if words[index].startswith("`") else after


def _is_name(word: str) -> bool:
    return word.startswith("`") or (word[0].isalpha() or word[0] == "_")
