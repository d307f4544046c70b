"""Reports: what a command did, as a value that prints as the JSON the command line gives."""

from __future__ import annotations

import dataclasses
import html
import json
from typing import Any, ClassVar

import msgspec


class Report:
    """A dataclass or struct that says what a command did. `print(report)` gives what `--json` gives."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of the command line."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def _repr_html_(self) -> str:
        """A table of the fields, as notebooks show it."""
        rows = (
            f"<tr><th>{html.escape(name)}</th><td>{_cell(value)}</td></tr>" for name, value in self.to_dict().items()
        )
        return f"<table>{''.join(rows)}</table>"


@dataclasses.dataclass(kw_only=True)
class CopyCounts(Report):
    """Counts of copied files, by the origin of their bytes; files_skipped: already in place. `before`: the field of a
    report that follows them in its JSON; "": the first."""

    files_copied: int = 0
    bytes_copied: int = 0
    files_from_source: int = 0
    files_from_cmroot: int = 0
    files_from_target: int = 0
    files_skipped: int = 0
    before: ClassVar[str] = ""

    def count(self, done: CopyCounts) -> None:
        """Adds the counts that both have."""
        for name in self._counts():
            setattr(self, name, getattr(self, name) + getattr(done, name, 0))

    def to_dict(self) -> dict[str, Any]:
        found, counts = super().to_dict(), self._counts()
        others = [name for name in found if name not in counts]
        at = others.index(self.before) if self.before else 0
        return {name: found[name] for name in (*others[:at], *counts, *others[at:])}

    def _counts(self) -> list[str]:
        return [each.name for each in dataclasses.fields(LoadCounts) if hasattr(self, each.name)]


@dataclasses.dataclass(kw_only=True)
class LoadCounts(CopyCounts):
    """Counts of all that a load changed."""

    files_removed: int = 0
    objects_changed: int = 0


class Rows(Report):
    """A report that is a list: `listed` is the field with its rows."""

    listed: ClassVar[str]

    def rows(self) -> list[dict[str, Any]]:
        """The rows as mappings, as JSON has them."""
        return list(self.to_dict()[self.listed])

    def to_arrow(self) -> Any:
        """The rows as a pyarrow.Table, which pandas, Polars, DuckDB and Spark read; without rows, without columns."""
        import pyarrow as pa  # not for every command that has a report

        rows = self.rows()
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: [row.get(name) for row in rows] for name in names})


def _cell(value: Any) -> str:
    return html.escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
