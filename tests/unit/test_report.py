"""Reports that are lists: a table has its columns, rows or none."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest

import replicator
from replicator.core.not_replicated import Rows, listed_columns


def subclasses(kind: type[Rows]) -> list[type[Rows]]:
    return [each for one in kind.__subclasses__() for each in (one, *subclasses(one))]


for module in pkgutil.walk_packages(replicator.__path__, "replicator."):
    if ".migrations" not in module.name and not module.name.endswith("__main__"):
        importlib.import_module(module.name)


@pytest.mark.parametrize("kind", subclasses(Rows), ids=lambda kind: kind.__name__)
def test_a_list_knows_its_columns(kind: Any) -> None:
    columns = kind.columns or listed_columns(kind, kind.listed)
    assert len(columns) > 3 and len(set(columns)) == len(columns)
