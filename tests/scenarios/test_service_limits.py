"""What one client may do to the service: how often, how large, how slowly, how many; and whom a proxy may name."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from leaks import search
from test_service import Service, eventually, processes, service, silent

from replicator.service.entrance.api_tokens import Role, create_token
from replicator.service.store import ServiceStore

__all__ = ["service", "silent"]

LIMITS = {
    "connections": 12,
    "requests_per_second": 1,
    "burst": 40,
    "body": "1KiB",
    "header_time": "1s",
    "body_time": "1s",
    "write_time": "1s",
    "idle_time": "1s",
}
SOON = 8.0  # seconds; the limits' own defaults are 10 s and more
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
    who = token(made, "me", "admin")
    made.start()
    yield made, who
    made.stop()


def token(service: Service, name: str, role: Role) -> dict[str, str]:
    """The headers of a new one, made without a process."""
    with ServiceStore(service.store) as store:
        store.prepare()
        return {"Authorization": f"Bearer {create_token(store, name, role, (), 3600.0)}"}


def ask(service: Service, method: str, path: str, address: str, **headers: str) -> httpx.Response:
    given = {"X-Forwarded-For": address, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return httpx.request(method, f"{service.urls[0]}{path}", headers=given)


def connect(service: Service) -> socket.socket:
    port = int(service.urls[0].rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def until_closed(client: socket.socket) -> tuple[bytes, float]:
    """What it is sent until its end, and after how many seconds that is."""
    begun, found = time.monotonic(), b""
    try:
        while piece := client.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found, time.monotonic() - begun


def test_a_proxys_user_may_what_his_group_may(limited: tuple[Service, dict[str, str]]) -> None:
    service, who = limited
    path = "/api/v1/jobs/often:pause"
    anna = {"X_User": "anna", "X_Groups": "staff,ops"}
    assert ask(service, "GET", "/api/v1/jobs", "10.0.0.1").status_code == 401  # nobody looks unasked
    assert ask(service, "GET", "/api/v1/jobs", "10.0.0.1", X_User="bob", X_Groups="staff").status_code == 403
    assert ask(service, "GET", "/api/v1/jobs", "10.0.0.1", **anna).status_code == 200
    url = service.urls[0] + path
    headers = {"X-User": "anna", "X-Groups": "ops", "X-Forwarded-For": "6.6.6.6, 10.0.0.1"}
    assert httpx.post(url, json={"reason": "proxied"}, headers=headers).status_code == 204
    assert httpx.post(url, json={}, headers={**headers, "Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert httpx.post(url, json={}, headers={**headers, "Origin": "http://evil.example"}).status_code == 403
    twice = [*headers.items(), ("X-User", "root")]
    assert httpx.post(url, json={}, headers=twice).status_code == 400
    done = httpx.get(f"{service.urls[0]}/api/v1/actions", headers=who).json()["items"]
    assert [(each["who"], each["address"], each["reason"]) for each in done] == [("proxy:anna", "10.0.0.1", "proxied")]


def test_who_asks_too_often_waits_and_others_do_not(limited: tuple[Service, dict[str, str]]) -> None:
    service, who = limited
    with httpx.Client(base_url=service.urls[0], headers={"X-Forwarded-For": "10.0.0.2"}) as client:
        found = [client.get("/api/v1/jobs", headers={"Authorization": f"Bearer rpl_{n}"}) for n in range(45)]
    assert {each.status_code for each in found[:40]} == {401}, "tokens that are none count for their address"
    assert found[-1].status_code == 429 and int(found[-1].headers["Retry-After"]) >= 1
    assert found[-1].headers["content-type"] == "application/problem+json"
    assert ask(service, "GET", "/api/v1/jobs", "10.0.0.3", **who).status_code == 200
    assert ask(service, "GET", "/api/v1/jobs", "10.0.0.2", **who).status_code == 200, "a known one is its own"


def test_every_answer_has_the_headers(limited: tuple[Service, dict[str, str]]) -> None:
    service, who = limited
    for method, path in (("GET", "/"), ("GET", "/none"), ("GET", "/healthz"), ("POST", "/api/v1/jobs/none:run")):
        found = ask(service, method, path, "10.0.0.4", **who)
        assert not set(HEADERS) - set(found.headers), (path, found.headers)
    assert "server" not in found.headers
    large = httpx.post(f"{service.urls[0]}/api/v1/jobs/often:run", content=b"x" * 2000, headers=who)
    assert large.status_code == 413 and not set(HEADERS) - set(large.headers)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", b"408"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"408"),
        (b"POST /api/v1/jobs/often:run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", b"408"),
        (b"POST /api/v1/jobs/often:run HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", b"408"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5dc\r\n" + b"x" * 1500 + b"\r\n", b"413"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 70_000, b"400"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"200"),  # then it idles
    ],
    ids=["nothing", "head", "body", "chunked", "large", "large-head", "idle"],
)
def test_slow_clients_are_ended(sent: bytes, said: bytes, limited: tuple[Service, dict[str, str]]) -> None:
    with connect(limited[0]) as client:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(sent)
        found, seconds = until_closed(client)
    assert found.startswith(b"HTTP/1.1 " + said), found
    assert seconds < SOON, seconds


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
    with connect(service) as client:
        client.sendall(head.encode() + body)
        found, _ = until_closed(client)
    assert found.startswith(b"HTTP/1.1 " + said), found
    assert b"root:" not in found and b"Traceback" not in found and b"SQLite" not in found


def test_a_trickle_is_no_way_around_the_limit(limited: tuple[Service, dict[str, str]]) -> None:
    with connect(limited[0]) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        begun = time.monotonic()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while True:
                client.sendall(b"X")
                time.sleep(0.05)
                assert time.monotonic() - begun < SOON


def test_who_does_not_read_is_ended(limited: tuple[Service, dict[str, str]]) -> None:
    """Requests in one piece, whose answers fill all buffers."""
    service, who = limited
    process = service.servers[0].pid
    before = sockets(process)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", int(service.urls[0].rpartition(":")[2])))
        more = f"X-Forwarded-For: 10.0.0.9\r\n{_line(who)}"
        client.sendall(f"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n{more}\r\n\r\n".encode() * 30)
        eventually(lambda: sockets(process) > before)
        eventually(lambda: sockets(process) <= before)


def _line(headers: dict[str, str]) -> str:
    return "\r\n".join(f"{name}: {value}" for name, value in headers.items())


def sockets(process: int) -> int:
    """That a process has open."""
    found = 0
    for place in Path(f"/proc/{process}/fd").iterdir():
        try:
            found += os.readlink(place).startswith("socket:")
        except FileNotFoundError:
            continue
    return found


def test_connections_have_a_limit(limited: tuple[Service, dict[str, str]]) -> None:
    service, _ = limited
    there = [connect(service) for _ in range(LIMITS["connections"])]
    try:
        with connect(service) as one_more:
            found, _ = until_closed(one_more)
        assert found.startswith(b"HTTP/1.1 503")
    finally:
        for each in there:
            each.close()
    assert httpx.get(f"{service.urls[0]}/healthz").status_code == 200


def test_nobody_is_believed_unless_it_is_configured(service: Service, tmp_path: Path) -> None:
    service.configure({"often": {"command": ["cm", "ls", "--cmroot", str(tmp_path / "none")], "every": "1d"}})
    who, admin = token(service, "me", "operator"), token(service, "boss", "admin")
    url = f"{service.start()}/api/v1"
    claims = {"X-Forwarded-For": "6.6.6.6", "X-Forwarded-User": "root", "X-Forwarded-Groups": "admins"}
    assert httpx.post(f"{url}/scheduler:pause", json={}, headers=claims).status_code == 401
    assert httpx.post(f"{url}/jobs/often:pause", json={}, headers={**who, **claims}).status_code == 204
    done = httpx.get(f"{url}/actions", headers=admin).json()["items"]
    assert [(each["who"], each["address"]) for each in done] == [("me", "127.0.0.1")]


def test_no_secret_is_in_answers_logs_and_processes(service: Service, silent: str, tmp_path: Path) -> None:
    secrets = {"hook": b"key-of-a-hook-41", "mail": b"password-of-mail-42", "database": b"password-of-db-43"}
    elsewhere = tmp_path.parent / f"{tmp_path.name}-secrets"
    elsewhere.mkdir()
    for name, value in secrets.items():
        (elsewhere / name).write_bytes(value + b"\n")
    policy = {"databases": ["d"], "cmroot": f"{tmp_path}/cm", "target_cmroot": f"{tmp_path}/tcm", "source": "prod"}
    policy["dumps"] = f"{tmp_path}/dumps"
    more: dict[str, dict[str, Any]] = {
        "metastores.prod": {"uri": silent, "auth": "plain", "user": "u", "password": f"file:{elsewhere}/database"},
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
        {"west": {**policy, "target": silent.replace("127.0.0.1", "localhost"), "schedule": "1s"}},
        more,
    )
    who = token(service, "me", "admin")
    secrets["token"] = who["Authorization"].partition(" ")[2].encode()
    url = service.start()
    described = httpx.get(f"{url}/openapi.json").json()["paths"]
    run = eventually(lambda: service.runs("often"))[0]["id"]
    said = []
    for path in [*(path for path, verbs in described.items() if "get" in verbs), "/", "/metrics", "/healthz"]:
        if path.endswith("/policies/{policy}/lag"):
            continue  # waits for a metastore that says nothing
        path = re.sub(r"\{(\w+)\}", lambda found: {"policy": "west", "run": run}.get(found[1], "often"), path)
        try:
            said.append(httpx.get(url + path, headers=who, timeout=3).content)
        except httpx.TimeoutException:
            continue
    (tmp_path / "answers").write_bytes(b"\n".join(said))
    for value in secrets.values():
        assert processes(value.decode()) == []
    assert service.stop() == 0
    search(tmp_path, secrets)
