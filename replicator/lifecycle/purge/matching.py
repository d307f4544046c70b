"""Match rules of ids, by which spellings a value in a column equals an id; and the reading of descriptors. Pure.

`exact` compares values of the column's type. Every other rule compares texts, each brought into one form by an
expression of Spark: the search, the proof of the new files and the certificate apply it to the ids and to the values
that they read themselves. Rewriting removes the rows with the values that the search has found, as they are stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from cmroot.errors import UNREADABLE
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

_TOKENS = re.compile(r"`(?:[^`]|``)*`|[<(>),]|[^`<(>),]+")
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


def form_of_ids(ids_type: str, type_: str, rules: Sequence[str], id: str = "id") -> str:
    """Returns SQL for the text of an id, which is SQL, too. Ids that the column's type represents are spelled as values
    of it, so that every match of `exact` is one of the rules, too."""
    own = form_of(id, ids_type, rules)
    if type_ == ids_type or not _NUMBER.fullmatch(type_):
        return own
    key = f"try_cast({id} AS {scalar_type(type_)})"
    same = f"try_cast({key} AS {scalar_type(ids_type)}) <=> {id}"
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


FIELD_PATH = "gobblin.compliance.dataset.descriptor.fieldPath"
"""The property of a table with the path to the column's name in its descriptor."""


def column_named(text: str, path: str) -> str:
    """Returns the name of the ids' column in a descriptor: the value at a path, or its only text. Raises ValueError."""
    try:
        value: Any = msgspec.json.decode(text)
    except UNREADABLE as error:
        raise ValueError(f"not valid JSON: {error}") from error
    parts = [part for part in (each.strip() for each in path.split(".")) if part]
    if not parts:
        return _only(value)
    for part in parts:
        if not isinstance(value, Mapping):
            raise ValueError(f"it has no value at {path}: {part} would be a field of a value that is not an object")
        if value.get(part) is None:
            raise ValueError(f"it has no value at {path}")
        value = value[part]
    if isinstance(value, (Mapping, list)):
        raise ValueError(f"the value at {path} is not a name but {msgspec.json.encode(value).decode()[:80]}")
    return str(value)


def _only(value: Any) -> str:
    """Returns the only text value in a descriptor for which no field path is configured."""
    found: list[str] = []

    def walk(each: Any, above: str = "") -> None:
        if isinstance(each, Mapping):
            for name, below in each.items():
                if name != "former" and (above, name) != ("ids", "match"):
                    walk(below, name)
        elif isinstance(each, str):
            found.append(each)

    walk(value)
    if len(found) != 1:
        raise ValueError(f"it has {len(found)} texts, not exactly one that names the column: set {FIELD_PATH}")
    return found[0]


def names_in(path: str) -> Iterator[str]:
    """Yields the column and the fields of a path, `a.b`; names in backticks may have dots."""
    for quoted, plain in re.findall(r"`((?:[^`]|``)+)`|([^.`]+)", path):
        yield quoted.replace("``", "`") or plain


# ---- tables without persons ------------------------------------------------------------------------------------------


class NoPersons(msgspec.Struct, frozen=True):
    """A statement that a table holds no persons. by: who made it; columns: the fields for which it was made, as
    `fields_of` writes them."""

    by: str
    reason: str
    columns: tuple[str, ...]

    def not_covered(self, columns: Mapping[str, str]) -> list[str]:
        """Returns the fields of a table for which the statement was not made. columns: types by name."""
        known = {name.lower() for name in self.columns}
        fields = dict.fromkeys(field for name, type_ in columns.items() for field in fields_of(name, type_))
        return [field for field in fields if field.lower() not in known]


def no_persons(descriptor: str) -> NoPersons | None:
    """Returns the statement of a descriptor, `{"persons": "none", "by": ..., "reason": ..., "columns": [...]}`; None
    without one. Raises ValueError for an incomplete statement."""
    value = msgspec.json.decode(descriptor)
    if not isinstance(value, dict) or value.get("persons") != "none":
        return None
    if "ids" in value:
        raise ValueError('"persons": "none" contradicts `ids`')
    match value:
        case {"by": str(by), "reason": str(reason), "columns": list(columns)} if by.strip() and reason.strip():
            if all(isinstance(name, str) for name in columns):
                return NoPersons(by, reason, tuple(columns))
    raise ValueError('"persons": "none" needs the texts `by` and `reason`, and `columns`, a list of names')


def fields_of(name: str, type_: str) -> Iterator[str]:
    """Yields the paths of a column's values: its name, or of a struct those of its fields, `address.city`, also inside
    arrays and maps. A name with a dot is in backticks."""
    name = f"`{name}`" if "." in name else name
    yield from _fields_at(name, type_.strip())


def _fields_at(path: str, type_: str) -> Iterator[str]:
    kind, bracket, rest = type_.partition("<")
    inner = rest.rstrip()[:-1]
    match kind.strip().lower() if bracket else "":
        case "struct":
            for field, below in struct_fields(inner):
                yield from _fields_at(f"{path}.`{field}`" if "." in field else f"{path}.{field}", below.strip())
        case "array" | "map" | "uniontype":
            for below in _types_in(inner):
                yield from _fields_at(path, below.strip())
        case _:
            yield path


def _types_in(text: str) -> Iterator[str]:
    """Yields the types of a list that is separated by commas."""
    depth, found = 0, ""
    for token in [*_TOKENS.findall(text), ","]:
        depth += (token in ("<", "(")) - (token in (">", ")"))
        if token == "," and not depth:
            yield found
            found = ""
        else:
            found += token


# ---- fields in types -------------------------------------------------------------------------------------------------


def type_at(type_: str, path: tuple[str, ...]) -> str:
    """Returns the Hive type of a field inside structs. Raises ValueError if it does not exist or cannot be compared."""
    type_ = type_.strip()
    if not path:
        try:
            return scalar_type(type_.lower())
        except ValueError as error:
            raise ValueError(f"a {type_[:80]} cannot be compared with an id") from error
    if not type_.lower().startswith("struct<") or not type_.endswith(">"):
        raise ValueError(f"{type_[:80]} has no field {path[0]}")
    for name, inner in struct_fields(type_[len("struct<") : -1]):
        if name.lower() == path[0]:
            return type_at(inner, path[1:])
    raise ValueError(f"{type_[:80]} has no field {path[0]}")


def spelled_in(type_: str, path: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names of a field inside structs as written in the type; `type_at` must accept the path."""
    if not path:
        return ()
    name, inner = next(each for each in struct_fields(type_[len("struct<") : -1]) if each[0].lower() == path[0])
    return name, *spelled_in(inner, path[1:])


def struct_fields(text: str) -> Iterator[tuple[str, str]]:
    """Yields names and types of a struct's fields."""
    depth, field = 0, ""
    for token in [*_TOKENS.findall(text), ","]:
        depth += (token in ("<", "(")) - (token in (">", ")"))
        if token != "," or depth:
            field += token
            continue
        match = re.fullmatch(r"\s*(?:`((?:[^`]|``)*)`|([^:]*?))\s*:(.*)", field, re.DOTALL)
        if match:
            yield (match[2] if match[1] is None else match[1].replace("``", "`")), match[3]
        field = ""
