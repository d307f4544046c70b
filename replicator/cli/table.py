"""The table of commands: section, module and one line of each. A command's module is imported when it is called."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import click

from replicator.cli.completion import VARIABLE, names_completed
from replicator.errors import UsageError

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Replicate": {
        "capture": ("capture", "Read the notification log and changed files into $cmroot."),
        "dump": ("dump", "Capture, then write a dump: full or incremental."),
        "load": ("load", "Replay a finished dump on a target."),
        "verify": ("verify", "Compare every object and file of both sides."),
        "repair": ("verify", "Find a replica's differences, and copy exactly these."),
        "status": ("status", "Show a replicated database's position and lag."),
        "wait": ("status", "Wait until a replica has an event, or a small enough lag."),
        "restore": ("restore", "Restore a database or tables to an event or a time."),
        "show": ("show", "Print a dump, a captured log, or a segment of it."),
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
        "drill": ("drill", "Rehearse a failover in shadow databases, and time it."),
        "role": ("role_change", "Show or set the role of a database."),
    },
    "Retention and erasure": {
        "housekeeping": ("housekeeping", "Remove unreferenced data and expired tables (Beekeeper)."),
        "retention": ("retention", "Remove expired versions of datasets (Gobblin)."),
        "purge": ("purge", "Erase the rows of persons from tables, and prove it."),
        "legal-hold": ("guard", "Protect data from removal by any job."),
        "audit": ("guard", "Show removals with user, time and reason; restore files."),
    },
    "Change management": {
        "cm": ("cm", "Manage a $cmroot: kept files, slots, holds, expiry."),
        "gateway": ("gateway", "Serve a metastore, and keep the files of dropped tables."),
    },
    "Ingestion": {
        "asset": ("asset", "Manage assets: who may bring which data in."),
        "ingest": ("ingest", "Land tables of other databases, by request."),
    },
    "Service": {
        "serve": ("serve", "Run policies by their schedules; serve an API, metrics, a page."),
        "token": ("serve", "Create, list and revoke tokens of the service's API."),
        "metrics": ("serve", "Show metrics of policies and runs, for Prometheus."),
    },
    "Tools": {
        "init": ("tools", "Write a first replicator.toml, and check it."),
        "diagnose": ("tools", "Write a file for a support case, without secrets."),
        "completion": ("completion", "Print a shell's completion script."),
        "metastore": ("tools", "Run a real Hive metastore out of PySpark's own jars."),
        "demo": ("tools", "Show replication on two real metastores, in a minute."),
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
    """Values by command, made when a command is looked up."""

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
