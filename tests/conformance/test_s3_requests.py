"""How many requests an S3 store is asked, counted by a proxy before it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import local_engine
from metastores import MetastoreFactory
from plain_tables import text_storage
from s3_proxy import Proxy, counting
from stores import s3_server, s3a_as_directories

import replicator
from cmroot.root import create_or_open
from cmroot.store.listing import Listing, list_together, list_tree
from cmroot.store.place import Place
from replicator.core.model import EXTERNAL, Column, Database, Partition, Table
from replicator.metastore.thrift import connect

BUCKET = "s3a://counted"


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with s3_server() as filesystem, counting(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        filesystem.mkdir("counted")
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        yield proxy


def together(places: list[str]) -> list[Listing | None]:
    found = dict(list_together(places))
    return [found[index] or list_tree(place) for index, place in enumerate(places)]


def write(*keys: str) -> None:
    filesystem: Any = Place(BUCKET).store.filesystem
    filesystem.pipe({f"counted/{key}": key.encode() for key in keys})


@pytest.mark.parametrize("seed", range(4))
def test_listings_together_are_those_alone(proxy: Proxy, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places side by side, in each other, twice, that are one file or nothing, a Delta table, names that sort around
    the slash, in pages of few objects."""
    monkeypatch.setattr("cmroot.store.ranges.PAGE", random.Random(seed).choice([2, 7, 1000]))
    chance = random.Random(seed)
    top = f"random-{seed}"
    names = ["p=1", "p=1-x", "p=1.y", "p=10", "p=2", "p=ä", "p=\U0001f600", "p=~", "p= 3", "empty", "_delta_log", "q"]
    keys = {f"{top}/{'/'.join(chance.sample(names, chance.randint(1, 3)))}/f{chance.randint(0, 5)}" for _ in range(120)}
    keys |= {f"{top}/one-file", f"{top}/p=1/.hidden", f"{top}/p=2/_temporary/f"}
    write(*sorted(keys))
    places = [f"{BUCKET}/{top}/{name}" for name in [*names, "one-file", "nothing"]]
    places += [f"{BUCKET}/{top}/p=1/q", f"{BUCKET}/{top}/p=10/", f"s3://counted/{top}/p=10"]
    chance.shuffle(places)
    assert together(places) == [list_tree(place) for place in places]


def test_places_far_apart_cost_one_request_each_and_those_in_a_row_one_for_a_thousand(proxy: Proxy) -> None:
    write(*(f"far/{place:03d}/{file:02d}" for place in range(100) for file in range(30)))
    proxy.taken()
    for step, most in ((1, 4), (50, 3)):
        places = [f"{BUCKET}/far/{place:03d}" for place in range(0, 100, step)]
        assert [len(each.files) for each in together(places) if each] == [30] * (100 // step)
        assert proxy.taken()["LIST"] <= most
