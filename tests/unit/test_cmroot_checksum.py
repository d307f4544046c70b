"""Checksums and hashing copies."""

from __future__ import annotations

import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import xxhash

from cmroot.errors import NotWritable
from cmroot.store.checksum import (
    BUFFER_SIZE,
    checksum_descriptor,
    checksum_file,
    checksum_stream,
    copy_file,
    copy_stream,
)

SIZES = [0, 1, 10_000, BUFFER_SIZE - 1, BUFFER_SIZE, BUFFER_SIZE + 1, 3 * BUFFER_SIZE, 3 * BUFFER_SIZE + 7]


def content(size: int) -> bytes:
    return os.urandom(size)


@pytest.mark.parametrize("size", SIZES)
def test_a_checksum_is_the_xxh3_128_of_the_content(tmp_path: Path, size: int) -> None:
    data = content(size)
    (tmp_path / "f").write_bytes(data)
    expected = (xxhash.xxh3_128_hexdigest(data), size)
    assert checksum_file(str(tmp_path / "f")) == expected
    assert checksum_stream(io.BytesIO(data)) == expected
    with open(tmp_path / "f", "rb") as file:
        file.seek(0, os.SEEK_END)
        assert checksum_descriptor(file.fileno(), size) == checksum_descriptor(file.fileno()) == expected
        assert checksum_descriptor(file.fileno(), size + 5) == expected


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("reread", [False, True])
def test_a_copy_has_the_bytes_and_tells_their_checksum(tmp_path: Path, size: int, reread: bool) -> None:
    data = content(size)
    (tmp_path / "f").write_bytes(data)
    assert copy_file(str(tmp_path / "f"), str(tmp_path / "g"), reread=reread) == checksum_file(str(tmp_path / "f"))
    assert (tmp_path / "g").read_bytes() == data
    target = io.BytesIO()
    assert copy_stream(io.BytesIO(data), target) == checksum_stream(io.BytesIO(data))
    assert target.getvalue() == data


def test_a_copy_that_reads_back_other_bytes_tells_the_checksum_of_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"right" * 100)
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, b"wrong" * (len(data) // 5)))
    output = copy_file(str(tmp_path / "f"), str(tmp_path / "g"), reread=True)
    assert output == checksum_file(str(tmp_path / "g")) != checksum_file(str(tmp_path / "f"))


def test_a_write_that_takes_only_a_part_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = content(BUFFER_SIZE + 1000)
    (tmp_path / "f").write_bytes(data)
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, block: real(descriptor, block[:100_000]))
    copy_file(str(tmp_path / "f"), str(tmp_path / "g"))
    assert (tmp_path / "g").read_bytes() == data


def test_a_copy_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1")
    (tmp_path / "g").write_bytes(b"2")
    with pytest.raises(FileExistsError):
        copy_file(str(tmp_path / "f"), str(tmp_path / "g"))
    assert (tmp_path / "g").read_bytes() == b"2"


def test_a_missing_source_leaves_no_copy(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        copy_file(str(tmp_path / "f"), str(tmp_path / "g"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_read_has_no_checksum(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1")
    with pytest.raises(FileNotFoundError):
        checksum_file(str(tmp_path / "gone"))
    with pytest.raises(NotWritable, match=f"{tmp_path}/f/below: Not a directory"):
        checksum_file(str(tmp_path / "f" / "below"))


def test_threads_do_not_share_a_buffer(tmp_path: Path) -> None:
    expected = {}
    for number in range(40):
        path = tmp_path / str(number)
        path.write_bytes(content(5_000 + number * 20_000))
        expected[str(path)] = xxhash.xxh3_128_hexdigest(path.read_bytes())
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            assert dict(pool.map(lambda path: (path, checksum_file(path)[0]), expected)) == expected
