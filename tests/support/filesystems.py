"""The filesystems of the tests. A pytest plugin."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import CEILING

from cmroot.store.local import LocalStore
from cmroot.store.spelling import local_path


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


def hanging_below(monkeypatch: pytest.MonkeyPatch, *directories: Path) -> threading.Event:
    """Makes reads and looks below directories wait, as on a mount whose server is away, until the event is set."""
    mounted = threading.Event()
    tops = tuple(f"{each}" for each in directories)

    def waiting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: LocalStore, path: str, *more: Any, **named: Any) -> Any:
            if local_path(path).startswith(tops):
                mounted.wait(CEILING)
            return real(self, path, *more, **named)

        return call

    for name in ("read_bytes", "exists", "list", "children"):
        monkeypatch.setattr(LocalStore, name, waiting(getattr(LocalStore, name)))
    return mounted
