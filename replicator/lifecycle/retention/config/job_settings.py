"""Settings as a reader asks for them: by dotted key and its older spellings, with where each was written. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from replicator.errors import ConfigError
from replicator.lifecycle.retention.config.hocon.hocon_values import Fields, Items, Origin, Scalar, Value

_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")


@dataclass(frozen=True)
class Settings:
    """Resolved values. `name` says whose they are, in errors. A key that is null counts as missing."""

    fields: Fields
    name: str

    def find(self, *keys: str) -> Value | None:
        """The value of the first of these keys that is there."""
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
            raise self.wrong(keys[0], self.find(*keys), f"is {found!r}, not a whole number") from None

    def truth(self, *keys: str, default: bool) -> bool:
        found = self.text(*keys)
        if found is None or found == "":
            return default
        if found.lower() not in _TRUE + _FALSE:
            raise self.wrong(keys[0], self.find(*keys), f"is {found!r}, neither true nor false")
        return found.lower() in _TRUE

    def texts(self, *keys: str) -> list[str] | None:
        """A list, or text with commas."""
        value = self.find(*keys)
        if value is None:
            return None
        if isinstance(value, Scalar):
            return [each.strip() for each in value.text.split(",") if each.strip()]
        if isinstance(value, Items) and all(isinstance(item, Scalar) for item in value.items):
            return [item.text for item in value.items if isinstance(item, Scalar)]
        raise self.wrong(keys[0], value, "is not a list of texts")

    def below(self, key: str) -> Settings | None:
        """The object at a key, as settings of its own."""
        value = self.find(key)
        if value is None:
            return None
        if not isinstance(value, Fields):
            raise self.wrong(key, value, "is not an object")
        return Settings(value, f"{self.name} {key}")

    def objects(self, key: str) -> list[Settings] | None:
        """The list of objects at a key."""
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
        """Every value that is no object, by its path, in order. Objects in a list are `name[0]`, `name[1]`."""
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
    """A value on one line, for a person."""
    match value:
        case Scalar(text=text):
            return text
        case Items(items=items):
            return "[" + ", ".join(shown(item) for item in items) + "]"  # type: ignore[arg-type]
        case Fields(fields=fields):
            return "{" + ", ".join(f"{key} = {shown(child)}" for key, child in fields.items()) + "}"  # type: ignore[arg-type]
