"""Alerts of the service, to real receivers: an HTTP server, a program, a mail server."""

from __future__ import annotations

import hashlib
import hmac
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import web
from aiosmtpd.controller import Controller
from running_service import Service
from waiting import eventually

from cmroot.root import create_or_open
from replicator.core.config import parse_config
from replicator.errors import ConfigError
from replicator.metastore.embedded.server_process import free_port
from replicator.service.alerts import open_alerts
from replicator.service.store import ServiceStore

KEY = "key-of-the-webhook"
OFTEN = "from replicator.service import alerts; alerts.PERIOD = 0.2"


class Receiver(http.server.BaseHTTPRequestHandler):
    """Takes messages with the right signature."""

    messages: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        fields = dict(each.split("=", 1) for each in self.headers["X-Replicator-Signature"].split(","))
        made = hmac.new(KEY.encode(), f"{fields['t']}.".encode() + body, hashlib.sha256).hexdigest()
        good = made == fields["v1"]
        if good:
            self.messages.append(json.loads(body))
        self.send_response(204 if good else 500)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    kind = type("Own", (Receiver,), {"messages": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/alerts", kind.messages
        server.shutdown()


class Letters:
    def __init__(self) -> None:
        self.subjects: list[str] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        lines = envelope.content.decode().splitlines()
        self.subjects += [line.partition(": ")[2] for line in lines if line.startswith("Subject: ")]
        return "250 OK"


@pytest.fixture
def mail() -> Iterator[tuple[str, Letters]]:
    letters, port = Letters(), free_port()
    controller = Controller(letters, hostname="127.0.0.1", port=port)
    controller.start()
    yield f"127.0.0.1:{port}", letters
    controller.stop()


def test_an_alert_is_told_once_and_so_is_its_end(
    service: Service, hook: tuple[str, list[dict[str, Any]]], mail: tuple[str, Letters], tmp_path: Path
) -> None:
    (url, posted), (server, letters), root = hook, mail, tmp_path / "cm"
    (tmp_path / "secret").write_text(KEY + "\n")
    heard = tmp_path / "heard"
    failing = {"command": ["cm", "ls", "--cmroot", str(root)], "every": "1s"}
    alerts = {
        "alerts": {"failed_in_a_row": 2, "disk": 0.0, "missed_periods": 600},
        "alerts.webhooks.ops": {"url": url, "secret": f"file:{tmp_path}/secret"},
        "alerts.commands.page": {"command": ["tee", "-a", str(heard)]},
        "alerts.mails.team": {"server": server, "sender": "a@here", "to": ["b@here"], "tls": "none"},
    }

    def told(subject: str) -> tuple[list[dict[str, Any]], list[str], list[dict[str, Any]]]:
        """What each channel was told of a job."""
        letter = [each for each in letters.subjects if each.endswith(f" failing {subject}")]
        lines = [json.loads(line) for line in heard.read_text().splitlines()] if heard.exists() else []
        mine = ([each for each in some if each["subject"] == subject] for some in (posted, lines))
        return next(mine), letter, next(mine)

    with ServiceStore(service.store) as store:
        service.configure({"often": failing}, more=alerts)
        service.start(first=OFTEN)
        eventually(lambda: all(told("often")) and [each for each in open_alerts(store) if len(each.told) == 3])
        service.stop()
        service.configure({"often": failing, "another": failing}, more=alerts)
        service.start(first=OFTEN)
        eventually(lambda: all(told("another")), lambda: posted)
    hooked, mailed, lines = told("often")
    assert [len(each) for each in (hooked, mailed, lines)] == [1, 1, 1], "a restart tells nothing again"
    assert (hooked[0]["event"], hooked[0]["kind"]) == ("raised", "failing") and "cm" in hooked[0]["text"], hooked
    create_or_open(str(root))
    eventually(lambda: all(len(each) > 1 for each in told("often")), lambda: posted)
    hooked, mailed, lines = told("often")
    assert [each["event"] for each in hooked] == ["raised", "over"] and hooked[0]["id"] == hooked[1]["id"]
    assert mailed == ["[replicator] raised: failing often", "[replicator] over: failing often"]
    assert [each["event"] for each in lines] == ["raised", "over"]
    assert "secret" not in web.get(service.urls[-1]).text
    assert KEY not in (tmp_path / "server-0.log").read_text()


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"late_for": "soon"}, "alerts.late_for"),
        ({"failed_in_a_row": 0}, "alerts.failed_in_a_row"),
        ({"headroom": 2.0}, "alerts.headroom"),
        ({"webhooks": {"a": {"url": "file:///etc/passwd"}}}, "alerts.webhooks.a.url"),
        ({"webhooks": {"a": {"url": "http://h/", "secret": "written out"}}}, "alerts.webhooks.a.secret"),
        ({"commands": {"a": {"command": []}}}, "alerts.commands.a.command"),
        ({"mails": {"a": {"server": "h", "sender": "a@b", "to": ["c@d"]}}}, "alerts.mails.a"),
        ({"mails": {"a": {"server": "h:25", "sender": "a@b\nBcc: e@f", "to": ["c@d"]}}}, "alerts.mails.a"),
    ],
)
def test_a_channel_that_is_none_is_named(tables: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key) as caught:
        parse_config({"alerts": tables}, "test")
    assert "written out" not in str(caught.value)
