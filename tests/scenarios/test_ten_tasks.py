"""Ten tasks of a person in a real Chromium, each at most three clicks from the overview; with axe, on a dark phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import web
from browser import page_of, violations
from lab import Lab
from remembered_purge import remember_purge
from running_service import Service
from waiting import eventually

from replicator.ingestion.ingestion_request import Asset, Failure, Request
from replicator.ingestion.job_store import IngestionStore
from replicator.metastore.embedded.running import Running

MOST = 3
AWAY = {"source": "thrift://127.0.0.1:9", "target": "thrift://127.0.0.1:7", "databases": "d", "schedule": "1d"}


@dataclass
class Person:
    """Somebody at the overview, whose clicks are counted."""

    page: Any
    axe: str
    url: str
    lab: Lab
    service: Service
    clicks: list[str] = field(default_factory=list)

    @property
    def main(self) -> str:
        return str(self.page.locator("main").inner_text())

    def begins(self) -> None:
        self.clicks.clear()
        self.page.goto("/")

    def clicks_on(self, name: str | re.Pattern[str], role: str = "link", within: str = "body") -> None:
        self.clicks.append(str(name))
        self.page.locator(within).get_by_role(role, name=name).first.click()
        self.page.wait_for_load_state()

    def goes_to(self, group: str, *pages: str) -> None:
        """By the two rows of links at the top."""
        self.clicks_on(group, within=".groups")
        for each in pages:
            self.clicks_on(each, within=".pages")

    def sees(self, *parts: str) -> None:
        """The page at which a task ends, which a person with a disability reads too, dark and on a phone."""
        for each in parts:
            self.page.get_by_text(each).first.wait_for()
        assert len(self.clicks) <= MOST, self.clicks
        self.page.set_viewport_size({"width": 390, "height": 800})
        self.page.emulate_media(color_scheme="dark")
        assert self.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert violations(self.page, self.axe) == []
        self.page.emulate_media(color_scheme="light")
        self.page.set_viewport_size({"width": 1280, "height": 800})


@pytest.fixture(scope="module")
def person(
    source_metastore: Running,
    target_metastore: Running,
    tmp_path_factory: pytest.TempPathFactory,
    chromium: Any,
    axe: str,
) -> Iterator[Person]:
    """An installation: a table of each kind, a dropped one, one whose drop is planned, a policy that fails, a purge, a
    landing that failed."""
    here = tmp_path_factory.mktemp("tasks")
    lab = Lab(source_metastore, target_metastore, here / "lab")
    db = lab.db()
    for name in ("orders", "gone", "old"):
        db.table(name, {"part": "1234"})
    db.table("ice", {"part": "1234"})
    db.alter("ice", table_type="ICEBERG")
    lab.sync()
    db.drop("gone")
    lab.sync()
    remember_purge(str(lab.cmroot))
    service = Service(here)
    nowhere = {**AWAY, **{name: f"{here}/{name}" for name in ("cmroot", "target_cmroot", "dumps")}}
    policies = {lab.name: {**lab.keys, "schedule": "1d", "max_lag": "1h"}, "away": nowhere}
    expire = {"command": ["cm", "expire", "--cmroot", str(lab.cmroot), "--older-than", "7d"], "cron": "0 3 1 1 *"}
    check = {"command": ["check", lab.name], "every": "1d"}
    service.configure(
        {"expire": expire, "check": check}, policies, {"ingestion.sources.crm": {"url": "jdbc:postgresql://c/c"}}
    )
    with IngestionStore(service.store) as store:
        store.prepare()
        store.put_asset(Asset(name="crm", owner="olga", producers=("me",), created_by="olga"))
        store.submit(Request(asset="crm", source="crm", schema="public", table="bills", requested_by="me"))
        claimed = store.claim("c", 60.0, 9, 1.0)
        assert claimed
        store.fail(claimed, Failure("user", "column amount does not exist", "Traceback"))
    admin = service.token("me", "admin")
    url = service.start()
    for job in (lab.name, "away", "check"):
        eventually(lambda job=job: (runs := service.runs(job)) and runs[0]["ended"])  # type: ignore[misc]
    db.drop("old")
    plan = web.post(f"{url}/api/v1/policies/{lab.name}:plan", json={}, headers=admin).json()["run"]
    service.ended(plan)
    eventually(lambda: service.get(f"policies/{lab.name}")["measured"])
    page = page_of(chromium, base_url=url, viewport={"width": 1280, "height": 800})
    page.goto("/sign-in")
    page.get_by_label("Token").fill(admin["Authorization"].removeprefix("Bearer "))
    page.get_by_role("button", name="Sign in").click()
    yield Person(page, axe, url, lab, service)
    page.context.close()
    service.stop()


def test_the_state_of_a_table(person: Person) -> None:
    person.begins()
    person.page.get_by_label("Find a table").fill("orders")
    person.clicks_on("Find", "button")
    person.clicks_on(f"{person.lab.name}_a.orders")
    person.sees(f"{person.lab.name}_a.orders", "Replicated until", "4 B in 1 file", "last changed")


def test_why_a_run_failed_and_what_to_do(person: Person) -> None:
    person.begins()
    person.clicks_on("The run and its log")
    person.sees("failed", "127.0.0.1:9", "What to do")


def test_a_dropped_table_is_restored(person: Person) -> None:
    name = f"{person.lab.name}_a.gone"
    person.begins()
    person.page.get_by_label("Find a table").fill(name)
    person.clicks_on("Find", "button")
    person.clicks_on(f"The timeline of {name}")
    assert "before drop table" in person.main
    person.page.get_by_label("Into database").fill(f"{person.lab.name}_back")
    person.clicks_on("Restore", "button")
    run = person.page.url.rpartition("/")[2]
    assert person.service.ended(run)["state"] == "done", person.service.ended(run)
    person.page.reload()
    person.sees("done")


def test_a_plan_is_approved_when_its_drops_were_read(person: Person) -> None:
    person.begins()
    person.clicks_on(re.compile("^plan of"))
    row = person.page.get_by_role("row").filter(has_text=f"{person.lab.name}_a.old")
    assert "drop" in row.inner_text()
    approve = person.page.get_by_label("Reason to approve (required)")
    assert approve.get_attribute("required") is not None, "it drops a table"
    approve.fill("read")
    person.clicks_on("Approve", "button")
    person.sees("by me: read", "Type")


def test_what_is_not_replicated_and_why(person: Person) -> None:
    person.begins()
    person.clicks_on("Replication", within=".groups")
    person.clicks_on("Tables", within=".pages")
    person.sees("an Iceberg table", "1 object")


def test_when_a_file_leaves_the_root(person: Person) -> None:
    person.begins()
    person.goes_to("Change log")
    person.sees("keeps them for 7.0 d", "Next expiry", "needed by")


def test_a_legal_hold_is_put(person: Person) -> None:
    person.begins()
    person.goes_to("Removals", "Legal holds")
    person.page.get_by_label("Name (required)").fill("case-17")
    person.page.get_by_label("Covers (required)").fill(f"{person.lab.name}_a.*")
    person.page.get_by_label("Reason (required)").fill("case 17")
    person.clicks_on("Put this hold", "button")
    person.sees("case-17", "it is released")


def test_whether_a_failover_is_ready(person: Person) -> None:
    person.begins()
    person.goes_to("Replication", "Role changes")
    person.sees("Failover now", "would be lost", "The last check")


def test_an_ingestion_request_that_failed(person: Person) -> None:
    person.begins()
    person.goes_to("Ingestion")
    person.clicks_on("1", within="main")
    person.sees("column amount does not exist", "failed (request)")


def test_who_removed_what(person: Person) -> None:
    person.begins()
    person.goes_to("Removals", "Audit")
    person.sees("who removed what", "erased", "@")
