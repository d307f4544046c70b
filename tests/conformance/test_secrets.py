"""Secrets of databases and stores are in no output, file or list of processes. Those of metastores: test_transports.py,
test_kerberos.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from leaks import replicated, run, said, search
from names import unique
from plain_tables import PlainDatabase
from postgres import Postgres
from stores import s3_server

from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

PASSWORD = "s3cret-of-the-database"


def test_the_password_of_a_metastores_database_is_never_shown(tmp_path: Path, postgres: Postgres) -> None:
    """By a reference it reaches the server alone, in a file of its owner; in a URL it is in no error either."""
    known, env = {"password": PASSWORD.encode()}, {"OF_HIVE": PASSWORD}
    place = tmp_path / "metastore"
    settings = {**postgres.jdbc(), "javax.jdo.option.ConnectionPassword": "env:OF_HIVE"}
    start = ("metastore", "start", "--json", "--dir", str(place))
    try:
        given = [f"--set={key}={value}" for key, value in settings.items()]
        assert run(tmp_path, *start, *given, secrets=known, env=env) == 0, said(tmp_path)
        assert run(tmp_path, "metastore", "status", "--json", "--dir", str(place), secrets=known) == 0
        site = place / "conf" / "hive-site.xml"
        assert PASSWORD in site.read_text() and site.stat().st_mode & 0o77 == 0
        search(tmp_path, known, site)
    finally:
        run(tmp_path, "metastore", "stop", "--dir", str(place), secrets={})
    url = settings["javax.jdo.option.ConnectionURL"] + "-absent?password=" + PASSWORD
    texts = " ".join(f"{key}={value}" for key, value in {**settings, "javax.jdo.option.ConnectionURL": url}.items())
    absent, env = tmp_path / "absent", {**env, "REPLICATOR_METASTORE_START_SETTINGS": texts}
    assert run(tmp_path, "metastore", "start", "--json", "--dir", str(absent), secrets=known, env=env) == 1
    assert "password=***" in said(tmp_path), "the tool shows the URL"
    search(tmp_path, known, site, absent / "conf" / "hive-site.xml")
    lost = ("metastore", "start", "--dir", f"{tmp_path}/lost", "--set", "javax.jdo.option.ConnectionPassword=env:NONE")
    assert run(tmp_path, *lost, secrets=known) == 2
    assert "javax.jdo.option.ConnectionPassword: cannot be read from env:NONE" in said(tmp_path)


def test_the_keys_of_a_store_are_never_shown(
    source_metastore: Running, target_metastore: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "s3cret/of+the+bucket"
    here, token = tmp_path / "here", "s3cret-token-of-the-session"
    here.mkdir()
    with connect(source_metastore.uri) as client:
        db = PlainDatabase(client, unique("sales"), tmp_path / "sales")
        db.create()
        db.table("t", {"first": "1"})
    with s3_server() as filesystem:
        filesystem.mkdir("secrets")
        config = tmp_path / "replicator.toml"
        config.write_text(
            f"[metastores.prod]\nuri = '{source_metastore.uri}'\n[metastores.standby]\nuri = '{target_metastore.uri}'\n"
            f"[policies.west]\nsource = 'prod'\ntarget = 'standby'\ndatabases = '{db.name}'\nengine = 'local'\n"
            f"cmroot = 's3a://secrets/.cmroot'\ntarget_cmroot = '{here}/there/.cmroot'\nwarehouse = '{here}/there'\n"
            "dumps = 's3a://secrets/dumps'\n"
        )
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key)
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
        replicated(config, here, 0, key=key, token=token)
        stored = b"".join(filesystem.cat(name) for name in filesystem.find("secrets"))
        assert stored and key.encode() not in stored and token.encode() not in stored
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    capture = ("capture", "--source", source_metastore.uri, "--db", db.name, "--cmroot", "s3a://secrets/.cmroot")
    known = {"key": key.encode(), "token": token.encode()}
    assert run(here, "--verbose", *capture, "--json", secrets=known)
    search(here, known)
