"""The commands of the command line that do something, by the names of their functions."""

from __future__ import annotations

from collections.abc import Iterator

import click

from replicator.cli import table

NOT_YET = {"completion"}
"""Commands without a function, or paths of them such as "purge_certify"."""


def leaves() -> Iterator[tuple[str, click.Command]]:
    def below(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        if path in NOT_YET:
            return
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield path.replace("-", "_"), command
        for name, each in getattr(command, "commands", {}).items():
            if not each.hidden:
                yield from below(f"{path}_{name}", each)

    for name, command in table.commands().items():
        yield from below(name, command)


COMMANDS = dict(leaves())
