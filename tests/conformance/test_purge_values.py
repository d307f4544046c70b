"""How text is read: row by row what the engine's own reader says, of texts that are odd."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from purges import DESCRIPTOR, Warehouse

from replicator.lifecycle.purge.rewrite.formats import format_of
from replicator.lifecycle.purge.rewrite.line_files import identify
from replicator.lifecycle.purge.rewrite.text_values import NONE, canonical

NUMBERS = [
    "7",
    "+7",
    "-7",
    " 7",
    "7 ",
    "\t7",
    "07",
    "0_7",
    "7.9",
    "7.",
    "7.x",
    "-7.9",
    ".9",
    "7e0",
    "7E0",
    "0x7",
    "7L",
    "٧",
    "",
    "-",
    "+",
    "+-7",
    ".",
    "-.",
    "127",
    "128",
    "-128",
    "-129",
    "200",
    "256",
    "32768",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "7,0",
    "NaN",
    "7.9.1",
    "7. ",
    "--7",
    "1 2",
    "0000000000007",
    "-0",
    "+0.5",
    "-0.5",
    "'7'",
    "true",
    "null",
    "007",
    "1e2",
]
REALS = [
    "7.0",
    " 7.0 ",
    "7d",
    "7f",
    "7.D",
    "0x1p3",
    "0x.8p1f",
    "nan",
    "Infinity",
    "-Infinity",
    "+Infinity",
    "inf",
    "INF",
    "Inf",
    "-Inf",
    "1e400",
    "-1e400",
    "1_0",
    "7e",
    "7e1",
    ".5",
    "5.",
    "- 7",
    "1e-400",
    "\x007",
    "7\x00",
    "0x10",
    "0.1",
    "3.5e38",
    "-3.5e38",
    "1.17549435E-38f",
    "7\xa0",
    "NaNd",
    "-NaN",
]
DECIMALS = [
    "7.004",
    "7.005",
    "7.995",
    "-7.005",
    "99999999.99",
    "99999999.995",
    "100000000",
    "1E+2",
    "-7.00",
    "700e-2",
    "7 .0",
    "1e99999",
    "7.",
    ".5",
]
WORDS = ["true", "TRUE", "True", "false", "t", "T", "f", "1", "0", "yes", " true", "true ", "", "tru", "trueX", "null"]
DATES = [
    "2026-01-02",
    "2026-1-2",
    " 2026-01-02 ",
    "2026-01-02 03:04:05",
    "2026-13-01",
    "2026-02-30",
    "2026-04-31",
    "20260102",
    "02026-01-02",
    "2026-01-02T",
    "12026-01-02",
    "0001-01-01",
    "",
    "1500-03-01",
    "2026-01-0x",
    "2026-01",
    "2026",
    "26-01-02",
    "-2026-01-02",
    "2026-01-02x",
    "2026-001-02",
    "+2026-01-02",
    "9999-12-31",
    "1582-10-10",
    "2026/01/02",
    "2024-02-29",
    "2026-00-10",
    "2026-10-00",
    "2026-10-32",
    "1582-10-04",
    "1582-10-05",
    "1582-10-14",
    "1582-10-15",
    "1582-09-30",
]
TEXTS = ["a", "a ", "  a", "\\N", "", "null", "\\n", "\\r", "\\\\", "a\\", "\\x", "7", "abcdef", "abcde ", "é", "\t"]
BYTES = ["YQ==", "YQ", "a", "abcd", "ab cd", "!!", "", "YWJj", "YWJjZA==", "ab-_", "abcde", "YQ==YQ=="]
TYPES = {
    "TINYINT": NUMBERS,
    "SMALLINT": NUMBERS,
    "INT": NUMBERS,
    "BIGINT": NUMBERS,
    "FLOAT": NUMBERS + REALS,
    "DOUBLE": NUMBERS + REALS,
    "DECIMAL(10,2)": NUMBERS + DECIMALS,
    "BOOLEAN": WORDS,
    "DATE": DATES,
    "STRING": TEXTS,
    "CHAR(4)": TEXTS,
    "VARCHAR(4)": TEXTS,
    "BINARY": BYTES,
}
DELIMITED = "ROW FORMAT DELIMITED FIELDS TERMINATED BY ';'"


@pytest.fixture(scope="module")
def warehouse(warehouse: Warehouse) -> Warehouse:
    warehouse.sql("CREATE DATABASE v")
    return warehouse


def compare(warehouse: Warehouse, name: str, definition: str, type_: str, lines: Sequence[bytes]) -> None:
    """Each line is a file of one row, so that what Spark reads of it can be distinguished from what it reads of
    others."""
    warehouse.sql(f"CREATE TABLE v.{name} {definition.replace('TYPE', type_)}")
    home = Path(warehouse.home_of(f"v.{name}"))
    home.mkdir(exist_ok=True)
    for number, line in enumerate(lines):
        (home / f"part-{number:05d}").write_bytes(line + b"\n")
    warehouse.sql(f"REFRESH TABLE v.{name}")
    rows = warehouse.session.sql(
        f"SELECT regexp_extract(input_file_name(), 'part-([0-9]+)', 1) AS n, id FROM v.{name}"
    ).toArrow()
    assert rows.num_rows
    keys = rows["id"].combine_chunks()
    table = warehouse.metastore.table("v", name)
    format_ = format_of(table, table.storage, ("id",), type_.lower())  # type: ignore[arg-type]
    if pa.types.is_date(keys.type):
        output = [None if each is None else each for each in keys.cast(pa.int32()).to_pylist()]
    else:
        valid = canonical(keys.drop_null(), format_.type)
        output = [None if not each.is_valid else valid.pop(0) for each in keys]
    theirs: dict[int, object] = {}
    for number, value in zip(rows["n"].to_pylist(), output, strict=True):
        theirs[int(number)] = value
    read = identify(format_, keys.type)
    different = {}
    for number, line in enumerate(lines):
        ours = read(line)
        ours = None if ours is NONE else ours
        if ours != theirs.get(number) or type(ours) is not type(theirs.get(number)):
            different[line.decode("utf-8", "replace")] = (ours, theirs.get(number))
    assert not different, f"(ours, Spark's) of {type_}"


@pytest.mark.parametrize("escaped", [False, True])
def test_hives_text_is_read_as_hive_reads_it(warehouse: Warehouse, escaped: bool) -> None:
    more = ["\\7", "7\\", "1\\n", "\\;", "\\"] if escaped else []
    clause = " ESCAPED BY '\\\\'" if escaped else ""
    for number, (type_, texts) in enumerate(TYPES.items()):
        lines = [f"x;{text};z".encode() for text in [*texts, *more]] + [b"x;7", b"x", b"", b"x;7;8;9", b"x;\xff\xfe;z"]
        compare(warehouse, f"text{number}{escaped}", f"(v STRING, id TYPE, z STRING) {DELIMITED}{clause}", type_, lines)


def test_sparks_csv_is_read_as_spark_reads_it(warehouse: Warehouse) -> None:
    for number, (type_, texts) in enumerate(TYPES.items()):
        quoted = ['"7"', '"7', '7"', ' "7"', '"7" ', '"7"x', "7;8"]
        lines = [f"x;{text};z".encode() for text in [*texts, *quoted]] + [b"x;7", b"x", b"   "]
        definition = "(v STRING, id TYPE, z STRING) USING csv OPTIONS (sep ';')"
        compare(warehouse, f"csv{number}", definition, type_, lines)


def test_sparks_json_is_read_as_spark_reads_it(warehouse: Warehouse) -> None:
    odd = [
        "7.00",
        "1.0e0",
        '{"a":  1}',
        "[1, 2]",
        "'a'",
        '"\\u0061"',
        '"\\ud83d\\ude00"',
        '"\\/"',
        '"é"',
        "True",
        '"7" ',
        "'it\\'s'",
        '"a" , "id": "b"',
        '"a", "ID": "b"',
        "-Infinity",
        "+Infinity",
    ]
    whole = [
        '{"id": 7} garbage',
        '{"ID": 7}',
        "[]",
        "7",
        "null",
        "{}",
        '{"id": 7',
        '{"v": {"id": 7}}',
        ' {"id" : 7 } ',
        "",
        '{"id": null}',
        "{'id': 7}",
        '{"v": NaN, "id": 7}',
        '{"v": [1, {"a": "}"}], "id": 7}',
    ]
    for number, (type_, texts) in enumerate(TYPES.items()):
        values = [*texts, *(json.dumps(text, ensure_ascii=False) for text in texts), *odd]
        lines = [f'{{"v": "x", "id": {value}}}'.encode() for value in values]
        compare(
            warehouse,
            f"json{number}",
            "(v STRING, id TYPE) USING json",
            type_,
            [*lines, *(text.encode() for text in whole)],
        )
    compare(
        warehouse, "json_upper", "(v STRING, Id TYPE) USING json", "BIGINT", [b'{"Id": 7}', b'{"id": 7}', b'{"ID": 7}']
    )


def odd_lines(signs: str, count: int) -> list[bytes]:
    draw = random.Random(7)
    found = ["".join(draw.choice(signs) for _ in range(draw.randint(1, 9))) for _ in range(count)]
    return [line.encode() for line in dict.fromkeys(found)]


CSV = {
    "plain": "USING csv OPTIONS (sep ';')",
    "doubled": "USING csv OPTIONS (sep ';', escape '\"', nullValue 'a')",
    "unquoted": "USING csv OPTIONS (sep ';', quote '')",
    "wide": "USING csv OPTIONS (sep ';a')",
    "open_csv": "ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.OpenCSVSerde' WITH SERDEPROPERTIES ("
    "'separatorChar' = ';') STORED AS TEXTFILE",
    "open_csv_quoted": "ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.OpenCSVSerde' WITH SERDEPROPERTIES ("
    "'separatorChar' = ';', 'quoteChar' = 'a', 'escapeChar' = '\"') STORED AS TEXTFILE",
    "text": DELIMITED,
    "text_escaped": f"{DELIMITED} ESCAPED BY '\\\\'",
}


@pytest.mark.parametrize("name", CSV)
def test_quotes_and_escapes_are_those_of_the_reader(warehouse: Warehouse, name: str) -> None:
    lines = odd_lines('";;"\\a b\\n', 250)
    if "USING" in CSV[name]:
        quoted = r'"([^"]|"")*" *' if name == "doubled" else r'"([^"\\]|\\.)*" *'
        field = '[^"]*' if name == "wide" else f'({quoted}|[^";][^;]*|)'
        lines = [line for line in lines if re.fullmatch(f"{field}(;{field})*", line.decode())]
    compare(warehouse, name, f"(v STRING, id TYPE, z STRING) {CSV[name]}", "STRING", lines)


def test_rows_that_only_resemble_an_id_stay_and_block_nothing(warehouse: Warehouse) -> None:
    warehouse.sql(
        "CREATE DATABASE w",
        "CREATE TABLE w.gone AS SELECT 7L AS id",
        f"CREATE TABLE w.t (id BIGINT, v STRING) {DELIMITED} TBLPROPERTIES ({DESCRIPTOR})",
    )
    file = Path(warehouse.home_of("w.t")) / "part-0"
    file.write_text("7.9;goes\n0_7;stays\n7 ;stays\n007;goes\n 7;stays\n8;stays\n")
    done = warehouse.purge(warehouse.root("resembling"), "w.gone:id", "w.t")
    assert (done.status, done.rows_erased) == ("done", 2), done.tables
    assert (Path(warehouse.home_of("w.t")) / "part-0").read_text() == "0_7;stays\n7 ;stays\n 7;stays\n8;stays\n"
