"""A copying task on real files: a bucket that names them, and the task that copies a share."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from cmroot.log.captured import FILES
from cmroot.root import create_or_open
from replicator.replay.apply.copy_task import CopyTask
from replicator.replay.apply.origins import Roots
from replicator.replay.placement import Placement
from replicator.replay.plan import FileRules, TableRule


def bucket(tmp_path: Path, count: int) -> Path:
    """A bucket that names `count` files of table db.t; the files are there."""
    source = tmp_path / "source" / "db.db" / "t"
    source.mkdir(parents=True)
    rows = []
    for number in range(count):
        content = f"content {number}".encode()
        (source / f"part-{number}").write_bytes(content)
        rows.append(
            {
                "position": 1,
                "op": "add",
                "db": "db",
                "table": "t",
                "partition": "",
                "location": f"file:{source}",
                "path": f"part-{number}",
                "size": len(content),
                "mtime_ns": 1_700_000_000 * 10**9,
                "checksum": xxhash.xxh3_128_hexdigest(content),
                "kept": False,
            }
        )
    part = tmp_path / "files-0.parquet"
    pq.write_table(pa.Table.from_pylist(rows, FILES), part)
    return part


def task(tmp_path: Path, part: Path, share: int, shares: int) -> CopyTask:
    source, target = f"{tmp_path}/source/db.db", f"{tmp_path}/target/db.db"
    placement = Placement({"db": "db"}, {"db": source}, {"db": target}, f"{tmp_path}/target/external")
    table = TableRule(begin=0, end=None, db="db", since=0, location=f"{source}/t", moves=(), gone=False)
    roots = Roots(create_or_open(f"{tmp_path}/kept").place, create_or_open(f"{tmp_path}/target-kept").place)
    return CopyTask([str(part)], FileRules(placement, {("db", "t"): [table]}, 0), roots, share, shares)
