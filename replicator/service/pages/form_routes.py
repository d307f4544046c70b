"""Forms of the pages: each does and records what the API's action does, and leads back to a page."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from replicator.service.pages.visiting import Acting, Fields, PageRoute
from replicator.service.web import api
from replicator.service.web.views import Ask

forms = APIRouter(route_class=PageRoute, include_in_schema=False)


@forms.post("/jobs/{job:path}/run")
def run_now(request: Request, visitor: Acting, fields: Fields, job: str) -> Response:
    """Runs a job now, and leads to the run."""
    asked = api.run_job(request, visitor.identity, job, _ask(fields))
    return RedirectResponse(f"/runs/{asked.run}", 303)


@forms.post("/jobs/{job:path}/pause")
def pause(request: Request, visitor: Acting, fields: Fields, job: str) -> Response:
    """Pauses a job."""
    api.pause_job(request, visitor.identity, job, _ask(fields))
    return RedirectResponse(f"/jobs/{quote(job)}", 303)


@forms.post("/jobs/{job:path}/resume")
def resume(request: Request, visitor: Acting, fields: Fields, job: str) -> Response:
    """Resumes a job."""
    api.resume_job(request, visitor.identity, job, _ask(fields))
    return RedirectResponse(f"/jobs/{quote(job)}", 303)


@forms.post("/runs/{run}/cancel")
def cancel(request: Request, visitor: Acting, fields: Fields, run: str) -> Response:
    """Asks a run to end."""
    api.cancel(request, visitor.identity, run, _ask(fields))
    return RedirectResponse(f"/runs/{run}", 303)


def _ask(fields: dict[str, str]) -> Ask:
    return Ask(fields.get("reason", "")[:500])
