"""Command lines that the configuration gives: read as the command line reads them, and not run."""

from __future__ import annotations

from collections.abc import Sequence

import click

from replicator.cli.options import is_policy
from replicator.cli.table import command
from replicator.errors import UsageError


def policy_of(line: Sequence[str]) -> str:
    """The policy that a command line (without `replicator`) is a run of; empty: none. Values of options are not looked
    at. Raises UsageError for options and commands that there are not, and arguments that are missing or too many."""
    try:
        return _policy_of(command(line[0]), None, line)
    except click.UsageError as error:
        raise UsageError(error.format_message()) from error


def _policy_of(of: click.Command, parent: click.Context | None, line: Sequence[str]) -> str:
    context = click.Context(of, parent, info_name=line[0])
    given, left, _ = of.make_parser(context).parse_args(args=list(line[1:]))
    if isinstance(of, click.Group) and left:
        name, below, rest = of.resolve_command(context, left)
        assert below is not None
        return _policy_of(below, context, (name or "", *rest))
    if left:
        raise click.UsageError(f"Got unexpected extra arguments ({' '.join(left)})", context)
    if isinstance(of, click.Group) and not of.invoke_without_command:
        raise click.UsageError("Missing command.", context)
    for each in of.params:
        alone = isinstance(each, click.Argument) and each.required and each.nargs == 1
        if alone and not isinstance(given.get(each.name or ""), str):
            raise click.MissingParameter(ctx=context, param=each)
    found = (given.get(each.name or "") for each in of.params if is_policy(each))
    return next((each for each in found if isinstance(each, str)), "")
