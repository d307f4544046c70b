"""Which files metadata names: those that a capture reads and keeps, and no other file of its host."""

from __future__ import annotations

import pytest

from replicator.core.named_files import resource_file

REMOTE = "hdfs://a:8020/w/shop.db"


@pytest.mark.parametrize("address", ["file:///etc/shadow", "file:/etc/shadow", "http://x/f.jar", "ivy://org:f:1"])
def test_no_local_file_is_read_for_a_warehouse_on_another_filesystem(address: str) -> None:
    """Who may create a function, or set a property, could otherwise have a file of the capture's host copied."""
    assert resource_file(REMOTE, address) is None


@pytest.mark.parametrize(
    ("home", "address", "place"),
    [
        (REMOTE, "/etc/f.jar", "hdfs://a:8020/etc/f.jar"),
        (REMOTE, "hdfs://b:8020/x/f.jar", "hdfs://b:8020/x/f.jar"),
        ("/w/shop.db", "file:/x/f.jar", "/x/f.jar"),
        ("/w/shop.db", "/w/shop.db/.named/../../x/f.jar", "/w/x/f.jar"),
    ],
)
def test_a_file_has_one_name_below_the_directory_of_the_database(home: str, address: str, place: str) -> None:
    found = resource_file(home, address)
    assert found is not None and found.place == place
    assert found.path.endswith("/f.jar") and ".." not in found.path.split("/")
