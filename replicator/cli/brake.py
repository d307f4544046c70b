"""The options of the brake, for commands that load: how much of a replica one load may take away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from replicator.cli.options import Size, bandwidth_option

F = TypeVar("F", bound=Callable[..., Any])


def removal_options(command: F) -> F:
    """`--max-share`, `--max-bytes`, `--allow-removals` and `--bandwidth`: the fields of `Braked`."""
    for option in (
        bandwidth_option,
        click.option("--allow-removals", is_flag=True, help="Lift the removal limits for this run."),
        click.option(
            "--max-bytes",
            type=Size(),
            help="Refuse a load that would remove more; default: that of [guard], else 1TiB.",
        ),
        click.option(
            "--max-share",
            type=click.FloatRange(0, 1),
            help="Refuse a load that would remove a larger "
            "share of the replica's bytes; default: that of [guard], else 0.5.",
        ),
    ):
        command = option(command)
    return command
