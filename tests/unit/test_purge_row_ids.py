"""Files of transactional tables that a purge rewrites: what they say about the ids of their rows."""

from __future__ import annotations

import io
import random
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc

from cmroot.store.acid import State
from cmroot.store.blocks import Unsupported
from cmroot.store.listing import FileState
from cmroot.store.place import Place
from replicator.lifecycle.purge.rewrite import orc_footer
from replicator.lifecycle.purge.rewrite.columnar import rewrite_orc
from replicator.lifecycle.purge.rewrite.formats import FileFormat, Kind
from replicator.lifecycle.purge.rewrite.orc_footer import BYTES, KEYS, Pieces, dict_of, read_message, read_tail
from replicator.lifecycle.purge.rewrite.rewrite_task import FilesTask, FileWork, run_files_task
from replicator.lifecycle.purge.table_files import Look
from replicator.lifecycle.purge.transactional_files import (
    COLUMNS,
    OPEN,
    STREAMED,
    is_compacted_since,
    only,
    tops_of,
    unsearched,
    without,
)

ROWS = 150_000
ACID = {b"hive.acid.key.index": b"1,536870912,9;", b"hive.acid.stats": b"150000,0,0", b"hive.acid.version": b"2"}


def a_file(keys: dict[bytes, bytes]) -> Pieces:
    """Rows of Hive with ids, the keys of the footer included."""
    chance = random.Random(1)
    row = pa.StructArray.from_arrays(
        [pa.array(range(ROWS), pa.int32()), pa.array([chance.random() for _ in range(ROWS)])], ["id", "value"]
    )
    numbers = pa.array(range(ROWS), pa.int64())
    ones = pa.array([1] * ROWS, pa.int64())
    operation, bucket = pa.array([0] * ROWS, pa.int32()), pa.array([536870912] * ROWS, pa.int32())
    table = pa.Table.from_arrays([operation, ones, bucket, numbers, ones, row], list(COLUMNS))
    written = io.BytesIO()
    with orc.ORCWriter(written, stripe_size=1 << 18, batch_size=1024) as writer:
        writer.write(table)
    tail = read_tail(written)
    said = [(KEYS, BYTES, orc_footer.write_message([(1, BYTES, key), (2, BYTES, keys[key])])) for key in keys]
    end = orc_footer.as_end([*tail.footer, *said], tail.postscript)
    return Pieces(written, [(0, tail.start), end])


def keys_of(path: Path) -> dict[bytes, bytes]:
    with path.open("rb") as file:
        messages = [dict_of(read_message(each)) for each in orc_footer.all_of(read_tail(file).footer, KEYS)]
    return {each[1]: each[2] for each in messages}


def test_the_index_names_the_last_row_of_each_stripe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class SmallStripes(orc.ORCWriter):  # type: ignore[misc]
        def __init__(self, where: object, **options: object) -> None:
            super().__init__(where, **options | {"stripe_size": 1 << 18})

    monkeypatch.setattr(orc, "ORCWriter", SmallStripes)
    target = tmp_path / "bucket_00000"
    gone = pa.array(range(0, ROWS, 2), pa.int32())
    with Place(str(target)).open_write(durable=False) as out:
        rows, left_out = rewrite_orc(a_file(ACID), nullcontext(out), ("row", "id"), gone)
    assert (rows, left_out.total()) == (ROWS, ROWS // 2)
    file, keys = orc.ORCFile(str(target)), keys_of(target)
    assert file.nstripes > 2
    last = [file.read_stripe(each).column("rowId")[-1].as_py() for each in range(file.nstripes)]
    assert last[-1] == ROWS - 1
    assert keys[b"hive.acid.key.index"].decode() == "".join(f"1,536870912,{each};" for each in last)
    assert keys[b"hive.acid.stats"] == b"75000,0,0"
    assert keys[b"hive.acid.version"] == b"2"


def test_keys_of_a_later_hive_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="transactional"), Place(str(tmp_path / "b")).open_write(durable=False) as out:
        rewrite_orc(
            a_file({**ACID, b"hive.acid.later": b"1"}), nullcontext(out), ("row", "id"), pa.array([1], pa.int32())
        )


def listed(*paths: str) -> Look:
    return Look(tuple(FileState(path, 1, 1, path) for path in paths))


def test_directories_of_open_and_of_streaming_writers_are_left_out() -> None:
    state = State(high=7, open=frozenset({5}))
    names = ("base_4/b", "delta_5_5_0/b", "delta_6_6_0/b", "delta_7_7/b", "delta_7_7/b_flush_length", "delta_8_8_0/b")
    look = listed(*names)
    assert unsearched(look, state) == {"delta_5_5_0": OPEN, "delta_7_7": STREAMED, "delta_8_8_0": OPEN}
    assert tops_of(without(look, unsearched(look, state))) == {"base_4", "delta_6_6_0"}
    assert unsearched(listed("base_5/b"), state) == {"base_5": OPEN}
    assert unsearched(look, None) == {}


def test_what_writers_add_is_no_change_of_what_was_searched() -> None:
    before = listed("base_4/b", "delta_6_6_0/b")
    later = listed("base_4/b", "delta_6_6_0/b", "delta_9_9_0/b", "delta_10_20/b")
    assert only(later, tops_of(before)).digest == before.digest
    assert only(listed("base_4/b"), tops_of(before)).digest != before.digest
    assert not is_compacted_since(before, later)
    assert is_compacted_since(before, listed("base_4/b", "delta_6_6_0/b", "base_6/b"))
    assert is_compacted_since(before, listed("base_4/b", "delta_6_6_0/b", "delta_5_9/b"))


@pytest.mark.parametrize("kind", ["orc", "parquet"])
def test_a_file_without_a_byte_has_no_rows(tmp_path: Path, kind: Kind) -> None:
    """Hive leaves such files, and no reader opens them."""
    place = tmp_path / "bucket_00001"
    place.touch()
    work = FileWork("", place.name, str(place), str(place), "", 0, 0)
    [done] = run_files_task(FilesTask(FileFormat(kind), "", [work]))
    assert (done.error, done.rows) == ("", 0)
