"""Who gets in at the gateway, and as whom the metastore is asked then: TLS, client certificates, Kerberos, set_ugi."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from gateway_clients import AUTHORIZED, BIG, SERVICE, as_user, client, dial, kerberized
from gateways import FILES, Guarded, contents, guarded
from hmsclient.genthrift.hive_metastore import ttypes
from kerberos import Kdc
from metastores import MetastoreFactory
from msgspec.structs import replace
from pyspark.java_gateway import launch_gateway
from thrift.Thrift import TApplicationException, TException
from waiting import CEILING, pause

from replicator.captures.gateways.security import Timeouts, check_risks
from replicator.core.connections import GatewayConfig, MetastoreConfig
from replicator.core.model import Database
from replicator.errors import IdentityRefused, NotAuthenticated, UsageError
from replicator.metastore.embedded.running import Running
from replicator.metastore.java import find_java, spark_environment
from replicator.metastore.sasl import Gssapi
from replicator.metastore.transport import Framed, Plain
from replicator.policies.checks.metastores import of_gateway


@pytest.fixture(scope="module")
def authorized(metastore_factory: MetastoreFactory) -> Running:
    return metastore_factory("authorized", settings=AUTHORIZED)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def jvm(kdc: Kdc) -> Iterator[Any]:
    """Java with Hive's classes, for its own client."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in spark_environment(find_java(os.environ)).items():
            patch.setenv(name, value)
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={kdc.conf} {os.environ['JAVA_TOOL_OPTIONS']}")
        gateway = launch_gateway()
    yield gateway.jvm
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(CEILING)


# ---- Kerberos -------------------------------------------------------------------------------------------------------


@pytest.mark.kerberos
@pytest.mark.parametrize("protection", ["authentication", "integrity", "privacy"])
def test_who_has_a_ticket_is_let_in_with_any_protection(
    source_metastore: Running, tmp_path: Path, kdc: Kdc, protection: str
) -> None:
    with guarded(source_metastore, tmp_path, security=kerberized(kdc)) as guard:
        guard.database.table("t", FILES)
        with as_user(guard, kdc.tickets("alice"), protection=protection) as alice:
            assert guard.db in alice.get_all_databases()
            alice.create_database(ttypes.Database("big" + guard.db, parameters=BIG))
            assert alice.get_database("big" + guard.db).parameters == BIG
            alice.drop_table(guard.db, "t", True)
        assert guard.taken() == {f"t/{name}": content for name, content in FILES.items()}


@pytest.mark.kerberos
def test_the_metastore_is_asked_as_the_client(authorized: Running, tmp_path: Path, kdc: Kdc) -> None:
    """Who may not remove a directory does not drop its table, and its files are as before."""
    with guarded(authorized, tmp_path, security=kerberized(kdc)) as guard:
        table = guard.database.table("t", FILES)
        place = guard.place("t")
        before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in place.iterdir()}
        with as_user(guard, kdc.tickets("alice")) as alice:
            with pytest.raises(ttypes.MetaException, match="alice"):
                alice.drop_table(guard.db, "t", True)
            with pytest.raises(ttypes.MetaException, match="cannot become"):
                alice.set_ugi("root", [])
            with pytest.raises(ttypes.MetaException, match="alice"):
                alice.drop_table(guard.db, "t", True)
            assert alice.set_ugi("alice", ["a"]) == ["a"]
        assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in place.iterdir()} == before
        assert guard.direct.table(guard.db, "t") == table and guard.taken() == {} and guard.is_settled()
        with as_user(guard, kdc.tickets("root")) as root:
            root.drop_table(guard.db, "t", True)
        assert guard.taken() == {f"t/{name}": content for name, content in FILES.items()}


@pytest.mark.kerberos
def test_who_has_no_ticket_stays_outside(source_metastore: Running, tmp_path: Path, kdc: Kdc) -> None:
    with guarded(source_metastore, tmp_path, security=kerberized(kdc)) as guard:
        with client(Plain(dial(guard.uri))) as nobody, pytest.raises(TApplicationException, match="Kerberos"):
            nobody.get_all_databases()
        with socket.create_connection(("127.0.0.1", int(guard.uri.rpartition(":")[2])), 60) as plain:
            plain.sendall(b"\x01\0\0\0\x05PLAIN\x05\0\0\0\x04\0a\0b")
            said = b"".join(iter(lambda: plain.recv(1 << 12), b""))
        assert said[:1] == b"\x03" and b"not 'PLAIN'" in said
        report = guard.gateway.stop()
        assert (report.refused, report.calls) == (2, 0)


@pytest.mark.kerberos
def test_a_weaker_protection_than_the_least_is_refused(source_metastore: Running, tmp_path: Path, kdc: Kdc) -> None:
    class Weak(Gssapi):
        def answer(self, challenge: bytes) -> bytes:
            if not self._context.complete:
                return super().answer(challenge)
            self._context.unwrap(challenge)
            return bytes(self._context.wrap(b"\1\0\0\0", False).message)

    with (
        guarded(source_metastore, tmp_path, security=kerberized(kdc, protection="integrity")) as guard,
        pytest.raises(IdentityRefused, match="authentication is not offered"),
        as_user(guard, kdc.tickets("alice"), mechanism=Weak),
    ):
        pass


@pytest.mark.kerberos
def test_a_ticket_of_another_realm_is_told_apart(
    source_metastore: Running, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, kdc: Kdc
) -> None:
    other = Kdc(tmp_path_factory.mktemp("other"), "OTHER.ORG")
    other.start()
    try:
        kdc.trusts(other)
        tickets = other.tickets("alice")
        with (
            guarded(source_metastore, tmp_path / "one", security=kerberized(kdc)) as guard,
            pytest.raises(IdentityRefused, match=r"the realm of alice@OTHER\.ORG is not one of"),
            as_user(guard, tickets),
        ):
            pass
        security = kerberized(kdc, realms=("EXAMPLE.COM", "OTHER.ORG"))
        with guarded(source_metastore, tmp_path / "two", security=security) as guard, as_user(guard, tickets) as alice:
            assert guard.db in alice.get_all_databases()
        rules = "RULE:[1:$1@$0](.*@OTHER.ORG)s/@.*/_of_other/\nDEFAULT"
        security = kerberized(kdc, realms=("EXAMPLE.COM", "OTHER.ORG"), auth_to_local=rules)
        with guarded(source_metastore, tmp_path / "three", security=security) as guard:
            with as_user(guard, tickets) as alice:
                assert alice.set_ugi("alice_of_other", []) == []
                with pytest.raises(
                    ttypes.MetaException, match="the client is alice_of_other, and cannot become 'alice'"
                ):
                    alice.set_ugi("alice", [])
            with as_user(guard, kdc.tickets("alice")) as alice:
                assert alice.set_ugi("alice", []) == []
    finally:
        other.stop()
        kdc.write()


@pytest.mark.kerberos
def test_a_ticket_that_has_run_out_is_refused(source_metastore: Running, tmp_path: Path, kdc: Kdc) -> None:
    """The client has taken the first step in time, and the gateway gets it later."""

    class Late(Gssapi):
        def first(self) -> bytes:
            token = super().first()
            pause(5, "the ticket's end, and the difference of clocks that is allowed")
            return token

    with guarded(source_metastore, tmp_path, security=kerberized(kdc)) as guard:
        tickets = kdc.tickets("bob", "-l", "3s")
        kdc.skew = 1
        try:
            kdc.write()
            with (
                pytest.raises((IdentityRefused, NotAuthenticated), match=r"(?i)expired|skew"),
                as_user(guard, tickets, mechanism=Late),
            ):
                pass
        finally:
            kdc.skew = 300
            kdc.write()
        with as_user(guard, kdc.tickets("alice")) as alice:
            assert guard.db in alice.get_all_databases()


@pytest.mark.kerberos
def test_a_gateway_that_stops_does_not_wait_for_a_handshake(
    source_metastore: Running, tmp_path: Path, kdc: Kdc
) -> None:
    longer = timedelta(days=1)  # than any test
    with (
        guarded(
            source_metastore,
            tmp_path,
            security=kerberized(kdc),
            timeouts=Timeouts(client=longer, answer=longer, stop=longer),
        ) as guard,
        dial(guard.uri) as slow,
    ):
        slow.sendall(b"\x01\0\0\0\x06GSS")
        assert guard.gateway.stop().cut_off == 0
        with suppress(ConnectionResetError):
            assert slow.recv(1) == b""


# ---- TLS ------------------------------------------------------------------------------------------------------------


def trusting(certificates: Authority, *own: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.ca)
    if own:
        context.load_cert_chain(*own)
    return context


def test_who_has_no_client_certificate_stays_outside(
    source_metastore: Running, tmp_path: Path, certificates: Authority
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("swordfish\n")
    certificate, key = certificates.issue("gateway", password="swordfish")
    security = GatewayConfig(
        certificate=certificate, key=key, key_password=f"file:{secret}", client_ca=str(certificates.ca)
    )
    stranger = Authority(tmp_path / "stranger").issue("stranger")
    with guarded(source_metastore, tmp_path, security=security) as guard:
        guard.database.table("t", FILES)
        for wrong in ((), stranger):
            with (
                pytest.raises((ssl.SSLError, ConnectionResetError, TException)),  # TLS 1.3: told at the first answer
                client(Plain(dial(guard.uri, trusting(certificates, *wrong)))) as nobody,
            ):
                nobody.get_all_databases()
        with client(Plain(dial(guard.uri))) as plain, pytest.raises(TApplicationException, match="TLS is required"):
            plain.get_all_databases()
        own = certificates.issue("alice")
        with client(Plain(dial(guard.uri, trusting(certificates, *own)))) as alice:
            assert alice.set_ugi("alice", []) == []  # a certificate names no user of the metastore
            alice.create_database(ttypes.Database("tls" + guard.db, parameters=BIG))
            assert alice.get_database("tls" + guard.db).parameters == BIG
            alice.drop_table(guard.db, "t", True)
        assert guard.taken() == {f"t/{name}": content for name, content in FILES.items()}


@pytest.mark.kerberos
def test_kerberos_inside_tls(source_metastore: Running, tmp_path: Path, certificates: Authority, kdc: Kdc) -> None:
    certificate, key = certificates.issue("gateway")
    with guarded(source_metastore, tmp_path, security=kerberized(kdc, certificate=certificate, key=key)) as guard:
        with as_user(guard, kdc.tickets("alice"), context=trusting(certificates)) as alice:
            assert guard.db in alice.get_all_databases()
        with client(Plain(dial(guard.uri, trusting(certificates)))) as nobody, pytest.raises(TException):
            nobody.get_all_databases()


def test_framed_clients_are_served(guard: Guarded, source_metastore: Running, tmp_path: Path) -> None:
    with guarded(source_metastore, tmp_path / "framed", security=GatewayConfig(transport="framed")) as framed:
        framed.database.table("t", FILES)
        with client(Framed(dial(framed.uri))) as made:
            made.create_database(ttypes.Database("f" + framed.db, parameters=BIG))
            assert made.get_database("f" + framed.db).parameters == BIG
            made.drop_table(framed.db, "t", True)
        assert framed.taken().keys() == {"t/one", "t/two"} and contents(framed.place("t")) == {}


# ---- both sides -----------------------------------------------------------------------------------------------------

URI = "thrift://meta:9083"
SECURE = GatewayConfig(principal=SERVICE, keytab="k")
ENCRYPTED = GatewayConfig(principal=SERVICE, keytab="k", protection="privacy")
KERBEROS = MetastoreConfig(URI, auth="kerberos")
CERTIFIED = GatewayConfig(certificate="c", key="k", client_ca="a")


@pytest.mark.parametrize(
    ("security", "metastore", "listen", "risk"),
    [
        (GatewayConfig(), MetastoreConfig(URI), "10.0.0.5", None),
        (GatewayConfig(), KERBEROS, "127.0.0.1", "unauthenticated"),
        (CERTIFIED, KERBEROS, "127.0.0.1", "unauthenticated"),
        (SECURE, KERBEROS, "10.0.0.5", None),
        (GatewayConfig(), MetastoreConfig(URI, tls=True), "127.0.0.1", None),
        (GatewayConfig(), MetastoreConfig(URI, tls=True), "10.0.0.5", "unencrypted"),
        (GatewayConfig(), MetastoreConfig(URI, tls=True, certificate="c", key="k"), "127.0.0.1", "unauthenticated"),
        (CERTIFIED, MetastoreConfig(URI, tls=True, certificate="c", key="k"), "10.0.0.5", None),
        (SECURE, MetastoreConfig(URI, auth="kerberos", protection="privacy"), "10.0.0.5", "unencrypted"),
        (ENCRYPTED, MetastoreConfig(URI, auth="kerberos", protection="privacy"), "10.0.0.5", None),
        (replace(SECURE, allow=("own-identity",)), KERBEROS, "127.0.0.1", "allowed"),
        (SECURE, MetastoreConfig(URI, auth="plain", user="u", password="env:P"), "127.0.0.1", "own-identity"),
    ],
)
def test_weaker_before_stronger_is_refused_unless_it_is_allowed(
    security: GatewayConfig, metastore: MetastoreConfig, listen: str, risk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if risk not in (None, "allowed"):
        with pytest.raises(UsageError) as error:
            check_risks(security, metastore, listen)
        assert error.value.hint and f'allow = ["{risk}"]' in error.value.hint
        assert "does not start" in next(of_gateway(replace(security, realms=("A",)), metastore)).text
        security = replace(security, allow=(risk,))
    check_risks(security, metastore, listen)
    assert len(caplog.records) == (risk is not None)
    if risk is not None:
        warned = {each.text for each in of_gateway(security, metastore) if each.health == "warning"}
        assert warned >= set(caplog.messages)


# ---- another client ------------------------------------------------------------------------------------------------


@pytest.mark.kerberos
@pytest.mark.parametrize("protection", ["authentication", "integrity", "privacy"])
def test_hives_own_client_is_let_in(
    source_metastore: Running, tmp_path: Path, kdc: Kdc, jvm: Any, protection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "k" * 32)
    with guarded(source_metastore, tmp_path, security=kerberized(kdc, token_key="env:KEY")) as guard:
        guard.database.table("t", FILES)
        guard.direct.create_database(Database("big" + guard.db, parameters=BIG))
        conf = jvm.org.apache.hadoop.hive.conf.HiveConf()
        for key, value in {
            "hive.metastore.uris": guard.uri.replace("127.0.0.1", "localhost"),
            "hive.metastore.sasl.enabled": "true",
            "hive.metastore.kerberos.principal": SERVICE,
            "hadoop.security.authentication": "kerberos",
            "hadoop.rpc.protection": protection,
        }.items():
            conf.set(key, value)
        users = jvm.org.apache.hadoop.security.UserGroupInformation
        users.setConfiguration(conf)
        users.loginUserFromKeytab("alice@EXAMPLE.COM", str(kdc.keytab("alice")))
        made = jvm.org.apache.hadoop.hive.metastore.HiveMetaStoreClient(conf)
        parameters = made.getDatabase("big" + guard.db).getParameters()  # an iteration ends by an exception in Java
        assert {key: parameters.get(key) for key in BIG} == BIG and parameters.size() == len(BIG)
        made.dropTable(guard.db, "t")
        assert guard.taken().keys() == {"t/one", "t/two"}
        token = jvm.org.apache.hadoop.security.token.Token()
        token.decodeFromUrlString(made.getDelegationToken("alice", "alice"))
        token.setService(jvm.org.apache.hadoop.io.Text("gateway"))
        data = jvm.org.apache.hadoop.io.DataInputBuffer()
        data.reset(token.getIdentifier(), len(token.getIdentifier()))
        identifier = jvm.org.apache.hadoop.hive.thrift.DelegationTokenIdentifier()
        identifier.readFields(data)
        assert identifier.getUser().getShortUserName() == "alice" and data.read() == -1
        users.setLoginUser(users.createRemoteUser("nobody"))
        users.getCurrentUser().addToken(token)
        conf.set("hive.metastore.token.signature", "gateway")
        by_token = jvm.org.apache.hadoop.hive.metastore.HiveMetaStoreClient(conf)
        assert by_token.getAllDatabases().contains(guard.db)
        by_token.close()
        made.close()
