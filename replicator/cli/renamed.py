"""Options and commands by the names that they had before: these work, warn, and show in no help."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from replicator.cli.output import note

F = TypeVar("F", bound=Callable[..., Any])


class RenamedOption(click.Option):
    """An option with `old` names, on the command line and in the environment."""

    def __init__(self, *arguments: Any, old: Sequence[str], **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.old = tuple(old)

    def _twins(self) -> list[click.Option]:
        """The option under each old name, where the parser and the environment put its value."""
        twins: list[click.Option] = []
        for name in self.old:
            twin = copy(self)
            twin.name, twin.opts, twin.secondary_opts = name.removeprefix("--").replace("-", "_"), [name], []
            twins.append(twin)
        return twins

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        for twin in self._twins():
            click.Option.add_to_parser(twin, parser, ctx)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        value, source = super().consume_value(ctx, opts)
        for twin in self._twins():
            old, new = twin.opts[0], self.opts[0]
            if twin.name in opts:
                if source is ParameterSource.COMMANDLINE:
                    raise click.UsageError(f"{old} is the former name of {new}; give one of them", ctx=ctx)
                value, source = opts[twin.name], ParameterSource.COMMANDLINE
            elif source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
                continue
            elif (found := click.Option.value_from_envvar(twin, ctx)) is not None:
                value, source = found, ParameterSource.ENVIRONMENT
                old, new = (f"{ctx.auto_envvar_prefix}_{(each.name or '').upper()}" for each in (twin, self))
            else:
                continue
            if not ctx.resilient_parsing:
                note(f"warning: {old} of `{ctx.command_path}` is now {new}")
        return value, source


def renamed_option(name: str, *names: str, old: str | Sequence[str], **attributes: Any) -> Callable[[F], F]:
    """`click.option` with the names that it had before."""
    olds = (old,) if isinstance(old, str) else old
    return click.option(name, *names, cls=RenamedOption, old=olds, **attributes)


def renamed_command(group: click.Group, old: str, command: click.Command) -> None:
    """The group's command by a former name, too."""
    twin = copy(command)
    twin.name, twin.hidden = old, True

    def call(*arguments: Any, **options: Any) -> Any:
        path = click.get_current_context().command_path
        note(f"warning: `{path}` is now `{path.rpartition(' ')[0]} {command.name}`")
        assert command.callback is not None
        return command.callback(*arguments, **options)

    twin.callback = call
    group.add_command(twin)
