"""Files of rows, read without a metastore, Spark, or anything of what purges them: one text for each row, so that two
states can be compared, and no byte of a person hides behind a codec."""

from __future__ import annotations

import bz2
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cramjam
import duckdb
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc


def rows_of(path: Path) -> list[str]:
    """By the file's own first bytes, as nothing else is known of it in a `$cmroot`."""
    body = path.read_bytes()
    if body[:4] == b"PAR1":
        with duckdb.connect() as connection:
            reported = "SELECT each_row::VARCHAR || hash(each_row) FROM read_parquet(?) each_row"
            return [row for (row,) in connection.execute(reported, [str(path)]).fetchall()]
    if body[:3] == b"ORC":
        return [output(row) for row in orc.read_table(path).to_pylist(maps_as_pydicts="strict")]
    if body[:4] == b"Obj\x01":
        return [output(record) for record in fastavro.reader(io.BytesIO(body))]
    if body[:3] == b"SEQ":
        return [repr(value) for value in _sequence(Bytes(body))]
    if body[:3] == b"RCF":
        return [repr(row) for row in _rcfile(Bytes(body))]
    return [repr(line) for line in _text(path).splitlines()]


def output(value: Any) -> str:
    """A row as a text; maps have no order."""
    match value:
        case dict():
            return f"{{{', '.join(sorted(f'{output(key)}: {output(each)}' for key, each in value.items()))}}}"
        case list() | tuple():
            return f"[{', '.join(map(output, value))}]"
    return repr(value)


def texts_of(path: Path) -> Iterator[str]:
    """All that a file tells: its rows, its bytes, and the dictionaries of its columns."""
    yield from rows_of(path)
    body = path.read_bytes()
    yield body.decode("latin-1")
    if body[:4] == b"PAR1":
        file = pq.ParquetFile(path)
        texts = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
        table = pq.ParquetFile(path, read_dictionary=texts).read(texts)
        for column in table.columns:
            yield from (repr(chunk.dictionary.to_pylist()) for chunk in column.chunks)


def _text(path: Path) -> bytes:
    body = path.read_bytes()
    if body[:2] == b"\x1f\x8b":
        return gzip.decompress(body)
    if body[:3] == b"BZh":
        return bz2.decompress(body)
    return _inflated(body)


def _inflated(body: bytes) -> bytes:
    """All streams, one after the other; as it is when it is none."""
    found, rest = b"", body
    while rest:
        one = zlib.decompressobj()
        try:
            found += one.decompress(rest) + one.flush()
        except zlib.error:
            return body
        rest = one.unused_data
    return found


# ---- Hadoop's own containers --------------------------------------------------------------------------------------


class Bytes:
    """A cursor over what Hadoop's DataOutput has written."""

    def __init__(self, body: bytes) -> None:
        self.body, self.at = body, 0

    def __bool__(self) -> bool:
        return self.at < len(self.body)

    def take(self, count: int) -> bytes:
        self.at += count
        assert self.at <= len(self.body)
        return self.body[self.at - count : self.at]

    def int(self) -> int:
        return int.from_bytes(self.take(4), signed=True)

    def vint(self) -> int:
        first = int.from_bytes(self.take(1), signed=True)
        if first >= -112:
            return first
        count = -112 - first if first >= -120 else -120 - first
        value = int.from_bytes(self.take(count))
        return value if first >= -120 else ~value

    def counted(self) -> bytes:
        return self.take(self.vint())


def _snappy(body: bytes) -> bytes:
    """Hadoop's blocks of blocks."""
    found, rest = b"", Bytes(body)
    while rest:
        wanted = len(found) + rest.int()
        while len(found) < wanted:
            found += bytes(cramjam.snappy.decompress_raw(rest.take(rest.int())))
    return found


_CODECS: dict[bytes, Callable[[bytes], bytes]] = {
    b"DefaultCodec": _inflated,
    b"BZip2Codec": bz2.decompress,
    b"SnappyCodec": _snappy,
    b"": bytes,
}


def _metadata(file: Bytes) -> None:
    for _ in range(2 * file.int()):
        file.counted()


def _sequence(file: Bytes) -> Iterator[bytes]:
    """The values of a SequenceFile."""
    file.take(4), file.counted(), file.counted()
    compressed, blocks = file.take(1) != b"\0", file.take(1) != b"\0"
    unpacked = _CODECS[file.counted().rpartition(b".")[2] if compressed else b""]
    _metadata(file)
    sync = file.take(16)
    while file:
        length = file.int()
        if length == -1:
            assert file.take(16) == sync
            if not blocks:
                continue
            count = file.vint()
            file.counted(), file.counted()
            lengths, values = Bytes(unpacked(file.counted())), Bytes(unpacked(file.counted()))
            yield from (values.take(lengths.vint()) for _ in range(count))
        else:
            key = file.int()
            file.take(key)
            yield unpacked(file.take(length - key))


def _rcfile(file: Bytes) -> Iterator[tuple[bytes, ...]]:
    """The rows of an RCFile, as the bytes of each cell."""
    file.take(4)
    unpacked = _CODECS[file.counted().rpartition(b".")[2] if file.take(1) != b"\0" else b""]
    _metadata(file)
    sync = file.take(16)
    while file:
        length = file.int()
        if length == -1:
            assert file.take(16) == sync
            length = file.int()
        end = length - file.int()
        key = Bytes(unpacked(file.take(file.int())))
        end += file.at
        rows, columns = key.vint(), []
        while key:
            packed, _, lengths = key.vint(), key.vint(), Bytes(key.counted())
            cells = Bytes(unpacked(file.take(packed)) if packed else b"")
            columns.append([cells.take(count) for count in _repeated(lengths)])
        assert file.at == end and all(len(column) == rows for column in columns)
        yield from zip(*columns, strict=True)


def _repeated(lengths: Bytes) -> Iterator[int]:
    last = 0
    while lengths:
        reported = lengths.vint()
        for _ in range(~reported if reported < 0 else 1):
            yield reported if reported >= 0 else last
        last = reported if reported >= 0 else last
