"""Reports: what a command did, as a value that prints as the JSON the command line gives."""

from __future__ import annotations

import dataclasses
import json
from typing import Any


def as_json(report: Any) -> dict[str, Any]:
    """A report dataclass as the JSON object of the command line."""
    return dataclasses.asdict(report)


def json_text(report: Any) -> str:
    """For `__str__` of reports: print(report) is what `--json` prints."""
    return json.dumps(as_json(report), ensure_ascii=False)
