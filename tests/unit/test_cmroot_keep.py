"""Keepers and recycling."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from cmroot.errors import ChecksumMismatch, FormatError, KeepError, Protected
from cmroot.keep import content, remote_files
from cmroot.keep.hdfs_keepers import SnapshotEntry, sweep_snapshots
from cmroot.keep.keepers import (
    EXAMINED,
    CopyKeeper,
    Keeper,
    Kept,
    LinkKeeper,
    NoKeeper,
    Recycled,
    choose_keeper,
    is_kept,
    locate,
    recycle,
    recycle_tree,
    sweep_incoming,
)
from cmroot.root import create_or_open
from cmroot.store.checksum import checksum_file, checksum_stream
from cmroot.store.listing import file_state
from cmroot.store.place import Place, is_local, join


def kept_files(root: str) -> list[str]:
    return (Place(root) / "files").find()


@pytest.fixture(params=[LinkKeeper, CopyKeeper])
def keeper(request: pytest.FixtureRequest, local_root: str) -> Keeper:
    chosen: Keeper = request.param(local_root)
    return chosen


def test_kept_bytes_are_found_by_checksum_and_size(root: str, place: str) -> None:
    path = join(place, "w/f")
    Place(path).write_bytes(b"data")
    kept = choose_keeper(root, join(place, "w")).keep(path)
    with Place(locate(root, kept.checksum, kept.size)).open_read() as file:
        assert checksum_stream(file) == (kept.checksum, 4) == (kept.checksum, kept.size)
    assert is_kept(root, kept.checksum, kept.size)
    assert not is_kept(root, kept.checksum, kept.size + 1)
    state = file_state(path)
    assert (kept.mtime_ns, kept.identity, kept.algorithm) == (state.mtime_ns, state.identity, "xxh3_128")
    assert kept_files(root) == [f"{kept.checksum[:2]}/xxh3_128-{kept.checksum}-4"]


def test_keeping_twice_and_equal_contents_keeps_once(root: str, place: str) -> None:
    for name in ("f", "g"):
        (Place(place) / "w" / name).write_bytes(b"same")
    keeper = choose_keeper(root, join(place, "w"))
    sums = {keeper.keep(join(place, "w", name)).checksum for name in ("f", "g", "f")}
    assert len(sums) == 1 == len(kept_files(root))
    assert (Place(root) / "incoming").find() == []


def test_kept_bytes_survive_whoever_removes_or_replaces_the_source(
    keeper: Keeper, local_root: str, tmp_path: Path
) -> None:
    for name in ("dropped", "replaced"):
        (tmp_path / name).write_bytes(name.encode())
    kept = [keeper.keep(str(tmp_path / name)) for name in ("dropped", "replaced")]
    (tmp_path / "dropped").unlink()
    (tmp_path / "new").write_bytes(b"other")
    (tmp_path / "new").rename(tmp_path / "replaced")
    assert [Path(locate(local_root, one.checksum, one.size)).read_bytes() for one in kept] == [b"dropped", b"replaced"]


def test_a_link_takes_no_space_and_keeps_the_times(local_root: str, tmp_path: Path) -> None:
    source = tmp_path / "f"
    source.write_bytes(b"1")
    os.utime(source, ns=(1, 2_000_000_001))
    kept = LinkKeeper(local_root).keep("file:" + str(source))
    linked = Path(locate(local_root, kept.checksum, kept.size)).stat()
    assert (
        (linked.st_ino, linked.st_mtime_ns)
        == (source.stat().st_ino, kept.mtime_ns)
        == (int(kept.identity), 2_000_000_001)
    )


def test_a_missing_file_is_file_not_found_for_every_keeper(local_root: str, tmp_path: Path) -> None:
    for keeper in (LinkKeeper(local_root), CopyKeeper(local_root), NoKeeper()):
        with pytest.raises(FileNotFoundError):
            keeper.keep(str(tmp_path / "missing"))


def test_a_file_unlinked_while_it_is_hashed_is_kept_all_the_same(
    keeper: Keeper, local_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "f"
    source.write_bytes(b"last bytes")
    _during_hashing(monkeypatch, source.unlink)
    kept = keeper.keep(str(source))
    assert Path(locate(local_root, kept.checksum, kept.size)).read_bytes() == b"last bytes"


def test_a_file_replaced_while_it_is_hashed_is_kept_as_it_was(
    keeper: Keeper, local_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "f"
    source.write_bytes(b"old")
    (tmp_path / "new").write_bytes(b"new")
    _during_hashing(monkeypatch, lambda: (tmp_path / "new").rename(source))
    kept = keeper.keep(str(source))
    assert Path(locate(local_root, kept.checksum, kept.size)).read_bytes() == b"old"


def _during_hashing(monkeypatch: pytest.MonkeyPatch, meanwhile: object, always: bool = False) -> None:
    """Something happens right after the bytes were read, before they are linked or published."""
    done: list[bool] = []
    for name in ("checksum_descriptor", "copy_descriptor"):
        real = getattr(content, name)

        def disturbed(*arguments: object, real: object = real, **named: object) -> object:
            result = real(*arguments, **named)  # type: ignore[operator]
            if always or not done:
                done.append(True)
                meanwhile()  # type: ignore[operator]
            return result

        monkeypatch.setattr(content, name, disturbed)


def test_a_file_appended_to_while_it_is_hashed_is_read_again(
    keeper: Keeper, local_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "f"
    source.write_bytes(b"1")
    _during_hashing(monkeypatch, lambda: source.write_bytes(b"1 and more"))
    kept = keeper.keep(str(source))
    assert Path(locate(local_root, kept.checksum, kept.size)).read_bytes() == b"1 and more"
    assert len(kept_files(local_root)) == 1


def test_a_file_that_never_rests_is_an_error_and_nothing_false_is_kept(
    keeper: Keeper, local_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "f"
    source.write_bytes(b"1")

    def append() -> None:
        with open(source, "ab") as file:
            file.write(b"more")

    _during_hashing(monkeypatch, append, always=True)
    with pytest.raises(KeepError, match="changed while it was read"):
        keeper.keep(str(source))
    assert kept_files(local_root) == []
    assert os.listdir(join(local_root, "incoming")) == []


def test_a_symbolic_link_keeps_the_bytes_it_leads_to(keeper: Keeper, local_root: str, tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"real")
    (tmp_path / "link").symlink_to("real")
    kept = keeper.keep(str(tmp_path / "link"))
    final = Path(locate(local_root, kept.checksum, kept.size))
    assert final.read_bytes() == b"real" and not final.is_symlink()


@pytest.mark.parametrize("refusal", [errno.EMLINK, errno.EPERM, errno.EXDEV])
def test_a_refused_link_becomes_a_copy_under_the_same_name(
    local_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    source = tmp_path / "f"
    source.write_bytes(b"1")

    def refused(*_: object) -> None:
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(content, "_link_descriptor", refused)
    kept = LinkKeeper(local_root).keep(str(source))
    final = Path(locate(local_root, kept.checksum, kept.size))
    assert final.read_bytes() == b"1" and final.stat().st_ino != source.stat().st_ino


def test_writing_in_place_changes_a_linked_keep_and_the_checksum_notices(local_root: str, tmp_path: Path) -> None:
    source = tmp_path / "f"
    source.write_bytes(b"right")
    kept = LinkKeeper(local_root).keep(str(source))
    with open(source, "r+b") as file:
        file.write(b"wrong")
    final = locate(local_root, kept.checksum, kept.size)
    assert is_kept(local_root, kept.checksum, kept.size) and checksum_file(final)[0] != kept.checksum
    (tmp_path / "again").write_bytes(b"right")
    LinkKeeper(local_root).keep(str(tmp_path / "again"))
    assert checksum_file(final)[0] == kept.checksum
    assert {Path(local_root, "files", name).read_bytes() for name in kept_files(local_root)} == {b"right", b"wrong"}


def test_writing_in_place_does_not_change_a_copied_keep(local_root: str, tmp_path: Path) -> None:
    source = tmp_path / "f"
    source.write_bytes(b"right")
    kept = CopyKeeper(local_root).keep(str(source))
    with open(source, "r+b") as file:
        file.write(b"wrong")
    assert checksum_file(locate(local_root, kept.checksum, kept.size))[0] == kept.checksum


def test_many_threads_may_keep_the_same_files(keeper: Keeper, local_root: str, tmp_path: Path) -> None:
    paths = []
    for number in range(60):
        paths.append(tmp_path / f"f{number}")
        paths[-1].write_bytes(b"%d" % (number % 7))
    with ThreadPoolExecutor(8) as pool:
        kept = list(pool.map(keeper.keep, [str(path) for path in paths * 3]))
    assert len({one.checksum for one in kept}) == 7 == len(kept_files(local_root))
    for one in kept:
        assert checksum_file(locate(local_root, one.checksum, one.size))[0] == one.checksum
    assert (Place(local_root) / "incoming").list() == []


def test_a_keeper_may_be_sent_to_another_process(keeper: Keeper) -> None:
    assert pickle.loads(pickle.dumps(keeper)) == keeper


def test_the_keeper_is_a_link_on_one_device_and_a_copy_elsewhere(local_root: str, tmp_path: Path) -> None:
    assert choose_keeper(local_root, str(tmp_path / "not/yet")).name == "link"
    (tmp_path / "f").write_bytes(b"1")
    assert choose_keeper(local_root, str(tmp_path)).name == "link"
    assert choose_keeper(local_root, "memory://x").name == "copy"
    assert choose_keeper(local_root, "/proc/self").name == "copy"
    assert choose_keeper(local_root, str(tmp_path), "copy").name == "copy"
    assert choose_keeper(local_root, str(tmp_path), "none").name == "none"
    assert os.listdir(join(local_root, "incoming")) == []
    with pytest.raises(KeepError, match="different devices"):
        choose_keeper(local_root, "/proc/self", "link")
    with pytest.raises(KeepError, match="is not a keeper"):
        choose_keeper(local_root, str(tmp_path), "tape")


def test_a_root_that_takes_nothing_is_an_error_that_tells_each_reason(local_root: str, tmp_path: Path) -> None:
    """What could stand in the way on a disk: here a file where a directory belongs, which stops even root."""
    incoming = Path(local_root, "incoming")
    incoming.rmdir()
    incoming.write_bytes(b"")
    with pytest.raises(KeepError, match=r"no link .*no versions .*no copy .*Not a directory") as caught:
        choose_keeper(local_root, str(tmp_path / "w"))
    assert "--keeper none" in caught.value.hint
    with pytest.raises(KeepError, match="cannot be copied"):
        choose_keeper(local_root, str(tmp_path / "w"), "copy")
    assert choose_keeper(local_root, str(tmp_path / "w"), "none") == NoKeeper()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_root_whose_files_this_user_may_not_write_is_no_root_for_copies(local_root: str) -> None:
    os.chmod(join(local_root, "files"), 0o555)
    with pytest.raises(KeepError, match="this user cannot write there"):
        choose_keeper(local_root, "/proc/self")


def test_bytes_are_kept_across_stores(tmp_path: Path, root: str) -> None:
    (tmp_path / "f").write_bytes(b"1" * 600_000)
    kept = CopyKeeper(root).keep(str(tmp_path / "f"))
    Place("memory://other/f").write_bytes(b"2")
    other = CopyKeeper(root).keep("memory://other/f")
    assert is_kept(root, kept.checksum, 600_000) and is_kept(root, other.checksum, 1)
    assert NoKeeper().keep("memory://other/f") == other
    assert (Place(root) / "incoming").find() == []


def test_a_recycled_file_is_gone_and_kept_and_a_second_run_says_so(root: str, place: str) -> None:
    path = join(place, "w/p=a%20b/f")
    Place(path).write_bytes(b"data")
    reported = []
    kept = recycle(root, path, record=reported.extend)
    assert not Place(path).exists() and is_kept(root, kept.checksum, 4)
    assert [(one.path, one.kept) for one in reported] == [(path, kept)]
    with pytest.raises(FileNotFoundError):
        recycle(root, path)
    assert (Place(root) / "incoming").find() == []


def test_a_recycled_directory_is_gone_and_all_its_data_kept(root: str, place: str) -> None:
    contents = {
        "f": b"1",
        "p=1/f": b"2",
        "p=1/q=[*]/f": b"2",
        "_temporary/0/f": b"3",
        ".env": b"4",
        "p=1/.f.crc": b"5",
        ".hoodie/.aux/x": b"6",
        ".meta/schema.avsc": b"7",
    }
    for name, data in contents.items():
        (Place(place) / "w/t" / name).write_bytes(data)
    (Place(place) / "w/t2/f").write_bytes(b"stays")
    recycled = recycle_tree(root, join(place, "w/t"))
    assert {one.path: one.kept.size for one in recycled} == {join(place, "w/t", name): 1 for name in contents}
    assert (Place(place) / "w").find() == ["t2/f"]
    assert {(Place(root) / "files" / name).read_bytes() for name in kept_files(root)} == {*contents.values()}
    assert recycle_tree(root, join(place, "w/t")) == []


def test_a_file_whose_name_is_no_text_is_recycled_like_any_other(local_root: str, tmp_path: Path) -> None:
    reported: list[Recycled] = []
    for name in (b"bad\xff", b"sub\xfe/f"):
        path = Path(os.fsdecode(os.fsencode(tmp_path / "t") + b"/" + name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name)
    recycle_tree(local_root, str(tmp_path / "t"), record=reported.extend)
    assert sorted(each.path for each in reported) == [f"{tmp_path}/t/" + name for name in (r"bad\xff", r"sub\xfe/f")]
    assert all(is_kept(local_root, each.kept.checksum, each.kept.size) for each in reported)
    assert not (tmp_path / "t").exists()


def test_recycling_what_is_kept_already_renews_its_age_and_leaves_its_times(local_root: str, tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).write_bytes(b"equal")
        os.utime(tmp_path / name, ns=(1, 1))
    kept = recycle(local_root, str(tmp_path / "first"))
    final = Path(locate(local_root, kept.checksum, kept.size))
    before = final.stat()
    while (tmp_path / "tick").write_bytes(b"") == 0 and (tmp_path / "tick").stat().st_ctime_ns == before.st_ctime_ns:
        pass  # the filesystem's clock ticks every few milliseconds
    recycle(local_root, str(tmp_path / "second"))
    after = final.stat()
    assert after.st_ctime_ns > before.st_ctime_ns
    assert (after.st_mtime_ns, after.st_mode, after.st_ino) == (1, before.st_mode, before.st_ino)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a while")
def test_an_entry_of_another_owner_is_renewed_by_equal_bytes_that_take_its_name(tmp_path: Path) -> None:
    top = Path(tempfile.mkdtemp())  # every directory above may be passed by anybody
    try:
        os.chmod(top, 0o777)
        old = os.umask(0)
        root = create_or_open(str(top / "cmroot")).place
        os.chmod(root, 0o777)  # of a group that shares it
        (top / "first").write_bytes(b"equal")
        final = Path(locate(root, recycle(root, str(top / "first")).checksum, 5))
        os.chmod(final, 0o600)
        os.chmod(final, 0o644)
        before = final.stat()
        (top / "second").write_bytes(b"equal")
        os.chown(top / "second", 65534, 65534)
        os.seteuid(65534)
        recycle(root, str(top / "second"))
        after = final.stat()
        assert (after.st_uid, final.read_bytes()) == (65534, b"equal")
        assert after.st_ino != before.st_ino and after.st_ctime_ns >= before.st_ctime_ns
        assert os.listdir(top / "cmroot/incoming") == []
    finally:
        os.seteuid(0)
        os.umask(old)
        shutil.rmtree(top)


def test_recycling_leaves_what_links_lead_to(local_root: str, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/f").write_bytes(b"1")
    (tmp_path / "t").mkdir()
    (tmp_path / "t/directory").symlink_to(tmp_path / "outside")
    (tmp_path / "t/file").symlink_to(tmp_path / "outside/f")
    os.mkfifo(tmp_path / "t/pipe")
    with pytest.raises(KeepError, match="symbolic link"):
        recycle(local_root, str(tmp_path / "t/file"))
    assert recycle_tree(local_root, str(tmp_path / "t")) == []
    assert not (tmp_path / "t").exists() and (tmp_path / "outside/f").read_bytes() == b"1"


def test_a_pipe_or_socket_is_removed_and_never_opened(local_root: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert recycle_tree(local_root, str(pipe)) == [] and not pipe.exists()
    os.mkfifo(pipe)
    with pytest.raises(KeepError, match="pipe, socket or device"):
        recycle(local_root, str(pipe))
    assert not pipe.exists() and os.listdir(join(local_root, "incoming")) == []
    entry = Path(local_root, "incoming", "recycle-1-abc")  # of an older release, which waits for its writer
    os.mkfifo(entry)
    Path(f"{entry}.origin").symlink_to(pipe)
    assert sweep_incoming(local_root).finished == [] and os.listdir(join(local_root, "incoming")) == []


def test_a_link_in_place_of_a_directory_is_not_followed(local_root: str, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/f").write_bytes(b"1")
    (tmp_path / "t").symlink_to(tmp_path / "outside")
    with pytest.raises(KeepError, match="symbolic link"):
        recycle_tree(local_root, str(tmp_path / "t"))
    assert (tmp_path / "t/f").read_bytes() == b"1" and kept_files(local_root) == []
    assert sweep_incoming(local_root).removed == [] and os.listdir(join(local_root, "incoming")) == []


@pytest.mark.parametrize("taken", [False, True])
def test_a_link_that_an_older_release_moved_is_put_back(local_root: str, tmp_path: Path, taken: bool) -> None:
    """`recycle_tree` followed it, and no sweep of the root came to its end afterwards."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/f").write_bytes(b"1")
    entry = Path(local_root, "incoming", "recycle-1-abc")
    entry.symlink_to(tmp_path / "outside")
    Path(f"{entry}.origin").symlink_to(tmp_path / "t")
    if taken:
        (tmp_path / "t").mkdir()
    assert sweep_incoming(local_root).removed == ["recycle-1-abc"]
    assert (tmp_path / "outside/f").read_bytes() == b"1" and (tmp_path / "t").is_symlink() != taken
    assert os.listdir(join(local_root, "incoming")) == [] and sweep_incoming(local_root).removed == []


def test_what_lies_in_a_root_or_around_it_is_not_recycled(place: str) -> None:
    root, other = create_or_open(join(place, "w/root")).place, create_or_open(join(place, "other")).place
    (Place(root) / "slots/s").write_bytes(b"1")
    names = ["", "files", "holds", "slots/s", "../../w/root/legal/new", "../../w"]
    if is_local(place):
        os.symlink(root, join(place, "w/link"))
        names.append("../link/log")
    before = Place(place).find()
    for name in names:
        for remove in (recycle, recycle_tree):
            with pytest.raises(Protected):
                remove(root, join(root, name))
            if is_local(place) and name != "../../w":
                with pytest.raises(Protected):
                    remove(other, join(root, name))
    assert Place(place).find() == before


def test_a_file_that_was_linked_at_capture_is_recycled_without_reading_it(
    local_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("same", "written"):
        (tmp_path / name).write_bytes(name.encode())
    known = {name: LinkKeeper(local_root).keep(str(tmp_path / name)) for name in ("same", "written")}
    (tmp_path / "written").write_bytes(b"other")
    monkeypatch.setattr(content, "checksum_descriptor", None)
    assert recycle(local_root, str(tmp_path / "same"), known["same"]) == known["same"]
    monkeypatch.undo()
    assert recycle(local_root, str(tmp_path / "written"), known["written"]).checksum != known["written"].checksum
    assert not (tmp_path / "same").exists() and not (tmp_path / "written").exists()


def test_a_file_written_into_a_directory_while_it_is_recycled_is_kept(local_root: str, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t/f").write_bytes(b"1")
    opened = os.open(tmp_path / "t", os.O_RDONLY)

    def late(_: object) -> None:
        if not written:
            written.append(True)
            os.close(os.open("late", os.O_CREAT | os.O_WRONLY, dir_fd=opened))

    written: list[bool] = []
    recycled = recycle_tree(local_root, str(tmp_path / "t"), record=late)
    os.close(opened)
    assert [one.path for one in recycled] == [str(tmp_path / "t/f"), str(tmp_path / "t/late")]
    assert os.listdir(join(local_root, "incoming")) == []


def test_recycling_between_real_devices_copies_checks_and_removes(local_root: str, other_device: Path) -> None:
    table = other_device / "table"
    (table / "p=1").mkdir(parents=True)
    (table / "p=1/f").write_bytes(b"1" * 300_000)
    (table / ".f").write_bytes(b"hidden")
    assert choose_keeper(local_root, str(table)).name == "copy"
    recycled = recycle_tree(local_root, str(table))
    assert [one.path for one in recycled] == [str(table / ".f"), str(table / "p=1/f")] and not table.exists()
    assert is_kept(local_root, recycled[1].kept.checksum, 300_000)
    table.write_bytes(b"1")
    assert [one.path for one in recycle_tree(local_root, str(table))] == [str(table)] and not table.exists()


def test_what_this_package_has_moved_into_its_root_is_filed_from_there(root: str) -> None:
    moved = join(root, "taking/moved")
    (Place(moved) / "p=1/f").write_bytes(b"moved here")
    with pytest.raises(Protected):
        recycle_tree(root, moved)
    (one,) = recycle_tree(root, moved, ours=True)
    assert one.path == join(moved, "p=1/f") and is_kept(root, one.kept.checksum, 10)
    assert not Place(one.path).exists()


def test_a_copy_to_another_device_is_read_back_before_its_source_goes(
    local_root: str, other_device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that stores other bytes than it was given, as disks do."""
    real, damaged = content.copy_descriptor, []

    def damaging(descriptor: int, aside: str, *, sync: bool) -> tuple[str, int]:
        reported = real(descriptor, aside, sync=sync)
        with open(aside, "r+b") as file:
            file.write(b"X")
        damaged.append(aside)
        return reported

    source = other_device / "f"
    source.write_bytes(b"bytes")
    monkeypatch.setattr(content, "copy_descriptor", damaging)
    with pytest.raises(ChecksumMismatch, match="was not removed"):
        recycle(local_root, str(source))
    assert damaged and source.read_bytes() == b"bytes"


def test_a_copy_to_another_store_is_read_back_before_its_source_goes(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, source = create_or_open(join(place, "root")).place, "memory://source/f"
    Place(source).write_bytes(b"bytes")
    real, damaged = remote_files._name, []

    def damaging(root: str, aside: str, kept: Kept, renew: bool) -> None:
        real(root, aside, kept, renew)
        Place(locate(root, kept.checksum, kept.size)).write_bytes(b"Xytes")
        damaged.append(kept)

    monkeypatch.setattr(remote_files, "_name", damaging)
    with pytest.raises(ChecksumMismatch, match="was not removed"):
        recycle(root, source)
    assert damaged and Place(source).read_bytes() == b"bytes"


@pytest.mark.parametrize("how", ["written", "replaced", "replaced by one of its size and time"])
def test_a_source_on_another_device_that_changed_meanwhile_is_not_removed(
    local_root: str, other_device: Path, how: str
) -> None:
    source, new = other_device / "f", b"new bytes" if how == "replaced" else b"other"
    source.write_bytes(b"bytes")
    before = source.stat()

    def meanwhile(_: object) -> None:
        place = source if how == "written" else other_device / "aside"
        place.write_bytes(new)
        os.utime(place, ns=(1, before.st_mtime_ns if "time" in how else 1))
        place.rename(source)

    with pytest.raises(KeepError, match="changed while it was read"):
        recycle(local_root, str(source), record=meanwhile)
    assert source.read_bytes() == new


def test_a_single_file_is_recycled_like_a_directory_of_one(place: str, tmp_path: Path) -> None:
    root = create_or_open(join(place, "root")).place
    for path in (str(tmp_path / "f"), "memory://single/f", "memory://single/.f"):
        Place(path).write_bytes(path.encode())
        (recycled,) = recycle_tree(root, path)
        assert (recycled.path, Place(path).exists()) == (path, False)
        assert is_kept(root, recycled.kept.checksum, len(path))
        assert recycle_tree(root, path) == []


def test_a_sweep_of_an_empty_or_missing_incoming_does_nothing(place: str) -> None:
    assert sweep_incoming(join(place, "nowhere")).finished == []
    assert sweep_incoming(create_or_open(join(place, "root")).place).removed == []


def test_a_source_changed_after_it_was_kept_is_not_removed(local_root: str) -> None:
    path = "memory://changing/f"
    Place(path).write_bytes(b"1")
    with pytest.raises(KeepError):
        recycle(local_root, path, record=lambda _: Place(path).write_bytes(b"new"))
    assert Place(path).read_bytes() == b"new"
    assert is_kept(local_root, recycle(local_root, path).checksum, 3)


def test_a_snapshot_entry_that_names_another_snapshot_is_refused(local_root: str) -> None:
    """Else a sweep would delete it."""
    entry = SnapshotEntry(1, "replicator-somebody-else", "hdfs://nobody/warehouse", 0, keeps=False)
    place = Place(local_root) / "snapshots" / "replicator-ours"
    place.write_bytes(msgspec.json.encode(entry))
    with pytest.raises(FormatError, match="names another snapshot, 'replicator-somebody-else'"):
        sweep_snapshots(local_root, [], 1)
    assert place.exists()


def test_a_keeper_is_chosen_without_reading_each_of_very_many_empty_partitions(
    local_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(EXAMINED + 100):
        (tmp_path / f"table/day={number}").mkdir(parents=True)
    (tmp_path / "table/loop").symlink_to("loop")
    read, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda place: read.append(place) or scandir(place))
    assert choose_keeper(local_root, str(tmp_path / "table")).name == "link"
    assert 0 < len(read) <= EXAMINED + 1
