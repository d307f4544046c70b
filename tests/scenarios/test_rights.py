"""Rights of what a load replaces: owner, group, mode, ACL, extended attributes; on S3 class, encryption, tags."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from lab import Lab

from cmroot.errors import ChecksumMismatch
from cmroot.root import create_or_open
from cmroot.store import checksum
from cmroot.store.place import Place, give_rights, join
from replicator.replay.apply import copying, transfer
from replicator.replay.apply.transfer import CloneTask, run_clone_task

ALICE, STAFF = 4711, 4712


def own(path: Path, mode: int, team: bytes = b"risk") -> None:
    os.chown(path, ALICE, STAFF)
    path.chmod(mode)
    os.setxattr(path, "user.team", team)


def rights(path: Path) -> tuple[int, int, int, bytes]:
    status = path.stat()
    team = os.getxattr(path, "user.team") if "user.team" in os.listxattr(path) else b""
    return status.st_uid, status.st_gid, status.st_mode & 0o7777, team


def home_of(lab: Lab, table: str) -> Path:
    return lab.warehouse / f"{lab.name}.db" / table


def increment(lab: Lab, *options: str) -> None:
    before = lab.last
    assert lab.dump(since=before).code == 0
    answer = lab.load(None, *options)
    assert answer.code == 0, answer


def test_a_replaced_file_and_its_directory_keep_their_rights(fixture: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    before: list[int] = []

    def given(old: str, new: str) -> str:
        before.append(os.stat(new).st_mode & 0o777)
        return give_rights(old, new)

    monkeypatch.setattr(copying, "give_rights", given)
    fixture.source.partitioned("t", {"x": {"f": "1\n", "g": "1\n"}})
    fixture.bootstrap()
    partition = home_of(fixture, "t") / "p=x"
    own(partition, 0o2750)
    own(partition / "f", 0o640)

    fixture.source.write("t/p=x", {"f": "22\n"})
    increment(fixture)

    assert (partition / "f").read_text() == "22\n"
    assert rights(partition / "f") == (ALICE, STAFF, 0o640, b"risk")
    assert before == [0o600], "while it is copied, it is open to no more users than the replaced one"
    assert rights(partition) == (ALICE, STAFF, 0o2750, b"risk")
    assert rights(partition / "g")[2] == 0o644


@pytest.mark.parametrize("publish", ["mirror", "snapshot"])
def test_a_recreated_partition_or_table_keeps_the_rights_of_its_directory(pair: Lab, publish: str) -> None:
    pair.keys["publish"] = publish
    source = pair.db()
    source.partitioned("t", {"x": {"f": "1\n"}, "y": {"f": "1\n"}})
    source.write("t/p=y/below", {"f": "1\n"})
    source.table("u", {"f": "1\n"})
    assert pair.sync().status == "synced"
    for place, mode in {"t/p=x": 0o2750, "t/p=y": 0o2700, "t/p=y/below": 0o2730, "u": 0o2770}.items():
        own(place_of(pair, *place.split("/", 1)), mode)

    os.mkfifo(place_of(pair, "u") / "pipe")

    source.drop_partitions("t", ["x"])
    source.add("t", {"x": {"g": "22\n"}})
    source.write("t/p=y", {"f": "22\n"})
    source.drop("u")
    source.table("u", {"g": "22\n"})
    assert pair.sync().status == "synced"

    assert place_of(pair, "t", "p=x/g").read_text() == "22\n" and not (place_of(pair, "u") / "pipe").exists()
    for place, mode in {"t/p=x": 0o2750, "t/p=y": 0o2700, "t/p=y/below": 0o2730, "u": 0o2770}.items():
        found = place_of(pair, *place.split("/", 1))
        assert (".published" in str(found)) == (publish == "snapshot")
        assert rights(found) == (ALICE, STAFF, mode, b"risk"), place


def place_of(pair: Lab, table: str, below: str = "") -> Path:
    """The location of a replica's table, or a path in a partition's."""
    replica = pair.replica()
    if not below:
        location = replica.metastore.table(replica.name, table).location
    else:
        partition, _, below = below.partition("/")
        ((found,),) = replica.metastore.partitions(replica.name, table, [partition])
        location = found.location
    return Path((location or "").removeprefix("file:")) / below


def test_a_new_partition_gets_group_and_mode_of_its_tables_directory(fixture: Lab) -> None:
    fixture.source.partitioned("t", {"x": {"f": "1\n"}})
    fixture.bootstrap()
    own(home_of(fixture, "t"), 0o2770)

    fixture.source.add("t", {"y": {"f": "1\n"}, "empty": {}})
    fixture.source.write("t/p=y/deep/er", {"f": "2\n"})
    increment(fixture)

    new = home_of(fixture, "t")
    for below in ("p=y", "p=y/deep", "p=y/deep/er", "p=empty"):
        assert rights(new / below) == (0, STAFF, 0o2770, b""), below
    assert rights(new / "p=x")[2] == 0o755
    fixture.is_same()


def test_a_table_in_one_file_is_replaced_by_one_in_a_directory_and_back(fixture: Lab) -> None:
    single = fixture.source.home / "t"
    for step in ("file", "directory", "file"):
        if step != "file":
            fixture.source.table("t", {"f": "22\n"})
        else:
            fixture.source.table("t", {"f": "1\n"})
            table = fixture.source.metastore.table(fixture.name, "t")
            shutil.move(single / "f", single.with_name("aside"))
            single.rmdir()
            single.with_name("aside").rename(single)
            fixture.source.metastore.alter_table(fixture.name, "t", table)
        if fixture.dumps:
            increment(fixture)
        else:
            fixture.bootstrap()
        here = home_of(fixture, "t")
        assert here.read_text() == "1\n" if step == "file" else (here / "f").read_text() == "22\n"
        fixture.source.metastore.drop_table(fixture.name, "t")
        single.unlink() if single.is_file() else shutil.rmtree(single)


def test_a_table_in_one_file_is_carried_to_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    old, new = tmp_path / "t", tmp_path / ".published" / "1" / "t"
    old.write_text("1\n")
    own(old, 0o640)
    task = CloneTask(create_or_open(str(tmp_path / "root")).place, [(str(old), str(new))])
    assert not run_clone_task(task)
    assert new.read_text() == "1\n" and rights(new) == (ALICE, STAFF, 0o640, b"risk")
    assert not run_clone_task(task)


def test_a_file_that_is_carried_by_copy_has_its_rights_before_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "t", tmp_path / ".published" / "1" / "t"
    old.mkdir()
    (old / "f").write_text("1\n")
    own(old / "f", 0o640)
    task = CloneTask(create_or_open(str(tmp_path / "root")).place, [(str(old), str(new))])
    seen, modes, rename = [], [], os.rename

    def refused(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    def given(source: str, target: str, names: tuple[str, ...]) -> str:
        modes.append(os.stat(target).st_mode & 0o777)
        return give_rights(source, target, names)

    def published(source: str, target: str) -> None:
        seen.append(rights(Path(source)))
        rename(source, target)

    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(os, "rename", published)
    monkeypatch.setattr(transfer, "give_rights", given)
    assert not run_clone_task(task)
    assert seen == [(ALICE, STAFF, 0o640, b"risk")] == [rights(new / "f")] and modes[-1] == 0o600


@pytest.mark.parametrize("kind", ["disk", "store"])
def test_a_file_that_is_carried_by_copy_is_read_back(
    kind: str, tmp_path: Path, other_device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk, and a store, that store other bytes than they were given, as disks do."""
    old, new = tmp_path / "t", str(other_device / "new") if kind == "disk" else f"memory:/{tmp_path}/new"
    old.mkdir()
    (old / "f").write_text("1\n")
    task = CloneTask(create_or_open(str(tmp_path / "root")).place, [(str(old), new)])
    put, damaged = MemoryFileSystem.put_file, list[bytes]()

    def writes_wrong(target: int, block: memoryview) -> None:
        damaged.append(bytes(block))
        os.write(target, b"X" * len(block))

    def puts_wrong(filesystem: Any, file: str, key: str) -> None:
        put(filesystem, file, key)
        damaged.append(filesystem.cat_file(key))
        filesystem.pipe_file(key, b"X\n")

    with monkeypatch.context() as patch:
        patch.setattr(checksum, "_write", writes_wrong)
        patch.setattr(MemoryFileSystem, "put_file", puts_wrong)
        with pytest.raises(ChecksumMismatch, match="has other bytes"):
            run_clone_task(task)
    assert damaged and not Place(new).find()
    assert not run_clone_task(task) and Place(join(new, "f")).read_bytes() == b"1\n"


def test_what_cannot_be_carried_is_named(fixture: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture.source.table("t", {"f": "1\n"})
    fixture.bootstrap()
    own(home_of(fixture, "t") / "f", 0o640)

    def refused(handle: int, owner: int, group: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refused)  # as for any user but root
    fixture.source.write("t", {"f": "22\n"})
    before = fixture.last
    assert fixture.dump(since=before).code == 0
    answer = fixture.load()

    assert answer.code == 3, answer
    (lacking,) = answer.output["not_replicated"]
    assert lacking["object"] == f"{fixture.name}.t"
    assert lacking["reason"].endswith(f"t/f lacks owner {ALICE}, group {STAFF} of the file that it replaced")
