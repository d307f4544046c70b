"""docs/cli.md is what the code says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_command_reference_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "reference", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_manual_pages_are_made_of_every_command(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "reference", "--man", tmp_path], check=True)
    pages = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert {"replicator.1", "replicator-dump.1", "replicator-cm-slots-create.1"} <= set(pages)
    for name, page in pages.items():
        assert page.startswith(f'.TH "{name.removesuffix(".1").upper()}"') and ".SH OPTIONS" in page
        assert not [line for line in page.splitlines() if line.startswith("'")], name
