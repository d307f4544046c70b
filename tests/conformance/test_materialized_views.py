"""Materialized views under another name of their database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hive_metastore import ttypes
from hive_objects import hive_client
from policies import Replication

from replicator.metastore.embedded.running import Running


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
