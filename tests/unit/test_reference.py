"""docs/cli.md is what the code says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_command_reference_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "reference", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
