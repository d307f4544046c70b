"""HOCON values before and after resolution, each with its file and line, and the merging of two values. Pure.

Before resolution a value may be a reference (`${a.b}`), a concatenation of pieces, or layers: a value over weaker ones
that cannot be merged yet, because one of them is a reference. After it there are only `Scalar`, `Items` and `Fields`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from replicator.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Origin:
    """The location of a value: `file` as displayed, `line` from 1 (0: not in a file)."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Scalar:
    """Text, a number, a truth value or null, as written: `7d` remains `7d`, `0755` remains `0755`. `assigned`: the
    location of the reference that led here."""

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
    """An object. `closed`: it overrides a weaker value that is not an object, so no weaker value is merged."""

    fields: Mapping[str, Raw]
    origin: Origin
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference, `${path}` or `${?path}`. `paths`: candidates in order; in included files the relative one is
    first."""

    paths: tuple[tuple[str, ...], ...]
    optional: bool
    origin: Origin


@dataclass(frozen=True, slots=True)
class Joined:
    """A concatenation of pieces: texts and lists are concatenated, objects are merged (the last is strongest)."""

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
    """Merges `strong` over `weak`: objects key by key, everything else is replaced completely."""
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
    """Joins adjacent pieces to one value; `Joined` if one of them is a reference. Raises ConfigError for a mix of
    kinds."""
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
        f"{origin}: text, lists and objects cannot be combined in one value",
        hint="end the value with a newline or a comma, or quote it",
    )


# ---- substitutions ---------------------------------------------------------------------------------------------------
# Resolution of the substitutions in merged HOCON, once for the complete tree: a child's value may change the target of
# a parent's reference. Pure.
#
# A reference inside its own value refers to the next weaker value (`path = ${path}":/more"`, `list += x`).


STEPS = 200_000  # far beyond any real file; references to references can grow without end
NESTED = 200  # nested references: more is a cycle

Path = tuple[str, ...]
Lower = Callable[[], tuple[Raw, ...]]


def resolve(merged: Fields, outside: Mapping[str, str | None] | None = None) -> Fields:
    """Resolves every value to `Scalar`, `Items` or `Fields`. `outside`: further targets of references, by dotted name;
    None for a target that exists and may not be read: a reference to it, even an optional one, is an error. Raises
    ConfigError, with file and line, for a reference to nothing or to itself."""
    value = _Resolution(merged, outside or {}).value(merged, (), _nothing)
    assert isinstance(value, Fields)
    return value


def _nothing() -> tuple[Raw, ...]:
    return ()


@dataclass
class _Resolution:
    root: Fields
    outside: Mapping[str, str | None]
    _below: dict[Path, list[Lower]] = field(default_factory=dict)
    _steps: int = 0
    _nested: int = 0

    def value(self, node: Raw, path: Path, lower: Lower) -> Value | None:
        """Resolves one value at a path, over the layers that `lower` returns; None for an optional missing target."""
        self._steps += 1
        if self._steps > STEPS:
            raise ConfigError(
                f"{node.origin}: references expand without end", hint="check for ${...} that repeat each other"
            )
        match node:
            case Scalar():
                return node
            case Items(items=items):
                found = [self.value(item, (*path, f"[{n}]"), _nothing) for n, item in enumerate(items)]
                return Items(tuple(item for item in found if item is not None), node.origin)
            case Fields():
                return self._fields(node, path, lower)
            case Layers(layers=layers):
                return self._layers(layers, path, lower)
            case Reference():
                with self._inside(path, lower, node.origin):
                    return self._referred(node)
            case Joined(pieces=pieces):
                with self._inside(path, lower, node.origin):
                    return self._joined(pieces, path, lower, node.origin)

    def _fields(self, node: Fields, path: Path, lower: Lower) -> Fields:
        found: dict[str, Raw] = {}
        for key, child in node.fields.items():
            value = self.value(child, (*path, key), self._lower_child(lower, key))
            if value is not None:
                found[key] = value
        return Fields(found, node.origin, node.closed)

    def _lower_child(self, lower: Lower, key: str) -> Lower:
        return lambda: tuple(child for layer in lower() for child in self._children(layer, key))

    def _layers(self, layers: tuple[Raw, ...], path: Path, lower: Lower) -> Value | None:
        found: Value | None = None
        for number, layer in enumerate(layers):
            rest = layers[number + 1 :]
            value = self.value(layer, path, lambda rest=rest: (*rest, *lower()))  # type: ignore[misc]
            if value is None:
                continue
            merged = value if found is None else merge(found, value)
            assert isinstance(merged, Scalar | Items | Fields)
            found = merged
            if not isinstance(found, Fields) or found.closed:
                break
        return found

    def _joined(self, pieces: tuple[Raw, ...], path: Path, lower: Lower, origin: Origin) -> Value | None:
        values: list[Raw] = []
        for number, piece in enumerate(pieces):
            before = pieces[:number]
            value = self.value(piece, path, lambda before=before: (*reversed(before), *lower()))  # type: ignore[misc]
            if value is not None:
                values.append(value)
        if not any(not (isinstance(value, Scalar) and value.is_blank) for value in values):
            return None
        if any(isinstance(value, Fields | Items) for value in values):
            values = [value for value in values if not (isinstance(value, Scalar) and value.is_blank)]
        found = join(tuple(values), origin)
        assert isinstance(found, Scalar | Items | Fields)
        return found

    def _referred(self, reference: Reference) -> Value | None:
        itself = False
        for path in reference.paths:
            if path in self._below:
                value, itself = self._looked_back(path), True
            else:
                value = self._layers(self._nodes(path), path, _nothing)
            if value is not None:
                return replace(value, assigned=reference.origin) if isinstance(value, Scalar) else value
            name = ".".join(path)
            if name in self.outside:
                return self._from_outside(name, reference.origin)
        if reference.optional:
            return None
        what = "refers to itself" if itself else "refers to nothing"
        name = ".".join(reference.paths[-1])
        raise ConfigError(
            f"{reference.origin}: ${{{name}}} {what}", hint=f"define {name}, or write ${{?{name}}} if it may be missing"
        )

    def _from_outside(self, name: str, origin: Origin) -> Scalar:
        text = self.outside[name]
        if text is None:
            raise ConfigError(
                f"{origin}: ${{{name}}} may not be read from the environment",
                hint=f'list it in replicator.toml: environment = ["{name}"] under [retention]',
            )
        return Scalar(text, True, Origin(f"${name} of the environment", 0), origin)

    def _looked_back(self, path: Path) -> Value | None:
        """Returns the value below that of a path that is being resolved."""
        waiting = self._below.pop(path)
        lower = waiting[-1]()
        try:
            with self._inside(path, _nothing, Origin("", 0)):
                return self._layers(lower, path, _nothing)
        finally:
            self._below[path] = waiting

    def _nodes(self, path: Path) -> tuple[Raw, ...]:
        """Returns the layers of the complete tree at a path."""
        nodes: tuple[Raw, ...] = (self.root,)
        for key in path:
            nodes = tuple(child for node in nodes for child in self._children(node, key))
        return nodes

    def _children(self, node: Raw, key: str) -> Iterator[Raw]:
        match node:
            case Fields(fields=fields):
                if key in fields:
                    yield fields[key]
            case Layers(layers=layers):
                for layer in layers:
                    yield from self._children(layer, key)
            case Joined(pieces=pieces):
                for piece in reversed(pieces):
                    yield from self._children(piece, key)
            case Reference():
                self._nested += 1
                try:
                    if self._nested > NESTED:
                        raise ConfigError(f"{node.origin}: references form a cycle", hint="break the cycle")
                    value = self._referred(node)
                finally:
                    self._nested -= 1
                if isinstance(value, Fields) and key in value.fields:
                    yield value.fields[key]

    @contextmanager
    def _inside(self, path: Path, lower: Lower, origin: Origin) -> Iterator[None]:
        self._nested += 1
        if self._nested > NESTED:
            raise ConfigError(f"{origin}: references form a cycle", hint="break the cycle")
        self._below.setdefault(path, []).append(lower)
        try:
            yield
        finally:
            self._nested -= 1
            self._below[path].pop()
            if not self._below[path]:
                del self._below[path]
