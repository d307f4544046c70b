"""`demo`: the whole story on two embedded metastores."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from replicator.commands.base import Options, verb
from replicator.commands.demos.landing_story import LandingStory
from replicator.commands.demos.story import DemoReport, Story, tell


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Options):
    """Arguments:

    keep: run in this directory, new or empty, and leave everything there; None: in one that goes at the end.
    say: called with the story, line by line.
    ingest: the story of ingestion instead, with a PostgreSQL of its own, which goes at the end in any case.
    """

    keep: str | os.PathLike[str] | None = None
    say: Callable[[str], object] = print
    ingest: bool = False


@verb(DemoOptions)
def demo(options: DemoOptions) -> DemoReport:
    """Shows what this tool does, on two real Hive metastores with real Spark tables, in about a minute: bootstrap,
    changes of every kind, an incremental dump, the rubber-banding case, a verification of every byte. It has a
    Spark of its own. May run twice.

        replicator.demo(keep="/tmp/shop")

    Raises UsageError for a directory with something in it, JavaError, ConfigError without a PostgreSQL for `ingest`,
    Error when a step does not end as it must."""
    story = LandingStory if options.ingest else Story
    return tell(None if options.keep is None else Path(options.keep), options.say, story)
