"""Drawings of the pages about roots and tables."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from replicator.service.pages.chart import LagPoint, lifeline_of, size_chart_of


def entry(at: str, kind: str, what: str = "x", text: str = "") -> dict[str, Any]:
    return {"at": f"2026-11-{at}:00:00.000+00:00", "kind": kind, "what": what, "text": text}


def test_a_life_has_a_lane_for_each_kind_and_a_dot_for_each_moment() -> None:
    life = [entry("02T00", "record"), entry("03T00", "run", text="failed: 0 records"), entry("04T00", "removal")]
    drawing = lifeline_of(life)
    assert drawing is not None
    assert [each.text for each in drawing.lanes] == ["changes", "runs", "removals"]
    assert [each.ill for each in drawing.dots] == [False, True, False]
    assert [each.x for each in drawing.dots] == [drawing.left, (drawing.left + drawing.right) / 2, drawing.right]
    assert len({each.y for each in drawing.dots}) == 3 and all(each.y < drawing.height for each in drawing.dots)
    assert (drawing.below[0].text, drawing.below[-1].text) == ("Nov 02", "Nov 04")
    assert lifeline_of(life[:1]) is None and lifeline_of([]) is None


def test_of_what_falls_on_one_place_the_worst_is_drawn() -> None:
    same = [entry("02T00", "verification", "same"), entry("02T00", "verification", "differs")]
    drawing = lifeline_of([*same, entry("09T00", "record")])
    assert drawing is not None and [each.ill for each in drawing.dots] == [False, True]
    many = [entry(f"0{day}T{hour:02}", "record") for day in range(1, 10) for hour in range(24)] * 20
    drawing = lifeline_of(many)
    assert drawing is not None and len(drawing.dots) <= 216


def test_a_size_has_an_axis_of_binary_units_and_gaps_where_nobody_knows() -> None:
    points = [LagPoint(0.0, 3 << 20), LagPoint(3600.0, None), LagPoint(7200.0, 9 << 20), LagPoint(10_800.0, 8 << 20)]
    chart = size_chart_of(points)
    assert chart is not None and chart.objective is None and chart.points == []
    assert [each.text for each in chart.across] == ["0 B", "4.0 MiB", "8.0 MiB"]
    assert [len(each.split()) for each in chart.lines] == [1, 2]
    assert [each.text for each in chart.values] == ["3.0 MiB", "not known", "9.0 MiB", "8.0 MiB"]
    strips = [(each.x, each.x + each.width) for each in chart.values]
    assert all(left[1] == right[0] for left, right in pairwise(strips)), "a pointer is over one value anywhere"
    assert size_chart_of(points[:1]) is None
