"""The gateway between Kerberos on both sides: as whom the metastore is asked, by tickets and by delegation tokens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_clients import AUTHORIZED, SERVICE, as_user, client, dial, kerberized
from gateways import FILES, Guarded, contents, guarded
from hmsclient.genthrift.hive_metastore import ttypes
from kerberos import Kdc, java_with_kerberos
from secured import Secured, secured_metastore
from thrift.Thrift import TApplicationException

from replicator.captures.gateways.local_names import LocalNames, parse_rules
from replicator.captures.gateways.security import LIFE, TokenRefused, Tokens
from replicator.core.connections import GatewayConfig, MetastoreConfig
from replicator.errors import IdentityRefused, UsageError
from replicator.metastore.sasl import credentials_of
from replicator.metastore.thrift import connect
from replicator.metastore.transport import Plain

KEY = "k" * 32
NAMES = LocalNames("EXAMPLE.COM", {"EXAMPLE.COM"})


@pytest.fixture(scope="module", params=["2.3", "4.2"])
def secured(request: pytest.FixtureRequest, kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """It lets the principal `gateway` act for alice and nobody else, and looks at rights on directories."""
    config = MetastoreConfig(
        "thrift://localhost:{port}",
        auth="kerberos",
        principal=SERVICE,
        keytab=str(kdc.keytab("gateway/localhost")),
        client_principal="gateway/localhost@EXAMPLE.COM",
    )
    settings = {
        **AUTHORIZED,
        "hive.metastore.sasl.enabled": "true",
        "hive.metastore.kerberos.principal": SERVICE,
        "hive.metastore.kerberos.keytab.file": str(kdc.keytab("hive/localhost")),
        "hadoop.security.authentication": "kerberos",
        "hadoop.proxyuser.gateway.hosts": "*",
        "hadoop.proxyuser.gateway.users": "alice,root",
        "hadoop.proxyuser.hive.hosts": "*",
        "hadoop.proxyuser.hive.groups": "*",
        "hive.metastore.event.db.notification.api.auth": "false",
    }
    place = tmp_path_factory.mktemp("secured") / "metastore"
    java = f"-Djava.security.krb5.conf={kdc.conf}"
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "4.2":
            patch.setenv("JAVA_HOME", java_with_kerberos(21))
        with secured_metastore(place, config, settings, hive=request.param, java=java) as made:
            yield made


@pytest.mark.kerberos
def test_a_metastore_with_kerberos_is_asked_as_the_client(secured: Secured, tmp_path: Path, kdc: Kdc) -> None:
    ways = {"upstream": secured.config, "owner": secured.with_keys(user="root")}
    with guarded(secured, tmp_path, security=kerberized(kdc), **ways) as guard:  # type: ignore[arg-type]
        guard.database.table("t", FILES)
        with as_user(guard, kdc.tickets("alice")) as alice, as_user(guard, kdc.tickets("root")) as root:
            assert guard.db in alice.get_all_databases()
            with pytest.raises(ttypes.MetaException, match="alice"):
                alice.drop_table(guard.db, "t", True)
            assert contents(guard.place("t")) == FILES and guard.taken() == {}
            root.drop_table(guard.db, "t", True)
            assert guard.taken().keys() == {"t/one", "t/two"}
            with pytest.raises(ttypes.MetaException, match="no delegation tokens"):
                alice.get_delegation_token("alice", "alice")
        with as_user(guard, kdc.tickets("bob")) as bob, pytest.raises(TApplicationException, match="refuses bob"):
            bob.get_all_databases()


@pytest.mark.kerberos
def test_a_delegation_token_is_its_owners(
    secured: Secured, tmp_path: Path, kdc: Kdc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """root, who may get tokens for others, gets one for alice; it lasts until it is cancelled, and across a restart."""
    monkeypatch.setenv("KEY", KEY)
    ways: dict[str, Any] = {"upstream": secured.config, "owner": secured.with_keys(user="root")}
    security = kerberized(kdc, token_key="env:KEY", proxy_users=("root",))
    with guarded(secured, tmp_path / "one", security=security, **ways) as guard:  # type: ignore[arg-type]
        guard.database.table("t", FILES)
        with as_user(guard, kdc.tickets("root")) as root, as_user(guard, kdc.tickets("alice")) as alice:
            asked_at = time.time()
            token = root.get_delegation_token("alice", "yarn")
            with pytest.raises(ttypes.MetaException, match="alice may not act for root"):
                alice.get_delegation_token("root", "root")
            with pytest.raises(ttypes.MetaException, match="neither owner nor renewer"):
                root.renew_delegation_token(token)
            assert alice.renew_delegation_token(token) / 1000 > asked_at
        for protection in ("authentication", "integrity", "privacy"):
            with connect(by_token(guard, token, monkeypatch, protection)) as made:
                assert guard.db in made.database_names()
                with pytest.raises(Exception, match="alice"):
                    made._change("drop", lambda client: client.drop_table(guard.db, "t", True))
                with pytest.raises(Exception, match="no delegation tokens to this client"):
                    made._read("token", lambda client: client.get_delegation_token("alice", "alice"))
        assert contents(guard.place("t")) == FILES and guard.taken() == {}
    with guarded(secured, tmp_path / "two", security=security, **ways) as guard:  # type: ignore[arg-type]
        with connect(by_token(guard, token, monkeypatch)) as made:
            assert guard.db in made.database_names()
        with as_user(guard, kdc.tickets("alice")) as alice:
            alice.cancel_delegation_token(token)
        with (
            pytest.raises(IdentityRefused, match="was cancelled"),
            connect(by_token(guard, token, monkeypatch)) as made,
        ):
            made.database_names()
        strange = Tokens("x" * 32, NAMES).give("alice", "alice", "alice")
        with pytest.raises(IdentityRefused, match="password"), connect(by_token(guard, strange, monkeypatch)) as made:
            made.database_names()


def by_token(
    guard: Guarded, token: str, monkeypatch: pytest.MonkeyPatch, protection: Any = "authentication"
) -> MetastoreConfig:
    monkeypatch.setenv("TOKEN", token)
    return MetastoreConfig(guard.uri, auth="token", token="env:TOKEN", protection=protection)


def test_a_token_lasts_for_its_time() -> None:
    now = [1_000_000.0]
    tokens = Tokens(KEY, NAMES, clock=lambda: now[0])
    name, password = credentials_of(token := tokens.give("alice", "", "yarn/host@EXAMPLE.COM"))
    assert tokens.password(name) == ("alice", password)
    assert tokens.renewed("yarn", token) == (now[0] + LIFE) * 1000
    now[0] += LIFE + 1
    with pytest.raises(TokenRefused, match="has expired"):
        tokens.password(name)
    for nonsense in ("", "AAAA", name[:-8], "!"):
        with pytest.raises(TokenRefused):
            tokens.password(nonsense)
        with pytest.raises(TokenRefused):
            tokens.cancel("alice", nonsense)
    with pytest.raises(TokenRefused, match="not a valid user name"):
        tokens.give("alice", "a b", "")


RULES = r"RULE:[2:$1@$0](rm@EXAMPLE\.COM)s/.*/yarn/ RULE:[1:$1@$0](alice@EXAMPLE\.COM)s/.*/al/ DEFAULT"


@pytest.mark.parametrize(
    ("renewer", "rules", "renews", "not_renews"),
    [
        ("yarn", "", "yarn", "rm"),
        ("yarn/host@EXAMPLE.COM", "", "yarn", "host"),
        ("yarn/host", "", "yarn", "host"),
        ("yarn/host@ELSEWHERE.COM", "", None, "yarn"),
        ("rm/host@EXAMPLE.COM", RULES, "yarn", "rm"),
        ("alice@EXAMPLE.COM", RULES, "al", "alice"),
        ("", "", None, ""),
    ],
)
def test_a_renewer_is_the_user_that_the_rules_make_of_the_whole_name(
    renewer: str, rules: str, renews: str | None, not_renews: str
) -> None:
    tokens = Tokens(KEY, LocalNames("EXAMPLE.COM", {"EXAMPLE.COM"}, parse_rules(rules) if rules else ()))
    token = tokens.give("bob", "", renewer)
    if renews is not None:
        assert tokens.renewed(renews, token)
    for act in (tokens.renewed, tokens.cancel):
        with pytest.raises(TokenRefused, match="neither owner nor renewer"):
            act(not_renews, token)
    if rules:
        assert tokens.renewed("yarn", tokens.give("yarn", "rm/host@EXAMPLE.COM", ""))
        with pytest.raises(TokenRefused, match="alice may not act for al"):
            tokens.give("alice", "alice@EXAMPLE.COM", "")


# ---- what is allowed by name ----------------------------------------------------------------------------------------


@pytest.mark.kerberos
def test_a_client_without_a_ticket_is_whom_it_names_if_that_is_allowed(secured: Secured, tmp_path: Path) -> None:
    ways: dict[str, Any] = {"upstream": secured.config, "owner": secured.with_keys(user="root")}
    with (
        pytest.raises(UsageError, match="but the gateway does not"),
        guarded(secured, tmp_path / "no", **ways),  # type: ignore[arg-type]
    ):
        pass
    security = GatewayConfig(allow=("unauthenticated",))
    with guarded(secured, tmp_path / "yes", security=security, **ways) as guard:  # type: ignore[arg-type]
        guard.database.table("t", FILES)
        with client(Plain(dial(guard.uri))) as named:
            with pytest.raises(TApplicationException, match="must be set_ugi"):
                named.get_all_databases()
            assert named.set_ugi("alice", []) == []
            with pytest.raises(ttypes.MetaException, match="alice"):
                named.drop_table(guard.db, "t", True)
            with pytest.raises(ttypes.MetaException, match="cannot become"):
                named.set_ugi("root", [])
        assert contents(guard.place("t")) == FILES and guard.taken() == {}


@pytest.mark.kerberos
def test_the_gateways_own_identity_is_used_only_where_that_is_allowed(
    secured: Secured, tmp_path: Path, kdc: Kdc
) -> None:
    ways: dict[str, Any] = {"upstream": secured.config, "owner": secured.with_keys(user="root")}
    security = kerberized(kdc, allow=("own-identity",))
    with (
        guarded(secured, tmp_path, security=security, **ways) as guard,  # type: ignore[arg-type]
        as_user(guard, kdc.tickets("bob")) as bob,
    ):
        assert guard.db in bob.get_all_databases(), "who may not be acted for has the gateway's rights"
