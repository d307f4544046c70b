"""Match rules of ids: by which spellings a value in a column equals an id; and `ids` of a descriptor. Pure.

`exact` compares values of the column's type. Every other rule compares texts, each brought into one form by an
expression of Spark: the search, the proof of the new files and the certificate apply it to the ids and to the values
that they read themselves. Rewriting removes the rows with the values that the search has found, as they are stored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from replicator.core.text import scalar_type

_BLANK = r"[\s\x1c-\x1f\x85\p{Z}]+"
_DIGITS = (
    (r"^\+(?=[0-9]+(\.[0-9]*)?\z)", ""),  # +7
    (r"^(-?[0-9]+)\.0*\z", "$1"),  # 7. and 7.00
    (r"^(-?[0-9]+\.[0-9]*[1-9])0+\z", "$1"),  # 7.50
    (r"^(-?)0+(?=[0-9]+(\.[0-9]+)?\z)", "$1"),  # 007
    (r"^-0\z", "0"),
)
NEAR = ("trim", "nfc", "casefold", "numeric")
"""The rules by which an id that was found nowhere has a near miss: all of them together."""

_NUMBER = re.compile(r"tinyint|smallint|int|integer|bigint|float|double|real|decimal.*")
_TEXT = re.compile(r"string|(char|varchar).*")


def form_of(value: str, type_: str, rules: Sequence[str]) -> str:
    """Returns SQL for the text by which rules compare a value. value: SQL of a text or number; type_: its type."""
    text = _as_text(value, type_)
    if "trim" in rules:
        text = _replaced(text, rf"^{_BLANK}|{_BLANK}\z", "")
    if "nfc" in rules:
        text = _composed(text)
    if "casefold" in rules:
        text = f"try_reflect('com.ibm.icu.lang.UCharacter', 'foldCase', {text}, true)"
        text = _composed(text) if "nfc" in rules else text
    if "numeric" in rules:
        for pattern, by in _DIGITS:
            text = _replaced(text, pattern, by)
    return text


def _composed(text: str) -> str:
    return f"try_reflect('com.ibm.icu.text.Normalizer', 'compose', {text}, false)"


def _replaced(text: str, pattern: str, by: str) -> str:
    return f"regexp_replace({text}, r'{pattern}', '{by}')"


def _as_text(value: str, type_: str) -> str:
    if type_ not in ("float", "double"):
        return f"CAST({value} AS STRING)"
    whole = f"try_cast({value} AS BIGINT)"  # of 10000000.0, which Spark writes as 1.0E7
    return f"CASE WHEN {value} = {whole} THEN CAST({whole} AS STRING) ELSE CAST({value} AS STRING) END"


def form_of_ids(ids_type: str, type_: str, rules: Sequence[str]) -> str:
    """Returns SQL for the text of an `id`. Ids that the column's type represents are spelled as values of it, so that
    every match of `exact` is one of the rules, too."""
    own = form_of("id", ids_type, rules)
    if type_ == ids_type or not _NUMBER.fullmatch(type_):
        return own
    key = f"try_cast(id AS {scalar_type(type_)})"
    same = f"try_cast({key} AS {scalar_type(ids_type)}) <=> id"
    return f"CASE WHEN {same} THEN {form_of(key, type_, rules)} ELSE {own} END"


def is_matched(type_: str) -> bool:
    """Returns True for a type whose values rules can compare: a text or a number."""
    return bool(_NUMBER.fullmatch(type_) or _TEXT.fullmatch(type_))


def match_rules(descriptor: str) -> tuple[str, ...]:
    """Parses `ids.match` of a descriptor; () for `exact`, the default. Raises ValueError."""
    match msgspec.json.decode(descriptor):
        case {"ids": {"match": value}}:
            return _rules(value)
    return ()


def _rules(value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    known = ("exact", *NEAR)
    if not isinstance(names, list) or not names or not all(name in known for name in names):
        raise ValueError(f"ids.match is {str(value)[:80]!r}, and not one or several of {', '.join(known)}")
    if "exact" in names:
        if len(names) > 1:
            raise ValueError("ids.match combines exact with another rule")
        return ()
    return tuple(rule for rule in NEAR if rule in names)


def former_columns(descriptor: str) -> tuple[str, ...] | None:
    """Returns the earlier names of the ids' column, `{"ids": {"former": ["cust"]}}`. Raises ValueError."""
    value = msgspec.json.decode(descriptor)
    match value:
        case {"ids": {"former": str(name)}}:
            names = [name]
        case {"ids": {"former": list(names)}} if all(isinstance(name, str) and name for name in names):
            pass
        case {"ids": {"former": other}}:
            raise ValueError(f"ids.former is not a list of columns: {msgspec.json.encode(other).decode()[:80]}")
        case _:
            return None
    return tuple(dict.fromkeys(name.lower() for name in names))
