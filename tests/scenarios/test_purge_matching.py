"""Match rules: an id is erased in every spelling that the descriptor admits, and near misses are counted."""

from __future__ import annotations

import json
import re
import unicodedata
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from purges import Warehouse

from replicator.lifecycle.purge import ids
from replicator.lifecycle.purge.certificate_file import as_text
from replicator.lifecycle.purge.matching import NEAR, form_of
from replicator.lifecycle.purge.options import PurgeOptions


def in_python(text: str, rules: tuple[str, ...]) -> str:
    """The rules by the standard library, which shares nothing with Spark and its ICU."""
    if "trim" in rules:
        text = text.strip()
    if "nfc" in rules:
        text = unicodedata.normalize("NFC", text)
    if "casefold" in rules:
        text = text.casefold()
        text = unicodedata.normalize("NFC", text) if "nfc" in rules else text
    if "numeric" in rules and re.fullmatch(r"[+-]?[0-9]+(\.[0-9]*)?", text):
        number = Decimal(text)
        text = f"{number:f}" if number else "0"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return text


SPELLINGS = [
    *(
        "7",
        "007",
        "+7",
        "-7",
        "-0",
        "0.0",
        "7.",
        "7.0",
        "7.50",
        "-007.10",
        "7e0",
        "0",
        "00",
        "7 ",
        "\t7\n",
        "",
        " ",
        "+",
    ),
    *("Ann@X.org", "ANN@x.ORG", "Stra\u00dfe", "STRASSE", "\u0130", "\u03a3\u03c2", "\ufb01", "\u1e9e"),
    *("Zo\u00eb", "Zoe\u0308", "ZOE\u0308", "\u212b", "\u00c5", "q\u0323\u0307", "q\u0307\u0323", "\u1fb3\u0313"),
    *("\u00a0x\u2003", "\u3000x", "x\x85", "\x1fx", "a'b\\c`$1", "\u0661", "9" * 60, "0" * 50 + "1"),
]


@pytest.mark.parametrize("rules", [("trim",), ("nfc",), ("casefold",), ("numeric",), ("nfc", "casefold"), NEAR])
def test_spark_and_python_agree_about_the_rules(warehouse: Warehouse, rules: tuple[str, ...]) -> None:
    frame = warehouse.session.createDataFrame([(each,) for each in SPELLINGS], "v string")
    form = form_of("v", "string", rules)
    found = frame.selectExpr("v", f"{form} AS form").collect()
    assert {row[0]: row[1] for row in found} == {each: in_python(each, rules) for each in SPELLINGS}
    assert frame.limit(1).selectExpr(form_of("CAST(NULL AS STRING)", "string", rules)).collect()[0][0] is None


def described(match: Any = None) -> str:
    given = {} if match is None else {"ids": {"match": match}}
    return f"TBLPROPERTIES ('dataset.descriptor'='{json.dumps({'privacy': {'column': 'id'}, **given})}')"


STORED = {
    "parquet": "STORED AS PARQUET",
    "spark_parquet": "USING parquet",
    "orc": "STORED AS ORC",
    "avro": "STORED AS AVRO",
    "json": "USING json",
    "text": "STORED AS TEXTFILE",
    "csv": "USING csv",
    "sequence": "STORED AS SEQUENCEFILE",
    "rcfile": "STORED AS RCFILE",
}


@pytest.fixture
def requests(warehouse: Warehouse) -> Any:
    warehouse.sql("CREATE DATABASE IF NOT EXISTS mt", "DROP TABLE IF EXISTS mt.gone")
    warehouse.sql("CREATE TABLE mt.gone AS SELECT explode(array('7', 'ann@x.org', 'Zo\u00eb', 'ten')) AS id")
    yield "mt.gone:id"
    warehouse.drop("mt")


WORDS = ["007", "7.0", "8", "ANN@x.org", "Zoe\u0308", "zo\u00eb", "bob", "ANN@x.org", "70"]


@pytest.mark.parametrize("name", STORED)
def test_all_spellings_of_an_id_are_erased_in_every_format(warehouse: Warehouse, requests: str, name: str) -> None:
    rows = ", ".join(f"('{word}', {at})" for at, word in enumerate(WORDS))
    warehouse.sql(
        f"CREATE TABLE mt.t (id STRING, v INT) {STORED[name]} {described(['numeric', 'casefold', 'nfc'])}",
        f"INSERT INTO mt.t SELECT /*+ COALESCE(1) */ * FROM VALUES {rows}, (NULL, 100)",
    )
    root = warehouse.root(f"rules_{name}")

    done = warehouse.purge(root, requests, "mt.t")

    assert (done.status, done.rows_erased, done.gaps) == ("done", 6, []), done
    assert sorted(row[1] for row in warehouse.rows("mt.t")) == [2, 6, 8, 100]
    assert (done.ids_never_found, done.ids_near_misses) == (1, 0)
    certificate = warehouse.certify(
        root, PurgeOptions(requests, "mt.t", "privacy.column"), run="latest", expedited=True
    )
    assert certificate.status == "certified", certificate
    warehouse.sql("INSERT INTO mt.t VALUES ('+07', 9)")  # the certificate searches by the same rules
    certificate = warehouse.certify(root, PurgeOptions(requests, "mt.t", "privacy.column"), run="latest")
    assert "1 rows have an id" in [each["why"] for each in certificate.holding]


@pytest.mark.parametrize("type_", ["BIGINT", "DOUBLE", "DECIMAL(10,2)", "CHAR(9)", "VARCHAR(9)"])
def test_texts_equal_numbers_by_rule(warehouse: Warehouse, requests: str, type_: str) -> None:
    warehouse.sql(
        "INSERT OVERWRITE mt.gone SELECT explode(array(' 007', '12345678', 'x'))",
        f"CREATE TABLE mt.t (id {type_}) STORED AS PARQUET {described(['numeric', 'trim'])}",
        f"INSERT INTO mt.t SELECT CAST(v AS {type_}) FROM VALUES ('7'), ('12345678'), ('8') AS x(v)",
    )
    done = warehouse.purge(warehouse.root(f"typed{type_[:4]}"), requests, "mt.t")
    assert (done.status, done.rows_erased, done.gaps, done.ids_never_found) == ("done", 2, [], 1), done


def test_near_misses_are_counted(warehouse: Warehouse, requests: str, caplog: pytest.LogCaptureFixture) -> None:
    warehouse.sql(
        "INSERT OVERWRITE mt.gone SELECT explode(array('007', '7 ', 'zoE\u0308', 'ANN', 'nowhere', 'ten', '3'))",
        f"CREATE TABLE mt.numbers (id BIGINT) STORED AS PARQUET {described()}",
        "INSERT INTO mt.numbers VALUES (7), (3)",
        f"CREATE TABLE mt.words (id STRING) STORED AS ORC {described()}",
        "INSERT INTO mt.words VALUES ('Zo\u00eb'), ('ann'), ('7')",
    )
    root = warehouse.root("near")
    done = warehouse.purge(root, requests, "mt.numbers|words")
    assert (done.ids, done.ids_never_found, done.ids_near_misses, done.rows_erased) == (7, 6, 4, 1), done
    assert not (Path(root.place) / "purge" / done.run / "matched").exists()
    asked = PurgeOptions(requests, "mt.numbers|words", "privacy.column")
    certificate = warehouse.certify(root, asked, run="latest", expedited=True, allow_gaps=True)
    assert (certificate.never_found, certificate.near_misses) == (6, 4)
    assert "6 of them were found in no table" in as_text(certificate) and "4 of these" in as_text(certificate)
    assert not re.search(r"nowhere|\bANN\b|zoE", caplog.text)


def test_tables_that_cannot_be_compared_again_leave_the_count_of_ids(
    warehouse: Warehouse, requests: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark without the functions that the rules need, such as Spark 3."""
    monkeypatch.setattr(ids, "form_of", lambda *_: "no_such_function(id)")
    warehouse.sql(
        f"CREATE TABLE mt.t (id STRING) STORED AS PARQUET {described()}", "INSERT INTO mt.t VALUES ('7'), ('Ten')"
    )
    done = warehouse.purge(warehouse.root("old_spark"), requests, "mt.t")
    assert (done.status, done.ids_never_found, done.ids_near_misses) == ("done", 3, None), done
    assert "near misses were not counted: Spark failed" in done.warnings[0]


@pytest.mark.parametrize(
    ("match", "type_", "reported"),
    [
        ("close", "STRING", "ids.match is 'close'"),
        (["exact", "trim"], "STRING", "combines exact"),
        ([], "STRING", "ids.match is"),
        ("trim", "DATE", "compares texts and numbers, and id is a date"),
    ],
)
def test_wrong_rules_are_refused_by_name(
    warehouse: Warehouse, requests: str, match: Any, type_: str, reported: str
) -> None:
    warehouse.sql(
        f"CREATE TABLE mt.t (id {type_}) STORED AS PARQUET {described(match)}",
        f"CREATE TABLE mt.other (id STRING) STORED AS PARQUET {described('exact')}",
    )
    done = warehouse.purge(warehouse.root("wrong"), requests, "mt.t|other")
    assert reported in done.gaps[0]["reason"] and done.gaps[0]["invalid"], done.gaps
