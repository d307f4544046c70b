"""Real metastores that want an identity, TLS or another transport."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from kerberos import with_java_options
from names import unique
from plain_tables import PlainDatabase
from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.protocol.TCompactProtocol import TCompactProtocolAccelerated
from waiting import CEILING, eventually

import replicator
from replicator.core.connections import MetastoreConfig
from replicator.errors import Error, MetastoreError
from replicator.metastore import transport
from replicator.metastore.embedded.running import Running
from replicator.metastore.embedded.server_process import (
    INSTANCE,
    began,
    end,
    find_runtime,
    free_port,
    last_lines,
    spawn,
)
from replicator.metastore.embedded.template import new_database
from replicator.metastore.thrift import ThriftMetastore, connect


@dataclass
class Secured:
    """A running server. `config`: how its clients reach it."""

    config: MetastoreConfig
    directory: Path
    pid: int
    start: str | None

    @property
    def uri(self) -> str:
        return self.config.uri

    @property
    def warehouse(self) -> Path:
        return self.directory / "warehouse"

    def kill(self) -> None:
        end(self.pid, self.start, timedelta(0))

    def with_keys(self, **keys: object) -> MetastoreConfig:
        return msgspec.structs.replace(self.config, **keys)


@contextmanager
def secured_metastore(
    directory: Path, config: MetastoreConfig, settings: Mapping[str, str], *, hive: str = "2.3", java: str = ""
) -> Iterator[Secured]:
    """Starts one at a free port, which `{port}` in the URI stands for, and ends it. java: its options."""
    runtime = find_runtime(with_java_options(os.environ, java), hive)
    (directory / "warehouse").mkdir(parents=True)
    new_database(find_runtime(os.environ, hive), directory / "metastore_db")
    port, instance = free_port(None), uuid.uuid4().hex
    config = msgspec.structs.replace(config, uri=config.uri.format(port=port))
    pid = spawn(runtime, directory, port, {**settings, INSTANCE: instance})
    server = Secured(config, directory, pid, began(pid))
    try:
        _wait(server, instance)
        yield server
    finally:
        server.kill()


def _wait(server: Secured, instance: str) -> None:
    said: list[object] = []

    def answers() -> bool:
        assert began(server.pid) == server.start, f"{said[-1:]}\n{last_lines(server.directory / 'metastore.log')}"
        patient = server.with_keys(connect_timeout=f"{CEILING:.0f}s")
        try:
            with ThriftMetastore(patient, timeout=CEILING, retries=0) as client:
                return client.setting(INSTANCE) == instance
        except MetastoreError as error:
            said.append(error)
            return False

    eventually(answers, lambda: f"{said[-1:]}\n{last_lines(server.directory / 'metastore.log')}")


def make_certificates(directory: Path) -> None:
    """ca.pem; server.pem and server.key for localhost, server.p12 for Java ("changeit"); client.pem and client.key;
    other.pem and other.key for another host; stranger.pem, which signed none of them."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("ca", "stranger"):
        _openssl(directory, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-days", "2",
                 "-keyout", f"{name}.key", "-out", f"{name}.pem")  # fmt: skip
    for name, host in (("server", "localhost"), ("client", "client"), ("other", "elsewhere")):
        (directory / f"{name}.ext").write_text(f"subjectAltName=DNS:{host}\n")
        _openssl(directory, "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={host}", "-keyout", f"{name}.key",
                 "-out", f"{name}.csr")  # fmt: skip
        _openssl(directory, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2",
                 "-CAcreateserial", "-extfile", f"{name}.ext", "-out", f"{name}.pem")  # fmt: skip
    _openssl(directory, "pkcs12", "-export", "-in", "server.pem", "-inkey", "server.key", "-out", "server.p12",
             "-passout", "pass:changeit", "-name", "server")  # fmt: skip


def _openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


PROXYING = {
    "hadoop.proxyuser.root.hosts": "*",
    "hadoop.proxyuser.root.groups": "*",
    "hive.metastore.event.db.notification.api.auth": "true",  # as a server has it
}
LOCALHOST = "thrift://localhost:{port}"


def table(name: str, config: MetastoreConfig) -> str:
    """`[metastores.NAME]` as a file has it."""
    lines = [f"[metastores.{name}]"]
    for key, value in msgspec.to_builtins(config).items():
        if value == getattr(MetastoreConfig(config.uri), key) and key != "uri":
            continue
        inline = (
            "{" + ", ".join(f"{one} = {json.dumps(other)}" for one, other in value.items()) + "}"
            if isinstance(value, dict)
            else json.dumps(value)
        )
        lines.append(f"{key} = {inline}")
    return "\n".join(lines) + "\n"


def policy(here: Path, source: MetastoreConfig, target: Secured | Running, name: str = "", db: str = "sales") -> Path:
    """A configuration file with the policy `west` of a database, which is `name` on the target."""
    here.mkdir(parents=True, exist_ok=True)
    file = here / "replicator.toml"
    keys = {
        "source": "prod",
        "target": "standby",
        "databases": db,
        "cmroot": f"{here}/cm",
        "target_cmroot": f"{here}/there/.cmroot",
        "dumps": f"{here}/dumps",
        "warehouse": f"{here}/there",
        "engine": "local",
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    lines += [f'rename_db = {{{db} = "{name}"}}'] if name else []
    other = target.config if isinstance(target, Secured) else MetastoreConfig(target.uri)
    file.write_text(table("prod", source) + table("standby", other) + "\n".join(["[policies.west]", *lines, ""]))
    return file


def begin(config: MetastoreConfig, here: Path) -> None:
    """A database `sales` with one table; may run twice."""
    with connect(config) as client:
        if "sales" not in client.database_names():
            db = PlainDatabase(client, "sales", here / "sales")
            db.create()
            db.table("t", {"first": "1"})


def replicates(source: Secured, target: Secured, here: Path) -> Path:
    """Dump, load, verify and sync by the names of the two in a configuration file, which is returned."""
    name, once = unique("sales"), unique("once")
    config = policy(here, source.config, target, db=name)
    with connect(source.config) as client, connect(target.config) as other:
        db = PlainDatabase(client, name, here / "here")
        db.create()
        db.table("t", {"first": "1"})
        db.partitioned("days", {str(day): {"x": f"{day}"} for day in range(40)})
        out = str(here / "dumped")
        replicator.dump(source="prod", cmroot=f"{here}/cm-once", out=out, db=name, config=config)
        load = {"rename_db": {name: once}, "target_cmroot": f"{here}/once/.cmroot", "warehouse": f"{here}/once"}
        replicator.load(out, target="standby", config=config, **load)
        assert len(other.partition_names(once, "days")) == 40
        assert replicator.sync("west", config=config).status == "synced"
        db.add("days", {"40": {"x": "40"}})
        db.table("u", {"more": "2"})
        assert replicator.sync("west", config=config).status == "synced"
        assert replicator.verify("west", config=config).status == "same"
        for each in (client, other):
            decodes_fast(each, name)
            assert not each.unknown_fields()  # the drift guard reads on this transport, too
    return config


def decodes_fast(client: ThriftMetastore, db: str) -> None:
    """The decoder in Python, eight times slower, is not called."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (TBinaryProtocolAccelerated, TCompactProtocolAccelerated):
            patch.setattr(kind, "readFieldBegin", None)
        found = [len(batch) for batch in client.partitions(db, "days", client.partition_names(db, "days"))]
    assert sum(found) == 41


def refused(config: MetastoreConfig, **keys: object) -> MetastoreError:
    """What a client of other keys is told, by what the server says to each guess."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "PATIENCE", CEILING)
        with connect(msgspec.structs.replace(config, **keys)) as client, pytest.raises(MetastoreError) as raised:
            client.database_names()
    return raised.value


def spark_counts(config: MetastoreConfig, table: str, **settings: str) -> int:
    """The rows of a table, by Spark's own client of the metastore."""
    asked = f"SELECT count(*) FROM {table}"
    command = [sys.executable, str(Path(__file__).with_name("spark_asks.py")), msgspec.json.encode(config).decode()]
    done = subprocess.run([*command, json.dumps(settings), asked], capture_output=True, text=True, timeout=CEILING)
    assert not done.returncode, done.stderr[-3000:]
    return int(json.loads(done.stdout)[0][0])


def told(error: Error) -> str:
    return f"{error.message} | {error.hint}"


NOTHING: dict[str, object] = {
    "auth": "none", "principal": None, "keytab": None, "client_principal": None, "ticket_cache": None, "user": None,
    "password": None, "tls": False, "ca": None, "transport": "socket", "protocol": "binary", "jwt": None,
}  # fmt: skip
