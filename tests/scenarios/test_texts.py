"""What people read of `show` and `verify`: no notation of a program, and no time without a unit."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from command_line import command
from lab import Lab

from replicator.cli.main import cli
from replicator.cli.output import value_text

NOTATION = re.compile(r"\bNone\b|\bTrue\b|\bFalse\b|[{}\[\]']")


def text(*words: str) -> str:
    return CliRunner().invoke(cli, words, obj=0.0).output


def test_show_and_verify_print_values_and_no_code(fixture: Lab) -> None:
    fixture.source.partitioned("days", {"1": {"f": "1\n"}})
    fixture.source.table("t", {"f": "1\n"})
    fixture.source.alter("t", comment="")
    fixture.bootstrap()
    for place in (fixture.last, fixture.cmroot):
        shown = text("show", str(place))
        assert fixture.name in shown and not NOTATION.search(shown), shown
    fixture.target.alter("t", comment="a'b", more="x y")
    fixture.target.drop_partitions("days", ["1"])
    sides = ("--source", fixture.source_uri, "--target", fixture.target_uri, "--engine", "local")
    found = text("verify", *sides, "--db", fixture.name)
    assert 'comment: "" expected, a\'b found' in found and "more: nothing expected, x y found" in found, found
    assert "partition missing: p=1 expected, nothing found" in found, found


def test_values_have_one_text() -> None:
    values = [None, True, False, "", " a", "a b", 3, {"a": None, "b": [1, "x"]}, [], ("p", {"q": True})]
    assert [value_text(each) for each in values] == [
        *("none", "yes", "no", '""', '" a"', "a b", "3"),
        *("a = none, b = 1, x", "none", "p, q = yes"),
    ]


@pytest.mark.parametrize("words", ["dump --since -5", "show --since -5", "cm hold h --at -1.5", "audit ls --since -30"])
def test_a_number_back_from_now_has_a_unit(fixture: Lab, words: str) -> None:
    verb, *rest = words.split(" --")
    option, value = rest[0].split()
    more = {"dump": ["--out", str(fixture.here / "d"), "--source", fixture.source_uri, "--db", fixture.name]}
    where = [str(fixture.cmroot)] if verb == "show" else ["--cmroot", str(fixture.cmroot)]
    answer = command(*verb.split(), *where, *more.get(verb, []), f"--{option}", value)
    assert answer.code == 2 and f"'{value}' has no unit" in answer.output["message"], answer
