"""contrib/: what it names exists, by the programs that read such files where they are here."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from replicator.cli.table import COMMANDS
from replicator.core.config import parse_config

HERE = Path(__file__).parents[2] / "contrib"


def manifests() -> list[dict[str, Any]]:
    return [each for file in sorted((HERE / "kubernetes").iterdir()) for each in yaml.safe_load_all(file.read_text())]


def test_every_file_is_listed() -> None:
    text = (HERE / "README.md").read_text()
    files = [str(each.relative_to(HERE)) for each in HERE.rglob("*") if each.is_file() and each.name != "README.md"]
    assert [each for each in files if each not in text and each.replace("@.timer", "@.service") not in text] == []


@pytest.mark.parametrize("name", ["replicator.service", "replicator-sync@.service", "replicator-sync@.timer"])
def test_units_are_valid(name: str, tmp_path: Path) -> None:
    if not (verify := shutil.which("systemd-analyze")):
        pytest.skip("systemd-analyze is not installed")
    for file in (HERE / "systemd").iterdir():  # with a program and a user that are here
        text = (
            file.read_text().replace("/opt/replicator/bin/replicator", "/bin/true").replace("=replicator\n", "=root\n")
        )
        (tmp_path / file.name).write_text(text)
    unit = tmp_path / name.replace("@", "@west")
    unit.exists() or unit.symlink_to(tmp_path / name)
    done = subprocess.run([verify, "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert str(tmp_path) not in done.stderr, done.stderr


@pytest.mark.parametrize("given", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_alert_rules_say_what_they_should(given: tuple[str, ...]) -> None:
    if not (promtool := shutil.which("promtool")):
        pytest.skip("promtool is not installed")
    here = HERE / "prometheus"
    done = subprocess.run([promtool, *given], cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_commands_are_the_programs() -> None:
    lines = [
        line.split("/bin/replicator ")[1].split()[0]
        for file in (HERE / "systemd").glob("*.service")
        for line in file.read_text().splitlines()
        if line.startswith("ExecStart=")
    ]
    cron = next(each for each in manifests() if each["kind"] == "CronJob")
    job = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    lines.append(job["containers"][0]["args"][0])
    lines.append(json.loads((HERE / "Dockerfile").read_text().rpartition("CMD ")[2])[0])
    assert set(lines) == {"serve", "sync"} <= set(COMMANDS)


def test_manifests_fit_together() -> None:
    found = {each["kind"]: each for each in manifests()}
    config = tomllib.loads(found["ConfigMap"]["data"]["replicator.toml"])
    assert parse_config(config, "manifest").service.listen.endswith(":8484")
    pod = found["Deployment"]["spec"]["template"]
    assert found["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    container = pod["spec"]["containers"][0]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports["http"] == 8484 and container["livenessProbe"]["httpGet"]["port"] == "http"
    names = {each["name"] for each in pod["spec"]["volumes"]}
    assert {each["name"] for each in container["volumeMounts"]} == names
