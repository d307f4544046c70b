"""What the jobs that remove have in common: how much one run may, of what, and whether it may at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from replicator.commands.base import Options, Where, opened_root
from replicator.commands.ranges import Natural, Positive, Share
from replicator.core.text import parse_size
from replicator.errors import ConfigError
from replicator.lifecycle.removal.job import Job
from replicator.lifecycle.removal.removal import MIN_DEPTH, Limits

J = TypeVar("J", bound=Job[Any, Any])


@dataclass(frozen=True, kw_only=True)
class Limited(Options):
    """How much one run may remove; what is not given is as [guard] of the configuration says, else without limit.

    max_share: of what the run looked at, 0 to 1. max_bytes: a number of bytes, or a size such as "10TiB".
    min_depth: names below the root of the store that a removed path must have; else 2.
    protect: places at, below and above which nothing goes, beside those of [guard].
    """

    max_share: Share | None = None
    max_bytes: Natural | str | None = None
    min_depth: Positive | None = None
    protect: Sequence[str] = ()

    @cached_property
    def limits(self) -> Limits:
        """Raises ConfigError for a size that is none."""
        guard = self.settings.guard
        size, name = (
            (self.max_bytes, "max_bytes") if self.max_bytes is not None else (guard.max_bytes, "guard.max_bytes")
        )
        try:
            most = parse_size(size) if isinstance(size, str) else size
        except ValueError as error:
            raise ConfigError(f"{name}: {error}", hint="write a size such as 10TiB") from error
        return Limits(
            guard.max_share if self.max_share is None else self.max_share,
            most,
            self.min_depth or guard.min_depth or MIN_DEPTH,
            (*guard.protected, *self.protect),
        )


@dataclass(frozen=True, kw_only=True)
class Removing(Limited):
    """dry_run: only tell what would go; nothing is written, and no root is made."""

    dry_run: bool = False

    @contextmanager
    def working(
        self, make: Callable[..., J], cmroot: str, metastore: Where | None, *, dry_run: bool, makes: bool = True
    ) -> Iterator[J]:
        """A job on its root and metastore, for the length of a block. make: takes what all jobs take. dry_run, makes:
        as for `opened_root`."""
        with ExitStack() as stack:
            root, words = stack.enter_context(opened_root(cmroot, dry_run=dry_run, makes=makes))
            known = stack.enter_context(self.connected(metastore)) if metastore else None
            runtime = stack.enter_context(self.runtime())
            job = make(root=root, metastore=known, runtime=runtime, limits=self.limits, warnings=words)
            stack.enter_context(job)
            yield job
