"""The root of a command that may be a dry run, also before the first run of any job has made one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replicator.cli.output import note

if TYPE_CHECKING:
    from cmroot.root import ChangeRoot


@dataclass(frozen=True)
class Opened:
    """A root, where it is or would be (`place`), and what is to be told of it."""

    root: ChangeRoot
    place: str
    warnings: list[str]

    def told(self, answer: Any) -> dict[str, Any]:
        """The fields of an answer, with its warnings and these."""
        fields = dict(answer) if isinstance(answer, Mapping) else dataclasses.asdict(answer)
        fields |= {"root": self.place} if "root" in fields else {}
        return {**fields, "warnings": [*fields.get("warnings", []), *self.warnings]}


@contextmanager
def opened_root(cmroot: str, *, dry_run: bool, makes: bool = True) -> Iterator[Opened]:
    """makes: whether a run makes the root; else it must be there. A dry run reads the root, or says that there is none
    yet."""
    from cmroot.rehearsal import looked_at
    from cmroot.root import create_or_open, open_existing
    from cmroot.store.place import normal

    if not dry_run:
        root = (create_or_open if makes else open_existing)(cmroot)
        yield Opened(root, root.place, [])
        return
    with looked_at(cmroot) as (root, words):
        if words:
            note(f"warning: {words}")
        yield Opened(root, normal(cmroot), [words] if words else [])
