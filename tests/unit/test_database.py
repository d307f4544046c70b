"""A database of our own when it has no time for us."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from waiting import CEILING

from replicator.core import database
from replicator.core.database import Database
from replicator.errors import StoreUnreachable, UsageError
from replicator.ingestion.job_store import IngestionStore
from replicator.service.api_tokens import create_token, tokens
from replicator.service.store import ServiceStore


def test_who_finds_all_connections_in_use_may_try_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WAIT", 0.1)
    with Database(f"sqlite:///{tmp_path}/s.sqlite", "store", "--store", connections=1) as store, ExitStack() as busy:
        for _ in range(3):
            busy.enter_context(store.transaction())
        with pytest.raises(StoreUnreachable, match="in use"), store.transaction():
            pass


def test_one_of_many_connections_remembers_little(tmp_path: Path) -> None:
    with ServiceStore(f"sqlite:///{tmp_path}/s.sqlite") as store, store.transaction() as connection:
        assert connection.exec_driver_sql("PRAGMA cache_size").scalar_one() == -256


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
        with pytest.raises(UsageError, match="token 't0' already exists"):
            create_token(store, "t0", "viewer", (), 60)


def test_stores_in_one_file_may_be_made_while_others_write(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/service.sqlite"
    over = threading.Event()

    def write() -> None:
        with ServiceStore(url) as store:
            number = 0
            while not over.is_set():
                store.plan(f"j{(number := number + 1)}", "1d", 0.0)

    with ServiceStore(url) as first, ThreadPoolExecutor(4) as pool:
        first.prepare()
        writing = pool.submit(write)
        stores = [IngestionStore(url) for _ in range(3)]
        made = [pool.submit(store.prepare) for store in stores]
        try:
            for each in made:
                each.result()
        finally:
            over.set()
        writing.result()
        assert stores[0].assets() == []


def test_who_is_going_to_write_waits_for_who_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ServiceStore(f"sqlite:///{tmp_path}/s.sqlite") as store, ThreadPoolExecutor(1) as pool:
        store.prepare()
        with store.writing():
            store.plan("first", "1d", 0.0)
            with store.writing():  # within: the same transaction
                store.plan("second", "1d", 0.0)
            monkeypatch.setattr(database, "PATIENCE", 0.05)
            with pytest.raises(StoreUnreachable, match="locked"):
                pool.submit(_write, store, "late").result()
            monkeypatch.setattr(database, "PATIENCE", CEILING)
            waiting = pool.submit(_write, store, "third")
        waiting.result()
        assert sorted(store.jobs()) == ["first", "second", "third"]


def test_what_is_written_within_is_undone_with_all(tmp_path: Path) -> None:
    with ServiceStore(f"sqlite:///{tmp_path}/s.sqlite") as store:
        store.prepare()
        with pytest.raises(ZeroDivisionError), store.together():
            store.plan("first", "1d", 0.0)
            _write(store, "second")
            raise ZeroDivisionError
        assert not store.jobs()


def _write(store: ServiceStore, name: str) -> None:
    with store.writing():
        store.plan(name, "1d", 0.0)
