"""What a loss of power leaves: the calls of a writer are replayed on a disk that forgets what was not synced."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cmroot.keep.journal import keep_safely
from cmroot.keep.keepers import CopyKeeper, LinkKeeper, recycle
from cmroot.lease import acquire
from cmroot.log.captured import SegmentWriter
from cmroot.store import local as local_module
from cmroot.store.local import LocalStore


class Disk:
    """Which names and contents of this process's writes are durable: a name once its directory was synced after it
    came, a content once its file was, and everything once the filesystem was."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.waiting: dict[str, int] = {}  # name -> inode, of names that may be forgotten
        self.synced: set[int] = set()
        self.known: set[int] = set()
        self.at_rename: dict[str, list[str]] = {}  # new name -> what could be forgotten when it came
        for name in ("rename", "replace", "link", "mkdir"):
            patch.setattr(os, name, self._naming(name, getattr(os, name)))
        fsync, library = os.fsync, ctypes.CDLL
        patch.setattr(os, "fsync", lambda descriptor: (fsync(descriptor), self._fsync(descriptor))[0])
        patch.setattr(local_module.ctypes, "CDLL", lambda *given, **more: _Library(library(*given, **more), self))

    def _naming(self, kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*paths: Any, **more: Any) -> Any:
            new = os.fspath(paths[0 if kind == "mkdir" else 1])
            if kind in ("rename", "replace"):
                self.at_rename[new] = self.forgotten()
                self.waiting.pop(os.fspath(paths[0]), None)
            answer = real(*paths, **more)
            status = os.lstat(new)
            self.waiting[new] = status.st_ino
            if kind == "mkdir":
                self.synced.add(status.st_ino)
            self.known.add(status.st_ino)
            return answer

        return call

    def _fsync(self, descriptor: int) -> None:
        path, inode = os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_ino
        self.synced.add(inode)
        self.waiting = {name: each for name, each in self.waiting.items() if os.path.dirname(name) != path}

    def sync_all(self) -> None:
        self.waiting = {}
        self.synced |= self.known

    def forgotten(self) -> list[str]:
        """Names that a loss of power would take now, or leave without their bytes."""
        there = {name: inode for name, inode in self.waiting.items() if os.path.lexists(name)}
        return sorted({*there, *(f"bytes of inode {inode}" for inode in self.known - self.synced)})


class _Library:
    def __init__(self, real: Any, disk: Disk) -> None:
        self._real, self._disk = real, disk

    def syncfs(self, descriptor: int) -> int:
        answer: int = self._real.syncfs(descriptor)
        self._disk.sync_all()
        return answer


@pytest.fixture
def disk(local_root: str, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize("what", ["write", "write below new directories", "create", "move", "make directories"])
def test_what_a_store_has_published_survives(disk: Disk, tmp_path: Path, what: str) -> None:
    store, path = LocalStore(), str(tmp_path / "f")
    match what:
        case "write":
            store.write_bytes(path, b"1")
        case "write below new directories":
            store.write_bytes(path := str(tmp_path / "a/b/c/f"), b"1")
        case "create":
            assert store.create_exclusive(path, b"1")
        case "move":
            store.write_bytes(str(tmp_path / "old"), b"1")
            store.move(str(tmp_path / "old"), path := str(tmp_path / "new/f"))
        case _:
            store.mkdirs(path := str(tmp_path / "a/b/c"))
    assert disk.known and disk.forgotten() == []
    assert all(not name.startswith("bytes") for names in disk.at_rename.values() for name in names), disk.at_rename
    assert os.path.exists(path)


def test_a_segment_is_named_only_when_what_it_names_survives(disk: Disk, local_root: str, tmp_path: Path) -> None:
    for name in ("linked", "copied"):
        (tmp_path / name).write_bytes(name.encode())
    with acquire(local_root, "capture") as lease, SegmentWriter(local_root, 1, lease=lease) as writer:
        LinkKeeper(local_root).keep(str(tmp_path / "linked"))
        CopyKeeper(local_root).keep(str(tmp_path / "copied"))
        assert any("/files/" in name for name in disk.forgotten()), "links are not synced one by one"
        writer.append_record(b'{"position":1}')
        segment = writer.finish(1, time=1)
    assert disk.at_rename[segment.place] == []
    assert disk.forgotten() == []


def test_a_lease_survives(disk: Disk, local_root: str) -> None:
    acquire(local_root, "work").release()
    assert disk.known and disk.forgotten() == []


@pytest.mark.parametrize("by", ["recycle", "gateway"])
def test_a_copy_to_another_device_survives_before_its_source_goes(
    disk: Disk, local_root: str, other_device: Path, by: str
) -> None:
    source = other_device / "f"
    source.write_bytes(b"1")
    seen: list[list[str]] = []
    if by == "recycle":
        recycle(local_root, str(source), record=lambda _: seen.append(disk.forgotten()))
    else:
        keep_safely(CopyKeeper(local_root), local_root, str(source))
        seen.append(disk.forgotten())
    (left,) = seen
    assert [name for name in left if name.startswith((local_root, "bytes")) and "/incoming/" not in name] == []
