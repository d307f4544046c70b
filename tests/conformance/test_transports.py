"""TLS, HTTP, passwords, frames and the compact protocol, each on real servers. Dump, load and sync between two of a
kind, and what each says when the configuration is another."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from directory import PEOPLE, directory
from gateways import FILES, guarded
from leaks import replicated
from plain_tables import PlainDatabase
from raw_thrift import message, struct
from secured import (
    LOCALHOST,
    NOTHING,
    PROXYING,
    Secured,
    begin,
    make_certificates,
    policy,
    refused,
    replicates,
    secured_metastore,
    spark_counts,
    told,
)
from waiting import CEILING, Clock

import replicator
from replicator.core.config import read_config
from replicator.core.connections import GatewayConfig, MetastoreConfig
from replicator.errors import IdentityRefused, MetastoreError, NotAMetastore, UsageError
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.policies.checks.metastores import answers

# ---- TLS, frames, compact -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("certificates")
    make_certificates(place)
    return place


@pytest.fixture(scope="module")
def tls(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Secured, Secured]]:
    """Two metastores with TLS; the second also with frames and the compact protocol."""
    secured = {
        "hive.metastore.use.SSL": "true",
        "hive.metastore.keystore.path": str(certificates / "server.p12"),
        "hive.metastore.keystore.password": "changeit",
    }
    both = {
        "hive.metastore.thrift.framed.transport.enabled": "true",
        "hive.metastore.thrift.compact.protocol.enabled": "true",
    }
    config = MetastoreConfig(LOCALHOST, tls=True, ca=str(certificates / "ca.pem"))
    other = msgspec.structs.replace(config, transport="framed", protocol="compact")
    with ExitStack() as stack:
        places = [tmp_path_factory.mktemp(name) / "m" for name in ("tls", "framed")]
        yield (
            stack.enter_context(secured_metastore(places[0], config, secured)),
            stack.enter_context(secured_metastore(places[1], other, secured | both)),
        )


@pytest.mark.tls
def test_tls_frames_and_the_compact_protocol_replicate(tls: tuple[Secured, Secured], tmp_path: Path) -> None:
    config = replicates(*tls, tmp_path)
    replicator.init(
        source="prod", target="standby", databases=["sales"], file=tmp_path / "new.toml", check=False, config=config
    )
    written = read_config(tmp_path / "new.toml").metastores
    assert written == {"source": tls[0].config, "target": tls[1].config}
    with connect(tls[1].config) as client:
        assert "TLS, framed, compact" in answers("source", client, Clock()).text


@pytest.mark.tls
def test_a_gateway_has_tls_on_both_sides(tls: tuple[Secured, Secured], certificates: Path, tmp_path: Path) -> None:
    server, other = tls
    ways: dict[str, Any] = {"upstream": server.config, "owner": server.config}
    security = GatewayConfig(certificate=f"{certificates}/server.pem", key=f"{certificates}/server.key")
    with guarded(server, tmp_path, security=security, **ways) as guard:  # type: ignore[arg-type]
        guard.database.table("t", FILES)
        port = guard.uri.rpartition(":")[2]
        with connect(server.with_keys(uri=f"thrift://localhost:{port}", user="alice")) as through:
            assert through.table(guard.db, "t") == guard.direct.table(guard.db, "t")
            guard.database.partitioned("parts", {str(number): {"f": "x"} for number in range(300)})
            assert len(through.partition_names(guard.db, "parts")) == 300
        with socket.create_connection(("localhost", int(port))) as plain:
            plain.sendall(b"POST / HTTP/1.1\r\n\r\n")
            assert b"501" in plain.recv(1 << 12)
        context = ssl.create_default_context(cafile=certificates / "ca.pem")
        connection = socket.create_connection(("localhost", int(port)))
        with context.wrap_socket(connection, server_hostname="localhost") as raw:
            raw.sendall(message("drop_table", struct({1: guard.db, 2: "t", 3: True})))
            assert raw.recv(1 << 12)
        assert guard.taken().keys() == {"t/one", "t/two"}
    ways = {"upstream": other.config, "owner": other.config}
    with (
        pytest.raises(UsageError, match="compact protocol"),
        guarded(other, tmp_path / "compact", security=security, **ways),  # type: ignore[arg-type]
    ):
        pass


@pytest.mark.tls
def test_sparks_own_sessions_have_the_metastores_tls(tls: tuple[Secured, Secured], tmp_path: Path) -> None:
    with connect(tls[1].config) as client:
        db = PlainDatabase(client, "asked", tmp_path)
        db.create()
        db.table("t", {"first": "1\n2\n"})
    assert spark_counts(tls[1].config, "asked.t") == 2


@pytest.mark.tls
def test_tls_says_what_is_wrong(tls: tuple[Secured, Secured], certificates: Path) -> None:
    plain, both = (server.config for server in tls)
    without = refused(plain, **NOTHING)
    assert (
        isinstance(without, NotAMetastore) and "the server speaks TLS" in told(without) and "tls = true" in without.hint
    )
    stranger = refused(plain, ca=str(certificates / "stranger.pem"))
    assert (
        isinstance(stranger, IdentityRefused) and "ca in [metastores.NAME]" in stranger.hint and stranger.exit_code == 2
    )
    name = refused(plain, uri=plain.uri.replace("localhost", "127.0.0.1"))
    assert isinstance(name, IdentityRefused) and "verify_host" in name.hint
    assert connect(
        msgspec.structs.replace(plain, uri=plain.uri.replace("localhost", "127.0.0.1"), verify_host=False)
    ).database_names()
    unframed = refused(both, transport="socket", protocol="binary")
    assert (
        isinstance(unframed, NotAMetastore)
        and 'transport = "framed"' in unframed.hint
        and 'protocol = "compact"' in unframed.hint
    )
    framed = refused(plain, transport="framed")
    assert isinstance(framed, NotAMetastore) and 'transport = "socket"' in framed.hint
    missing = refused(plain, ca="/nowhere.pem")
    assert isinstance(missing, IdentityRefused) and "/nowhere.pem" in told(missing)


@contextmanager
def terminator(uri: str, certificates: Path) -> Iterator[MetastoreConfig]:
    """TLS before a metastore that has none, for clients with a certificate."""
    host, _, port = uri.removeprefix("thrift://").rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def drain(refused: ssl.SSLSocket) -> None:
        """Reads until the client goes: what it has sent would reset the connection, and the alert be lost."""
        with socket.socket(fileno=refused.detach()) as plain:
            plain.settimeout(CEILING)
            plain.shutdown(socket.SHUT_WR)
            while plain.recv(65536):
                pass

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                with suppress(OSError):
                    inside = context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
                    try:
                        inside.do_handshake()
                    except ssl.SSLError:
                        drain(inside)
                        continue
                    server = socket.create_connection((host, int(port)))
                    for pair in ((inside, server), (server, inside)):
                        threading.Thread(target=pump, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield MetastoreConfig(
            f"thrift://localhost:{listening.getsockname()[1]}", tls=True, ca=str(certificates / "ca.pem"),
            certificate=str(certificates / "client.pem"), key=str(certificates / "client.key"),
        )  # fmt: skip
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.tls
def test_a_client_certificate_is_shown(source_metastore: Running, certificates: Path) -> None:
    with terminator(source_metastore.uri, certificates) as config:
        with connect(config) as client:
            assert client.database_names()
        without = refused(config, certificate=None, key=None)
        assert isinstance(without, IdentityRefused) and "client certificate" in without.hint
        wrong = refused(config, key=str(certificates / "other.key"))
        assert isinstance(wrong, IdentityRefused) and "cannot be read" in told(wrong)


@pytest.mark.tls
def test_the_password_of_a_key_is_never_shown(
    source_metastore: Running, target_metastore: Running, certificates: Path, tmp_path: Path
) -> None:
    known = {"password": "s3cret-of-the-key", "key": (certificates / "client.key").read_text().splitlines()[3]}
    secret, key = tmp_path / "secret", tmp_path / "client.enc"
    secret.write_text(known["password"])
    command = [
        "openssl",
        "rsa",
        "-aes256",
        "-in",
        certificates / "client.key",
        "-out",
        key,
        "-passout",
        f"file:{secret}",
    ]
    subprocess.run(command, check=True, capture_output=True)
    with terminator(source_metastore.uri, certificates) as config:
        config = msgspec.structs.replace(config, key=str(key), key_password=f"file:{secret}")
        begin(config, tmp_path)
        file = policy(tmp_path / "here", config, target_metastore, "by_certificate")
        replicated(file, tmp_path / "here", 0, **known)
        secret.write_text("wr0ng-of-the-key")
        replicated(file, tmp_path / "here", 2, **known, wrong="wr0ng-of-the-key")


@pytest.mark.tls
def test_a_metastore_without_anything_says_so(source_metastore: Running, certificates: Path) -> None:
    plain = MetastoreConfig(source_metastore.uri, connect_timeout="1d")  # each says something at once
    for keys, wanted in (
        ({"tls": True}, "tls = false"),
        ({"transport": "framed"}, 'transport = "socket"'),
        ({"protocol": "compact"}, 'protocol = "binary"'),
        ({"transport": "http"}, 'transport = "socket"'),
        ({"auth": "plain", "user": "u", "password": f"file:{certificates}/ca.pem"}, 'auth = "none"'),
    ):
        found = refused(plain, **keys)
        assert isinstance(found, NotAMetastore) and wanted in found.hint, (keys, told(found))


# ---- HTTP and passwords: Hive 4 -----------------------------------------------------------------------------------


def jwt(directory: Path, user: str, life: float) -> str:
    """Signed with `jwt.key`, as `jwks.json` there says it."""

    def encoded(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    key = directory / "jwt.key"
    if not key.exists():
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        shown = subprocess.run(
            ["openssl", "rsa", "-in", str(key), "-modulus", "-noout"], check=True, capture_output=True, text=True
        )
        modulus = bytes.fromhex(shown.stdout.strip().partition("=")[2])
        known = {"kty": "RSA", "kid": "one", "use": "sig", "alg": "RS256", "n": encoded(modulus), "e": "AQAB"}
        (directory / "jwks.json").write_text(json.dumps({"keys": [known]}))
    head = {"alg": "RS256", "kid": "one", "typ": "JWT"}
    claims = {"sub": user, "iss": "tests", "iat": int(time.time()) - 5, "exp": int(time.time() + life)}
    text = ".".join(encoded(json.dumps(part).encode()) for part in (head, claims))
    signed = subprocess.run(
        ["openssl", "dgst", "-sha256", "-sign", str(key)], input=text.encode(), check=True, capture_output=True
    )
    return f"{text}.{encoded(signed.stdout)}"


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Secured, Secured, Path]]:
    """Two metastores over HTTP: one believes a header, the other wants a JWT, which is in the file."""
    here = tmp_path_factory.mktemp("jwt")
    secret = here / "token"
    secret.write_text(jwt(here, "root", 3600))
    mode = {"metastore.server.thrift.transport.mode": "http", "hive.metastore.server.thrift.transport.mode": "http"}
    wanted = {"hive.metastore.authentication": "JWT", "metastore.authentication": "JWT"}
    jwks = f"file://{here}/jwks.json"
    wanted |= {"metastore.authentication.jwt.jwks.url": jwks, "hive.metastore.authentication.jwt.jwks.url": jwks}
    one = MetastoreConfig(LOCALHOST, transport="http", user="root")
    other = MetastoreConfig(LOCALHOST, transport="http", jwt=f"file:{secret}")
    with ExitStack() as stack:
        places = [tmp_path_factory.mktemp(name) / "m" for name in ("http", "token")]
        yield (
            stack.enter_context(secured_metastore(places[0], one, PROXYING | mode, hive="4.0")),
            stack.enter_context(secured_metastore(places[1], other, PROXYING | mode | wanted, hive="4.0")),
            secret,
        )


@pytest.mark.http
def test_http_replicates(http: tuple[Secured, Secured, Path], tmp_path: Path) -> None:
    replicates(http[0], http[1], tmp_path)


@pytest.mark.http
def test_http_says_what_is_wrong_and_takes_a_new_jwt(http: tuple[Secured, Secured, Path]) -> None:
    header, token, secret = http
    without = refused(header.config, **NOTHING)
    assert isinstance(without, NotAMetastore) and 'transport = "http"' in without.hint
    nobody = refused(header.config, user=None)
    assert isinstance(nobody, IdentityRefused) and "401" in told(nobody) and "jwt" in nobody.hint
    path = refused(header.config, path="elsewhere")
    assert isinstance(path, NotAMetastore) and "path" in path.hint
    good = secret.read_text()
    with connect(token.config) as client:
        assert client.database_names()
        secret.write_text(jwt(secret.parent, "root", 3600))  # while the connection is open
        assert client.database_names()
        secret.write_text(jwt(secret.parent, "root", -3600))
        expired = refused(token.config)
    assert isinstance(expired, IdentityRefused) and good not in told(expired)
    secret.write_text(good)


@pytest.mark.http
def test_a_jwt_and_headers_are_never_shown(
    http: tuple[Secured, Secured, Path], source_metastore: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, token, place = http
    known = {"jwt": place.read_text(), "header": "s3cret-of-the-header"}
    monkeypatch.setenv("OF_THE_PROXY", known["header"])
    server = token.with_keys(headers={"X-Proxy-Authorization": "env:OF_THE_PROXY"})
    with connect(server) as client:
        if "sales" in client.database_names():  # another test's replica
            for table in client.table_names("sales"):
                client.drop_table("sales", table)
            client.drop_database("sales")
    begin(server, tmp_path)
    replicated(policy(tmp_path / "here", server, source_metastore, "by_jwt"), tmp_path / "here", 0, **known)
    expired = tmp_path / "secret"
    expired.write_text(jwt(place.parent, "root", -3600))
    file = policy(tmp_path / "here", msgspec.structs.replace(server, jwt=f"file:{expired}"), source_metastore, "by_jwt")
    replicated(file, tmp_path / "here", 2, **known, expired=expired.read_text())


@pytest.mark.http
def test_the_server_acts_for_a_user(http: tuple[Secured, Secured, Path], tmp_path: Path) -> None:
    """Hive 4 lets the events be read by those who may impersonate: not by alice. Over HTTP and by set_ugi."""
    with secured_metastore(tmp_path / "m", MetastoreConfig(LOCALHOST), PROXYING, hive="4.0") as plain:
        for server in (http[0], plain):
            with connect(server.config) as client:
                assert client.current_event_id() >= 0
            with connect(server.with_keys(user="alice")) as alice:
                assert alice.database_names()
                with pytest.raises(MetastoreError):
                    alice.current_event_id()


@pytest.mark.plain
def test_a_password_opens_a_metastore_and_is_never_shown(tmp_path: Path) -> None:
    """Hive 4.0 with the authentication CONFIG, the SASL PLAIN of LDAP."""
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    wanted = {
        "hive.metastore.authentication": "CONFIG",
        "metastore.authentication.config.username": "fred",
        "metastore.authentication.config.password": "s3cret",
        "hive.metastore.execute.setugi": "false",
    }
    config = MetastoreConfig(LOCALHOST, auth="plain", user="fred", password=f"file:{secret}")
    with secured_metastore(tmp_path / "m", config, PROXYING | wanted, hive="4.0") as server:
        with connect(server.config) as client:
            assert client.database_names()
            assert "PLAIN as fred" in answers("source", client, Clock()).text
        without = refused(server.config, **NOTHING)
        assert isinstance(without, NotAMetastore) and 'auth = "plain"' in without.hint
        secret.write_text("wr0ng")
        wrong = refused(server.config)
        assert isinstance(wrong, IdentityRefused) and "fred" in told(wrong) and "wr0ng" not in told(wrong)
        assert wrong.exit_code == 2


@pytest.mark.plain
def test_ldap_opens_a_metastore_and_its_password_is_never_shown(tmp_path: Path, source_metastore: Running) -> None:
    """Hive 4.2 with a real directory. Nothing that a command writes has a password, right or wrong."""
    secret = tmp_path / "password"
    secret.write_text("s3cret-of-fred\n")
    with directory(tmp_path / "ldap", fred="s3cret-of-fred") as url:
        wanted = {
            "hive.metastore.authentication": "LDAP",
            "hive.metastore.authentication.ldap.url": url,
            "hive.metastore.authentication.ldap.userDNPattern": f"uid=%s,{PEOPLE}",
            "hive.metastore.execute.setugi": "false",
        }
        wanted |= {key.removeprefix("hive."): value for key, value in wanted.items()}
        config = MetastoreConfig(LOCALHOST, auth="plain", user="fred", password=f"file:{secret}")
        with secured_metastore(tmp_path / "m", config, PROXYING | wanted, hive="4.2") as server:
            unknown = refused(server.config, user="george")
            assert isinstance(unknown, IdentityRefused) and "george" in told(unknown)
            file = policy(tmp_path / "here", server.config, source_metastore, "by_password")
            begin(server.config, tmp_path)
            assert "fred" in replicated(file, tmp_path / "here", 0, password="s3cret-of-fred")
            secret.write_text("wr0ng-of-fred\n")
            replicated(file, tmp_path / "here", 2, password="s3cret-of-fred", wrong="wr0ng-of-fred")
