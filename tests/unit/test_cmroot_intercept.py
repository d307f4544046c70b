"""What somebody else is about to drop is in the root before, and comes back exactly if it is not dropped."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest
import xxhash
from steps import at_every_step

from cmroot.errors import FormatError, KeepError, NotWritable
from cmroot.keep.content import is_kept, locate
from cmroot.keep.intercept import Intercept, intercepts, sweep_intercepts
from cmroot.keep.journal import DropCall, InterceptSource, Owner
from cmroot.log.references import JOURNAL, read_intercepted, undecided_since
from cmroot.root import create_or_open
from cmroot.store.checksum import checksum_file
from cmroot.store.place import Place, join

FILES = {"p=1/a": b"one" * 100_000, "p=1/b": b"two", "p=2/_tmp/c": b"three", "p=2/_temporary/d": b"four", "stray": b"5"}
RECORDED = {"p=1/a", "p=1/b", "p=2/_tmp/c"}  # what a listing of the two partitions would show


class Ground:
    """A table of two partitions, and a root, in one place or in two."""

    def __init__(self, root: str, table: str) -> None:
        self.root, self.table = create_or_open(root).place, table

    def lay(self) -> None:
        for name, data in FILES.items():
            (Place(self.table) / name).write_bytes(data)

    def begin(self, stopped: threading.Event | None = None, **more: object) -> Intercept:
        sources = [
            InterceptSource(self.table, "t"),
            *(InterceptSource(join(self.table, f"p={number}"), "t") for number in (1, 2)),
        ]
        owners = [Owner("t", f"p={number}", join(self.table, f"p={number}")) for number in (1, 2)]
        drop = DropCall(before_event=7, call="drop_table", db="db", table="t", **more)  # type: ignore[arg-type]
        return Intercept.begin(self.root, drop, sources, owners, stopped=stopped)

    def there(self) -> dict[str, bytes]:
        return {name: (Place(self.table) / name).read_bytes() for name in Place(self.table).find()}

    def recorded(self) -> dict[str, bytes]:
        """Path below the table -> kept bytes, of what the capture of an event will find."""
        found = {}
        for taken in read_intercepted(self.root, 1 << 62):
            for row in taken.rows().to_pylist():
                assert (row["op"], row["db"], row["table"], row["kept"]) == ("add", "db", "t", True)
                assert row["location"] == join(self.table, row["partition"])
                data = Place(locate(self.root, row["checksum"], row["size"])).read_bytes()
                assert f"{row['partition']}/{row['path']}" not in found
                found[f"{row['partition']}/{row['path']}"] = data
        return found

    def is_clean(self) -> bool:
        return (Place(self.root) / "taking").find() == [] and undecided_since(self.root) is None


@pytest.fixture(params=["one device", "two devices", "s3"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    if request.param == "s3":
        pytest.importorskip("moto.server", reason="moto is not installed")
        pytest.importorskip("s3fs", reason="the s3 extra is not installed")
        request.getfixturevalue("s3_endpoint")
        place = f"s3a://cmroot-test/{tmp_path.name}-{time.monotonic_ns()}"
        made = Ground(f"{place}/cmroot", f"{place}/w/t")
    elif request.param == "two devices":
        made = Ground(f"{request.getfixturevalue('other_device')}/cmroot", str(tmp_path / "w" / "t"))
    else:
        made = Ground(str(tmp_path / "cmroot"), str(tmp_path / "w" / "t"))
    made.lay()
    return made


def test_what_was_dropped_is_kept_and_waits_for_its_event(ground: Ground) -> None:
    intercept = ground.begin(about={"kind": "table"})
    assert undecided_since(ground.root) == 7
    intercept.protect()
    intercept.sent()
    intercept.settle({"t": 8})
    assert ground.there() == {}
    assert ground.recorded() == {name: FILES[name] for name in RECORDED}
    assert {taken.event for taken in read_intercepted(ground.root, 8)} == {8}
    assert (intercept.files, intercept.bytes) == (len(FILES), sum(map(len, FILES.values())))
    assert ground.is_clean() and not intercept.open


def test_nobodys_files_are_kept_too(ground: Ground) -> None:
    intercept = ground.begin()
    intercept.protect()
    intercept.sent()
    intercept.settle({"t": 8})
    kept = {(Place(ground.root) / "files" / name).read_bytes() for name in (Place(ground.root) / "files").find()}
    assert kept == set(FILES.values())


@pytest.mark.parametrize("killed", [False, True])
def test_a_file_whose_name_is_no_text_is_kept_like_any_other(tmp_path: Path, killed: bool) -> None:
    ground = Ground(str(tmp_path / "cmroot"), str(tmp_path / "w" / "t"))
    ground.lay()
    Path(os.fsdecode(os.fsencode(ground.table) + b"/p=1/bad\xff")).write_bytes(b"no text")
    intercept = ground.begin()
    intercept.protect()
    intercept.sent()
    if killed:
        (intercept,) = intercepts(ground.root)
    intercept.settle({"t": 8})
    assert not Path(ground.table).exists()
    assert ground.recorded() == {name: FILES[name] for name in RECORDED} | {r"p=1/bad\xff": b"no text"}
    assert ground.is_clean()


def test_what_was_not_dropped_is_back_as_it_was(ground: Ground, tmp_path: Path) -> None:
    before = ground.there(), tree(tmp_path / "w")
    intercept = ground.begin()
    intercept.protect()
    intercept.sent()
    intercept.settle({})
    assert (ground.there(), tree(tmp_path / "w")) == before
    assert ground.recorded() == {} and ground.is_clean()


def tree(top: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, time and mode of everything below."""
    found = {}
    for path in [top / "t", *(top / "t").rglob("*")] if top.exists() else ():
        status = path.stat()
        found[str(path)] = (status.st_ino, status.st_mtime_ns, status.st_mode)
    return found


def test_a_file_that_a_writer_adds_until_the_end_is_kept(ground: Ground) -> None:
    intercept = ground.begin()
    intercept.protect()
    moved = intercept.journal.sources[0].entry
    place = join(intercept.place, moved) if moved else ground.table
    (Place(place) / "p=1/late").write_bytes(b"late")
    intercept.sent()
    (Place(place) / "p=2/later").write_bytes(b"later")
    intercept.settle({"t": 8})
    assert {"p=1/late": b"late", "p=2/later": b"later"}.items() <= ground.recorded().items()
    assert ground.there() == {}


def test_a_file_that_changes_after_it_was_kept_is_kept_again(ground: Ground) -> None:
    intercept = ground.begin()
    intercept.protect()
    moved = intercept.journal.sources[0].entry
    place = join(intercept.place, moved) if moved else ground.table
    (Place(place) / "p=1/b").write_bytes(b"changed since")
    intercept.sent()
    intercept.settle({"t": 8})
    assert ground.recorded()["p=1/b"] == b"changed since"


@pytest.mark.parametrize("dropped", [True, False])
@pytest.mark.parametrize("state", ["begun", "protected", "sent"])
def test_whoever_comes_after_a_crash_finishes(ground: Ground, state: str, dropped: bool) -> None:
    intercept = ground.begin()
    if state != "begun":
        intercept.protect()
    if state == "sent":
        intercept.sent()
    intercept._store_lock.close()  # as the end of the process would
    (left,) = intercepts(ground.root)
    assert left.journal.state == ("sent" if state == "sent" else "taking")
    if dropped and state == "sent":
        left.settle({"t": 9})
        assert ground.there() == {} or not left.journal.sources[0].entry
        assert ground.recorded() == {name: FILES[name] for name in RECORDED}
        assert not RECORDED & ground.there().keys()
    else:
        left.put_back()
        assert ground.there() == FILES
    assert ground.is_clean() and intercepts(ground.root) == []


def test_a_table_made_anew_meanwhile_keeps_its_files(ground: Ground) -> None:
    """The gateway was down between the drop and its end; the name has other data by then."""
    intercept = ground.begin()
    intercept.protect()
    intercept.sent()
    intercept._store_lock.close()
    if not intercept.journal.sources[0].entry:
        Place(ground.table).remove_tree()
    (Place(ground.table) / "p=1/a").write_bytes(b"of another table")
    (Place(ground.table) / "p=1/new").write_bytes(b"new")
    (left,) = intercepts(ground.root)
    left.settle({"t": 9})
    assert ground.there() == {"p=1/a": b"of another table", "p=1/new": b"new"}
    assert ground.recorded() == {name: FILES[name] for name in RECORDED}


def test_what_comes_back_does_not_replace_what_has_come_meanwhile(ground: Ground) -> None:
    intercept = ground.begin()
    intercept.protect()
    (Place(ground.table) / "p=1/b").write_bytes(b"another")
    intercept.put_back()
    assert ground.there() == FILES | {"p=1/b": b"another"}
    checksum = checksum_of(b"two")
    assert is_kept(ground.root, *checksum)


def checksum_of(data: bytes) -> tuple[str, int]:
    import xxhash

    return xxhash.xxh3_128_hexdigest(data), len(data)


def test_an_emptied_directory_stays_as_accessible_as_it_was(tmp_path: Path) -> None:
    ground = Ground(str(tmp_path / "cmroot"), str(tmp_path / "w" / "t"))
    ground.lay()
    os.chmod(ground.table, 0o750)
    intercept = ground.begin(empties=True)
    intercept.protect()
    assert os.listdir(ground.table) == [] and os.stat(ground.table).st_mode & 0o7777 == 0o750
    intercept.sent()
    Path(ground.table, "written-after").write_bytes(b"new")
    intercept.settle({"t": 8})
    assert ground.there() == {"written-after": b"new"}
    assert ground.recorded() == {name: FILES[name] for name in RECORDED}


def test_of_several_tables_only_those_that_were_dropped_stay(tmp_path: Path) -> None:
    ground = Ground(str(tmp_path / "cmroot"), str(tmp_path / "w"))
    for name in ("dropped", "there"):
        (Place(ground.table) / name / "file").write_bytes(name.encode())
    sources = [InterceptSource(join(ground.table, name), name) for name in ("dropped", "there")]
    intercept = Intercept.begin(
        ground.root,
        DropCall(before_event=1, call="drop_database", db="db", table=""),
        sources,
        [Owner(source.table, "", source.place) for source in sources],
    )
    intercept.protect()
    intercept.sent()
    intercept.settle({"dropped": 2})
    assert ground.there() == {"there/file": b"there"}
    ((row,),) = [taken.rows().to_pylist() for taken in read_intercepted(ground.root, 2)]
    assert (row["table"], row["path"]) == ("dropped", "file")


def test_hidden_files_and_links_come_back_too(tmp_path: Path) -> None:
    ground = Ground(str(tmp_path / "cmroot"), str(tmp_path / "w" / "t"))
    ground.lay()
    Path(ground.table, ".a.crc").write_bytes(b"crc")
    Path(ground.table, "link").symlink_to("p=1/a")
    Path(ground.table, "dangling").symlink_to("nowhere")
    intercept = ground.begin()
    intercept.protect()
    assert not Path(ground.table).exists()
    intercept.put_back()
    assert (
        Path(ground.table, ".a.crc").read_bytes() == b"crc"
        and Path(ground.table, "link").read_bytes() == FILES["p=1/a"]
    )
    again = ground.begin()
    again.protect()
    again.sent()
    again.settle({"t": 8})
    assert not Path(ground.table).exists() and ground.is_clean()
    assert is_kept(ground.root, xxhash.xxh3_128_hexdigest(b"crc"), 3)
    assert ".a.crc" not in {path.rpartition("/")[2] for path in ground.recorded()}


def test_a_root_inside_what_is_taken_is_refused(tmp_path: Path) -> None:
    ground = Ground(str(tmp_path / "w" / "t" / "cmroot"), str(tmp_path / "w" / "t"))
    with pytest.raises(KeepError, match="or is inside of it"):
        ground.begin()
    assert ground.is_clean()


def test_a_file_that_cannot_be_kept_leaves_everything_in_place(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is that goes wrong, at the first file or at the last."""
    import cmroot.keep.intercept

    real = cmroot.keep.intercept.keep_safely
    before = ground.there()
    for fails_at in range(len(FILES)):
        calls = iter(range(100))

        def keep(*arguments: object) -> object:
            if next(calls) == fails_at:  # noqa: B023
                raise NotWritable("the disk is not what it was")
            return real(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(cmroot.keep.intercept, "keep_safely", keep)
        with pytest.raises(NotWritable):
            ground.begin().protect()
        assert ground.there() == before and ground.is_clean()


def test_a_damaged_journal_is_told_by_name(tmp_path: Path) -> None:
    ground = Ground(str(tmp_path / "cmroot"), str(tmp_path / "w" / "t"))
    ground.lay()
    intercept = ground.begin()
    journal = Path(intercept.place, JOURNAL)
    journal.write_bytes(journal.read_bytes()[:40])
    with pytest.raises(FormatError, match=r"journal\.json"):
        intercepts(ground.root)
    journal.write_text(
        '{"version": 2, "id": "", "state": "", "before_event": 0, "call": "", "db": "", "table": "",'
        ' "created": "", "sources": [], "owners": []}'
    )
    with pytest.raises(FormatError, match="version 2"):
        intercepts(ground.root)


def test_many_files_are_kept_by_several_threads(tmp_path: Path) -> None:
    ground = Ground(str(tmp_path / "cmroot"), str(tmp_path / "w" / "t"))
    Path(ground.table, "p=1").mkdir(parents=True)
    for number in range(300):
        Path(ground.table, "p=1", f"{number:03}").write_text(str(number))
    intercept = ground.begin()
    intercept.protect()
    intercept.sent()
    intercept.settle({"t": 8})
    assert ground.recorded() == {f"p=1/{number:03}": str(number).encode() for number in range(300)}


# ---- killed at every step -----------------------------------------------------------------------------------------

WORK = """
from cmroot.keep.journal import DropCall, InterceptSource, Owner
from cmroot.keep.intercept import Intercept
root, table = {root!r}, {table!r}
drop = DropCall(before_event=7, call="drop_table", db="db", table="t")
owners = [Owner("t", f"p={{n}}", f"{{table}}/p={{n}}") for n in (1, 2)]
intercept = Intercept.begin(root, drop, [InterceptSource(table, "t")], owners)
intercept.protect()
intercept.sent()
os.mkdir({dropped!r})  # what the metastore does
intercept.settle({{"t": 8}})
"""


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_taking_that_is_killed_at_any_step_loses_nothing(
    tmp_path: Path, request: pytest.FixtureRequest, devices: int
) -> None:
    home = tmp_path if devices == 1 else request.getfixturevalue("other_device")
    dropped = tmp_path / "dropped"
    content = {"p=1/a": b"one", "p=2/b": b"two"}
    place, root = tmp_path / "w" / "t", f"{home}/cmroot"

    def prepare() -> None:
        for old in (root, str(tmp_path / "w")):
            shutil.rmtree(old, ignore_errors=True)
        if dropped.exists():
            dropped.rmdir()
        create_or_open(root)
        for name, data in content.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(data)

    def check(number: int) -> None:
        for path in Path(root, "files").rglob("*"):
            if path.is_file():
                checksum, size = checksum_file(str(path))
                assert path.name == f"xxh3_128-{checksum}-{size}"
        sweep_intercepts(root)
        ground = Ground(root, str(place))
        for intercept in intercepts(root):
            assert intercept.journal.state != "done" or dropped.exists()
            intercept.settle({"t": 8} if dropped.exists() else {})
        if dropped.exists():
            assert ground.recorded() == content, number
            assert not place.exists() or not any(path.is_file() for path in place.rglob("*")), number
        else:
            assert {name: (place / name).read_bytes() for name in content} == content, number
            assert ground.recorded() == {}
        assert ground.is_clean() and os.listdir(join(root, "taking")) == []

    kills = at_every_step(
        WORK.format(root=root, table=str(place), dropped=str(dropped)),
        prepare,
        check,
        imports=", cmroot.keep.intercept",
    )
    assert kills > 20
