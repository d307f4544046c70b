"""Features between stores, as the page says: a pair that shares nothing. `scripts/stores` runs all nine, and writes
the page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hadoop import Cluster
from metastores import MetastoreFactory
from stores_table import BEGIN, END, FEATURES, HDFS, PAIRS, S3, YES, Stores, as_table, expected, observe, with_table
from versity import ON_VERSITYGW, Versity

pytestmark = [pytest.mark.hdfs, *ON_VERSITYGW]
PAGE = Path(__file__).parents[2] / "docs" / "stores.md"


@pytest.fixture
def environment() -> Iterator[None]:
    """As it was, afterwards: `Stores` tells it of its servers."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.long
@pytest.mark.usefixtures("environment")
def test_features_work_between_stores_as_the_page_says(
    hdfs: Cluster, versitygw: Versity, metastore_factory: MetastoreFactory, tmp_path: Path
) -> None:
    stores = Stores(tmp_path, hdfs, versitygw, lambda name, settings: metastore_factory(name, settings=settings))
    found = observe(stores, [(HDFS, S3)])
    page, by_name = PAGE.read_text(), {feature.name: feature for feature in FEATURES}
    wanted = {key: expected(page, by_name[key[0]], *key[1:]) for key in found}
    assert {key: outcome.partition(":")[0] for key, outcome in found.items()} == wanted, found


def test_the_table_says_which_targets_fail() -> None:
    found = {
        (feature.name, source, target): "failed: why" if target == S3 != source else YES
        for feature in FEATURES
        for source, target in PAIRS
        if source == target or not feature.one
    }
    page = with_table(f"before\n{BEGIN}\nold\n{END}\nafter", as_table(found))
    assert "yes to disk, HDFS; failed to S3" in page and "old" not in page
    for (name, source, target), outcome in found.items():
        (feature,) = [each for each in FEATURES if each.name == name]
        assert expected(page, feature, source, target) == outcome.partition(":")[0]
