"""A transactional table from a disk to HDFS, and from there to another disk, where Hive reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from acid_tables import AcidLab, acid_lab
from engines import local_engine
from hadoop import Cluster
from pool import Pool

import replicator
from replicator.metastore.embedded.running import Running


@pytest.fixture
def acid(pool: Pool, tmp_path: Path) -> Iterator[AcidLab]:
    with acid_lab(pool, tmp_path) as made:
        yield made


@pytest.mark.hdfs
def test_a_table_goes_to_hdfs_and_from_there_to_a_disk(
    acid: AcidLab, hdfs: Cluster, hives: Callable[..., Running], tmp_path: Path
) -> None:
    middle, engine, place = hives("3.1", "middle"), local_engine(), f"{hdfs.url}/{tmp_path.name}"
    own = f"{place}/cmroot"
    legs = (
        (acid.source_uri, str(acid.cmroot), middle.uri, f"{place}/w", own),
        (middle.uri, own, acid.target_uri, str(acid.warehouse), str(acid.target_cmroot)),
    )
    acid.make()
    acid.insert(1, 2)
    acid.run("delete from {db}.t where id = 1")
    since: list[str | None] = [None, None]
    for number in range(3):
        for leg, (source, root, target, warehouse, target_root) in enumerate(legs):
            out = str(tmp_path / f"dump-{number}-{leg}")
            replicator.dump(source=source, cmroot=root, db=acid.name, out=out, since=since[leg], engine=engine)
            replicator.load(out, target=target, target_cmroot=target_root, warehouse=warehouse, engine=engine)
            found = replicator.verify(source=source, target=target, db=acid.name, engine=engine)
            assert found.status == "same", found
            since[leg] = out
        assert acid.shown() == acid.rows()
        acid.insert(3 + number)
        if number == 1:
            acid.compact("major")
