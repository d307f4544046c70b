"""Pages about change-management roots, purges, tables and drills, from the commands that read them. They run on this
server's own engine, never in a Spark of the service.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, cast
from urllib.parse import quote, unquote

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import RedirectResponse, Response

from replicator.commands.cm import cm_ls, cm_slots, configured_expiry
from replicator.commands.guard import audit_ls
from replicator.commands.purge import purge_backups
from replicator.commands.role_change import drill
from replicator.core.config import Config
from replicator.errors import Error
from replicator.policies.drill_record import ShownDrills
from replicator.service.api_tokens import Identity
from replicator.service.pages.chart import LANES, NARROW, RANGES, LagPoint, Range, lifeline_of, size_chart_of
from replicator.service.pages.rendering import Acting, Fields, PageRoute, Visiting, Visitor, render
from replicator.service.web.actions import HoldAsk, RestoreAsk, body_from, known_roots
from replicator.service.web.catalogue import ENDPOINTS
from replicator.service.web.endpoint import LARGEST, SECONDS, CommandFailed, NamedRoot, normal_place, roots_of
from replicator.service.web.policy_actions import restore_database
from replicator.service.web.removals import SECONDS as ACTING
from replicator.service.web.removals import add_root_hold, release_root_hold
from replicator.service.web.responses import Ask
from replicator.service.web.roots import KINDS, SLOW
from replicator.service.web.router import answer_to, within
from replicator.service.web.serving import Askers, Late, Serving, require
from replicator.service.web.table_list import FORMATS, STATES, TableState, policies_of

# ---- queries about a root --------------------------------------------------------------------------------------------
# The root of a page, and the responses of queries and commands about it, or their errors.
#
# A root is one that the configuration names: no URL of a page can open another location.


T = TypeVar("T")

PATIENCE = 20.0
"""Seconds for a page about a root: its queries have limits of their own, which the page reports."""

_ASKED = {each.path: each for each in ENDPOINTS}
_ORDER = ("policies/", "defaults/", "jobs/")


class RootPage(PageRoute):
    """A route whose pages call commands about a root, each in a thread of its own and within a time limit, as queries
    do; its forms as actions do."""

    seconds, process = PATIENCE, False

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
        acts = "POST" in (more.get("methods") or ())
        bounded = within(
            ACTING if acts else self.seconds,
            _asked_root,
            lambda request: request.app.state.deed_askers if acts else request.app.state.askers,
            process=self.process,
        )
        super().__init__(path, bounded(endpoint), **more)


class LogPage(RootPage):
    """A route whose pages read a complete log, in a process of its own."""

    seconds, process = SLOW + 10.0, True


def _asked_root(given: dict[str, Any]) -> str:
    """Returns the location of the root that a page is about; "": there is none, which the page reports."""
    root = given.get("root") or given.get("fields", {}).get("root", "")
    try:
        chosen = chosen_root(given["request"], given["visitor"].identity, root, given.get("policy", ""))[1]
    except HTTPException:
        return ""
    return chosen.place if chosen else ""


@dataclass(frozen=True)
class Said:
    """The report of a command, or its error."""

    found: Any = None
    error: str = ""
    hint: str = ""


def said(ask: Callable[[], object]) -> Said:
    """Calls a command or endpoint. An error is returned, so that the rest of the page is shown."""
    try:
        return Said(ask())
    except Error as error:
        return Said(None, error.message, error.hint or "")
    except Late:
        return Said(None, "it took too long", "query less, or use the command line, which has no time limit")
    except CommandFailed as failed:
        return Said(None, str(failed.said.get("message") or "the command failed"), str(failed.said.get("hint") or ""))


def asked(request: Request, who: Identity, endpoint: str, /, **given: Any) -> Said:
    """Returns the response of a query, by its path."""
    return said(lambda: answer_to(_ASKED[endpoint], request, who, given))


def config_of(request: Request) -> Config:
    """Returns the configuration as last read."""
    serving: Serving = request.app.state.serving
    return serving.config


def shown_roots(config: Config, who: Identity) -> list[NamedRoot]:
    """Returns each location once, by the first of its names, of those that the user may view: of policies, of
    [defaults], of jobs."""
    found: dict[str, NamedRoot] = {}
    for kind in _ORDER:
        for each in roots_of(config):
            if each.name.startswith(kind) and each.may(who):
                found.setdefault(each.place, each)
    return list(found.values())


def chosen_root(request: Request, who: Identity, root: str, policy: str) -> tuple[list[NamedRoot], NamedRoot | None]:
    """Returns all roots, and the selected one: by its location or name, else that of the policy's source, else the
    first one with a captured log, else the first. Raises HTTPException 404 for one that is not configured."""
    config = config_of(request)
    if policy:
        require(who, "viewer", policy)
    roots = shown_roots(config, who)
    if not root and policy in config.policies:
        root = config.policies[policy].cmroot
    if not root and not policy:
        found = request.app.state.serving.watch.found.items()
        captured = {name for name, each in found if each.lag and each.lag.captured_event is not None}
        return roots, next((each for each in roots if captured.intersection(each.policies)), next(iter(roots), None))
    names = {each.name: each.place for each in roots_of(config)}
    place = names.get(root) or normal_place(root)
    found = next((each for each in roots if each.place == place), None)
    if found is None:
        raise HTTPException(404, f"no $cmroot {root or f'of {policy!r}'!s} is configured that you may read")
    return roots, found


def acting_name(config: Config, root: NamedRoot | None) -> str:
    """Returns the name of a root in actions; "" if it has none."""
    known = known_roots(config).items()
    return next((name for name, each in known if root and normal_place(each.place) == root.place), "")


def may_change(visitor: Any, root: NamedRoot | None, role: str = "operator") -> bool:
    """Returns True if forms about a root are shown."""
    users = root.policies or ("",) if root else ("",)
    return bool(visitor.cookie or visitor.mark) and all(visitor.identity.may(role, each) for each in users)


def body_of(kind: type[T], fields: Mapping[str, str], given: Mapping[str, Any], *names: str) -> T:
    """Builds the body of an action from the fields of a form that were filled. Raises UsageError for invalid values, as
    the API does."""
    filled = {name: fields[name].strip() for name in names if fields.get(name, "").strip()}
    return body_from(kind, {**given, **filled})


# ---- root routes -----------------------------------------------------------------------------------------------------


FOUND = 100
"""Maximum files of a search."""

Text = Annotated[str, Query(max_length=4000)]

of_roots = APIRouter(route_class=RootPage, include_in_schema=False)
of_logs = APIRouter(route_class=LogPage, include_in_schema=False)


@of_roots.get("/cmroot")
def one_root(request: Request, visitor: Visiting, root: str = "", policy: str = "", range: Range = "30d") -> Response:
    """Shows a root's size over time, and what requires its contents: slots, holds and dumps."""
    roots, chosen = chosen_root(request, visitor.identity, root, policy)
    shown: dict[str, Any] = {"pins": Said(), "sizes": [], "drawings": [None]}
    if chosen:
        pins = said(lambda: cm_slots(cmroot=chosen.place, held=False, config=config_of(request)))
        points = _sizes(request, visitor, chosen, range)
        samples = [LagPoint(datetime.fromisoformat(each["at"]).timestamp(), each["bytes"]) for each in points]
        drawings = [size_chart_of(samples), size_chart_of(samples, NARROW)]
        shown = {"pins": pins, "sizes": points, "drawings": drawings}
    may = bool(acting_name(config_of(request), chosen)) and may_change(visitor, chosen)
    return render(
        request,
        "cmroot.html",
        {"roots": roots, "root": chosen, "may_hold": may, "ranges": list(RANGES), "range": range, **shown},
    )


def _sizes(request: Request, visitor: Visitor, root: NamedRoot, range: Range) -> list[dict[str, Any]]:
    """Returns the measured sizes of a root, of all pages of the API."""
    found: list[dict[str, Any]] = []
    cursor = None
    while page := asked(
        request, visitor.identity, "cmroot/size", root=root.name, since=f"-{range}", limit=LARGEST, cursor=cursor
    ).found:
        found += page["points"]
        cursor = page["next"]
        if cursor is None:
            break
    return found


@of_roots.get("/cmroot/usage")
def usage(request: Request, visitor: Visiting, root: str) -> Response:
    """Shows what a root retains, by what requires it; reads the complete log."""
    _, chosen = chosen_root(request, visitor.identity, root, "")
    where, config = chosen.place if chosen else "", config_of(request)
    kept = said(lambda: cm_ls(cmroot=where, limit=20, engine="local", config=config))
    return render(request, "usage.html", {"root": chosen, "kept": kept})


@of_logs.get("/cmroot/expiry")
def expiry(request: Request, visitor: Visiting, root: str, older_than: Text = "") -> Response:
    """Shows what the next expiry would remove, and what holds back the rest; reads the complete log."""
    _, chosen = chosen_root(request, visitor.identity, root, "")
    configured = configured_expiry(config_of(request), chosen.place) if chosen else None
    found = Said()
    if chosen and (older_than or configured):
        found = asked(request, visitor.identity, "cmroot/expiry", root=chosen.name, older_than=older_than or None)
    shown = {"root": chosen, "planned": found, "older_than": older_than, "configured": configured}
    return render(request, "expiry.html", shown)


@of_logs.get("/cmroot/find")
def find(request: Request, visitor: Visiting, root: str = "", path: Text = "", table: Text = "") -> Response:
    """Shows files that the source had, by path or table, and whether their bytes are retained; reads the complete
    log."""
    roots, chosen = chosen_root(request, visitor.identity, root, "")
    found = Said()
    if chosen and (path or table):
        given = {"root": chosen.name, "path": path or None, "table": table or None, "limit": FOUND}
        found = asked(request, visitor.identity, "cmroot/find", **given)
    return render(request, "find.html", {"roots": roots, "root": chosen, "path": path, "table": table, "found": found})


@of_roots.post("/cmroot/hold")
def hold(request: Request, visitor: Acting, fields: Fields) -> Response:
    """Holds a recovery point, and redirects back."""
    _, chosen = chosen_root(request, visitor.identity, fields.get("root", ""), "")
    name, ask = acting_name(config_of(request), chosen), body_of(HoldAsk, fields, {}, "name", "at", "reason")
    add_root_hold(request, visitor.identity, name, ask)
    return RedirectResponse(f"/cmroot?root={quote(chosen.place if chosen else '', safe='')}", 303)


@of_roots.post("/cmroot/holds/{name}/release")
def release(request: Request, visitor: Acting, fields: Fields, name: str) -> Response:
    """Releases a hold, and redirects back."""
    _, chosen = chosen_root(request, visitor.identity, fields.get("root", ""), "")
    known = acting_name(config_of(request), chosen)
    release_root_hold(request, visitor.identity, known, name, body_of(Ask, fields, {}, "reason"))
    return RedirectResponse(f"/cmroot?root={quote(chosen.place if chosen else '', safe='')}", 303)


@of_roots.get("/drills")
async def drills(request: Request, visitor: Visiting) -> Response:
    """Shows the drills of all policies with their measured recovery times. A root that hangs delays no other."""
    config = config_of(request)
    names = [name for name in sorted(config.policies) if visitor.identity.may("viewer", name)]
    found = await asyncio.gather(*(_in_time(request, name, partial(_listed, name, config)) for name in names))
    return render(request, "drills.html", {"policies": dict(zip(names, found, strict=True))})


async def _in_time(request: Request, policy: str, ask: Callable[[], object]) -> Said:
    """Calls a command as `said`, within a time limit."""
    askers: Askers = request.app.state.askers
    try:
        return await askers.ask(policy, SECONDS, lambda: said(ask))
    except Late:
        return Said(None, f"no answer within {SECONDS:g} s")


def _listed(policy: str, config: Config) -> ShownDrills:
    return cast("ShownDrills", drill(policy, listing=True, config=config))


# ---- purges ----------------------------------------------------------------------------------------------------------


ROWS = 500
"""Maximum rows of a list; the command line has all of them."""


@of_roots.get("/purges")
def purges(request: Request, visitor: Visiting, root: str = "", policy: str = "") -> Response:
    """Shows what purges erased, their backups, and certificates."""
    roots, chosen = chosen_root(request, visitor.identity, root, policy)
    shown: dict[str, Any] = {"purges": Said(), "backups": Said(), "record": Said()}
    if chosen:
        config, where = config_of(request), chosen.place
        shown = {
            "purges": asked(request, visitor.identity, "purges", root=chosen.name, limit=ROWS),
            "backups": said(lambda: purge_backups(cmroot=where, config=config)),
            "record": said(lambda: audit_ls(cmroot=where, job="purge", newest=True, limit=ROWS, config=config)),
        }
    record: Said = shown["record"]
    rows = record.found.found if record.found else []
    shown |= {
        "rows": [each for each in rows if each.what not in ("file", "certificate")],
        "certificates": [
            {"by": each, "says": msgspec.json.decode(each.detail)}
            for each in rows
            if each.what == "certificate" and each.detail
        ],
    }
    return render(request, "purges.html", {"roots": roots, "root": chosen, **shown})


@of_roots.get("/purges/{purge}")
def one_purge(request: Request, visitor: Visiting, purge: str, root: str = "", policy: str = "") -> Response:
    """Shows a purge: its progress, and its newest certificate."""
    roots, chosen = chosen_root(request, visitor.identity, root, policy)
    name = chosen.name if chosen else None
    shown = {
        "detail": asked(request, visitor.identity, "purges/{purge}", root=name, purge=purge),
        "certificate": asked(request, visitor.identity, "purges/{purge}/certificate", root=name, purge=purge),
    }
    return render(request, "purge.html", {"purge": purge, "roots": roots, "root": chosen, **shown})


# ---- table routes ----------------------------------------------------------------------------------------------------


ENTRIES, PAGE = 200, 50
"""Entries of a page of a timeline, and tables of a page of the list."""

WORDS = {
    "record": "change",
    "run": "run of a policy",
    "dump": "dump",
    "hold": "hold",
    "verification": "comparison",
    "removal": "removal",
}
"""Labels of the kinds of entries."""

Moment = Annotated[str, Query(max_length=100)]

Kind = Literal["", *KINDS]  # type: ignore[valid-type]  # texts of another module

tables = APIRouter(route_class=RootPage, include_in_schema=False)


@dataclass(frozen=True)
class Filters:
    """The filters of entries. kind, since, until: only these entries. cursor: where the page begins."""

    kind: Kind = ""
    since: Moment = ""
    until: Moment = ""
    cursor: Text = ""


Only = Annotated[Filters, Depends()]


@tables.get("/tables")
def all_tables(
    request: Request,
    visitor: Visiting,
    policy: str = "",
    search: Text = "",
    state: TableState | Literal[""] = "",
    table_format: Literal["", *FORMATS] = "",  # type: ignore[valid-type]  # texts of another module
    cursor: Annotated[str, Query(max_length=4000)] = "",
) -> Response:
    """Shows tables by name, with format, size and state; a page of them."""
    only = {"policy": policy, "search": search, "state": state, "format": table_format}
    given = {**{name: value or None for name, value in only.items()}, "table": None}
    found = asked(request, visitor.identity, "tables", limit=PAGE, cursor=cursor or None, **given)
    names = [name for name in sorted(config_of(request).policies) if visitor.identity.may("viewer", name)]
    choices = {"policies": names, "states": STATES, "formats": FORMATS}
    shown = {"found": found, "next": found.found["next"] if found.found else None, "cursor": cursor, "only": only}
    return render(request, "tables.html", {**shown, **choices})


@tables.get("/tables/totals")
def totals(request: Request, visitor: Visiting, policy: str = "") -> Response:
    """Shows tables and bytes of each policy, and what is not replicated and why; reads all file entries."""
    found = asked(request, visitor.identity, "tables/totals", policy=policy or None, limit=LARGEST)
    return render(request, "totals.html", {"found": found})


@tables.get("/tables/{table:path}")
def one_table(
    request: Request, visitor: Visiting, table: str, only: Only, root: str = "", policy: str = ""
) -> Response:
    """Shows a table's state on the targets, or on one policy's, and its timeline, newest first; with a form to restore
    one of its states."""
    users = [policy] if policy else policies_of(request.app.state.serving, visitor.identity, table)
    roots, chosen, refused = _root_of_table(request, visitor, root, users)
    now = dict.fromkeys(("search", "state", "format"), None) | {"table": table, "policy": policy or None}
    states = asked(request, visitor.identity, "tables", limit=PAGE, cursor=None, **now)
    filters = {name: value or None for name, value in asdict(only).items()}
    shown: dict[str, Any] = {"entries": [], "next": None, "said": refused, "owner": "", "points": []}
    if chosen:
        given = {"table": table, "root": chosen.name, "order": "newest", "limit": ENTRIES, **filters}
        said = asked(request, visitor.identity, "tables/{table}/timeline", **given)
        found = said.found or {"entries": [], "next": None}
        owner = _owner(config_of(request), chosen, users)
        command = _restores(chosen, owner)
        entries = [
            {**each, "restore": [*command, *map(shlex.quote, each["restore"])] if each["restore"] else []}
            for each in found["entries"]
        ]
        points = [(each["restore"], each) for each in found["entries"] if each["restore"]]
        shown = {"entries": entries, "next": found["next"], "said": said, "owner": owner, "points": points}
    here = states.found or {"tables": [], "unknown": {"": states.error}}
    more = {"states": here["tables"], "unknown": here["unknown"], "table": table, "roots": roots, "root": chosen}
    names = {"words": WORDS, "kinds": list(LANES), "policy": policy, "drawing": lifeline_of(shown["entries"])}
    return render(request, "table.html", {**shown, **more, **names, **asdict(only)})


@tables.post("/tables/{table:path}/restore")
def restore(request: Request, visitor: Acting, fields: Fields, table: str) -> Response:
    """Queues the restore of a table's state into another database, and redirects to its run."""
    db, name, to, *_ = (*map(unquote, fields.get("state", "").split("/")), "", "", "")
    given = {"db": db, "table": (name,), "to": to}
    ask = body_of(RestoreAsk, fields, given, "policy", "into", "reason")
    return RedirectResponse(f"/runs/{restore_database(request, visitor.identity, ask).run}", 303)


def _root_of_table(
    request: Request, visitor: Visitor, root: str, users: Sequence[str]
) -> tuple[list[NamedRoot], NamedRoot | None, Said | None]:
    """Returns what `chosen_root` returns for the first policy whose root the visitor may view; and why there is no
    root, if it also belongs to policies that the visitor may not view."""
    config, who = config_of(request), visitor.identity
    shown, named = shown_roots(config, who), [name for name in users if name in config.policies]
    places = {each.place for each in shown}
    mine = next((name for name in named if normal_place(config.policies[name].cmroot) in places), "")
    if root or mine or not named or not who.may("viewer", named[0]):
        return *chosen_root(request, who, root, mine or next(iter(users), "")), None
    why = "the timeline is not shown: it is read from a $cmroot of several policies"
    return shown, None, Said(None, why, "ask for the role viewer of all of them")


def _owner(config: Config, root: NamedRoot, users: Sequence[str]) -> str:
    """Returns the policy whose source has a root, first of those that select the table; "": there is none."""
    owners = [name for name in root.policies if normal_place(config.policies[name].cmroot) == root.place]
    return next((each for each in (*users, *owners) if each in owners), "")


def _restores(root: NamedRoot, owner: str) -> list[str]:
    """Returns the command that restores from a root, without the state."""
    about = [shlex.quote(owner)] if owner else [f"--cmroot={shlex.quote(root.place)}", "--target", "METASTORE"]
    return ["replicator restore", *about]
