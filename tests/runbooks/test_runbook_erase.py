"""The page docs/runbooks/erase-a-person.md, run as it stands."""

from __future__ import annotations

from pathlib import Path

from lab import Lab
from runbooks import play

from replicator.metastore.embedded.running import Running


def test_the_page_ends_with_a_certificate(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> None:
    replication = Lab(source_metastore, target_metastore, tmp_path)
    db = replication.db()
    text = "".join(f"{number}\x01person {number}\n" for number in range(20))
    db.partitioned("orders", {"old": {"part-0": text}, "new": {"part-0": "77\x01somebody\n"}})
    db.alter("orders", **{"dataset.descriptor": '{"privacy": {"column": "a"}}'})
    db.table("requests", {"part-0": "".join(f"{number}\x01\n" for number in range(10))})
    replication.sync()
    before = replication.replica().shown()

    play(
        "erase-a-person",
        {
            "metastore": source_metastore.uri,
            "cmroot": replication.policy.cmroot,
            "ids": f"{db.name}.requests:a",
            "tables": f"{db.name}.orders",
            "policy": replication.name,
            "config": replication.config(),
        },
    )

    replication.are_same()
    after = replication.replica().shown()
    assert after["orders/p=new"] == before["orders/p=new"] and after["orders/p=old"] != before["orders/p=old"]
    holding = [path for path in tmp_path.rglob("*") if path.is_file() and b"person 3\n" in path.read_bytes()]
    assert not holding
