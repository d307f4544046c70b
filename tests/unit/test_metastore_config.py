"""`[metastores.NAME]`: keys that fit together, secrets that are never shown, metastores by name and by URI."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from replicator.commands.role_change import RoleShowOptions
from replicator.core.config import Config, parse_config
from replicator.core.connections import MetastoreConfig, addresses, checked, read_secret
from replicator.errors import ConfigError, UsageError
from replicator.metastore.sasl import credentials_of
from replicator.metastore.thrift import connect

URI = "thrift://a:9083"


def config(**tables: Any) -> Config:
    return parse_config({"metastores": tables}, "file")


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"auth": "plain", "user": "u"}, "auth"),
        ({"auth": "plain", "user": "u", "password": "s3cret"}, "password"),
        ({"auth": "token", "token": "s3cret"}, "token"),
        ({"auth": "none", "password": "file:/x"}, "password"),
        ({"auth": "none", "keytab": "/x"}, "keytab"),
        ({"auth": "kerberos", "keytab": "/x"}, "keytab"),
        ({"auth": "kerberos", "transport": "framed"}, "transport"),
        ({"auth": "kerberos", "transport": "http"}, "auth"),
        ({"certificate": "/x", "tls": True}, "certificate"),
        ({"ca": "/x"}, "tls"),
        ({"jwt": "file:/x"}, "jwt"),
        ({"transport": "http", "jwt": "s3cret"}, "jwt"),
        ({"transport": "http", "headers": {"Authorization": "Basic s3cret"}}, "headers.Authorization"),
        ({"connect_timeout": "soon"}, "connect_timeout"),
        ({"answer_timeout": 0}, "answer_timeout"),
        ({"auth": "ldap"}, "auth"),
        ({"passwort": "s3cret"}, "passwort"),
    ],
)
def test_keys_that_do_not_fit_are_named_and_secrets_are_not_shown(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config(prod={"uri": URI, **keys})
    text = f"{raised.value.message} {raised.value.hint}"
    assert named in raised.value.message and "prod" in f"{text} metastores.prod" and "s3cret" not in text


@pytest.mark.parametrize("uri", ["thrift://me:s3cret@a:9083", "thrift://a:9083?password=s3cret", "thrift://s3cret@a"])
def test_a_uri_with_a_secret_is_refused_and_not_shown(uri: str) -> None:
    for refused in (lambda: addresses(uri), lambda: connect(uri), lambda: config(prod={"uri": uri})):
        with pytest.raises((ConfigError, UsageError)) as raised:
            refused()
        assert "s3cret" not in f"{raised.value.message} {raised.value.hint}" and "password" in raised.value.hint
        assert raised.value.exit_code == 2


def test_http_uris_name_the_keys() -> None:
    with pytest.raises(UsageError) as raised:
        addresses("https://a:9083/metastore")
    assert 'transport = "http"' in raised.value.hint and "tls = true" in raised.value.hint


def test_a_metastore_is_found_by_name_by_its_uri_and_as_a_value() -> None:
    found = config(
        prod={"uri": URI, "auth": "kerberos"}, other={"uri": "thrift://b"}, twin={"uri": "thrift://b", "tls": True}
    )
    assert found.metastore("prod") == found.metastore(URI) == MetastoreConfig(URI, auth="kerberos")
    assert found.metastore("thrift://c") == MetastoreConfig("thrift://c")
    value = MetastoreConfig("thrift://d", tls=True)
    assert found.metastore(value) is value and found.metastore_uri(value) == "thrift://d"
    with pytest.raises(UsageError, match="several") as raised:
        found.metastore("thrift://b")
    assert "other" in raised.value.hint and "twin" in raised.value.hint
    with pytest.raises(ConfigError, match="password"):
        found.metastore(MetastoreConfig(URI, password="file:/x"))


def test_a_uri_of_tables_that_differ_by_their_catalog_is_one_metastores() -> None:
    found = config(**{name: {"uri": URI, "auth": "kerberos", "catalog": name} for name in ("lake", "mart")})
    with pytest.raises(UsageError, match="several metastores"):
        found.metastore(URI)
    for given in (URI, "mart"):
        assert found.metastore(given, "lake") == found.metastore("lake")
    asked = RoleShowOptions(metastore=URI, catalog="mart", config=found).complete()
    assert asked.metastore == found.metastore("mart")


def test_secrets_are_read_from_files_variables_and_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("from a file\nand more\n")
    monkeypatch.setenv("SECRET", "from a variable")
    assert read_secret(f"file:{tmp_path}/secret", "password") == "from a file"
    assert read_secret("env:SECRET", "password") == "from a variable"
    assert read_secret("command:printf '%s' 'from a command'", "password") == "from a command"
    for reference in (
        f"file:{tmp_path}/none",
        "env:NOBODY",
        "command:false",
        "command:no-such-program",
        "file:/dev/null",
    ):
        with pytest.raises(ConfigError, match="password"):
            read_secret(reference, "password")


def test_what_is_shown_of_a_connection() -> None:
    assert checked(URI).described() == ""
    full = MetastoreConfig(URI, auth="kerberos", keytab="/k", client_principal="me@R", user="you", tls=True)
    assert full.described() == "Kerberos as me@R, for you, TLS"
    assert MetastoreConfig(URI, transport="http", tls=True, jwt="env:X").described() == "JWT, HTTPS"


@pytest.mark.parametrize("size", [1, 5, 127, 128, 255, 256, 70_000])
def test_a_delegation_token_is_read_as_hadoop_writes_it(size: int) -> None:
    identifier = bytes(size % 251 for _ in range(size))
    length = bytes([size]) if size < 128 else size.to_bytes((size.bit_length() + 7) // 8, "big")
    head = length if size < 128 else bytes([144 - len(length)]) + length  # WritableUtils.writeVInt
    token = base64.urlsafe_b64encode(head + identifier + b"\x03abc" + b"\x04HIVE\x00").rstrip(b"=").decode()
    assert credentials_of(token) == (base64.b64encode(identifier).decode(), base64.b64encode(b"abc").decode())


@pytest.mark.parametrize("token", ["", "!", "AAA", base64.urlsafe_b64encode(b"\x7fshort").decode()])
def test_what_is_no_token_is_told_and_not_shown(token: str) -> None:
    with pytest.raises(ConfigError, match="not a delegation token") as raised:
        credentials_of(token)
    assert len(token) < 4 or token not in raised.value.message
