"""The JDBC drivers of sources: fetched once into the cache, or those that the configuration names.

MySQL is read by MariaDB's driver, too: it streams rows as they are asked for (MySQL's own reads a whole answer into
memory first), and it may be given with this program's licence. It takes URLs of MySQL only where they say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from replicator.core.connections.source_config import SourceConfig
from replicator.errors import ConfigError
from replicator.metastore.embedded.fetching import Artifact, fetch
from replicator.metastore.java import Java, cache_directory

POSTGRES = Artifact(
    "org.postgresql:postgresql:42.7.14", "73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c"
)
MARIADB = Artifact(
    "org.mariadb.jdbc:mariadb-java-client:3.5.11", "42604178b9e57ec08ee0035079961516f086e455d0141f0b22c6eff29fb2fff4"
)
CLASSES = {
    "postgresql": "org.postgresql.Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
    "mysql": "org.mariadb.jdbc.Driver",
}
"""Of each kind of source."""

_ARTIFACTS = {"postgresql": POSTGRES, "mariadb": MARIADB, "mysql": MARIADB}
_HINT = "give the driver's jar as `jar` of the source, or a mirror as REPLICATOR_MAVEN_REPOSITORY"


def driver_jars(sources: Iterable[SourceConfig], java: Java, env: Mapping[str, str]) -> list[Path]:
    """For `spark.jars`, each once; directories need none. Raises ConfigError for a missing jar, and as `fetch` does."""
    wanted: dict[Path, Artifact | None] = {}
    kept = cache_directory(env) / "jars"
    for source in sources:
        if source.path:
            continue
        if source.jar:
            if not (given := Path(source.jar).expanduser()).is_file():
                raise ConfigError(f"the driver {given} of a source is not there", hint="check `jar` of the source")
            wanted[given.absolute()] = None
        else:
            artifact = _ARTIFACTS[source.kind]
            wanted[kept / artifact.file_name] = artifact
    if missing := [artifact for artifact in wanted.values() if artifact]:
        fetch(missing, kept, java, env, _HINT)
    return list(wanted)


def give_drivers(session: Any, jars: Iterable[Path]) -> None:
    """Lets this thread's reading with a session find the drivers, also in a Spark that somebody else has started, and
    in the second one of a JVM: it has `spark.jars` for its executors only. May run twice."""
    for jar in map(str, jars):
        session._jsparkSession.sessionState().resourceLoader().addJar(jar)


def spark_url(source: SourceConfig) -> str:
    """The URL by which both Spark and the driver know the database: Spark quotes names as MySQL does only behind
    `jdbc:mysql`, else it reads a column as the text of its name."""
    if source.kind == "postgresql":
        return source.url
    url = "jdbc:mysql:" + source.url.split(":", 2)[2]
    if "permitMysqlScheme" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}permitMysqlScheme"
