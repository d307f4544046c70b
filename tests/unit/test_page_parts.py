"""Parts of the service's pages: what needs somebody, charts, times, and sessions of browsers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from replicator.cli.main import cli
from replicator.core.config import parse_config
from replicator.ingestion.job_queries import AssetQueue, QueueFigures
from replicator.policies.lag import DatabaseLag, Lag
from replicator.policies.memory import Compared
from replicator.service.alerts import OpenAlert
from replicator.service.api_tokens import (
    LASTS,
    Identity,
    create_token,
    csrf_of,
    is_csrf_of,
    revoke_token,
    session_of,
    sign_in,
    sign_out,
)
from replicator.service.pages.attention import (
    MAX_AGE_SECONDS,
    Context,
    Differences,
    attention_items,
    behind_text,
    unresolved_runs,
)
from replicator.service.pages.chart import NARROW, WIDE, Frame, LagPoint, chart_of
from replicator.service.pages.page_routes import about_of, figures_of, tasks_of
from replicator.service.pages.rendering import HERE, lines, safe_place, said, schedule, when
from replicator.service.pages.root_routes import shown_roots
from replicator.service.pages.runbook import (
    REPOSITORY,
    RUNBOOKS,
    filled,
    kinds_of,
    runbook_html,
    runbook_names,
    values_of,
)
from replicator.service.runs import TOO_LONG, Ended, ServiceRun
from replicator.service.store import AdHocRun, ServiceStore
from replicator.service.web.policy_actions import changes_of
from replicator.service.web.responses import JobView, PolicyView, RunView, ServiceStatus

DOCS = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").exists()) / "docs"
STATUS = ServiceStatus("a", "a", 1, True, False, (), 0, 0, "1")
POLICY = PolicyView(
    "west",
    "thrift://a:1",
    "thrift://b:1",
    ("x",),
    60.0,
    "current",
    0,
    0.0,
    12.0,
    "2026-01-01T00:00:00+00:00",
    0,
    900.0,
    None,
    "2026-01-01T00:00:00+00:00",
    (),
)
NOW = "2026-11-24T00:00:00.000+00:00"
RUN = RunView(
    "r1", "west", "west", ("replicator", "sync", "west"), "schedule", "", 0, NOW, NOW, NOW, NOW, 1.0, "failed", "", 1,
    "it broke", "mend it", "a"
)  # fmt: skip
JOB = JobView("west", "west", ("replicator", "sync", "west"), "every 60 s", NOW, False, "", "", None)
MOMENT = datetime.fromisoformat(str(POLICY.measured)).replace(tzinfo=UTC).timestamp()
CONTEXT = Context(MOMENT)


def test_nothing_needs_anybody_where_all_is_well() -> None:
    assert attention_items(STATUS, [POLICY], [JOB], [], CONTEXT) == []
    assert (
        attention_items(STATUS, [replace(POLICY, status="unknown", measured=None)], [JOB], [], CONTEXT) == []
    )  # not measured yet


def test_ingestion_needs_somebody_where_no_request_is_to_blame() -> None:
    def found(failing: dict[str, int], waits: float | None = None, trouble: str = "") -> list[tuple[str, str]]:
        queue = QueueFigures({}, failing, (AssetQueue("crm", 0, 1, waits, 0),))
        made = attention_items(STATUS, [POLICY], [JOB], [], replace(CONTEXT, queue=queue, queue_trouble=trouble))
        return [(each.word, cause.text) for each in made for cause in each.causes]

    assert found({"user": 3, "type": 1}, 8000.0) == []
    assert found({"component": 1, "lock": 1}) == [("failing", "2 jobs failed, and will be retried")]
    assert found({}, 9001.0) == [("late", "a requested table has waited for a slot for 2.5 h")]
    assert found({}, None, "it is away") == [("unknown", "its state is unknown: it is away")]


def test_a_policy_its_job_and_its_alerts_are_one_need() -> None:
    late = replace(POLICY, status="late", lag_seconds=60.0, lag_seconds_bound=2460.0, lag_events=7, lag_bytes=2048)
    alerts = [
        OpenAlert("late:west", "1", "late", "west", "west is late", "", 5.0, None, {}),
        OpenAlert("headroom:west", "2", "headroom", "west", "little room", "keep more", 6.0, None, {}),
        OpenAlert("disk:west/cmroot", "3", "disk", "west/cmroot", "full", "free it", 7.0, None, {}),
        OpenAlert("late:east", "4", "late", "east", "over", "", 1.0, 2.0, {}),
    ]
    (need,) = attention_items(STATUS, [late], [replace(JOB, last=RUN)], alerts, CONTEXT)
    texts = [(each.text, each.hint, each.since) for each in need.causes]
    assert texts == [
        ("up to 41 min behind (objective 15 min): 7 events and 2.0 KiB wait", "", 5.0),
        ("the last run: failed: it broke", "mend it", NOW),
        ("little room", "keep more", 6.0),
        ("full", "free it", 7.0),
    ]
    assert (need.subject, need.place, need.run, need.next) == ("west", "/policies/west", "r1", NOW)


def test_a_policy_whose_side_is_away_is_not_in_sync() -> None:
    away = replace(POLICY, trouble=("source: refused",))
    (item,) = attention_items(STATUS, [away], [], [], CONTEXT)
    assert item.word == "unreachable", "its state is that of the last answer"


def test_one_cause_is_said_once_with_its_hint() -> None:
    broken = "cannot connect to standby:9083: refused"
    blocked = replace(POLICY, status="blocked", trouble=(f"target: {broken}", f"the run at 9:00 failed: {broken}"))
    failed = replace(RUN, message=broken, hint="start it")
    (need,) = attention_items(STATUS, [blocked], [replace(JOB, last=failed)], [], CONTEXT)
    assert [(each.text, each.hint) for each in need.causes] == [(f"target: {broken}", "start it")]
    assert behind_text(replace(blocked, lag_seconds_bound=None)) == "its lag is not known"


def test_a_retry_at_work_hides_no_failure() -> None:
    retry = replace(RUN, id="r2", state="running", ended=None, message="", hint="")
    context = replace(CONTEXT, ended={"west": RUN})
    (need,) = attention_items(STATUS, [POLICY], [replace(JOB, last=retry)], [], context)
    assert [(each.text, each.hint) for each in need.causes] == [("the last run: failed: it broke", "mend it")]
    assert (need.run, need.again, need.next) == ("r1", retry, None)
    assert attention_items(STATUS, [POLICY], [replace(JOB, last=retry)], [], CONTEXT) == []
    late = replace(RUN, state="cancelled", message=f"{TOO_LONG} of 5 s")
    assert attention_items(STATUS, [POLICY], [replace(JOB, last=late)], [], CONTEXT)


def test_open_differences_need_somebody_by_their_names() -> None:
    differs = Differences(7, tuple(f"hr.t{each}" for each in range(6)), NOW)
    (need,) = attention_items(STATUS, [POLICY], [JOB], [], replace(CONTEXT, differences={"west": differs}))
    (cause,) = need.causes
    assert cause.text == "7 tables differ from the source: hr.t0, hr.t1, hr.t2, hr.t3, hr.t4 and 2 more"
    assert cause.since == NOW and "repair" in cause.hint and (need.word, need.runbooks) == ("differs", ["differs"])


def test_what_was_measured_long_ago_is_not_good() -> None:
    assert attention_items(STATUS, [POLICY], [JOB], [], replace(CONTEXT, now=MOMENT + MAX_AGE_SECONDS)) == []
    (need,) = attention_items(STATUS, [POLICY], [JOB], [], replace(CONTEXT, now=MOMENT + MAX_AGE_SECONDS + 1))
    assert need.word == "unknown" and need.causes[0].since == POLICY.measured


def test_the_newest_run_that_tells_is_found_behind_those_that_do_not(store: ServiceStore) -> None:
    def run(name: str, state: str | None, message: str = "") -> str:
        id, _ = store.enqueue(AdHocRun(name, ("verify", "west"), "west"), store.now(), by="me")
        if state:
            store.end(id, Ended(state, message=message))  # type: ignore[arg-type]
        return id

    found = {"a": run("a", "failed"), "late": run("late", "cancelled", f"{TOO_LONG} of 5 s"), "b": run("b", "done")}
    for name, state in (("a", "cancelled"), ("a", None), ("b", None), ("none", "cancelled")):
        run(name, state)
    names = ["a", "late", "b", "none", "never", "more"]
    assert {name: each.id for name, each in store.newest_ended(names).items()} == found
    assert set(store.newest_ad_hoc_runs(names, ("done",))) == {"b"}


def test_differences_stay_until_all_was_compared_again(store: ServiceStore) -> None:
    def verify(state: str, *more: str) -> ServiceRun:
        id, _ = store.enqueue(AdHocRun("verify:west", ("verify", "west", *more), "west"), store.now(), by="me")
        store.end(id, Ended(state))  # type: ignore[arg-type]
        return store.run(id)

    differs = verify("differs", "--db=hr")
    part, whole = verify("done", "--db=hr"), verify("done")
    assert unresolved_runs([differs, part], None) == [differs] and unresolved_runs([differs, whole], None) == []
    ended = datetime.fromtimestamp((differs.ended or 0.0) + 60, UTC).isoformat()
    assert unresolved_runs([differs], Compared(ended=ended, oldest=50.0)) == []
    assert unresolved_runs([differs], Compared(ended=ended, oldest=70.0)) == [differs]
    assert unresolved_runs([differs], Compared(ended=ended, oldest=50.0, never=1)) == [differs]


def test_the_service_itself_comes_first() -> None:
    found = attention_items(replace(STATUS, led=False, paused=True), [], [replace(JOB, last=RUN)], [], CONTEXT)
    assert [each.subject for each in found] == ["", "west"] and len(found[0].causes) == 2


def test_a_policy_that_cannot_be_measured_says_so() -> None:
    assert behind_text(replace(POLICY, lag_seconds=None)) == "its lag is not known yet"
    as_of = "as of 2026-01-01 00:00:00 UTC, when the last complete scan began: at most 12 s behind"
    assert behind_text(POLICY) == as_of
    unscanned = replace(POLICY, lag_seconds_bound=None, covered_until=None)
    assert behind_text(unscanned) == "its lag is not known: no complete scan covers it"


@pytest.mark.parametrize("frame", [WIDE, NARROW])
@pytest.mark.parametrize("lags", [(0.0, 0.0), (1.0, 5.0), (0.0, 9e5), (3e8, 1.0)])
def test_a_chart_has_its_points_inside_and_few_lines(lags: tuple[float, float], frame: Frame) -> None:
    runs = [LagPoint(100.0 * at, lag) for at, lag in enumerate(lags)]
    chart = chart_of([], [*runs, LagPoint(50.0, None, ill=True, text="failed")], 60.0, frame)
    assert chart is not None and len(chart.points) == 2 and chart.objective is not None and len(chart.across) <= 5
    assert all(frame.left <= each.x <= chart.right and 0 <= each.y <= chart.bottom for each in chart.points)
    assert [(each.ill, each.text) for each in chart.ticks] == [(False, ""), (True, "failed"), (False, "")]


def test_one_point_is_no_chart() -> None:
    assert chart_of([], [], None) is chart_of([LagPoint(1.0, 2.0)], [LagPoint(1.0, 2.0)], None) is None


def test_a_line_has_gaps_where_nobody_knows_and_keeps_its_peaks() -> None:
    lags = [LagPoint(30.0 * at, 99.0 if at == 1000 else None if at == 2000 else 1.0) for at in range(2880)]
    chart = chart_of(lags, [LagPoint(-60.0, 7.0), LagPoint(600.0, 2.0, ill=True)], None)
    assert chart is not None and len(chart.lines) == 2 and [each.ill for each in chart.points] == [True]
    later = chart_of(lags[-20:], [LagPoint(600.0, 2.0)], None)
    assert later is not None and [each.x for each in later.ticks] == [WIDE.left], "runs from before it was measured"
    heights = [float(pair.split(",")[1]) for line in chart.lines for pair in line.split()]
    assert len(heights) <= 240 and min(heights) < chart.bottom / 4, "the peak is drawn"


def test_a_line_has_a_gap_where_nothing_was_measured() -> None:
    samples = [LagPoint(30.0 * number, 5.0) for number in range(100) if not 40 <= number < 60]
    chart = chart_of(samples, [], None)
    assert chart is not None and [len(each.split()) for each in chart.lines] == [40, 40]


def test_times_are_relative_with_the_absolute_one_at_hand() -> None:
    now = 1_767_225_600.0
    text = when(now - 660, now)
    assert text == '<time datetime="2025-12-31T23:49:00+00:00" title="2025-12-31 23:49:00 UTC">11 min ago</time>'
    assert when(now + 38, now).endswith(">in 38 s</time>") and when(now).endswith(" ago</time>")
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
        return {each.place for each in shown_roots(config, Identity("me", "viewer", allowed))}

    assert seen() == {"/cm", "/other", "/mine", "/west", "/east", "/north"}
    assert seen("west") == {"/west"}
    assert seen("west", "east") == {"/cm", "/west", "/east"}
    assert seen("north") == {"/other", "/north"}


def commands_of(page: str) -> str:
    """A page, with commands that go on in the next line as one."""
    return re.sub(r"\s+", " ", (DOCS / f"runbooks/{page}.md").read_text().replace("\\\n", " "))


@pytest.mark.parametrize("kind", RUNBOOKS)
def test_the_commands_of_a_runbook_are_those_of_its_page(kind: str) -> None:
    text = commands_of(RUNBOOKS[kind].page)
    for step in RUNBOOKS[kind].steps:
        assert not step.command or step.command.replace("{side}", "target") in text, step.command


def test_a_runbook_has_the_values_of_its_policy() -> None:
    keys = {"source": "thrift://a:1", "target": "thrift://b:1", "databases": ["hr", "x.*"], "dumps": "/d"}
    config = parse_config({"policies": {"west": {**keys, "cmroot": "/c", "target_cmroot": "/t"}}}, "/etc/our r.toml")
    lag = Lag("west", status="blocked", event=7, unreachable={"target": "refused"}, blocks=["the target..."])
    assert kinds_of(lag, (), differs=True) == ["replica-away", "differs"]
    (policy,) = config.policies.values()
    steps = filled("replica-away", values_of(policy, config.looked_for, lag)).steps
    assert steps[1].what.endswith("continue from event 7.")
    assert steps[1].command == "replicator --config '/etc/our r.toml' sync west"
    lag = replace(lag, reverse=True, event=None)
    assert kinds_of(lag, (), differs=False) == ["primary-away"]
    assert (
        filled("primary-away", values_of(policy, "c", lag))
        .steps[0]
        .command.endswith("--metastore thrift://b:1 --db hr")
    )
    both = DatabaseLag("hr", "hr", "current", source_role="primary at epoch 1", target_role="primary at epoch 3")
    warned = ["events 3 to 9 are gone: the next run compares every table"]
    lag = Lag("west", databases=[both], warnings=warned, blocks=["a switchover was begun at 9:00 and has not ended"])
    assert kinds_of(lag, (), differs=False) == ["two-primaries", "switchover", "lost-events"]
    assert kinds_of(None, {"late"}, differs=False) == ["behind"] and kinds_of(None, (), differs=False) == []


def test_progress_has_a_rate_and_what_is_left(tmp_path: Path) -> None:
    said = {"title": "copy", "steps": 2, "of_steps": 8, "bytes": 1000, "of_bytes": 5000, "files": 3, "seconds": 10.0}
    file = tmp_path / "progress.json"
    file.write_text(json.dumps({"tasks": [{"title": "load", "steps": 0, "of_steps": None, "seconds": 1.0}, said]}))
    written = file.stat().st_mtime
    outer, copy = tasks_of(tmp_path, written)
    assert (outer.unit, outer.of, outer.left, outer.quiet) == ("steps", None, None, None)
    assert (copy.unit, copy.rate, copy.left, copy.quiet) == ("bytes", 100.0, 40.0, None)
    assert tasks_of(tmp_path, written + 90)[1].rate == 10.0 and tasks_of(tmp_path, written + 90)[1].quiet == 90.0
    file.write_text("{")
    assert tasks_of(tmp_path, written) == tasks_of(tmp_path / "none", written) == []


def test_an_answer_is_told_in_figures_and_names() -> None:
    answer = {"files_copied": 3, "files_skipped": 0, "bytes_copied": 9, "bootstrapped": {"hr": "new"}, "warnings": []}
    assert [(name, value) for name, _, value in figures_of(answer)] == [("files_copied", 3), ("bytes_copied", 9)]
    assert about_of(answer | {"missing": [{"path": "/a", "why": ""}], "left": "x"}) == {
        "bootstrapped": ["hr: new"],
        "missing": ["path /a"],
    }


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ServiceStore]:
    with ServiceStore(f"sqlite:///{tmp_path}/s.sqlite") as made:
        made.prepare()
        yield made


def test_a_plan_names_everything_that_it_changes() -> None:
    gone = {"object": "d.t", "partition": "p=1", "files": 2, "bytes": 9, "why": "dropped", "partitions": 1}
    steps = {
        "create_tables": ["d.new"],
        "alter_tables": ["d.t"],
        "drop_tables": ["d.old"],
        "locations": {"d.new": "/w"},
    }
    load = {"steps": steps, "gone": [gone], "copies": [{"directory": "/w/new", "files": 3, "bytes": 7}]}
    found = changes_of({"loads": [load], "drops": ["d.old", "d.t/p=1", "left"]})
    assert [(each.does, each.object, each.files) for each in found] == [
        ("create", "d.new", None),
        ("alter", "d.t", None),
        ("drop", "d.old", None),
        ("copy", "/w/new", 3),
        ("drop", "d.t/p=1", 2),
        ("drop", "left", None),
    ]


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


@pytest.mark.parametrize("name", runbook_names())
def test_a_runbook_is_a_page_whose_links_lead_somewhere(name: str) -> None:
    html = runbook_html(name)
    links = re.findall(r'href="([^"#]*)', html)
    known = {f"/runbooks/{each}" for each in runbook_names()}
    known |= {f"{REPOSITORY}{each.name}" for each in DOCS.iterdir()}
    assert set(links) <= known and "<h1>" in html and "<table>" in html and "](" not in html
    assert {each.page for each in RUNBOOKS.values()} <= set(runbook_names())
