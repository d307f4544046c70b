"""Chains of dumps: what each needs, and what an expiry keeps, from any history."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.captures.dumps.data import Found, Keep, decide, needs_of
from replicator.captures.dumps.layout import DumpData, DumpMetadata, Earlier, Point, Scope

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def dump(id: str, day: float, begin: int | None, end: int, *earlier: str, **more: Any) -> DumpMetadata:
    values: dict[str, Any] = {
        "id": id,
        "kind": "bootstrap" if begin is None else "incremental",
        "created": (START + timedelta(days=day)).isoformat(timespec="seconds"),
        "scope": Scope(("sales",)),
        "source": "thrift://a:9083",
        "root": "/cm",
        "root_id": "r",
        "begin": None if begin is None else Point(begin, begin, 0),
        "end": Point(end, end, 0),
        "locations": {},
        **dict.fromkeys(("records", "files", "removed", "bytes", "observed", "buckets"), 0),
        "data": DumpData(1, 10, len(earlier), tuple(Earlier(each, f"/d/{each}") for each in earlier)),
    }
    return DumpMetadata(**{**values, **more})


def found(*dumps: DumpMetadata) -> Found:
    return {each.id: each for each in dumps}


WEEK = found(dump("b", 0, None, 10), *(dump(f"i{n}", n, 10 * n, 10 * n + 10) for n in range(1, 7)))
"""A bootstrap, and an increment on each day after it, made by a slot: without references."""


def decided(dumps: Found, **periods: int) -> tuple[set[str], list[str]]:
    kept, removed = decide(dumps, Keep(periods), START.timestamp())
    assert set(kept) | set(removed) == set(dumps) and not set(kept) & set(removed)
    return set(kept), removed


def test_a_kept_increment_keeps_all_before_it() -> None:
    assert needs_of(WEEK)["i3"] == (["b", "i1", "i2"], False)
    assert decided(WEEK, last=1) == (set(WEEK), [])


def test_a_later_bootstrap_frees_the_chain_before_it_the_dependent_first() -> None:
    dumps = WEEK | found(dump("c", 7, None, 80), dump("j", 8, 80, 90, "c"))
    assert decided(dumps, last=2) == ({"c", "j"}, ["i6", "i5", "i4", "i3", "i2", "i1", "b"])
    assert decided(dumps, daily=3)[0] == set(dumps), "the third is an increment of the old chain"


def test_the_newest_of_each_period_is_kept() -> None:
    days = found(*(dump(f"b{hours}", hours / 24, None, hours) for hours in range(0, 24 * 40, 6)))
    assert decided(days, daily=2)[0] == {"b954", "b942"}
    assert decided(days, monthly=5)[0] == {"b954", "b726"}
    assert decided(days, weekly=2)[0] == {"b954", "b918"}
    kept, _ = decide(days, Keep({}, timedelta(days=1)), (START + timedelta(days=39, hours=18)).timestamp())
    assert set(kept) == {"b954", "b948", "b942", "b936", "b930"}


def test_scopes_and_sources_are_counted_apart_and_plain_dumps_are_not_touched() -> None:
    dumps = found(
        dump("a1", 0, None, 1),
        dump("a2", 1, None, 2),
        dump("other scope", 0, None, 1, scope=Scope(("hr",))),
        dump("other source", 0, None, 1, root_id="s"),
        dump("plain", 0, None, 1, data=None),
    )
    kept, removed = decide(dumps, Keep({"last": 1}), 0)
    assert (set(kept), removed) == ({"a2", "other scope", "other source"}, ["a1"])


def test_a_chain_with_a_lost_dump_is_reported_as_broken() -> None:
    assert needs_of(found(dump("i", 1, 10, 20)))["i"] == ([], True)
    assert needs_of(found(dump("b", 0, None, 10), dump("i", 1, 10, 20, "lost", "b")))["i"] == (["b"], True)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 90)), min_size=1, max_size=25), st.data())
def test_no_history_has_a_broken_chain_after_an_expiry(
    history: list[tuple[bool, int, int]], data: st.DataObject
) -> None:
    dumps, end = Found(), 0
    for number, (bootstrap, back, day) in enumerate(history):
        end += 10
        earlier = list(dumps)[-1 - back] if len(dumps) > back else None
        if bootstrap or earlier is None:
            dumps[f"d{number}"] = dump(f"d{number}", day, None, end)
            continue
        since = dumps[earlier]
        referred = (
            (earlier, *(each.id for each in since.data.earlier)) if since.data and data.draw(st.booleans()) else ()
        )
        dumps[f"d{number}"] = dump(f"d{number}", day, since.end.position, end, *referred)
    sound = {name for name, (_, broken) in needs_of(dumps).items() if not broken}
    assert sound == set(dumps)
    periods = data.draw(st.dictionaries(st.sampled_from(["last", "daily", "weekly", "monthly"]), st.integers(1, 4)))
    _, removed = decide(dumps, Keep(periods), START.timestamp())
    for name in removed:  # at each step, as it may be the last
        del dumps[name]
        assert not any(broken for _, broken in needs_of(dumps).values())


@pytest.mark.parametrize("created", ["yesterday", ""])
def test_a_dump_of_no_time_stops_the_expiry(created: str) -> None:
    with pytest.raises(Exception, match="created at"):
        decide(found(dump("b", 0, None, 1, created=created)), Keep({"last": 1}), 0)
