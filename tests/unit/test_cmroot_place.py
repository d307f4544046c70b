"""Places as text, and the conformance suite that every store passes."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
import stat
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import CEILING

from cmroot.errors import Error, NoSpace, NotWritable, StorageUnreachable, UnknownPlace
from cmroot.root import create_or_open
from cmroot.store.local import LocalStore, same_device
from cmroot.store.place import (
    Place,
    give_rights,
    inherit,
    is_local,
    join,
    local_path,
    make_inheriting,
    name_of,
    normal,
    parent,
    remote_store,
    scheme,
)
from cmroot.store.remote import FsspecStore
from cmroot.store.spelling import STAGING

ODD_NAMES = [
    "p=a%20b",
    "a b",
    "a:b",
    "#",
    "a#",
    "?x",
    "a?",
    "é",
    "+",
    "&",
    "*",
    "[b]",
    "%2F",
    "__HIVE_DEFAULT_PARTITION__",
    "a\tb",
]

names = st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=40).filter(
    lambda name: name not in (".", "..") and not name.startswith(STAGING)
)


@pytest.mark.parametrize(
    "spelling", ["/w/t", "file:/w/t", "file:///w/t", "file://localhost/w/t", "/w//t/", "file:/w/t/"]
)
def test_every_spelling_of_a_local_place_is_one_path(spelling: str) -> None:
    assert is_local(spelling)
    assert local_path(spelling) == normal(spelling) == "/w/t"


def test_a_percent_sign_in_a_file_uri_is_a_percent_sign() -> None:
    assert local_path("file:/w/t/p=a%20b") == "/w/t/p=a%20b"


def test_a_relative_path_is_below_the_working_directory() -> None:
    assert local_path("w/t") == os.path.join(os.getcwd(), "w/t")


@pytest.mark.parametrize("place", ["s3://b/k", "hdfs://nn/w", "", "file://host/w", "file:w"])
def test_a_place_elsewhere_has_no_local_path(place: str) -> None:
    with pytest.raises(UnknownPlace) as caught:
        local_path(place)
    assert caught.value.hint


def test_the_s3_schemes_of_hadoop_are_s3() -> None:
    assert scheme("s3a://b/k") == scheme("s3n://b/k") == "s3"
    assert normal("s3a://b/k/") == "s3://b/k"


def test_a_partition_value_that_looks_like_a_url_stays_a_path() -> None:
    assert is_local("/w/url=http://x") and is_local("w/url=http://x")


def test_the_place_above() -> None:
    above = {"/w/t": "/w", "/w": "/", "/": "/", "file:/w/t": "file:/w", "file:/w": "file:/", "file:///w/t": "file:///w"}
    above |= {"s3://b/k/l": "s3://b/k", "s3://b": "s3://b"}
    assert {place: parent(place) for place in above} == above
    assert name_of("s3://b/k/l/") == "l"


@given(
    base=st.sampled_from(["/", "/w", "file:/w", "file:///w/t/", "s3://bucket", "s3a://bucket/x"]),
    parts=st.lists(names, min_size=1, max_size=4),
)
def test_joining_and_going_up_again_leads_back(base: str, parts: list[str]) -> None:
    joined = join(base, *parts)
    assert name_of(joined) == parts[-1]
    for _ in parts:
        joined = parent(joined)
    assert normal(joined) == normal(base)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(name=names.filter(lambda name: len(name.encode()) <= 255))
def test_a_file_of_any_name_is_written_found_and_read_back(tmp_path: Path, name: str) -> None:
    store, path = LocalStore(), join(str(tmp_path), name)
    store.write_bytes(path, b"1")
    assert store.list(str(tmp_path)) == [name] == store.find(str(tmp_path))
    assert store.read_bytes("file:" + path) == b"1"
    store.remove(path)


def test_a_written_file_is_read_back(place: str) -> None:
    path = Place(place) / "a/b"
    assert not path.exists()
    path.write_bytes(b"old")
    path.write_bytes(b"new")
    assert path.exists() and path.size() == 3
    assert path.read_bytes() == b"new"
    with path.open_read() as one, path.open_read() as other:
        assert (one.read(1), other.read(), one.read()) == (b"n", b"new", b"ew")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_survive(place: str, name: str) -> None:
    if scheme(place) == "hdfs" and ":" in name:
        with pytest.raises(NotWritable, match="Invalid"):  # HDFS has no such names
            (Place(place) / name).write_bytes(b"1")
        return
    (Place(place) / name / name).write_bytes(b"1")
    (Place(place) / "other" / "x").write_bytes(b"2")
    assert name in Place(place).list()
    assert (Place(place) / name).find() == [name]
    (Place(place) / name / name).move(Place(place) / name / "moved")
    assert (Place(place) / name / "moved").read_bytes() == b"1"
    (Place(place) / name).remove_tree()
    assert Place(place).find() == ["other/x"]


def test_a_missing_file_is_file_not_found(place: str) -> None:
    store, path = Place(place).store, join(place, "missing")
    for operation in (store.read_bytes, store.open_read, store.size):
        with pytest.raises(FileNotFoundError):
            operation(path)
    assert store.list(path) == [] == store.find(path)


def test_removing_may_run_twice(place: str) -> None:
    (Place(place) / "d/f").write_bytes(b"1")
    for _ in range(2):
        (Place(place) / "d/f").remove()
        (Place(place) / "d").remove_tree()
    assert Place(place).find() == []


def test_only_one_of_many_creates_a_file(place: str) -> None:
    path = Place(place) / "new" / "marker"
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: path.create_exclusive(b"%d" % n), range(32)))
    assert won.count(True) == 1
    assert path.read_bytes() == b"%d" % won.index(True)
    assert Place(place).find() == ["new/marker"]


def test_a_file_written_piece_by_piece_appears_only_when_it_is_whole(place: str) -> None:
    path = Place(place) / "d/f"
    with path.open_write() as file:
        file.write(b"1" * 1_000_000)
        assert not path.exists() and Place(place).find() == []
        file.write(b"2")
    assert path.size() == 1_000_001


def test_a_write_that_fails_leaves_nothing(place: str) -> None:
    path = join(place, "d/f")
    with pytest.raises(ZeroDivisionError), Place(path).open_write() as file:
        file.write(b"1" * 1_000_000)
        raise ZeroDivisionError
    assert not Place(path).exists()
    if is_local(place):
        assert [path for path in Path(place).rglob("*") if path.is_file()] == []


def test_a_write_that_fails_leaves_the_old_file(place: str) -> None:
    path = Place(place) / "f"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), path.open_write() as file:
        file.write(b"new")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old"


def test_moving_replaces(place: str) -> None:
    (Place(place) / "a").write_bytes(b"a")
    (Place(place) / "d/b").write_bytes(b"b")
    (Place(place) / "a").move(Place(place) / "d/b")
    assert Place(place).find() == ["d/b"] and (Place(place) / "d/b").read_bytes() == b"a"


def test_a_store_may_be_pickled(place: str) -> None:
    store = Place(place).store
    store.write_bytes(join(place, "f"), b"1")
    again = pickle.loads(pickle.dumps(store))
    assert again == store and again.read_bytes(join(place, "f")) == b"1"


def test_a_store_without_conditional_writes_refuses_to_be_exclusive() -> None:
    with pytest.raises(NotWritable, match="no conditional write"):
        FsspecStore("ftp://host/x").create_exclusive("ftp://host/x/f", b"")


def test_an_unknown_scheme_is_an_error_with_a_hint() -> None:
    with pytest.raises(UnknownPlace) as caught:
        Place("nonsense://x/y").read_bytes()
    assert caught.value.hint


def test_a_parent_that_is_a_file_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotWritable) as caught:
        LocalStore().write_bytes(str(tmp_path / "file/below"), b"1")
    assert caught.value.message == f"{tmp_path}/file: Not a directory" and caught.value.hint


def _in_child(what: object, *, as_nobody: bool = False, file_limit: int | None = None) -> str:
    """Run in a forked child with fewer rights or a small disk; the name of the error it got."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        output = "nothing"
        try:
            if file_limit is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
            if as_nobody:
                os.setuid(65534)
            what()  # type: ignore[operator]
        except Error as error:
            output = f"{type(error).__name__} {error.message} {'hinted' if error.hint else ''}"
        except BaseException as error:
            output = repr(error)
        os.write(writer, output.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        output = answers.read()
    os.waitpid(child, 0)
    return output


@pytest.mark.skipif(os.getuid() != 0, reason="needs to give up rights")
def test_a_directory_without_rights_is_not_writable(tmp_path: Path) -> None:
    for above in (tmp_path, *tmp_path.parents):
        if above.stat().st_uid == os.getuid() and above != Path("/"):
            above.chmod(above.stat().st_mode | stat.S_IXOTH)
    (tmp_path / "closed").mkdir(mode=0o755)
    output = _in_child(lambda: LocalStore().write_bytes(str(tmp_path / "closed/f"), b"1"), as_nobody=True)
    assert output.startswith("NotWritable") and "closed" in output and "hinted" in output


@pytest.mark.parametrize("way", ["write_bytes", "open_write", "copy_file", "keeper"])
def test_a_full_disk_is_said_so_and_leaves_nothing(tmp_path: Path, way: str) -> None:
    from cmroot.keep.keepers import CopyKeeper
    from cmroot.store.checksum import copy_file

    source = tmp_path / "source"
    source.write_bytes(b"1" * 3_000_000)
    target = tmp_path / "target"
    target.mkdir()

    def write() -> None:
        match way:
            case "write_bytes":
                LocalStore().write_bytes(str(target / "f"), b"1" * 3_000_000)
            case "open_write":
                with LocalStore().open_write(str(target / "f")) as file:
                    for _ in range(30):
                        file.write(b"1" * 100_000)
            case "copy_file":
                copy_file(str(source), str(target / "f"))
            case _:
                CopyKeeper(str(target)).keep(str(source))

    output = _in_child(write, file_limit=1_000_000)
    assert output.startswith(NoSpace.__name__) and "target" in output and "hinted" in output
    assert [path for path in target.rglob("*") if path.is_file()] == []


def test_devices_are_told_apart(tmp_path: Path) -> None:
    assert same_device(str(tmp_path / "not/there"), str(tmp_path))
    assert not same_device(str(tmp_path), "/proc/self")
    assert not same_device(str(tmp_path), "s3://b")


def test_a_new_root_is_its_owners_alone_and_one_that_was_made_before_keeps_its_mode(tmp_path: Path) -> None:
    """`files/` has links, which show what a 0700 database directory hides to whoever may enter."""
    assert stat.S_IMODE(os.stat(create_or_open(str(tmp_path / "a" / "root")).place).st_mode) == 0o700
    (tmp_path / "chosen").mkdir(mode=0o750)
    for _ in range(2):
        assert stat.S_IMODE(os.stat(create_or_open(str(tmp_path / "chosen")).place).st_mode) == 0o750


@pytest.mark.parametrize(
    ("text", "normal_form"),
    [
        ("s3a://b/t/", "s3://b/t"),
        ("file:///w//t/", "/w/t"),
        ("/w/a..b/...", "/w/a..b/..."),
        ("hdfs://n:1/w", "hdfs://n:1/w"),
    ],
)
def test_a_place_keeps_its_spelling_and_is_compared_by_its_normal_form(text: str, normal_form: str) -> None:
    place = Place(text)
    assert (str(place), place.text, place.normal) == (text, text, normal_form)
    assert place == Place(normal_form) and len({place, Place(normal_form)}) == 1
    assert pickle.loads(pickle.dumps(place)).text == text
    below = place / "p=a%20b" / "f"
    assert (below.text, below.name) == (join(text, "p=a%20b", "f"), "f")
    assert below.parent.parent == place and below.parent.parent.text == text.rstrip("/")
    assert below.is_below(place) and place.is_below(place) and not Place(f"{normal_form}x").is_below(place)
    assert below.local == (f"{normal_form}/p=a%20b/f" if is_local(text) else "")


@pytest.mark.parametrize(
    "text", ["", "/w/../x", "/..", "file:/w/..", "file:///../w", "s3a://b/../../etc", "s3://..", "/w\0", "s3://b/k\0x"]
)
def test_a_text_that_may_lead_anywhere_is_no_place(text: str) -> None:
    with pytest.raises(UnknownPlace) as caught:
        Place(text)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["", "..", ".", "../x", "a/../../x", "/etc", "a//b", "a/", "a/./b", "a\0b"])
@pytest.mark.parametrize("above", ["/w", "s3a://b/k"])
def test_a_foreign_name_leads_to_nothing_outside_of_its_place(above: str, name: str) -> None:
    with pytest.raises(UnknownPlace) as caught:
        Place(above) / name
    assert above in caught.value.message and repr(name) in caught.value.message and caught.value.hint


def test_a_relative_path_stays_the_same_place_in_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = Place("../" + tmp_path.name + "/f")
    monkeypatch.chdir("/")
    place.write_bytes(b"1")
    assert (tmp_path / "f").read_bytes() == b"1" and place.local == str(tmp_path / "f")


def test_places_share_a_store_by_scheme_and_authority() -> None:
    assert Place("/w").same_store(Place("file:///x")) and Place("s3a://b/k").same_store(Place("s3://b/other"))
    assert not Place("s3://b").same_store(Place("s3://c")) and not Place("/b").same_store(Place("s3://b"))


def test_a_place_asks_its_store(place: str) -> None:
    top = Place(place) / "top"
    top.mkdirs(private=True)
    file = top / "a" / "b"
    assert not file.exists()
    file.write_bytes(b"old")
    assert not file.create_exclusive(b"x") and (top / "a" / "c").create_exclusive(b"c")
    with file.open_write() as out:
        out.write(b"new!")
    with file.open_read() as data:
        assert (data.read(), file.read_bytes(), file.size()) == (b"new!", b"new!", 4)
    file.move(top / "d")
    assert (top.list(), top.find()) == (["a", "d"], ["a/c", "d"])
    top.sync()
    (top / "d").remove()
    assert top.find() == ["a/c"]
    top.remove_tree()
    assert not top.find() and not file.exists()


def test_the_children_of_a_place_are_shown_as_they_are(place: str) -> None:
    top, began = Place(place) / "top", time.time() - 2.0  # some stores count whole seconds
    for name, data in (("b", b"12"), ("a/x", b"1"), ("a/y", b"1")):
        (top / name).write_bytes(data)
    found = top.children()
    assert [(each.path, each.is_directory, each.is_link) for each in found] == [
        (str(top / "a"), True, False),
        (str(top / "b"), False, False),
    ]
    assert found[1] == (top / "b").child() and found[1].size == 2
    assert found[1].mtime is not None
    assert began < found[1].mtime < began + 100 * CEILING, "seconds of this clock, and of no other zone"
    assert (top / "c").child() is None
    with pytest.raises(FileNotFoundError):
        (top / "c").children()


def test_a_symbolic_link_is_a_child_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    (found,) = Place(str(tmp_path)).children()
    assert found.is_link and not found.is_directory and found == Place(str(tmp_path / "link")).child()


def test_hdfs_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(UnknownPlace) as caught:
        Place("hdfs://absent:1/w").exists()
    assert caught.value.hint is not None and "replicator[hdfs]" in caught.value.hint


def test_a_driver_of_hdfs_that_cannot_replace_is_refused() -> None:
    with pytest.raises(UnknownPlace) as caught:
        Place("arrow_hdfs://nn:1/w").exists()
    assert caught.value.hint == "write hdfs:// instead"


def test_what_comes_into_a_directory_that_goes_stays(place: str) -> None:
    """Another names a file between the look and the removal."""
    if is_local(place):
        return  # takes no more than rmdir
    store = Place(place).store
    assert isinstance(store, FsspecStore)
    (Place(place) / "d/empty/deeper/f").write_bytes(b"1")
    (Place(place) / "d/empty/deeper/f").remove()
    (Place(place) / "d/filled/late").write_bytes(b"late")
    store.remove_emptied(f"{place}/d")
    assert (Place(place) / "d").find() == ["filled/late"]
    (Place(place) / "d/filled/late").remove()
    store.remove_emptied(f"{place}/d")
    assert not (Place(place) / "d").exists()


@pytest.mark.parametrize(
    "text",
    [
        "s3://KEY:SECRET@bucket/a",
        "s3a://KEY@bucket/a",
        "sftp://user:SECRET@host/a",
        "https://u:SECRET@h/a",
        "s3://KEY:12/SECRET@bucket/a",
        "sftp://user:x/SECRET@host/a",
    ],
)
def test_a_url_with_credentials_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(UnknownPlace, match="a URL with credentials") as caught:
        Place(text)
    assert "SECRET" not in str(caught.value) and "KEY" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["abfss://box@account.dfs.core.windows.net/a", "sftp://user@host/a", "sftp://host:22/a@b", "/a:b@c/d"]
)
def test_a_url_that_names_a_user_or_a_container_is_a_place(text: str) -> None:
    assert str(Place(text)) == text


def test_an_endpoint_that_does_not_answer_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs", reason="the s3 extra is not installed")
    away = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_MAX_ATTEMPTS": "2",
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
    }
    for name, value in away.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StorageUnreachable, match=r"s3://nobody-answers/a: .*127\.0\.0\.1:1") as caught:
        Place("s3://nobody-answers/a").read_bytes()
    assert (caught.value.exit_code, caught.value.transient) == (75, True)


def test_missing_credentials_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs", reason="the s3 extra is not installed")
    monkeypatch.setenv("AWS_PROFILE", "nobody-has-it")
    with pytest.raises(NotWritable, match="nobody-has-it") as caught:
        Place("s3://of-a-profile/a").read_bytes()
    assert "AWS_PROFILE" in caught.value.hint


@pytest.mark.parametrize(
    ("protocol", "module", "extra"),
    [("s3", "s3fs", "s3"), ("s3a", "s3fs", "s3"), ("gs", "gcsfs", "gcs"), ("abfss", "adlfs", "azure")],
)
def test_a_store_without_its_driver_names_the_extra(
    protocol: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("fsspec.registry"), "registry", {})  # of those that are loaded
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnknownPlace) as refused:
        Place(f"{protocol}://a-box-without-driver-{protocol}/a").read_bytes()
    assert f"'replicator[{extra}]'" in refused.value.hint


def test_rights_make_no_program_of_root_and_go_through_no_link(tmp_path: Path) -> None:
    program, link, made, victim = (tmp_path / name for name in ("program", "link", "made", "victim"))
    for each in (program, made, victim):
        each.write_text("bytes")
    program.chmod(0o6755)
    link.symlink_to(program)
    assert not give_rights(str(link), str(made))
    assert made.stat().st_mode & 0o7777 == 0o755
    victim.chmod(0o600)
    made.unlink()
    made.symlink_to(victim)  # in place of the file that was copied
    with pytest.raises(OSError, match="symbolic links"):
        give_rights(str(link), str(made))
    (tmp_path / "above").mkdir(mode=0o700)
    (tmp_path / "table").mkdir(mode=0o777)
    (tmp_path / "part").symlink_to(tmp_path / "above")
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        inherit(str(tmp_path / "part"), str(tmp_path / "table"))
    assert victim.stat().st_mode & 0o777 == 0o600 and (tmp_path / "above").stat().st_mode & 0o777 == 0o700


def acl(*entries: tuple[int, int, int]) -> bytes:
    """(tag, bits, id) of linux/posix_acl_xattr.h; a missing id is -1."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *each) for each in entries)


USER, NAMED, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x10, 0x20


@pytest.fixture
def with_acls(tmp_path: Path) -> Path:
    try:
        os.setxattr(tmp_path, "system.posix_acl_default", acl((USER, 7, -1), (GROUP, 5, -1), (OTHER, 0, -1)))
        os.removexattr(tmp_path, "system.posix_acl_default")
    except OSError:
        pytest.skip("a filesystem without ACLs")
    return tmp_path


def test_a_new_file_has_no_acl_that_the_replaced_one_had_not(with_acls: Path) -> None:
    old, new = with_acls / "old", with_acls / "new"
    old.write_text("")
    old.chmod(0o600)
    named = acl((USER, 7, -1), (NAMED, 7, 4711), (GROUP, 5, -1), (MASK, 7, -1), (OTHER, 0, -1))
    os.setxattr(with_acls, "system.posix_acl_default", named)
    new.write_text("")
    assert "system.posix_acl_access" in os.listxattr(new)
    assert not give_rights(str(old), str(new))
    assert not os.listxattr(new) and new.stat().st_mode & 0o777 == 0o600


def test_a_new_directory_is_open_to_no_more_users_than_its_table(with_acls: Path) -> None:
    table = with_acls / "table"
    table.mkdir()
    table.chmod(0o750)
    group_less = acl((USER, 7, -1), (NAMED, 7, 4711), (GROUP, 0, -1), (MASK, 7, -1), (OTHER, 0, -1))
    os.setxattr(table, "system.posix_acl_access", group_less)  # whose mode is 0770
    make_inheriting(str(table / "a"), str(table))
    assert (table / "a").stat().st_mode & 0o7777 == 0o700
    os.removexattr(table, "system.posix_acl_access")
    table.chmod(0o2755)
    os.setxattr(table, "system.posix_acl_default", acl((USER, 7, -1), (GROUP, 0, -1), (OTHER, 0, -1)))
    make_inheriting(str(table / "b" / "c"), str(table))
    assert (table / "b").stat().st_mode & 0o7777 == 0o2700 == (table / "b" / "c").stat().st_mode & 0o7777


def test_the_group_bit_of_directories_is_inherited_below(tmp_path: Path) -> None:
    table, above = tmp_path / "table", tmp_path / "above"
    table.mkdir()
    table.chmod(0o750)
    above.mkdir()
    os.chown(above, -1, 4711)
    above.chmod(0o2770)
    make_inheriting(str(above / "x" / "y"), str(table))
    make_inheriting(str(above / "x"), str(table))
    inherit(str(above / "x"), str(table))
    assert (above / "x").stat().st_gid == 4711 and (above / "x").stat().st_mode & 0o2000


def test_what_gets_no_group_is_open_to_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for each in (old, new):
        each.write_text("")
    os.chown(old, -1, 4711)
    old.chmod(0o640)

    def refused(handle: int, owner: int, group: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refused)  # as for any user but root
    assert give_rights(str(old), str(new)) == "group 4711"
    assert new.stat().st_mode & 0o777 == 0o600


def test_a_copy_by_a_store_that_is_not_whole_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a store that answers before it has copied."""
    copy, place, new = MemoryFileSystem.cp_file, Place("memory://copies/old"), Place("memory://copies/new")

    def cut_short(filesystem: Any, old: str, new: str) -> None:
        copy(filesystem, old, new)
        filesystem.pipe_file(new, b"")

    place.write_bytes(b"bytes")
    monkeypatch.setattr(MemoryFileSystem, "cp_file", cut_short)
    for act in (lambda: remote_store(place.text).copy(place.text, new.text), lambda: place.move(new)):
        with pytest.raises(FileNotFoundError):
            act()
        assert place.read_bytes() == b"bytes" and not new.exists()
