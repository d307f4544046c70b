"""Parts of the service's pages: what needs somebody, charts, times, and sessions of browsers."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest

from replicator.cli.main import cli
from replicator.core.config import parse_config
from replicator.service.alerts.alert_store import OpenAlert
from replicator.service.api_tokens import Identity, create_token, revoke_token
from replicator.service.browser_sessions import LASTS, csrf_of, is_csrf_of, session_of, sign_in, sign_out
from replicator.service.pages.chart import LagPoint, chart_of
from replicator.service.pages.needing import behind_text, needs
from replicator.service.pages.rendering import HERE, lines, said, schedule, when
from replicator.service.pages.root_routes import roots_of
from replicator.service.pages.visiting import safe_place
from replicator.service.store import ServiceStore
from replicator.service.web.views import JobView, PolicyView, RunView, ServiceStatus

STATUS = ServiceStatus("a", "a", 1, True, False, (), 0, 0, "1")
POLICY = PolicyView(
    "west", "thrift://a:1", "thrift://b:1", ("x",), 60.0, "current", 0, 0.0, 0, 900.0, None, "2026-01-01", ()
)
NOW = "2026-11-24T00:00:00.000+00:00"
RUN = RunView(
    "r1", "west", "west", ("replicator", "sync", "west"), "schedule", "", 0, NOW, NOW, NOW, NOW, 1.0, "failed", "", 1,
    "it broke", "mend it", "a"
)  # fmt: skip
JOB = JobView("west", "west", ("replicator", "sync", "west"), "every 60 s", NOW, False, "", "", None)


def test_nothing_needs_anybody_where_all_is_well() -> None:
    assert needs(STATUS, [POLICY], [JOB], []) == []
    assert needs(STATUS, [replace(POLICY, status="unknown", measured=None)], [JOB], []) == []  # not measured yet


def test_a_policy_its_job_and_its_alerts_are_one_need() -> None:
    late = replace(POLICY, status="late", lag_seconds=2460.0, lag_events=7, lag_bytes=2048)
    alerts = [
        OpenAlert("late:west", "1", "late", "west", "west is late", "", 5.0, None, {}),
        OpenAlert("headroom:west", "2", "headroom", "west", "little room", "keep more", 6.0, None, {}),
        OpenAlert("disk:west/cmroot", "3", "disk", "west/cmroot", "full", "free it", 7.0, None, {}),
        OpenAlert("late:east", "4", "late", "east", "over", "", 1.0, 2.0, {}),
    ]
    (need,) = needs(STATUS, [late], [replace(JOB, last=RUN)], alerts)
    texts = [(each.text, each.hint, each.since) for each in need.causes]
    assert texts == [
        ("41 min behind (objective 15 min): 7 events and 2.0 KiB wait", "", 5.0),
        ("the last run: failed: it broke", "mend it", NOW),
        ("little room", "keep more", 6.0),
        ("full", "free it", 7.0),
    ]
    assert (need.subject, need.place, need.run, need.next) == ("west", "/policies/west", "r1", NOW)


def test_one_cause_is_said_once_with_its_hint() -> None:
    broken = "cannot connect to standby:9083: refused"
    blocked = replace(POLICY, status="blocked", trouble=(f"target: {broken}", f"the run at 9:00 failed: {broken}"))
    failed = replace(RUN, message=broken, hint="start it")
    (need,) = needs(STATUS, [blocked], [replace(JOB, last=failed)], [])
    assert [(each.text, each.hint) for each in need.causes] == [(f"target: {broken}", "start it")]
    assert behind_text(blocked) == "how far it is behind is not known"


def test_the_service_itself_comes_first() -> None:
    found = needs(replace(STATUS, led=False, paused=True), [], [replace(JOB, last=RUN)], [])
    assert [each.subject for each in found] == ["", "west"] and len(found[0].causes) == 2


def test_a_policy_that_cannot_be_measured_says_so() -> None:
    assert behind_text(replace(POLICY, lag_seconds=None)) == "how far it is behind is not known yet"
    assert behind_text(POLICY) == "nothing waits"


@pytest.mark.parametrize("lags", [(0.0, 0.0), (1.0, 5.0), (0.0, 9e5), (3e8, 1.0)])
def test_a_chart_has_its_points_inside_and_few_lines(lags: tuple[float, float]) -> None:
    chart = chart_of([], [LagPoint(100.0 * at, lag) for at, lag in enumerate(lags)], 60.0)
    assert chart is not None and len(chart.points) == 2 and chart.objective is not None and len(chart.across) <= 5
    assert all(chart.left <= each.x <= chart.right and 0 <= each.y <= chart.bottom for each in chart.points)


def test_one_point_is_no_chart() -> None:
    assert chart_of([], [], None) is chart_of([LagPoint(1.0, 2.0)], [LagPoint(1.0, 2.0)], None) is None


def test_a_line_has_gaps_where_nobody_knows_and_keeps_its_peaks() -> None:
    lags = [LagPoint(30.0 * at, 99.0 if at == 1000 else None if at == 2000 else 1.0) for at in range(2880)]
    chart = chart_of(lags, [LagPoint(-60.0, 7.0), LagPoint(600.0, 2.0, ill=True)], None)
    assert chart is not None and len(chart.lines) == 2 and [each.ill for each in chart.points] == [True]
    heights = [float(pair.split(",")[1]) for line in chart.lines for pair in line.split()]
    assert len(heights) <= 240 and min(heights) < chart.bottom / 4, "the peak is drawn"


def test_times_are_relative_with_the_absolute_one_at_hand() -> None:
    text = when(time.time() - 660)
    assert re.fullmatch(r'<time datetime="\S+\+00:00" title="[\d-]+ [\d:]+ UTC">11 min ago</time>', text), text
    assert when(time.time() + 38).endswith(("in 38 s</time>", "in 37 s</time>"))
    assert when(None) == "" and when("<b>") == "&lt;b&gt;" and when(1e300) == "1e+300"


def test_a_log_neither_marks_up_nor_turns_around() -> None:
    assert lines("<b>\nx\u202ey\x1b[2J") == "&lt;b&gt;\nx\\u202ey\\x1b[2J"


def test_what_stands_between_backticks_is_code() -> None:
    assert said("run `a <b>` or `c`\n, not <d>") == "run <code>a &lt;b&gt;</code> or <code>c</code>\\n, not &lt;d&gt;"
    assert said("one ` alone") == "one ` alone" and said("") == ""


def test_schedules_are_written_as_people_say_them() -> None:
    assert schedule("every 86400 s") == "every 24.0 h" and schedule("every 300 s") == "every 5 min"
    assert schedule("every 1e+06 s") == "every 11.6 d" and schedule("cron 1 2 * * * UTC") == "cron 1 2 * * * UTC"


def test_no_template_has_scripts_styles_or_foreign_places() -> None:
    for file in (HERE / "templates").iterdir():
        text = file.read_text()
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:|https?://|\|\s*safe\b", text), file
        assert all("src=" in each for each in re.findall(r"<script[^>]*>", text)), file


def test_command_lines_on_pages_are_some() -> None:
    found = 0
    for file in (HERE / "templates").iterdir():
        text = re.sub(r'"?\s~.*?(~ "|\)| \}\})|\{\{.*?\}\}|\{%.*?%\}', "X", file.read_text())
        for line in re.findall(r"\breplicator ((?:[a-z-]+ )*[a-z-]+[^\n<\"`\\;]*)", text):
            command: click.Command | None = cli
            for word in (words := line.split()):
                if not isinstance(command, click.Group) or command.get_command(click.Context(command), word) is None:
                    break
                command = command.get_command(click.Context(command), word)
            if command is cli or command is None:
                assert not re.match(r"[a-z]+ --", line), (file.name, line)
                continue  # a sentence about replicator
            options = {option for each in command.params for option in each.opts}
            assert {each for each in words if each.startswith("--")} <= options, (file.name, line)
            found += 1
    assert found > 10


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("/jobs/a?x=1", "/jobs/a?x=1"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/a\r\nSet-Cookie: x", "/"),
        ("", "/"),
    ],
)
def test_signing_in_leads_to_this_server_only(given: str, place: str) -> None:
    assert safe_place(given) == place


def test_a_root_is_seen_by_who_may_see_all_its_policies() -> None:
    keys = {"source": "thrift://a:1", "target": "thrift://b:1", "databases": "d", "dumps": "/d"}
    names = {"west": "/cm", "east": "/cm", "north": "/other"}
    policies = {name: {**keys, "cmroot": root, "target_cmroot": f"/{name}"} for name, root in names.items()}
    config = parse_config({"policies": policies, "defaults": {"cmroot": "/mine"}}, "x")

    def seen(*allowed: str) -> set[str]:
        return {each.place for each in roots_of(config, Identity("me", "viewer", allowed))}

    assert seen() == {"/cm", "/other", "/mine", "/west", "/east", "/north"}
    assert seen("west") == {"/west"}
    assert seen("west", "east") == {"/cm", "/west", "/east"}
    assert seen("north") == {"/other", "/north"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ServiceStore]:
    with ServiceStore(f"sqlite:///{tmp_path}/s.sqlite") as made:
        made.prepare()
        yield made


def test_a_session_ends_with_its_token(store: ServiceStore, tmp_path: Path) -> None:
    token = create_token(store, "me", "operator", ["west"], 1000.0)
    assert sign_in(store, "rpl_wrong") is None
    cookie = sign_in(store, token)
    assert cookie is not None
    found = session_of(store, cookie)
    assert found is not None and (found.name, found.role, found.policies) == ("me", "operator", ("west",))
    assert session_of(store, cookie + "x") is None and session_of(store, token) is None
    stored = (tmp_path / "s.sqlite").read_bytes()
    assert cookie.encode() not in stored and token.encode() not in stored
    revoke_token(store, "me")
    assert session_of(store, cookie) is None
    create_token(store, "me", "admin", [], 1000.0)
    assert session_of(store, cookie) is None  # of another token, though of the same name


def test_a_session_ends_by_time_and_by_signing_out(store: ServiceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    brief = sign_in(store, create_token(store, "brief", "viewer", [], 100.0))
    token = create_token(store, "me", "viewer", [], 10 * LASTS)
    mine, other = sign_in(store, token), sign_in(store, token)
    assert brief and mine and other
    sign_out(store, other)
    sign_out(store, other)
    assert session_of(store, other) is None and session_of(store, mine) is not None
    begun = store.now()
    monkeypatch.setattr(ServiceStore, "_now", lambda self, connection: begun + 200)
    assert session_of(store, brief) is None and session_of(store, mine) is not None
    monkeypatch.setattr(ServiceStore, "_now", lambda self, connection: begun + LASTS + 1)
    assert session_of(store, mine) is None


def test_a_form_is_of_one_cookie() -> None:
    assert is_csrf_of("a", csrf_of("a"))
    assert not is_csrf_of("a", csrf_of("b")) and not is_csrf_of("a", "") and not is_csrf_of("a", "é\ud800")
