"""The order of a run: the longest first, files in parts, records that change only where times did."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_order import PART, SEED, UNKNOWN, estimates, refreshed, units

NODES = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.floats(0, 100)), min_size=1, unique_by=lambda t: t[:2]
)


@pytest.fixture(scope="module", autouse=True)
def by_time() -> Iterator[None]:
    """Also where the run itself has a random order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(SEED, raising=False)
        yield


@given(NODES)
def test_every_test_is_in_one_unit_and_long_units_come_first(tests: list[tuple[str, int, float]]) -> None:
    seconds = {f"{file}.py::t{number}": took for file, number, took in tests}
    found = units(list(seconds), seconds)
    assert sorted(node for part in found.values() for node in part) == sorted(seconds)
    sums = [sum(seconds[node] for node in part) for part in found.values()]
    assert sums == sorted(sums, reverse=True)
    for part, total in zip(found.values(), sums, strict=True):
        assert len({node.partition("::")[0] for node in part}) == 1
        assert total <= PART + max(seconds[node] for node in part)


def test_a_seed_changes_the_order_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {f"{file}.py::t{number}": 10.0 for file in "abcdef" for number in range(9)}
    before = units(list(seconds), seconds)
    monkeypatch.setenv(SEED, "7")
    once, again = units(list(seconds), seconds), units(list(seconds), seconds)
    assert list(once.items()) == list(again.items())
    assert list(once) != list(before) and once.keys() == before.keys()


def test_a_test_without_a_record_has_a_share_of_its_files_rest() -> None:
    record = {"a.py": {"": 3.0, "long": 9.0}}
    nodes = ["a.py::long", "a.py::x", "a.py::y", "b.py::new"]
    assert estimates(nodes, record) == {"a.py::long": 9.0, "a.py::x": 1.5, "a.py::y": 1.5, "b.py::new": UNKNOWN}


def test_a_record_is_written_again_where_times_changed() -> None:
    record = {"a.py": {"": 0.6, "long": 10.0, "gone": 5.0}}
    measured = {"a.py::long": 11.0, "a.py::x": 0.3, "a.py::slow": 4.04}
    assert refreshed(record, measured) == {"a.py": {"": 0.6, "long": 10.0, "slow": 4.0}}
    assert refreshed(record, {"a.py::long": 20.0})["a.py"]["long"] == 20.0
