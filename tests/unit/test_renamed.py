"""Former names of options and commands: they work, warn, and show nowhere."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from command_leaves import COMMANDS

import replicator
from replicator.cli import table
from replicator.cli.main import defaults_of, run
from replicator.cli.options import VerbOption
from replicator.core.config import read_config
from replicator.errors import Error

RENAMED = [
    pytest.param(name, option, old, id=f"{name} {old}")
    for name, command in COMMANDS.items()
    for option in command.params
    if isinstance(option, VerbOption)
    for old in option.old
]


@pytest.mark.parametrize("name, option, old", RENAMED)
def test_a_former_option_works_warns_and_is_hidden(name: str, option: VerbOption, old: str) -> None:
    output: list[Any] = []
    command = click.Command("verb", params=[option], callback=lambda **given: output.append(given))
    value = [] if option.is_flag else ["7s"]

    def run(arguments: list[str], **environment: str) -> click.testing.Result:
        return CliRunner().invoke(command, arguments, auto_envvar_prefix="R", env=environment, catch_exceptions=False)

    now, before = run([option.opts[0], *value]), run([old, *value])
    by_environment = run([], **{f"R_{old.strip('-').replace('-', '_').upper()}": value[0] if value else "1"})
    assert output[0] == output[1] == output[2]
    assert now.stderr == "" and f"{old} of `verb` is now {option.opts[0]}" in before.stderr
    assert "is now R_" in by_environment.stderr
    assert run([old, *value, option.opts[0], *value]).exit_code == 2
    assert not re.search(rf"{old}\b(?!-)", run(["--help"]).stdout)


@pytest.mark.parametrize("name, option, old", RENAMED)
def test_a_former_argument_works_and_warns_in_python(name: str, option: VerbOption, old: str) -> None:
    verb = getattr(replicator, name)
    assert verb.options.renamed[old.strip("-").replace("-", "_")] == option.name
    assert option.name in {each.name for each in dataclasses.fields(verb.options)}


def test_a_former_argument_has_the_effect_of_the_new_one() -> None:
    given = {"source": "thrift://127.0.0.1:1", "target": "thrift://127.0.0.1:2", "db": "sales", "sample": 1}
    with pytest.warns(DeprecationWarning, match="cmroot of verify is now target_cmroot"), pytest.raises(Error) as one:
        replicator.verify(**given, cmroot="/nowhere/cm")
    with pytest.raises(Error) as other:
        replicator.verify(**given, target_cmroot="/nowhere/cm")
    assert str(one.value) == str(other.value)


@pytest.mark.parametrize(
    "old, new, field",
    [
        (["cm", "restore", "aabbcc"], ["cm", "get", "aabbcc"], "cm_restore"),
        (["audit", "restore", "--run", "x"], ["audit", "undo", "--run", "x"], "audit_restore"),
        (
            ["purge", "restore", "a.b", "--metastore", "thrift://127.0.0.1:1"],
            ["purge", "undo", "a.b", "--metastore", "thrift://127.0.0.1:1"],
            "purge_restore",
        ),
    ],
)
def test_a_former_command_works_warns_and_is_hidden(
    old: list[str], new: list[str], field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_(arguments: list[str]) -> tuple[int, dict[str, Any], str]:
        code = run([*arguments, "--cmroot", "/nowhere/cm", "--json"])
        out, err = capsys.readouterr()
        return code, json.loads(out), err

    before, now = run_(old), run_(new)
    assert before[:2] == now[:2] and now[2] == ""
    assert f"`replicator {old[0]} {old[1]}` is now `replicator {new[0]} {new[1]}`" in before[2]
    shown = CliRunner().invoke(table.command(old[0]), ["--help"]).stdout
    assert f"  {new[1]} " in shown and f"  {old[1]} " not in shown
    with pytest.warns(DeprecationWarning, match=f"is now {new[0]}_{new[1]}"):
        former = getattr(replicator, field)
    assert former is getattr(replicator, f"{new[0]}_{new[1]}")
    assert field not in dir(replicator)


def test_the_former_key_of_the_file_works_and_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "replicator.toml"
    file.write_text('[purge]\nreaders = "5h"\n')
    defaults = defaults_of(read_config(file), "purge", table.command("purge"))
    assert defaults["retain"]["grace"] == defaults["certify"]["grace"] == "5h"
    run(["--config", str(file), "purge", "backups", "--cmroot", "/nowhere/cm"])
    assert "purge.readers of" in capsys.readouterr().err


VARIABLES = [
    pytest.param(command, option, id=f"{name}_{option.suffix}".upper())
    for name, command in COMMANDS.items()
    for option in command.params
    if isinstance(option, VerbOption) and option.suffix
]


@pytest.mark.parametrize("command, option", VARIABLES)
def test_a_variable_with_a_name_of_its_own_sets_its_option(
    command: click.Command, option: VerbOption, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = option.type.choices[0] if isinstance(option.type, click.Choice) else "a=b"
    monkeypatch.setenv(f"REPLICATOR_NONE_{option.suffix}", "1" if option.is_flag else value)
    others = [each for each in command.params if each.required and each is not option]
    for each in others:
        monkeypatch.setattr(each, "required", False)
    context = command.make_context("verb", [], auto_envvar_prefix="REPLICATOR_NONE")
    wanted = {"a=b", ("a=b",), True, value}
    found = context.params[option.name or ""]
    assert found == {"a": "b"} or found in wanted


def test_the_variables_with_names_of_their_own_are_these() -> None:
    names = {parameter.id for parameter in VARIABLES}
    assert {"ROLE_SET_WANTED", "PURGE_CERTIFY_RUN_", "DUMP_NO_CAPTURE"} < names
    assert {f"PURGE_{verb}_TABLE_WHITELIST" for verb in ("RUN", "CERTIFY")} < names
