"""Answers of commands on landing tables, and conditions of requests, which no text escapes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import replicator
from replicator.cli.main import run
from replicator.cli.options import Session
from replicator.commands.landing_tables import LandingsVerified
from replicator.errors import Error
from replicator.ingestion.comparison import RangeDifference, RowDifference, TableCompared
from replicator.ingestion.intake import this_user
from replicator.ingestion.reading.dialects import PostgresDialect
from replicator.ingestion.reading.other_dialects import GenericDialect, MySqlDialect
from replicator.ingestion.reading.request_selection import written
from replicator.ingestion.reading.source_table import SourceColumn, SourceTable

SAME = TableCompared("crm.a", "crm:public.a", 1, ("id",), landed=10, source_rows=10, ranges=1)
PARTIAL = TableCompared("crm.b", "crm:public.b", 2, landed=1, source_rows=1, not_compared=("column f: its digits",))
ROWS = (RowDifference(("7", None), "missing"), RowDifference(("8", "x"), "deleted"))
LEFT = RangeDifference("id", "9", None, 5, 10, "no key is known")
OTHER = TableCompared(
    "crm.c", "crm:public.c", 3, ("id", "k"), "9", 10, 5, 2, 1, 2, rows=ROWS, unnamed=(LEFT,), waiting=4
)


@pytest.mark.parametrize(
    ("tables", "code", "lines"),
    [
        ((SAME,), 0, ["crm.a: landed 10, source 10, 1 range", "same"]),
        ((SAME, PARTIAL), 3, ["crm.b  not compared: column f: its digits", "partial"]),
        (
            (SAME, PARTIAL, OTHER),
            4,
            [
                *("crm.c  missing: 7, NULL", "crm.c  deleted: 8, x", "crm.c  ... and 1 more row (--limit)"),
                "crm.c  id from 9 to the last: 5 landed, 10 at the source; no key is known",
                "crm.c: landed 10, source 5, 2 ranges, up to 9, 1 missing, 2 deleted, 4 waiting",
                "different",
            ],
        ),
    ],
)
def test_a_comparison_ends_with_the_exit_code_of_what_it_found(
    tables: tuple[TableCompared, ...],
    code: int,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def call(self: Session, verb: Any, **given: Any) -> LandingsVerified:
        report = LandingsVerified()
        for each in tables:
            report.add(each)
        return report

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Session, "call", call)
    assert run(["ingest", "verify", "crm"]) == code
    assert set(lines) <= set(capsys.readouterr().out.splitlines())
    assert run(["ingest", "verify", "crm", "--json"]) == code
    assert [each["table"] for each in json.loads(capsys.readouterr().out)["tables"]] == [each.table for each in tables]


TABLE = SourceTable("s", "t", tuple(SourceColumn(name, "text", "string", True, name) for name in ("id", 'a "b`', "ä")))
DIALECTS = (PostgresDialect(), MySqlDialect(), GenericDialect())
WORDS = "id ä 'x' 'it''s' 7 1.5 = <> AND OR NOT IN IS NULL ( ) , -- /* */ ; # ' \" ` \\ $$ E SELECT pg_sleep '\\' 0x1"
PIECES = st.sampled_from([*WORDS.split(), '"a ""b`"', " ", "\n", "\0"])
TEXTS = st.one_of(st.text(max_size=60), *(st.lists(PIECES, max_size=12).map(between.join) for between in ("", " ")))


@given(TEXTS)
@example("id = 1) OR (1 = 1")
@example("'a' = 'a\\' OR 1 = 1 --'")
def test_no_condition_escapes_its_parentheses(condition: str) -> None:
    """What is written has names of columns, literals of the dialect, known words and signs only, in pairs."""
    for dialect in DIALECTS:
        try:
            text = written(dialect, TABLE, condition)
        except Error:
            continue
        names = "|".join(re.escape(dialect.name(each.name)) for each in TABLE.columns)
        literals = r"'(?:[^'\\]|'')*'|_utf8mb4 x'[0-9a-f]*'|convert_from\(decode\('[0-9a-f]*', 'hex'\), 'UTF8'\)"
        rest = re.sub(f"{names}|{literals}", " ", text)
        words = {"and", "or", "not", "in", "is", "null", "between", "like", "true", "false", "date", "timestamp"}
        assert {each.lower() for each in re.findall(r"[^\W\d]\w*", rest)} <= words, text
        assert not re.search(r"--|/\*|[;#'\"`\\$]", rest), text
        depth = 0
        for each in rest:
            depth += {"(": 1, ")": -1}.get(each, 0)
            assert depth >= 0, text
        assert depth == 0


def test_a_job_shows_what_its_request_selects_and_demands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("replicator.toml").write_text(
        '[ingestion]\nstore = "sqlite:///s.sqlite"\n[ingestion.sources.crm]\nurl = "jdbc:postgresql://127.0.0.1:1/crm"\n'
    )
    replicator.asset_create("crm", owner=this_user().user, sources=["crm"], by="ann")
    replicator.asset_approve("crm", by="bob")
    line = "ingest request crm:public.t --asset crm --column id --column mail --mask mail=hash --least-rows 5"
    assert run([*line.split(), "--where", "id > 7", "--not-null", "id", "--unique", "id,mail"]) == 0
    capsys.readouterr()
    assert run(["ingest", "show", "1"]) == 0
    shown = capsys.readouterr().out
    for part in ("columns id, mail", "rows with id > 7", "mail masked by hash", "5 rows at least", "id without NULL"):
        assert part in shown, shown
    assert "id,mail unique" in shown
    assert run([*line.split(), "--mask", "mail"]) == 2 and "COLUMN=RULE" in capsys.readouterr().err
