"""The bundle of a policy that runs (without PySpark, as small ones do), and of one whose target is gone: what is in it,
what is named, and no secret."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from leaks import run, said, search
from names import unique
from no_spark import environment_without_spark
from plain_tables import PlainDatabase

from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

SECRETS = {
    "key": b"s3cret/of+the+bucket",
    "spark": b"s3cret-of-spark",
    "webhook": b"T00/B00/s3cret-webhook",
    "password": b"s3cret-of-the-server",
}


@pytest.fixture
def config(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Path:
    sales = unique("sales")
    with connect(source_metastore.uri) as client:
        db = PlainDatabase(client, sales, tmp_path / "sales")
        db.create()
        db.table("t", {"first": "1"})
    secret = tmp_path / "password"
    secret.write_bytes(SECRETS["password"])
    there = tmp_path / "there"
    file = tmp_path / "replicator.toml"
    file.write_text(
        f"[metastores.prod]\nuri = '{source_metastore.uri}'\n[metastores.standby]\nuri = '{target_metastore.uri}'\n"
        f"[metastores.other]\nuri = 'thrift://other:9083'\nauth = 'plain'\nuser = 'me'\npassword = 'file:{secret}'\n"
        f"[spark]\n'hadoop.fs.s3a.secret.key' = '{SECRETS['spark'].decode()}'\n"
        f"[alerts.webhooks.chat]\nurl = 'https://chat.example.com/services/{SECRETS['webhook'].decode()}'\n"
        f"[policies.west]\nsource = 'prod'\ntarget = 'standby'\ndatabases = '{sales}'\nengine = 'local'\n"
        f"cmroot = '{tmp_path}/.cmroot'\ntarget_cmroot = '{there}/.cmroot'\nwarehouse = '{there}'\n"
        f"dumps = '{tmp_path}/dumps'\n"
    )
    return file


def diagnosed(config: Path, here: Path, name: str, code: int) -> dict[str, Any]:
    """The parts of a bundle, in which all secrets were looked for, by name; `report`: what the command said."""
    out = here / f"{name}.tar.gz"
    ends = run(
        here,
        *("--config", str(config), "--verbose", "diagnose", "west", "--json", "--out", str(out)),
        secrets=SECRETS,
        env={
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",  # another test's server leaves one that is part of many names
            "AWS_SECRET_ACCESS_KEY": SECRETS["key"].decode(),
            "REPLICATOR_LOG_FILE": f"{config.parent}/log",
        },
    )
    assert ends == code, said(here)[-3000:]
    with tarfile.open(out) as archive:
        archive.extractall(here / "parts", filter="data")
    search(here, SECRETS)
    below = here / "parts" / name
    found = {str(each.relative_to(below)): each.read_text() for each in below.rglob("*") if each.is_file()}
    last = max(here.glob("said-*.out"), key=lambda each: each.stat().st_mtime)
    parts = {each: json.loads(text) if each.endswith(".json") else text for each, text in found.items()}
    return {**parts, "report": json.loads(last.read_text())}


def test_a_bundle_says_how_a_policy_is_without_secrets(config: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    no_spark = environment_without_spark(tmp_path / "site")
    synced = run(here, "--config", str(config), "sync", "west", "--json", secrets=SECRETS, env=no_spark)
    assert synced == 0, said(here)[-3000:]
    (tmp_path / "log").write_text(f"of a week ago\nPUT with {SECRETS['key'].decode()} was refused\n")
    found = diagnosed(config, here, "well", 0)
    report = found.pop("report")
    assert report["status"] == "written" and sorted(found) == report["parts"] and report["missing"] == []
    assert report["policies"] == {"west": found["policies/west/check.json"]["status"]}
    assert found["policies/west/memory.json"]["runs"][0]["status"] == "done"
    assert found["policies/west/lag.json"]["policy"] == "west"
    assert found["log.txt"].startswith("of a week ago\nPUT with *** was refused\n")
    log = next(each for each in found["configuration.json"] if each["key"] == "log.file")
    assert (log["value"], log["source"]) == (f"{tmp_path}/log", "env:REPLICATOR_LOG_FILE")
    root = found["roots/0.json"]
    assert root["files"] == {"counted": 1, "directories": 1, "looked_at": 1, "complete": True, "estimate": 1}
    assert root["lease"]["held"] is False and root["pins"]["slots"] == ["west"] and root["log"]["segments"] >= 1
    assert found["service.json"] == {"store": "sqlite:///service.sqlite", "revision": None}
    assert {"replicator", "python", "packages"} <= set(found["versions.json"]) and found["java.json"]["version"] >= 17

    gone = "[metastores.standby]\nuri = "
    config.write_text(config.read_text().replace(gone, f"{gone}'thrift://127.0.0.1:1' # "))
    away = diagnosed(config, here, "away", 3)
    assert away["report"]["status"] == "partial" and away["missing.json"] == away["report"]["missing"]
    assert {"policies/west/lag.json"} <= {each["part"] for each in away["missing.json"]}
    assert away["policies/west/memory.json"]["runs"] and "127.0.0.1:1" in away["README.txt"]
