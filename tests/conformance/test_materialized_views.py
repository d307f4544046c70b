"""Materialized views under another name of their database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hive_metastore import ttypes
from hive_objects import hive_client
from policies import Replication

from replicator.core.model import Database
from replicator.core.not_replicated import PROPERTY, from_property
from replicator.metastore.embedded.running import Running
from replicator.policies.run import SyncRun
from replicator.replay.places.server_rules import LACKS


@pytest.mark.parametrize("hive", ["3.1", "4.2"])
def test_what_they_are_made_of_is_renamed(hives: Callable[..., Running], hive: str, tmp_path: Path) -> None:
    source, target = hives(hive), hives(hive, "target")
    pair = Replication(source, target, tmp_path)
    db, renamed = f"{pair.name}_a", f"{pair.name}_renamed"
    pair.keys["rename_db"] = {db: renamed}
    pair.db("a").table("t", {"first": "1"}, kind="EXTERNAL_TABLE")
    text = f"select a from {db}.t"
    with hive_client(source) as client:
        made = ttypes.CreationMetadata(catName="hive", dbName=db, tblName="mv", tablesUsed={f"{db}.t"})
        if hive != "3.1":
            read = ttypes.SourceTable(table=client.get(db, "t"), insertedCount=0, updatedCount=0, deletedCount=0)
            made.sourceTables = [read]
        kind = {"kind": "MATERIALIZED_VIEW", "viewOriginalText": text, "viewExpandedText": text}
        client.table(db, "mv", creationMetadata=made, **kind)
    assert pair.sync().not_replicated == []
    with hive_client(target) as client:
        found = client.get(renamed, "mv")
    assert found.viewOriginalText == f"select a from {renamed}.t"
    assert (found.creationMetadata.dbName, set(found.creationMetadata.tablesUsed)) == (renamed, {f"{renamed}.t"})
    assert [each.table.dbName for each in found.creationMetadata.sourceTables or ()] in ([], [renamed])


@pytest.mark.parametrize("hive", ["3.1", "4.2"])
def test_one_is_made_after_what_it_reads(hives: Callable[..., Running], hive: str, tmp_path: Path) -> None:
    """A server refuses a materialized view over what it does not have yet."""
    source, target = hives(hive), hives(hive, "target")
    pair = Replication(source, target, tmp_path)
    db, renamed = f"{pair.name}_a", f"{pair.name}_renamed"
    pair.keys["rename_db"] = {db: renamed}
    pair.db("a").table("t", {"first": "1"}, kind="EXTERNAL_TABLE")
    reads = {"view": "t", **{f"mv{4 - n}": f"mv{5 - n}" if n else "view" for n in range(4)}}
    with hive_client(source) as client:
        for name, read in reads.items():
            text = f"select a from {db}.{read}"
            fields = {"viewOriginalText": text, "viewExpandedText": text}
            if name == "view":
                client.table(db, name, kind="VIRTUAL_VIEW", **fields)
                continue
            made = ttypes.CreationMetadata(catName="hive", dbName=db, tblName=name, tablesUsed={f"{db}.{read}"})
            if hive != "3.1":
                made.sourceTables = [
                    ttypes.SourceTable(table=client.get(db, read), insertedCount=0, updatedCount=0, deletedCount=0)
                ]
            client.table(db, name, kind="MATERIALIZED_VIEW", creationMetadata=made, **fields)
    assert pair.sync().not_replicated == []
    assert set(pair.target.table_names(renamed)) == {"t", *reads}
    with hive_client(target) as client:
        for name, read in reads.items():
            if name != "view":
                assert set(client.get(renamed, name).creationMetadata.tablesUsed) == {f"{renamed}.{read}"}

    with hive_client(source) as client:  # all at once, the table that they read, too
        for name in [*reversed(reads), "t"]:
            client.drop(db, name)
    assert pair.sync().not_replicated == []
    assert pair.target.table_names(renamed) == []


def test_what_a_server_does_not_store_is_named_as_long_as_it_is_so(
    hives: Callable[..., Running], tmp_path: Path
) -> None:
    """Of views and of tables: by every run, and by the replica itself."""
    source = hives("3.1")
    pair = Replication(source, hives("2.3"), tmp_path)
    db, reasons = f"{pair.name}_a", {rule.what: rule.reason for rule in LACKS}
    pair.db("a").table("t", {"first": "1"}, kind="EXTERNAL_TABLE")
    pair.db("a").table("owned", {"first": "1"}, kind="EXTERNAL_TABLE", owner_type="ROLE")
    text = f"select a from {db}.t"
    with hive_client(source) as client:
        made = ttypes.CreationMetadata(catName="hive", dbName=db, tblName="mv", tablesUsed={f"{db}.t"})
        fields = {"viewOriginalText": text, "viewExpandedText": text, "creationMetadata": made}
        client.table(db, "mv", kind="MATERIALIZED_VIEW", **fields)
    view = (f"{db}.mv", reasons["creation metadata of a materialized view"])
    owned = (f"{db}.owned", reasons["owner of a table that is a role or a group"])
    assert _named(pair.sync()) == [view, owned]
    assert _named(pair.sync()) == [view, owned]  # nothing new
    pair.db("a").table("later", {"first": "1"}, kind="EXTERNAL_TABLE")
    assert _named(pair.sync()) == _said(pair.target.database(db)) == [view, owned]
    with hive_client(source) as client:
        table = client.get(db, "owned")
        table.ownerType = ttypes.PrincipalType.USER
        client.alter(db, "owned", table)
    assert _named(pair.sync()) == _said(pair.target.database(db)) == [view]
    with hive_client(source) as client:
        client.drop(db, "mv")
    assert _named(pair.sync()) == _said(pair.target.database(db)) == []


def _named(run: SyncRun) -> list[tuple[str, str]]:
    return [(each.object, each.reason) for each in run.not_replicated]


def _said(database: Database) -> list[tuple[str, str]]:
    """By the replica itself."""
    return [(each.object, each.reason) for each in from_property(database.parameters.get(PROPERTY), database.name)]
