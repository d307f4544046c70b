"""The config store: directories with `main.conf` and `includes.conf`, in versions, as in Gobblin. Reads only.

    <store>/_CONFIG_STORE/store-metadata.conf             config.hdfs.store.version.current = "<version>"
    <store>/_CONFIG_STORE/<version>/<key>/main.conf       HOCON
    <store>/_CONFIG_STORE/<version>/<key>/includes.conf   one key a line

A key takes its own file's values, then its includes' (last line first, each with all that it takes itself), then those
of the directory above; each key once, first come. So the root, reached through a tag, is stronger (see `explain`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from cmroot.store.local import is_directory as is_local_directory
from cmroot.store.place import Place, is_local, join, local_path, normal, parent
from replicator.errors import ConfigError
from replicator.lifecycle.retention.hocon_parser import parse, parse_items
from replicator.lifecycle.retention.hocon_values import Fields, Items, Origin, Scalar, Value, merge_fields, resolve

# ---- job settings ----------------------------------------------------------------------------------------------------
# Settings by dotted key and its older names, with the location of each value. Pure.


_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


@dataclass(frozen=True)
class Settings:
    """Resolved values. `name`: their owner, for errors. A key that is null counts as missing."""

    fields: Fields
    name: str

    def find(self, *keys: str) -> Value | None:
        """Returns the value of the first existing key."""
        return next((value for key in keys if (value := self._at(key)) is not None), None)

    def _at(self, key: str) -> Value | None:
        value: Value = self.fields
        for name in key.split("."):
            if not isinstance(value, Fields) or name not in value.fields:
                return None
            value = value.fields[name]  # type: ignore[assignment]
        return None if isinstance(value, Scalar) and value.is_null else value

    def text(self, *keys: str) -> str | None:
        value = self.find(*keys)
        if value is None:
            return None
        if not isinstance(value, Scalar):
            raise self.wrong(keys[0], value, "is a list or an object, where text is expected")
        return value.text

    def required(self, *keys: str) -> str:
        found = self.text(*keys)
        if found is None:
            raise self.missing(keys[0])
        return found

    def number(self, *keys: str) -> int | None:
        found = self.text(*keys)
        if found is None:
            return None
        try:
            return int(found)
        except ValueError:
            raise self.wrong(keys[0], self.find(*keys), f"is {found!r}, not an integer") from None

    def truth(self, *keys: str, default: bool) -> bool:
        found = self.text(*keys)
        if found is None or found == "":
            return default
        if found.lower() not in _TRUE + _FALSE:
            raise self.wrong(keys[0], self.find(*keys), f"is {found!r}, neither true nor false")
        return found.lower() in _TRUE

    def texts(self, *keys: str) -> list[str] | None:
        """Returns a list, or text with commas as a list."""
        value = self.find(*keys)
        if value is None:
            return None
        if isinstance(value, Scalar):
            return [each.strip() for each in value.text.split(",") if each.strip()]
        if isinstance(value, Items) and all(isinstance(item, Scalar) for item in value.items):
            return [item.text for item in value.items if isinstance(item, Scalar)]
        raise self.wrong(keys[0], value, "is not a list of texts")

    def below(self, key: str) -> Settings | None:
        """Returns the object at a key, as settings of its own."""
        value = self.find(key)
        if value is None:
            return None
        if not isinstance(value, Fields):
            raise self.wrong(key, value, "is not an object")
        return Settings(value, f"{self.name} {key}")

    def objects(self, key: str) -> list[Settings] | None:
        """Returns the list of objects at a key."""
        value = self.find(key)
        if value is None:
            return None
        if not isinstance(value, Items) or not all(isinstance(item, Fields) for item in value.items):
            raise self.wrong(key, value, "is not a list of objects")
        return [
            Settings(item, f"{self.name} {key}[{number}]")
            for number, item in enumerate(value.items)
            if isinstance(item, Fields)
        ]

    def origin(self, *keys: str) -> Origin | None:
        value = self.find(*keys)
        return value.origin if value is not None else None

    def leaves(self) -> Iterator[tuple[tuple[str, ...], Scalar | Items]]:
        """Yields every value that is not an object, by path, in order. Objects in a list are `name[0]`, `name[1]`."""
        yield from _leaves(self.fields, ())

    def missing(self, key: str) -> ConfigError:
        return ConfigError(f"{self.name}: {key} is missing", hint="`retention explain` shows what is set, and where")

    def wrong(self, key: str, value: Value | None, what: str) -> ConfigError:
        where = f"{value.origin}: " if value is not None else f"{self.name}: "
        return ConfigError(f"{where}{key} {what}", hint="see docs/retention.md")


def _leaves(value: Fields, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Scalar | Items]]:
    for key, child in sorted(value.fields.items()):
        if isinstance(child, Fields):
            yield from _leaves(child, (*path, key))
        elif isinstance(child, Items) and any(isinstance(item, Fields) for item in child.items):
            for number, item in enumerate(child.items):
                if isinstance(item, Fields):
                    yield from _leaves(item, (*path, f"{key}[{number}]"))
        elif isinstance(child, Scalar | Items):
            yield (*path, key), child


def shown(value: Value) -> str:
    """Returns a value on one line, for display."""
    match value:
        case Scalar(text=text):
            return text
        case Items(items=items):
            return "[" + ", ".join(shown(item) for item in items) + "]"  # type: ignore[arg-type]
        case Fields(fields=fields):
            return "{" + ", ".join(f"{key} = {shown(child)}" for key, child in fields.items()) + "}"  # type: ignore[arg-type]


# ---- config store ----------------------------------------------------------------------------------------------------


STORE = "_CONFIG_STORE"
METADATA = "store-metadata.conf"
MAIN, INCLUDES = "main.conf", "includes.conf"
CURRENT = "config.hdfs.store.version.current"
KEPT = 16_384  # keys and configurations in the cache: tags and parents are read once a run

Key = tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """One directory of the store: its own values (else an empty object), and the keys it includes, in file order."""

    key: Key
    main: Fields
    includes: tuple[tuple[Key, Origin], ...]


@dataclass(frozen=True)
class Resolved:
    """The resolved configuration of a key: its settings, and the nodes that provide them, strongest first."""

    key: Key
    settings: Settings
    nodes: tuple[Node, ...]


@dataclass
class ConfigStore:
    """One version of a store. All reads are of that version, even if another one is deployed concurrently."""

    place: str
    version: str
    prefix: Key = ()
    variables: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.node: Callable[[Key], Node] = lru_cache(KEPT)(self._read_node)
        self._of_chain: Callable[[tuple[Key, ...]], Settings] = lru_cache(KEPT)(self._resolve_chain)

    @classmethod
    def open(
        cls, uri: str, *, version: str | None = None, variables: Mapping[str, str | None] | None = None
    ) -> ConfigStore:
        """Opens the store at or above a URI (`simple-hdfs:///store`, `file:///store`, `/store/prefix`, or a path in the
        store's own files); the part of the URI below the store's directory is prepended to every key. `variables`:
        values for `${...}` in addition to the files.

        Raises ConfigError if the store, its current version, or the requested version does not exist."""
        place, prefix = _find(uri)
        if prefix[:1] == (STORE,):  # a path in the store's own directory names the version, too
            version, prefix = version or "".join(prefix[1:2]) or None, prefix[2:]
        if prefix[-1:] in ((MAIN,), (INCLUDES,)):
            prefix = prefix[:-1]
        version = version or _current(place, uri)
        if not is_directory(join(place, version)):
            there = ", ".join(name for name in Place(place).list() if is_directory(join(place, name))) or "none"
            raise ConfigError(f"{place}: the store has no version {version!r}", hint=f"versions: {there}")
        return cls(place, version, prefix, dict(variables or {}))

    @property
    def root(self) -> str:
        return join(self.place, self.version)

    def key(self, path: str) -> Key:
        """Returns the key of a dataset's path or of a tag; additional slashes are ignored."""
        return self.prefix + key_of(path)

    def resolve(self, key: Key) -> Resolved:
        """Returns the settings of a key, even without a directory. Raises ConfigError with file and line."""
        chain = self.chain(key)
        with_own = tuple(each for each in chain if self.node(each).main.fields)
        settings = self._of_chain(with_own)
        nodes = tuple(self.node(each) for each in chain)
        return Resolved(key, Settings(settings.fields, text_of(key)), nodes)

    def chain(self, key: Key) -> tuple[Key, ...]:
        """Returns the keys that provide values for a key, strongest first. Raises ConfigError for a cycle, or an
        include of a missing directory."""
        found: dict[Key, None] = {}
        self._visit(key, None, (), found)
        return tuple(found)

    def _visit(self, key: Key, included: Origin | None, trail: tuple[Key, ...], found: dict[Key, None]) -> None:
        if key in trail:
            circle = " -> ".join(text_of(each) for each in (*trail[trail.index(key) :], key))
            where = f"{included}: " if included else ""
            raise ConfigError(f"{where}keys include each other: {circle}", hint="remove one of the includes")
        if key in found:
            return
        found[key] = None
        trail = (*trail, key)
        if not key:
            return  # the root's own includes are never read
        for include, origin in reversed(self.node(key).includes):
            if include not in found and not is_directory(join(self.root, *include)):
                raise ConfigError(
                    f"{origin}: includes {text_of(include)}, which is not in the store",
                    hint=self._nearest(include) or "create the directory, or remove the line",
                )
            self._visit(include, origin, trail, found)
        self._visit(key[:-1], None, trail, found)

    def _nearest(self, key: Key) -> str:
        above = join(self.root, *key[:-1])
        near = [name for name in Place(above).list() if name.lower() == key[-1].lower()]
        return f"names are case-sensitive: did you mean {text_of((*key[:-1], near[0]))}?" if near else ""

    def importers(self, tag: Key) -> Iterator[Key]:
        """Yields the keys whose own `includes.conf` names a tag, in order; transitive includes are ignored."""
        for name in Place(self.root).find():
            if name.rpartition("/")[2] == INCLUDES:
                key = key_of(name.rpartition("/")[0])
                if any(include == tag for include, _ in self.node(key).includes):
                    yield key

    # ---- reading --------------------------------------------------------------------------------------------------

    def _read_node(self, key: Key) -> Node:
        main = self._text(join("/".join(key), MAIN).lstrip("/"))
        own = parse(main[1], main[0], self._include) if main else Fields({}, Origin("", 0))
        return Node(key, own, tuple(self._includes(key)))

    def _resolve_chain(self, keys: tuple[Key, ...]) -> Settings:
        merged = Fields({}, Origin(self.root, 0))
        for key in reversed(keys):
            merged = merge_fields(self.node(key).main, merged)
        return Settings(resolve(merged, self.variables), text_of(keys[0]) if keys else "/")

    def _includes(self, key: Key) -> Iterator[tuple[Key, Origin]]:
        found = self._text(join("/".join(key), INCLUDES).lstrip("/"))
        if not found or not key:
            return
        name, text = found
        for number, line in enumerate(text.splitlines(), 1):
            origin = Origin(name, number)
            if not line.strip() or line.startswith("#"):
                continue
            is_comment = line.lstrip().startswith("//")
            if re.search(r"^\s*//[^\s/]+/" if is_comment else r"\S//", line) and '"' not in line:
                raise ConfigError(
                    f"{origin}: text after // is a comment, even in a path",
                    hint="write single slashes in a path; begin a comment with #",
                )
            if is_comment:
                continue
            raw = parse_items(line, name, number)
            value = resolve(Fields({"include": raw}, origin), self.variables).fields.get("include")
            if not isinstance(value, Scalar):
                raise ConfigError(
                    f"{origin}: {line.strip()!r} is not a key of the store", hint="write one path on each line"
                )
            yield key_of(value.text), origin

    def _include(self, name: str, origin: Origin) -> tuple[str, str]:
        above = key_of(origin.file)[:-1]
        for candidate in (name, f"{name}.conf"):
            found = self._text("/".join(key_of("/".join(above) + "/" + candidate)))
            if found:
                return found
        raise ConfigError(f"{origin}: include {name!r}: the store has no such file", hint="correct the name")

    def _text(self, name: str) -> tuple[str, str] | None:
        try:
            data = (Place(self.root) / name).read_bytes(follow=True)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        return name, _decoded(data, name)


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{name}:{line}: not UTF-8", hint="save the file as UTF-8") from error


def key_of(path: str) -> Key:
    """Returns the key of a path. Raises ConfigError for `..`, with which a key could leave the store."""
    names = tuple(name for name in path.split("/") if name and name != ".")
    if ".." in names:
        raise ConfigError(
            f"{path!r} is not a key of a config store: it contains `..`", hint="write the path from the store's root"
        )
    return names


def text_of(key: Key) -> str:
    return "/" + "/".join(key)


def _find(uri: str) -> tuple[str, Key]:
    """Returns the `_CONFIG_STORE` directory at or above a URI, and the part of the URI below it."""
    text = uri
    for kind in ("simple-", "default-", "ivy-", "etl-"):
        text = text.removeprefix(kind)
    if re.match(r"(?!file:)[a-z0-9]+:/(?!/)", text):
        raise ConfigError(f"{uri}: names no host or bucket", hint="write scheme://host/path")
    place = normal(text)
    rest: Key = ()
    while True:
        if is_directory(join(place, STORE)):
            return join(place, STORE), rest
        above = parent(place)
        if above == place:
            raise ConfigError(f"{uri}: no {STORE} exists in it or above it", hint="name the directory that contains it")
        rest, place = (place.rstrip("/").rpartition("/")[2], *rest), above


def _current(place: str, uri: str) -> str:
    try:
        text = _decoded((Place(place) / METADATA).read_bytes(follow=True), METADATA)
    except FileNotFoundError:
        raise ConfigError(
            f"{join(place, METADATA)}: missing, so no version of the store is the current one",
            hint=f'write into it: {CURRENT} = "<version>"',
        ) from None
    found = Settings(resolve(parse(text, join(place, METADATA))), uri).text(CURRENT)
    if not found:
        raise ConfigError(f"{join(place, METADATA)}: has no {CURRENT}", hint=f'write into it: {CURRENT} = "<version>"')
    return found


def is_directory(place: str) -> bool:
    """Returns True if the directory exists; on object stores, if it is not empty."""
    if is_local(place):
        return is_local_directory(local_path(place))
    return bool(Place(place).list())
