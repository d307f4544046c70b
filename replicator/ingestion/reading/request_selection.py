"""The selection of a request: columns, rows and masks, as SQL of the source. Columns that are not selected, and values
that a mask hides, do not leave the source.

A condition is parsed into names of columns, literals and operators, and written again in the source's dialect: a text
that is anything else, such as a function, a query, a comment or a parenthesis too many, is refused.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from replicator.errors import SourceLocked, SourceMissing, SourceRefused, SourceUnreachable, TypeRefused, UsageError
from replicator.ingestion.ingestion_request import Asset, Request
from replicator.ingestion.reading.figures import Dialect
from replicator.ingestion.reading.source_table import SourceColumn, SourceTable

# ---- masks -----------------------------------------------------------------------------------------------------------


MASKS = "hash, null, text:TEXT or first:N"

_MASK = re.compile(r"(?P<null>null)|(?P<hash>hash)|first:(?P<first>[1-9][0-9]{0,3})|text:(?P<text>[\w .,*#@-]{0,100})")


def check_mask(name: str, rule: str) -> None:
    """Raises UsageError for a rule that is none."""
    if not _MASK.fullmatch(rule):
        raise UsageError(f"{rule[:80]!r} is not a mask of column {name}", hint=f"write {MASKS}")


def masked(dialect: Dialect, column: SourceColumn, rule: str) -> SourceColumn:
    """Returns a column whose values are masked before they leave the source: its SHA-256 in hexadecimal digits, NULL, a
    fixed text, or its first characters. NULL remains NULL. Raises SourceRefused for bytes, of which only NULL is a
    mask."""
    found = _MASK.fullmatch(rule)
    assert found is not None
    plain = msgspec.structs.replace(column, cast="", unfit="", split="", compared="", summed=False, collation="")
    if found["null"]:
        return msgspec.structs.replace(plain, expression=dialect.nothing(column), mask=rule)
    if column.type == "binary":
        raise SourceRefused(
            f"column {column.name} ({column.source_type}) cannot be masked by {rule}", hint="mask: null"
        )
    text = dialect.text_of(column)
    if found["hash"]:
        value = dialect.sha256(text)
    elif found["first"]:
        value = f"substring({text}, 1, {found['first']})"
    else:
        value = f"CASE WHEN {text} IS NOT NULL THEN {dialect.text_literal(found['text'])} END"
    return msgspec.structs.replace(plain, type="string", expression=value, mask=rule)


# ---- conditions ------------------------------------------------------------------------------------------------------


LONGEST = 4000
"""Maximum characters of a condition."""

_TOKEN = re.compile(
    r"""(?P<blank>\s+)|(?P<number>[0-9]+(?:\.[0-9]+)?(?![\w.]))|(?P<text>'(?:[^'\\\0]|'')*')|(?P<quoted>"(?:[^"\0]|"")+")"""
    r"""|(?P<word>[^\W\d]\w*)|(?P<sign><>|!=|<=|>=|[=<>+*/(),-])""",
    re.UNICODE,
)
_KEYWORDS = frozenset(["AND", "OR", "NOT", "IN", "IS", "NULL", "BETWEEN", "LIKE", "TRUE", "FALSE"])
_BEFORE_TEXT = frozenset(["DATE", "TIMESTAMP"])
"""Keywords directly before a text; elsewhere they are names of columns, not of functions."""

_TEXT_FOLLOWS = re.compile(r"\s*'")


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str


def tokens(condition: str) -> list[_Token]:
    """Parses a condition: columns, numbers, texts in single quotes, comparisons, AND, OR, NOT, IN, IS NULL, BETWEEN,
    LIKE, DATE and TIMESTAMP before a text, calculations, and parentheses in pairs. Raises UsageError for all else."""
    if not condition.strip() or len(condition) > LONGEST:
        raise UsageError(f"a condition has between 1 and {LONGEST} characters", hint="write one such as: id > 7")
    found, at, depth = list[_Token](), 0, 0
    while at < len(condition):
        match = _TOKEN.match(condition, at)
        if match is None:
            raise _refused(condition, at)
        kind = match.lastgroup or ""
        word = match[0].upper() if kind == "word" else ""
        if word in _KEYWORDS or (word in _BEFORE_TEXT and _TEXT_FOLLOWS.match(condition, match.end())):
            kind = "keyword"
        if match[0] == "(" and found and found[-1].kind in ("word", "quoted", "text", "number"):
            raise UsageError(
                f"a condition has no functions, such as {found[-1].text[:60]}()", hint="request a view that computes it"
            )
        if condition[at : at + 2] in ("--", "/*"):
            raise _refused(condition, at)
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth < 0:
            raise _refused(condition, at)
        if kind != "blank":
            found.append(_Token(kind, match[0]))
        at = match.end()
    if depth:
        raise UsageError(f"a parenthesis of the condition {condition[:80]!r} is not closed", hint="close it")
    return found


def _refused(condition: str, at: int) -> UsageError:
    return UsageError(
        f"a condition cannot have {condition[at : at + 20]!r}",
        hint="write columns, numbers, 'texts', comparisons, AND, OR, NOT, IN, IS NULL, BETWEEN, LIKE, and parentheses",
    )


def columns_in(condition: str) -> list[str]:
    """Returns the names of columns in a condition. Raises UsageError as `tokens` does."""
    return [_name(each) for each in tokens(condition) if each.kind in ("word", "quoted")]


def _name(token: _Token) -> str:
    return token.text[1:-1].replace('""', '"') if token.kind == "quoted" else token.text


def written(dialect: Dialect, table: SourceTable, condition: str) -> str:
    """Returns a condition in the source's SQL. Raises SourceMissing for a column that the table does not have."""
    return " ".join(_sql(dialect, table, tokens(condition)))


def _sql(dialect: Dialect, table: SourceTable, given: Sequence[_Token]) -> Iterator[str]:
    for before, each in zip([_Token("", ""), *given], given, strict=False):
        if each.kind in ("word", "quoted"):
            yield dialect.name(table.column(_name(each)).name)
        elif each.kind == "text":
            text = each.text[1:-1].replace("''", "'")
            moment = before.kind == "keyword" and before.text.upper() in _BEFORE_TEXT
            yield f"'{_moment(text)}'" if moment else dialect.text_literal(text)
        else:
            yield each.text


def _moment(text: str) -> str:
    """Returns the text of a date or time. Raises SourceRefused for another one."""
    if not re.fullmatch(r"[\d:+. -]{1,40}", text, re.ASCII):
        raise SourceRefused(f"{text[:60]!r} is neither a date nor a time", hint="write DATE '2026-01-31'")
    return text


# ---- selection -------------------------------------------------------------------------------------------------------


def selects(request: Request) -> bool:
    """Returns True if a request does not land all columns as they are."""
    return bool(request.columns or request.masks)


_OF_VALUES = re.compile(
    r"invalid input syntax|out of range|cannot (be )?(parse|cast|convert|represent)|conver(t|sion)|cast_invalid"
    r"|overflow|(incorrect|invalid|bad|illegal) .*\b(value|number|format|date|text|string)|not a (valid|numeric)"
    r"|truncated",
    re.IGNORECASE,
)


@contextlib.contextmanager
def without_values(request: Request) -> Iterator[None]:
    """Errors of the source inside name no value that they could not read, if the request selects columns or masks
    them: it may be one that must not leave the source."""
    try:
        yield
    except (SourceUnreachable, SourceLocked, SourceRefused, TypeRefused) as error:
        if not selects(request) or not (isinstance(error, TypeRefused) or _OF_VALUES.search(error.message)):
            raise
        told = re.split("['\"`]", error.message, maxsplit=1)
        raise type(error)(" ".join([*told[:1], *("***" for _ in told[1:])]), hint=error.hint) from None


def selected(dialect: Dialect, table: SourceTable, request: Request) -> SourceTable:
    """Returns the table as it lands: with the request's columns, masked, and with those of its keys that remain. Raises
    SourceMissing for a column that it does not have, and SourceRefused for a mask that its type does not have."""
    if not selects(request):
        return table
    wanted = [table.column(each).name for each in request.columns] or [each.name for each in table.columns]
    masks = {table.column(name).name: rule for name, rule in request.masks.items()}
    if unselected := masks.keys() - {*wanted}:
        raise SourceMissing(f"column {min(unselected)} is masked, but not selected", hint="add it to the columns")
    columns = tuple(
        masked(dialect, each, masks[each.name]) if each.name in masks else each
        for each in table.columns
        if each.name in wanted
    )
    plain = {*wanted} - masks.keys()
    return msgspec.structs.replace(
        table,
        columns=columns,
        primary_key=table.primary_key if plain.issuperset(table.primary_key) else (),
        unique=tuple(each for each in table.unique if plain.issuperset(each)),
        foreign_keys=tuple(each for each in table.foreign_keys if plain.issuperset(each.columns)),
    )


def check_selection(request: Request, asset: Asset) -> None:
    """Raises UsageError for a condition or a mask that is none, and if a column that the request or the asset needs is
    masked or not selected. The asset may change after the request: its jobs call this again."""
    if request.where is not None:
        tokens(request.where)
    for name, rule in request.masks.items():
        check_mask(name, rule)
    chosen = {each.lower() for each in request.columns}
    hidden = {each.lower() for each in request.masks}
    named = [(request.watermark, "watermark"), *((each, "key") for each in request.key)]
    named.append((request.split.column, "split column"))
    named.append((asset.erasure_column if asset.erasure_ids else None, "erasure column"))
    for name, purpose in {name.lower(): purpose for name, purpose in named if name}.items():
        if chosen and name not in chosen:
            raise UsageError(
                f"{request.place}: column {name}, its {purpose}, is not selected", hint="add it to columns"
            )
        if name in hidden:
            raise UsageError(f"{request.place}: column {name}, its {purpose}, cannot be masked", hint="mask others")
