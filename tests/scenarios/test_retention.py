"""Whatever happens, in whatever order: a slot's state can be loaded exactly, and without slots nothing unneeded stays.

The histories are random ones (`slot_histories`); `scripts/soak_crash` plays longer ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import local_engine
from plain_tables import PlainDatabase
from slot_histories import History

import replicator
from cmroot.root import open_existing
from replicator.captures.manifest import open_manifest
from replicator.core.runtime import Advance, Progress, Silent
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

ROUNDS = 5


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_every_slot_can_be_loaded_and_without_slots_nothing_unneeded_is_kept(
    source_metastore: Running, target_metastore: Running, tmp_path: Path, seed: int
) -> None:
    history = History(source_metastore, target_metastore, tmp_path, seed)
    history.begin()
    for _ in range(ROUNDS):
        history.turn()
    history.every_slot_can_be_loaded()
    assert all(history.reached.values()), f"faults that were never reached: {history.reached}"
    history.without_slots_nothing_unneeded_is_kept()


class AtTheEnd(Progress):
    """Does something when a task of this title ends."""

    def __init__(self, title: str, act: Callable[[], None]) -> None:
        self.title, self.act, self.done = title, act, False

    @contextlib.contextmanager
    def task(self, title: str, total: int | None = None, **amounts: Any) -> Iterator[Advance]:
        with Silent().task(title) as advance:
            yield advance
        if title == self.title:
            self.act()
            self.done = True


def test_what_changes_between_the_first_walk_and_its_end_is_in_the_first_capture(
    source_metastore: Running, tmp_path: Path
) -> None:
    """The newest event id is taken before anything is listed: no event falls in between."""
    with connect(source_metastore.uri) as metastore:
        database = PlainDatabase(metastore, "walked", tmp_path / "warehouse")
        database.create()
        for name in ("stays", "goes"):
            database.table(name, {"f": name})
        meanwhile = AtTheEnd("walk walked", lambda: database.drop("goes"))
        root, engine = str(tmp_path / "cmroot"), local_engine()
        replicator.capture(
            source=source_metastore.uri, cmroot=root, db="walked", scan=False, progress=meanwhile, engine=engine
        )
    with open_manifest(open_existing(root)) as manifest:
        assert meanwhile.done and list(manifest.table_names("walked")) == ["stays"]
