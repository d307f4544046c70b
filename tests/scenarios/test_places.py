"""Any location, mapped to the target: it lands in the target's databases, its directory of external tables, or what an
explicit mapping names; whatever dots, slashes, schemes and links it is written with."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmroot.errors import FormatError, UnknownPlace
from cmroot.names import check_entries, is_below
from cmroot.store.place import folded, resolved, split_authority
from replicator.errors import Refused
from replicator.replay.apply.origins import is_one_file
from replicator.replay.placement import Placement

HOME, TARGET, EXTERNAL, MAPPED = "/src/shop.db", "/dst/copy.db", "/dst/external", "/mapped/here"
ROOT = "/dst/.cmroot"
PLACEMENT = Placement(
    databases={"shop": "copy"},
    source_locations={"shop": f"file:{HOME}"},
    target_locations={"shop": f"file:{TARGET}"},
    external=EXTERNAL,
    mappings=[("/landing", MAPPED)],
    root=ROOT,
)

parts = st.sampled_from(
    [
        "..",
        ".",
        "",
        "src",
        "shop.db",
        "t",
        "p=1",
        ".published",
        "load",
        "copy.t",
        "x...",
        "landing",
        "dst",
        ".cmroot",
        "a b",
        "%2e%2e",
        "é",
        "etc",
        "...",
        "..a",
    ]
)
locations = st.builds(
    lambda head, names: head + "/".join(names),
    st.sampled_from(
        ["/", "file:/", "file:///", f"{HOME}/", f"file:{HOME}/", "s3a://b/", "s3://../", "hdfs://n:1/", "/landing/"]
    ),
    st.lists(parts, max_size=9),
)


def below(place: str, top: str) -> bool:
    """Told by Python's own reading of paths."""
    path = posixpath.normpath(split_authority(place)[1])
    return path == top or path.startswith(top + "/")


def in_bounds(place: str) -> bool:
    return any(below(place, top) for top in (TARGET, EXTERNAL, MAPPED)) and not below(place, ROOT)


@settings(max_examples=1000)
@given(locations, st.none() | locations)
def test_no_location_leads_out_of_the_target(location: str, table: str | None) -> None:
    for find in (lambda: PLACEMENT.table("shop", location), lambda: PLACEMENT.inside("shop", table, location)):
        with contextlib.suppress(Refused, FormatError, UnknownPlace):
            place = find()
            assert in_bounds(place), place
            assert ".." not in place.split("/"), place


@given(st.lists(parts, min_size=1, max_size=6).map("/".join))
def test_a_name_is_below_exactly_when_no_reading_of_it_leads_elsewhere(path: str) -> None:
    """By the operating system's rules: joined and folded, it is what was joined."""
    joined = f"/top/{path}"
    exact = posixpath.normpath(joined) == joined and not path.startswith("/")
    assert is_below(path) == exact


@given(st.lists(parts, max_size=8).map(lambda names: "/" + "/".join(names)))
def test_a_folded_place_is_what_hadoop_makes_of_it(path: str) -> None:
    assert folded(path) == posixpath.normpath("/" + path.lstrip("/"))
    assert folded(folded(path)) == folded(path)


@given(st.lists(st.sampled_from(["..", ".", "a", "link", "loop", "b"]), max_size=8).map("/".join))
def test_a_resolved_place_is_where_the_system_finds_it(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    top = _tree(tmp_path_factory)
    place = f"{top}/{path}"
    try:
        found = resolved(place)
    except OSError as error:
        assert error.errno == errno.ELOOP and "loop" in path  # it is nowhere
        return
    assert found == os.path.realpath(found)
    if os.path.exists(place):
        assert os.path.samefile(place, found)


def _tree(factory: pytest.TempPathFactory) -> Path:
    """One for all examples: a directory, a link out of it, and one that leads round."""
    top = factory.getbasetemp() / "links"
    if not top.exists():
        (top / "a" / "b").mkdir(parents=True)
        (top / "a" / "link").symlink_to(factory.getbasetemp())
        (top / "link").symlink_to("a/b")
        (top / "a" / "b" / "link").symlink_to("../../link/..")
        (top / "loop").symlink_to("loop")
    return top


@given(st.lists(st.tuples(parts, parts).map("/".join), min_size=1, max_size=20))
def test_entries_are_looked_at_as_single_names_are(paths: list[str]) -> None:
    import pyarrow as pa

    rows = pa.table({"path": paths})
    try:
        check_entries(rows, "bucket")
        assert all(map(is_below, paths))
    except FormatError as error:
        first = next(path for path in paths if not is_below(path))
        assert "bucket" in error.message and repr(first) in error.message


def test_a_place_of_which_the_store_cannot_tell_is_not_taken_for_no_file(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(OSError):
        is_one_file(str(tmp_path / "circle"))
    assert not is_one_file(str(tmp_path / "none")) and not is_one_file(str(tmp_path))
