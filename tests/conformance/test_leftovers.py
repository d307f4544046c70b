"""What killed writers leave half written, on local disks and on a real HDFS: the sweeps find it, and nothing else."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest
from hadoop import Cluster

from cmroot.expire.plans import sweep_staging
from cmroot.keep.recycle import sweep_incoming
from cmroot.root import create_or_open
from cmroot.store.place import Place

HOUR = 3600.0


@pytest.fixture(params=["local", pytest.param("hdfs", marks=pytest.mark.hdfs)])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return Place(create_or_open(str(tmp_path / "root")).place)
    cluster: Cluster = request.getfixturevalue("hdfs")
    return Place(create_or_open(f"{cluster.url}/{uuid.uuid4().hex}/root").place)


def test_a_day_later_whatever_writer_it_was(root: Place) -> None:
    names = [".aside-1-a", "slots/.aside-1-b", "legal-holds/.aside-1-c", "log/1-2/parts/.aside-1-d"]
    names += ["lease/.aside-probe-1", "slots/kept"]
    for name in names:
        (root / name).write_bytes(b"{")
    (root / "files/ab/.aside-1-e").write_bytes(b"nobody writes here: keeping a file ends with a rename")
    sweep_staging(root.text, time.time() + HOUR)
    assert [name for name in names if not (root / name).exists()] == []
    sweep_staging(root.text, time.time() + 25 * HOUR)
    assert [name for name in names if (root / name).exists()] == ["slots/kept"]


def test_of_copies_under_the_lease_at_once(root: Place) -> None:
    for name in (".aside-1-a", "incoming/.aside-1-b", "incoming/copy-1"):
        (root / name).write_bytes(b"half")
    assert sorted(sweep_incoming(root.text).removed) == [".aside-1-a", ".aside-1-b", "copy-1"]
    assert (root / "incoming").list() == [] and not (root / "incoming/.aside-1-b").exists()
    assert sweep_incoming(root.text).removed == []


def test_a_new_file_is_written_under_its_own_name_and_goes_with_an_error(root: Place) -> None:
    place = root.parent / "table" / ".replicating-1"
    with pytest.raises(KeyError), place.open_new() as file:
        file.write(b"half")
        file.flush()
        raise KeyError
    assert not place.exists()
    with place.open_new() as file:
        file.write(b"whole")
    assert place.read_bytes() == b"whole"
    assert place.parent.sweep() == []
