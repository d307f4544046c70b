"""A parser of HOCON text. Pure, but for the files named by `include`, which the caller reads.

The grammar is that of the Typesafe library, for which config stores are written: input that it refuses is refused here,
with file and line. Values remain text; readers interpret them.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable
from dataclasses import dataclass

from replicator.errors import ConfigError
from replicator.lifecycle.retention.hocon_values import (
    Fields,
    Items,
    Joined,
    Origin,
    Raw,
    Reference,
    Scalar,
    join,
    merge,
)

Read = Callable[[str, Origin], tuple[str, str] | None]
"""Resolves an `include` at an origin: returns the file's name, as displayed, and its text; None if it is optional."""

DEPTH = 100  # of nested braces, and of files that include files

_BLANK = re.compile(r"[ \t\r\f\v\u00a0\ufeff]+")
_NUMBER = re.compile(r"-?[0-9][0-9.]*(?:[eE][+-]?[0-9]+)?")
_UNQUOTED = re.compile(r"(?:[^$\"{}\[\]:=,+#`^?!@*&\\\s/]|/(?!/))+")
_QUOTED = re.compile(r'"((?:[^"\\\n\x00-\x1f]|\\.)*)"')
_INCLUDE = re.compile(r"include(?=[ \t\"]|required\()")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}


def parse(text: str, name: str, read: Read | None = None) -> Fields:
    """Parses a complete file. `name` is shown in origins and errors. Raises ConfigError with file and line."""
    return _Parser(text, name, read or _no_include, (), (name,)).root()


def parse_items(text: str, name: str, line: int) -> Raw:
    """Parses one element of a list, as in each line of `includes.conf`. Raises ConfigError for more or less."""
    return _Parser(text, name, _no_include, (), (name,), line).only_item()


def _no_include(name: str, origin: Origin) -> tuple[str, str] | None:
    raise ConfigError(f"{origin}: a file cannot be included here", hint="write its content here")


@dataclass
class _Parser:
    text: str
    name: str
    read: Read
    prefix: tuple[str, ...]
    including: tuple[str, ...]
    first_line: int = 1

    def __post_init__(self) -> None:
        self._at = 0
        self._depth = 0
        self._lines = [match.start() for match in re.finditer("\n", self.text)]

    # ---- the whole ------------------------------------------------------------------------------------------------

    def root(self) -> Fields:
        self._skip()
        if self._looking_at("["):
            raise self._error("found a list, but the file must be an object")
        if self._looking_at("{"):
            found = self._object(())
            self._skip()
        else:
            found = self._fields((), closing="")
        if self._at < len(self.text):
            raise self._error(f"unexpected {self.text[self._at]!r} after the end of the object")
        return found

    def only_item(self) -> Raw:
        self._skip_blanks()
        value = self._value(())
        self._skip()
        if self._at < len(self.text):
            raise self._error(f"unexpected {self.text[self._at]!r}: one element is expected on a line")
        return value

    # ---- objects --------------------------------------------------------------------------------------------------

    def _object(self, path: tuple[str, ...]) -> Fields:
        opened = self._origin()
        self._enter()
        self._at += 1
        found = self._fields(path, closing="}")
        if not self._looking_at("}"):
            raise self._error("expected `}`", f"the object that began in line {opened.line} is not closed")
        self._at += 1
        self._depth -= 1
        return found

    def _fields(self, path: tuple[str, ...], closing: str) -> Fields:
        origin = self._origin()
        found: dict[str, Raw] = {}
        self._skip()
        while self._at < len(self.text) and not (closing and self._looking_at(closing)):
            new = self._included(path) if _INCLUDE.match(self.text, self._at) else self._field(path)
            for key, value in new.fields.items():
                found[key] = merge(value, found[key]) if key in found else value
            self._separator(closing)
        return Fields(found, origin)

    def _field(self, path: tuple[str, ...]) -> Fields:
        origin = self._origin()
        names = self._path()
        full = path + names
        self._skip()
        if self._looking_at("{"):
            value: Raw = self._value(full)
        elif self._looking_at("+="):
            self._at += 2
            self._skip()
            added = self._value(full)
            value = Joined((Reference(self._alternatives(full), True, origin), Items((added,), origin)), origin)
        elif self._looking_at(":") or self._looking_at("="):
            self._at += 1
            self._skip()
            value = self._value(full)
        else:
            raise self._error(f"expected `=`, `:` or `{{` after the key `{'.'.join(names)}`")
        for name in reversed(names):
            value = Fields({name: value}, origin)
        assert isinstance(value, Fields)
        return value

    def _path(self) -> tuple[str, ...]:
        names: list[str] = []
        current, quoted = "", False
        while True:
            if match := _BLANK.match(self.text, self._at):
                current += match[0]
            elif self._looking_at('"'):
                current, quoted = current.lstrip() + self._quoted(), True
                continue
            elif match := _UNQUOTED.match(self.text, self._at):
                head, *rest = match[0].split(".")
                current += head
                for name in rest:
                    names.append(self._name(current, quoted))
                    current, quoted = name, False
            else:
                break
            self._at = match.end()
        names.append(self._name(current, quoted))
        return tuple(names)

    def _name(self, text: str, quoted: bool) -> str:
        if not text.strip() and not quoted:
            raise self._error("expected a key")
        return text if quoted else text.strip()

    def _separator(self, closing: str) -> None:
        before = self._at
        self._skip()
        parted = "\n" in self.text[before : self._at]
        if self._looking_at(","):
            self._at += 1
            self._skip()
            if self._looking_at(","):
                raise self._error("two commas with nothing between them")
        elif not parted and self._at < len(self.text) and not (closing and self._looking_at(closing)):
            raise self._error(
                f"unexpected {self.text[self._at]!r}", "quote the value, or end it with a newline or a comma"
            )

    # ---- values ---------------------------------------------------------------------------------------------------

    def _value(self, path: tuple[str, ...]) -> Raw:
        origin = self._origin()
        pieces: list[Raw] = []
        while piece := self._piece(path, bool(pieces)):
            pieces.append(piece)
        while pieces and isinstance(pieces[-1], Scalar) and pieces[-1].is_blank:
            pieces.pop()
        if not pieces:
            shown = repr(self.text[self._at]) if self._at < len(self.text) else "the end of the file"
            raise self._error(
                f"expected a value, found {shown}",
                "text with characters other than letters, digits, - _ . / needs quotes",
            )
        return join(tuple(pieces), origin)

    def _piece(self, path: tuple[str, ...], inner: bool) -> Raw | None:
        origin = self._origin()
        if self._looking_at('"""'):
            return Scalar(self._triple_quoted(), True, origin)
        if self._looking_at('"'):
            return Scalar(self._quoted(), True, origin)
        if self._looking_at("${"):
            return self._reference(origin)
        if self._looking_at("{"):
            return self._object(path)
        if self._looking_at("["):
            return self._list(path)
        match = (_BLANK.match(self.text, self._at) if inner else None) or _NUMBER.match(self.text, self._at)
        match = match or _UNQUOTED.match(self.text, self._at)
        if match is None or self._looking_at("//"):
            return None
        self._at = match.end()
        return Scalar(match[0], False, origin)

    def _list(self, path: tuple[str, ...]) -> Items:
        origin = self._origin()
        self._enter()
        self._at += 1
        self._skip()
        items: list[Raw] = []
        while not self._looking_at("]"):
            if self._at >= len(self.text) or self._looking_at("}"):
                raise self._error("expected `]`", f"the list that began in line {origin.line} is not closed")
            items.append(self._value(path))
            self._separator("]" if not self._looking_at("}") else "}")
        self._at += 1
        self._depth -= 1
        return Items(tuple(items), origin)

    def _reference(self, origin: Origin) -> Reference:
        self._at += 2
        optional = self._looking_at("?")
        self._at += optional
        self._skip_blanks()
        path = self._path()
        if not self._looking_at("}"):
            raise self._error("expected `}` at the end of a substitution")
        self._at += 1
        return Reference(self._alternatives(path, written=True), optional, origin)

    def _alternatives(self, path: tuple[str, ...], written: bool = False) -> tuple[tuple[str, ...], ...]:
        """Resolves a path written in an included file relative to its own path first, then from the root."""
        if not self.prefix:
            return (path,)
        return (self.prefix + path, path) if written else (self.prefix + path,)

    def _quoted(self) -> str:
        match = _QUOTED.match(self.text, self._at)
        if match is None:
            raise self._error("a quoted text is not closed on its line")
        text = re.sub(r"\\(u[0-9a-fA-F]{4}|.)", self._unescaped, match[1])
        try:  # characters beyond the basic plane are escaped as two
            text = text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise self._error("incomplete escaped character") from None
        self._at = match.end()
        return text

    def _unescaped(self, match: re.Match[str]) -> str:
        sign = match[1]
        if len(sign) == 5:
            return chr(int(sign[1:], 16))
        if sign not in _ESCAPES:
            raise self._error(f"\\{sign} is not a valid escape", "write \\\\ for a backslash")
        return _ESCAPES[sign]

    def _triple_quoted(self) -> str:
        end = re.compile('"""+').search(self.text, self._at + 3)
        if end is None:
            raise self._error('a text that begins with """ is not closed')
        text = self.text[self._at + 3 : end.end() - 3]
        self._at = end.end()
        return text

    # ---- includes -------------------------------------------------------------------------------------------------

    def _included(self, path: tuple[str, ...]) -> Fields:
        origin = self._origin()
        match = re.compile(r'include[ \t]*(required\()?[ \t]*(\w+\()?[ \t]*("[^"\n]*")[ \t]*\)?[ \t]*\)?').match(
            self.text, self._at
        )
        if match is None:
            raise self._error('expected include "file"')
        if match[2] not in (None, "file("):
            raise self._error(f"include {match[2]}...) is not supported", "put the values into a file of the store")
        self._at += match.start(3) - match.start()
        name = self._quoted()
        self._at = match.end()
        found = self.read(name, origin)
        if found is None:
            return Fields({}, origin)
        shown, text = found
        if shown in self.including or len(self.including) > DEPTH:
            chain = " -> ".join((*self.including, shown))
            raise ConfigError(f"{origin}: files include each other: {chain}", hint="remove one of the includes")
        return _Parser(text, shown, self.read, self.prefix + path, (*self.including, shown)).root()

    # ---- the text -------------------------------------------------------------------------------------------------

    def _skip_blanks(self) -> None:
        if match := _BLANK.match(self.text, self._at):
            self._at = match.end()

    def _skip(self) -> None:
        """Skips blanks, newlines and comments."""
        while match := re.compile(r"(?:[\s\ufeff]+|(?:#|//)[^\n]*)+").match(self.text, self._at):
            self._at = match.end()

    def _looking_at(self, sign: str) -> bool:
        return self.text.startswith(sign, self._at)

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > DEPTH:
            raise self._error(f"braces and brackets are nested more than {DEPTH} deep")

    def _origin(self) -> Origin:
        return Origin(self.name, self.first_line + bisect.bisect_left(self._lines, self._at))

    def _error(self, message: str, hint: str = "") -> ConfigError:
        return ConfigError(
            f"{self._origin()}: {message}", hint=hint or "see the HOCON specification of lightbend/config"
        )
