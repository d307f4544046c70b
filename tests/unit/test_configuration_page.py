"""docs/configuration.md: every key of the file is there, and its example is read."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from replicator.core import config, service_config, source_config

PAGE = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
TABLES = {
    "metastores.NAME": config.MetastoreConfig,
    "defaults": config.OptionDefaults,
    "guard": config.GuardConfig,
    "housekeeping": config.HousekeepingConfig,
    "retention": config.RetentionConfig,
    "purge": config.PurgeConfig,
    "dumps": config.DumpsConfig,
    'stores."s3a://BUCKET"': config.Endpoint,
    "service": config.ServiceConfig,
    "service.jobs.NAME": config.JobConfig,
    "service.proxy": service_config.ProxyConfig,
    "service.proxy.groups.NAME": service_config.GroupConfig,
    "service.limits": service_config.LimitConfig,
    "alerts": config.AlertConfig,
    "lineage": config.LineageConfig,
    "ingestion": config.IngestionConfig,
    "ingestion.sources.NAME": source_config.SourceConfig,
    "ingestion.classes.NAME": source_config.ClassConfig,
    "log": config.LogConfig,
}
FORMER = {"purge": ["readers"]}  # names that still work and that nobody should learn
DERIVED = {"ingestion": ["replicating"]}  # of other tables, and refused in the file


@pytest.mark.parametrize("name", TABLES)
def test_the_keys_of_a_table_are_those_of_the_code(name: str) -> None:
    section = PAGE.partition(f"## `[{name}]`")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    keys = [key for key in TABLES[name].__struct_fields__ if key not in FORMER.get(name, []) + DERIVED.get(name, [])]
    assert [key for row in rows for key in re.findall(r"`(\w+)`", row)] == keys


def test_the_tables_are_those_of_the_code() -> None:
    sections = set(re.findall(r"^## `\[(\w+)", PAGE, re.MULTILINE))
    assert sections == set(config.Config.__struct_fields__) - {"looked_for"}


def test_the_example_is_read() -> None:
    read = config.parse_config(tomllib.loads(PAGE.partition("```toml\n")[2].partition("```")[0]), "page")
    assert read.policy("west").source == read.metastore_uri("prod")


def test_defaults_on_the_page_are_the_codes() -> None:
    defaults = msgspec.to_builtins(config.HousekeepingConfig())
    for key in ("default_cleanup_delay", "default_expiration_delay"):
        assert f"`{key}` | ISO 8601 period | `{defaults[key]}`" in PAGE
