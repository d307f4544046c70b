"""Runbooks of docs/runbooks by condition, with a policy's own values in their commands; and its pages as HTML.

A test compares each command with its page, and executes the pages.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from replicator.core.policy import Policy
from replicator.policies.lag import DatabaseLag, Lag
from replicator.policies.memory import RoleChange

HERE = Path(__file__).with_name("runbooks")  # in a checkout, a link to docs/runbooks; in a wheel, its files
REPOSITORY = "https://github.com/replicator/replicator/blob/main/docs/"
UNFINISHED = re.compile(r"a (switchover|failover|failback) was begun at ")
LOST = re.compile(r"events \d+ to \d+ are gone")
CATCH_UP = "catch-up"


@dataclass(frozen=True)
class Step:
    """A step. what: an instruction; command: as on the page, with {placeholders}; empty: a manual step."""

    what: str
    command: str = ""


@dataclass(frozen=True)
class Runbook:
    """A runbook. title: the condition, and the goal of the steps. page: its name in docs/runbooks."""

    title: str
    page: str
    steps: tuple[Step, ...]


_ROLE_OF_SOURCE = "replicator role show --metastore {source} --db {db}"
_ROLE_OF_TARGET = "replicator role show --metastore {target} --db {db}"

RUNBOOKS: Mapping[str, Runbook] = {
    "primary-away": Runbook(
        "The primary is unreachable: wait for it, or fail over",
        "fail-over",
        (
            Step("Check whether it responds by now; exit code 75: it does not.", _ROLE_OF_SOURCE),
            Step(
                "Check what would be lost; this changes nothing. The replica is at {checkpoint}.",
                "replicator --config {config} failover {policy}",
            ),
            Step("Save the report.", "replicator --config {config} failover {policy} --json > {dir}/loss.json"),
            Step("Obtain the decision to fail over. Keep the old primary down, and stop each `sync --follow`."),
            Step("Make the replica the primary.", "replicator --config {config} failover {policy} --force"),
            Step("Verify its role, then start the writers there.", _ROLE_OF_TARGET),
        ),
    ),
    "replica-away": Runbook(
        "The replica is unreachable: nothing is lost while the primary keeps its events",
        CATCH_UP,
        (
            Step("Check how long events are kept.", "replicator --config {config} check {policy}"),
            Step("When it responds again, continue from {checkpoint}.", "replicator --config {config} sync {policy}"),
        ),
    ),
    "two-primaries": Runbook(
        "Both sides are primary: the one with the higher epoch is valid",
        "fail-back",
        (
            Step("Stop all writers to the side that came back. Its epoch is the lower one.", _ROLE_OF_SOURCE),
            Step("Compare it with the epoch of the other side.", _ROLE_OF_TARGET),
            Step(
                "List its own changes; this changes nothing.",
                "replicator --config {config} failback {policy} --dry-run",
            ),
            Step("Make it the replica; its own changes are held.", "replicator --config {config} failback {policy}"),
            Step("Continue, in the other direction.", "replicator --config {config} sync {policy}"),
        ),
    ),
    "switchover": Runbook(
        "A switchover is unfinished: complete it, or abort it",
        "switch-over",
        (
            Step("Complete it.", "replicator --config {config} switchover {policy} --to {side}"),
            Step("Or abort it, before `promote`.", "replicator --config {config} switchover {policy} --abort"),
        ),
    ),
    "failover": Runbook(
        "A failover is unfinished: complete it",
        "fail-over",
        (Step("Complete it.", "replicator --config {config} failover {policy} --force"),),
    ),
    "failback": Runbook(
        "A failback is unfinished: complete it",
        "fail-back",
        (Step("Complete it.", "replicator --config {config} failback {policy}"),),
    ),
    "lost-events": Runbook(
        "Events were lost before they were captured: compare everything",
        CATCH_UP,
        (
            Step("Compare every table with the log.", "replicator --config {config} capture {policy} --repair"),
            Step("Replicate the differences.", "replicator --config {config} sync {policy}"),
            Step("Let the source keep its events longer, or run the policy more often."),
        ),
    ),
    "differs": Runbook(
        "The replica differs: find the writer, and repair the replica",
        "repair-a-replica",
        (
            Step("Compare the entire replica.", "replicator --config {config} verify {policy}"),
            Step("Preview the repair; this changes nothing.", "replicator --config {config} repair {policy} --dry-run"),
            Step("Repair the differences.", "replicator --config {config} repair {policy}"),
            Step("Find out who wrote to the replica, and revoke the permission."),
        ),
    ),
    "behind": Runbook(
        "The policy is late or blocked: find the cause, and catch up",
        CATCH_UP,
        (
            Step("Check what waits, and what blocks.", "replicator --config {config} lag {policy}"),
            Step("Check what a run requires and lacks.", "replicator --config {config} check {policy}"),
            Step("Check how the last runs ended.", "replicator --config {config} history {policy}"),
            Step("When the cause is fixed, run the policy.", "replicator --config {config} sync {policy}"),
        ),
    ),
}
"""Runbooks by kind, the most urgent first."""


def kinds_of(lag: Lag | None, alerts: Collection[str], *, differs: bool) -> list[str]:
    """Returns the runbooks that a policy requires. alerts: kinds of its open alerts."""
    found = {"differs"} if differs else set()
    if "two-primaries" in alerts:
        found.add("two-primaries")
    if {"late", "blocked", "headroom"} & set(alerts):
        found.add("behind")
    if lag is not None:
        found |= _of_lag(lag)
    if len(found) > 1 and found & {"primary-away", "replica-away", "switchover", "failover", "failback"}:
        found.discard("behind")
    return [kind for kind in RUNBOOKS if kind in found]


def _of_lag(lag: Lag) -> set[str]:
    primary, replica = ("target", "source") if lag.reverse else ("source", "target")
    found = {match[1] for text in lag.blocks if (match := UNFINISHED.match(text))}
    if primary in lag.unreachable:
        found.add("primary-away")
    if replica in lag.unreachable:
        found.add("replica-away")
    if any(_both_primary(each) for each in lag.databases):
        found.add("two-primaries")
    if any(LOST.match(text) for text in lag.warnings):
        found.add("lost-events")
    if lag.status in ("late", "blocked"):
        found.add("behind")
    return found


def filled(kind: str, values: Mapping[str, str]) -> Runbook:
    """Returns a runbook with values in place of its placeholders, quoted for a shell in commands."""
    book = RUNBOOKS[kind]
    quoted = {name: shlex.quote(value) for name, value in values.items()}
    steps = tuple(Step(each.what.format_map(values), each.command.format_map(quoted)) for each in book.steps)
    return Runbook(book.title, book.page, steps)


def values_of(policy: Policy, config: str, lag: Lag | None, change: RoleChange | None = None) -> dict[str, str]:
    """Returns the values for a policy's runbooks. config: its file. source, target: the primary and the replica, as the
    runbooks call them; of two primaries, the side that returned and the other one. change: the unfinished one."""
    reverse = bool(lag and lag.reverse)
    source, target = (policy.target, policy.source) if reverse else (policy.source, policy.target)
    named = [each for each in policy.databases if each.isidentifier()]  # the others are patterns
    db = next(iter([*_databases(lag, reverse=reverse), *named]), "DB")
    return {
        "config": config,
        "policy": policy.name,
        "source": source,
        "target": target,
        "db": db,
        "dir": ".",
        "side": "source" if change and change.reverse else "target",
        "checkpoint": f"event {lag.event}" if lag and lag.event is not None else "its checkpoint",
    }


def _databases(lag: Lag | None, *, reverse: bool) -> list[str]:
    """Returns the databases of the side that is replicated, those with two primaries first."""
    rows = sorted(lag.databases if lag else [], key=lambda each: not _both_primary(each))
    return [each.replica if reverse else each.db for each in rows]


def _both_primary(database: DatabaseLag) -> bool:
    """Returns True if both roles are primary. They are texts, such as `primary at epoch 3`."""
    return all(each.startswith("primary") for each in (database.source_role, database.target_role))


def runbook_names() -> list[str]:
    """Returns the names of the pages of docs/runbooks."""
    return sorted(each.stem for each in HERE.iterdir())


def runbook_html(page: str) -> str:
    """Returns a page of docs/runbooks as HTML. Its HTML is shown as text; pages that the wheel lacks are linked in the
    repository. Raises OSError for an unknown page."""
    text = (HERE / f"{page}.md").read_text(encoding="utf-8")
    text = re.sub(r"\]\(\.\./", f"]({REPOSITORY}", text)
    text = re.sub(r"\]\(([a-z-]+)\.md", r"](/runbooks/\1", text)
    html: str = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    return html.replace("<pre>", '<pre tabindex="0">')
