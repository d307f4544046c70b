"""Catalogs of Hive 3 and 4: one is replicated, and one database name in two of them is never mixed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from hive_metastore import ttypes
from newer_calls import newer_client
from plain_tables import PlainDatabase

from replicator.core.connections.metastore_config import MetastoreConfig
from replicator.errors import ObjectNotFound
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.removal.live import LiveLocations
from replicator.replay.places.neighbours import Neighbours

Hives = Callable[..., Running]


def in_catalog(running: Running, place: Path) -> ThriftMetastore:
    """A handle of a new catalog."""
    name = f"c{uuid.uuid4().hex[:8]}"
    with newer_client(running.uri) as client:
        client.create_catalog(ttypes.CreateCatalogRequest(ttypes.Catalog(name, "", f"file:{place}/{name}")))
    return connect(MetastoreConfig(running.uri, catalog=name))


@pytest.mark.parametrize("version", ["3.1", "4.2"])
def test_every_call_is_about_the_handles_catalog(version: str, hives: Hives, tmp_path: Path) -> None:
    running = hives(version)
    own, other = connect(running.uri), in_catalog(running, tmp_path)
    name = f"db_{uuid.uuid4().hex[:8]}"
    here, there = PlainDatabase(own, name, tmp_path / "own"), PlainDatabase(other, name, tmp_path / "other")
    before = other.current_event_id()
    for each in (here, there):
        each.create()
        each.table("t", {"first": each.metastore.catalog})
        each.partitioned("p", {"1": {"x": each.metastore.catalog}})
    assert own.table_names(name) == other.table_names(name) == ["p", "t"]
    assert other.table(name, "t").location != own.table(name, "t").location
    assert other.partition_names(name, "p") == own.partition_names(name, "p")
    (mine,), (theirs,) = (list(each.partitions(name, "p", each.partition_names(name, "p"))) for each in (own, other))
    assert [each.location for each in mine] != [each.location for each in theirs]
    assert own.table(name, "t").extra.get("17") == other.table(name, "t").extra.get("17")
    mine_only = [event for event in own.next_events(before) if event.catalog is None]
    theirs_only = [event for event in other.next_events(before) if event.catalog is None]
    assert len(mine_only) == len(theirs_only) > 0
    assert not {event.id for event in mine_only} & {event.id for event in theirs_only}

    place = theirs[0].location or ""
    assert {each.db for each in Neighbours(own).touching(place)} == {f"@{other.catalog}#{name}"}
    with LiveLocations(own) as live:
        assert {each.db for each in live.references(place)} == {f"@{other.catalog}#{name}"}
        there.table("u", {"first": "1"})
        live.refresh()
        assert [each.object for each in live.references(other.table(name, "u").location or "")] == [
            f"@{other.catalog}#{name}.u"
        ]
    for table in ("t", "p", "u"):
        other.drop_table(name, table)
    other.drop_database(name)
    assert own.table_names(name) == ["p", "t"] and name not in other.database_names()


def test_a_server_without_the_catalog_is_refused(source_metastore: Running, hives: Hives) -> None:
    for uri in (source_metastore.uri, hives("4.2").uri):
        with connect(MetastoreConfig(uri, catalog="elsewhere")) as metastore:
            with pytest.raises(ObjectNotFound, match="has no catalog elsewhere"):
                metastore.database_names()
            with pytest.raises(ObjectNotFound, match="has no catalog elsewhere"):
                metastore.drop_database("default")
