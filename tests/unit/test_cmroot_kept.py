"""The list of what a root keeps: from where, for whom, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from grouping import InProcess
from history import History

from cmroot import pins
from cmroot.errors import FormatError
from cmroot.expire.retention import kept
from cmroot.keep.content import locate
from cmroot.keep.keepers import CopyKeeper
from cmroot.log.captured import FILES, SegmentWriter, segments
from cmroot.log.references import read_references, sources
from cmroot.pins import Hold, Slot, read_pins
from cmroot.root import create_or_open
from cmroot.store.place import Place

NOW = "2026-11-21T00:00:00+00:00"


def listed(root: str, *, missing: bool = False) -> dict[str, dict[str, Any]]:
    """Rows by the path they are from; by their reason where there is no path."""
    batches = kept(root, segments(root), read_pins(root), InProcess(), missing=missing)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert len({(row["checksum"], row["size"], row["state"]) for row in rows}) == len(rows)
    return {row["path"] or row["reason"]: row for row in rows}


@pytest.fixture(params=["local", "memory"])
def history(request: pytest.FixtureRequest, tmp_path: Path) -> History:
    if request.param == "local":
        return History.begin(tmp_path)
    return History.begin(tmp_path, create_or_open(f"memory://{uuid4().hex}").place, keeper="copy")


def test_each_entry_tells_where_it_is_from_and_who_needs_it(history: History) -> None:
    for name in ("a", "b", "c"):
        history.write(f"t/{name}", name.encode() * 10)
    history.capture("t/a", "t/b", "t/c")  # 1
    history.capture(gone=("t/a",))  # 2
    pins.create_slot(history.root, Slot("slow", 2, 102, NOW, NOW))
    history.capture(gone=("t/b",))  # 3
    pins.hold(history.root, Hold("audit", 1, 101, NOW))
    history.write("elsewhere", b"recycled")
    CopyKeeper(history.root).keep(str(history.source / "elsewhere"))

    rows = listed(history.root)
    assert {path: (row["reason"], row["released"]) for path, row in rows.items()} == {
        "a": ("hold audit", 2),
        "b": ("slot slow", 3),
        "c": ("live", None),
        "unreferenced": ("unreferenced", None),
    }
    assert {(row["db"], row["table"], row["since"], row["position"]) for row in rows.values() if row["path"]} == {
        ("db", "t", 1, 1)
    }
    assert rows["c"]["state"] == "files" and rows["c"]["bytes"] == rows["c"]["size"] == 10
    assert rows["c"]["location"] == f"file:{history.source / 't'}"
    assert rows["b"]["pins"] == 2

    pins.release(history.root, "audit")
    assert listed(history.root)["a"]["reason"] == "expired"


def test_a_content_of_many_files_is_one_entry_and_tells_the_newest(history: History) -> None:
    for name in ("t/old", "t/new", "u/other"):
        history.write(name, b"same")
    history.capture("t/old", "u/other")
    history.capture("t/new", gone=("t/old",))
    rows = listed(history.root)
    assert list(rows) == ["new"]
    assert (rows["new"]["since"], rows["new"]["position"], rows["new"]["reason"]) == (1, 2, "live")
    history.capture(gone=("t/new",))
    assert listed(history.root)["new"]["reason"] == "live"  # of the other table
    history.capture(gone=("u/other",))
    assert listed(history.root)["new"]["reason"] == "expired"


def test_what_is_needed_and_not_there_is_missing(history: History) -> None:
    history.write("t/gone", b"gone")
    history.write("t/unneeded", b"unneeded")
    history.write("t/stays", b"stays")
    history.capture("t/gone", "t/unneeded", "t/stays")
    history.capture(gone=("t/unneeded",))
    for name in (b"gone", b"unneeded"):
        place = locate(history.root, *checksum(name))
        Place(place).remove()
    assert set(listed(history.root)) == {"stays"}
    rows = listed(history.root, missing=True)
    assert {path: (row["state"], row["reason"]) for path, row in rows.items()} == {
        "stays": ("files", "live"),
        "gone": ("missing", "live"),
    }
    assert rows["gone"]["bytes"] is None


def test_what_was_never_kept_in_files_is_not_missing(history: History) -> None:
    history.write("t/kept", b"kept")
    history.write("t/by-version", b"by-version")
    history.write("t/told-only", b"told-only")
    history.capture("t/kept")
    history.capture("t/by-version", version="v7")
    history.capture("t/told-only", kept=False)
    for name in (b"by-version", b"told-only"):
        place = locate(history.root, *checksum(name))
        Place(place).remove()
    rows = listed(history.root, missing=True)
    assert {path: (row["state"], row["version"]) for path, row in rows.items()} == {
        "kept": ("files", None),
        "by-version": ("version", "v7"),
    }


def test_an_empty_root_keeps_nothing(history: History) -> None:
    assert listed(history.root) == {}


def test_rows_of_a_taking_that_is_not_recorded_yet_are_needed(history: History) -> None:
    from cmroot.log.references import write_intercepted

    history.write("t/taken", b"taken")
    content = CopyKeeper(history.root).keep(str(history.source / "t/taken"))
    row = {
        "op": "add",
        "db": "db",
        "table": "t",
        "partition": "",
        "location": "file:/w/t",
        "path": "taken",
        "size": content.size,
        "checksum": content.checksum,
        "kept": True,
    }
    write_intercepted(history.root, 7, pa.Table.from_pylist([row], schema=FILES))
    assert listed(history.root)["taken"]["reason"] == "live"


def test_an_entry_that_no_capture_writes_is_damage(history: History) -> None:
    row = {
        "position": 1,
        "op": "add",
        "db": "db",
        "table": "t",
        "partition": "",
        "location": "file:/w/t",
        "path": "f",
        "size": -1,
        "checksum": checksum(b"1")[0],
        "kept": True,
    }
    with SegmentWriter(history.root, 1) as writer:
        writer.append_record(b'{"position":1}')
        writer.append_files(pa.Table.from_pylist([row], schema=FILES))
        writer.finish(1, time=1)
    for read in (listed, references):
        with pytest.raises(FormatError, match="size -1 is negative"):
            read(history.root)


def references(root: str) -> list[pa.RecordBatch]:
    return [batch for source in sources(root, segments(root)) for batch in read_references(source)]


def checksum(content: bytes) -> tuple[str, int]:
    import xxhash

    return xxhash.xxh3_128_hexdigest(content), len(content)
