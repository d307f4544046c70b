"""A rewritten ORC file keeps its types, keys, calendar, zone and every value."""

from __future__ import annotations

import contextlib
import io
import random
import zlib
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import orc

from cmroot.store.blocks import Unsupported
from replicator.lifecycle.purge.rewrite import orc_footer
from replicator.lifecycle.purge.rewrite.columnar import rewrite_orc
from replicator.lifecycle.purge.rewrite.formats import OnlyBySpark
from replicator.lifecycle.purge.rewrite.orc_footer import BYTES, VARINT, Message

ROWS = 6_000
IDS = pa.array([0, 5, 5_999, 123_456], pa.int64())
CODECS = ("uncompressed", "zlib", "snappy", "lz4", "zstd")
LOS_ANGELES, SYDNEY = b"America/Los_Angeles", b"Australia/Sydney"


def rows(*, far: bool = False) -> pa.Table:
    numbers = range(ROWS)
    times = [i * 10**14 + i for i in numbers]
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "early": pa.array([-i * 10**14 for i in numbers], pa.timestamp("ns")),
            "c": pa.array([f"c{i % 50:02d}" if i % 9 else None for i in numbers]),
            "t": pa.array([-(2**63) + 1] * ROWS if far else times, pa.timestamp("ns")),
            "instant": pa.array(times, pa.timestamp("ns", "UTC")),
            "d": pa.array([i - 200_000 for i in numbers], pa.date32()),
            "n": pa.array([Decimal(i) / 4 for i in numbers], pa.decimal128(20, 2)),
            "l": pa.array(
                [[{"x": i, "t": times[i]}] for i in numbers],
                pa.list_(pa.struct({"x": pa.int32(), "t": pa.timestamp("ns")})),
            ),
            "m": pa.array([[(str(i), i)] for i in numbers], pa.map_(pa.string(), pa.int32())),
        }
    ).replace_schema_metadata(None)


def written(
    path: Path, codec: str = "zlib", zone: bytes = LOS_ANGELES, *more: tuple[int, int, object], far: bool = False
) -> Path:
    """As if Java had written it: column `c` is CHAR(5), with an attribute; keys, and the calendar of dates."""
    plain = path.with_suffix(".plain")
    orc.write_table(
        rows(far=far),
        plain,
        compression=codec,
        stripe_size=65536,
        row_index_stride=1000,
        bloom_filter_columns=[1, 2, 3],
    )
    with plain.open("rb") as file:
        tail = orc_footer.read_tail(file)
        footer: Message = [field for field in tail.footer if field[0] != orc_footer.TYPES]
        for number, type_ in enumerate(orc_footer.all_of(tail.footer, orc_footer.TYPES)):
            fields = orc_footer.read_message(type_)
            if number == 3:
                attribute = orc_footer.write_message([(1, BYTES, b"spark.sql.catalyst.type"), (2, BYTES, b"char(5)")])
                fields = [(1, VARINT, 17), (4, VARINT, 5), (7, BYTES, attribute)]
            footer.append((orc_footer.TYPES, BYTES, orc_footer.write_message(fields)))
        keys = {b"org.apache.spark.version": b"3.5.1", b"large": b"x" * 200_000}
        for key, value in keys.items():
            item = orc_footer.write_message([(1, BYTES, key), (2, BYTES, value)])
            footer.append((orc_footer.KEYS, BYTES, item))
        footer += [(orc_footer.CALENDAR, VARINT, 2), *more]
        path.write_bytes(orc_footer.with_zone(file, tail, zone, footer, False).read())
    return path


def rewritten(path: Path) -> tuple[tuple[int, int], Path]:
    out = io.BytesIO()
    with path.open("rb") as source:
        rows_, left_out = rewrite_orc(source, contextlib.nullcontext(out), ("id",), IDS)
    found = path.with_suffix(".rewritten")
    found.write_bytes(out.getvalue())
    return (rows_, left_out.total()), found


def output(path: Path) -> tuple[object, ...]:
    with path.open("rb") as file:
        tail = orc_footer.read_tail(file)
        footer = tail.footer
        return (
            *orc_footer.zones_and_blooms(file, tail),
            orc_footer.all_of(footer, orc_footer.TYPES),
            orc_footer.all_of(footer, orc_footer.KEYS),
            orc_footer.all_of(footer, orc_footer.CALENDAR),
            orc_footer.dict_of(tail.postscript)[orc_footer.COMPRESSION],
        )


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("zone", [LOS_ANGELES, SYDNEY, b"UTC", b""])
def test_an_orc_file_keeps_its_footer_and_every_value(codec: str, zone: bytes, tmp_path: Path) -> None:
    path = written(tmp_path / "a.orc", codec, zone)
    counts, found = rewritten(path)
    assert counts == (ROWS, 3) and output(path)[:2] == ({zone}, {1, 2, 3})
    blooms = {1, 3} if zone != b"UTC" else {1, 2, 3}  # of a time, it would be another one's in the zone
    assert output(found) == ({zone}, blooms, *output(path)[2:])
    whole = orc.read_table(path)
    assert orc.read_table(found).equals(whole.filter(pc.invert(pc.is_in(whole["id"], IDS))))
    assert len(orc.ORCFile(found).metadata) == 2
    check_statistics(found)


def check_statistics(path: Path) -> None:
    """Of the column `t`, of the file, its stripes and their rows: no wall clock is outside."""
    with path.open("rb") as file:
        tail = orc_footer.read_tail(file)
        codec = orc_footer.dict_of(tail.postscript)[orc_footer.COMPRESSION]
        column = next(number for number, kind in enumerate(orc_footer.kinds(tail.footer)) if kind == 9) + 2
        assert orc_footer.kinds(tail.footer)[column] == 9

        def message(start: int, length: int) -> Message:
            file.seek(start)
            return orc_footer.read_message(orc_footer.decompressed(file.read(length), codec))

        def holds(statistics: bytes, times: pa.Array) -> None:
            output = orc_footer.dict_of(
                orc_footer.read_message(orc_footer.dict_of(orc_footer.read_message(statistics))[9])
            )
            least, most = (orc_footer.unzigzag(output[number]) for number in (3, 4))
            numbers = times.cast(pa.int64())
            assert least <= pc.min(numbers).as_py() // 10**6 and pc.max(numbers).as_py() // 10**6 <= most
            assert most - least < pc.max(numbers).as_py() // 10**6 - pc.min(numbers).as_py() // 10**6 + 5 * 86_400_000

        reader = orc.ORCFile(path)
        holds(orc_footer.all_of(tail.footer, orc_footer.STATISTICS)[column], reader.read(["t"])["t"])
        length = orc_footer.dict_of(tail.postscript)[orc_footer.METADATA_LENGTH]
        of_stripes = [value for _, _, value in message(tail.start - length, length)]
        for number, stripe in enumerate(orc_footer.all_of(tail.footer, orc_footer.STRIPES)):
            times = reader.read_stripe(number, ["t"])["t"]
            holds(orc_footer.all_of(orc_footer.read_message(of_stripes[number]), 1)[column], times)
            known = orc_footer.dict_of(orc_footer.read_message(stripe))
            at = known[1]
            footer = message(at + known[2] + known[3], known[4])
            for stream in map(orc_footer.read_message, orc_footer.all_of(footer, 1)):
                kind, of, size = (orc_footer.dict_of(stream).get(each, 0) for each in (1, 2, 3))
                if (kind, of) == (6, column):
                    for row, (_, _, entry) in enumerate(message(at, size)):
                        statistics = orc_footer.dict_of(orc_footer.read_message(entry))[2]
                        holds(statistics, times.slice(row * 1000, 1000))
                at += size


def test_what_an_orc_file_cannot_keep_is_refused(tmp_path: Path) -> None:
    acid = orc_footer.write_message([(1, BYTES, b"hive.acid.key.index"), (2, BYTES, b"1,2,3;")])
    path = tmp_path / "a.orc"
    for more, what in (((orc_footer.KEYS, BYTES, acid), "transactional"), ((10, BYTES, b""), "encrypted")):
        with pytest.raises(Unsupported, match=what):
            rewritten(written(path, "zlib", b"UTC", more))
    early = tmp_path / "early.orc"
    for column in (pa.array([-1, None], pa.timestamp("ns")), [[{"t": datetime(1969, 1, 1, 0, 0, 0, 1)}], None]):
        orc.write_table(pa.table({"id": pa.array([1, 2], pa.int64()), "t": column}), early)
        with pytest.raises(OnlyBySpark, match="1970"):
            rewritten(early)
    mixed = written(path, "uncompressed").read_bytes().replace(LOS_ANGELES, b"America/Los_Angelos", 1)
    path.write_bytes(mixed)
    with pytest.raises(Unsupported, match="several time zones"):
        rewritten(path)
    with pytest.raises(OnlyBySpark, match="64 bits"):
        rewritten(written(path, far=True))
    for content in (b"", b"x", b"ORC" * 100, path.read_bytes()[:-1]):
        path.write_bytes(content)
        with pytest.raises(Unsupported):
            rewritten(path)


PACKED = {
    1: lambda data: zlib.compress(data, wbits=-15),
    2: partial(pa.Codec("snappy").compress, asbytes=True),
    4: partial(pa.Codec("lz4_raw").compress, asbytes=True),
    5: partial(pa.Codec("zstd").compress, asbytes=True),
}


@pytest.mark.parametrize("codec", PACKED)
def test_chunks_of_every_codec_are_read(codec: int) -> None:
    """As Java writes them; pyarrow's writer compresses nothing with LZ4. Lengths are those at which LZ4 takes a byte
    more to say them."""
    chance = random.Random(codec)
    parts = [
        chance.randbytes(new) + b"ab" * again
        for new in (0, 1, 14, 15, 16, 269, 270, 271)
        for again in (2, 9, 10, 11, 136, 137, 138, 9_000)
    ]
    chunks = [*((PACKED[codec](part), 0) for part in parts), (b"as it is", 1)]
    stream = b"".join((len(chunk) << 1 | plain).to_bytes(3, "little") + chunk for chunk, plain in chunks)
    assert orc_footer.decompressed(stream, codec) == b"".join([*parts, b"as it is"])
