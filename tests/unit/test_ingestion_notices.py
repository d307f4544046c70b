"""Who is told what ingestion did: by real receivers, one of which is down at first, and whoever is killed."""

from __future__ import annotations

import hashlib
import hmac
import http.server
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from ingestion_stores import claimed, clock, courier, land, opened
from waiting import Clock, eventually

from replicator.core.config import parse_config
from replicator.core.service_config import LineageConfig, NotifyConfig
from replicator.errors import ConfigError
from replicator.ingestion.controller import Worked
from replicator.ingestion.ingestion_request import Asset, Failure
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.notices import SENDING, Outbox, Send, senders_of

__all__ = ["clock"]

KEY = "key-of-the-webhook"


class Receiver:
    """An HTTP server; `down`: it refuses all. messages: path, key and body of those that it took, and were signed."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, dict[str, Any]]] = []
        self.down, self.refused = False, 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                good = not outer.down and (self.path == "/lineage" or _is_signed(self.headers, body))
                outer.refused += not good
                if good:
                    outer.messages.append((self.path, self.headers["Idempotency-Key"], json.loads(body)))
                self.send_response(204 if good else 503)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def of(self, path: str) -> list[tuple[str, dict[str, Any]]]:
        return [(key, body) for where, key, body in self.messages if where == path]


def _is_signed(headers: Any, body: bytes) -> bool:
    fields = dict(each.split("=", 1) for each in headers["X-Replicator-Signature"].split(","))
    made = hmac.new(KEY.encode(), f"{fields['t']}.".encode() + body, hashlib.sha256).hexdigest()
    return made == fields["v1"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def senders(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> dict[str, Send]:
    monkeypatch.setenv("HOOK_KEY", KEY)
    hooks = {name: {"url": f"{receiver.url}/{name}", "secret": "env:HOOK_KEY"} for name in ("teams", "ops", "catalog")}
    notify = {"publications": ["webhooks.teams"], "failures": ["webhooks.ops"], "webhooks": hooks}
    tables = {"notify": {**notify, "schemas": ["webhooks.catalog", "lineage"]}}
    config = parse_config({"ingestion": tables, "lineage": {"url": f"{receiver.url}/lineage"}}, "test")
    return senders_of(config.ingestion.notify, config.lineage, "thrift://hms:9083")


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[IngestionStore]:
    is_file = getattr(request, "param", "sqlite") == "sqlite"
    url = f"sqlite:///{tmp_path}/i.sqlite" if is_file else request.getfixturevalue("postgres").database()
    with opened(url, clock) as made:
        yield made


on_both = pytest.mark.parametrize("store", ["sqlite", "postgresql"], indirect=True)


@on_both
def test_a_receiver_that_is_down_gets_its_message_later_and_keeps_nobody(
    store: IngestionStore, receiver: Receiver, senders: dict[str, Send], clock: Clock
) -> None:
    with courier(store, senders):
        receiver.down = True
        job = land(store, [["id", "bigint"]])
    assert store.job(job).state == "done" and receiver.refused and not receiver.messages
    waiting = Outbox(store).undelivered(job)
    assert {each.receiver for each in waiting} == {"publications.webhooks.teams", "schemas.webhooks.catalog",
                                                   "schemas.lineage"}  # fmt: skip
    assert all("503" in each.error and each.tries == 1 for each in waiting)
    worked = Worked()
    worked.tell_undelivered(waiting)
    assert (worked.status, worked.undelivered) == ("partial", 3)
    assert any("publications.webhooks.teams: 1 message not" in each for each in worked.errors), worked.errors

    receiver.down = False
    _later(store, clock)
    with courier(store, senders):
        pass

    ((key, told),) = receiver.of("/teams")
    assert key == told["key"] == f"{job}-1-done"
    same = ("job", "state", "target", "source", "event_id", "rows", "mode", "requested_by")
    assert [told[name] for name in same] == [job, "done", "crm_public.orders", "db:public.orders", 7, 3, "overwrite",
                                             "paul"]  # fmt: skip
    ((_, schema),) = receiver.of("/catalog")
    assert (schema["table"], schema["columns"], schema["owner"], schema["classification"], schema["location"]) == (
        "crm_public.orders", [["id", "bigint"]], "olga", "internal", "/landing/crm/public/orders",
    )  # fmt: skip
    ((_, event),) = receiver.of("/lineage")
    assert event["dataset"]["name"] == "crm_public.orders" and event["dataset"]["namespace"] == "hive://hms:9083"
    assert event["dataset"]["facets"]["schema"]["fields"] == [{"name": "id", "type": "bigint"}]
    assert Outbox(store).undelivered() == []


def _later(store: IngestionStore, clock: Clock) -> None:
    """When receivers are tried again; PostgreSQL's clock is its own."""
    clock.now += 3600
    if store.file is None:
        with store.transaction() as connection:
            connection.exec_driver_sql("UPDATE ingestion_receiver SET due = 0")


@on_both
def test_whoever_is_killed_between_landing_and_telling_is_followed(
    store: IngestionStore, receiver: Receiver, senders: dict[str, Send], clock: Clock
) -> None:
    outbox = Outbox(store)
    outbox.address(list(senders))  # a controller began with these receivers
    job = land(store, [["id", "int"]])  # and was killed before it looked whom to tell
    assert len(outbox.undelivered(job)) == 3, "also what nobody has addressed"
    outbox.address(list(senders))
    found = outbox.take("publications.webhooks.teams")
    assert found is not None
    senders["publications.webhooks.teams"](found)  # the next one was killed before it could say that it had told
    with courier(store, senders):
        pass
    assert len(receiver.of("/teams")) == 1, "a receiver is one controller's at a time"
    clock.now += SENDING
    _later(store, clock)
    with courier(store, senders):
        pass
    first, second = receiver.of("/teams")
    assert first == second and first[0] == f"{job}-1-done", "the same message, with the same key"
    assert outbox.undelivered() == []


def test_a_schema_is_told_once_until_it_or_its_asset_changes(
    store: IngestionStore, receiver: Receiver, senders: dict[str, Send], clock: Clock
) -> None:
    def told() -> list[Any]:
        _later(store, clock)
        with courier(store, senders):
            pass
        return [body["columns"] for _, body in receiver.of("/catalog")]

    old, new = [["id", "int"]], [["id", "int"], ["a", "string"]]
    assert told() == []
    land(store, old)
    assert told() == [old]
    land(store, old)
    assert told() == [old] and len(receiver.of("/teams")) == 2
    land(store, new)
    assert told() == [old, new]
    receiver.down = True
    land(store, old)
    assert told() == [old, new]
    land(store, new)  # what is missing is not what is there: nobody knows what arrived
    receiver.down = False
    assert told() == [old, new, new]
    store.put_asset(Asset(name="crm", owner="otto", producers=("paul",), sources=("db",), created_by="olga"))
    store.approve_asset("crm", "anna")
    land(store, new)
    assert told() == [old, new, new, new] and receiver.of("/catalog")[-1][1]["owner"] == "otto"


def test_failures_are_told_on_a_channel_of_their_own(
    store: IngestionStore, receiver: Receiver, senders: dict[str, Send], clock: Clock
) -> None:
    with courier(store, senders):
        wrong = land(store, [], fail=Failure("user", "there is no table orders"))
        eventually(lambda: receiver.of("/ops"))
    ((key, told),) = receiver.of("/ops")
    assert (key, told["state"], told["error_text"]) == (f"{wrong}-1-failed_user", "failed_user",
                                                        "there is no table orders")  # fmt: skip
    assert receiver.of("/teams") == []
    again = land(store, [], "other", Failure("component", "away"))
    for _ in range(5):
        clock.now += 7200
        one = claimed(store)
        store.fail(one, Failure("component", "away"))
    clock.now += 8 * 86_400
    assert sorted(store.expire(timedelta(days=7), 100)) == [wrong, again]
    with courier(store, senders):
        pass
    assert sorted((body["job"], body["attempt"], body["state"]) for _, body in receiver.of("/ops")[1:]) == [
        (wrong, 1, "expired"), (again, 4, "failed"), (again, 6, "expired"),
    ]  # fmt: skip


def test_a_message_that_nobody_takes_holds_up_no_other_and_a_receiver_without_configuration_is_forgotten(
    store: IngestionStore, receiver: Receiver, senders: dict[str, Send], clock: Clock
) -> None:
    name = "publications.webhooks.teams"

    def picky(message: Any) -> None:
        if message.job == poisoned:
            raise ValueError("400: jdbc:postgresql://u:secret@h/d")
        senders[name](message)

    outbox = Outbox(store)
    outbox.address([name])
    poisoned = land(store, [])
    for number in range(3):
        _later(store, clock)
        with courier(store, {name: picky}):
            land(store, [], f"t{number}")
    assert [body["target"] for _, body in receiver.of("/teams")] == [f"crm_public.t{n}" for n in range(3)]
    (left,) = outbox.undelivered()
    assert left.job == poisoned and left.tries and "secret" not in left.error
    assert outbox.forget([name], 0.0) == [] and outbox.forget([], 86_400.0) == []
    clock.now += 8 * 86_400
    assert outbox.forget([], 86_400.0) == [name] and outbox.undelivered() == []


@on_both
@pytest.mark.parametrize("name", ["publications.webhooks.teams", "schemas.webhooks.catalog"])
def test_a_controller_that_is_late_says_nothing_of_a_message_that_came_after_its_own(
    store: IngestionStore, clock: Clock, name: str
) -> None:
    """SQLite gives a message's number again once that message is gone."""
    outbox = Outbox(store)
    outbox.address([name])
    land(store, [["id", "int"]])
    outbox.address([name])
    sent = outbox.take(name)
    assert sent is not None
    clock.now += SENDING
    _later(store, clock)
    assert outbox.take(name) == sent, "it is slow, and another controller sends the same"
    outbox.delivered(name, sent)
    job = land(store, [["id", "int"], ["a", "string"]])
    outbox.address([name])

    outbox.failed(name, sent, "no answer")
    outbox.delivered(name, sent)

    assert [(each.job, each.tries) for each in outbox.undelivered()] == [(job, 0)]


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"publications": ["webhooks.a"]}, "publications"),
        ({"failures": ["lineage"]}, "failures"),
        ({"schemas": ["lineage"]}, "schemas"),
        ({"webhooks": {"a": {"url": "http://h/"}}}, "webhooks.a: receives no notices"),
        ({"webhooks": {"a": {"url": "http://h/", "secret": "written out"}}}, "webhooks.a.secret"),
        ({"commands": {"a": {"command": []}}}, "commands.a.command"),
    ],
)
def test_a_receiver_that_is_none_is_named(tables: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"ingestion\.notify\.{key}") as caught:
        parse_config({"ingestion": {"notify": tables}}, "test")
    assert "written out" not in str(caught.value)


def test_a_command_reads_the_message(store: IngestionStore, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    tables = {"publications": ["commands.tee"], "commands": {"tee": {"command": ["tee", "-a", str(heard)]}}}
    notify: NotifyConfig = parse_config({"ingestion": {"notify": tables}}, "test").ingestion.notify
    with courier(store, senders_of(notify, LineageConfig(), "thrift://hms:9083")):
        job = land(store, [])
    assert [json.loads(line)["job"] for line in heard.read_text().splitlines()] == [job]
