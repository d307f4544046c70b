"""HOCON's values before and after resolution, each with the file and line it was written at, and how two merge. Pure.

Before resolution a value may be a reference (`${a.b}`), pieces to be joined, or layers: a value over weaker ones that
cannot be merged yet, because one of them is a reference. Resolution leaves `Scalar`, `Items` and `Fields` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from replicator.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written: `file` as it is to be shown, `line` from 1 (0: not in a file)."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Scalar:
    """Text, a number, a truth value or null, as written: `7d` stays `7d`, `0755` stays `0755`. `assigned`: where the
    reference stood that led here."""

    text: str
    quoted: bool
    origin: Origin
    assigned: Origin | None = None

    @property
    def is_null(self) -> bool:
        return self.text == "null" and not self.quoted

    @property
    def is_blank(self) -> bool:
        return not self.quoted and self.text.isspace()


@dataclass(frozen=True, slots=True)
class Items:
    items: tuple[Raw, ...]
    origin: Origin


@dataclass(frozen=True, slots=True)
class Fields:
    """An object. `closed`: a weaker value that is no object lies under it, so nothing below that is merged."""

    fields: Mapping[str, Raw]
    origin: Origin
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Reference:
    """`${path}` or `${?path}`. `paths`: what to try in turn; an included file looks below its own place first."""

    paths: tuple[tuple[str, ...], ...]
    optional: bool
    origin: Origin


@dataclass(frozen=True, slots=True)
class Joined:
    """Pieces beside each other: text is put together, lists are, objects are merged (the last is strongest)."""

    pieces: tuple[Raw, ...]
    origin: Origin


@dataclass(frozen=True, slots=True)
class Layers:
    """Values of one key, strongest first, at least one of them unresolved."""

    layers: tuple[Raw, ...]
    origin: Origin


Raw = Scalar | Items | Fields | Reference | Joined | Layers
Value = Scalar | Items | Fields


def merge(strong: Raw, weak: Raw) -> Raw:
    """`strong` over `weak`: objects key by key, everything else replaced whole."""
    match strong:
        case Scalar() | Items():
            return strong
        case Fields(closed=True):
            return strong
        case Fields() if isinstance(weak, Fields):
            return merge_fields(strong, weak)
        case Fields() if isinstance(weak, Scalar | Items):
            return replace(strong, closed=True)
        case Layers(layers=layers):
            if _ends(layers[-1]):
                return strong
            return Layers((*layers[:-1], *_layers(merge(layers[-1], weak))), strong.origin)
        case _:
            return Layers((strong, *_layers(weak)), strong.origin)


def merge_fields(strong: Fields, weak: Fields) -> Fields:
    fields = dict(weak.fields)
    for key, value in strong.fields.items():
        fields[key] = merge(value, fields[key]) if key in fields else value
    return Fields(fields, strong.origin, weak.closed)


def _layers(value: Raw) -> tuple[Raw, ...]:
    return value.layers if isinstance(value, Layers) else (value,)


def _ends(value: Raw) -> bool:
    return isinstance(value, Scalar | Items) or (isinstance(value, Fields) and value.closed)


def join(pieces: tuple[Raw, ...], origin: Origin) -> Raw:
    """What stands beside each other, as one value; `Joined` while a reference is among it. Raises ConfigError for a mix
    of kinds."""
    solid = [piece for piece in pieces if not (isinstance(piece, Scalar) and piece.is_blank)]
    if len(pieces) == 1:
        return pieces[0]
    if any(isinstance(piece, Reference | Joined | Layers) for piece in solid):
        return Joined(pieces, origin)
    if all(isinstance(piece, Fields) for piece in solid):
        merged: Raw = solid[0]
        for piece in solid[1:]:
            merged = merge(piece, merged)
        return merged
    if all(isinstance(piece, Items) for piece in solid):
        return Items(tuple(item for piece in solid if isinstance(piece, Items) for item in piece.items), origin)
    if all(isinstance(piece, Scalar) for piece in solid):
        texts = [piece.text for piece in pieces if isinstance(piece, Scalar)]
        return Scalar("".join(texts), any(piece.quoted for piece in solid if isinstance(piece, Scalar)), origin)
    raise ConfigError(
        f"{origin}: text, a list and an object stand beside each other",
        hint="end the value with a newline or a comma, or quote it",
    )
