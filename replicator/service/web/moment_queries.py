"""Queries about the states of tables in the terms of their formats: at a recovery point of a policy, and as of its last
capture.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from cmroot.log.captured import segments
from cmroot.root import open_existing
from replicator.captures.dumps.selection import resolve_until
from replicator.captures.dumps.table_moments import TableMoment, known_moment, moments_at
from replicator.core.policy import matching_databases
from replicator.errors import UsageError
from replicator.metastore.events.scope import Patterns
from replicator.replay.restore.recovery_points import windows
from replicator.service.runs import iso
from replicator.service.web.endpoint import Asking
from replicator.service.web.policy_queries import has_root, log_of_policy
from replicator.service.web.serving import Late, Serving
from replicator.service.web.table_list import tables_of


@dataclass(frozen=True)
class PointTables:
    """The states of a policy's tables at one recovery point. root: whose log it is. event, position, at (ISO 8601): of
    the point. databases: those that can be restored to it. tables: by name, without tables in Hive's layout: these have
    the files of the position."""

    policy: str
    root: str
    event: int
    position: int
    at: str | None
    databases: list[str]
    tables: list[TableMoment]


def point_tables(asking: Asking) -> PointTables:
    """Returns the states of all tables at a recovery point. Reads the log up to it. Raises UsageError for a point that
    the log does not have, Late if the log is too long for the time limit."""
    policy, (place, reverse) = asking.policy, log_of_policy(asking)
    if not has_root(place):
        raise UsageError("nothing was captured yet", hint="the first run of the policy starts capturing")
    deadline = time.monotonic() + asking.seconds

    def tick() -> None:
        if time.monotonic() > deadline:
            raise Late(begun=True)

    log = segments(open_existing(place).place)
    point, known = resolve_until(log, asking.values["at"]), windows(log)
    mine = sorted(known if reverse else matching_databases(policy, list(known)))
    there = [db for db in mine if known[db].has(point.position)]
    patterns = Patterns.parse(policy.include, policy.exclude)
    found = moments_at(log, there, point.position, tick) if there else []
    return PointTables(
        policy.name,
        place,
        point.event,
        point.position,
        iso(float(point.time)),
        there,
        [each for each in found if patterns.match(each.table.partition(".")[2])],
    )


def last_moments(serving: Serving, policy: str, limit: int) -> list[TableMoment]:
    """Returns the states of the first tables of a policy by name as the last capture recorded them, without those in
    Hive's layout. Raises ObjectNotFound if no capture of this host has recorded them."""
    of, found = tables_of(serving, policy), list[TableMoment]()
    with of.inventory() as known:
        for each in known.in_own_format():
            if of.has(each.db, each.name) and (moment := known_moment(known, each.db, each.name)):
                found.append(TableMoment(f"{each.db}.{each.name}", each.format, moment))
            if len(found) == limit:
                break
    return found
