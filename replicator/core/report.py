"""Reports: what a command did, as a value that prints as the JSON the command line gives."""

from __future__ import annotations

import dataclasses
import html
import json
from typing import Any, ClassVar


class Report:
    """A dataclass that says what a command did. `print(report)` gives what `--json` gives."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of the command line."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    def __str__(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def _repr_html_(self) -> str:
        """A table of the fields, as notebooks show it."""
        rows = (
            f"<tr><th>{html.escape(name)}</th><td>{_cell(value)}</td></tr>" for name, value in self.to_dict().items()
        )
        return f"<table>{''.join(rows)}</table>"


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
