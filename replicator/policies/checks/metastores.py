"""Checks of the two metastores: that they answer, are two, and retain their events long enough, and that their clocks
agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta

from cmroot.errors import StorageUnreachable
from cmroot.store.buckets import BucketQueue, why_not_all
from cmroot.store.place import as_written
from replicator.captures.gateways.security import risks
from replicator.core.connections import GatewayConfig, MetastoreConfig
from replicator.core.model import Database, NotificationEvent
from replicator.core.text import count_text, duration_text
from replicator.errors import NotificationLogOff, ObjectNotFound
from replicator.metastore.client import MetastoreReader
from replicator.metastore.events.notification_log import digest
from replicator.metastore.events.scope import TTL, Reach, newest_event, refuse_other_catalog
from replicator.metastore.fields import ids
from replicator.policies.checks import Figure, Finding, Health

HEADROOM_WARNING, HEADROOM_CRITICAL = 0.5, 0.25
"""Minimum share of the events' retention that must remain for the next event required."""
SKEW = timedelta(seconds=30)
"""The maximum difference of two clocks; the same as leases on object stores allow (cmroot.lease)."""
EVENT_GRAIN = 2  # seconds: event times are whole seconds, of the begin of the change

_CATALOG = ids("Database", "catalogName")  # servers send it since Hive 3


# Reachability


def answers(side: str, metastore: MetastoreReader, stopwatch: Callable[[], float]) -> Finding:
    """Checks that a metastore answers. Raises MetastoreUnreachable and the like, which the caller reports."""
    began = stopwatch()
    names = metastore.database_names()
    seconds = stopwatch() - began
    shown = [level(default_database(metastore)), count_text(len(names), "database"), metastore.connection]
    reported = f"{metastore.uri}: {', '.join(filter(None, shown))}"
    unknown = metastore.unknown_fields()
    if unknown:
        lost = ", ".join(f"{struct} {fields}" for struct, fields in unknown.items())
        return Finding(
            side,
            "warning",
            f"{reported}; sends fields that would be lost: {lost}",
            "use a newer release, which supports these fields",
            (Figure(f"{side}_answer", seconds, "s"),),
        )
    return Finding(side, "ok", reported, figures=(Figure(f"{side}_answer", seconds, "s"),))


def default_database(metastore: MetastoreReader) -> Database | None:
    try:
        return metastore.database("default")
    except ObjectNotFound:
        return None


def level(default: Database | None) -> str:
    """Returns the server's interface, from the fields that it sends: `getVersion` always returns 3.0."""
    if default is None:
        return "unknown interface"
    return "interface of Hive 3 or newer" if _CATALOG & default.extra.keys() else "interface of Hive 2"


def judge_catalog(cmroot: str, metastore: MetastoreReader) -> list[Finding]:
    """Checks a root against its metastore's catalog, if one is configured. Raises Refused for the root of another."""
    refuse_other_catalog(str(as_written(cmroot)), metastore)
    if metastore.bound_catalog is None:
        return []
    return [Finding("catalog", "ok", f"{cmroot} is, or will be, the root of catalog {metastore.catalog}")]


def levels_fit(source: Database | None, target: Database | None) -> Finding:
    one, other = level(source), level(target)
    if one != other and "3" in one:
        return Finding(
            "versions",
            "warning",
            f"the source has the {one}, the target the {other}",
            "metadata that only newer servers support is not replicated; keep the target at least as new as the source",
        )
    text = one if one == other else f"source: {one}; target: {other}"
    return Finding("versions", "ok", text)


# Two distinct metastores


def are_two(source: MetastoreReader, target: MetastoreReader) -> Finding:
    """Checks that the sides differ: two servers on one database share its notification log, at whatever addresses."""
    row = newest_event(source)
    if row is not None:
        there = target.next_events(row.id - 1, 1)
        if any(digest(event) == digest(row) for event in there):
            return Finding(
                "sides",
                "critical",
                f"{source.uri} and {target.uri} have the same event {row.id}: they are one metastore",
                "name another target; if its database is a copy of the source's, make a change in both and check again",
            )
        return Finding("sides", "ok", "the two metastores have different events")
    here, there_ = default_database(source), default_database(target)
    if here and there_ and here.location == there_.location:
        return Finding(
            "sides",
            "warning",
            f"cannot be distinguished: the source has no event, and both report the warehouse {here.location}",
            "make any change at the source, then check again",
        )
    return Finding("sides", "ok", "the two metastores have different warehouses")


# The notification log


def log_is_on(source: MetastoreReader, databases: Sequence[str]) -> Finding:
    """Checks that events are written. `databases`: those of the source, whose creation must have written events."""
    try:
        newest = source.current_event_id()
    except NotificationLogOff as error:
        return Finding("log", "critical", error.message, error.hint)
    if newest == 0 and set(databases) - {"default"}:
        return Finding(
            "log",
            "warning",
            "a listener is configured, but it has written no event yet, although databases exist",
            "make any change at the source, such as a comment of a table, then check again",
        )
    return Finding("log", "ok", f"on; the newest event is {newest}", figures=(Figure("newest_event", newest),))


def judge_reach(reach: Reach, *, now: float, schedule: timedelta) -> Finding:
    """Checks that the next event required still exists, and for how long. `now`: seconds since the epoch."""
    name = "events"
    if reach.cursor is None:
        begins = (
            f"reaches back {duration_text(now - reach.oldest.time)}, to event {reach.oldest.id}"
            if reach.oldest
            else "empty"
        )
        return _life_fits(Finding(name, "ok", f"{begins}; nothing has been captured yet"), reach.life, schedule)
    if reach.cursor > reach.newest:
        return Finding(
            name,
            "critical",
            f"event {reach.cursor} was captured, but the source's newest is {reach.newest}: it is another "
            "metastore, or was restored from a backup",
            "begin with a new cmroot and a bootstrap",
        )
    if reach.cursor == reach.newest:
        return _life_fits(Finding(name, "ok", f"all events up to {reach.newest} are captured"), reach.life, schedule)
    if reach.needed is None or reach.needed.id > reach.cursor + 1:
        until = reach.needed.id - 1 if reach.needed else reach.newest
        return Finding(
            name,
            "critical",
            f"events {reach.cursor + 1} to {until} were cleaned from the log before they were captured",
            "the next run compares every table with the metastore, or `replicator capture --repair` does now; run more "
            f"often, or raise {TTL}",
        )
    age = max(0.0, now - reach.needed.time)
    waiting = f"event {reach.needed.id} has been waiting for {duration_text(age)}"
    if reach.life is None:
        return Finding(name, "ok", f"{waiting}; the server does not report how long it keeps events")
    life = reach.life.total_seconds()
    left = life - age
    figure = Figure("event_headroom", left, "s", life * HEADROOM_WARNING, life * HEADROOM_CRITICAL)
    health: Health = "ok" if left > life * HEADROOM_WARNING else "warning"
    health = "critical" if left < life * HEADROOM_CRITICAL else health
    text = f"{waiting}; events are cleaned after {duration_text(life)}"
    hint = "" if health == "ok" else f"run the policy now; run it more often, or raise {TTL}"
    return _life_fits(Finding(name, health, text, hint, (figure,)), reach.life, schedule)


def _life_fits(finding: Finding, life: timedelta | None, schedule: timedelta) -> Finding:
    """Adds a warning if the schedule leaves no second try before events are deleted."""
    if finding.health != "ok" or life is None or schedule * 2 <= life:
        return finding
    lives, runs = duration_text(life.total_seconds()), duration_text(schedule.total_seconds())
    text = f"{finding.text}; events are kept for {lives}, but a run begins only every {runs}"
    return Finding(finding.name, "warning", text, f"run at least twice in that time, or raise {TTL}", finding.figures)


# Clocks


def judge_clock(side: str, newest: NotificationEvent | None, *, now: float) -> Finding:
    """Compares the server's clock with the local one, by the time of its newest event, which is in the past: a clock
    that is ahead is proved, one that is behind is only bounded."""
    name = f"clock {side}"
    if newest is None:
        return Finding(name, "ok", "unknown: the log has no event")
    ahead = newest.time - now
    if ahead > SKEW.total_seconds():
        return Finding(
            name,
            "warning",
            f"at least {duration_text(ahead)} ahead of the local clock, by the time of event {newest.id}",
            "synchronize both clocks with NTP: until then lags in seconds and restores to a time are off by that much",
            (Figure(f"{side}_clock_ahead", ahead, "s", SKEW.total_seconds()),),
        )
    behind = max(EVENT_GRAIN, -ahead)
    text = f"not ahead of the local clock; at most {duration_text(behind)} behind, by the time of event {newest.id}"
    return Finding(name, "ok", text)


# ---- gateway listener ------------------------------------------------------------------------------------------------
# Findings about the configured gateway: its requirements for clients, and the risks that it is allowed. Pure.


EVERYWHERE = "0.0.0.0"  # the listen address is an option of the gateway's command


def of_gateway(config: GatewayConfig, metastore: MetastoreConfig) -> Iterator[Finding]:
    """Yields the findings; none if no gateway is configured."""
    if config == GatewayConfig():
        return
    found = list(risks(config, metastore, EVERYWHERE))
    for risk, what, hint in found:
        if risk in config.allow:
            yield Finding("gateway", "warning", f"allowed ({risk}): {what}", hint)
        else:
            yield Finding("gateway", "warning", f"the gateway does not start: {what}", f'{hint}; or allow = ["{risk}"]')
    if not found:
        yield Finding("gateway", "ok", f"requires of clients: {config.described() or 'nothing'}")


# ---- bucket events ---------------------------------------------------------------------------------------------------
# Checks that the queues of a policy answer and receive all changes of their buckets. Takes no messages.


def judge_queues(queues: Mapping[str, str]) -> list[Finding]:
    """Returns the findings by bucket. May run twice, and concurrently with a capture."""
    return [_judge(bucket, BucketQueue(url)) for bucket, url in queues.items()]


def _judge(bucket: str, queue: BucketQueue) -> Finding:
    name = f"s3_events {bucket}"
    try:
        why = why_not_all(bucket, queue.standing().arn)
    except StorageUnreachable as error:
        return Finding(name, "critical", error.message, error.hint)
    except OSError as error:
        why = f"{queue.url}: {error.strerror or error}"
    if why:
        return Finding(name, "warning", f"the bucket is listed in full: {why}", "see docs/s3-events.md")
    return Finding(name, "ok", f"{queue.url} receives notifications of all changes")
