"""Files of rows, read without a metastore, Spark, or anything of what purges them: one text for each row, so that two
states can be compared, and no byte of a person hides behind a codec."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc


def rows_of(path: Path) -> list[str]:
    """By the file's own first bytes, as nothing else is known of it in a `$cmroot`."""
    start = path.read_bytes()[:4]
    if start == b"PAR1":
        with duckdb.connect() as connection:
            told = "SELECT each_row::VARCHAR || hash(each_row) FROM read_parquet(?) each_row"
            return [row for (row,) in connection.execute(told, [str(path)]).fetchall()]
    if start[:3] == b"ORC":
        return [said(row) for row in orc.read_table(path).to_pylist(maps_as_pydicts="strict")]
    if start == b"Obj\x01":
        with path.open("rb") as file:
            return [said(record) for record in fastavro.reader(file)]
    return [repr(line) for line in _text(path).splitlines()]


def said(value: Any) -> str:
    """A row as a text; maps have no order."""
    match value:
        case dict():
            return f"{{{', '.join(sorted(f'{said(key)}: {said(each)}' for key, each in value.items()))}}}"
        case list() | tuple():
            return f"[{', '.join(map(said, value))}]"
    return repr(value)


def hidden_of(path: Path) -> Iterator[bytes]:
    """What a file holds beside its rows: as it lies there, and the dictionaries of its columns."""
    body = path.read_bytes()
    yield body
    if body[:4] == b"PAR1":
        file = pq.ParquetFile(path)
        texts = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
        table = pq.ParquetFile(path, read_dictionary=texts).read(texts)
        for column in table.columns:
            yield from (repr(chunk.dictionary.to_pylist()).encode() for chunk in column.chunks)


def _text(path: Path) -> bytes:
    body = path.read_bytes()
    if body[:2] == b"\x1f\x8b":
        return gzip.decompress(body)
    if body[:3] == b"BZh":
        return bz2.decompress(body)
    if path.name.endswith(".deflate") or body[:1] == b"\x78":
        return _inflated(body)
    return body


def _inflated(body: bytes) -> bytes:
    """All streams, one after the other."""
    found = b""
    while body:
        one = zlib.decompressobj()
        try:
            found += one.decompress(body) + one.flush()
        except zlib.error:
            return body
        body = one.unused_data
    return found
