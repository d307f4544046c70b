"""What a metastore says of its own change manager, which keeps what it drops (`hive.repl.cm.enabled`)."""

from __future__ import annotations

from collections.abc import Collection

from cmroot.keep.change_manager import ChangeManager
from replicator.errors import ObjectNotFound
from replicator.metastore.client import MetastoreReader
from replicator.metastore.paced import is_since_3

SOURCE_FOR = "repl.source.for"


def change_manager(metastore: MetastoreReader, databases: Collection[str]) -> ChangeManager:
    """Its root and retention, or why it would not keep what is dropped of these databases; one call a database."""
    if metastore.setting("hive.repl.cm.enabled").strip().lower() != "true":
        return ChangeManager(why_not=f"hive.repl.cm.enabled of {metastore.uri} is not true")
    place, retain = metastore.setting("hive.repl.cmrootdir"), metastore.setting("hive.repl.cm.retain")
    if is_since_3(metastore) and (unmarked := [name for name in databases if not _is_marked(metastore, name)]):
        return ChangeManager(
            why_not=f"since Hive 3 databases need the property {SOURCE_FOR}: {', '.join(unmarked[:10])}"
        )
    return ChangeManager(place, retain)


def _is_marked(metastore: MetastoreReader, name: str) -> bool:
    try:
        return bool(metastore.database(name).parameters.get(SOURCE_FOR))
    except ObjectNotFound:  # dropped
        return True
