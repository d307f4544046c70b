"""The options of the brake, for commands that load: how much of a replica one load may take away."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from replicator.cli.options import Session, Size
from replicator.core.config import GuardConfig
from replicator.text.quantity import parse_size

if TYPE_CHECKING:
    from replicator.replay.apply.brake import Brake

F = TypeVar("F", bound=Callable[..., Any])


def brake_options(command: F) -> F:
    """`--max-share`, `--max-bytes`, `--allow-removals`, with `[guard]` of the file; handed to the command as
    `brake: Brake | None`."""

    @click.option(
        "--max-share", type=click.FloatRange(0, 1), help="Refuse a load that would take away a larger share of the "
        "replica's bytes; default: [guard]'s, else 0.5.",
    )  # fmt: skip
    @click.option("--max-bytes", type=Size(), help="Refuse a load that would take away more; default: [guard]'s, else "
                  "1TiB.")  # fmt: skip
    @click.option("--allow-removals", is_flag=True, help="Let this run take away whatever the source does not have.")
    @functools.wraps(command)
    def wrapped(
        *arguments: Any, max_share: float | None, max_bytes: int | None, allow_removals: bool, **options: Any
    ) -> Any:
        session = click.get_current_context().find_object(Session)
        brake = None if allow_removals else brake_of(session.config.guard if session else None, max_share, max_bytes)
        return command(*arguments, brake=brake, **options)

    return wrapped  # type: ignore[return-value]


def brake_of(guard: GuardConfig | None, max_share: float | None = None, max_bytes: int | None = None) -> Brake:
    """What was asked for, else `[guard]`'s, else the defaults. Raises ConfigError for a size that is none."""
    from replicator.errors import ConfigError
    from replicator.replay.apply.brake import Brake

    default, guard = Brake(), guard or GuardConfig()
    if max_bytes is None and guard.max_bytes is not None:
        try:
            max_bytes = parse_size(str(guard.max_bytes))
        except ValueError as error:
            raise ConfigError(f"guard.max_bytes: {error}", hint="write a size such as 10TiB") from error
    if max_share is None:
        max_share = guard.max_share
    return Brake(
        default.max_share if max_share is None else max_share, default.max_bytes if max_bytes is None else max_bytes
    )
