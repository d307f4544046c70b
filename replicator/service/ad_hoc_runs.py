"""Errands: runs that somebody asked for, beside all jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AdHocRun:
    """A run that somebody asked for, beside all jobs. name: its command and what it is about, `verify:west`; only one
    of a name at a time. arguments: "@RUN/FILE" is a file in the output of a run, "@/FILE" one in its own."""

    name: str
    arguments: tuple[str, ...]
    policy: str = ""


def is_ad_hoc(name: str) -> bool:
    """Whether it is the name of an ad-hoc run: no job's has a colon."""
    return ":" in name


def placed(argument: str, id: str, outputs: Path) -> str:
    """An argument of an ad-hoc run's run. outputs: where the outputs of runs lie."""
    if not argument.startswith("@"):
        return argument
    run, _, file = argument[1:].partition("/")
    return str(outputs / (run or id) / file)
