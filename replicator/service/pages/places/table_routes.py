"""The page of a table: its whole life on one line of time, each moment with the command that restores to there."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from replicator.core.config import Config
from replicator.service.pages.places.root_routes import RootPage, asked, chosen_root, config_of
from replicator.service.pages.rendering import Visiting, render
from replicator.service.web.queries.endpoint import NamedRoot, normal_place
from replicator.service.web.queries.of_tables import KINDS

# ---- lifeline --------------------------------------------------------------------------------------------------------
# A table's life as a drawing: a lane for each kind of what happened, on one line of time. Pure.


WIDTH, LEFT, RIGHT, LANE, TOP, BOTTOM = 720, 104, 14, 26, 8, 26

LANES = {
    "record": "changes",
    "run": "runs",
    "dump": "dumps",
    "hold": "holds",
    "verification": "comparisons",
    "removal": "removals",
}
"""Kinds of a timeline's entries, from above, as a person reads them."""

ILL = frozenset({"differs", "failed"})
TIMES = 4


@dataclass(frozen=True)
class Dot:
    """text: what it is, for a pointer that rests there."""

    x: float
    y: float
    text: str
    ill: bool


@dataclass(frozen=True)
class Label:
    """A text with where it begins."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Lifeline:
    """lanes: with their names; below: times, in UTC."""

    lanes: list[Label]
    dots: list[Dot]
    below: list[Label]
    height: int
    width: int = WIDTH
    left: int = LEFT
    right: int = WIDTH - RIGHT


def lifeline_of(entries: Sequence[Mapping[str, Any]]) -> Lifeline | None:
    """entries: of a timeline, as the API gives them. None for fewer than two times: a list says that. Of what falls on
    one place, one is drawn: what went wrong before what did not."""
    times = [datetime.fromisoformat(each["at"]).timestamp() for each in entries]
    if not times or min(times) == max(times):
        return None
    first, last = min(times), max(times)
    kinds = [kind for kind in LANES if any(each["kind"] == kind for each in entries)]
    heights = {kind: TOP + LANE * number + LANE / 2 for number, kind in enumerate(kinds)}

    def x(at: float) -> float:
        return round(LEFT + (at - first) / (last - first) * (WIDTH - LEFT - RIGHT), 1)

    drawn: dict[tuple[str, int], Dot] = {}
    for at, each in zip(times, entries, strict=True):
        ill = _is_ill(each)
        place = (each["kind"], int(x(at) / 3))
        if each["kind"] in heights and (place not in drawn or ill):
            drawn[place] = Dot(x(at), heights[each["kind"]], f"{each['at']}: {each['what']}", ill)
    height = TOP + LANE * len(kinds) + BOTTOM
    form = "%H:%M:%S" if last - first < 300 else "%H:%M" if last - first < 2 * 86_400 else "%b %d"
    ticks = [first + part * (last - first) / TIMES for part in range(TIMES + 1)]
    return Lifeline(
        lanes=[Label(LEFT - 12, heights[kind], LANES[kind]) for kind in kinds],
        dots=sorted(drawn.values(), key=lambda each: (each.y, each.x)),
        below=[Label(x(at), height - 8, datetime.fromtimestamp(at, UTC).strftime(form)) for at in ticks],
        height=height,
    )


def _is_ill(entry: Mapping[str, Any]) -> bool:
    said = str(entry["text"]) if entry["kind"] == "run" else str(entry["what"])
    return any(word in said.replace(":", " ").split() for word in ILL)


# ---- table routes ----------------------------------------------------------------------------------------------------


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
