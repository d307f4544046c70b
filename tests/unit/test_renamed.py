"""Former names of options and commands: they work, warn, and show nowhere."""

from __future__ import annotations

import dataclasses
from typing import Any

import click
import pytest
from click.testing import CliRunner
from test_commands import COMMANDS

import replicator
from replicator.cli.renamed import RenamedOption
from replicator.errors import Error

RENAMED = [
    pytest.param(name, option, old, id=f"{name} {old}")
    for name, command in COMMANDS.items()
    for option in command.params
    if isinstance(option, RenamedOption)
    for old in option.old
]


@pytest.mark.parametrize("name, option, old", RENAMED)
def test_a_former_option_works_warns_and_is_hidden(name: str, option: RenamedOption, old: str) -> None:
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
    assert old not in run(["--help"]).stdout


@pytest.mark.parametrize("name, option, old", RENAMED)
def test_a_former_argument_works_and_warns_in_python(name: str, option: RenamedOption, old: str) -> None:
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
