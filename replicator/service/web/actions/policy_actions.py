"""Actions on policies: a table from an address to a command line, and restores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, HTTPException, Request

from replicator.core.policy import Policy, matching_databases
from replicator.errors import UsageError
from replicator.service.ad_hoc_runs import AdHocRun
from replicator.service.auth.api_tokens import Role
from replicator.service.web.actions.bodies import (
    Consent,
    DrillAsk,
    FailbackAsk,
    FailoverAsk,
    PlanAsk,
    RepairAsk,
    RestoreAsk,
    SwitchoverAsk,
    VerifyAsk,
    consented,
    only,
    options_of,
)
from replicator.service.web.actions.recorded import What, queue_once, serving_of
from replicator.service.web.permission import Who, require
from replicator.service.web.views import Ask, Asked

PLAN = "plan.json"
"""A plan's file, in the output of the run that made it."""


def _never(ask: Any) -> bool:
    return False


def _really(ask: Any) -> bool:
    return not ask.dry_run


@dataclass(frozen=True)
class PolicyAction:
    """An action on a policy that is a run of the command of its name. dangerous: whether it needs consent. more:
    arguments that are always given."""

    name: str
    body: type[Ask]
    summary: str
    role: Role = "operator"
    dangerous: Callable[[Any], bool] = _never
    more: tuple[str, ...] = ()


PLANNING = PolicyAction(
    "plan", PlanAsk, "Makes a plan of the next run; its id is the run's.", more=("--out", f"@/{PLAN}")
)
POLICY_ACTIONS = (
    PolicyAction("verify", VerifyAsk, "Compares both sides."),
    PolicyAction("drill", DrillAsk, "Rehearses a failover on shadow databases."),
    PLANNING,
    PolicyAction("repair", RepairAsk, "Copies what differs.", dangerous=_really),
    PolicyAction("switchover", SwitchoverAsk, "Exchanges primary and replica.", "admin", _really),
    PolicyAction("failover", FailoverAsk, "Makes the replica the primary.", "admin", lambda ask: bool(ask.force)),
    PolicyAction("failback", FailbackAsk, "Makes the old primary the replica.", "admin", _really),
)

policy_actions = APIRouter(prefix="/api/v1")


def policy_for(request: Request, who: Who, role: Role, name: str) -> Policy:
    """Raises HTTPException 404 where there is no such policy, and as `require`."""
    require(who, role, name)
    found = serving_of(request).config.policies.get(name)
    if found is None:
        raise HTTPException(404, f"nothing is called {name!r} here")
    return found


def databases_among(policy: Policy, names: Sequence[str]) -> list[str]:
    """Those of the names, in lower case, that the policy has at its source or its target."""
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
    """Makes a database of a policy, or tables of it, as at an event or a time, at the policy's primary, under another
    name; with `force` over one that exists."""
    found = policy_for(request, who, "operator", ask.policy)
    over = (ask.into or "",) if ask.force else ()
    if "" in over:
        raise UsageError("force without into", hint="name the database that is written over in `into`")
    only((ask.db, *over), databases_among(found, (ask.db, *over)), ask.policy)
    if ask.force and not ask.dry_run:
        consented(ask, ask.into or "", f"a restore over {ask.into}")
    ad_hoc_run = AdHocRun(f"restore:{ask.policy}", ("restore", ask.policy, *options_of(ask)), ask.policy)
    return queue_once(request, who, What("restore", f"{ask.policy}/{ask.db}", ask.reason), ad_hoc_run)
