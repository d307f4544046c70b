"""Choosing what a command is about: databases by patterns, the policy that is meant, and hints at what was meant."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from command_line import Answer, command
from lab import Lab

POLICY = """
[policies.{name}]
source = "thrift://127.0.0.1:1"
target = "thrift://127.0.0.1:2"
databases = "sales"
cmroot = "{here}/cm"
target_cmroot = "{here}/target"
dumps = "{here}/dumps"
"""


def configured(here: Path, *names: str) -> Path:
    file = here / "replicator.toml"
    file.write_text("".join(POLICY.format(name=name, here=here) for name in names))
    return file


def error(words: str, file: Path) -> tuple[str, str]:
    answer = command("--config", str(file), *shlex.split(words))
    assert answer.code == 2, answer
    return answer.output["message"], answer.output["hint"]


# ---- databases ------------------------------------------------------------------------------------------------------


@pytest.fixture
def several(fixture: Lab) -> Lab:
    for name in ("a", "b"):
        fixture.db(name).table("t", {"f": "1\n"})
    return fixture


def databases_in(dump: Path, answer: Answer) -> list[str]:
    assert answer.code == 0, answer
    found: list[str] = command("show", str(dump)).output["scope"]["databases"]
    return found


def test_databases_are_chosen_by_the_patterns_of_a_policy(several: Lab) -> None:
    both, pattern = [f"{several.name}_a", f"{several.name}_b"], f"{several.name.upper()}_.*"
    where = ("--source", several.source_uri, "--cmroot", str(several.cmroot), "--engine", "local")
    captured = command("capture", *where, "--db", pattern)
    assert captured.code == 0, captured
    out = several.here / "dump"
    assert databases_in(out, command("dump", *where, "--db", pattern, "--out", str(out))) == both
    assert several.load(out).code == 0
    sides = ("--source", several.source_uri, "--target", several.target_uri, "--engine", "local")
    same = command("verify", *sides, "--db", pattern)
    assert (same.code, same.output["objects"]) == (0, 4), same
    several.are_same("a", "b")


def test_all_databases_of_a_root_are_dumped_without_its_source(several: Lab) -> None:
    where = ("--cmroot", str(several.cmroot), "--engine", "local", "--source", several.source_uri)
    names = [f"{several.name}_a", f"{several.name}_b"]
    assert command("capture", *where, "--db", names[0], "--db", names[1]).code == 0
    whole = ("dump", *where, "--no-capture", "--all-databases")
    out = several.here / "dump"
    assert databases_in(out, command(*whole, "--out", str(out))) == names
    both = command(*whole, "--db", "a", "--out", str(several.here / "other"))
    assert both.code == 2 and "--all-databases and --db" in both.output["message"]


@pytest.mark.parametrize(("pattern", "message"), [("nothing_.*", "no database of"), ("a(", "not a regular expression")])
def test_a_pattern_that_selects_nothing_is_an_error(fixture: Lab, pattern: str, message: str) -> None:
    answer = command(*fixture.capture_arguments()[:-4], "--db", pattern)
    assert answer.code != 0 and message in answer.output["message"] and pattern in answer.output["message"], answer


def test_a_database_that_does_not_exist_is_followed_by_a_similar_one(several: Lab) -> None:
    where = ("--source", several.source_uri, "--cmroot", str(several.cmroot), "--engine", "local")
    answer = command("capture", *where, "--db", f"{several.name}_ab")
    assert answer.output["hint"].startswith("did you mean ") and f"{several.name}_a" in answer.output["hint"], answer


# ---- databases of commands about replicas ---------------------------------------------------------------------------


@pytest.fixture
def replicated(several: Lab) -> Lab:
    assert several.sync().status == "synced"
    return several


def of_both(lab: Lab) -> tuple[list[str], str]:
    return [f"{lab.name}_a", f"{lab.name}_b"], f"{lab.name.upper()}_.*"


def config(lab: Lab) -> tuple[str, str]:
    return "--config", str(lab.config())


def test_states_of_replicas_are_chosen_by_patterns(replicated: Lab) -> None:
    both, pattern = of_both(replicated)
    shown = command("status", "--target", replicated.target_uri, "--db", pattern, "--source", replicated.source_uri)
    assert shown.code == 0 and [each["db"] for each in shown.output["databases"]] == both, shown
    two = command("status", "--target", replicated.target_uri, "--db", both[1], "--db", both[0])
    assert [each["db"] for each in two.output["databases"]] == [both[1], both[0]], two
    one = command("status", "--target", replicated.target_uri, "--db", both[0].upper())
    assert (one.output["db"], "databases" in one.output) == (both[0], False), one
    roles = command("role", "show", "--metastore", replicated.target_uri, "--db", pattern)
    assert [each["db"] for each in roles.output["databases"]] == both, roles
    where = ("--target", replicated.target_uri, "--until-event", "0", "--timeout", "0s")
    waited = command("wait", *where, "--db", pattern)
    assert [each["db"] for each in waited.output["databases"]] == both, waited


def test_patterns_with_a_policy_choose_among_its_databases(replicated: Lab) -> None:
    other = Lab.beside(replicated)
    other.db().table("t", {"f": "1\n"})
    both, _ = of_both(replicated)
    repaired = command(*config(replicated), "repair", replicated.name, "--db", ".*", "--dry-run")
    assert repaired.code == 0 and [each["db"] for each in repaired.output["databases"]] == both, repaired
    waited = command(*config(replicated), "wait", replicated.name, "--db", ".*_a", "--until-event", "0")
    assert (waited.code, waited.output["db"]) == (0, both[0]), waited
    drilled = command(*config(replicated), "drill", replicated.name, "--db", ".*_B", "--dry-run", "--sample", "0")
    assert drilled.code == 0 and list(drilled.output["databases"]) == both[1:], drilled


def test_a_pattern_is_one_database_where_one_is_meant(replicated: Lab) -> None:
    both, pattern = of_both(replicated)
    where = ("--cmroot", str(replicated.cmroot), "--target", replicated.source_uri, "--engine", "local")
    restore = ("restore", *where, "--to", "@1000000000", "--dry-run")
    for words in (restore, ("role", "set", "--metastore", replicated.target_uri, "--role", "none", "--dry-run")):
        several = command(*words, "--db", pattern)
        assert several.code == 2 and "matches 2 databases" in several.output["message"], several
        assert ", ".join(both) in several.output["hint"], several
    event = replicated.memory.runs(1).runs[0].to_event
    restored = command("restore", *where, "--to", str(event), "--dry-run", "--db", f"{replicated.name}_[a]")
    assert (restored.code, restored.output["db"]) == (0, both[0]), restored


@pytest.mark.parametrize("verb", ["status", "role show", "repair", "drill", "wait", "restore"])
def test_what_does_not_exist_is_the_same_error_everywhere(replicated: Lab, verb: str) -> None:
    policy, target = replicated.name, replicated.target_uri
    words = {
        "status": ("--target", target),
        "role show": ("--metastore", target),
        "repair": (policy, "--dry-run"),
        "drill": (policy, "--dry-run", "--sample", "0"),
        "wait": (policy, "--until-event", "0"),
        "restore": (policy, "--to", "1", "--dry-run"),
    }[verb]
    none = command(*config(replicated), *verb.split(), *words, "--db", "nothing_.*")
    assert none.code == 1 and "matches 'nothing_.*'" in none.output["message"], none
    unknown = command(*config(replicated), *verb.split(), *words, "--db", f"{replicated.name}_ab")
    assert unknown.code == 1 and f"{replicated.name}_ab does not exist" in unknown.output["message"], unknown
    assert unknown.output["hint"].startswith("did you mean ") and f"{replicated.name}_a" in unknown.output["hint"]


# ---- policies -------------------------------------------------------------------------------------------------------


def test_the_only_policy_is_the_one_that_is_meant(tmp_path: Path) -> None:
    answer = command("--config", str(configured(tmp_path, "west")), "history")
    assert "POLICY" not in answer.output["message"] and str(tmp_path / "target") in answer.output["message"], answer


@pytest.mark.parametrize("names", [(), ("west", "east")], ids=["none", "two"])
def test_a_missing_policy_names_those_that_are_configured(tmp_path: Path, names: tuple[str, ...]) -> None:
    for verb in ("sync", "lag", "check", "history", "switchover", "failover"):
        message, hint = error(verb, configured(tmp_path, *names))
        assert message == "Missing argument 'POLICY'." and hint.endswith(
            "east, west" if names else "(none is configured)"
        )


@pytest.mark.parametrize("verb", ["switchover", "failover", "failback"])
def test_a_role_change_names_its_policy(tmp_path: Path, verb: str) -> None:
    message, hint = error(verb, configured(tmp_path, "west"))
    assert message == "Missing argument 'POLICY'." and hint.endswith(": west")


# ---- hints ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("dmp", "Did you mean 'dump' or 'dumps'?"),
        ("swichover west", "Did you mean 'switchover'?"),
        ("cm expir", "Did you mean 'expire'?"),
        ("dump --cmrot /cm", "--cmroot"),
        ("sync wset", "did you mean west?"),
        ("dump shop --out /tmp/none", "a database is given as --db shop"),
        ("dump west shop --out /tmp/none", "a database is given as --db NAME"),
        ("restore /dumps/1", "`replicator load /dumps/1` loads a dump"),
        ("restore /dumps/1 --to 5", "`replicator load /dumps/1` loads a dump"),
        ("dump --source a --cmroot /cm --db shop --out -", "--out -: a dump is a directory of files, not a stream"),
    ],
)
def test_a_hint_names_what_was_meant(tmp_path: Path, words: str, wanted: str) -> None:
    message, hint = error(words, configured(tmp_path, "west"))
    assert wanted in f"{message} {hint}"
