"""Names that no other test of a run has: servers are shared by all of its workers."""

from __future__ import annotations

import itertools
import os

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
_numbers = itertools.count(1)


def unique(prefix: str) -> str:
    """`prefix`, the worker and a number, as a database may be called: lower case, no separator."""
    return f"{prefix}{WORKER.replace('gw', 'w')}n{next(_numbers)}"
