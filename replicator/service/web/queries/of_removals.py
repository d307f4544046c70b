"""Queries about pending and past removals: items of housekeeping, settings of retention, purges and their
certificates."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from replicator.commands.audit import audit_ls
from replicator.commands.housekeeping import housekeeping_ls
from replicator.commands.retention import retention_explain
from replicator.errors import ObjectNotFound, UsageError
from replicator.lifecycle.housekeeping.run import opened
from replicator.lifecycle.purge.certify import Certificate
from replicator.lifecycle.purge.state import PurgeRun, RunDirectory, runs
from replicator.lifecycle.retention.datasets import Explained, ExplainedValue
from replicator.service.web.queries.endpoint import Asking
from replicator.service.web.serving import require

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
        raise ObjectNotFound(f"no job {name!r} runs retention", hint=hint)
    command = jobs[name]
    if len(command) < 3 or command[2].startswith("-"):
        hint = "write the job file first: command = ['retention', 'run', FILE, ...]"
        raise UsageError(f"the job file of {name!r} cannot be told from its options", hint=hint)
    if ".." in path.split("/") or any(len(each.encode()) > 255 for each in path.split("/")):
        raise UsageError(f"{path[:100]!r} is no path of a dataset", hint="write it as the configuration spells it")
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
    rows = audit_ls(cmroot=asking.root.place, job="purge", outcome="done", limit=ROWS, config=asking.serving.config)
    said = (msgspec.json.decode(row.detail) for row in rows.found if row.what == "certificate" and row.detail)
    found = [each for each in said if id in each.get("runs", ())]
    if not found:
        hint = f"`replicator purge certify --run {id}` makes one"
        raise ObjectNotFound(f"purge {id} has no certificate", hint=hint)
    return msgspec.convert(max(found, key=lambda each: str(each["time"])), Certificate)


def _directory(asking: Asking) -> RunDirectory:
    id = asking.values["purge"]
    found = next((each for each in runs(asking.root.place) if each.id == id), None)
    if found is None:
        raise ObjectNotFound(f"there is no purge {id[:100]!r}", hint="GET purges lists them")
    return found
