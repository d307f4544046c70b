"""Actions over HTTP as command lines: fields are options, values stay values, progress is told in a file."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from fastapi import HTTPException
from pydantic import TypeAdapter
from waiting import CEILING, eventually

from replicator.cli import table
from replicator.core.connections import MetastoreConfig
from replicator.core.logging import ProgressFile
from replicator.core.policy import parse_policy
from replicator.core.service_config import JobConfig, ServiceConfig
from replicator.errors import ConfigError, Refused
from replicator.service.api_tokens import Identity
from replicator.service.jobs import jobs_of
from replicator.service.store import AdHocRun, ServiceStore, placed
from replicator.service.web import actions
from replicator.service.web.actions import (
    BESIDE,
    ApplyAsk,
    HoldAsk,
    RepairAsk,
    RestoreAsk,
    UndoAsk,
    What,
    do_once,
    options_of,
)
from replicator.service.web.policy_actions import POLICY_ACTIONS, databases_among
from replicator.service.web.responses import Ask
from replicator.service.web.serving import Serving

BODIES: dict[str, type[Ask]] = {
    **{each.name: each.body for each in POLICY_ACTIONS},
    "apply": ApplyAsk,
    "restore": RestoreAsk,
    "audit undo": UndoAsk,
}


def command_of(name: str) -> click.Command:
    first, _, second = name.partition(" ")
    found = table.commands()[first]
    return found.commands[second] if isinstance(found, click.Group) and second else found


@pytest.mark.parametrize("name", BODIES)
def test_a_field_is_an_option_that_opens_no_place(name: str) -> None:
    options = {each.name: each for each in command_of(name).params if isinstance(each, click.Option)}
    for field in dataclasses.fields(BODIES[name]):
        if field.name not in BESIDE:
            assert options[field.name].metavar not in ("PLACE", "FILE", "DIR", "METASTORE", "URL"), field.name


def test_a_value_stays_a_value() -> None:
    ask = RepairAsk(db="-x", table=("--allow-removals", "t"), dry_run=True)
    given = options_of(ask)
    assert given == ("--db=-x", "--table=--allow-removals", "--table=t", "--dry-run")
    parsed = command_of("repair").make_context("repair", ["west", *given]).params
    assert (parsed["db"], parsed["table"], parsed["allow_removals"]) == (("-x",), ("--allow-removals", "t"), False)
    assert TypeAdapter(HoldAsk).validate_python({"name": "a", "at": "yesterday"}).at == "yesterday"
    restore = RestoreAsk(policy="west", db="a", to="-90m", into="b", partition=("p=a/q=--x", "p=b"))
    parsed = command_of("restore").make_context("restore", ["west", *options_of(restore)]).params
    assert (parsed["to"], parsed["into"], parsed["force"]) == ("-90m", "b", False)
    assert tuple(parsed["partition"]) == ("p=a/q=--x", "p=b")


def test_files_of_runs_lie_where_their_outputs_do() -> None:
    assert placed("@/plan.json", "7", Path("/logs")) == "/logs/7/plan.json"
    assert placed("@6/plan.json", "7", Path("/logs")) == "/logs/6/plan.json"
    assert placed("--db=@6/x", "7", Path("/logs")) == "--db=@6/x"


def test_no_job_is_called_as_an_errand() -> None:
    service = ServiceConfig(jobs={"verify:west": JobConfig(command=("cm", "ls"), every="1d")})
    with pytest.raises(ConfigError, match="colon"):
        jobs_of(service, {})


def test_databases_are_those_of_the_policy() -> None:
    places = {name: f"/{name}" for name in ("cmroot", "target_cmroot", "dumps")}
    ends = {"source": "thrift://a:1", "target": "thrift://b:1"}
    keys = {**ends, **places, "databases": "west_.*", "rename_db": {"west_a": "copy"}}
    policy = parse_policy("west", keys, MetastoreConfig)
    assert databases_among(policy, ["West_b", "copy", "hr", "west_"]) == ["west_b", "west_", "copy"]


def test_an_errand_is_queued_together_with_its_record(tmp_path: Path) -> None:
    with ServiceStore(f"sqlite:///{tmp_path}/s.sqlite") as store:
        store.prepare()
        errand = AdHocRun("verify:west", ("verify", "west"), "west")

        def fails(*_: object) -> None:
            raise OSError

        with pytest.raises(OSError):
            store.enqueue(errand, 5.0, by="me", also=fails)
        assert store.open_runs() == []
        run, _ = store.enqueue(errand, 5.0, by="me")
        assert store.enqueue(errand, 6.0, by="you") == (run, False)
        with pytest.raises(Refused, match=run):
            store.enqueue(dataclasses.replace(errand, arguments=("verify", "west", "--db=a")), 7.0, by="you")


def test_a_request_that_comes_again_while_it_is_done_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ServiceStore(f"sqlite:///{tmp_path}/s.sqlite") as store, ThreadPoolExecutor(4) as pool:
        store.prepare()
        app = SimpleNamespace(state=SimpleNamespace(serving=Serving(store, None, None)))  # type: ignore[arg-type]
        state = SimpleNamespace(body="digest")
        sent: Any = SimpleNamespace(app=app, headers={"Idempotency-Key": "k"}, client=None, state=state)
        begun, over, together = [], threading.Event(), threading.Barrier(3)

        def fails() -> str:
            raise Refused("not now")

        def waits() -> str:
            begun.append(1)
            assert over.wait(CEILING)
            return "done"

        def ask(do: Callable[[], str]) -> Any:
            return do_once(sent, Identity("me", "operator"), What("cancel landing", "7", ""), do)

        def retry() -> Any:
            together.wait(CEILING)
            try:
                return ask(waits)
            except HTTPException as error:
                return error.status_code

        with pytest.raises(Refused):
            ask(fails)
        retries = [pool.submit(retry) for _ in range(3)]
        try:
            eventually(lambda: sum(each.done() for each in retries) == 2 and begun)
            monkeypatch.setattr(actions, "LONG", 0.0)
            with pytest.raises(HTTPException, match="is running"):
                ask(waits)  # it takes long, but this server does it
        finally:
            over.set()
        assert sorted(str(each.result()) for each in retries) == ["409", "409", "done"]
        assert (ask(fails), len(begun)) == ("done", 1)


def test_progress_is_told_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "progress.json"

    def tasks() -> list[tuple[str, int, int | None]]:
        return [(each["title"], each["steps"], each["of_steps"]) for each in json.loads(file.read_text())["tasks"]]

    progress = ProgressFile(file)
    with progress.task("load", 2) as advance:
        assert tasks() == [("load", 0, 2)]
        advance(1)
        with progress.task("copy"):
            assert tasks() == [("load", 1, 2), ("copy", 0, None)]
    assert tasks() == []


def test_progress_that_cannot_be_told_stops_nothing(tmp_path: Path) -> None:
    with ProgressFile(tmp_path / "none" / "progress.json").task("load") as advance:
        advance(1)
    assert list(tmp_path.iterdir()) == []
