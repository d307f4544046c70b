"""Spark's reader of Avro, which its distribution leaves out: fetched once, as the drivers of databases are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicator.core.connections.source_config import SourceConfig
from replicator.errors import ConfigError
from replicator.metastore.embedded.fetching import Artifact, fetch
from replicator.metastore.java import cache_directory, find_java

AVRO = Artifact(
    "org.apache.spark:spark-avro_2.13:4.2.0", "4c186cedc03cbe4ee356a94b32232b347ef48611c3209400b3a77e4fe4abff4f"
)
"""Seen to work with Spark 4.3, too."""

_HINT = "give the jar of spark-avro as `jar` of the source, or a mirror as REPLICATOR_MAVEN_REPOSITORY"


def avro_jar(session: Any, source: SourceConfig, env: Mapping[str, str]) -> Path:
    """Raises ConfigError for a Spark that needs another one, else as `fetch` does."""
    if source.jar:
        if not (given := Path(source.jar).expanduser()).is_file():
            raise ConfigError(f"the jar {given} of a source is not there", hint="check `jar` of the source")
        return given.absolute()
    if not session.version.startswith("4."):
        raise ConfigError(
            f"Spark {session.version} needs its own spark-avro", hint="give its jar as `jar` of the source"
        )
    kept = cache_directory(env) / "jars"
    fetch([AVRO], kept, find_java(env), env, _HINT)
    return kept / AVRO.file_name
