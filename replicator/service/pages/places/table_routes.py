"""The page of a table: its whole life on one line of time, each moment with the command that restores to there."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from replicator.core.config import Config
from replicator.service.pages.places.lifeline import LANES, lifeline_of
from replicator.service.pages.places.root_asking import RootPage, asked, chosen_root, config_of
from replicator.service.pages.rendering import render
from replicator.service.pages.visiting import Visiting
from replicator.service.web.queries.named_roots import NamedRoot, normal_place
from replicator.service.web.queries.of_tables import KINDS

ROWS = 200
"""Entries of a page."""

WORDS = {
    "record": "change",
    "run": "run of a policy",
    "dump": "dump",
    "hold": "hold",
    "verification": "comparison",
    "removal": "removal",
}
"""What a kind of entry is called."""

RESTORED = frozenset({"record", "dump", "hold"})
"""Kinds that are a moment to go back to."""

Moment = Annotated[str, Query(max_length=100)]

Kind = Literal["", *KINDS]  # type: ignore[valid-type]  # texts of another module

tables = APIRouter(route_class=RootPage, include_in_schema=False)


@dataclass(frozen=True)
class Filters:
    """kind, since, until: only these entries. cursor: where the page begins."""

    kind: Kind = ""
    since: Moment = ""
    until: Moment = ""
    cursor: Annotated[str, Query(max_length=400)] = ""


Only = Annotated[Filters, Depends()]


@tables.get("/tables/{table}")
def one_table(
    request: Request, visitor: Visiting, table: str, only: Only, root: str = "", policy: str = ""
) -> Response:
    """What happened to it, newest first."""
    roots, chosen = chosen_root(request, visitor.identity, root, policy)
    filters = {name: value or None for name, value in asdict(only).items()}
    shown: dict[str, Any] = {"entries": [], "next": None, "said": None}
    if chosen:
        given = {"table": table, "root": chosen.name, "order": "newest", "limit": ROWS, **filters}
        said = asked(request, visitor.identity, "tables/{table}/timeline", **given)
        found = said.found or {"entries": [], "next": None}
        undo = _restores(config_of(request), chosen, policy, table)
        entries = [
            {**each, "restore": [*undo, str(each["event"])] if each["kind"] in RESTORED and each["event"] else []}
            for each in found["entries"]
        ]
        shown = {"entries": entries, "next": found["next"], "said": said}
    more = {"table": table, "roots": roots, "root": chosen, **asdict(only)}
    names = {"words": WORDS, "kinds": list(LANES), "policy": policy, "drawing": lifeline_of(shown["entries"])}
    return render(request, "table.html", {**shown, **more, **names})


def _restores(config: Config, root: NamedRoot, policy: str, table: str) -> list[str]:
    """The command that restores a table, up to its moment."""
    owners = [name for name in root.policies if normal_place(config.policies[name].cmroot) == root.place]
    owner = policy if policy in owners else next(iter(owners), "")
    about = [owner] if owner else [f"--cmroot={shlex.quote(root.place)}", "--target", "METASTORE"]
    db, _, name = table.partition(".")
    return ["replicator restore", *about, "--db", shlex.quote(db), "--table", shlex.quote(name), "--to"]
