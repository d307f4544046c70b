"""The entrance of the service: whom it believes, and how often one may ask."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import Authority
from in_process import InProcess
from moved_loop import ServingThread
from waiting import CEILING, eventually

from replicator.core.config import parse_config
from replicator.core.logging import Periodic
from replicator.core.service_config import GroupConfig, LimitConfig, ProxyConfig, ServiceConfig
from replicator.errors import ConfigError
from replicator.service.admission import Admission, Proxies, Rates
from replicator.service.api_tokens import Identity
from replicator.service.store import ServiceStore

CONFIG = ProxyConfig(
    networks=("10.1.0.0/28", "::1"),
    user_header="X-User",
    groups_header="X-Groups",
    groups={"ops": GroupConfig("operator", ("west",)), "all": GroupConfig("viewer"), "root": GroupConfig("admin")},
)
PROXIES = Proxies(CONFIG)


def headers(**given: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]


@pytest.mark.parametrize("peer", ["10.1.0.16", "127.0.0.1", "", "10.1.0.x", "::2"])
def test_headers_of_others_mean_nothing(peer: str) -> None:
    found = PROXIES.sender(peer, headers(x_user="root", x_groups="root", x_forwarded_for="1.2.3.4"))
    assert (found.address, found.user, found.identity) == (peer, "", None)


@pytest.mark.parametrize("peer", ["10.1.0.1", "::ffff:10.1.0.1", "::1"])
def test_a_proxy_says_who_asks(peer: str) -> None:
    found = PROXIES.sender(peer, headers(x_user="anna", x_groups="ops, all,none", x_forwarded_for="1.2.3.4"))
    assert (found.address, found.user) == ("1.2.3.4", "anna")
    assert found.identity == Identity(
        "proxy:anna", "operator", ("west",), also=(("viewer", ()),), groups=("all", "none", "ops")
    )
    may = found.identity.may
    assert may("operator", "west") and may("viewer", "east") and may("viewer")
    assert not may("operator", "east") and not may("operator") and not may("admin", "west")


def test_a_user_in_no_group_may_nothing() -> None:
    for groups in ("", "nobody", "ROOT"):
        found = PROXIES.sender("10.1.0.1", headers(x_user="anna", x_groups=groups))
        assert found.user == "anna" and found.identity is None


def test_two_users_or_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="X-User is given twice"):
        PROXIES.sender("10.1.0.1", [*headers(x_user="anna"), *headers(x_user="root")])
    with pytest.raises(ValueError, match="X-Groups is given twice"):
        PROXIES.sender("10.1.0.1", [*headers(x_user="anna", x_groups="all"), *headers(x_groups="root")])


@pytest.mark.parametrize(
    ("chain", "address"),
    [
        ("", "10.1.0.1"),
        ("1.2.3.4", "1.2.3.4"),
        ("6.6.6.6, 1.2.3.4", "1.2.3.4"),  # the first is what the client said
        ("6.6.6.6, 1.2.3.4, 10.1.0.2", "1.2.3.4"),
        ("10.1.0.3,10.1.0.2", "10.1.0.3"),
        ("1.2.3.4, what, 10.1.0.2", "10.1.0.2"),
        ("2001:db8::1", "2001:db8::1"),
    ],
)
def test_an_address_is_believed_as_far_as_it_passed_proxies(chain: str, address: str) -> None:
    assert PROXIES.sender("10.1.0.1", headers(x_forwarded_for=chain)).address == address


def test_a_client_asks_so_often_and_memory_is_bounded() -> None:
    rates = Rates(per_second=2.0, burst=3, clients=10)
    assert [rates.admit("a", 0.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert rates.admit("b", 0.0) == 0.0
    assert rates.admit("a", 0.25) == 0.25 and rates.admit("a", 0.5) == 0.0 and rates.admit("a", 0.5) == 0.5
    assert [rates.admit("a", 100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]  # no more than a burst is saved
    for number in range(1000):
        assert rates.admit(f"c{number}", 100.0) == 0.0
    assert len(rates) == 10


async def answers_ok(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": scope["scheme"][-2:].encode()})


@dataclass
class Asked:
    """A server, and sockets to it that are closed at the end."""

    serving: ServingThread
    stack: ExitStack
    secured: bool = False

    def get(self, path: str = "/") -> httpx.Response:
        scheme = "https" if self.secured else "http"
        return httpx.get(f"{scheme}://127.0.0.1:{self.serving.port}{path}", verify=False, timeout=CEILING)

    def silent(self) -> socket.socket:
        return self.stack.enter_context(socket.create_connection(("127.0.0.1", self.serving.port), CEILING))

    def sends(self, text: str) -> socket.socket:
        connection = self.silent()
        connection.sendall(text.replace("\n", "\r\n").encode())
        return connection


@pytest.mark.parametrize("secured", [False, True])
def test_silent_connections_are_counted_and_the_longest_idle_one_is_closed_for_a_new_one(
    tmp_path: Path, secured: bool
) -> None:
    tls: dict[str, Any] = {}
    if secured:
        tls["ssl_certfile"], tls["ssl_keyfile"] = Authority(tmp_path).issue("server")
    serving = ServingThread(answers_ok, LimitConfig(connections=5, header_time="10m"), **tls)
    with ExitStack() as stack:
        asked = Asked(stack.enter_context(serving), stack, secured)
        first = []
        for number in range(5):  # one after the other, so that their order is known
            first.append(asked.silent())
            eventually(lambda number=number: serving.connections == number + 1)
        assert asked.get().text == ("ps" if secured else "tp")
        _end_of(first[0])
        eventually(lambda: serving.connections == 4)
        asked.silent()
        eventually(lambda: serving.connections == 5)
        serving.advance(601.0)
        for each in first[1:]:
            _end_of(each)
        eventually(lambda: not serving.connections)
        assert asked.get().text == ("ps" if secured else "tp")
        asked.silent()
        if secured:
            asked.silent().sendall(b"GET / HTTP/1.1\r\n\r\n")  # no handshake
    assert not serving.connections


class Holding:
    """An application that answers `/slow` only once `go` is set, and recognises everybody who asks for `/known`."""

    def __init__(self) -> None:
        self.go, self.asked = threading.Event(), 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/known":
            scope["state"]["recognised"] = True
        if scope["path"] == "/slow":
            self.asked += 1
            await asyncio.to_thread(self.go.wait, CEILING)
        await answers_ok(scope, receive, send)


GET = "GET {} HTTP/1.1\nHost: x\n\n"


def test_health_is_answered_while_all_connections_are_in_use() -> None:
    holding = Holding()
    with ExitStack() as stack:
        serving = stack.enter_context(ServingThread(holding, LimitConfig(connections=3)))
        stack.callback(holding.go.set)
        asked = Asked(serving, stack)
        for _ in range(3):
            asked.sends(GET.format("/slow"))
        eventually(lambda: holding.asked == 3)
        assert asked.get().status_code == 503
        assert asked.get("/healthz").status_code == 200 and asked.get("/readyz").status_code == 200


def test_one_address_cannot_have_all_connections() -> None:
    holding = Holding()
    with ExitStack() as stack:
        limits = LimitConfig(connections=100, connections_per_address=3)
        serving = stack.enter_context(ServingThread(holding, limits))
        stack.callback(holding.go.set)
        asked = Asked(serving, stack)
        for _ in range(3):
            asked.sends(GET.format("/slow"))
        eventually(lambda: holding.asked == 3)
        assert asked.get("/healthz").status_code == 503
        elsewhere = stack.enter_context(
            socket.create_connection(("127.0.0.1", serving.port), CEILING, ("127.0.0.2", 0))
        )
        elsewhere.sendall(GET.format("/").replace("\n", "\r\n").encode())
        assert elsewhere.recv(100).startswith(b"HTTP/1.1 200")


def test_a_connection_with_a_valid_token_stays_open_when_others_come() -> None:
    with ExitStack() as stack:
        serving = stack.enter_context(ServingThread(Holding(), LimitConfig(connections=2)))
        asked = Asked(serving, stack)
        known = asked.sends(GET.format("/known"))
        eventually(lambda: known.recv(1000).endswith(b"tp"))
        for number in range(6):
            asked.silent()
            eventually(lambda: serving.connections == 2)
            assert asked.get().text == "tp", number
        known.sendall(GET.format("/").replace("\n", "\r\n").encode())
        assert known.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(tmp_path: Path) -> None:
    hidden = "GET /hidden HTTP/1.1\nHost: x\n\n"
    head = f"POST / HTTP/1.1\nHost: x\nContent-Length: {len(hidden) + 40}\nTransfer-Encoding: chunked\n\n0\n\n"
    application = Admission(answers_ok, ServiceConfig(), {})
    with ExitStack() as stack:
        serving = stack.enter_context(ServingThread(application, LimitConfig()))
        answer = _all_of(Asked(serving, stack).sends(head + hidden))
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1 ") == 1


def test_the_body_of_a_stranger_is_not_requested() -> None:
    async def is_known(scope: Any) -> bool:
        return (b"authorization", b"Bearer right") in scope["headers"]

    application = Admission(answers_ok, ServiceConfig(), {}, is_known)
    head = "POST / HTTP/1.1\nHost: x\nContent-Length: 2\nExpect: 100-continue\n{}\n"
    with ExitStack() as stack:
        asked = Asked(stack.enter_context(ServingThread(application, LimitConfig())), stack)
        answer = _all_of(asked.sends(head.format("")))
        assert b"100 Continue" not in answer and b"connection: close" in answer.lower()
        known = asked.sends(head.format("Authorization: Bearer right\n"))
        assert known.recv(1000).startswith(b"HTTP/1.1 100")
        known.sendall(b"{}")
        assert known.recv(1000).startswith(b"HTTP/1.1 200")


def _all_of(connection: socket.socket) -> bytes:
    """All that comes until it ends."""
    found = b""
    while more := connection.recv(10_000):
        found += more
    return found


def _end_of(connection: socket.socket) -> bool:
    """Whether it ends without an answer."""
    try:
        return not connection.recv(1000)
    except ConnectionError:
        return True


@pytest.mark.parametrize("host", ["localhost#.evil.com", "localhost?x", "a b", "", "x:1:2", "[::1", "user@host"])
def test_a_host_that_is_none_is_refused(tmp_path: Path, host: str) -> None:
    assert InProcess(tmp_path, {}).get("/healthz", {"Host": host}).status_code == 400


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8484", "[::1]:80", "my_host.example-1.org:443"])
def test_other_hosts_are_read(tmp_path: Path, host: str) -> None:
    assert InProcess(tmp_path, {}, open_to_all=False).get("/healthz", {"Host": host}).status_code != 400


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/", "/api/v1/status"])
def test_the_head_of_each_answer_is_given(tmp_path: Path, path: str) -> None:
    service = InProcess(tmp_path, {})
    assert service.ask("HEAD", path).status_code == service.get(path).status_code


def test_a_method_that_is_not_allowed_is_answered_with_those_that_are(tmp_path: Path) -> None:
    answer = InProcess(tmp_path, {}).ask("DELETE", "/api/v1/status")
    assert answer.status_code == 405 and "GET" in answer.headers["Allow"]


def test_refusals_of_one_cause_are_logged_once_a_period(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    lines = Periodic(logging.getLogger("refusals"), every=60.0, clock=lambda: now)
    for second in (0.0, 1.0, 59.0, 60.0):
        now = second
        lines.warning("refused: %s", second)
    lines.warning("other")
    assert caplog.messages == ["refused: 0.0", "refused: 60.0 (2 more since the last line)", "other"]


@pytest.mark.parametrize(
    ("table", "keys", "named"),
    [
        ("proxy", {"networks": ["10.0.0.0/33"]}, "service.proxy.networks"),
        ("proxy", {"networks": ["10.0.0.1/8"]}, "service.proxy.networks"),
        ("proxy", {"user_header": "X-User"}, "service.proxy.networks"),
        ("proxy", {"networks": ["::1"], "user_header": "X User"}, "service.proxy.user_header"),
        ("proxy", {"networks": ["::1"], "user_header": "X-User"}, "groups"),
        ("proxy", {"networks": ["::1"], "groups": {"a": {"role": "king"}}}, "role"),
        ("limits", {"connections": 0}, "service.limits.connections"),
        ("limits", {"connections_per_address": 0}, "service.limits.connections_per_address"),
        ("limits", {"body": "large"}, "service.limits.body"),
        ("limits", {"idle_time": "0s"}, "service.limits.idle_time"),
        ("limits", {"header_time": "soon"}, "service.limits.header_time"),
    ],
)
def test_a_wrong_key_is_named(table: str, keys: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse_config({"service": {table: keys}}, "test")


def test_a_database_is_named_without_its_passwords() -> None:
    with ServiceStore(
        "postgresql://u:one-secret@h:5/d?sslpassword=two-secret&password=three-secret&sslmode=on"
    ) as store:
        assert "secret" not in store.url and "sslmode=on" in store.url and "u:***@h:5/d" in store.url


@pytest.mark.parametrize("path", ["/docs", "/", "/sign-in"])
def test_no_page_has_styles_or_scripts_that_its_policy_forbids(tmp_path: Path, path: str) -> None:
    service = InProcess(tmp_path, {})
    text = service.get(path).text
    assert "<style" not in text and not re.search(r"<script(?![^>]* src=)| style=\"| on\w+=", text)
    assets = re.findall(r'"(/assets/[^"]+)"', text)
    assert assets and {service.get(each).status_code for each in assets} == {200}


def test_json_and_assets_are_compressed_for_who_reads_it(tmp_path: Path) -> None:
    service = InProcess(tmp_path, {})
    for path in ("/openapi.json", "/assets/page.css"):
        plain, zipped = (service.get(path, {"Accept-Encoding": each}) for each in ("identity", "gzip"))
        assert "Content-Encoding" not in plain.headers and zipped.headers["Content-Encoding"] == "gzip"
        assert plain.content == zipped.content and int(zipped.headers["Content-Length"]) < len(plain.content) / 2
    assert "Content-Encoding" not in service.get("/", {"Accept-Encoding": "gzip"}).headers
