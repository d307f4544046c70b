"""A database of our own when it has no time for us."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from replicator import database
from replicator.database import Database
from replicator.errors import StoreUnreachable, UsageError
from replicator.service.api_tokens import create_token, tokens
from replicator.service.store import ServiceStore


def test_who_finds_all_connections_in_use_may_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WAIT", 0.1)
    with Database(f"sqlite:///{tmp_path}/s.sqlite", "store", "--store", connections=1) as store, ExitStack() as busy:
        for _ in range(3):
            busy.enter_context(store.transaction())
        with pytest.raises(StoreUnreachable, match="in use"), store.transaction():
            pass


def test_tokens_that_are_made_at_once_are_all_there(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/service.sqlite"

    def make(names: range) -> None:
        with ServiceStore(url) as store:
            for each in names:
                create_token(store, f"t{each}", "viewer", (), 60)

    with ServiceStore(url) as store:
        store.prepare()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(make, [range(start, start + 20) for start in range(0, 80, 20)]))
        assert len(tokens(store)) == 80
        with pytest.raises(UsageError, match="there is a token"):
            create_token(store, "t0", "viewer", (), 60)
