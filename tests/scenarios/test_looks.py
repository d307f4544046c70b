"""What a file looks like, and what it is called. One of the same size and time may hold other bytes; names are bytes,
and may be no text. Through the command line, from a source's table to its replica."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Answer, command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab import Lab
from plain_tables import KEYS

from replicator.core.model import partition_name
from replicator.metastore.embedded.running import Running

TIME = 1_600_000_000 * 10**9  # a build's fixed time, or what `rsync -t` and `tar x` restore


@pytest.fixture
def fixture(fixture: Lab) -> Lab:
    fixture.source.table("t", {"f": "old", "other": "other"})
    set_times(fixture.source.home / "t")
    return fixture


def set_times(directory: Path) -> None:
    for path in directory.rglob("*"):
        os.utime(path, ns=(TIME, TIME))


def by_rename(path: Path, text: str) -> None:
    aside = path.with_name(".aside")
    aside.write_text(text)
    os.utime(aside, ns=(TIME, TIME))
    aside.rename(path)


def by_removal(path: Path, text: str) -> None:
    """As `tar x` does it; a filesystem may give the number of a removed file's inode to the next one."""
    path.unlink()
    path.write_text(text)
    os.utime(path, ns=(TIME, TIME))


def in_place(path: Path, text: str) -> None:
    """As `rsync --inplace -t` does it, beside a change of the directory."""
    path.write_text(text)
    os.utime(path, ns=(TIME, TIME))
    (path.parent / "new").write_text("new")


@pytest.mark.parametrize(("keeper", "replace"), [("link", by_rename), ("copy", by_removal), ("copy", in_place)])
def test_a_file_replaced_by_one_of_the_same_size_and_time_is_captured_and_loaded(
    fixture: Lab, keeper: str, replace: Callable[[Path, str], None]
) -> None:
    for answer in (fixture.dump("--keeper", keeper), fixture.load()):
        assert answer.code == 0, answer
    fixture.is_same()
    replace(fixture.source.home / "t" / "f", "new")
    before = fixture.last
    dumped = fixture.dump("--keeper", keeper, since=before)
    assert dumped.code == 0, dumped
    loaded = fixture.load()
    assert loaded.code == 0, loaded
    assert (fixture.target.home / "t" / "f").read_text() == "new"
    fixture.is_same()


def test_a_file_of_which_only_owner_or_mode_changed_is_no_change(fixture: Lab) -> None:
    assert fixture.capture().code == 0
    for name in ("f", "other"):
        (fixture.source.home / "t" / name).chmod(0o640)
    (fixture.source.home / "t" / "new").write_text("new")
    captured = fixture.capture()
    assert (captured.code, captured.output["files"]) == (0, 1)
    (fixture.source.home / "t" / "newer").write_text("newer")
    assert fixture.capture().output["files"] == 1


def test_a_bootstrap_by_difference_goes_by_the_bytes(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    pair = Lab(source_metastore, target_metastore, tmp_path)
    pair.db("a").table("t", {"f": "old", "other": "other"})
    pair.db("a").table("left", {"f": "left"})
    set_times(pair.db("a").home)
    assert pair.sync().files_copied == 3
    by_rename(pair.db("a").home / "t" / "f", "new")
    pair.keys["exclude"] = [".*left"]  # an edited filter: the next run takes over what is there
    run = pair.sync()
    assert (pair.replica("a").home / "t" / "f").read_text() == "new"
    assert run.files_copied == 1
    (pair.replica("a").home / "t" / "other").unlink()
    by_rename(pair.replica("a").home / "t" / "other", "OTHER")  # of the replica, of the same size and time
    del pair.keys["exclude"]
    run = pair.sync()
    assert run.files_copied == 1
    pair.are_same()


# ---- names --------------------------------------------------------------------------------------------------------


def write_bytes(directory: Path, name: bytes, content: bytes = b"1\x01one\n") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with open(os.path.join(os.fsencode(directory), name), "wb") as file:
        file.write(content)


def names_at(directory: Path) -> dict[bytes, bytes]:
    """Contents of the files of a directory by name, without hidden ones."""
    top = os.fsencode(directory)
    names = [name for name in (os.listdir(top) if directory.is_dir() else []) if not name.startswith(b".")]
    return {name: Path(os.fsdecode(os.path.join(top, name))).read_bytes() for name in names}


def verified(fixture: Lab) -> Answer:
    sides = ["--source", fixture.source_uri, "--target", fixture.target_uri]
    return command("verify", *sides, "--db", fixture.name, "--engine", "local")


def reasons(answer: Answer) -> list[str]:
    return [str(each["reason"]) for each in answer.output["not_replicated"]]


def test_a_file_whose_name_is_no_text_is_told_each_time_and_everything_else_goes_on(fixture: Lab) -> None:
    fixture.source.table("other", {"f": "other"})
    write_bytes(fixture.source.home / "t", b"bad\xff.parquet")
    os.mkdir(os.path.join(os.fsencode(fixture.source.home / "t"), b"sub\xfe"))
    captured = fixture.capture()
    assert captured.code == 3, captured
    (reported,) = reasons(captured)
    assert "not UTF-8" in reported and r"bad\xff.parquet" in reported and r"sub\xfe/" in reported
    for answer in (fixture.dump(), fixture.load(), fixture.dump(since=fixture.last), fixture.load()):
        assert answer.code == 3, answer
        assert reasons(answer) == [reported] and answer.output["not_replicated"][0]["object"] == f"{fixture.name}.t"
    assert set(names_at(fixture.target.home / "t")) == {b"f", b"other"}
    assert fixture.capture("--no-scan").code == 3
    found = verified(fixture)
    assert (found.code, [each["kind"] for each in found.output["differences"]]) == (4, ["file missing"] * 2)

    os.rmdir(os.path.join(os.fsencode(fixture.source.home / "t"), b"sub\xfe"))
    os.unlink(os.path.join(os.fsencode(fixture.source.home / "t"), b"bad\xff.parquet"))
    fixture.catch_up()
    assert verified(fixture).code == 0


def test_a_table_that_is_dropped_is_told_no_more(fixture: Lab) -> None:
    fixture.source.partitioned("parts", {"a": {"f": "a"}, "b": {"f": "b"}})
    write_bytes(fixture.source.home / "parts" / "p=a", b"\xff")
    answer = fixture.dump()
    assert answer.code == 3 and answer.output["not_replicated"][0]["partition"] == "p=a"
    assert fixture.load().code == 3
    fixture.source.metastore.drop_partitions(fixture.name, "parts", ["p=a"])
    before = fixture.last
    assert fixture.dump(since=before).code == 0
    assert fixture.load().code == 0


@pytest.mark.parametrize("publish", ["mirror", "snapshot"])
def test_names_of_the_greatest_length_are_loaded_and_replaced(
    source_metastore: Running, target_metastore: Running, tmp_path: Path, publish: str
) -> None:
    pair = Lab(source_metastore, target_metastore, tmp_path, publish=publish)
    names = ["f" * length for length in (240, 246, 255)] + ["é" * 127 + "f"]
    pair.db("a").table("t")
    for name in names:
        write_bytes(pair.db("a").home / "t", name.encode(), b"old")
    assert pair.sync().files_copied == len(names)
    write_bytes(pair.db("a").home / "t", names[2].encode(), b"newer")
    os.unlink(pair.db("a").home / "t" / names[1])
    (pair.db("a").home / "t" / "more").write_text("more")
    assert pair.sync().files_copied == 2
    place = pair.target.metastore.table(pair.replica("a").name, "t").location
    assert place
    found = names_at(Path(place.removeprefix("file:")))
    assert found == names_at(pair.db("a").home / "t") and found[names[2].encode()] == b"newer"


def is_file_name(name: bytes) -> bool:
    """Of a file that may be data."""
    return b"/" not in name and b"\0" not in name and not name.startswith(b".") and len(name) <= 255


any_bytes = st.binary(min_size=1, max_size=255)
any_text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60).map(str.encode)
any_name = st.one_of(any_bytes, any_text).filter(is_file_name)
any_value = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=19).filter(
    lambda value: value == value.rstrip()  # a database may compare values without their last spaces
)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(any_name, min_size=1, max_size=40, unique=True), st.lists(any_value, max_size=8, unique=True))
def test_names_are_bytes_and_values_any_text(
    source_metastore: Running,
    target_metastore: Running,
    tmp_path_factory: pytest.TempPathFactory,
    files: list[bytes],
    values: list[str],
) -> None:
    fixture = Lab(source_metastore, target_metastore, tmp_path_factory.mktemp("names"))
    fixture.source.create()
    fixture.source.table("t")
    for number, name in enumerate(files):
        write_bytes(fixture.source.home / "t", name, b"%d" % number)
    fixture.source.partitioned("parts", {})
    add(fixture, values)
    texts = {name for name in files if is_utf8(name)}
    code = 0 if len(texts) == len(files) else 3
    for answer in (fixture.capture(), fixture.dump(), fixture.load()):
        assert answer.code == code, answer
    source, target = names_at(fixture.source.home / "t"), names_at(fixture.target.home / "t")
    assert target == {name: source[name] for name in texts}
    shown, wanted = fixture.target.shown(), fixture.source.shown() if code == 0 else None
    if wanted is not None:
        assert shown == wanted
    assert {name for name in shown if name.startswith("parts/")} == {f"parts/{named(value)}" for value in values}
    found = verified(fixture)
    differing = [each for each in found.output["differences"] if each["kind"] != "file missing"]
    assert (found.code, differing) == (4 if code else 0, [])
    assert len(found.output["differences"]) == len(files) - len(texts)


def is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def named(value: str) -> str:
    return partition_name(KEYS, (value,))


def add(fixture: Lab, values: list[str]) -> None:
    """Partitions, each in the directory that Hive would give it."""
    made: list[Any] = []
    for value in values:
        place = fixture.source.home / "parts" / named(value)
        write_bytes(place, b"f", value.encode())
        made.append(fixture.source.partition(value, place))
    fixture.source.metastore.add_partitions(fixture.name, "parts", made)
