"""Removals over HTTP: queries about items of housekeeping, settings of retention, purges and their certificates;
actions that prevent removals or undo them: holds, slots, legal holds, items of housekeeping.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Request
from fastapi.routing import APIRoute

from replicator.commands.cm import cm_hold, cm_release, cm_slots_drop
from replicator.commands.guard import audit_ls, legal_hold_add, legal_hold_release
from replicator.commands.lifecycle import housekeeping_cancel, housekeeping_ls, housekeeping_rearm, retention_explain
from replicator.errors import ObjectNotFound, UsageError
from replicator.lifecycle.housekeeping.run import opened
from replicator.lifecycle.purge.certificate_file import Certificate
from replicator.lifecycle.purge.state import PurgeRun, RunDirectory, runs
from replicator.lifecycle.retention.datasets import Explained, ExplainedValue
from replicator.service.store import AdHocRun
from replicator.service.web.actions import (
    UNDO,
    Consent,
    HoldAsk,
    Id,
    KnownRoot,
    LegalHoldAsk,
    RemovalAsk,
    RootAsk,
    UndoAsk,
    What,
    consented,
    do_once,
    known_roots,
    options_of,
    queue_once,
    root_for,
    serving_of,
)
from replicator.service.web.endpoint import Asking
from replicator.service.web.responses import Ask, Asked
from replicator.service.web.router import within
from replicator.service.web.serving import Who, require

SECRET = re.compile(r"passw|secret|token|credential|access[._]?key|private[._]?key", re.IGNORECASE)
"""Keys whose values no response contains."""

ROWS = 1_000_000


# ---- housekeeping -------------------------------------------------------------------------------------------------

FILTERS = (
    *("db", "table", "partition", "status", "lifecycle"),
    *("deleted_before", "deleted_after", "registered_before", "registered_after"),
)
"""Filters of `housekeeping ls`, except `path`: to compare paths, it accesses the location that a client names."""


@dataclass(frozen=True)
class ItemList:
    """Items, by id. store: where they are stored. totalElements: of all pages; states: all of the store by state."""

    store: str
    content: list[dict[str, Any]]
    totalElements: int
    states: dict[str, int]


def items(asking: Asking) -> ItemList:
    """Returns a page of `limit` items, so that an offset is a multiple of it; one extra entry shows that there is
    another page."""
    given = {name: asking.values[name] for name in FILTERS if asking.values[name] is not None}
    page = asking.offset // asking.limit
    if asking.serving.config.housekeeping.store:  # it has the items of all roots
        require(asking.who, "viewer", "")
    with opened(asking.root.place, asking.serving.config.housekeeping.store) as store:
        try:
            store.check()
        except UsageError as error:
            raise ObjectNotFound(error.message, hint=error.hint) from None
    found = housekeeping_ls(
        cmroot=asking.root.place, config=asking.serving.config, size=asking.limit, page=page, **given
    )
    content = [one.as_json() for one in found.items]
    if asking.offset + asking.limit < found.total:
        content.append({})
    return ItemList(found.store, content, found.total, found.states)


# ---- retention ----------------------------------------------------------------------------------------------------


def explained(asking: Asking) -> Explained:
    """Explains the settings of a dataset. The job file is that of a configured job; secrets are hidden. Raises
    ObjectNotFound, UsageError."""
    name, path = asking.values["job"], asking.values["path"]
    jobs = {key: job.command for key, job in asking.serving.config.service.jobs.items()}
    there = sorted(key for key, command in jobs.items() if command[:2] == ("retention", "run"))
    if name not in there:
        hint = f"jobs with `retention run`: {', '.join(there) or 'none is configured'}"
        raise ObjectNotFound(f"no retention job is named {name!r}", hint=hint)
    command = jobs[name]
    if len(command) < 3 or command[2].startswith("-"):
        hint = "put the job file first: command = ['retention', 'run', FILE, ...]"
        raise UsageError(f"the job file of {name!r} cannot be distinguished from its options", hint=hint)
    if ".." in path.split("/") or any(len(each.encode()) > 255 for each in path.split("/")):
        raise UsageError(f"{path[:100]!r} is not a dataset path", hint="write it as in the configuration")
    found = retention_explain(path, job=command[2], job_settings=_settings(command), config=asking.serving.config)
    values = [_hidden(each) for each in found.values]
    return Explained(found.path, found.store, found.version, found.nodes, values, found.warnings)


def _settings(command: tuple[str, ...]) -> list[str]:
    found = [each.removeprefix("--set=") for each in command if each.startswith("--set=")]
    return found + [after for each, after in pairwise(command) if each == "--set"]


def _hidden(value: ExplainedValue) -> ExplainedValue:
    if not SECRET.search(value.key):
        return value
    return ExplainedValue(value.key, "(not shown)", value.at, value.through, value.hides, value.far)


# ---- purges -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PurgeView:
    """A purge, or a restore of a purge's backups. request: its parameters. ids: how many."""

    id: str
    status: str
    started: str
    ended: str
    ids: int
    tables: tuple[str, ...]
    request: dict[str, Any]

    @classmethod
    def of(cls, run: PurgeRun) -> PurgeView:
        return cls(run.id, run.status, run.started, run.ended, run.ids, run.tables, run.request)


@dataclass(frozen=True)
class PurgeList:
    """Purges, newest first."""

    root: str
    purges: list[PurgeView]


@dataclass(frozen=True)
class PurgeDetail:
    """A purge with its partitions: how many in each state, rows erased, bytes rewritten, the first that are not
    done."""

    purge: PurgeView
    states: dict[str, int] = field(default_factory=dict)
    rows_erased: int = 0
    bytes_rewritten: int = 0
    open_count: int = 0
    open: list[dict[str, Any]] = field(default_factory=list)


def purges(asking: Asking) -> PurgeList:
    there = list(reversed(runs(asking.root.place)))[asking.offset : asking.offset + asking.limit + 1]
    return PurgeList(asking.root.place, [PurgeView.of(each.read_run()) for each in there])


def purge(asking: Asking) -> PurgeDetail:
    """Returns a purge. Raises ObjectNotFound."""
    directory = _directory(asking)
    units = directory.units().values()
    states: dict[str, int] = {}
    for unit in units:
        states[unit.state] = states.get(unit.state, 0) + 1
    undone = [
        {"object": unit.name, "state": unit.state, "reason": unit.reason} for unit in units if unit.state != "DONE"
    ]
    done = [unit for unit in units if unit.state in ("DONE", "SWAPPED")]
    erased, rewritten = sum(unit.matched for unit in done), sum(unit.bytes_after for unit in done)
    return PurgeDetail(
        PurgeView.of(directory.read_run()), states, erased, rewritten, len(undone), undone[: asking.limit]
    )


def certificate(asking: Asking) -> Certificate:
    """Returns the newest certificate that covers a purge. Raises ObjectNotFound."""
    id = _directory(asking).id
    rows = audit_ls(
        cmroot=asking.root.place, job="purge", outcome="done", newest=True, limit=ROWS, config=asking.serving.config
    )
    said = (msgspec.json.decode(row.detail) for row in rows.found if row.what == "certificate" and row.detail)
    found = [each for each in said if id in each.get("runs", ())]
    if not found:
        hint = f"`replicator purge certify --run {id}` creates one"
        raise ObjectNotFound(f"purge {id} has no certificate", hint=hint)
    return msgspec.convert(max(found, key=lambda each: str(each["time"])), Certificate)


def _directory(asking: Asking) -> RunDirectory:
    id = asking.values["purge"]
    found = next((each for each in runs(asking.root.place) if each.id == id), None)
    if found is None:
        raise ObjectNotFound(f"purge {id[:100]!r} does not exist", hint="GET purges lists them")
    return found


# ---- actions ---------------------------------------------------------------------------------------------------------


Number = Annotated[int, Path(ge=1, le=2**53)]

SECONDS = 90.0
"""Time limit of an action that calls a command: some wait a minute for a run in progress."""


class ActionRoute(APIRoute):
    """A route whose actions call commands within a time limit. A call that exceeds it continues; its record contains
    the outcome."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
        bounded = within(SECONDS, _place_of, lambda request: request.app.state.deed_askers)
        super().__init__(path, bounded(endpoint), **more)


def _place_of(given: dict[str, Any]) -> str:
    """Returns the location of the root in the path or the body; "" for none."""
    name = given.get("root") or given["ask"].root
    found = known_roots(_config(given["request"])).get(name)
    return found.place if found else ""


root_actions = APIRouter(prefix="/api/v1", route_class=ActionRoute)


@root_actions.post("/cmroots/{root}/holds", status_code=201)
def add_root_hold(request: Request, who: Who, root: str, ask: HoldAsk) -> dict[str, Any]:
    """Holds a recovery point, as `replicator cm hold`."""
    found = root_for(request, who, "operator", root)

    def do() -> Any:
        return cm_hold(
            ask.name, cmroot=found.place, at=ask.at, reason=_signed(who, ask.reason), config=_config(request)
        ).to_dict()

    return _given(do_once(request, who, What("hold", f"{root}/{ask.name}", ask.reason), do))


@root_actions.post("/cmroots/{root}/holds/{name}:release")
def release_root_hold(request: Request, who: Who, root: str, name: Id, ask: Ask) -> dict[str, Any]:
    """Releases a hold, as `replicator cm release`; contents that only it requires are removed by the next expiry."""
    found = root_for(request, who, "operator", root)

    def do() -> Any:
        return cm_release(name, cmroot=found.place, config=_config(request)).to_dict()

    return _given(do_once(request, who, What("release hold", f"{root}/{name}", ask.reason), do))


@root_actions.post("/cmroots/{root}/slots/{name}:drop")
def drop_slot(request: Request, who: Who, root: str, name: Id, ask: Consent) -> dict[str, Any]:
    """Drops the slot of a consumer, as `replicator cm slots drop`; confirm: the slot. For admins."""
    found = root_for(request, who, "admin", root)
    consented(ask, name, f"dropping slot {name}")

    def do() -> Any:
        return cm_slots_drop(name, cmroot=found.place, config=_config(request)).to_dict()

    return _given(do_once(request, who, What("drop slot", f"{root}/{name}", ask.reason), do))


@root_actions.post("/legal-holds", status_code=201)
def add_legal_hold(request: Request, who: Who, ask: LegalHoldAsk) -> dict[str, Any]:
    """Forbids all jobs to remove objects, as `replicator legal-hold add`."""
    return _legal_hold(request, who, ask, ask.name, "legal hold")


@root_actions.post("/removals:hold", status_code=201)
def hold_removal(request: Request, who: Who, ask: RemovalAsk) -> dict[str, Any]:
    """Adds a legal hold, with a generated name, on a pending removal."""
    return _legal_hold(request, who, ask, f"removal-{uuid.uuid4().hex[:12]}", "hold removal")


@root_actions.post("/legal-holds/{name}:release")
def release_legal_hold(request: Request, who: Who, name: Id, ask: RootAsk) -> dict[str, Any]:
    """Releases a legal hold, so that jobs may remove what it covered, as `replicator legal-hold release`. For
    admins."""
    found = root_for(request, who, "admin", ask.root)

    def do() -> Any:
        return legal_hold_release(name, cmroot=found.place, config=_config(request)).to_dict()

    return _given(do_once(request, who, What("release legal hold", f"{ask.root}/{name}", ask.reason), do))


@root_actions.post("/housekeeping/items/{item}:cancel")
def cancel_item(request: Request, who: Who, item: Number, ask: RootAsk) -> dict[str, Any]:
    """Cancels the removal of an item, as `replicator housekeeping cancel`. Waits up to a minute for a run in progress
    (409)."""
    found = _of_items(request, who, ask)

    def do() -> Any:
        reason = _signed(who, ask.reason)
        return housekeeping_cancel([item], cmroot=found.place, reason=reason, config=_config(request)).to_dict()

    return _given(do_once(request, who, What("cancel item", f"{ask.root}/{item}", ask.reason), do))


@root_actions.post("/housekeeping/items/{item}:rearm")
def rearm_item(request: Request, who: Who, item: Number, ask: RootAsk) -> dict[str, Any]:
    """Allows another try of an item, as `replicator housekeeping rearm`. Waits up to a minute for a run in progress
    (409)."""
    found = _of_items(request, who, ask)

    def do() -> Any:
        return housekeeping_rearm([item], cmroot=found.place, config=_config(request)).to_dict()

    return _given(do_once(request, who, What("rearm item", f"{ask.root}/{item}", ask.reason), do))


@root_actions.post("/audit/{run}:undo", status_code=202)
def undo_removal(request: Request, who: Who, run: Id, ask: UndoAsk) -> Asked:
    """Restores the files that a run removed, as `replicator audit undo`; confirm: the run."""
    found = root_for(request, who, "operator", ask.root)
    if not ask.dry_run:
        consented(ask, run, f"undoing {run}")
    arguments = ("audit", "undo", f"--cmroot={found.place}", f"--run={run}", *options_of(ask))
    ad_hoc_run = AdHocRun(f"{UNDO}{ask.root}", arguments, _policy(found))
    return queue_once(request, who, What("undo", f"{ask.root}/{run}", ask.reason), ad_hoc_run)


def _legal_hold(request: Request, who: Who, ask: RemovalAsk, name: str, action: str) -> dict[str, Any]:
    found = root_for(request, who, "operator", ask.root)
    subject = f"{ask.root}/{ask.on if action == 'hold removal' else name}"

    def do() -> Any:
        return legal_hold_add(
            name,
            cmroot=found.place,
            pattern=ask.on,
            reason=_signed(who, ask.reason),
            until=ask.until or "",
            config=_config(request),
        ).to_dict()

    return _given(do_once(request, who, What(action, subject, ask.reason), do))


def _of_items(request: Request, who: Who, ask: RootAsk) -> KnownRoot:
    """Returns the root of an item; a store named in [housekeeping] has the items of all policies."""
    if _config(request).housekeeping.store:
        require(who, "operator", "")
    return root_for(request, who, "operator", ask.root)


def _policy(root: KnownRoot) -> str:
    """Returns the policy of the run, which must not run concurrently with another run of that policy."""
    return root.policies[0] if root.policies else ""


def _signed(who: Who, reason: str) -> str:
    """Appends the user's name to a reason: the holds and items themselves know this process only."""
    return f"{reason} ({who.name})".strip()


def _config(request: Request) -> Any:
    return serving_of(request).config


def _given(answer: Any) -> dict[str, Any]:
    """Returns a response, new or stored."""
    found: dict[str, Any] = answer
    return found
