"""Reports: what a command did, as a value that prints as the JSON the command line gives."""

from __future__ import annotations

import dataclasses
import html
import json
from typing import Any


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


def as_json(report: Any) -> dict[str, Any]:
    """A report dataclass as the JSON object of the command line."""
    return dataclasses.asdict(report)


def json_text(report: Any) -> str:
    """For `__str__` of reports: print(report) is what `--json` prints."""
    return json.dumps(as_json(report), ensure_ascii=False)


def _cell(value: Any) -> str:
    return html.escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
