"""Pages about change-management roots, removals, tables, drills and purges, by the commands that look at them.

A root is one that the configuration names: no address of a page can open another place. They run on this server's own
engine, never in a Spark of the service."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby
from typing import Any, cast

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from replicator.commands.audit import audit_ls
from replicator.commands.cm.kept import cm_ls
from replicator.commands.cm.pins import cm_slots
from replicator.commands.drill import drill
from replicator.commands.housekeeping_items import housekeeping_ls
from replicator.commands.legal_hold import legal_hold_ls
from replicator.commands.purge_backups import purge_backups
from replicator.commands.show import show
from replicator.core.config import Config
from replicator.drills.drill_record import ShownDrills
from replicator.errors import Error
from replicator.events.record import ChangeRecord
from replicator.housekeeping.items import Item
from replicator.service.api_tokens import Identity
from replicator.service.pages.rendering import render
from replicator.service.pages.visiting import PageRoute, Visiting
from replicator.service.web.permission import require
from replicator.service.web.questions.named_roots import normal_place
from replicator.service.web.questions.question import SECONDS
from replicator.service.web.questions.time_limits import Askers, Late
from replicator.service.web.questions.within import within
from replicator.service.web.serving import Serving

ROWS = 500
"""Rows of a list; the command line has all of them."""


class RootPage(PageRoute):
    """Its pages call commands about a root, each in a thread of its own and within a time limit, as questions are."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
        bounded = within(SECONDS, _asked_root, lambda request: request.app.state.askers)
        super().__init__(path, bounded(endpoint), **more)


def _asked_root(given: dict[str, Any]) -> str:
    """The place that a page is about. Raises as `_chosen`."""
    identity = given["visitor"].identity
    return _place(_chosen(given["request"], identity, given.get("root", ""), given.get("policy", ""))[1])


of_roots = APIRouter(route_class=RootPage, include_in_schema=False)


@dataclass(frozen=True)
class KnownRoot:
    """place: in its normal spelling. policies: whose source's or target's it is."""

    place: str
    policies: tuple[str, ...]


@dataclass(frozen=True)
class Said:
    """What a command answered, or why it did not."""

    found: Any = None
    error: str = ""
    hint: str = ""


@of_roots.get("/cmroot")
def one_root(request: Request, visitor: Visiting, root: str = "", policy: str = "") -> Response:
    """Who needs what a root keeps: slots, holds and dumps."""
    roots, chosen = _chosen(request, visitor.identity, root, policy)
    pins = _said(lambda: cm_slots(cmroot=_place(chosen), held=False, config=_config(request))) if chosen else Said()
    return render(request, "cmroot.html", {"roots": roots, "root": chosen, "pins": pins})


@of_roots.get("/cmroot/usage")
def usage(request: Request, visitor: Visiting, root: str) -> Response:
    """What a root keeps, by who needs it; reads the whole log."""
    _, chosen = _chosen(request, visitor.identity, root, "")
    kept = _said(lambda: cm_ls(cmroot=_place(chosen), limit=20, engine="local", config=_config(request)))
    return render(request, "usage.html", {"root": chosen, "kept": kept})


@of_roots.get("/removals")
def removals(request: Request, visitor: Visiting, root: str = "", policy: str = "") -> Response:
    """What leaves, by day, with what holds it back; what left in the last week."""
    roots, chosen = _chosen(request, visitor.identity, root, policy)
    config, where = _config(request), _place(chosen)
    week = (datetime.now(UTC) - timedelta(days=7)).isoformat(timespec="seconds")
    shown: dict[str, Any] = {"roots": roots, "root": chosen, "items": Said(), "holds": Said(), "gone": Said()}
    if chosen:
        items = Said(error="the items of all policies are in one store, for who may look at all")
        if not config.housekeeping.store or visitor.identity.may("viewer"):
            items = _said(
                lambda: housekeeping_ls(cmroot=where, status="scheduled", sort="cleanupTimestamp", config=config)
            )
        shown |= {
            "items": items,
            "days": _by_day(items.found.items) if items.found else [],
            "holds": _said(lambda: legal_hold_ls(cmroot=where, config=config)),
            "gone": _said(lambda: audit_ls(cmroot=where, outcome="removed", since=week, limit=ROWS, config=config)),
        }
    return render(request, "removals.html", {"days": [], **shown})


@of_roots.get("/tables/{table}")
def one_table(request: Request, visitor: Visiting, table: str, root: str = "", policy: str = "") -> Response:
    """A table's life by the records of the log, newest first; each is a point to restore to."""
    roots, chosen = _chosen(request, visitor.identity, root, policy)
    where, config = _place(chosen), _config(request)
    said = _said(lambda: _newest(show(where, table=table, config=config).records())) if chosen else Said()
    records = [_record(each) for each in reversed(said.found or ())]
    owner = policy or (chosen.policies[0] if chosen and chosen.policies else "")
    shown = {
        "table": table,
        "roots": roots,
        "root": chosen,
        "records": records,
        "said": Said(None, said.error, said.hint),
        "policy": owner,
        "more": len(records) == ROWS,
    }
    return render(request, "table.html", shown)


@of_roots.get("/drills")
async def drills(request: Request, visitor: Visiting) -> Response:
    """Drills of all policies with their measured recovery times. A root that hangs keeps no other waiting."""
    config = _config(request)
    names = [name for name in sorted(config.policies) if visitor.identity.may("viewer", name)]
    found = await asyncio.gather(*(_asked(request, name, partial(_listed, name, config)) for name in names))
    return render(request, "drills.html", {"policies": dict(zip(names, found, strict=True))})


@of_roots.get("/purges")
def purges(request: Request, visitor: Visiting, root: str = "", policy: str = "") -> Response:
    """What purges erased, their backups, and certificates."""
    roots, chosen = _chosen(request, visitor.identity, root, policy)
    config, where = _config(request), _place(chosen)
    backups = _said(lambda: purge_backups(cmroot=where, config=config)) if chosen else Said()
    record = _said(lambda: audit_ls(cmroot=where, job="purge", limit=ROWS, config=config)) if chosen else Said()
    rows = list(reversed(record.found.found)) if record.found else []
    shown = {
        "roots": roots,
        "root": chosen,
        "backups": backups,
        "record": Said(None, record.error, record.hint),
        "rows": [each for each in rows if each.what not in ("file", "certificate")],
        "certificates": [each for each in rows if each.what == "certificate"],
    }
    return render(request, "purges.html", shown)


def _config(request: Request) -> Config:
    serving: Serving = request.app.state.serving
    return serving.config


def roots_of(config: Config, who: Identity) -> list[KnownRoot]:
    """Roots that the configuration names, and that somebody may look at: all of whose policies they may."""
    found: dict[str, list[str]] = {}
    for name, policy in sorted(config.policies.items()):
        for place in dict.fromkeys((normal_place(policy.cmroot), normal_place(policy.target_cmroot))):
            found.setdefault(place, []).append(name)
    if config.defaults.cmroot:
        found.setdefault(normal_place(config.defaults.cmroot), [])
    return [
        KnownRoot(place, tuple(names))
        for place, names in found.items()
        if all(who.may("viewer", each) for each in names or [""])
    ]


def _chosen(request: Request, who: Identity, root: str, policy: str) -> tuple[list[KnownRoot], KnownRoot | None]:
    """All roots, and the one that is meant: as named, else the policy's source's, else the first. Raises HTTPException
    404 for one that is not configured."""
    config = _config(request)
    if policy:
        require(who, "viewer", policy)
    roots = roots_of(config, who)
    if not root and policy in config.policies:
        root = normal_place(config.policies[policy].cmroot)
    if not root and not policy:
        return roots, roots[0] if roots else None
    found = next((each for each in roots if each.place == root), None)
    if found is None:
        raise HTTPException(404, f"no $cmroot {root or f'of {policy!r}'!s} is configured that you may look at")
    return roots, found


def _place(root: KnownRoot | None) -> str:
    return root.place if root else ""


def _said(ask: Callable[[], object]) -> Said:
    try:
        return Said(ask())
    except Error as error:
        return Said(None, error.message, error.hint or "")


async def _asked(request: Request, policy: str, ask: Callable[[], object]) -> Said:
    """As `_said`, within a time limit."""
    askers: Askers = request.app.state.askers
    try:
        return await askers.ask(policy, SECONDS, lambda: _said(ask))
    except Late:
        return Said(None, f"no answer within {SECONDS:g} s")


def _listed(policy: str, config: Config) -> ShownDrills:
    return cast("ShownDrills", drill(policy, listing=True, config=config))


def _newest(records: Iterable[ChangeRecord]) -> list[ChangeRecord]:
    return list(deque(records, ROWS))


def _record(record: ChangeRecord) -> dict[str, Any]:
    kind = str(record.change.__struct_config__.tag).replace("_", " ")
    return {
        "position": record.position,
        "event": record.event,
        "time": record.time,
        "kind": kind,
        "what": record.change.object,
        "detail": record.change.detail,
        "observed": record.observed,
    }


def _by_day(items: Iterable[Item]) -> list[tuple[str, list[Item]]]:
    def day(item: Item) -> str:
        return datetime.fromtimestamp(item.cleanup, UTC).strftime("%Y-%m-%d")

    return [(each, list(some)) for each, some in groupby(items, day)]
