"""The entrance of the service: whom it believes, and how often one may ask."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import Authority
from moved_loop import ServingThread
from waiting import CEILING, eventually

from replicator.core.config import parse_config
from replicator.core.service_config import GroupConfig, LimitConfig, ProxyConfig
from replicator.errors import ConfigError
from replicator.service.admission import Proxies, Rates
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


def test_two_users_are_refused() -> None:
    with pytest.raises(ValueError, match="X-User is given twice"):
        PROXIES.sender("10.1.0.1", [*headers(x_user="anna"), *headers(x_user="root")])


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


@pytest.mark.parametrize("secured", [False, True])
def test_who_connects_and_says_nothing_is_counted_and_has_a_time(tmp_path: Path, secured: bool) -> None:
    tls: dict[str, Any] = {}
    if secured:
        tls["ssl_certfile"], tls["ssl_keyfile"] = Authority(tmp_path).issue("server")
    serving = ServingThread(answers_ok, LimitConfig(connections=5, header_time="10m"), **tls)

    def ask() -> str:
        url = f"{'https' if secured else 'http'}://127.0.0.1:{serving.port}/"
        return httpx.get(url, verify=False, timeout=CEILING).text

    def silent() -> socket.socket:
        return stack.enter_context(socket.create_connection(("127.0.0.1", serving.port), CEILING))

    with ExitStack() as stack:
        stack.enter_context(serving)
        assert ask() == ("ps" if secured else "tp")
        eventually(lambda: not serving.connections)
        first = [silent() for _ in range(5)]
        eventually(lambda: serving.connections == 5)
        assert all(_end_of(silent()) == secured for _ in range(5)), "TLS has no answer before a handshake"
        with pytest.raises((httpx.TransportError, AssertionError)):
            assert ask() in ("ps", "tp")
        eventually(lambda: serving.connections == 5)
        serving.advance(601.0)
        for each in first:
            _end_of(each)
        eventually(lambda: not serving.connections)
        assert ask() == ("ps" if secured else "tp")
        silent()
        if secured:
            silent().sendall(b"GET / HTTP/1.1\r\n\r\n")  # no handshake
    assert not serving.connections


def _end_of(connection: socket.socket) -> bool:
    """Whether it ends without an answer."""
    try:
        return not connection.recv(1000)
    except ConnectionError:
        return True


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
