"""What one client may do to the service: how often, how large, how many; and whom a proxy may name."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import web
from leaks import search
from running_service import Service, processes
from waiting import CEILING, eventually

CONNECTIONS, BURST = 12, 100
LIMITS = {"connections": CONNECTIONS, "requests_per_second": 1, "burst": BURST, "body": "1KiB", "header_time": "10m"}
LIMITS |= {"body_time": "10m", "write_time": "10m", "idle_time": "10m"}
NOBODY = "thrift://127.0.0.1:1"
HEADERS = ("content-security-policy", "x-content-type-options", "referrer-policy", "cache-control")


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, dict[str, str]]]:
    """Its clients differ by the address that a proxy on loopback names."""
    here = tmp_path_factory.mktemp("limited")
    made = Service(here)
    made.configure(
        {"often": {"command": ["cm", "ls", "--cmroot", str(here / "none")], "every": "1d"}},
        more={
            "service.proxy": {"networks": ["127.0.0.1"], "user_header": "X-User", "groups_header": "X-Groups"},
            "service.proxy.groups.ops": {"role": "operator"},
            "service.limits": LIMITS,
        },
    )
    who = made.token("me", "admin")
    made.start()
    yield made, who
    made.stop()


def ask(service: Service, method: str, path: str, address: str, **headers: str) -> httpx.Response:
    given = {"X-Forwarded-For": address, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return web.request(method, f"{service.urls[0]}{path}", headers=given)


def port_of(service: Service) -> int:
    return int(service.urls[0].rpartition(":")[2])


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), CEILING)


def until_closed(client: socket.socket) -> bytes:
    """What it is sent until its end."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(65536):
            found += piece
    return found


def test_a_proxys_user_may_what_his_group_may(limited: tuple[Service, dict[str, str]]) -> None:
    service, who = limited
    path = "/api/v1/jobs/often:pause"
    anna = {"X_User": "anna", "X_Groups": "staff,ops"}
    assert ask(service, "GET", "/api/v1/jobs", "10.0.0.1").status_code == 401  # nobody looks unasked
    assert ask(service, "GET", "/api/v1/jobs", "10.0.0.1", X_User="bob", X_Groups="staff").status_code == 403
    assert ask(service, "GET", "/api/v1/jobs", "10.0.0.1", **anna).status_code == 200
    url = service.urls[0] + path
    headers = {"X-User": "anna", "X-Groups": "ops", "X-Forwarded-For": "6.6.6.6, 10.0.0.1"}
    assert web.post(url, json={"reason": "proxied"}, headers=headers).status_code == 204
    assert web.post(url, json={}, headers={**headers, "Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert web.post(url, json={}, headers={**headers, "Origin": "http://evil.example"}).status_code == 403
    twice = [*headers.items(), ("X-User", "root")]
    assert web.post(url, json={}, headers=twice).status_code == 400
    done = web.get(f"{service.urls[0]}/api/v1/actions", headers=who).json()["items"]
    assert [(each["who"], each["address"], each["reason"]) for each in done] == [("proxy:anna", "10.0.0.1", "proxied")]


def test_who_asks_too_often_waits_and_others_do_not(limited: tuple[Service, dict[str, str]]) -> None:
    service, who = limited
    found: list[httpx.Response] = []
    with web.client(base_url=service.urls[0], headers={"X-Forwarded-For": "10.0.0.2"}) as client:
        while not found or found[-1].status_code != 429:
            token = {"Authorization": f"Bearer rpl_{len(found)}"}
            found.append(client.get("/api/v1/jobs", headers=token))
            assert len(found) < 5 * BURST
    assert {each.status_code for each in found[:BURST]} == {401}, "tokens that are none count for their address"
    assert int(found[-1].headers["Retry-After"]) >= 1
    assert found[-1].headers["content-type"] == "application/problem+json"
    assert ask(service, "GET", "/api/v1/jobs", "10.0.0.3", **who).status_code == 200
    assert ask(service, "GET", "/api/v1/jobs", "10.0.0.2", **who).status_code == 200, "a known one is its own"


def test_every_answer_has_the_headers(limited: tuple[Service, dict[str, str]]) -> None:
    service, who = limited
    for method, path in (("GET", "/"), ("GET", "/none"), ("GET", "/healthz"), ("POST", "/api/v1/jobs/none:run")):
        found = ask(service, method, path, "10.0.0.4", **who)
        assert not set(HEADERS) - set(found.headers), (path, found.headers)
    assert "server" not in found.headers
    large = web.post(f"{service.urls[0]}/api/v1/jobs/often:run", content=b"x" * 2000, headers=who)
    assert large.status_code == 413 and not set(HEADERS) - set(large.headers)


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n5dc\r\n"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (
            b"POST / HTTP/1.1\r\nHost: h\r\nWHO\r\nTransfer-Encoding: chunked\r\n\r\n5dc\r\n" + b"x" * 1500 + b"\r\n",
            b"413",
        ),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 70_000, b"400"),
    ],
    ids=["body", "head"],
)
def test_who_sends_too_much_is_ended(sent: bytes, said: bytes, limited: tuple[Service, dict[str, str]]) -> None:
    service, who = limited
    with connect(port_of(service)) as client:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(sent.replace(b"WHO", _line(who).encode()))
        assert until_closed(client).startswith(b"HTTP/1.1 " + said)


@pytest.mark.parametrize(
    ("line", "body", "said"),
    [
        ("GET /../../../etc/passwd", b"", b"404"),
        ("GET /..%2f..%2f..%2fetc%2fpasswd", b"", b"404"),
        ("GET /static/../../../../etc/passwd", b"", b"404"),
        ("GET /static/%2e%2e/%2e%2e/%2e%2e/etc/passwd", b"", b"404"),
        ("GET //etc/passwd", b"", b"404"),
        ("GET /api/v1/runs/..%2f..%2fservice.sqlite/log", b"", b"404"),
        ("GET /api/v1/runs/%00/log", b"", b"400"),
        ("GET /api/v1/runs?job=%00", b"", b"400"),
        ("POST /api/v1/jobs/often:pause", b'{"reason": "\\u0000"}', b"400"),
        ("POST /api/v1/jobs/often:pause", b'{"reason": "\\ud800"}', b"400"),
        ("POST /api/v1/jobs/often:pause", b"[" * 900, b"422"),
        ("POST /api/v1/jobs/often:pause", b"\xff\xfe", b"422"),
    ],
)
def test_what_leads_nowhere_is_refused(
    line: str, body: bytes, said: bytes, limited: tuple[Service, dict[str, str]]
) -> None:
    service, who = limited
    head = f"{line} HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 10.0.1.1\r\n{_line(who)}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with connect(port_of(service)) as client:
        client.sendall(head.encode() + body)
        found = until_closed(client)
    assert found.startswith(b"HTTP/1.1 " + said), found
    assert b"root:" not in found and b"Traceback" not in found and b"SQLite" not in found


def _line(headers: dict[str, str]) -> str:
    return "\r\n".join(f"{name}: {value}" for name, value in headers.items())


def test_connections_have_a_limit(limited: tuple[Service, dict[str, str]]) -> None:
    service, _ = limited
    there = [connect(port_of(service)) for _ in range(CONNECTIONS)]
    try:
        assert web.get(f"{service.urls[0]}/healthz").status_code == 200
        assert not until_closed(there[0]), "the one that was silent for longest is closed"
    finally:
        for each in there:
            each.close()
    eventually(lambda: web.get(f"{service.urls[0]}/healthz").status_code == 200)


def test_nobody_is_believed_unless_it_is_configured(service: Service, tmp_path: Path) -> None:
    service.configure({"often": {"command": ["cm", "ls", "--cmroot", str(tmp_path / "none")], "every": "1d"}})
    who, admin = service.token("me", "operator"), service.token("boss", "admin")
    url = f"{service.start()}/api/v1"
    claims = {"X-Forwarded-For": "6.6.6.6", "X-Forwarded-User": "root", "X-Forwarded-Groups": "admins"}
    assert web.post(f"{url}/scheduler:pause", json={}, headers=claims).status_code == 401
    assert web.post(f"{url}/jobs/often:pause", json={}, headers={**who, **claims}).status_code == 204
    done = web.get(f"{url}/actions", headers=admin).json()["items"]
    assert [(each["who"], each["address"]) for each in done] == [("me", "127.0.0.1")]


def test_no_secret_is_in_answers_logs_and_processes(service: Service, tmp_path: Path) -> None:
    secrets = {"hook": b"key-of-a-hook-41", "mail": b"password-of-mail-42", "database": b"password-of-db-43"}
    elsewhere = tmp_path.parent / f"{tmp_path.name}-secrets"
    elsewhere.mkdir()
    for name, value in secrets.items():
        (elsewhere / name).write_bytes(value + b"\n")
    policy = {"databases": ["d"], "cmroot": f"{tmp_path}/cm", "target_cmroot": f"{tmp_path}/tcm", "source": "prod"}
    policy["dumps"] = f"{tmp_path}/dumps"
    more: dict[str, dict[str, Any]] = {
        "metastores.prod": {"uri": NOBODY, "auth": "plain", "user": "u", "password": f"file:{elsewhere}/database"},
        "alerts": {"failed_in_a_row": 1, "disk": 0.0},
        "alerts.webhooks.ops": {"url": "http://127.0.0.1:9/x", "secret": f"file:{elsewhere}/hook"},
        "alerts.mails.team": {
            "server": "127.0.0.1:9",
            "sender": "a@b",
            "to": ["c@d"],
            "user": "u",
            "password": f"file:{elsewhere}/mail",
        },
    }
    service.configure(
        {"often": {"command": ["cm", "ls", "--cmroot", str(tmp_path / "none")], "every": "1s"}},
        {"west": {**policy, "target": NOBODY.replace("127.0.0.1", "localhost"), "schedule": "1s"}},
        more,
    )
    who = service.token("me", "admin")
    secrets["token"] = who["Authorization"].partition(" ")[2].encode()
    url = service.start()
    described = web.get(f"{url}/openapi.json").json()["paths"]
    run = eventually(lambda: service.runs("often"))[0]["id"]
    said = []
    for path in [*(path for path, verbs in described.items() if "get" in verbs), "/", "/metrics", "/healthz"]:
        path = re.sub(r"\{(\w+)\}", lambda found: {"policy": "west", "run": run}.get(found[1], "often"), path)
        said.append(web.get(url + path, headers=who).content)
    (tmp_path / "answers").write_bytes(b"\n".join(said))
    for value in secrets.values():
        assert processes(value.decode()) == []
    assert service.stop() == 0
    search(tmp_path, secrets)
