"""The three doors: every command has a function, and every option of a command is a field of its options."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import click
import pytest
from command_leaves import COMMANDS

import replicator
from replicator.cli import table
from replicator.commands.base import CATALOGS, Options, pairs, renames
from replicator.commands.guard import AuditLsOptions
from replicator.core.option import Moment, Time, declared_fields
from replicator.errors import UsageError

DOOR_ONLY = {"as_json", "json_lines", "nagios", "allow_gaps"}
"""Options about the door itself: how an answer looks and ends."""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_a_function_whose_arguments_are_its_options(name: str) -> None:
    verb = getattr(replicator, name)
    fields = {each.name for each in dataclasses.fields(verb.options)}
    given = {(parameter.name or "").removeprefix("no_") for parameter in COMMANDS[name].params} - DOOR_ONLY
    assert given <= fields


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_on_a_metastore_takes_its_catalog_or_says_why_not(name: str) -> None:
    command = COMMANDS[name]
    given = {parameter.name for parameter in command.params if isinstance(parameter, click.Option)}
    missing = {option for side, option in CATALOGS.items() if side in given} - given
    assert not missing or "default catalog" in (command.help or ""), missing


def test_every_command_has_json_except_the_two_that_the_readme_names() -> None:
    def without(commands: dict[str, click.Command]) -> set[str]:
        groups = [each for each in commands.values() if isinstance(each, click.Group)]
        leaves = {name: each for name, each in commands.items() if not isinstance(each, click.Group)}
        own = {name for name, each in leaves.items() if "as_json" not in {option.name for option in each.params}}
        return own.union(*(without(table.below(each)) for each in groups))

    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert without(table.commands()) == {"serve", "completion"}
    assert re.search(r"Every command has `--json` \(except `serve`.*`completion`", readme)


def test_every_command_that_copies_or_compares_takes_json_lines() -> None:
    silent = {"cm_ls", "cm_slots"}  # lists
    options = {name: {each for one in command.params for each in one.opts} for name, command in COMMANDS.items()}
    long = {name for name, given in options.items() if {"--jobs", "--engine", "--bandwidth"} & given} - silent
    assert {name for name in long if "--json-lines" not in options[name]} == set() and "failback" in long


def test_moments_are_given_alike_everywhere() -> None:
    """Every option that takes one is a `Moment`, or a `Time`: a time, or back from now."""
    ends = {"legal_hold_add"}  # in the future
    metavars = {(name, one.name): one.metavar for name, command in COMMANDS.items() for one in command.params}
    found = {key for key, metavar in metavars.items() if metavar in ("X", "TIME") and key[0] not in ends}
    assert len(found) > 15
    for name, option in found:
        values = {each.name: each.values for each in declared_fields(getattr(replicator, name).options)}
        assert {Moment, Time} & {*values[option or ""]}, (name, option)
    assert AuditLsOptions(cmroot="/cm", since="yesterday").since == AuditLsOptions(cmroot="/cm", since="-1d").since
    with pytest.raises(UsageError, match=r"--until.*not a duration"):
        AuditLsOptions(cmroot="/cm", until="-soon")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_tells_arguments_errors_and_an_example(name: str) -> None:
    verb = getattr(replicator, name)
    output = inspect.getdoc(verb) or ""
    assert f"replicator.{name}(" in output
    for field in dataclasses.fields(verb.options):
        assert re.search(rf"\b{field.name}\b[\w, ]*:", output), f"help(replicator.{name}) does not tell {field.name}"
    ordered = sorted(dataclasses.fields(verb.options), key=lambda each: each.kw_only)
    assert list(inspect.signature(verb).parameters) == [each.name for each in ordered]
    assert issubclass(verb.options, Options) and verb.options.__dataclass_params__.frozen


def test_a_mapping_says_what_texts_say_and_its_places_may_hold_equals_signs() -> None:
    assert renames({"Sales": "Copy"}) == renames(["Sales=Copy"]) == [("sales", "copy")]
    assert pairs({"/w/day=1": "/v/day=1"}, "--map-location") == [("/w/day=1", "/v/day=1")]
    with pytest.raises(UsageError, match="rename_db"):
        renames({"sales": ""})


def test_the_verbs_show_when_a_name_is_completed() -> None:
    assert set(COMMANDS) <= set(dir(replicator))


@pytest.mark.parametrize("name", table.COMMANDS)
def test_the_line_of_the_help_is_short(name: str) -> None:
    _, line = table.COMMANDS[name]
    assert len(line) <= 64 and line.endswith(".")
