"""Which refusals of a target are about one object, and which end a load."""

from __future__ import annotations

import pytest

from replicator.errors import MetastoreError, MetastoreUnreachable
from replicator.replay.apply.origins import Outcomes


def refuse(text: str = "MetaException: no") -> None:
    raise MetastoreError(text)


def test_one_that_is_refused_is_named_and_not_touched_again() -> None:
    outcomes, done = Outcomes(), list[str]()
    outcomes.attempt("db.bad", refuse)
    outcomes.attempt("db.bad", done.append, "partitions")
    outcomes.attempt("db.good", done.append, "table")
    assert done == ["table"]
    assert [(each.object, each.reason) for each in outcomes.refused()] == [
        ("db.bad", "the target's metastore does not take it: MetaException: no")
    ]


def test_a_server_that_is_away_ends_the_load() -> None:
    def away() -> None:
        raise MetastoreUnreachable("away")

    with pytest.raises(MetastoreUnreachable):
        Outcomes().attempt("db.t", away)


def test_a_server_that_refuses_everything_ends_the_load() -> None:
    outcomes = Outcomes()
    outcomes.attempt("db.t1", refuse)
    outcomes.attempt("db.t2", refuse)
    with pytest.raises(MetastoreError, match="no"):
        outcomes.attempt("db.t3", refuse)


def test_invalid_objects_alone_do_not() -> None:
    outcomes = Outcomes()
    for index in range(10):
        outcomes.attempt(f"db.t{index}", refuse, "InvalidObjectException: an odd name")
    assert len(outcomes.refused()) == 10


def test_many_refusals_among_fewer_successes_end_the_load() -> None:
    outcomes = Outcomes()
    outcomes.attempt("db.good", len, "")
    with pytest.raises(MetastoreError):
        for index in range(102):
            outcomes.attempt(f"db.t{index}", refuse)
    assert len(outcomes.refused()) == 101
