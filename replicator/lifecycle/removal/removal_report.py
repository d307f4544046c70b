"""What the reports of all jobs that remove have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from replicator.core.report import Report


class Removals(Report):
    """A report of a job that removes. status: "planned" of a dry run; "done"; else what is not done is in the report.
    run: its name in the audit, empty where nothing is recorded. warnings: what did not keep it from its work."""

    unfinished: ClassVar[str] = "incomplete"

    status: str
    run: str
    warnings: list[str]
    seconds: float

    @property
    @abstractmethod
    def is_whole(self) -> bool:
        """Nothing was refused, failed, or stayed that should have gone."""

    @property
    def ended(self) -> str:
        """The status of a run that has come to its end."""
        return "done" if self.is_whole else self.unfinished
