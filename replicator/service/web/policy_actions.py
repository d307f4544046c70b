"""Actions on policies: a table from an address to a command line, restores, and plans with their approval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, HTTPException, Query, Request

from replicator.core.policy import Policy, matching_databases
from replicator.errors import ObjectNotFound, Refused, UsageError
from replicator.service.api_tokens import Role
from replicator.service.runs import RunFilter, ServiceRun, answer_of, iso
from replicator.service.store import Action, AdHocRun, ServiceStore, actions_about, is_open
from replicator.service.web.actions import (
    ApplyAsk,
    Consent,
    DrillAsk,
    FailbackAsk,
    FailoverAsk,
    Id,
    PlanAsk,
    RepairAsk,
    RestoreAsk,
    SwitchoverAsk,
    VerifyAsk,
    What,
    consented,
    do_once,
    only,
    options_of,
    queue_once,
    serving_of,
)
from replicator.service.web.api import refuse_unknown_parameters
from replicator.service.web.responses import Ask, Asked, RunView
from replicator.service.web.serving import Who, require

PLAN = "plan.json"
"""A plan's file, in the output of the run that created it."""


def _never(ask: Any) -> bool:
    return False


def _really(ask: Any) -> bool:
    return not ask.dry_run


@dataclass(frozen=True)
class PolicyAction:
    """An action on a policy that runs the command of its name. dangerous: returns True if it requires consent. more:
    arguments that are always passed."""

    name: str
    body: type[Ask]
    summary: str
    role: Role = "operator"
    dangerous: Callable[[Any], bool] = _never
    more: tuple[str, ...] = ()


PLANNING = PolicyAction(
    "plan", PlanAsk, "Creates a plan of the next run; its id is the id of the run.", more=("--out", f"@/{PLAN}")
)
POLICY_ACTIONS = (
    PolicyAction("verify", VerifyAsk, "Compares both sides."),
    PolicyAction("drill", DrillAsk, "Rehearses a failover on shadow databases."),
    PLANNING,
    PolicyAction("repair", RepairAsk, "Repairs the replica where it differs.", dangerous=_really),
    PolicyAction("switchover", SwitchoverAsk, "Exchanges primary and replica.", "admin", _really),
    PolicyAction("failover", FailoverAsk, "Makes the replica the primary.", "admin", lambda ask: bool(ask.force)),
    PolicyAction("failback", FailbackAsk, "Makes the old primary the replica.", "admin", _really),
)

policy_actions = APIRouter(prefix="/api/v1")


def policy_for(request: Request, who: Who, role: Role, name: str) -> Policy:
    """Returns a policy. Raises HTTPException 404 if it does not exist, and as `require`."""
    require(who, role, name)
    found = serving_of(request).config.policies.get(name)
    if found is None:
        raise HTTPException(404, f"policy {name!r} is not configured")
    return found


def databases_among(policy: Policy, names: Sequence[str]) -> list[str]:
    """Returns the names, in lower case, that the policy has at its source or its target."""
    lower = [name.lower() for name in names]
    replicas = {*policy.rename_db.values()}
    return [*matching_databases(policy, lower), *(name for name in lower if name in replicas)]


def queue_action(action: PolicyAction, request: Request, who: Who, policy: str, ask: Any) -> Asked:
    """Queues a run of the action; `ask` is an `action.body`. Raises as `policy_for`, and UsageError without consent."""
    found = policy_for(request, who, action.role, policy)
    if action.dangerous(ask):
        assert isinstance(ask, Consent)
        consented(ask, policy, f"{action.name} of {policy}")
    given: Any = getattr(ask, "db", None) or ()
    wanted = (given,) if isinstance(given, str) else given
    only(wanted, databases_among(found, wanted), policy)
    ad_hoc_run = AdHocRun(f"{action.name}:{policy}", (action.name, policy, *action.more, *options_of(ask)), policy)
    return queue_once(request, who, What(action.name, policy, ask.reason), ad_hoc_run)


def _add(action: PolicyAction) -> None:
    def act(request: Request, who: Who, policy: str, ask: Any) -> Asked:
        return queue_action(action, request, who, policy, ask)

    act.__name__, act.__doc__ = f"{action.name}_policy", action.summary
    act.__annotations__["ask"] = action.body
    policy_actions.post(f"/policies/{{policy}}:{action.name}", status_code=202)(act)


for _each in POLICY_ACTIONS:
    _add(_each)


@policy_actions.post("/restores", status_code=202)
def restore_database(request: Request, who: Who, ask: RestoreAsk) -> Asked:
    """Restores a database of a policy, or tables of it, to an event or a time, at the policy's primary, under another
    name; with `force` over an existing one."""
    found = policy_for(request, who, "operator", ask.policy)
    over = (ask.into or "",) if ask.force else ()
    if "" in over:
        raise UsageError("force requires into", hint="set `into` to the database to overwrite")
    only((ask.db, *over), databases_among(found, (ask.db, *over)), ask.policy)
    if ask.force and not ask.dry_run:
        consented(ask, ask.into or "", f"restoring over {ask.into}")
    ad_hoc_run = AdHocRun(f"restore:{ask.policy}", ("restore", ask.policy, *options_of(ask)), ask.policy)
    return queue_once(request, who, What("restore", f"{ask.policy}/{ask.db}", ask.reason), ad_hoc_run)


# ---- plan actions ----------------------------------------------------------------------------------------------------
# Plans: what the next run of a policy would do, created by one call, approved or refused by another, then applied.


DECISIONS = ("approve", "refuse")
MADE = ("done", "partial")
"""States of a run that created a plan."""

APPLIED = (0, 3, 4)
"""Exit codes of a run that applied a plan."""

PlanState = Literal["planning", "failed", "planned", "approved", "refused", "applying", "applied", "not applied"]

plan_actions = APIRouter(prefix="/api/v1/plans")


@dataclass(frozen=True)
class Decision:
    """A decision about a plan. decision: "approve" or "refuse". at: ISO 8601."""

    decision: str
    who: str
    at: str | None
    reason: str


Does = Literal["create", "alter", "copy", "drop"]
_DOES: tuple[tuple[str, Does, str], ...] = (
    ("create_databases", "create", "database"),
    ("create_tables", "create", "table"),
    ("functions", "create", "function"),
    ("alter_tables", "alter", "table"),
    ("rename_tables", "alter", "name"),
    ("drop_databases", "drop", "database"),
    ("drop_tables", "drop", "table"),
    ("drop_functions", "drop", "function"),
)
"""Lists of a plan's loads: what each does, and to what."""


@dataclass(frozen=True)
class PlanChange:
    """A change of a plan. kind: of the object; copies go into a directory. files, bytes: copied, or moved to the
    target's $cmroot; None: the plan does not count them by object. why: it is dropped."""

    does: Does
    kind: str
    object: str
    files: int | None = None
    bytes: int | None = None
    why: str = ""


def changes_of(said: Mapping[str, Any]) -> list[PlanChange]:
    """Returns everything that a plan creates, alters, copies and drops. said: the report of `replicator plan`."""
    found: dict[tuple[str, str, str], PlanChange] = {}

    def add(*given: Any) -> None:
        each = PlanChange(*given)
        before = found.get((each.does, each.kind, each.object))
        if before is None or before.files is None:
            found[each.does, each.kind, each.object] = each

    for load in said.get("loads", ()):
        for name, does, kind in _DOES:
            for each in load.get("steps", {}).get(name, ()):
                add(does, kind, each)
        for each in load.get("copies", ()):
            add("copy", "directory", each["directory"], each["files"], each["bytes"])
        for each in load.get("gone", ()):
            kind = "partition" if each["partition"] else "table"
            label = f"{each['object']}/{each['partition']}" if each["partition"] else each["object"]
            add("drop", kind, label, each["files"], each["bytes"], each["why"])
    named = {each.object for each in found.values() if each.does == "drop"}
    for each in said.get("drops", ()):
        if each not in named:
            add("drop", "object", each)
    return list(found.values())


@dataclass(frozen=True)
class PlanView:
    """A plan. made_by, made, reason: of the run that created it, which has the same id. price: its cost, as `replicator
    plan --json` reports it; None: there is no plan yet, or another server has its file. removed: tables and partitions
    that it drops, by name. changes: everything that it creates, alters,
    copies and drops. decisions: oldest first; the last one is valid. applied_by: runs that applied it, oldest
    first. state: "not applied": the last of them failed, and changed nothing if its exit code is 6."""

    id: str
    policy: str
    state: PlanState
    made_by: str
    made: str | None
    reason: str
    run: RunView
    price: dict[str, Any] | None
    removed: list[str]
    changes: list[PlanChange]
    empty: bool | None
    warnings: list[str]
    decisions: list[Decision]
    applied_by: list[RunView]


@dataclass(frozen=True)
class PlanSummary:
    """A plan, without its contents. id: of the run that created it."""

    id: str
    policy: str
    state: PlanState
    made_by: str
    made: str | None
    reason: str


@dataclass(frozen=True)
class PlanList:
    """Plans. next: the cursor of the following page; None: this is the last one."""

    items: list[PlanSummary]
    next: str | None


@plan_actions.get("", dependencies=[Depends(refuse_unknown_parameters)])
def list_plans(
    request: Request,
    who: Who,
    policy: str = "",
    cursor: Annotated[str, Query(pattern=r"^(\d{13}-[0-9a-f]{12})?$")] = "",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> PlanList:
    """Lists plans of the configured policies, newest first."""
    serving = serving_of(request)
    names = [name for name in serving.config.policies if policy in ("", name) and who.may("viewer", name)]
    if policy and not names:
        require(who, "viewer", policy)
    if not names:
        return PlanList([], None)
    wanted = RunFilter([f"plan:{name}" for name in names])
    with serving.store.together():
        found = serving.store.runs_where(wanted, before=cursor, limit=limit + 1)
        items = [_summary(serving.store, each) for each in found[:limit]]
    return PlanList(items, found[limit - 1].id if len(found) > limit else None)


def _summary(store: ServiceStore, run: ServiceRun) -> PlanSummary:
    state = _state(run, _decisions(store, run.id), _applied(store, run.id))
    return PlanSummary(run.id, run.policy, state, run.asked_by, iso(run.ended), run.reason)


@plan_actions.get("/{plan}")
def show_plan(request: Request, who: Who, plan: Id) -> PlanView:
    """Shows what a plan does and costs, who created it, the decisions about it, and the outcome."""
    serving = serving_of(request)
    run = _plan(request, who, "viewer", plan)
    decisions, applied = _decisions(serving.store, plan), _applied(serving.store, plan)
    said: Any = answer_of(serving.directory(plan)) if run.state in MADE else {}
    loads, drops = said.get("loads", []), said.get("drops", [])
    return PlanView(
        id=plan,
        policy=run.policy,
        state=_state(run, decisions, applied),
        made_by=run.asked_by,
        made=iso(run.ended),
        reason=run.reason,
        run=RunView.of(run),
        price=said.get("cost"),
        removed=list(drops),
        changes=changes_of(said),
        empty=not loads and not (drops and said.get("drop_left")) if said else None,
        warnings=list(said.get("warnings", [])),
        decisions=[Decision(each.action, each.who, iso(each.at), each.reason) for each in decisions],
        applied_by=[RunView.of(each) for each in applied],
    )


@plan_actions.post("/{plan}:approve", status_code=204)
def approve_plan(request: Request, who: Who, plan: Id, ask: Ask) -> None:
    """Allows a plan to be applied. A refused plan remains refused."""
    run = _made(request, who, plan)
    do_once(request, who, What("approve", run.id, ask.reason), lambda: _refuse_refused(_store(request), run))


@plan_actions.post("/{plan}:refuse", status_code=204)
def refuse_plan(request: Request, who: Who, plan: Id, ask: Ask) -> None:
    """Forbids a plan to be applied, approved or not. Too late (409) once it is being applied."""
    run = _made(request, who, plan)
    do_once(request, who, What("refuse", run.id, ask.reason), lambda: _refuse_begun(_store(request), run))


@plan_actions.post("/{plan}:apply", status_code=202)
def apply_plan(request: Request, who: Who, plan: Id, ask: ApplyAsk) -> Asked:
    """Does what an approved plan contains, and nothing else; the run refuses it (6) if the state has changed since."""
    run = _made(request, who, plan)
    policy_for(request, who, "operator", run.policy)
    consented(ask, run.policy, f"applying a plan of {run.policy}")
    _refuse_refused(_store(request), run)
    decisions = _decisions(_store(request), run.id)
    if not decisions:
        raise Refused(f"plan {run.id} is not approved", hint=f"review it, then POST plans/{run.id}:approve")
    ad_hoc_run = AdHocRun(f"apply:{run.policy}", ("apply", f"@{run.id}/{PLAN}", *options_of(ask)), run.policy)
    return queue_once(request, who, What("apply", run.id, ask.reason), ad_hoc_run)


def _store(request: Request) -> ServiceStore:
    return serving_of(request).store


def _plan(request: Request, who: Who, role: Role, id: str) -> ServiceRun:
    """Returns the run that created it. Raises ObjectNotFound for a run that creates no plan."""
    found = _store(request).run(id)
    require(who, role, found.policy)
    if found.job != f"plan:{found.policy}":
        raise ObjectNotFound(f"run {id} is not a plan", hint=f"POST policies/{found.policy or 'P'}:plan creates one")
    return found


def _made(request: Request, who: Who, id: str) -> ServiceRun:
    found = _plan(request, who, "operator", id)
    if found.state not in MADE:
        raise Refused(f"plan {id} was not created: its run is {found.state}", hint=found.hint or "see its run")
    return found


def _refuse_refused(store: ServiceStore, run: ServiceRun) -> None:
    last = _decisions(store, run.id)[-1:]
    if last and last[0].action == "refuse":
        said = f": {last[0].reason}" if last[0].reason else ""
        raise Refused(f"plan {run.id} was refused by {last[0].who}{said}", hint="create another plan")


def _refuse_begun(store: ServiceStore, run: ServiceRun) -> None:
    last = _applied(store, run.id)[-1:]
    if last and last[0].ended is None:
        hint = f"POST runs/{last[0].id}:cancel ends it; the next run completes what it has begun"
        raise Refused(f"plan {run.id} is being applied: run {last[0].id} is {last[0].state}", hint=hint)
    if last and last[0].exit_code in APPLIED:
        raise Refused(f"plan {run.id} was applied by run {last[0].id}", hint="create another plan, or restore")


def _decisions(store: ServiceStore, plan: Id) -> list[Action]:
    return [each for each in actions_about(store, plan, DECISIONS) if not is_open(each)]


def _applied(store: ServiceStore, plan: Id) -> list[ServiceRun]:
    found = dict.fromkeys(each.answer["run"] for each in actions_about(store, plan, ("apply",)))
    return store.runs_of(list(found))


def _state(run: ServiceRun, decisions: list[Action], applied: list[ServiceRun]) -> PlanState:
    if run.state not in MADE:
        return "planning" if run.ended is None else "failed"
    if applied and applied[-1].ended is None:
        return "applying"
    if applied:
        return "applied" if applied[-1].exit_code in APPLIED else "not applied"
    if not decisions:
        return "planned"
    return "approved" if decisions[-1].action == "approve" else "refused"
