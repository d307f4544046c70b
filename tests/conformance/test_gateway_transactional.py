"""Transactional tables behind a gateway, on servers that have such: what would be deleted is kept, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import command
from gateways import Guarded, contents, guarded
from hive_metastore import ttypes
from hive_objects import FULL_ACID, INSERT_ONLY, HiveClient, hive_client

from replicator.metastore.embedded.running import Running

DELTA = {"delta_0000001_0000001/bucket_00000": "1", "delta_0000001_0000001/_orc_acid_version": "2"}
ACID = {"full": FULL_ACID, "inserts": INSERT_ONLY}


class Through:
    """A client of Hive that knows only the gateway."""

    def __init__(self, guard: Guarded, client: HiveClient) -> None:
        self.guard, self.client, self.db = guard, client, guard.db

    def place(self, name: str) -> Path:
        return Path(self.client.get(self.db, name).sd.location.removeprefix("file:"))

    def insert(self, name: str, partition: str = "") -> int:
        """As Hive does it; the write id."""
        thrift = self.client.thrift
        [txn] = thrift.open_txns(ttypes.OpenTxnRequest(1, "hive", "localhost")).txn_ids
        wanted = ttypes.AllocateTableWriteIdsRequest(dbName=self.db, tableName=name, txnIds=[txn])
        [got] = thrift.allocate_table_write_ids(wanted).txnToWriteIds
        for path, text in DELTA.items():
            file = self.place(name) / partition / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        thrift.commit_txn(ttypes.CommitTxnRequest(txn))
        return int(got.writeId)

    def truncate(self, name: str, **more: Any) -> None:
        self.client.thrift.truncate_table_req(ttypes.TruncateTableRequest(dbName=self.db, tableName=name, **more))

    def kept(self, name: str) -> dict[str, str]:
        """Of a table, by the paths in it."""
        return {key.removeprefix(f"{name}/"): text for key, text in self.guard.taken().items() if key.startswith(name)}


@pytest.fixture(params=["3.1", "4.2"])
def through(request: pytest.FixtureRequest, hives: Callable[..., Running], tmp_path: Path) -> Iterator[Through]:
    running = hives(request.param)
    with guarded(running, tmp_path) as guard:
        gateway: Any = SimpleNamespace(uri=guard.uri, hive=running.hive)
        with hive_client(gateway) as client:
            yield Through(guard, client)


def test_what_is_dropped_is_kept_and_what_is_written_stays(through: Through) -> None:
    parts = {f"p=1/{path}": text for path, text in DELTA.items()}
    for name, parameters in ACID.items():
        through.client.table(through.db, name, parameters)
        through.client.table(through.db, f"{name}_parts", parameters, keys=["p"])
        through.client.partition(through.db, f"{name}_parts", "1")
        through.insert(name)
        through.insert(f"{name}_parts", "p=1")
        through.client.rename(through.db, name, f"new_{name}")
        assert contents(through.place(f"new_{name}")) == DELTA
        assert through.guard.taken().keys().isdisjoint(DELTA)
        through.client.thrift.drop_partition_by_name(through.db, f"{name}_parts", "p=1", True)
        assert through.kept(f"{name}_parts") == parts
        through.client.drop(through.db, f"new_{name}")
        assert through.kept(f"new_{name}") == DELTA
    through.client.table(through.db, "last", FULL_ACID)
    through.insert("last")
    cmroot = ("--cmroot", through.guard.root.place)
    answer = command("capture", "--source", through.guard.running.uri, "--db", through.db, *cmroot)
    assert answer.code == 0, answer
    assert answer.output["formats"] == {}
    through.client.thrift.drop_database(through.db, True, True)
    assert through.kept("last") == DELTA
    assert through.guard.is_settled()


def test_a_truncation_leaves_what_the_server_alone_would_leave(through: Through) -> None:
    for name, parameters in ACID.items():
        through.client.table(through.db, name, parameters)
        id = through.insert(name)
        if through.guard.running.hive == "3.1":
            through.client.thrift.truncate_table(through.db, name, None)
        else:
            valid = f"{through.db}.{name}:{id}:{id}::"
            through.truncate(name, writeId=id, validWriteIdList=valid)
        assert contents(through.place(name)) == {}, "no base that nobody asked for"
        assert through.kept(name) == DELTA
        if through.guard.running.hive != "3.1":  # as Hive does it: the old files are its cleaner's
            id = through.insert(name)
            skip = ttypes.EnvironmentContext({"truncateSkipDataDeletion": "true"})
            valid = f"{through.db}.{name}:{id}:{id}::"
            through.truncate(name, writeId=id, validWriteIdList=valid, environmentContext=skip)
            found = contents(through.place(name))
            assert DELTA.items() <= found.items()
            assert f"base_{id:07}/_metadata_acid" in found
    assert through.guard.is_settled()
