"""A database of our own when it has no time for us."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from replicator import database
from replicator.database import Database
from replicator.errors import StoreUnreachable


def test_who_finds_all_connections_in_use_may_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WAIT", 0.1)
    with Database(f"sqlite:///{tmp_path}/s.sqlite", "store", "--store", connections=1) as store, ExitStack() as busy:
        for _ in range(3):
            busy.enter_context(store.transaction())
        with pytest.raises(StoreUnreachable, match="in use"), store.transaction():
            pass
