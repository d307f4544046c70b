"""Scripts install what they import."""

from __future__ import annotations

from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
SHELL = {
    each.name: text
    for each in SCRIPTS.iterdir()
    if each.is_file() and (text := each.read_text())[:19] == "#!/usr/bin/env bash"
}


@pytest.mark.parametrize("name", [name for name, text in SHELL.items() if "tests/support" in text])
def test_a_script_with_the_support_of_tests_installs_their_packages(name: str) -> None:
    assert "\nsetup test" in SHELL[name]
