"""What Spark's own client of a metastore is told, and what it is refused."""

from __future__ import annotations

import pytest

from replicator.core.connections import MetastoreConfig, client_settings
from replicator.core.spark import hive_settings
from replicator.errors import UsageError

URI = "thrift://meta:9083"
KERBEROS = {"auth": "kerberos", "principal": "hive/_HOST@R", "keytab": "/k", "client_principal": "me@R"}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "HIVE_CONF_DIR", "SPARK_CONF_DIR", "HADOOP_USER_NAME", "KRB5CCNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("replicator.core.connections._spark_runs", lambda: False)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"auth": "plain", "user": "u", "password": "env:P"}, 'auth = "plain"'),
        ({"auth": "token", "token": "env:T"}, 'auth = "token"'),
        ({"transport": "http", "jwt": "env:J"}, "HTTP"),
        ({"tls": True, "certificate": "/c", "key": "/k"}, "client certificate"),
        (KERBEROS | {"principal": None}, "realm"),
        (KERBEROS | {"user": "alice"}, "user alice"),
        ({"auth": "kerberos", "principal": "hive/_HOST@R", "ticket_cache": "FILE:/c"}, "ticket_cache"),
        ({"user": "somebody"}, "not as user somebody"),
    ],
)
def test_what_sparks_client_cannot_do_is_refused(
    keys: dict[str, object], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = MetastoreConfig(URI, **keys)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=named) as raised:
        hive_settings(config, "/warehouse")
    assert URI in raised.value.message and raised.value.hint and "env:" not in raised.value.message
    if "certificate" not in keys:
        client_settings(config, {"spark.hadoop.hive.metastore.sasl.enabled": "true"})
    with pytest.raises(UsageError):
        client_settings(config, {"spark.hadoop.hive.metastore.uris": URI})


def test_sparks_client_gets_identity_and_the_least_protection() -> None:
    found = client_settings(MetastoreConfig(URI, protection="integrity", **KERBEROS), {})  # type: ignore[arg-type]
    assert found == {
        "spark.hadoop.hive.metastore.sasl.enabled": "true",
        "spark.hadoop.hive.metastore.kerberos.principal": "hive/_HOST@R",
        "spark.hadoop.hadoop.security.authentication": "kerberos",
        "spark.hadoop.hadoop.rpc.protection": "privacy,integrity",
        "spark.hadoop.yarn.resourcemanager.principal": "me@R",
        "spark.kerberos.keytab": "/k",
        "spark.kerberos.principal": "me@R",
    }
    given = {"spark.kerberos.keytab": "/other"}
    assert "spark.kerberos.keytab" not in client_settings(MetastoreConfig(URI, **KERBEROS), given)  # type: ignore[arg-type]
    assert client_settings(MetastoreConfig(URI), {}) == {}
