"""Identity and transport of a metastore for Spark's own client, which is that of Hive 2.3 (`[metastores.NAME]` as
Hadoop's and Hive's settings). Settings that this client does not support are refused: it would connect as another user,
or hang.

Settings are visible in process lists and in Spark's UI, so they never contain a secret.
"""

from __future__ import annotations

import atexit
import getpass
import hashlib
import importlib.util
import os
import shutil
import ssl
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from replicator.core.connections import MetastoreConfig
from replicator.errors import SparkMissing, UsageError

_HIVE = "spark.hadoop.hive.metastore."
_OWN = (_HIVE, "spark.hadoop.metastore.")
_FILES = ("HADOOP_CONF_DIR", "HIVE_CONF_DIR", "SPARK_CONF_DIR")
_STRONGEST_FIRST = ("privacy", "integrity", "authentication")
_HINT = (
    "set Spark's own access to it: spark.hadoop.hive.metastore.* in [spark], by --spark-conf or in a hive-site.xml of "
    "HADOOP_CONF_DIR"
)


def require_pyspark() -> None:
    """Raises SparkMissing if pyspark is not installed. Imports nothing."""
    if importlib.util.find_spec("pyspark") is None:
        home = os.environ.get("SPARK_HOME")
        raise SparkMissing(
            "this needs Spark, and PySpark is not installed",
            hint=f"add {home}/python and its lib/py4j-*.zip to PYTHONPATH, or run this by {home}/bin/spark-submit"
            if home
            else "pip install 'replicator[spark]' ('replicator[local]': with a Java, too), or give --engine local",
        )


def client_settings(config: MetastoreConfig, given: Mapping[str, str]) -> dict[str, str]:
    """Returns settings for a Spark that reads this metastore; `given`: the caller's settings, which take precedence.
    Raises UsageError for settings that Spark does not support, unless the caller's own settings, configuration files or
    running Spark may provide them. Writes a trust store for TLS, which is removed when this process ends."""
    own = any(key.startswith(_OWN) and key != f"{_HIVE}uris" for key in given)
    theirs = own or any(map(os.environ.get, _FILES)) or _spark_runs()
    if not theirs:
        for what, hint in _lacking(config):
            raise UsageError(f"Spark cannot reach the metastore {config.uri} as it is configured: {what}", hint=hint)
    found: dict[str, str] = {}
    if config.auth == "kerberos":
        least = config.protection or "authentication"
        qualities = _STRONGEST_FIRST[: _STRONGEST_FIRST.index(least) + 1]
        found |= {
            f"{_HIVE}sasl.enabled": "true",
            f"{_HIVE}kerberos.principal": config.principal or "",
            "spark.hadoop.hadoop.security.authentication": "kerberos",
            "spark.hadoop.hadoop.rpc.protection": ",".join(qualities),
        }
        if config.keytab and config.client_principal:
            found |= {"spark.kerberos.keytab": config.keytab, "spark.kerberos.principal": config.client_principal}
        if not os.environ.get("HADOOP_CONF_DIR"):  # the renewer of HDFS tokens: readers of files require its name
            renewer = config.client_principal or config.principal or ""
            found["spark.hadoop.yarn.resourcemanager.principal"] = renewer
    if config.tls:
        found[f"{_HIVE}use.SSL"] = "true"
        if f"{_HIVE}truststore.path" not in given and (config.ca or not theirs):
            found[f"{_HIVE}truststore.path"] = _trust_store(config)
    if config.transport == "framed":
        found[f"{_HIVE}thrift.framed.transport.enabled"] = "true"
    if config.protocol == "compact":
        found[f"{_HIVE}thrift.compact.protocol.enabled"] = "true"
    return {key: value for key, value in found.items() if key not in given}


def _lacking(config: MetastoreConfig) -> Iterator[tuple[str, str]]:
    kerberos = config.auth == "kerberos"
    service, _, realm = (config.principal or "").partition("@")
    whoever = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    if config.auth in ("plain", "token"):
        yield f'its Hive client knows no auth = "{config.auth}"', _HINT
    if config.transport == "http":
        yield "its Hive client knows no HTTP", _HINT
    if config.certificate:
        yield "its Hive client shows no client certificate", _HINT
    if kerberos and not (realm and "/" in service):
        yield "its Hive client needs the server's principal with its realm", 'write principal = "hive/_HOST@REALM"'
    if kerberos and config.user:
        yield f"it would not act for user {config.user}, but as its own principal", _HINT
    if kerberos and config.ticket_cache and os.environ.get("KRB5CCNAME") != config.ticket_cache:
        yield (
            "it takes tickets from the default cache, not from ticket_cache",
            f"set KRB5CCNAME={config.ticket_cache}, or keytab and client_principal in [metastores.NAME]",
        )
    if config.auth == "none" and config.user and config.user != whoever:
        yield f"it would ask as {whoever}, not as user {config.user}", f"set HADOOP_USER_NAME={config.user}"


def _spark_runs() -> bool:
    """Returns True if this process runs a Spark, whose settings are fixed."""
    module = sys.modules.get("pyspark")
    context = module.SparkContext._active_spark_context if module is not None else None
    return context is not None and context._jsc is not None


def _trust_store(config: MetastoreConfig) -> str:
    """Writes a trust store for Java with the certificates that `ca`, or the system, trusts."""
    try:
        trusted = ssl.create_default_context(cafile=config.ca).get_ca_certs(binary_form=True)
    except (OSError, ValueError) as error:
        raise UsageError(f"ca {config.ca} cannot be read", hint="it is a PEM file") from error
    if not trusted:
        raise UsageError(
            "Spark's Hive client knows no certificate to trust", hint="set ca in [metastores.NAME] to a PEM file"
        )
    place = Path(tempfile.mkdtemp(prefix="replicator-trust-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    file = place / "trusted.jks"
    file.write_bytes(java_key_store(trusted))
    return str(file)


def java_key_store(certificates: Sequence[bytes]) -> bytes:
    """Returns trusted certificates (DER) in Java's JKS format, with the empty password, which protects nothing here."""
    data = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, each in enumerate(certificates):
        entry = struct.pack(">I", 2) + _utf(f"ca{number}") + struct.pack(">Q", 0) + _utf("X.509")
        data += entry + struct.pack(">I", len(each)) + each
    return data + hashlib.sha1(b"Mighty Aphrodite" + data, usedforsecurity=False).digest()


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
