"""Names that no other test of a run has: servers are shared by all of its workers."""

from __future__ import annotations

import itertools
import os
import re

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
_TAG = WORKER.replace("gw", "w") + "n"
MINE = re.compile(rf".*{_TAG}\d")
"""Matches the names of this worker."""
_numbers = itertools.count(1)


def unique(prefix: str) -> str:
    """`prefix`, the worker and a number, as a database may be called: lower case, no separator."""
    return f"{prefix}{_TAG}{next(_numbers)}"
