"""Each mutant of `scripts/mutate --named` changes code that exists, once, and names tests that exist."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").exists())
sys.path.append(str(ROOT / "scripts"))

from mutating.named import NAMED  # noqa: E402


@pytest.mark.parametrize(("module", "before", "after", "what", "tests"), NAMED, ids=[each[3] for each in NAMED])
def test_a_mutant_can_be_made(module: str, before: str, after: str, what: str, tests: str) -> None:
    assert (ROOT / module).read_text().count(before) == 1 and before != after
    assert (ROOT / tests).exists()
