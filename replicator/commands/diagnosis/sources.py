"""Settings: every key of the configuration with its value and where that is from, and the environment that commands
read. Secrets are masked where they stand; `secrets` finds those that a run would use, to mask them elsewhere, too.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import re
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
import msgspec.inspect

from cmroot.lease import decode_holder, held_at
from cmroot.root import DIRECTORIES, open_existing
from cmroot.store.place import Place
from replicator.core.config import Config
from replicator.core.connections import is_reference, read_secret
from replicator.core.policy import KEYS
from replicator.errors import ConfigError
from replicator.policies.memory import POLICIES

# ---- masking ---------------------------------------------------------------------------------------------------------
# Masking: secrets leave a text or value before it is written. Those that are known by value go in every spelling,
# others by the names that they stand under and by the places where tools write them.


MASKED = "***"
SHORTEST = 4
"""Characters: a shorter secret would be found in half of all words."""

_NAMES = r"pass(?:word|wd|phrase)|secret|token|credential|jwt|cookie|authorization|signature"
_NAMES += r"|(?:api|access|account|private|shared|signing|encryption)[-_.]?key"
SECRET_NAME = re.compile(rf"{_NAMES}|^sas$|[._]sas[._]", re.IGNORECASE)
"""Of a key or variable whose value is one. Names of files and of switches are none: see NO_SECRET."""

NO_SECRET = re.compile(r"(?:file|path|keytab|dir|principal|name|provider|class|user|require_token|by)$", re.IGNORECASE)

ACCOUNTS = re.compile(r"account\.key\.|[._]sas\.", re.IGNORECASE)
"""Of names that end with an account's or a container's, which may be any word."""

_PATTERNS = (
    (re.compile(r"([a-zA-Z][\w+.-]*://)[^\s/@'\"]*@"), rf"\1{MASKED}@"),  # user and password in a URL
    (re.compile(r"\b((?:Bearer|Basic|Negotiate)\s+)[\w.~+/=-]{8,}"), rf"\1{MASKED}"),
    (re.compile(rf"((?:{_NAMES})[\w.-]*[\"']?\s*[=:]\s*([\"']))(?:(?!\2).)*(?=\2)", re.I), rf"\1{MASKED}"),
    (re.compile(rf"((?:{_NAMES})[\w.-]*(?:\s*[=:]\s*))(?!file:|env:|command:)[^\s\"'&;,)]+", re.I), rf"\1{MASKED}"),
    (re.compile(rf"(--[\w-]*(?:{_NAMES})[\w-]*\s+)(?!file:|env:|command:|-)\S+", re.I), rf"\1{MASKED}"),
    (re.compile(r"([?&](?:sig|X-Amz-[A-Za-z]+|AWSAccessKeyId)=)[^&\s\"']+", re.IGNORECASE), rf"\1{MASKED}"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), MASKED),
)


class Mask:
    """Takes secrets out of texts, and of values of JSON."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """secrets: known by their values; those shorter than SHORTEST are not looked for."""
        spelled = {each for secret in secrets if len(secret) >= SHORTEST for each in _spellings(secret)}
        longest_first = sorted(spelled, key=lambda each: (-len(each), each))
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MASKED, text)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return text

    def value(self, value: Any) -> Any:
        """The same without secrets; keys of mappings tell which texts are."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.named(str(key), each) for key, each in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.value(each) for each in value]
        return value if isinstance(value, int | float | bool) or value is None else self.text(str(value))

    def named(self, name: str, value: Any) -> Any:
        """A value by the name that it stands under."""
        if is_secret_name(name) and isinstance(value, str) and value:
            return reference_text(value) or MASKED
        return self.value(value)


def is_secret_name(name: str) -> bool:
    return bool(SECRET_NAME.search(name)) and bool(ACCOUNTS.search(name) or not NO_SECRET.search(name))


def reference_text(text: str) -> str:
    """A reference to a secret as it may be shown: of a command its program only; "" for a text that is none."""
    kind, _, place = text.partition(":")
    if kind in ("file", "env") and place:
        return text
    return f"command:{place.split()[0]} {MASKED}" if kind == "command" and place.strip() else ""


def address_text(url: str) -> str:
    """Of a URL whose path may be a secret, as a webhook's: where it leads."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}/{MASKED}"


def _spellings(secret: str) -> Iterable[str]:
    """As it is, in URLs, as hexadecimal digits, as base64, and as JSON has it."""
    data = secret.encode(errors="surrogateescape")
    encoded = base64.b64encode(data).decode().rstrip("=")
    return secret, quote(secret), quote(secret, safe=""), data.hex(), encoded, secret.replace("\\", "\\\\")


# ---- sources ---------------------------------------------------------------------------------------------------------


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


# ---- roots -----------------------------------------------------------------------------------------------------------
# A summary of a `$cmroot`: format, lease, log, pins, and how many files it keeps, by counting names in part of it.


NAMES = 20_000
"""Names that are counted in one directory, and in `files/` together."""

SECONDS = 20.0
"""For counting `files/`."""

SHOWN_PINS = 200

_SEGMENT = re.compile(r"(\d{20})-(\d{20})")
_FILES = 256  # directories below files/, one for each two digits that a content's name begins with


def root_summary(place: str, *, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
    """Reads only. Counts say whether they are complete. Raises FormatError for a place that is no root."""
    root = open_existing(place)
    at = Place(root.place)
    found: dict[str, Any] = {"place": root.place, "id": root.id, "version": root.format.version}
    found["created"] = root.format.created
    found["lease"] = _lease(at)
    found["log"] = _log(at)
    found["files"] = _files(at, clock)
    found["directories"] = {name: _counted(at / name) for name in DIRECTORIES if name not in ("files", "log")}
    found["pins"] = {name: _names(at / name)[:SHOWN_PINS] for name in ("slots", "holds", "legal")}
    found["policies"] = {name: _policy(at / POLICIES / name) for name in _names(at / POLICIES)[:SHOWN_PINS]}
    return found


def _names(place: Place) -> list[str]:
    """At most NAMES of them, without hidden ones."""
    if not place.local:
        return [name for name in place.list() if not name.startswith(".")][:NAMES]
    try:
        with os.scandir(place.local) as entries:
            return sorted(each.name for each in islice(entries, NAMES) if not each.name.startswith("."))
    except FileNotFoundError:
        return []


def _counted(place: Place) -> dict[str, Any]:
    count = len(_names(place))
    return {"names": count, "complete": count < NAMES}


def _policy(place: Place) -> dict[str, Any]:
    return {"lease": _lease(place), "runs": _counted(place / "runs"), "names": _names(place)[:SHOWN_PINS]}


def _lease(root: Place) -> dict[str, Any] | None:
    """Who has it, or had it last. None: nobody ever."""
    path = root / "lease"
    if not root.local:
        epochs = [name for name in path.list() if name.isdecimal()]
        if not epochs:
            return None
        path = path / max(epochs, key=int)
    try:
        holder = decode_holder(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    if holder is None:
        return None
    told = {name: getattr(holder, name) for name in ("epoch", "host", "pid", "since", "purpose", "expires", "released")}
    try:
        return {**told, "held": held_at(str(root), holder.epoch)}
    except OSError as error:  # this user may read, and not write
        return {**told, "held": None, "not_known": str(error)}


def _log(root: Place) -> dict[str, Any]:
    """Segments by their names; whether each is finished is what `cm check` tells."""
    names = _names(root / "log")
    ranges = sorted((int(match[1]), int(match[2])) for name in names if (match := _SEGMENT.fullmatch(name)))
    others = [name for name in names if not _SEGMENT.fullmatch(name)]
    return {
        "segments": len(ranges),
        "complete": len(names) < NAMES,
        "first": ranges[0][0] if ranges else None,
        "last": max((last for _, last in ranges), default=None),
        "others": others[:SHOWN_PINS],
    }


def _files(root: Place, clock: Callable[[], float]) -> dict[str, Any]:
    """How many are counted, in how many of the directories that there are, and what that makes of all: contents are
    spread evenly over them. Directories of an object store are listed one by one."""
    place, began = root / "files", clock()
    names = _names(place) if place.local else [f"{number:02x}" for number in range(_FILES)]
    counted = looked = 0
    for name in names:
        if looked and (counted >= NAMES or clock() - began > SECONDS):
            break
        counted += len(_names(place / name))
        looked += 1
    return {
        "counted": counted,
        "directories": len(names),
        "looked_at": looked,
        "complete": looked == len(names),
        "estimate": round(counted / looked * len(names)) if looked else 0,
    }
