"""`replicator completion`: what a shell needs to complete commands, options, policies and metastores."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from replicator.cli.options import is_policy
from replicator.cli.output import write
from replicator.core.config import Config, read_config
from replicator.errors import Error

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_REPLICATOR_COMPLETE"
"""Set by the shell when it asks for completions."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of SHELL, for its start-up file.

    Completes commands and options, and the policies and metastores of replicator.toml.

    \b
    Example:
      replicator completion bash > ~/.local/share/bash-completion/completions/replicator
      replicator completion zsh > "${fpath[1]}/_replicator"
      replicator completion fish > ~/.config/fish/completions/replicator.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(click.get_current_context().find_root().command, {}, "replicator", VARIABLE)
    write((script.source_template % script.source_vars()).splitlines())


def names_completed(command: click.Command) -> click.Command:
    """The command, whose policies and metastores complete to names of the configuration."""
    for parameter in command.params:
        if is_policy(parameter):
            parameter.shell_complete = _policies  # type: ignore[assignment,method-assign]
        elif parameter.metavar == "METASTORE":
            parameter.shell_complete = _metastores  # type: ignore[assignment,method-assign]
    for each in getattr(command, "commands", {}).values():
        names_completed(each)
    return command


def _policies(context: click.Context, incomplete: str) -> list[CompletionItem]:
    return _beginning(_config(context).policies, incomplete)


def _metastores(context: click.Context, incomplete: str) -> list[CompletionItem]:
    return _beginning(_config(context).metastores, incomplete)


def _beginning(names: object, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]  # type: ignore[call-overload]


def _config(context: click.Context) -> Config:
    """Of the line that is typed; nothing for one that cannot be read."""
    given = context.find_root().params.get("config") or os.environ.get("REPLICATOR_CONFIG")
    try:
        return read_config(Path(given) if given else None)
    except Error:
        return Config()
