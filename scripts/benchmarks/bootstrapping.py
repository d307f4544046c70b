"""bootstrap: capture and dump of one wide table against a bare fetch of its partitions over thrift."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from hmsclient.genthrift.hive_metastore import ThriftHiveMetastore, ttypes
from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from benchmarks import ground
from benchmarks.measure import Figures, Outcome, interleaved, ratio, s, timed
from replicator.core.grouping import batched
from replicator.metastore.requests import partition_to_thrift

PARTITIONS = {"full": 20_000, "small": 4_000}
WANTED = 2.5


def run(size: str, runs: int, directory: Path) -> Outcome:
    count = PARTITIONS[size]
    parts: dict[str, list[float]] = {"capture": [], "dump": []}
    figures = Figures()
    with ground.metastore(directory) as client:
        ground.create_database(client, "wide")
        place = ground.create_table(client, "wide", "t")
        values = [f"{number:06d}" for number in range(count)]
        ground.add_partitions(client, "wide", "t", place, values)
        for number, value in enumerate(values):
            ground.small_files(place / f"day={value}", number, 1)

        def bare(number: int) -> float:
            ground.settle(directory)
            return timed(lambda: fetch(client.uri, "wide", "t", count))

        def ours(number: int) -> float:
            root, out = directory / f"cmroot-{number}", directory / f"dump-{number}"
            ground.settle(directory)
            opened, captured = figures.of(
                "capture", lambda: ground.captured(client, str(root), ["wide"], ground.engine())
            )
            dumped = figures.of("dump", lambda: ground.dumped(client, opened, out, ["wide"]))
            assert captured.files == dumped.files == count, (captured, dumped)
            parts["capture"].append(captured.seconds)
            parts["dump"].append(dumped.seconds)
            shutil.rmtree(root)
            shutil.rmtree(out)
            return captured.seconds + dumped.seconds

        bare(runs)
        took = interleaved(runs, {"bare": bare, "ours": ours})
    row = [
        f"{count:,}",
        s(took["bare"]),
        s(took["ours"]),
        s(parts["capture"]),
        s(parts["dump"]),
        ratio(took["ours"], took["bare"]),
        f"<= {WANTED}",
    ]
    headers = ["partitions", "bare fetch", "capture and dump", "capture", "dump", "times the fetch", "wanted"]
    return Outcome(headers, [row], figures=figures)


def partition_requests(
    db: str, name: str, place: Path, values: Sequence[str], files: int = 1
) -> Iterator[ttypes.AddPartitionsRequest]:
    """The calls that add partitions to a table at a place, `ground.BATCH` each."""
    for some in batched(values, ground.BATCH):
        parts = [partition_to_thrift(db, name, ground.partition(place, value, files)) for value in some]
        yield ttypes.AddPartitionsRequest(dbName=db, tblName=name, parts=parts, ifNotExists=True, needResult=False)


def raw_client(uri: str) -> tuple[TBufferedTransport, ThriftHiveMetastore.Client]:
    """hmsclient's generated client with the accelerated protocol, nothing of ours around it."""
    host, _, port = uri.removeprefix("thrift://").partition(":")
    transport = TBufferedTransport(TSocket(host, int(port)), 1 << 16)
    transport.open()
    return transport, ThriftHiveMetastore.Client(TBinaryProtocolAccelerated(transport))


def fetch(uri: str, db: str, table: str, count: int) -> None:
    """Names, then the partitions in 1,000s, one after the other on one connection."""
    transport, client = raw_client(uri)
    names = client.get_partition_names(db, table, -1)
    found = 0
    for start in range(0, len(names), ground.BATCH):
        found += len(client.get_partitions_by_names(db, table, names[start : start + ground.BATCH]))
    transport.close()
    assert found == count, (found, count)
