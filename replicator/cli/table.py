"""The table of commands: section, module and one line of help for each. A command's module is imported when it is
called.

Also other users of these names: completion in a shell; command lines in the configuration, which are parsed and not
run; and former names of commands and options, which work with a warning and are not in the help.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class

from replicator.cli.options import is_policy
from replicator.cli.output import note, write
from replicator.core.config import Config, read_config
from replicator.errors import Error, UsageError

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Replicate": {
        "capture": ("replication", "Read the notification log and changed files into $cmroot."),
        "dump": ("replication", "Capture, then write a dump: full or incremental."),
        "dumps": ("stored_states", "Verify, list, expire, export and import finished dumps."),
        "load": ("replication", "Replay a finished dump on a target."),
        "verify": ("verify", "Compare every object and file of both sides."),
        "repair": ("verify", "Find a replica's differences, and copy exactly those."),
        "status": ("status", "Show a replicated database's position and lag."),
        "wait": ("status", "Wait until a replica has an event, or a small enough lag."),
        "restore": ("stored_states", "Restore a database or tables to an event or a time."),
        "show": ("stored_states", "Print a dump, a captured log, or a segment of it."),
    },
    "Policies": {
        "check": ("status", "Check a policy before its first run, or at any time."),
        "sync": ("sync", "Run a policy: a bootstrap if necessary, else the changes."),
        "plan": ("sync", "Show the next run's changes and their cost."),
        "apply": ("sync", "Carry out a plan, and nothing else."),
        "lag": ("status", "Show a policy's lag, by table."),
        "history": ("status", "Show a policy's runs, newest first."),
    },
    "Role changes": {
        "switchover": ("role_change", "Exchange the roles of primary and replica, as planned."),
        "failover": ("role_change", "Make the replica the primary when the primary is lost."),
        "failback": ("role_change", "Make the old primary the replica of the new one."),
        "loss": ("role_change", "Show the loss report of a policy's last failover."),
        "drill": ("role_change", "Rehearse a failover in shadow databases, and time it."),
        "role": ("role_change", "Show or set the role of a database."),
    },
    "Retention and erasure": {
        "housekeeping": ("lifecycle", "Remove unreferenced data and expired tables (Beekeeper)."),
        "retention": ("lifecycle", "Remove expired versions of datasets (Gobblin)."),
        "purge": ("purge", "Erase the rows of data subjects from tables, and prove it."),
        "legal-hold": ("purge", "Protect data from removal by any job."),
        "audit": ("purge", "Show removals with user, time and reason; restore files."),
    },
    "Change management": {
        "cm": ("cm", "Manage a $cmroot: kept files, slots, holds, expiry."),
        "gateway": ("cm", "Serve a metastore, and keep the files of dropped tables."),
    },
    "Ingestion": {
        "asset": ("ingest", "Manage assets: who may land which data."),
        "ingest": ("ingest", "Land tables of other databases, by request."),
    },
    "Service": {
        "serve": ("serve", "Run policies by their schedules; serve an API, metrics, pages."),
        "token": ("serve", "Create, list and revoke tokens of the service's API."),
        "metrics": ("serve", "Show metrics of policies and runs, for Prometheus."),
    },
    "Tools": {
        "init": ("tools", "Write a first replicator.toml, and check it."),
        "diagnose": ("tools", "Write a file for a support case, without secrets."),
        "completion": ("table", "Print a shell's completion script."),
        "metastore": ("tools", "Run a real Hive metastore out of PySpark's own jars."),
        "demo": ("tools", "Show replication on two real metastores."),
    },
}
"""By section and name: the module in `replicator.cli`, and the line of `replicator --help`."""

OF_SERVER = frozenset({"cronsim", "fastapi", "jinja2", "prometheus_client", "uvicorn"})
"""Modules of the extra `server`."""

COMMANDS = {name: row for rows in SECTIONS.values() for name, row in rows.items()}


class CommandTable(click.Group):
    """The group of all commands, which shows them in sections and imports only the one that is called."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return names_completed(command(name)) if VARIABLE in os.environ else command(name)

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(context, arguments)
        except click.UsageError as error:
            near = get_close_matches(arguments[0], COMMANDS)
            if not near:
                raise
            message = f"No such command {arguments[0]!r}. Did you mean {' or '.join(map(repr, near))}?"
            raise click.UsageError(message, ctx=context) from error

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, COMMANDS))
        for section, rows in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(widest), line) for name, (_, line) in rows.items()])


def command(name: str) -> click.Command:
    """A command of the table, imported."""
    try:
        module = import_module(f"replicator.cli.{COMMANDS[name][0]}")
    except ModuleNotFoundError as error:
        if error.name not in OF_SERVER:
            raise
        hint = "pip install 'replicator[server]'"
        raise UsageError(f"`replicator {name}` needs {error.name}, which is not installed", hint=hint) from error
    found = getattr(module, name.replace("-", "_"))
    assert isinstance(found, click.Command)
    return found


def commands() -> dict[str, click.Command]:
    """All commands by name, imported: for the manual and the tests."""
    return {name: command(name) for name in COMMANDS}


def below(group: click.Group) -> dict[str, click.Command]:
    """The commands of a group that its help shows, by name: for the manual and the tests."""
    found = commands() if isinstance(group, CommandTable) else group.commands
    return {name: each for name, each in found.items() if not each.hidden}


class PerCommand(Mapping[str, Any]):
    """Values by command, computed when a command is looked up."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        return self._make(name, command(name))

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


# ---- completion in a shell -------------------------------------------------------------------------------------------


SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_REPLICATOR_COMPLETE"
"""Set by the shell when it requests completions."""


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
    """Returns the configuration of the command line being completed; an empty one if it cannot be read."""
    given = context.find_root().params.get("config") or os.environ.get("REPLICATOR_CONFIG")
    try:
        return read_config(Path(given) if given else None)
    except Error:
        return Config()


# ---- command lines of the configuration ------------------------------------------------------------------------------


def policy_of(line: Sequence[str]) -> str:
    """Returns the policy that a command line (without `replicator`) runs; empty: none. Values of options are not
    checked. Raises UsageError for unknown options and commands, and for missing or surplus arguments."""
    of, given = _parsed_line(line)
    found = (given.get(each.name or "") for each in of.params if is_policy(each))
    return next((each for each in found if isinstance(each, str)), "")


def asset_of(line: Sequence[str]) -> str:
    """Returns the asset whose tables a command line requests to land; empty: it does not. Raises as `policy_of`."""
    of, given = _parsed_line(line)
    requests = line[0] == "ingest" and of.name == "request"
    return str(given["asset"]) if requests and isinstance(given.get("asset"), str) else ""


def _parsed_line(line: Sequence[str]) -> tuple[click.Command, dict[str, Any]]:
    try:
        return _parsed(command(line[0]), None, line)
    except click.UsageError as error:
        raise UsageError(error.format_message()) from error


def _parsed(
    of: click.Command, parent: click.Context | None, line: Sequence[str]
) -> tuple[click.Command, dict[str, Any]]:
    """Returns the command that a line calls, below a group or not, and its parameters as texts, by name."""
    context = click.Context(of, parent, info_name=line[0])
    given, left, _ = of.make_parser(context).parse_args(args=list(line[1:]))
    if isinstance(of, click.Group) and left:
        name, below, rest = of.resolve_command(context, left)
        assert below is not None
        return _parsed(below, context, (name or "", *rest))
    if left:
        raise click.UsageError(f"Got unexpected extra arguments ({' '.join(left)})", context)
    if isinstance(of, click.Group) and not of.invoke_without_command:
        raise click.UsageError("Missing command.", context)
    for each in of.params:
        alone = isinstance(each, click.Argument) and each.required and each.nargs == 1
        if alone and not isinstance(given.get(each.name or ""), str):
            raise click.MissingParameter(ctx=context, param=each)
    return of, given


# ---- former names ----------------------------------------------------------------------------------------------------


F = TypeVar("F", bound=Callable[..., Any])


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
