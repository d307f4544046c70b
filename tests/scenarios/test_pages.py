"""Pages of the service in a real Chromium: for everybody, with a keyboard, without scripts, on a telephone; and what
they refuse. Names and messages are full of markup."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
import web
from browser import page_of, violations, watched
from certificates import Authority
from housekeeping import LifecycleFixture
from names import unique
from remembered_purge import PURGE, remember_purge
from running_service import Service, hanging
from waiting import eventually

from cmroot.root import create_or_open
from replicator import cm_hold, legal_hold_add
from replicator.ingestion.ingestion_request import STEPS, Asset, Failure, Request
from replicator.ingestion.job_store import IngestionStore
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.policies.drill_record import Asked, Drill, Drills
from replicator.policies.memory import Compared, Memory, RoleChange, Run, Step
from replicator.service.api_tokens import Role, create_token, revoke_token
from replicator.service.series import RootSample, record_root
from replicator.service.store import ServiceStore

MARKUP = "<script>alert(1)</script>"
USUAL = {"width": 1280, "height": 720}
IMAGE = "<img src=x onerror=alert(2)>"
EXPIRES_AFTER = "beekeeper.expired.data.retention.period"
EXPIRES = {"beekeeper.remove.expired.data": "true", "beekeeper.expired.data.retention.period": "P3D"}


@dataclass
class World:
    """A server whose policy is in trouble, with a token of an admin's, and one of who sees another policy only."""

    service: Service
    token: str
    other: str
    root: str
    shop: str

    @property
    def url(self) -> str:
        return self.service.urls[0]

    @property
    def checked(self) -> str:
        """The run of a check."""
        return str(self.service.runs("check")[0]["id"])

    @property
    def hangs(self) -> str:
        """A run at work."""
        return str(self.service.runs("hangs")[0]["id"])

    @property
    def places(self) -> list[str]:
        """All pages."""
        run, job = self.service.runs(IMAGE)[0]["id"], f"/jobs/{quote(IMAGE)}"
        usage = f"/cmroot/usage?root={quote(self.root, safe='')}"
        some = ["/", "/policies/west", "/jobs", job, "/jobs/hangs", "/runs", f"/runs/{run}", "/runs?state=lost"]
        roots = ["/cmroot", usage, "/removals", f"/tables/{self.shop}.days", f"/tables/{self.shop}.none", "/drills"]
        roots += [
            "/legal-holds",
            "/audit?since=-1d",
            "/purges",
            f"/purges/{PURGE}",
            f"/removals/why?job=clean&path={quote(str(self.service.here))}/data/set",
        ]
        policies = [
            "/policies/west/restore-points",
            "/turns",
            "/policies",
            "/tables?search=day",
            "/tables/totals",
            "/plans",
            "/checks",
            "/alerts",
            f"/runs/{self.checked}",
            f"/runs/{self.hangs}",
        ]
        landing = ["/ingestion", "/ingestion/assets/crm", *(f"/ingestion/jobs/{number}" for number in (1, 2, 3))]
        return [*some, *policies, *roots, *landing, "/policies/none", "/sign-in?wrong=1"]


@pytest.fixture(scope="module")
def world(source_metastore: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    here, shop = tmp_path_factory.mktemp("pages"), unique("shop")
    with connect(source_metastore.uri) as metastore:
        life = LifecycleFixture(metastore, shop, here)
        life.partitioned("days", ["a", "<b>x"], **EXPIRES)
        life.run()
    root, target = life.root.place, str(here / "target")
    cm_hold("before", cmroot=root, reason=IMAGE)
    legal_hold_add("case", cmroot=root, pattern=f"{shop}.*", reason=MARKUP)
    remember_purge(root)
    _remember(Memory(create_or_open(target), "west"), shop)
    made = Service(here)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        jobs = {
            f'"{IMAGE}"': {"command": ["cm", "ls", "--cmroot", str(here / MARKUP)], "every": "1d"},
            "check": {"command": ["check", "west"], "every": "1d"},
            "clean": {"command": ["retention", "run", *_retention(here), "--cmroot", root, "--dry-run"], "every": "1d"},
            "hourly": {"command": ["ingest", "request", "crm:public.t", "--asset", "crm"], "cron": "0 * * * *"},
            "hangs": hanging(f"thrift://127.0.0.1:{listening.getsockname()[1]}", here),
        }
        west = {
            "source": source_metastore.uri,
            "target": "thrift://127.0.0.1:9",
            "databases": [shop, MARKUP],
            "cmroot": root,
            "target_cmroot": target,
            "dumps": str(here / "dumps"),
            "max_lag": "1m",
            "schedule": "1d",
        }
        made.configure(jobs, {"west": west}, {"ingestion.sources.crm": {"url": "jdbc:postgresql://crm/crm"}})
        _land(made.store)
        token, other = token_of(made, "me", "admin"), token_of(made, "east", "viewer", "east")
        _measure(made, root)
        url = f"{made.start()}/api/v1/jobs/west:run"  # by its schedule, it first runs within a minute
        assert web.post(url, json={}, headers={"Authorization": f"Bearer {token}"}).status_code == 202
        eventually(lambda: made.get("policies/west")["measured"])
        for job in (IMAGE, "west", "clean", "check"):
            eventually(lambda job=job: (runs := made.runs(job)) and runs[0]["ended"])  # type: ignore[misc]
        yield World(made, token, other, root, shop)
        made.stop()


def token_of(service: Service, name: str, role: Role, *policies: str) -> str:
    with ServiceStore(service.store) as store:
        store.prepare()
        return create_token(store, name, role, policies, 3600.0)


def _land(url: str) -> None:
    """An asset that nobody has approved, a job that was landed, one that failed, and one that waits."""
    with IngestionStore(url) as store:
        store.prepare()
        store.put_asset(Asset(name="crm", owner="olga", producers=("me",), note=MARKUP, created_by=IMAGE))
        more: list[dict[str, Any]] = [{}, {"max_loss": 0.75}, {"mode": "append", "watermark": "id", "late": "10m"}]
        for number, given in enumerate(more):
            asked = {"asset": "crm", "source": "crm", "schema": "public", "table": f"t{number}", "requested_by": "me"}
            store.submit(Request(**asked, **given))
        landed, failed = (store.claim("c", 60.0, 9, 1.0) for _ in range(2))
        assert landed and failed
        for step in STEPS[: STEPS.index("publish")]:
            store.step_done(landed, step, {"rows": 1002, "bytes": 4 << 20, "files": 3, "consistent": False})
        store.published(landed, 7, {"erased_rows": 2})
        store.done(landed)
        store.fail(failed, Failure("user", f"column {MARKUP} is not there", f"Traceback\n  {IMAGE}"))


def _measure(service: Service, root: str) -> None:
    """A root's size over some hours."""
    with ServiceStore(service.store) as store:
        store.prepare()
        for hour in range(1, 6):
            record_root(store, RootSample(root, store.now() - 3600 * hour, 10 * hour, hour << 20, None, ""))


def _retention(here: Path) -> list[str]:
    """The file of a job that keeps one version of two."""
    for number in (1, 2):
        (here / "data" / "set" / f"v{number}").mkdir(parents=True)
        (here / "data" / "set" / f"v{number}" / "part-0").write_text("four")
    settings = {
        "dataset.pattern": here / "data" / "*",
        "dataset.finder.class": "gobblin.data.management.retention.profile.ManagedCleanableDatasetFinder",
        "version.finder.class": "gobblin.data.management.version.finder.GlobModTimeDatasetVersionFinder",
        "selection.policy.class": "gobblin.data.management.policy.NewestKSelectionPolicy",
        "selection.newestK.versionsNotSelected": 1,
    }
    file = here / "clean.properties"
    file.write_text("".join(f"gobblin.retention.{key}={value}\n" for key, value in settings.items()))
    return [str(file), "--no-metastore"]


def _remember(memory: Memory, shop: str) -> None:
    """A history of runs and turns, differences, and a drill."""
    begin = datetime.now(UTC) - timedelta(hours=6)
    compared = Compared(open=(f"{shop}.days", f"{shop}.{IMAGE}"), open_count=2, ended=begin.isoformat())
    for number in range(12):
        at = begin + timedelta(minutes=20 * number)
        ill = number == 7
        memory.write_run(
            Run(
                id=f"r{number}",
                policy="west",
                started=at.isoformat(timespec="milliseconds"),
                ended=(at + timedelta(seconds=9)).isoformat(timespec="milliseconds"),
                kind="incremental",
                status="failed" if ill else "done",
                lag_seconds_bound=4.0 + 13 * (number % 5),
                records=number,
                error=MARKUP if ill else "",
                compared=compared if number == 11 else None,
            )
        )
    done = Step(name="check", status="done", started=begin.isoformat(), ended=begin.isoformat(), detail={"x": MARKUP})
    turn = RoleChange(id="t1", policy="west", verb="switchover", started=begin.isoformat(), by=IMAGE, steps=(done,))
    memory.write_role_change(msgspec.structs.replace(turn, ended=begin.isoformat()))
    memory.write_role_change(msgspec.structs.replace(turn, id="t2"))
    asked = Asked(query=f"SELECT '{MARKUP}'", outcome="failed", error=IMAGE)
    drill = Drill(
        id="d1",
        policy="west",
        started=begin.isoformat(),
        by="me",
        metastore="thrift://t:1",
        status="incomplete",
        ready_seconds=12.0,
        first_answer_seconds=48.25,
        torn_down=True,
        queries=[asked],
    )
    Drills(memory).write(drill)
    again = (begin + timedelta(hours=1)).isoformat()
    Drills(memory).write(
        msgspec.structs.replace(drill, id="d2", started=again, status="done", first_answer_seconds=31.5, queries=[])
    )


def visit(chromium: Any, world: World, place: str = "/", **person: Any) -> tuple[Any, list[str]]:
    """A page of a browser of its own, and what it complains of."""
    page = page_of(chromium, base_url=world.url, **person)
    complaints = watched(page)
    page.goto(place)
    return page, complaints


def sign_in(page: Any, token: str) -> None:
    page.goto("/sign-in?next=/jobs")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


# ---- to read ---------------------------------------------------------------------------------------------------------


def test_pages_are_in_groups_and_in_one_menu_on_a_phone(chromium: Any, world: World) -> None:
    page, _ = visit(chromium, world, viewport=USUAL, java_script_enabled=False)
    groups = page.get_by_role("navigation", name="Groups of pages")
    assert groups.inner_text().split("\n") == [
        *("Overview", "Replication", "Change log", "Removals", "Ingestion", "Service")
    ]
    assert page.get_by_text("Menu").is_hidden()
    for group, pages in (
        ("Replication", "Policies Tables Runs Plans Role changes Drills"),
        ("Change log", "$cmroot Find a file Recovery points"),
        ("Removals", "Pending removals Legal holds Purges Audit"),
        ("Service", "Jobs Checks Alerts Tokens Actions"),
    ):
        groups.get_by_role("link", name=group).click()
        assert page.get_by_role("navigation", name=f"Pages of {group}").inner_text().replace("\n", " ") == pages, group
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.locator("header").bounding_box()["height"] < 120 and groups.is_hidden()
    page.get_by_text("Menu").click()
    page.get_by_role("navigation", name="Menu").get_by_role("link", name="Audit").click()
    assert page.get_by_role("heading", level=1).inner_text().startswith("Audit")
    page.context.close()


def test_anybody_can_use_each_page(chromium: Any, axe: str, world: World) -> None:
    page, complaints = visit(chromium, world, viewport=USUAL)
    page.set_content("<title>x</title><img src='data:,'>")
    assert any("image-alt" in each for each in violations(page, axe))
    sign_in(page, world.token)
    for place in [*world.places, "/actions", "/tokens"]:
        page.goto(place)
        assert violations(page, axe) == [], place
        page.emulate_media(color_scheme="dark")
        assert violations(page, axe, ["color-contrast"]) == [], place
        page.emulate_media(color_scheme="light")
        assert page.locator("main img").count() == 0 and page.locator("script:not([src])").count() == 0, place
        for width in (320, 3840):
            page.set_viewport_size({"width": width, "height": 720})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, place
        page.set_viewport_size(USUAL)
    page.goto("/cmroot")
    page.get_by_role("columnheader", name="needed by").first.wait_for()  # parts that come by themselves
    page.get_by_label("Older than").wait_for()
    assert violations(page, axe) == []
    page.get_by_label("Table").fill(f"{world.shop}.days")
    page.get_by_role("button", name="Find").click()
    page.get_by_role("columnheader", name="from", exact=True).wait_for()
    assert "rows of" not in page.locator("tbody").inner_text() and page.locator("tbody tr").count() == 2
    assert violations(page, axe) == []
    assert [each for each in complaints if "404" not in each] == []
    page.context.close()


def test_names_and_messages_are_shown_and_not_obeyed(chromium: Any, world: World) -> None:
    page, complaints = visit(chromium, world)
    page.get_by_role("link", name=IMAGE).first.click()
    assert page.get_by_role("heading", level=1).inner_text().startswith(IMAGE)
    assert MARKUP in page.locator("main").inner_text()
    page.goto("/policies/west")
    page.get_by_text("Configuration, from").click()
    assert MARKUP in page.locator("main").inner_text()
    assert [each for each in complaints if "404" not in each] == []
    page.context.close()


def test_a_keyboard_is_enough(chromium: Any, world: World) -> None:
    page, _ = visit(chromium, world, "/jobs")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")
    seen = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert seen == "solid"
    wanted = page.evaluate("document.activeElement.href")
    page.keyboard.press("Enter")
    page.wait_for_url(wanted)
    page.context.close()


def test_everything_works_without_scripts(chromium: Any, world: World) -> None:
    page, _ = visit(chromium, world, "/cmroot", java_script_enabled=False)
    page.get_by_role("link", name="Count the files by need").click()
    assert page.get_by_role("heading", level=1).inner_text().startswith("Contents of")
    for place in world.places:
        page.goto(place)
        assert page.get_by_role("heading", level=1).inner_text(), place
    sign_in(page, world.token)
    page.goto("/jobs/hangs")
    page.get_by_label("Reason to pause").fill("without scripts")
    page.get_by_role("button", name="Pause").click()
    assert "Paused by me: without scripts" in page.locator("main").inner_text()
    page.get_by_role("button", name="Resume").click()
    assert "Paused by" not in page.locator("main").inner_text()
    page.goto("/removals")
    page.get_by_label("Hold ", exact=False).first.click()
    page.get_by_label("Reason to hold").fill(MARKUP)
    page.get_by_role("button", name="Hold").click()
    row = page.get_by_role("row").filter(has_text="data/set/v1").first
    hold = row.get_by_text("held by").inner_text().rpartition(" ")[2]
    page.get_by_role("link", name="Legal holds").last.click()
    page.get_by_label(f"Release {hold}").click()
    page.get_by_role("row").filter(has_text=hold).get_by_label("Reason to release").fill("over")
    page.get_by_role("row").filter(has_text=hold).get_by_role("button", name="Release").click()
    assert hold not in page.locator("main").inner_text()
    page.goto("/cmroot")
    page.get_by_label("Name of the hold").fill("again")
    page.get_by_label("Reason to hold").fill(MARKUP)
    page.get_by_role("button", name="Hold this recovery point").click()
    again = page.get_by_role("row").filter(has_text="again")
    assert f"{MARKUP} (me)" in again.inner_text()
    again.get_by_label("Release again").click()
    again.get_by_label("Reason to release").fill("over")
    again.get_by_role("button", name="Release").click()
    assert page.get_by_role("row").filter(has_text="again").count() == 0
    said = world.service.get("actions", headers={"Authorization": f"Bearer {world.token}"})["items"][:4]
    assert [each["action"] for each in said] == ["release hold", "hold", "release legal hold", "hold removal"]
    page.context.close()


def test_a_tables_life_is_on_one_line(world: World) -> None:
    page = web.get(f"{world.url}/tables/{world.shop}.days").text
    assert page.count("<circle") >= 3 and f"replicator restore west --db {world.shop} --table days --to " in page
    said = web.get(f"{world.url}/tables/{world.shop}.days", params={"format": "json"}).json()
    assert {each["kind"] for each in said["entries"]} == {"record", "run", "hold"}
    assert [each["at"] for each in said["entries"]] == sorted((each["at"] for each in said["entries"]), reverse=True)
    (removal,) = web.get(f"{world.url}/tables/a.b?format=json&kind=removal").json()["entries"]
    assert "erased" in removal["text"] and not removal["restore"]
    asked = {"kind": "record", "since": "-1d", "format": "json"}
    assert {
        each["kind"] for each in web.get(f"{world.url}/tables/{world.shop}.days", params=asked).json()["entries"]
    } == {"record"}
    assert "2026-03-01T12:00:00Z" in web.get(f"{world.url}/tables/{world.shop}.days?since=soon").text  # what to write
    assert "of this kind and time" in web.get(f"{world.url}/tables/{world.shop}.days?since=2999-01-01").text


def test_a_root_that_no_job_expires_says_so(world: World) -> None:
    page = web.get(f"{world.url}/cmroot/expiry?root={quote(world.root, safe='')}").text
    assert "No job expires this root" in page and "is given or configured" not in page
    page = web.get(f"{world.url}/cmroot/expiry?root={quote(world.root, safe='')}&older_than=0s").text
    assert "the next expiry removes" in page
    usage = web.get(f"{world.url}/cmroot/usage?root={quote(world.root, safe='')}").text
    assert "nobody" not in usage


def test_what_leaves_says_why_how_much_and_what_is_not_known(world: World) -> None:
    page = web.get(f"{world.url}/removals?format=json").json()
    leaving = {(each["job"], each["object"]): each for _, some in page["days"] for each in some}
    expires, old = leaving["housekeeping", f"{world.shop}.days"], leaving["retention", ""]
    assert expires["held"] == "case" and expires["bytes"] and expires["setting"] == EXPIRES_AFTER
    assert (old["bytes"], old["path"]) == (4, f"{world.service.here}/data/set/v1") and not old["held"]
    days = {(each["job"], each["items"]) for each in page["upcoming"]["found"]["removals"]}
    assert days == {("housekeeping", 2), ("retention", 1)} and page["upcoming"]["found"]["lacking"]
    text = web.get(f"{world.url}/removals/why?job=clean&path={world.service.here}/data/set").text
    assert "clean.properties:5" in text
    client, _ = session(world.url, world.token)
    mine = {"csrf": mark(client.get("/removals").text)}
    for fields in ({"on": "", "reason": "x"}, {"on": "a.b", "reason": " "}, {"on": "a\nb", "reason": "x"}):
        assert client.post("/removals/hold", data={**mine, **fields}).status_code == 400, fields
    assert client.post("/removals/hold", data={**mine, "root": "/etc", "on": "a.b"}).status_code == 404
    assert client.post("/cmroot/hold", data={**mine, "name": "../x", "reason": "x"}).status_code == 400
    assert client.get("/cmroot/find?path=%00").status_code == 400


def test_ingestion_says_who_waits_and_what_failed_and_its_forms_act(chromium: Any, world: World) -> None:
    page, _ = visit(chromium, world, "/ingestion", java_script_enabled=False)
    main = page.locator("main").inner_text()
    for part in (
        "0 of 4 slots in use, at most 2 of one asset",
        "1 queued, 1 failed (request)",
        "100.0%",
        "1,002",
        "4.0 MiB",
    ):
        assert part in main, part
    assert f"column {MARKUP} is not there" in main and "Traceback" not in main and "waits for approval" in main
    sign_in(page, world.token)
    page.goto("/ingestion")
    page.get_by_role("link", name="2", exact=True).click()
    assert "2 left out" not in page.locator("main").inner_text()
    page.get_by_text("The error in detail").click()
    assert f"Traceback\n  {IMAGE}" in page.get_by_label("Error").inner_text()
    page.goto("/ingestion/jobs/1")
    assert "2 left out; the source still has them" in page.locator("main").inner_text()
    assert page.get_by_role("button", name="Cancel").count() == 0, "it is done"
    page.goto("/ingestion/jobs/2")
    assert "75% of the landed rows" in page.locator("main").inner_text()
    page.goto("/ingestion/jobs/3")
    assert "up to 10m after greater values of the watermark" in page.locator("main").inner_text()
    page.get_by_label("Reason to cancel").fill("not needed")
    page.get_by_role("button", name="Cancel").click()
    assert "Cancelled by me." in page.locator("main").inner_text()
    page.get_by_role("link", name="crm", exact=True).click()
    schedule = page.get_by_role("table", name="Schedules").inner_text()
    assert "hourly" in schedule and "ingest request crm:public.t --asset crm" in schedule and "in " in schedule, (
        schedule
    )
    page.get_by_label("Reason to approve").fill(MARKUP)
    page.get_by_role("button", name="Approve").click()
    assert "Approved by me." in page.locator("main").inner_text()
    page.context.close()


def test_drills_and_purges_show_their_figures(world: World) -> None:
    page = web.get(f"{world.url}/drills").text
    assert page.index("31.5 s") < page.index("48.2 s") and "12.0 s" in page
    for place in ("/purges", f"/purges/{PURGE}"):
        page = web.get(world.url + place).text
        for part in ("not everything was searched", "3 ids", "gdpr.ids:id", "a.b: no reader"):
            assert part in page, (place, part)
    assert "5 rows erased" in page and "a reason" in page


def test_only_what_has_changed_is_swapped(chromium: Any, world: World) -> None:
    page = page_of(chromium, base_url=world.url)
    page.clock.install()
    sign_in(page, world.token)
    page.goto("/jobs")
    page.get_by_role("link", name="hangs").focus()
    page.evaluate("document.querySelector('tbody').remembered = true")
    page.evaluate("document.querySelector('.as-of time').setAttribute('title', 'old')")
    page.evaluate("document.querySelector('#live').removeAttribute('hx-headers')")  # as if it had changed
    with page.expect_response(lambda answer: answer.request.headers.get("hx-request") == "true"):
        page.clock.run_for(11_000)
    page.wait_for_function("document.querySelector('.as-of time').title !== 'old'")
    assert page.evaluate("document.querySelector('tbody').remembered === true")
    assert page.evaluate("document.activeElement.innerText") == "hangs"
    page.context.close()


def test_a_policy_says_what_to_do_with_its_own_values(chromium: Any, world: World) -> None:
    page, _ = visit(chromium, world, viewport=USUAL)
    assert (
        f"2 tables differ from the source: {world.shop}.{IMAGE}, {world.shop}.days"
        in page.locator(".troubles").inner_text()
    )
    page.get_by_role("link", name="What to do, step by step").click()
    page.wait_for_url("**/policies/west#runbook")
    main = page.locator("main").inner_text()
    config = world.service.here / "replicator.toml"
    for line in ("sync west", "switchover west --to target", "repair west --dry-run"):
        assert f"replicator --config {config} {line}" in main, line
    book = page.get_by_role("link", name="repair-a-replica").get_attribute("href")
    assert "<h1>Repair a replica" in web.get(f"{world.url}{book}").text
    assert web.get(f"{world.url}/runbooks/..%2Findex").status_code == 404
    assert page.locator("#differences ~ ul").first.inner_text().splitlines() == [
        f"{world.shop}.{IMAGE}",
        f"{world.shop}.days",
    ]
    assert "differs from the source" in page.get_by_role("heading", name="Warnings").locator("+ ul").inner_text()
    assert page.locator(".chart .tick").count() == 22 and page.locator(".chart .tick-ill").count() >= 2
    page.set_viewport_size({"width": 320, "height": 700})
    drawn = page.locator(".chart:visible")
    assert drawn.count() == 1
    for box in [drawn.locator("text").nth(each).bounding_box() for each in range(drawn.locator("text").count())]:
        assert box["height"] >= 12 and box["x"] >= 0 and box["x"] + box["width"] <= 320, box
    page.context.close()


def test_turns_and_checks_are_those_that_somebody_may_see(world: World) -> None:
    page = web.get(f"{world.url}/turns").text
    assert "A switchover is unfinished" in page and "switchover west --to target" in page and "scripts" not in page
    page = web.get(f"{world.url}/checks").text
    assert "thrift://127.0.0.1:9" in page and '<span class="ill">critical</span>' in page
    with web.client(base_url=world.url) as client:
        client.headers["Authorization"] = f"Bearer {world.other}"
        for place in ("/turns", "/checks"):
            assert "/policies/west" not in client.get(place).text, place
        assert client.get("/policies/west/restore-points").status_code == 403


def test_a_run_shows_its_progress_while_it_is_at_work(world: World) -> None:
    task = {"title": "copy", "steps": 1, "of_steps": 4, "files": 2, "bytes": 2 << 20, "of_bytes": 8 << 20, "seconds": 2}
    asked = {"json": {"reason": "look"}, "headers": {"Authorization": f"Bearer {world.token}"}}

    def shown() -> str:
        """The page of a run at work, and its progress as a file that its command may write again meanwhile."""
        run = web.post(f"{world.url}/api/v1/jobs/hangs:run", **asked).json()["run"]
        file = world.service.here / "logs" / run / "progress.json"
        if not file.parent.exists():
            return ""
        file.write_text(json.dumps({"tasks": [task]}))
        page = web.get(f"{world.url}/runs/{run}").text
        return page if "<progress" in page else ""

    page = eventually(shown)
    assert "1 of 4, 2 files, 2.0 MiB of 8.0 MiB" in page and '<progress max="8388608" value="2097152"' in page
    assert "left</p>" in page and 'hx-trigger="every 2s"' in page
    page = web.get(f"{world.url}/runs/{world.service.runs(IMAGE)[0]['id']}").text
    assert page.count("<details><summary>Its answer, as JSON</summary>") == 1


# ---- to act ----------------------------------------------------------------------------------------------------------


def test_a_person_signs_in_acts_and_signs_out(chromium: Any, world: World) -> None:
    page, complaints = visit(chromium, world, "/jobs/hangs")
    assert page.get_by_role("button").count() == 0  # nobody may act
    sign_in(page, "rpl_wrong")
    assert "wrong, revoked or expired" in page.get_by_role("alert").inner_text()
    sign_in(page, world.token)
    page.wait_for_url("**/jobs")
    page.goto("/jobs/hangs")
    page.get_by_label("Reason to pause").fill(f"month's end {MARKUP}")
    page.get_by_role("button", name="Pause").click()
    page.get_by_text(f"Paused by me: month's end {MARKUP}").wait_for()
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Run now").click()
    page.wait_for_url("**/runs/*")  # the one that is at work
    page.get_by_label("Reason to cancel").fill("enough")
    page.get_by_role("button", name="Cancel this run").click()
    page.get_by_text("cancellation requested by me").wait_for()
    page.goto("/actions")
    assert "enough" in page.locator("tbody tr").first.inner_text()
    said = world.service.get("actions", headers={"Authorization": f"Bearer {world.token}"})["items"][:4]
    assert [(each["action"], each["reason"]) for each in said] == [
        ("cancel", "enough"),
        ("run", ""),
        ("resume", ""),
        ("pause", f"month's end {MARKUP}"),
    ]
    page.get_by_role("button", name="Sign out").click()
    page.goto("/jobs/hangs")
    assert page.get_by_role("button").count() == 0
    assert complaints == []
    page.context.close()


def session(url: str, token: str, **more: Any) -> tuple[httpx.Client, httpx.Response]:
    """A client that has signed in, and what it was answered."""
    client = web.client(base_url=url, **more)
    fields = {"csrf": mark(client.get("/sign-in").text), "token": token, "next": "//evil.example"}
    return client, client.post("/sign-in", data=fields)


def mark(text: str) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', text)
    assert found, text
    return found[1]


def test_a_form_is_taken_from_its_own_page_only(world: World) -> None:
    client, answer = session(world.url, world.token)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("replicator-session=") and "secure" not in cookie.lower()
    assert all(each in cookie for each in ("HttpOnly", "SameSite=strict", "Max-Age=43200", "Path=/"))
    place, own = "/jobs/hangs/pause", mark(client.get("/jobs/hangs").text)
    other, _ = session(world.url, world.token)
    foreign = mark(other.get("/jobs/hangs").text)
    for fields, headers, status in (
        ({"reason": "x"}, {}, 403),
        ({"reason": "x", "csrf": foreign}, {}, 403),
        ({"reason": "x", "csrf": own}, {"Sec-Fetch-Site": "cross-site"}, 403),
        ({"reason": "x", "csrf": own}, {"Content-Type": "text/plain"}, 415),
        ({"reason": "x" * 70_000, "csrf": own}, {}, 413),
    ):
        assert client.post(place, data=fields, headers=headers).status_code == status, (fields, headers)
    assert web.post(world.url + place, data={"csrf": own}).status_code == 401
    assert web.post(f"{world.url}/sign-in", data={"csrf": own, "token": world.token}).status_code == 403
    assert client.post("/api/v1/jobs/hangs:pause", json={}).status_code == 401  # the API takes no cookies
    assert not world.service.get("jobs")["items"][-2]["paused"]
    assert client.post("/jobs/none/run", data={"csrf": own}).status_code == 404
    assert client.post(place, data={"reason": "x", "csrf": own}).status_code == 303
    assert client.post("/jobs/hangs/resume", data={"csrf": own}).status_code == 303


def test_a_policy_is_compared_and_repaired_from_its_page(world: World) -> None:
    client, _ = session(world.url, world.token)
    page = client.get("/policies/west").text
    own = {"csrf": mark(page), "reason": "looked at"}
    assert client.post("/policies/west/repair", data=own).status_code == 400  # the name was not typed
    assert client.post("/policies/west/verify", data=own | {"level": "none"}).status_code == 400
    assert client.post("/policies/west/verify", data=own | {"db": "hr"}).status_code == 400
    assert client.post("/policies/west/failover", data=own).status_code == 404
    assert client.post("/policies/west/drill", data={"reason": "x"}).status_code == 403
    for deed, more in (
        ("verify", {"level": "size", "db": world.shop}),
        ("repair", {"confirm": "west", "drop_extra": "true"}),
    ):
        asked = client.post(f"/policies/west/{deed}", data=own | more)
        assert asked.status_code == 303, asked.text
        run = world.service.get(asked.headers["location"].replace("/runs", "runs"))
        assert run["asked_by"] == "me" and run["reason"] == "looked at"
        wanted = {"verify": [f"--db={world.shop}", "--level=size"], "repair": ["--drop-extra"]}[deed]
        assert run["command"] == ["replicator", deed, "west", *wanted]


def test_a_session_may_what_its_token_may(world: World) -> None:
    client, _ = session(world.url, token_of(world.service, "eyes", "viewer", "west"))
    page = client.get("/jobs/west").text
    assert "eyes (viewer)" in page and "Run now" not in page
    assert client.post("/jobs/west/run", data={"csrf": mark(page)}).status_code == 403
    assert client.get("/jobs/hangs").status_code == 404 and client.get("/actions").status_code == 403
    with ServiceStore(world.service.store) as store:
        revoke_token(store, "eyes")
    assert "eyes" not in client.get("/").text


def test_pages_open_nothing_else(world: World) -> None:
    for place in ("/cmroot?root=/etc", "/removals?root=/", "/cmroot?policy=none", "/runs/none"):
        answer = web.get(world.url + place)
        assert answer.status_code == 404 and "<h1>" in answer.text, place
    for place in ("/assets/..%2Frendering.py", "/runs/..%2F..%2Fetc%2Fpasswd", "/assets/none"):
        assert web.get(world.url + place).status_code == 404, place
    assert web.get(world.url + "/assets/page.css%00").status_code == 400
    for place in world.places[:-2]:
        data = web.get(world.url + place, params={**_asked(place), "format": "json"})
        assert data.status_code == 200 and data.json(), place
    headers = web.get(world.url).headers
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert headers["cache-control"] == "no-store" and headers["x-content-type-options"] == "nosniff"
    assert "immutable" in web.get(f"{world.url}/assets/page.css").headers["cache-control"]


def _asked(place: str) -> dict[str, str]:
    return dict(httpx.URL(place).params)


def test_with_tls_a_session_is_bound_to_this_host(service: Service, tmp_path: Path) -> None:
    service.configure({})
    token = token_of(service, "me", "viewer")
    authority = Authority(tmp_path / "tls")
    certificate, key = authority.issue("server")
    url = service.start("--require-token", "--tls-certificate", certificate, "--tls-key", key)
    trusted = ssl.create_default_context(cafile=str(authority.ca))
    assert web.get(f"{url}/jobs?x=1", verify=trusted).headers["location"] == "/sign-in?next=%2Fjobs%3Fx%3D1"
    part = web.get(url, verify=trusted, headers={"HX-Request": "true"})
    assert (part.status_code, part.headers["hx-redirect"]) == (401, "/sign-in?next=%2F")
    assert web.get(url, verify=trusted, headers={"Authorization": f"Bearer {token}"}).status_code == 200
    assert web.get(url, verify=trusted, headers={"Authorization": "Bearer x"}).status_code == 401
    client, answer = session(url, token, verify=trusted)
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-replicator-session=") and "Secure" in cookie
    page = client.get("/").text
    assert "me (viewer)" in page and "replicator init" in page  # and says how to begin
    assert client.post("/sign-out", data={"csrf": mark(page)}).status_code == 303
    assert client.get("/").status_code == 303
