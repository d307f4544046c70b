"""Configuration: `replicator.toml` as a value. Each command defines what its keys mean; see docs/cli.md.
Policies are read by `policy`; see docs/policies.md.

[metastores.prod]
uri = "thrift://meta-1:9083,thrift://meta-2:9083"

[defaults]
cmroot = "/warehouse/.cmroot"
engine = "auto"

[spark]
executor.memory = "4g"

[policies.west]
source = "prod"
...
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cmroot.store.drivers import Endpoint
from replicator.core.connections import GatewayConfig, MetastoreConfig, check_gateway, checked
from replicator.core.logging import LogConfig
from replicator.core.policy import Policy, parse_policy, refuse_shared_queues, same_metastore
from replicator.core.service_config import (
    LINEAGE,
    AlertConfig,
    JobConfig,
    LineageConfig,
    ServiceConfig,
    check_alerts,
    check_lineage,
    check_service,
)
from replicator.core.source_config import IngestionConfig, check_ingestion, check_zone
from replicator.core.text import parse_size
from replicator.errors import ConfigError, UsageError

NAME = "replicator.toml"

SQLITE = "sqlite:///"


class OptionDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of options that are set neither on the command line nor in the environment."""

    source: str | None = None
    target: str | None = None
    cmroot: str | None = None
    target_cmroot: str | None = None
    source_cmroot: str | None = None
    warehouse: str | None = None
    external_base: str | None = None
    keeper: str | None = None
    engine: str | None = None
    master: str | None = None
    jobs: int | None = None


class GuardConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of one run of a job that removes data: see `lifecycle.removal.removal.Limits`. max_bytes: a size."""

    max_share: float | None = None
    max_bytes: int | str | None = None
    min_depth: int | None = None
    protected: tuple[str, ...] = ()


MAX_SHARE = 0.5
"""Share of the replica's bytes in the dump's scope."""

MAX_BYTES = 1 << 40


@dataclass(frozen=True)
class Brake:
    """The removal limit of one load: max_share, of the replica's bytes, 0 to 1; max_bytes; None: no limit of this
    kind."""

    max_share: float | None = MAX_SHARE
    max_bytes: int | None = MAX_BYTES


BRAKE = Brake()
"""The default."""


def brake_of(guard: GuardConfig, max_share: float | None = None, max_bytes: int | None = None) -> Brake:
    """Returns the requested limit, else that of `[guard]`, else the default. Raises ConfigError for an invalid size."""
    if max_bytes is None and guard.max_bytes is not None:
        try:
            max_bytes = parse_size(str(guard.max_bytes))
        except ValueError as error:
            raise ConfigError(f"guard.max_bytes: {error}", hint="write a size such as 10TiB") from error
    if max_share is None:
        max_share = guard.max_share
    return Brake(
        BRAKE.max_share if max_share is None else max_share, BRAKE.max_bytes if max_bytes is None else max_bytes
    )


class HousekeepingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Store of the housekeeping items (a URL; default: next to the log), and periods for tables that do not set their
    own. The delays are named as in Beekeeper's configuration."""

    store: str | None = None
    default_cleanup_delay: str = "P3D"
    default_expiration_delay: str = "P30D"
    allow_immediate: bool = False


class RetentionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`environment`: names of environment variables that a job file or config store may read as `${NAME}`."""

    environment: tuple[str, ...] = ()

    def allowed(self, environment: Mapping[str, str]) -> dict[str, str | None]:
        """Returns the environment for `lifecycle.retention.job_configuration.read_job`: None for unreadable names."""
        return {name: text if name in self.environment else None for name, text in environment.items()}


class PurgeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values of options of `replicator purge` that the command line does not set; durations as on the command line."""

    ids: str | None = None
    table_whitelist: str | None = None
    field_path: str | None = None
    versions: int | None = None
    days: str | None = None
    grace: str | None = None
    readers: str | None = None  # the former name of grace
    trash: str | None = None


class DumpsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of every dump written or loaded. key_file: its keys sign and verify them (docs/decisions/0009)."""

    key_file: str | None = None


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The entire file. `spark`: settings for Spark, with full names as keys. `policies`: by name, parsed and valid."""

    metastores: dict[str, MetastoreConfig] = {}
    defaults: OptionDefaults = OptionDefaults()
    guard: GuardConfig = GuardConfig()
    housekeeping: HousekeepingConfig = HousekeepingConfig()
    retention: RetentionConfig = RetentionConfig()
    purge: PurgeConfig = PurgeConfig()
    dumps: DumpsConfig = DumpsConfig()
    gateway: GatewayConfig = GatewayConfig()
    ingestion: IngestionConfig = IngestionConfig()
    service: ServiceConfig = ServiceConfig()
    alerts: AlertConfig = AlertConfig()
    lineage: LineageConfig = LineageConfig()
    log: LogConfig = LogConfig()
    spark: dict[str, str] = {}
    stores: dict[str, Endpoint] = {}
    policies: dict[str, Policy] = {}
    looked_for: str = NAME  # not a key of the file: the path of the file that was read

    def policy(self, name: str) -> Policy:
        """Returns a policy by its name. Raises UsageError, listing the known names, if there is no such policy."""
        if name in self.policies:
            return self.policies[name]
        known = ", ".join(sorted(self.policies)) or "(none is configured)"
        raise UsageError(
            f"no policy {name!r} in {self.looked_for}",
            hint=nearest(name, self.policies)
            + f"policies: {known}; --config or REPLICATOR_CONFIG names another file; see docs/policies.md",
        )

    def metastore_uri(self, given: str | MetastoreConfig) -> str:
        """Returns the URI of `metastore`."""
        return self.metastore(given).uri

    def metastore(self, given: str | MetastoreConfig, catalog: str | None = None) -> MetastoreConfig:
        """Returns a metastore by its name in this file, by its URI, or by value. The URI of one table of the file means
        that table's metastore, with its identity. catalog: replaces its own. Raises UsageError for any other text, and
        for a URI that several tables contain with different keys; ConfigError for a value whose keys do not fit
        together."""
        if isinstance(given, MetastoreConfig):
            return checked(_in(given, catalog))
        if given in self.metastores:
            return _in(self.metastores[given], catalog)
        same = {name: _in(each, catalog) for name, each in self.metastores.items() if each.uri == given}
        found = next(iter(same.values()), None)
        if any(each != found for each in same.values()):
            raise UsageError(
                f"{given} is the URI of several metastores", hint=f"use one of their names: {', '.join(same)}"
            )
        if found is not None:
            return found
        if ":" in given:
            return checked(_in(MetastoreConfig(given), catalog))
        raise UsageError(
            f"{given!r} is neither a metastore URI nor the name of a metastore in {self.looked_for}",
            hint=nearest(given, self.metastores)
            + f"write thrift://host:port, or one of: {', '.join(self.metastores) or '(none is configured)'}",
        )

    def default_values(self) -> dict[str, Any]:
        """Returns the defaults that are set, by name."""
        values = msgspec.to_builtins(self.defaults)
        return {key: value for key, value in values.items() if value is not None}


def _in(metastore: MetastoreConfig, catalog: str | None) -> MetastoreConfig:
    return metastore if catalog is None else msgspec.structs.replace(metastore, catalog=catalog)


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the beginning of a hint for an unknown name: the known names that are similar."""
    found = difflib.get_close_matches(name, list(known))
    return f"did you mean {' or '.join(found)}? " if found else ""


def read_config(path: Path | None) -> Config:
    """Reads the file at `path`; None: `replicator.toml` of the working directory, or an empty configuration without it.

    Raises ConfigError naming the key that is unknown or wrong."""
    given = path is not None
    path = path or Path(NAME)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not given:
            return Config(looked_for=f"{path.absolute()}, which does not exist")
        raise ConfigError(f"{path}: the file does not exist", hint="check --config and REPLICATOR_CONFIG") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", hint="check its rights, and that it is UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}", hint="see https://toml.io; strings need quotes") from error
    return _with_stores(parse_config(values, str(path.absolute())), path.absolute().parent)


def _with_stores(config: Config, directory: Path) -> Config:
    """Returns the configuration with the store of ingestion as an absolute path: a relative file of SQLite, and the
    default, are in the directory of the configuration file, regardless of the working directory."""
    store = config.ingestion.store or config.service.store
    file = store.removeprefix(SQLITE)
    if file == store or file.startswith(("/", ":", "file:")) or "?" in file or not file:
        return config
    ingestion = msgspec.structs.replace(config.ingestion, store=f"{SQLITE}{directory / file}")
    return msgspec.structs.replace(config, ingestion=ingestion)


def parse_config(values: Mapping[str, Any], name: str) -> Config:
    """Parses the configuration. Raises ConfigError naming the key; `name` is the origin of the values, for messages."""
    values = dict(values)
    for table, key in ((values, "looked_for"), (values.get("ingestion"), "replicating")):
        if isinstance(table, dict) and key in table:
            raise ConfigError(f"{name}: unknown key `{key}`")
    if isinstance(values.get("spark"), dict):
        values["spark"] = {_spark_key(key): value for key, value in _flat(values["spark"])}
    policies = values.pop("policies", {})
    try:
        config = msgspec.convert(values, Config)
        written = msgspec.convert({"policies": policies}, _Policies).policies
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{name}: {_as_key(str(error))}",
            hint=f"tables: metastores.NAME ({', '.join(MetastoreConfig.__struct_fields__)}), "
            f"defaults ({', '.join(OptionDefaults.__struct_fields__)}), spark, "
            f"policies.NAME, guard ({', '.join(GuardConfig.__struct_fields__)}), "
            f"housekeeping ({', '.join(HousekeepingConfig.__struct_fields__)}), "
            f"purge ({', '.join(PurgeConfig.__struct_fields__)}), "
            f"dumps ({', '.join(DumpsConfig.__struct_fields__)}), "
            f"gateway ({', '.join(GatewayConfig.__struct_fields__)}), "
            f"service ({', '.join(ServiceConfig.__struct_fields__)}), "
            f"alerts ({', '.join(AlertConfig.__struct_fields__)}), "
            f"lineage ({', '.join(LineageConfig.__struct_fields__)}), "
            f"log ({', '.join(LogConfig.__struct_fields__)}), "
            f"ingestion ({', '.join(key for key in IngestionConfig.__struct_fields__ if key != 'replicating')}), "
            f"service.jobs.NAME ({', '.join(JobConfig.__struct_fields__)}), "
            f'stores."s3a://BUCKET" ({", ".join(Endpoint.__struct_fields__)})',
        ) from error
    try:
        for key, metastore in config.metastores.items():
            checked(metastore, f"metastores.{key}")
        check_gateway(config.gateway)
        check_ingestion(config.ingestion)
        check_zone(config.ingestion, {key: each.zone for key, each in config.metastores.items()})
        check_service(config.service)
        check_alerts(config.alerts)
        check_lineage(config.lineage)
        if LINEAGE in config.ingestion.notify.schemas and not (config.lineage.file or config.lineage.url):
            raise ConfigError("ingestion.notify.schemas: [lineage] has neither file nor url", hint="give one of them")
        _ = config.log.interval  # raises ConfigError if invalid
        read = {key: parse_policy(key, value, config.metastore) for key, value in written.items()}
        refuse_shared_queues(read.values())
        _check_scopes(config.ingestion, read)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.message}", hint=error.hint) from error
    if config.dumps.key_file:
        read = {key: msgspec.structs.replace(policy, key_file=config.dumps.key_file) for key, policy in read.items()}
    ingestion = msgspec.structs.replace(config.ingestion, replicating=_replicating(config, read))
    return msgspec.structs.replace(config, policies=read, ingestion=ingestion, looked_for=name)


def _check_scopes(ingestion: IngestionConfig, policies: Mapping[str, Policy]) -> None:
    for name, given in ingestion.classes.items():
        for policy in given.policies or ():
            if policy not in policies:
                hint = nearest(policy, policies) + f"policies: {', '.join(sorted(policies)) or '(none is configured)'}"
                raise ConfigError(f"ingestion.classes.{name}.policies: {policy!r} is not a policy", hint=hint)


def _replicating(config: Config, policies: Mapping[str, Policy]) -> tuple[Policy, ...]:
    """Returns the policies that replicate from the metastore of landing tables."""
    if not config.ingestion.metastore:
        return ()
    landing = config.metastore(config.ingestion.metastore)
    return tuple(each for each in policies.values() if same_metastore(each.source, landing.uri))


def parse_settings(pairs: Iterable[str], option: str = "--set") -> dict[str, str]:
    """Parses `key=value` arguments to a mapping; a value may contain further equals signs. Raises UsageError."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"{option} {pair!r} is not KEY=VALUE", hint="e.g. spark.executor.memory=4g")
        settings[key] = value
    return settings


class _Policies(msgspec.Struct):
    """`[policies.NAME]` before each policy is parsed separately, so that errors can name the policy."""

    policies: dict[str, dict[str, Any]]


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Flattens nested tables to dotted keys: TOML reads a dotted key as nested tables."""
    found = []
    for key, value in values.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((prefix + key, str(value).lower() if isinstance(value, bool) else str(value)))
    return found


def _spark_key(key: str) -> str:
    return key if key.startswith("spark.") else f"spark.{key}"


def _as_key(text: str) -> str:
    """Rewrites msgspec's "Object contains unknown field `x` - at `$.defaults`" with the full key."""
    text = text.replace("Object contains unknown field", "unknown key")
    return text.replace(" - at `$.", " in `").replace("`$.", "`")
