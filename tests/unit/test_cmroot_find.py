"""Looking files up in the captured log, and putting one kept file back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cmroot.errors import ChecksumMismatch, Exists, FormatError, KeepError
from cmroot.keep.content import Findings, Query, find, locate
from cmroot.keep.keepers import CopyKeeper
from cmroot.keep.versions import restore_file
from cmroot.log.captured import FILES, SegmentWriter, segments
from cmroot.store.checksum import checksum_file
from cmroot.store.place import Place, join, normal, parent

A, B, C = (digit * 32 for digit in "abc")


def row(position: int, op: str, table: str, path: str, checksum: str | None = None, **more: Any) -> dict[str, Any]:
    db, _, name = table.partition(".")
    known = {"db": db, "table": name, "partition": "", "location": f"file:/w/{name}", "size": 3 if checksum else None}
    return {"position": position, "op": op, "path": path, "checksum": checksum, "kept": bool(checksum), **known, **more}


def capture(root: str, *rows: dict[str, Any]) -> None:
    log = segments(root)
    first = log[-1].last + 1 if log else 1
    last = max(each["position"] for each in rows)
    with SegmentWriter(root, first) as writer:
        for position in range(first, last + 1):
            writer.append_record(b'{"position":%d}' % position)
        writer.append_files(pa.Table.from_pylist(list(rows), schema=FILES))
        writer.finish(last, event=last, time=last)


@pytest.fixture
def history(local_root: str) -> str:
    """t has f with A, then with B; its table is renamed to u at 5; p has a partition; g was never read."""
    capture(
        local_root,
        row(1, "add", "db.t", "f", A),
        row(2, "add", "db.p", "x/f", C, partition="d=a%2Fb", location="file:/w/p/d=a%2Fb"),
        row(2, "add", "db.t", "g"),
    )
    capture(
        local_root,
        row(4, "remove", "db.t", "f"),
        row(4, "add", "db.t", "f", B),
        row(4, "release", "db.t", "f", A, since=1),
    )
    capture(local_root, row(6, "release", "db.u", "f", B, since=4))
    return local_root


def found(root: str, **query: str) -> list[tuple[str, int, int | None]]:
    return [
        (f"{each.table}/{each.path} {each.checksum and each.checksum[0]}", each.since, each.ended)
        for each in find(root, segments(root), Query(**query)).references
    ]


@pytest.mark.parametrize("path", ["/w/t/f", "file:/w/t/f", "file:///w/t/f"])
def test_a_file_is_found_by_its_path_with_all_it_ever_held(history: str, path: str) -> None:
    assert found(history, path=path) == [("t/f a", 1, 4), ("t/f b", 4, 6)]


def test_files_are_found_below_a_directory(history: str) -> None:
    assert [each[0] for each in found(history, path="/w/p")] == ["p/x/f c"]
    assert [each[0] for each in found(history, path="/w/p/d=a%2Fb/x/")] == ["p/x/f c"]
    assert found(history, path="/w/p/d=a%2Fb/x/f/y") == found(history, path="/w/tt") == []
    assert len(found(history, path="/w")) == 4


def test_files_are_found_by_table_and_partition(history: str) -> None:
    assert [each[0] for each in found(history, table="db.t")] == ["t/f a", "t/g None", "t/f b"]
    assert found(history, table="DB.P/d=a%2Fb") == [("p/x/f c", 2, None)]
    assert found(history, table="t", path="/w/t/g") == [("t/g None", 2, None)]
    assert found(history, table="other.t") == []


def test_a_reference_of_a_renamed_table_ends_under_its_new_name(history: str) -> None:
    assert found(history, table="db.t", checksum=B) == [("t/f b", 4, 6)]
    assert found(history, table="db.u") == [("u/f b", 4, 6)]


@pytest.mark.parametrize("checksum", [C, C.upper(), "cc", f"xxh3_128-{C}-3", f"xxh3_128-{C}"])
def test_files_are_found_by_checksum(history: str, checksum: str) -> None:
    assert found(history, checksum=checksum) == [("p/x/f c", 2, None)]


def test_only_the_newest_are_told_and_all_are_counted(local_root: str) -> None:
    capture(local_root, *(row(position, "add", "db.t", f"f{position}", A) for position in range(1, 51)))
    capture(local_root, *(row(51, "release", "db.t", f"f{position}", A, since=position) for position in range(1, 51)))
    findings = find(local_root, segments(local_root), Query(table="t"), limit=7)
    assert isinstance(findings, Findings) and findings.total >= 50
    assert [(each.path, each.ended) for each in findings.references] == [(f"f{n}", 51) for n in range(44, 51)]


def test_whether_the_bytes_are_kept_now_is_looked_up(root: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"some")
    kept = CopyKeeper(root).keep(str(tmp_path / "file"))
    capture(
        root,
        row(1, "add", "db.t", "here", kept.checksum, size=kept.size),
        row(1, "add", "db.t", "gone", A),
        row(1, "add", "db.t", "versioned", B, version="v1"),
        row(1, "add", "db.t", "unread"),
    )
    references = find(root, segments(root), Query(table="db.t")).references
    assert {each.path: each.kept for each in references} == {
        "here": True,
        "gone": False,
        "versioned": True,
        "unread": False,
    }
    assert references[0].place == "file:/w/t/here"


def test_a_damaged_segment_is_told(history: str) -> None:
    part = segments(history)[1].files_parts()[0]
    Path(part).write_bytes(Path(part).read_bytes()[:50])
    with pytest.raises(FormatError, match="damaged"):
        found(history, table="db.t")


# Putting one back


@pytest.fixture
def kept(root: str, tmp_path: Path) -> tuple[str, int]:
    (tmp_path / "source").write_bytes(b"rows" * 100_000)
    found = CopyKeeper(root).keep(str(tmp_path / "source"))
    return found.checksum, found.size


@pytest.mark.parametrize("remote", [False, True], ids=["to a local path", "to the root's store"])
def test_a_kept_file_is_put_back(root: str, place: str, kept: tuple[str, int], remote: bool, tmp_path: Path) -> None:
    to = join(place, "new/one") if remote else str(tmp_path / "new" / "one")
    restored = restore_file(root, *kept, to)
    assert (restored.place, restored.checksum, restored.size) == (normal(to), *kept)
    assert Place(to).read_bytes() == b"rows" * 100_000
    assert Place(parent(to)).list() == ["one"]
    assert restored.origin == locate(root, *kept)


def test_a_file_that_is_there_is_replaced_only_when_told_to(
    root: str, place: str, kept: tuple[str, int], tmp_path: Path
) -> None:
    for to in (str(tmp_path / "there"), join(place, "there")):
        Place(to).write_bytes(b"precious")
        with pytest.raises(Exists) as caught:
            restore_file(root, *kept, to)
        assert caught.value.exit_code == 6 and Place(to).read_bytes() == b"precious"
        restore_file(root, *kept, to, overwrite=True)
        assert Place(to).size() == kept[1]


def test_a_file_that_appears_meanwhile_is_not_replaced(
    local_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").write_bytes(b"x")
    kept = CopyKeeper(local_root).keep(str(tmp_path / "source"))
    to = tmp_path / "to"
    real = os.link

    def link(source: str, target: str) -> None:
        to.write_bytes(b"precious")
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(Exists):
        restore_file(local_root, kept.checksum, kept.size, str(to))
    assert to.read_bytes() == b"precious" and not list(tmp_path.glob(".aside-*"))


def test_damaged_bytes_are_never_put_back(root: str, place: str, kept: tuple[str, int], tmp_path: Path) -> None:
    origin = locate(root, *kept)
    data = Place(origin).read_bytes()
    Place(origin).write_bytes(b"R" + data[1:])
    for above in (str(tmp_path / "new"), join(place, "new")):
        to = join(above, "one")
        with pytest.raises(ChecksumMismatch, match=f"not the {kept[1]} bytes with {kept[0]}"):
            restore_file(root, *kept, to)
        assert Place(above).find() == []


def test_what_is_not_kept_is_not_put_back(root: str, place: str, tmp_path: Path) -> None:
    for to in (str(tmp_path / "one"), join(place, "one")):
        with pytest.raises(KeepError, match="does not keep"):
            restore_file(root, A, 3, to)
        assert not Place(to).exists()


def test_a_full_or_forbidden_place_is_named(local_root: str, tmp_path: Path) -> None:
    from cmroot.errors import NotWritable

    (tmp_path / "source").write_bytes(b"x")
    kept = CopyKeeper(local_root).keep(str(tmp_path / "source"))
    with pytest.raises(NotWritable, match="source"):
        restore_file(local_root, kept.checksum, kept.size, str(tmp_path / "source" / "below"))


def test_a_version_of_a_bucket_is_put_back(local_root: str, s3_endpoint: None, tmp_path: Path) -> None:
    from cmroot.keep.keepers import VersionKeeper
    from cmroot.store.remote import FsspecStore

    bucket = f"versioned-{os.getpid()}"
    store = FsspecStore(f"s3://{bucket}")
    store.filesystem.mkdir(bucket)
    store.filesystem.call_s3("put_bucket_versioning", Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    path = f"s3://{bucket}/t/f"
    store.write_bytes(path, b"the old rows")
    kept = VersionKeeper(local_root).keep(path)
    store.write_bytes(path, b"new")
    to = str(tmp_path / "back")
    restored = restore_file(local_root, kept.checksum, kept.size, to, version=(path, kept.version))
    assert Path(to).read_bytes() == b"the old rows" and kept.version in restored.origin
    assert checksum_file(to) == (kept.checksum, kept.size)
