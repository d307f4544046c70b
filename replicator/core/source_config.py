"""`[ingestion]` of the configuration: the landing tables, and the databases and directories that are ingested.

SourceConfig(url="jdbc:postgresql://crm:5432/crm", user="replicator", password="file:/etc/crm.password")
SourceConfig(path="/drop/sales")
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from replicator.core.connections import is_reference, read_secret
from replicator.core.policy import Policy
from replicator.core.service_config import NotifyConfig, check_notify
from replicator.core.text import parse_duration
from replicator.errors import ConfigError

KINDS = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mariadb"}
"""Kinds of databases, by the word after `jdbc:` in their URLs."""

SHORTEST_LEASE = 10
"""Seconds: a controller renews its lease at each third of it."""

IDS = re.compile(r"[a-z0-9_]+\.[a-z0-9_]+:\w+", re.IGNORECASE)
"""The ids of erased data subjects: "db.table:column"."""

DRIVER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
"""The name of a Java class."""

LANDING_ZONE = "landing"

POOL = re.compile(r"[\w.-]{1,64}", re.ASCII)


class SourceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A database, or a directory of files. url: of its JDBC driver, without user and password. password: a reference to
    a secret. readers: maximum of connections of one job. fetch: rows that a reader fetches at a time. jar: the driver,
    or Spark's Avro reader, in place of the downloaded one. driver: the class of the driver in `jar`, of a database of
    another kind. path: of the directory, instead of `url`: files of SCHEMA.TABLE are in SCHEMA/TABLE below it."""

    url: str = ""
    user: str = ""
    password: str | None = None
    readers: int = 8
    fetch: int = 10_000
    jar: str | None = None
    driver: str = ""
    path: str = ""

    @property
    def kind(self) -> str:
        """One of `KINDS`; "files" for a directory, "jdbc" for a database of another kind."""
        return "files" if self.path else "jdbc" if self.driver else KINDS[self.url.split(":")[1]]

    def secret(self, name: str) -> str:
        """Returns the password, read again; empty without one. Raises ConfigError."""
        return read_secret(self.password, f"ingestion.sources.{name}.password") if self.password else ""


MatchRule = Literal["exact", "trim", "nfc", "casefold", "numeric"]
"""A rule by which two spellings of an id are equal, as in `lifecycle.purge.matching`."""


def is_match(rules: tuple[MatchRule, ...] | None) -> bool:
    """Returns False where `exact` is combined with another rule."""
    return not rules or "exact" not in rules or len(set(rules)) == 1


class ClassConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults of the assets of a classification: see `Asset`. policies: the policies that may replicate its landed
    tables, regardless of the assets' settings; None: all."""

    retention: str | None = None
    erasure_ids: str | None = None
    erasure_column: str | None = None
    erasure_match: tuple[MatchRule, ...] | None = None
    policies: tuple[str, ...] | None = None


class IngestionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """metastore: of the landing tables, a configured name or a URI. landing: a directory that only ingestion writes to.
    store: of jobs, a database URL; None: that of `[service]`. slots: concurrent jobs of all controllers; share: of the
    slots that one asset may use. lease: how long a job remains assigned to a controller that has disappeared. expire: a
    job that fails for so long, or `attempts` times, is aborted. log: the table of all state changes, "db.table". pool:
    of Spark's fair scheduler, in which all ingestion runs. ahead: how far the greatest watermark may be ahead of this
    machine's clock. max_loss: the share of the landed rows that an overwrite may remove. recount: how often the
    numbers of landed rows and of the source's rows are compared. single_user: for trying: users may approve assets that
    they created or changed. notify: receivers of notifications. classes: by classification, the defaults of its assets.
    replicating: not a key of the file: the policies whose source is `metastore`."""

    metastore: str = ""
    landing: str = ""
    store: str | None = None
    slots: int = 4
    share: float = 0.5
    lease: str = "60s"
    expire: str = "7d"
    attempts: int = 100
    log: str = "governance.ingestion_log"
    pool: str = "ingestion"
    ahead: str = "1d"
    max_loss: float = 0.5
    recount: str = "1d"
    single_user: bool = False
    sources: dict[str, SourceConfig] = {}
    notify: NotifyConfig = NotifyConfig()
    classes: dict[Literal["public", "internal", "confidential", "personal"], ClassConfig] = {}
    replicating: tuple[Policy, ...] = ()


def check_ingestion(ingestion: IngestionConfig) -> None:
    """Raises ConfigError naming the key that is wrong."""
    for name, source in ingestion.sources.items():
        key = f"ingestion.sources.{name}"
        if source.path:
            _check_directory(source, key, ingestion.landing)
            continue
        words = source.url.split(":", 2)
        _check_kind(source, words, key)
        user = re.search(r"\w/[^/@]*@|//[^/@]+@" if source.driver else "@", words[2].split("?")[0])
        if "password" in source.url.lower() or user:
            raise ConfigError(f"{key}.url: contains a user or a password", hint="set user, and password by reference")
        if source.password is not None and not is_reference(source.password):
            hint = 'write "file:/path", "env:NAME" or "command:program argument"'
            raise ConfigError(f"{key}.password: is not a reference to a secret", hint=hint)
        if source.readers < 1 or source.fetch < 1:
            raise ConfigError(f"{key}: readers and fetch must be at least 1")
    for name, given in ingestion.classes.items():
        _check_class(given, f"ingestion.classes.{name}")
    if ingestion.slots < 1:
        raise ConfigError("ingestion.slots: is less than 1")
    if not 0 < ingestion.share <= 1:
        raise ConfigError("ingestion.share: is not between 0 and 1")
    if not 0 <= ingestion.max_loss <= 1:
        raise ConfigError("ingestion.max_loss: is not between 0 and 1")
    if ingestion.attempts < 1:
        raise ConfigError("ingestion.attempts: is less than 1")
    for key, example in (("expire", "7d"), ("lease", "60s"), ("ahead", "1d"), ("recount", "1d")):
        try:
            found = parse_duration(getattr(ingestion, key))
        except ValueError as error:
            raise ConfigError(f"ingestion.{key}: {error}", hint=f"write a duration such as {example}") from error
        if key == "lease" and found.total_seconds() < SHORTEST_LEASE:
            raise ConfigError(f"ingestion.lease: is less than {SHORTEST_LEASE} seconds", hint="60s suits most cases")
    if not POOL.fullmatch(ingestion.pool):
        raise ConfigError("ingestion.pool: is not a pool name", hint="use letters, digits, _, - and .")
    if ingestion.log.count(".") != 1:
        raise ConfigError("ingestion.log: is not a table name", hint="write db.table")
    check_notify(ingestion.notify)


def check_zone(ingestion: IngestionConfig, zones: Mapping[str, str | None]) -> None:
    """Checks that tables land in a metastore of the zone "landing", if metastores have zones. `zones`: by their names.
    Raises ConfigError."""
    if ingestion.metastore and any(zones.values()) and zones.get(ingestion.metastore) != LANDING_ZONE:
        there = ", ".join(sorted(name for name, zone in zones.items() if zone == LANDING_ZONE)) or "none"
        told = f"ingestion.metastore: {ingestion.metastore} is not in zone {LANDING_ZONE}"
        raise ConfigError(told, hint=f"[metastores] with this zone: {there}")


def _check_kind(source: SourceConfig, words: list[str], key: str) -> None:
    is_jdbc = len(words) == 3 and words[0] == "jdbc"
    if not is_jdbc or (words[1] not in KINDS and not source.driver):
        hint = "write a JDBC URL such as jdbc:postgresql://host:5432/database; other databases need driver and jar"
        raise ConfigError(f"{key}.url: only {', '.join(KINDS)} are known, not {source.url[:60]!r}", hint=hint)
    if source.driver and words[1] in KINDS:
        raise ConfigError(f"{key}.driver: the driver of {words[1]} is known", hint="omit driver; jar names another jar")
    if source.driver and not (source.jar and DRIVER.fullmatch(source.driver)):
        raise ConfigError(f"{key}.driver: is not a class in a jar", hint='write driver = "org.h2.Driver", and its jar')


def _check_class(given: ClassConfig, key: str) -> None:
    if given.erasure_ids is not None and not IDS.fullmatch(given.erasure_ids):
        raise ConfigError(f"{key}.erasure_ids: is not a column of ids", hint="write DB.TABLE:COLUMN")
    if not is_match(given.erasure_match):
        raise ConfigError(f"{key}.erasure_match: combines exact with another rule", hint="write exact alone")
    try:
        _ = parse_duration(given.retention or "0s")
    except ValueError as error:
        raise ConfigError(f"{key}.retention: {error}", hint="write a duration such as 30d") from error


def _check_directory(source: SourceConfig, key: str, landing: str) -> None:
    if source.url or source.user or source.password:
        raise ConfigError(f"{key}: has a path and a database's url, user or password", hint="set one of them")
    if not (source.path.startswith("/") or "://" in source.path):
        raise ConfigError(f"{key}.path: {source.path[:60]!r} is neither an absolute path nor a URL")
    one, other = (each.rstrip("/") + "/" for each in (source.path, landing or "/"))
    if landing and (one.startswith(other) or other.startswith(one)):
        raise ConfigError(f"{key}.path: overlaps ingestion.landing", hint="only ingestion may write where tables land")
