"""A check finds what is damaged, missing or left over, says what to do about it, and changes nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from grouping import InProcess
from history import History

from cmroot import pins
from cmroot.check import Checked, check
from cmroot.keep.content import content_name, locate
from cmroot.log.captured import compact, segments
from cmroot.pins import Slot
from cmroot.store.place import Place

NOW = "2026-11-21T00:00:00+00:00"
CONTENT = {"t/a": b"aaaa", "t/b": b"bbbb", "u/c": b"cccccc"}


@pytest.fixture
def history(tmp_path: Path) -> History:
    made = History.begin(tmp_path, keeper="copy")
    for name, content in CONTENT.items():
        made.write(name, content)
    made.capture(*CONTENT)
    return made


def entry(history: History, name: str) -> Path:
    kept, _ = history.live[name]
    return Path(locate(history.root, kept.checksum, kept.size))


def look(history: History, **options: Any) -> Checked:
    """A check, which must leave everything as it is."""
    before = snapshot(history.root)
    report = check(history.root, InProcess(), **options)
    assert snapshot(history.root) == before
    return report


def snapshot(root: str) -> dict[str, tuple[int, int]]:
    found = {}
    for above, _, names in os.walk(root):
        for name in names:
            status = os.lstat(os.path.join(above, name))
            found[os.path.join(above, name)] = (status.st_size, status.st_mtime_ns)
    return found


def only(report: Checked) -> dict[str, Any]:
    (finding,) = report.findings
    assert report.counts == {finding["kind"]: 1}
    return finding


def test_a_sound_root_is_sound(history: History) -> None:
    report = look(history)
    assert (report.status, report.findings, report.counts) == ("sound", [], {})
    assert (report.entries, report.bytes, report.bytes_read) == (3, 14, 14)
    assert (report.segments, report.records, report.files, report.references_checked) == (1, 1, 3, True)
    assert look(history, bytes=False).bytes_read == 0


def test_a_sound_root_of_any_store_is_sound(root: str, tmp_path: Path) -> None:
    history = History.begin(tmp_path, root, keeper="copy")
    history.write("t/a", b"some")
    history.capture("t/a")
    report = check(root, InProcess())
    assert (report.status, report.entries, report.bytes_read, report.findings) == ("sound", 1, 4, [])
    kept, _ = history.live["t/a"]
    place = locate(root, kept.checksum, kept.size)
    Place(place).write_bytes(b"emos")
    assert [each["kind"] for each in check(root, InProcess()).findings] == ["damaged"]


# Entries


def test_altered_bytes_are_found_and_where_they_still_are(history: History) -> None:
    entry(history, "t/a").write_bytes(b"AAAA")
    assert look(history, bytes=False).status == "sound"  # the size is right
    report = look(history)
    finding = only(report)
    assert report.status == "damaged" and finding["kind"] == "damaged" and finding["needed_by"] == "live"
    assert finding["what"] == str(entry(history, "t/a"))
    assert f"keep it again from file:{history.source}/t/a, which still has these bytes" in finding["repair"]
    assert "rename it after its content: xxh3_128-" in finding["repair"]


def test_altered_bytes_that_exist_nowhere_else_are_lost(history: History) -> None:
    pins.create_slot(history.root, Slot("slow", 1, 101, NOW, NOW))
    entry(history, "t/a").write_bytes(b"short")
    path = entry(history, "t/a")
    history.capture(gone=("t/a",))
    finding = only(look(history, bytes=False))
    assert finding["what"] == str(path) and finding["needed_by"] == "slot slow"
    assert "lost: " in finding["repair"] and "does not exist" in finding["repair"]


def test_altered_bytes_that_nobody_needs_are_told_so(history: History) -> None:
    path = entry(history, "t/a")
    history.capture(gone=("t/a",))
    path.write_bytes(b"AAAA")
    finding = only(look(history))
    assert finding["needed_by"] == "" and "are not needed" in finding["repair"]


def test_a_source_written_in_place_damages_its_link(tmp_path: Path) -> None:
    history = History.begin(tmp_path, keeper="link")
    history.write("t/a", b"aaaa")
    history.capture("t/a")
    with open(history.source / "t/a", "r+b") as file:
        file.write(b"A")
    finding = only(look(history))
    assert finding["kind"] == "damaged" and "holds other bytes" in finding["repair"]


def test_missing_bytes_are_found_and_where_they_still_are(history: History) -> None:
    entry(history, "t/a").unlink()
    finding = only(look(history, bytes=False))
    assert (finding["kind"], finding["needed_by"]) == ("missing", "live")
    assert "keep it again from" in finding["repair"] and str(history.source / "t/a") in finding["found"]
    (history.source / "t/a").write_bytes(b"else")
    assert "holds other bytes" in only(look(history))["repair"]
    (history.source / "t/a").unlink()
    assert "does not exist" in only(look(history))["repair"]


def test_what_expired_is_not_missing(history: History) -> None:
    path = entry(history, "t/a")
    history.capture(gone=("t/a",))
    path.unlink()
    assert look(history).status == "sound"


def test_strange_names_are_told_and_no_damage(history: History) -> None:
    files = Path(history.root, "files")
    (files / "notes.txt").write_text("x")
    (files / "ab").mkdir(exist_ok=True)
    (files / "ab" / "README").write_text("x")
    beside = entry(history, "t/a").parent
    (beside / "COPY").write_text("x")
    (beside / ".hidden").write_text("x")
    report = look(history)
    assert (report.status, report.counts) == ("sound", {"stray": 3})
    assert {each["what"] for each in report.findings} == {
        str(files / "notes.txt"),
        str(files / "ab" / "README"),
        str(beside / "COPY"),
    }


def test_an_entry_in_the_wrong_directory_is_damage(history: History) -> None:
    path = entry(history, "t/a")
    wrong = Path(history.root, "files", "ff" if path.parent.name != "ff" else "00")
    wrong.mkdir(exist_ok=True)
    shutil.move(path, wrong / path.name)
    report = look(history)
    assert report.status == "damaged" and report.counts == {"missing": 1, "misplaced": 1}
    misplaced = next(each for each in report.findings if each["kind"] == "misplaced")
    assert misplaced["repair"] == f"move it to {path}"


def test_more_findings_than_are_told_are_counted(history: History) -> None:
    for name in CONTENT:
        entry(history, name).unlink()
    report = look(history, limit=2)
    assert report.counts == {"missing": 3} and len(report.findings) == 2


# The log


def test_a_damaged_part_of_the_log_is_found(history: History) -> None:
    history.write("t/d", b"d")
    history.capture("t/d")
    part = Path(segments(history.root)[0].place, "files-00000.parquet")
    part.write_bytes(part.read_bytes()[:-20])
    report = look(history)
    finding = only(report)
    assert (finding["kind"], finding["what"]) == ("segment", segments(history.root)[0].place)
    assert not report.references_checked and report.entries == 4 and report.records == 1


def test_a_missing_segment_is_found(history: History) -> None:
    for name in ("d", "e"):
        history.write(f"t/{name}", name.encode())
        history.capture(f"t/{name}")
    shutil.rmtree(segments(history.root)[1].place)
    finding = only(look(history))
    assert finding["kind"] == "log" and "positions 2 to 2 are missing" in finding["found"]


def test_records_out_of_order_are_found(history: History) -> None:
    from cmroot.log.captured import SegmentWriter

    with SegmentWriter(history.root, 2) as writer:
        writer.append_record(b'{"position":3}')
        writer.append_record(b'{"position":2}')
        writer.finish(3, event=1, time=1)
    assert "position 2 follows position 3" in only(look(history))["found"]


def test_a_compacted_log_is_sound(history: History) -> None:
    history.write("t/d", b"d")
    history.capture("t/d")
    compact(history.root)
    report = look(history)
    assert (report.status, report.segments, report.records, report.counts) == ("sound", 1, 2, {})


# Pins and leftovers


def test_a_damaged_pin_is_found(history: History) -> None:
    pins.create_slot(history.root, Slot("slow", 1, 101, NOW, NOW))
    assert look(history).pins == 1
    path = Path(history.root, "slots", "slow")
    path.write_bytes(path.read_bytes().replace(b'"position":1', b'"position":9'))
    finding = only(look(history))
    assert (finding["kind"], finding["what"]) == ("pin", str(path))


def test_what_killed_runs_left_is_told_and_no_damage(history: History) -> None:
    root = Path(history.root)
    (root / "incoming" / "copy-1-a").write_bytes(b"x")
    (root / "incoming" / "recycle-1-a").write_bytes(b"x")
    (root / "incoming" / "recycle-1-a.origin").symlink_to("/somewhere")
    (root / "log" / f"{2:020d}-writing").mkdir()
    (root / "expiring" / "old").mkdir(parents=True)
    report = look(history)
    assert (report.status, report.counts) == ("sound", {"leftover": 4})
    assert all(each["repair"] for each in report.findings)


def test_a_version_that_its_bucket_lost_is_found(history: History, s3_endpoint: None, tmp_path: Path) -> None:
    import pyarrow as pa

    from cmroot.keep.keepers import VersionKeeper
    from cmroot.log.captured import FILES, SegmentWriter
    from cmroot.store.remote import FsspecStore

    bucket = f"checked-{os.getpid()}"
    store = FsspecStore(f"s3://{bucket}")
    store.filesystem.mkdir(bucket)
    store.filesystem.call_s3("put_bucket_versioning", Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    rows = []
    for name in ("stays", "goes"):
        path = f"s3://{bucket}/v/{name}"
        store.write_bytes(path, name.encode())
        kept = VersionKeeper(history.root).keep(path)
        rows.append(
            {
                "position": 2,
                "op": "add",
                "db": "db",
                "table": "v",
                "partition": "",
                "path": name,
                "location": f"s3a://{bucket}/v",
                "size": kept.size,
                "checksum": kept.checksum,
                "kept": True,
                "version": kept.version,
            }
        )
        store.remove(path)
    with SegmentWriter(history.root, 2) as writer:
        writer.append_files(pa.Table.from_pylist(rows, schema=FILES))
        writer.finish(2, event=102, time=2000)
    report = look(history)
    assert (report.status, report.versions) == ("sound", 2)
    store.filesystem.call_s3("delete_object", Bucket=bucket, Key="v/goes", VersionId=rows[1]["version"])
    finding = only(look(history))
    assert finding["kind"] == "version" and "v/goes" in finding["what"] and finding["needed_by"] == "live"
    assert look(history, bytes=False).status == "sound"


def test_a_content_name_is_told_for_what_is_missing(history: History) -> None:
    kept, _ = history.live["t/a"]
    entry(history, "t/a").unlink()
    assert content_name(kept.checksum, kept.size) in only(look(history))["found"]
