"""Settings: every key of the configuration with its value and where that is from, and the environment that commands
read. Secrets are masked where they stand; `secrets` finds those that a run would use, to mask them elsewhere, too."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect

from replicator.commands.diagnosis.masking import MASKED, Mask, address_text, is_secret_name, reference_text
from replicator.core.config import Config
from replicator.core.connections import is_reference, read_secret
from replicator.core.policy import KEYS
from replicator.errors import ConfigError

_FREE = frozenset({"rename_db", "map_location", "partitions", "s3_events", "spark"})
"""Tables whose keys are anybody's."""

_WEBHOOK = re.compile(r"(alerts|ingestion\.notify)\.webhooks\..*\.url")
_COMMAND = re.compile(r"(alerts|ingestion\.notify)\.commands\..*\.command")

_PATH = 8
"""Characters of the path of a webhook's URL that may be a secret: a shorter one is a word."""

_SHOWN = re.compile(r"(REPLICATOR|SPARK|PYSPARK|HADOOP|HIVE|YARN|JAVA|KRB5|LC_|LANG|TZ$|PYTHON)")
_TOLD = re.compile(r"(AWS|AZURE|GOOGLE|GCS|PG|S3|SSL|HTTPS?_PROXY|NO_PROXY|XDG|TMPDIR)", re.IGNORECASE)


OVERRIDDEN = {
    "log.format": "REPLICATOR_LOG_FORMAT",
    "log.level": "REPLICATOR_LOG_LEVEL",
    "log.file": "REPLICATOR_LOG_FILE",
    "log.heartbeat": "REPLICATOR_HEARTBEAT",
}
"""Variables that give a key's value to every command, whatever the file says; others give options of one command."""


class Setting(msgspec.Struct, frozen=True):
    """key: as docs/configuration.md names it. source: "env:NAME", "FILE:LINE", "FILE", "default", or "caller"."""

    key: str
    value: Any
    source: str


def settings(config: Config, file: Path | None, mask: Mask, env: Mapping[str, str] = {}) -> list[Setting]:
    """Every key that is set, and every other one with its default. file: what was read; None: the caller gave values.
    env: what overrides them. A file that is no TOML raises ConfigError."""
    written, lines = _written(file) if file else ({}, {})
    effective = dict(_flat(_effective(config)))
    given = {key: name for key, name in OVERRIDDEN.items() if env.get(name)}
    keys = sorted({*written, *effective, *given})
    found = []
    for key in keys:
        value = written.get(key, effective.get(key))
        source = "default" if file else "caller"
        if key in given:
            value, source = env[given[key]], f"env:{given[key]}"
        elif key in written:
            source = f"{file}:{lines[key]}" if key in lines else str(file)
        found.append(Setting(key, shown(key, value, mask), source))
    return found


def shown(key: str, value: Any, mask: Mask) -> Any:
    """A key's value as it may be shown."""
    if _WEBHOOK.fullmatch(key):
        return address_text(str(value))
    if _COMMAND.fullmatch(key):
        return [*value[:1], *([MASKED] * len(value[1:]))]
    if re.fullmatch(r"metastores\..*\.headers\..*", key) or _unknown(key):
        return reference_text(str(value)) or MASKED
    return mask.named(key, value)


def _unknown(key: str) -> bool:
    """Whether this is no key of the configuration: perhaps a misspelled one of a secret."""
    *above, last = key.split(".")
    return last not in _known_names() and _FREE.isdisjoint(above)


@functools.cache
def _known_names() -> frozenset[str]:
    return frozenset(KEYS) | frozenset(_fields(msgspec.inspect.type_info(Config)))


def _fields(kind: msgspec.inspect.Type) -> Iterator[str]:
    if isinstance(kind, msgspec.inspect.StructType):
        for each in kind.fields:
            yield each.encode_name
            yield from _fields(each.type)
    elif isinstance(kind, msgspec.inspect.DictType):
        yield from _fields(kind.value_type)
    elif isinstance(kind, msgspec.inspect.UnionType):
        for one in kind.types:
            yield from _fields(one)


def environment(mask: Mask, env: Mapping[str, str]) -> dict[str, str]:
    """What commands, Spark and the drivers of stores read. Of identities of stores and databases, only that they are
    set."""
    found = {}
    for name, value in sorted(env.items()):
        if _SHOWN.match(name):
            found[name] = str(mask.named(name, value))
        elif _TOLD.match(name):
            found[name] = "(set)"
    return found


def secrets(config: Config, env: Mapping[str, str]) -> Iterator[str]:
    """Those that this environment has, and those that the configuration's references to files and variables lead to;
    programs are not run."""
    yield from (value for name, value in env.items() if is_secret_name(name) and not is_reference(value))
    for key, value in _flat(msgspec.to_builtins(config)):
        if _WEBHOOK.fullmatch(key) and len(path := str(value).partition("://")[2].partition("/")[2]) >= _PATH:
            yield path
        if isinstance(value, str) and is_reference(value) and not value.startswith("command:"):
            with contextlib.suppress(ConfigError):
                yield read_secret(value, key)
        elif isinstance(value, str) and "://" in value and "@" in value:
            yield from _of_url(value)
        elif isinstance(value, str) and is_secret_name(key):
            yield value
    for place in (config.dumps.key_file, *(each.key_file for each in config.policies.values())):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            yield from (line.strip() for line in Path(place or os.devnull).read_text().splitlines() if line.strip())


def _of_url(url: str) -> Iterator[str]:
    _, colon, password = url.partition("://")[2].partition("@")[0].partition(":")
    if colon and password:
        yield password


def _effective(config: Config) -> dict[str, Any]:
    """The value that was read, less what is derived from other keys."""
    found: dict[str, Any] = msgspec.to_builtins(config)
    found.pop("looked_for")
    found["ingestion"].pop("replicating")
    for policy in found["policies"].values():
        for derived in ("name", "source_metastore", "target_metastore", "key_file"):
            policy.pop(derived)
    return found


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Values by dotted keys; lists are values."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _flat(each, f"{key}.{name}" if key else str(name))
    elif key and value != {}:
        yield key.replace("spark.spark.", "spark.", 1) if key.startswith("spark.spark.") else key, value


_TABLE = re.compile(r"\s*\[\[?\s*(.+?)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=")
_PART = re.compile(r"[\w-]+|\"[^\"]*\"|'[^']*'")


def _written(file: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """What the file says, and on which lines; keys within inline tables have none of their own."""
    try:
        text = file.read_text(encoding="utf-8")
        values = dict(_flat(tomllib.loads(text)))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}", hint="see https://toml.io; strings need quotes") from error
    table, lines = "", {}
    for number, line in enumerate(text.splitlines(), 1):
        if head := _TABLE.fullmatch(line):
            table = _joined(head[1])
        elif match := _KEY.match(line):
            key = f"{table}.{_joined(match[1])}".lstrip(".")
            lines[f"spark.{key.removeprefix('spark.spark.')}" if key.startswith("spark.spark.") else key] = number
    below = {key: next((lines[up] for up in _above(key) if up in lines), None) for key in values}
    return values, {key: number for key, number in below.items() if number is not None}


def _joined(key: str) -> str:
    return ".".join(part.strip("\"'") for part in _PART.findall(key))


def _above(key: str) -> Iterator[str]:
    """The key, and the tables that it may be written inline in."""
    while key:
        yield key
        key = key.rpartition(".")[0]
