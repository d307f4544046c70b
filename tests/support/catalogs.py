"""New catalogs of metastores of Hive 3 and 4."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

from hive_metastore import ttypes
from newer_calls import newer_client

from replicator.core.connections import MetastoreConfig
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore, connect

Hives = Callable[..., Running]


def in_catalog(running: Running, place: Path) -> ThriftMetastore:
    """A handle of a new catalog."""
    name = f"c{uuid.uuid4().hex[:8]}"
    with newer_client(running.uri) as client:
        client.create_catalog(ttypes.CreateCatalogRequest(ttypes.Catalog(name, "", f"file:{place}/{name}")))
    return connect(MetastoreConfig(running.uri, catalog=name))
