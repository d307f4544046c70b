"""The job file: the input of a run in addition to the config store. Reads only.

`.conf` and `.json` files are HOCON; all others are Java properties, like Gobblin's own job files. A directory is taken
for a config store, without a job file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cmroot.store.place import as_written, is_local, name_of
from replicator.core import text
from replicator.errors import ConfigError
from replicator.lifecycle.retention.config.config_store import STORE, ConfigStore, Settings, is_directory
from replicator.lifecycle.retention.config.hocon.hocon_values import (
    Fields,
    Origin,
    Raw,
    Scalar,
    merge,
    merge_fields,
    resolve,
)
from replicator.lifecycle.retention.config.hocon.parse import parse

STORE_URI = "gobblin.config.management.store.uri"
RUNTIME = "gobblin.config.runtime."


@dataclass(frozen=True)
class JobFile:
    """The input of a run. `settings`: the job file's keys, overridden by those set for the run; `store`: None without
    one; `warnings`: keys without effect or with a different effect."""

    place: str
    settings: Settings
    store: ConfigStore | None
    warnings: list[str] = field(default_factory=list)


def read_job(
    place: str, *, given: Mapping[str, str] | None = None, environment: Mapping[str, str | None] | None = None
) -> JobFile:
    """Reads a job file, or accepts a store's directory. `given` keys override the file's. `environment`: values for
    `${NAME}`; None for a variable that exists and may not be read. Raises ConfigError with the file and line."""
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
    return JobFile(place, settings, store)


def _is_store(place: str) -> bool:
    return is_directory(place) or (not is_local(place) and is_directory(f"{place}/{STORE}"))


def _beside(uri: str, place: str) -> str:
    """Resolves the relative path of a store against the job file's directory."""
    if ":" in uri or uri.startswith("/") or not is_local(place):
        return uri
    return str(Path(place).resolve().parent / uri)


def _read(place: str) -> Fields:
    name = name_of(place)
    try:
        data = as_written(place).read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"{place}: there is no such file", hint="name a job file, or a config store's directory"
        ) from None
    if not name.endswith((".conf", ".json", ".hocon")):
        return _as_fields(_properties(data, name), name)
    try:
        return parse(data.decode("utf-8"), name)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place}: not UTF-8: {error}", hint="save the file as UTF-8") from error


def _properties(data: bytes, name: str) -> Iterator[tuple[str, str, Origin]]:
    try:
        for key, value, line in text.entries(text.decoded(data)):
            yield key, value, Origin(name, line)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}", hint="it is read as Java properties") from error


def _fields(values: Mapping[str, str], name: str) -> Fields:
    return _as_fields(((key, value, Origin(name, 0)) for key, value in values.items()), name)


def _as_fields(properties: Iterator[tuple[str, str, Origin]], name: str) -> Fields:
    """Builds nested fields. If a key is a value and a prefix of others, the others win, as in the Typesafe library."""
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
    """Returns the values of `gobblin.config.runtime.x`, which are `${x}` in the store."""
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
