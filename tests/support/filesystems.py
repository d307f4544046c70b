"""The filesystems of the tests. A pytest plugin."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def other_device(tmp_path: Path) -> Iterator[Path]:
    """A directory on another device than `tmp_path`, to which no file of it can be hard-linked."""
    device = tmp_path.stat().st_dev
    for place in (Path("/dev/shm"), Path("/var/tmp"), Path.home()):
        if place.is_dir() and os.access(place, os.W_OK) and place.stat().st_dev != device:
            made = Path(tempfile.mkdtemp(prefix="replicator-test-", dir=place))
            yield made
            shutil.rmtree(made)
            return
    pytest.skip("no second device")
