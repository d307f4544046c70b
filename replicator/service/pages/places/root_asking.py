"""Which root a page is about, and the responses of queries and commands about it, or why they do not.

A root is one that the configuration names: no address of a page can open another place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import HTTPException, Request

from replicator.core.config import Config
from replicator.errors import Error
from replicator.service.auth.api_tokens import Identity
from replicator.service.pages.visiting import PageRoute
from replicator.service.web.actions.bodies import body_from
from replicator.service.web.actions.known_roots import known_roots
from replicator.service.web.actions.root_actions import SECONDS as ACTING
from replicator.service.web.permission import require
from replicator.service.web.queries.catalogue import ENDPOINTS
from replicator.service.web.queries.endpoint import CommandFailed
from replicator.service.web.queries.named_roots import NamedRoot, normal_place, roots_of
from replicator.service.web.queries.of_roots import SLOW
from replicator.service.web.queries.router import answer_to
from replicator.service.web.queries.time_limits import Late
from replicator.service.web.queries.within import within
from replicator.service.web.serving import Serving

T = TypeVar("T")

PATIENCE = 20.0
"""Seconds for a page about a root: what it asks has its own limits, of which the page then tells."""

_ASKED = {each.path: each for each in ENDPOINTS}
_ORDER = ("policies/", "defaults/", "jobs/")


class RootPage(PageRoute):
    """Its pages call commands about a root, each in a thread of its own and within a time limit, as for queries; its
    forms as actions are."""

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
    """Of what reads a whole log, in a process of its own."""

    seconds, process = SLOW + 10.0, True


def _asked_root(given: dict[str, Any]) -> str:
    """The place that a page is about. Raises as `chosen_root`."""
    root = given.get("root") or given.get("fields", {}).get("root", "")
    chosen = chosen_root(given["request"], given["visitor"].identity, root, given.get("policy", ""))[1]
    return chosen.place if chosen else ""


@dataclass(frozen=True)
class Said:
    """What a command answered, or why it did not."""

    found: Any = None
    error: str = ""
    hint: str = ""


def said(ask: Callable[[], object]) -> Said:
    """Of a command or endpoint: what failed is shown, and the rest of the page is, too."""
    try:
        return Said(ask())
    except Error as error:
        return Said(None, error.message, error.hint or "")
    except Late:
        return Said(None, "it took too long", "ask for less, or on the command line, which has no such limit")
    except CommandFailed as failed:
        return Said(None, str(failed.said.get("message") or "the command failed"), str(failed.said.get("hint") or ""))


def asked(request: Request, who: Identity, endpoint: str, /, **given: Any) -> Said:
    """The response of a query, by its path."""
    return said(lambda: answer_to(_ASKED[endpoint], request, who, given))


def config_of(request: Request) -> Config:
    """As it was read last."""
    serving: Serving = request.app.state.serving
    return serving.config


def shown_roots(config: Config, who: Identity) -> list[NamedRoot]:
    """Each place once, by the first of its names, of those that somebody may look at: of policies, of [defaults], of
    jobs."""
    found: dict[str, NamedRoot] = {}
    for kind in _ORDER:
        for each in roots_of(config):
            if each.name.startswith(kind) and each.may(who):
                found.setdefault(each.place, each)
    return list(found.values())


def chosen_root(request: Request, who: Identity, root: str, policy: str) -> tuple[list[NamedRoot], NamedRoot | None]:
    """All roots, and the one that is meant: by its place or name, else the policy's source's, else the first. Raises
    HTTPException 404 for one that is not configured."""
    config = config_of(request)
    if policy:
        require(who, "viewer", policy)
    roots = shown_roots(config, who)
    if not root and policy in config.policies:
        root = config.policies[policy].cmroot
    if not root and not policy:
        return roots, roots[0] if roots else None
    names = {each.name: each.place for each in roots_of(config)}
    place = names.get(root) or normal_place(root)
    found = next((each for each in roots if each.place == place), None)
    if found is None:
        raise HTTPException(404, f"no $cmroot {root or f'of {policy!r}'!s} is configured that you may look at")
    return roots, found


def acting_name(config: Config, root: NamedRoot | None) -> str:
    """By which actions know a root; "" where they do not."""
    known = known_roots(config).items()
    return next((name for name, each in known if root and normal_place(each.place) == root.place), "")


def may_change(visitor: Any, root: NamedRoot | None, role: str = "operator") -> bool:
    """Whether forms about a root are shown."""
    users = root.policies or ("",) if root else ("",)
    return bool(visitor.cookie or visitor.mark) and all(visitor.identity.may(role, each) for each in users)


def body_of(kind: type[T], fields: Mapping[str, str], given: Mapping[str, Any], *names: str) -> T:
    """The body of an action, of those fields of a form that were filled. Raises UsageError for what it does not
    take, as the API does."""
    filled = {name: fields[name].strip() for name in names if fields.get(name, "").strip()}
    return body_from(kind, {**given, **filled})
