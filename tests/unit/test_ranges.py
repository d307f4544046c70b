"""What the command line refuses of a value, the options refuse for every caller, in the same words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import MISSING
from datetime import timedelta
from typing import Any

import click
import pytest
from command_leaves import COMMANDS

import replicator
from replicator.cli.options import Duration
from replicator.errors import UsageError


def wrong_values(kind: click.ParamType) -> Iterator[tuple[Any, str]]:
    """Values that an option does not take, as Python and as the command line have them."""
    if isinstance(kind, click.Choice):
        yield "nosuch", "nosuch"
    elif isinstance(kind, click.IntRange | click.FloatRange):
        for end, step in ((kind.min, -1), (kind.max, 1)):
            if end is not None:
                yield end + step, str(end + step)
        yield "many", "many"
    elif isinstance(kind, Duration):
        yield "soon", "soon"


WRONG = [
    pytest.param(name, option, value, text, id=f"{name} {option.name} {text}")
    for name, command in COMMANDS.items()
    for option in command.params
    if isinstance(option, click.Option)
    for value, text in wrong_values(option.type)
]


NEEDED = {"older_than": timedelta(days=1), "role": "replica"}


@pytest.mark.parametrize("name, option, value, text", WRONG)
def test_a_value_is_refused_in_python_as_on_the_command_line(
    name: str, option: click.Option, value: Any, text: str
) -> None:
    make = getattr(replicator, name).options
    missing = {each.name for each in dataclasses.fields(make) if each.default is each.default_factory is MISSING}
    needed = {each: NEEDED.get(each, "x") for each in missing}
    with pytest.raises(UsageError) as raised:
        make(**needed | {option.name: value})
    with pytest.raises(click.BadParameter) as refused:
        option.type.convert(text, option, None)
    assert raised.value.message == f"Invalid value for '{option.opts[0]}': {refused.value.message}"


def test_a_value_in_range_or_none_is_taken() -> None:
    for jobs in (1, 64):
        assert replicator.sync.options("west", jobs=jobs).jobs == jobs
    assert replicator.wait.options("west", until_lag=None, timeout=timedelta(0)).timeout == timedelta(0)
    assert replicator.purge_retain.options(max_bytes="10TiB").max_bytes == "10TiB"
    with pytest.raises(UsageError, match="not a duration"):
        replicator.wait.options("west", timeout=timedelta(seconds=-1))
    with pytest.raises(UsageError, match="--max-bytes"):
        replicator.load.options("dump", max_bytes=-1)
