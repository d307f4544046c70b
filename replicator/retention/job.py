"""The job file: what a run is told beside the config store. Reads only.

`.conf` and `.json` files are HOCON; everything else is Java properties, as Gobblin's own job files are. A directory
counts as a config store, with no job file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cmroot.place import is_local, name_of, normal, store_for
from replicator.errors import ConfigError
from replicator.retention.hocon.parse import parse
from replicator.retention.hocon.resolve import resolve
from replicator.retention.hocon.values import Fields, Origin, Raw, Scalar, merge, merge_fields
from replicator.retention.settings import Settings
from replicator.retention.store import STORE, ConfigStore, is_directory

STORE_URI = "gobblin.config.management.store.uri"
RUNTIME = "gobblin.config.runtime."


@dataclass(frozen=True)
class Job:
    """What a run is told. `settings`: the job file's keys under those given for the run; `store`: None without one;
    `warnings`: what in it has no effect or another than it had."""

    place: str
    settings: Settings
    store: ConfigStore | None
    warnings: list[str] = field(default_factory=list)


def read_job(
    place: str, *, given: Mapping[str, str] | None = None, environment: Mapping[str, str | None] | None = None
) -> Job:
    """Reads a job file, or takes a store's directory. `given` keys win over the file's. `environment`: what `${NAME}`
    may read; None for a name that exists and may not be. Raises ConfigError with the file and line."""
    given = dict(given or {})
    fields = _fields(given, "--set")
    if _is_store(place):
        given = {STORE_URI: place, **given}
        fields = _fields(given, place)
    else:
        fields = merge_fields(fields, _read(place))
    variables = {**(environment or {}), **_runtime(fields)}
    settings = Settings(resolve(fields, variables), place)
    uri = settings.text(STORE_URI)
    version = settings.text("gobblin.config.management.store.version")
    store = ConfigStore.open(_beside(uri, place), version=version, variables=variables) if uri else None
    return Job(place, settings, store)


def _is_store(place: str) -> bool:
    return is_directory(place) or (not is_local(place) and is_directory(f"{place}/{STORE}"))


def _beside(uri: str, place: str) -> str:
    """A store given as a relative path lies beside the job file."""
    if ":" in uri or uri.startswith("/") or not is_local(place):
        return uri
    return str(Path(place).resolve().parent / uri)


def _read(place: str) -> Fields:
    name = name_of(place)
    try:
        text = store_for(place).read_bytes(normal(place)).decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{place}: there is no such file", hint="name a job file, or a config store's directory"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place}: not UTF-8: {error}", hint="save the file as UTF-8") from error
    if name.endswith((".conf", ".json", ".hocon")):
        return parse(text, name)
    return _as_fields(parse_properties(text, name), name)


def parse_properties(text: str, name: str) -> Iterator[tuple[str, str, Origin]]:
    """Java properties: `key=value`, `key: value` or `key value`, `#` and `!` comments, lines that go on after a
    backslash, `\\uXXXX`."""
    lines = enumerate(text.splitlines(), 1)
    for number, first in lines:
        line = first.lstrip()
        if not line or line[0] in "#!":
            continue
        while _goes_on(line):
            _, more = next(lines, (0, ""))
            line = line[:-1] + more.lstrip()
        match = re.match(r"((?:[^\\=:\s]|\\.)*)\s*[=:]?\s*(.*)", line, re.DOTALL)
        assert match
        yield _unescaped(match[1]), _unescaped(match[2]), Origin(name, number)


def _goes_on(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        sign = match[1]
        if len(sign) == 5:
            return chr(int(sign[1:], 16))
        return {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}.get(sign, sign)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text, flags=re.DOTALL)


def _fields(values: Mapping[str, str], name: str) -> Fields:
    return _as_fields(((key, value, Origin(name, 0)) for key, value in values.items()), name)


def _as_fields(properties: Iterator[tuple[str, str, Origin]], name: str) -> Fields:
    """A key that is both a value and the beginning of others keeps the others, as in the Typesafe library."""
    found: Raw = Fields({}, Origin(name, 0))
    entries = sorted(properties, key=lambda entry: len(entry[0].split(".")))
    for key, value, origin in entries:
        one: Raw = Scalar(value, True, origin)
        for part in reversed(key.split(".")):
            one = Fields({part: one}, origin)
        found = merge(one, found)
    assert isinstance(found, Fields)
    return found


def _runtime(fields: Fields) -> dict[str, str]:
    """`gobblin.config.runtime.x` is `${x}` for the store."""
    return {
        ".".join(path)[len(RUNTIME) :]: value.text
        for path, value in _scalars(fields, ())
        if ".".join(path).startswith(RUNTIME)
    }


def _scalars(fields: Fields, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Scalar]]:
    for key, value in fields.fields.items():
        if isinstance(value, Fields):
            yield from _scalars(value, (*path, key))
        elif isinstance(value, Scalar):
            yield (*path, key), value
