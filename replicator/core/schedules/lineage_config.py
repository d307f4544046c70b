"""`[lineage]` of the configuration: where events of runs go, in OpenLineage's words."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from replicator.core.connections.secret import is_reference
from replicator.errors import ConfigError


class LineageConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """file: gets a line of JSON for each event. url: gets a POST. token: a reference to its bearer token. namespace: of
    the jobs, which are called as their policies."""

    file: str | None = None
    url: str | None = None
    token: str | None = None
    namespace: str = "replicator"


def check_lineage(lineage: LineageConfig) -> None:
    """Raises ConfigError naming the key that is wrong."""
    if lineage.url is not None:
        parts = urlsplit(lineage.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
            raise ConfigError("lineage.url: is no http or https URL without a password")
    if lineage.token is not None and not is_reference(lineage.token):
        hint = "write file:PATH, env:NAME or command:PROGRAM"
        raise ConfigError("lineage.token: a secret is not written here", hint=hint)
