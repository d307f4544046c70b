"""One database of a real metastore and its housekeeping, with a clock that tests turn. See `test_housekeeping`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from engines import local_engine
from plain_tables import PlainDatabase

from cmroot.root import ChangeRoot, create_or_open
from replicator.core.audit import AuditRow, read_audit
from replicator.core.model import Table
from replicator.core.runtime import Runtime
from replicator.lifecycle.housekeeping.clean import Housekept
from replicator.lifecycle.housekeeping.item_queries import Filter, list_items
from replicator.lifecycle.housekeeping.run import Housekeeping, RunOptions
from replicator.lifecycle.housekeeping.settings import LifecycleDefaults
from replicator.lifecycle.housekeeping.store import Item, ItemStore, store_url
from replicator.lifecycle.removal.removal import Limits
from replicator.metastore.client import Metastore
from replicator.metastore.thrift import ThriftMetastore

UNREFERENCED = {"beekeeper.remove.unreferenced.data": "true", "beekeeper.unreferenced.data.retention.period": "P3D"}
EXPIRED = {"beekeeper.remove.expired.data": "true", "beekeeper.expired.data.retention.period": "P30D"}
DROPS = {"beekeeper.expired.data.table.deletion.enabled": "true"}
ALL_EVENTS = {"beekeeper.hive.event.whitelist": "alter_partition, alter_table, drop_partition, DROP_TABLE"}
ENGINE = local_engine()


class LifecycleFixture:
    """A database `db` of plain tables, the root that captures it, and the store of its items."""

    def __init__(self, metastore: ThriftMetastore, name: str, here: Path, url: str | None = None) -> None:
        self.metastore, self.here = metastore, here
        self.db = PlainDatabase(metastore, name, here / "warehouse")
        self.db.create()
        self.root: ChangeRoot = create_or_open(str(here / "cmroot"))
        self.url = store_url(self.root.place, url)

    # ---- tables ---------------------------------------------------------------------------------------------------

    def table(self, name: str, files: dict[str, str] | None = None, **more: Any) -> None:
        """With one file, unless others are given."""
        properties = more.pop("properties", {})
        self.db.table(name, {"a": f"rows of {name}"} if files is None else files, **more)
        if properties:
            self.db.alter(name, **properties)

    def partitioned(self, name: str, values: Sequence[str], **properties: str) -> None:
        self.db.partitioned(name, {})
        if properties:
            self.db.alter(name, **properties)
        self.db.add(name, {value: {"a": f"rows of {name}/{value}"} for value in values})

    def relocate(self, name: str, place: Path | str) -> None:
        """Another location for a table; the files stay where they are."""
        table = self.live(name)
        assert table.storage
        storage = msgspec.structs.replace(table.storage, location=_uri(place))
        self.metastore.alter_table(self.db.name, name, msgspec.structs.replace(table, storage=storage))

    def relocate_partition(self, name: str, value: str, place: Path | str) -> None:
        (found,) = self.metastore.partitions(self.db.name, name, [f"p={value}"])
        assert found[0].storage
        storage = msgspec.structs.replace(found[0].storage, location=_uri(place))
        self.metastore.alter_partitions(self.db.name, name, [msgspec.structs.replace(found[0], storage=storage)])

    def unset(self, name: str, *keys: str) -> None:
        table = self.live(name)
        left = {key: value for key, value in table.parameters.items() if key not in keys}
        self.metastore.alter_table(self.db.name, name, msgspec.structs.replace(table, parameters=left))

    def live(self, name: str) -> Table:
        return self.metastore.table(self.db.name, name)

    def values(self, name: str) -> list[str]:
        return sorted(each.removeprefix("p=") for each in self.metastore.partition_names(self.db.name, name))

    def place(self, name: str) -> Path:
        return self.db.home / name

    def write(self, place: str, text: str = "x") -> Path:
        self.db.write(place, {"a": text})
        return self.place(place)

    # ---- housekeeping ---------------------------------------------------------------------------------------------

    def run(
        self,
        days: float = 0,
        *,
        metastore: Metastore | None = None,
        limits: Limits | None = None,
        rehearse: bool = False,
        captures: bool = True,
        **defaults: Any,
    ) -> Housekept:
        """A run so many days from now."""
        options = RunOptions(LifecycleDefaults(**defaults), captures, [self.db.name])
        with (
            ItemStore(self.url) as store,
            Housekeeping(
                root=self.root,
                metastore=metastore or self.metastore,
                runtime=Runtime(ENGINE, clock=lambda: time.time() + days * 86_400),
                limits=limits or Limits(),
                store=store,
                options=options,
            ) as housekeeping,
        ):
            return housekeeping.run(dry_run=rehearse)

    def items(self, **wanted: Any) -> list[Item]:
        with ItemStore(self.url) as store:
            return list_items(store, Filter(**wanted))[0]

    def states(self, **wanted: Any) -> list[tuple[str, str]]:
        """(name of the object without its database, state) of items, sorted."""
        return sorted((each.name.partition(".")[2], each.status) for each in self.items(**wanted))

    def audit(self, outcome: str = "removed") -> list[AuditRow]:
        return list(read_audit(self.root.place, job="housekeeping", outcome=outcome))

    def keeps(self, text: str) -> bool:
        """Whether $cmroot has a file with these contents that housekeeping recycled."""
        return any(each.what == "file" and self._kept(each) == text.encode() for each in self.audit() if each.checksum)

    def _kept(self, row: AuditRow) -> bytes:
        from cmroot.keep.content import locate

        assert row.checksum and row.bytes is not None
        return Path(locate(self.root.place, row.checksum, row.bytes)).read_bytes()


def _uri(place: Path | str) -> str:
    return f"file:{place}" if isinstance(place, Path) else place
