"""YARN and HDFS with Kerberos: executors read and write by the delegation tokens that YARN gives to containers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hadoop import Cluster
from hdfs_path import HdfsPath
from kerberos import Kdc
from lab import Lab
from plain_tables import PlainDatabase
from secure_hdfs import HOME, hdfs_of_alice, metastore_of
from yarn import Yarn, running_yarn

from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

pytestmark = [pytest.mark.hdfs, pytest.mark.kerberos, pytest.mark.long]

FILES = 4


@pytest.fixture(scope="module")
def secure(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with hdfs_of_alice(kdc, tmp_path_factory.mktemp("secure")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def metastore(secure: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with metastore_of(secure, tmp_path_factory.mktemp("metastore")) as running:
        yield running


@pytest.fixture(scope="module")
def yarn(secure: Cluster, kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    keys = kdc.keytab("rm/localhost", "nm/localhost")
    settings = {
        f"yarn.{server}.{key}": value
        for server, name in (("resourcemanager", "rm"), ("nodemanager", "nm"))
        for key, value in (("principal", f"{name}/localhost@EXAMPLE.COM"), ("keytab", str(keys)))
    }
    with running_yarn(secure, tmp_path_factory.mktemp("yarn"), {}, **settings) as found:
        yield found


@pytest.fixture
def dumped(secure: Cluster, metastore: Running, tmp_path: Path) -> Lab:
    place: Any = HdfsPath(secure, f"{HOME}/{tmp_path.name}")
    found = Lab(metastore, metastore, place, warehouse=place / "replica")
    found.source = PlainDatabase(connect(metastore.uri), found.name, place / "warehouse")
    found.target = PlainDatabase(connect(metastore.uri), f"{found.name}_copy", place / "replica")
    found.source.create()
    found.source.partitioned("p", {f"{number}": {"f": f"{number}\tx\n" * 1000} for number in range(FILES)})
    answer = found.dump()
    assert answer.code == 0, answer
    return found


def loading(lab: Lab) -> list[str]:
    return [*lab.load_arguments(lab.last)[:-1], "spark", "--rename-db", f"{lab.name}={lab.name}_copy"]


def said(printed: str) -> Any:
    return json.loads(next(line for line in printed.splitlines() if line.startswith("{")))


def test_by_a_ticket_in_client_mode(dumped: Lab, yarn: Yarn) -> None:
    ended = yarn.client(*loading(dumped))
    assert (ended.code, ended.application["user"]) == (0, "alice"), f"{ended.printed[-3000:]} {ended.application}"
    assert said(ended.printed)["files_copied"] == FILES
    assert dumped.target.shown() == dumped.source.shown()


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_by_a_keytab(mode: str, dumped: Lab, yarn: Yarn, kdc: Kdc, tmp_path: Path) -> None:
    keytab = str(kdc.keytab("alice"))
    env = {"KRB5CCNAME": f"FILE:{tmp_path}/none", "KRB5_CLIENT_KTNAME": keytab}
    call = getattr(replace(yarn, env=env), mode)
    ended = call(*loading(dumped), **{"spark.kerberos.keytab": keytab, "spark.kerberos.principal": "alice@EXAMPLE.COM"})
    assert (ended.code, ended.application["user"]) == (0, "alice"), f"{ended.printed[-3000:]} {ended.application}"
    printed = ended.printed if mode == "client" else yarn.printed(ended.application["id"])
    assert said(printed)["files_copied"] == FILES
    assert dumped.target.shown() == dumped.source.shown()
