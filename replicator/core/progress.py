"""Progress of long work: bars on a terminal's standard error, nothing elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

from replicator.text.printable import printable


class Progress(Protocol):
    """Tells a person how far long work is."""

    def task(self, title: str, total: int | None = None) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        """While open, calling the value advances the task by so many steps of `total` (None: unknown)."""
        ...


class Silent:
    """Shows nothing."""

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        yield lambda steps: None


class Bars:
    """Bars drawn by rich on standard error; the caller chooses it only for a terminal."""

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with RichProgress(*columns, console=Console(stderr=True), transient=True) as display:
            number = display.add_task(printable(title), total=total)
            yield lambda steps: display.advance(number, steps)
