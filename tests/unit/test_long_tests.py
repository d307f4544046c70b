"""The table of long tests names tests that exist, and those that prove the same."""

from __future__ import annotations

from long_tests import covered, mistakes

NODES = ["a.py::test_x[s3-1]", "a.py::test_x[hdfs-1]", "a.py::test_xy", "a.py::test_y"]


def test_a_name_covers_its_cases_and_a_star_is_anything() -> None:
    assert covered(NODES, ["a.py::test_x"]) == set(NODES[:2])
    assert covered(NODES, ["a.py::test_x[s3*", "a.py::test_y"]) == {NODES[0], NODES[3]}
    assert covered(NODES, ["a.py::test_x[s.*"]) == set()


def test_a_test_that_is_not_there_and_a_proof_that_is_long_are_told() -> None:
    table = {"a.py::test_x[s3*": ["a.py::test_x[hdfs*"], "a.py::gone": ["a.py::test_y", "a.py::test_xy"]}
    assert list(mistakes(table, NODES, NODES[1:2])) == [
        "a.py::gone is no test",
        "a.py::test_y is no test of every run, nor a long one without proofs",
        "a.py::test_xy is no test of every run, nor a long one without proofs",
    ]


def test_a_long_test_without_proofs_may_prove_others() -> None:
    table = {"a.py::test_x": [], "a.py::test_xy": ["a.py::test_x[s3*"], "a.py::test_y": ["a.py::test_xy"]}
    assert list(mistakes(table, NODES, [])) == ["a.py::test_xy is no test of every run, nor a long one without proofs"]
