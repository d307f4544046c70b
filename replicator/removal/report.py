"""What the reports of all jobs that remove have in common."""

from __future__ import annotations

from abc import abstractmethod

from replicator.core.report import Report


class Removals(Report):
    """A report of a job that removes. status: "planned" of a dry run; "done"; else what is not done is in the report.
    run: its name in the audit, empty where nothing is recorded. warnings: what did not keep it from its work."""

    status: str
    run: str
    warnings: list[str]

    @property
    @abstractmethod
    def is_whole(self) -> bool:
        """Nothing was refused, failed, or stayed that should have gone."""
