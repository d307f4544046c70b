"""Plans on pages: what the next run of a policy would do, to be looked at, decided, and applied. Each form does and
records what the API's action does."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from replicator.service.pages.rendering import render
from replicator.service.pages.visiting import Acting, Fields, PageRoute, Visiting
from replicator.service.web.actions.bodies import ApplyAsk, PlanAsk, body_of
from replicator.service.web.actions.plan_actions import apply_plan, approve_plan, refuse_plan, show_plan
from replicator.service.web.actions.policy_actions import PLANNING, queue_action
from replicator.service.web.views import Ask

plans = APIRouter(route_class=PageRoute, include_in_schema=False)


@plans.get("/plans/{plan}")
def one_plan(request: Request, visitor: Visiting, plan: str) -> Response:
    """A plan: its price, what goes by name, who decided what, what became of it."""
    return render(request, "plan.html", {"plan": show_plan(request, visitor.identity, plan)})


@plans.post("/policies/{policy}/plan")
def make_plan(request: Request, visitor: Acting, fields: Fields, policy: str) -> Response:
    """Makes a plan, and leads to it."""
    asked = queue_action(PLANNING, request, visitor.identity, policy, PlanAsk(_reason(fields)))
    return RedirectResponse(f"/plans/{asked.run}", 303)


@plans.post("/plans/{plan}/approve")
def approve(request: Request, visitor: Acting, fields: Fields, plan: str) -> Response:
    """Lets it be applied."""
    approve_plan(request, visitor.identity, plan, Ask(_reason(fields)))
    return RedirectResponse(f"/plans/{plan}", 303)


@plans.post("/plans/{plan}/refuse")
def refuse(request: Request, visitor: Acting, fields: Fields, plan: str) -> Response:
    """It is not to be applied."""
    refuse_plan(request, visitor.identity, plan, Ask(_reason(fields)))
    return RedirectResponse(f"/plans/{plan}", 303)


@plans.post("/plans/{plan}/apply")
def apply(request: Request, visitor: Acting, fields: Fields, plan: str) -> Response:
    """Applies it, with the policy's name typed again, and leads to the run."""
    given = {name: value for name, value in fields.items() if value and name != "csrf"}
    asked = apply_plan(request, visitor.identity, plan, body_of(ApplyAsk, given))
    return RedirectResponse(f"/runs/{asked.run}", 303)


def _reason(fields: dict[str, str]) -> str:
    return fields.get("reason", "")[:500]
