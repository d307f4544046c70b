"""Kerberos: metastores that want it, with a real KDC, and delegation tokens. Dump, load and sync between two, and
what each says when the configuration, the tickets or the KDC are not as they should be."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from kerberos import REALM, Kdc
from leaks import replicated
from names import unique
from plain_tables import PlainDatabase
from secured import (
    LOCALHOST,
    NOTHING,
    Secured,
    begin,
    policy,
    refused,
    replicates,
    secured_metastore,
    spark_counts,
    told,
)
from waiting import pause

import replicator
from replicator.core.connections import MetastoreConfig
from replicator.core.model import Database
from replicator.errors import IdentityRefused, MetastoreUnreachable, NotAMetastore, NotAuthenticated
from replicator.metastore.embedded.running import Running
from replicator.metastore.sasl import Tickets, credentials_of
from replicator.metastore.thrift import connect


def kerberized(kdc: Kdc, directory: Path, **settings: str) -> object:
    client = f"replicator@{REALM}"
    keytabs = kdc.keytab("hive/localhost"), kdc.keytab("replicator")
    config = MetastoreConfig(
        LOCALHOST, auth="kerberos", principal=f"hive/_HOST@{REALM}", keytab=str(keytabs[1]), client_principal=client
    )
    wanted = {
        "hadoop.security.authentication": "kerberos",
        "hadoop.proxyuser.replicator.hosts": "*",
        "hadoop.proxyuser.replicator.users": "alice",
        "hive.metastore.sasl.enabled": "true",
        "hive.metastore.kerberos.keytab.file": str(keytabs[0]),
        "hive.metastore.kerberos.principal": f"hive/localhost@{REALM}",
    }
    return secured_metastore(directory, config, wanted | settings, java=kdc.java_options())


@pytest.fixture(scope="module")
def kerberos(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Secured, Secured]]:
    """Two metastores with Kerberos; the first signs (QOP auth-int), the second encrypts (auth-conf)."""
    with ExitStack() as stack:
        places = [tmp_path_factory.mktemp(name) for name in ("kerberos", "private")]
        yield (
            stack.enter_context(kerberized(kdc, places[0] / "m", **{"hadoop.rpc.protection": "integrity"})),  # type: ignore[arg-type, type-var]
            stack.enter_context(kerberized(kdc, places[1] / "m", **{"hadoop.rpc.protection": "privacy"})),  # type: ignore[arg-type, type-var]
        )


@pytest.mark.kerberos
def test_kerberos_replicates(kerberos: tuple[Secured, Secured], tmp_path: Path) -> None:
    config = replicates(*kerberos, tmp_path)
    checked = replicator.check("west", config=config)
    found = {finding.name: finding.text for finding in checked.findings}
    assert f"Kerberos as replicator@{REALM}" in found["source"] and "Kerberos" in found["target"]


@pytest.mark.kerberos
def test_sparks_own_sessions_have_the_metastores_kerberos(
    kdc: Kdc, kerberos: tuple[Secured, Secured], tmp_path: Path
) -> None:
    """With the layer that the server wants, and nothing but the file of the KDC in Spark's own settings."""
    config = kerberos[1].config
    with connect(config) as client:
        db = PlainDatabase(client, "asked", tmp_path)
        db.create()
        db.table("t", {"first": "1\n2\n"})
    java = {"spark.driver.extraJavaOptions": kdc.java_options()}
    assert spark_counts(config, "asked.t", **java) == 2


@pytest.mark.kerberos
def test_kerberos_says_what_is_wrong(kdc: Kdc, kerberos: tuple[Secured, Secured]) -> None:
    config = kerberos[0].config
    without = refused(config, **NOTHING)
    assert isinstance(without, NotAMetastore) and without.exit_code == 2
    assert "requires Kerberos" in told(without) and 'auth = "kerberos"' in without.hint and "principal" in without.hint
    for keys in ({"transport": "framed"}, {"transport": "http"}, {"protocol": "compact"}):
        assert "requires Kerberos" in told(refused(config, **{**NOTHING, **keys})), keys
    unknown = refused(config, principal=f"hive/nowhere@{REALM}")
    assert isinstance(unknown, IdentityRefused) and "hive/nowhere" in told(unknown) and "principal" in unknown.hint
    kdc.keytab("hive/other")  # a principal that is not this server's
    other = refused(config, principal=f"hive/other@{REALM}")
    assert isinstance(other, IdentityRefused) and "GSS initiate failed" in told(other) and "keytab" in other.hint
    nobody = refused(config, client_principal=f"nobody@{REALM}")
    assert isinstance(nobody, IdentityRefused) and "no key of nobody" in told(nobody)
    weak = refused(config, protection="privacy")
    assert isinstance(weak, IdentityRefused) and "hadoop.rpc.protection" in weak.hint
    absent = refused(config, keytab=None, client_principal=None, ticket_cache=f"FILE:{kdc.place}/absent")
    assert isinstance(absent, NotAuthenticated) and absent.exit_code == 75 and "kinit" in absent.hint
    password = refused(config, **{**NOTHING, "auth": "plain", "user": "u", "password": f"file:{__file__}"})
    assert isinstance(password, NotAMetastore) and "auth" in password.hint
    kdc.stop()
    try:
        away = refused(config)
        assert isinstance(away, NotAuthenticated) and "KDC" in told(away)
    finally:
        kdc.start()
    with connect(config) as client:
        assert client.database_names()


@pytest.mark.kerberos
def test_a_keytab_with_an_old_key_is_told(kdc: Kdc) -> None:
    """Its principal has another key since; the message names both, and never shows a key."""
    keytab = kdc.keytab("rekeyed")
    kdc._admin(f"cpw -randkey rekeyed@{REALM}")
    config = MetastoreConfig(
        "thrift://localhost:1", auth="kerberos", keytab=str(keytab), client_principal=f"rekeyed@{REALM}"
    )
    with pytest.raises(IdentityRefused) as raised:
        Tickets(config).credentials()
    assert f"rekeyed@{REALM}" in told(raised.value) and "klist -k" in raised.value.hint
    assert not raised.value.transient


@pytest.mark.kerberos
def test_tickets_that_run_out_are_taken_again_or_renewed(kdc: Kdc, kerberos: tuple[Secured, Secured]) -> None:
    """A client that lives longer than its tickets: with a keytab, with a cache that can be renewed, and with one that
    cannot, which is told. Each call has a connection of its own, as tickets are for less than a minute."""
    kdc.principal("brief", life="12s")
    config = kerberos[1].with_keys(keytab=str(kdc.keytab("brief")), client_principal=f"brief@{REALM}")
    with connect(config) as kept:
        assert kept.database_names()
        pause(13, "the end of tickets that a keytab gave")
        assert kept.database_names()

    kdc.principal("cached", life="55s")
    cached = msgspec.structs.replace(config, keytab=None, client_principal=None)
    renewable = kdc.tickets("cached", "-r", "1d")
    with connect(msgspec.structs.replace(cached, ticket_cache=renewable)) as renewed:
        before = cache_of(renewable).read_bytes()
        assert renewed.database_names() and cache_of(renewable).read_bytes() != before
        assert renewed.database_names()

    once = kdc.tickets("cached")
    with connect(msgspec.structs.replace(cached, ticket_cache=once)) as client:
        assert client.database_names()
        set_ahead(once, 60)
        with pytest.raises(NotAuthenticated) as raised:
            client.database_names()
    assert "keytab" in raised.value.hint and raised.value.transient


def cache_of(tickets: str) -> Path:
    return Path(tickets.removeprefix("FILE:"))


def set_ahead(tickets: str, seconds: int) -> None:
    """The cache says by how much the KDC's clock is ahead (its DeltaTime): tickets end and proofs are made by that."""
    data = cache_of(tickets).read_bytes()
    assert data[:2] == b"\5\4"
    moved = data[:2] + struct.pack(">HHHii", 12, 1, 8, seconds, 0) + data[4 + int.from_bytes(data[2:4]) :]
    cache_of(tickets).write_bytes(moved)


@pytest.mark.kerberos
@pytest.mark.parametrize("ahead", [-1200, 1200])
def test_clocks_that_differ_are_told(kdc: Kdc, kerberos: tuple[Secured, Secured], ahead: int) -> None:
    cache = kdc.tickets(f"late{ahead}")
    set_ahead(cache, ahead)
    keys = {"keytab": None, "client_principal": None, "ticket_cache": cache}
    skewed = refused(kerberos[0].config, **keys)
    assert isinstance(skewed, NotAuthenticated) and skewed.transient and skewed.exit_code == 75
    assert "lock skew too great" in told(skewed) and "NTP" in skewed.hint


@pytest.mark.kerberos
def test_a_client_acts_for_a_user_it_may_impersonate(kerberos: tuple[Secured, Secured]) -> None:
    """By a delegation token of the Kerberos connection (DIGEST-MD5): signed, encrypted."""
    for server in kerberos:
        with connect(server.with_keys(user="alice")) as alice:
            names = alice.database_names()
            assert names and alice.database_names() == names
    mallory = refused(kerberos[0].with_keys(user="mallory"))
    assert isinstance(mallory, IdentityRefused) and "mallory" in told(mallory) and "proxyuser" in mallory.hint


@pytest.mark.kerberos
def test_a_delegation_token_proves_an_identity_until_it_is_cancelled(
    kerberos: tuple[Secured, Secured], tmp_path: Path
) -> None:
    place = tmp_path / "token"
    with connect(kerberos[0].config) as owner:
        token = owner._connections.read(
            "a token", lambda client: client.get_delegation_token("replicator", "replicator")
        )
        place.write_text(f"{token}\n")
        config = MetastoreConfig(kerberos[0].uri, auth="token", token=f"file:{place}")
        with connect(config) as client:
            assert client.database_names()
        owner._connections.change("cancel", lambda client: client.cancel_delegation_token(token))
    cancelled = refused(config)
    assert isinstance(cancelled, IdentityRefused) and "token" in cancelled.hint and token not in told(cancelled)


@pytest.mark.kerberos
def test_keys_and_tokens_are_never_shown(
    kerberos: tuple[Secured, Secured], tmp_path: Path, target_metastore: Running
) -> None:
    config = kerberos[0].config
    assert config.keytab
    keytab = Path(config.keytab).read_bytes()
    at = keytab.index(b"\x00\x12\x00\x20") + 4  # a key of AES-256
    known: dict[str, str | bytes] = {"key": keytab[at : at + 32]}
    begin(config, tmp_path)
    sales = unique("sales")
    replicated(policy(tmp_path / "here", config, target_metastore, sales), tmp_path / "here", 0, **known)
    with connect(config) as owner:
        token = owner._connections.read("token", lambda client: client.get_delegation_token("replicator", "replicator"))
        known |= {"token": token, "password": credentials_of(token)[1]}
        (tmp_path / "secret").write_text(token)
        by_token = MetastoreConfig(config.uri, auth="token", token=f"file:{tmp_path}/secret")
        file = policy(tmp_path / "here", by_token, target_metastore, sales)
        replicated(file, tmp_path / "here", 0, **known)
        owner._connections.change("cancel", lambda client: client.cancel_delegation_token(token))
    replicated(file, tmp_path / "here", 2, **known)


@pytest.mark.kerberos
def test_kerberos_fails_over_to_the_next_address(kdc: Kdc, kerberos: tuple[Secured, Secured], tmp_path: Path) -> None:
    with kerberized(kdc, tmp_path / "first") as first:  # type: ignore[attr-defined]
        with connect(first.config) as alone:
            alone.create_database(Database(name="only_first", location=f"file:{tmp_path}/only"))
        with connect(first.with_keys(user="alice")) as alice:
            assert "only_first" in alice.database_names()
        with connect(first.with_keys(uri=f"{first.uri},{kerberos[1].uri}")) as client:
            assert "only_first" in client.database_names()
            first.kill()
            assert "only_first" not in client.database_names()
        gone = refused(first.with_keys(uri=f"{first.uri},thrift://localhost:1"))
        assert isinstance(gone, MetastoreUnreachable) and gone.exit_code == 75
