"""contrib/: what it names exists, by the programs that read such files where they are here."""

from __future__ import annotations

import grp
import importlib
import json
import logging
import os
import pwd
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from jsonschema import Draft202012Validator
from packaging.specifiers import SpecifierSet

from replicator.cli.output import begin_logging, end_logging
from replicator.cli.table import COMMANDS
from replicator.cli.table import command as table_command
from replicator.core.config import parse_config
from replicator.core.logging import LogConfig

HERE = Path(__file__).parents[2] / "contrib"


def manifests() -> list[dict[str, Any]]:
    return [each for file in sorted((HERE / "kubernetes").iterdir()) for each in yaml.safe_load_all(file.read_text())]


def test_every_file_is_listed() -> None:
    text = (HERE / "README.md").read_text()
    files = [str(each.relative_to(HERE)) for each in HERE.rglob("*") if each.is_file() and each.name != "README.md"]
    above = ("airflow/", "systemd/jobs/")
    files = [next((each for each in above if file.startswith(each)), file) for file in files]
    assert [each for each in files if each not in text and each.replace("@.timer", "@.service") not in text] == []


UNITS = sorted(each.name for each in (HERE / "systemd").iterdir() if each.is_file())


@pytest.mark.parametrize("name", UNITS)
def test_units_are_valid(name: str, tmp_path: Path) -> None:
    if not (verify := shutil.which("systemd-analyze")):
        pytest.skip("systemd-analyze is not installed")
    for file in map((HERE / "systemd").joinpath, UNITS):  # with a program and a user that are here
        text = file.read_text().replace("User=replicator", "User=root")
        (tmp_path / file.name).write_text(text.replace("/opt/replicator/bin/replicator", "/bin/true"))
    unit = tmp_path / name.replace("@", "@west")
    unit.exists() or unit.symlink_to(tmp_path / name)
    line = [verify, "verify", "--man=no", "--recursive-errors=no", unit]  # 1 for warnings of this one, too
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    right = (tmp_path / name).read_text()
    (tmp_path / name).write_text(right.replace("\nWantedBy", "\nWantedBye").replace("\nUser", "\nUsr"))
    assert subprocess.run(line, capture_output=True, check=False).returncode == 1, "a misspelled key is seen"


@pytest.mark.parametrize("given", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_alert_rules_say_what_they_should(given: tuple[str, ...]) -> None:
    if not (promtool := shutil.which("promtool")):
        pytest.skip("promtool is not installed")
    here = HERE / "prometheus"
    done = subprocess.run([promtool, *given], cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def lines() -> dict[str, list[str]]:
    """Command lines by where they are given."""
    found = {}
    for unit in (HERE / "systemd").glob("*.service"):
        for line in unit.read_text().splitlines():
            if line.startswith("ExecStart=") and "$ARGUMENTS" not in line:
                found[unit.name] = shlex.split(line.split("/bin/replicator ")[1].replace("%i", "west"))
    for job in (HERE / "systemd" / "jobs").iterdir():
        found[f"jobs/{job.name}"] = shlex.split(job.read_text().strip().removeprefix("ARGUMENTS="))
    cron = next(each for each in manifests() if each["kind"] == "CronJob")
    job = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    found["CronJob"] = job["containers"][0]["args"]
    found["Dockerfile"] = json.loads(instructions("CMD")[-1])
    return found


def instructions(name: str) -> list[str]:
    """Those of the Dockerfile, with their lines joined."""
    text = re.sub(r"^#.*\n", "", (HERE / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [line.removeprefix(f"{name} ").strip() for line in text.splitlines() if line.startswith(f"{name} ")]


@pytest.mark.parametrize("where", lines())
def test_the_command_line_takes_what_is_given(where: str) -> None:
    """Parsed by the commands themselves, and not run."""
    name, *rest = lines()[where]
    assert name in COMMANDS
    command = table_command(name)
    while isinstance(command, click.Group):
        name, *rest = rest
        command = command.commands[name]
    command.make_context(name, rest)


def test_the_image_is_what_the_manifests_run() -> None:
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    assert instructions("FROM")[-1] == "python:3.12-slim" and SpecifierSet(project["requires-python"]).contains("3.12")
    extras = next(each for each in instructions("ARG") if each.startswith("EXTRAS=")).partition("=")[2].split(",")
    assert set(extras) <= set(project["optional-dependencies"]) and {"local", "server"} <= set(extras)
    pods = [each["spec"]["template"]["spec"] for each in manifests() if each["kind"] == "Deployment"]
    crons = [each["spec"]["jobTemplate"] for each in manifests() if each["kind"] == "CronJob"]
    pods += [each["spec"]["template"]["spec"] for each in crons]
    user = instructions("USER")[-1].partition(":")[0]
    assert {str(pod.get("securityContext", {}).get("runAsUser", user)) for pod in pods} == {user} != {"0"}
    run = instructions("RUN")[-1]
    assert f"--uid {user}" in run and f"--home-dir {instructions('WORKDIR')[-1]}" in run
    assert {each["image"] for pod in pods for each in pod["containers"]} == {f"replicator:{project['version']}"}
    mounts = [each["mountPath"] for pod in pods for one in pod["containers"] for each in one["volumeMounts"]]
    variable, _, config = instructions("ENV")[-1].partition("=")
    assert variable == "REPLICATOR_CONFIG" and str(Path(config).parent) in mounts
    assert json.loads(instructions("ENTRYPOINT")[-1]) == list(project["scripts"])
    for line in instructions("RUN"):
        subprocess.run(["sh", "-n", "-c", line], check=True)


@pytest.mark.long
def test_the_image_is_built_where_a_daemon_is() -> None:
    docker = shutil.which("docker") or shutil.which("podman")
    if not docker or subprocess.run([docker, "info"], capture_output=True, check=False).returncode:
        pytest.skip("no daemon that builds images")
    build = [docker, "build", "--file", "contrib/Dockerfile", "--tag", "replicator:test", "."]
    subprocess.run(build, cwd=HERE.parent, check=True)
    subprocess.run([docker, "run", "--rm", "replicator:test", "--version"], check=True)


def test_logrotate_moves_a_log_that_is_opened_again(tmp_path: Path) -> None:
    if not (logrotate := shutil.which("logrotate", path="/usr/sbin:/usr/bin")):
        pytest.skip("logrotate is not installed")
    logs = tmp_path / "logs"
    logs.mkdir(mode=0o755)
    log = logging.getLogger("replicator")
    begin_logging(LogConfig(file=str(logs / "sync.log")))
    log.info("before")
    written = (logs / "sync.log").stat().st_ino
    config = tmp_path / "config"
    user, group = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(os.getgid()).gr_name
    text = (HERE / "logrotate/replicator").read_text().replace("su replicator replicator", f"su {user} {group}")
    config.write_text(text.replace("/var/log/replicator", str(logs)))
    config.chmod(0o644)
    state = tmp_path / "state"
    try:
        log.info("meanwhile")
        done = subprocess.run([logrotate, "--force", "--state", state, config], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, done.stderr
        log.info("after")
    finally:
        end_logging()
    now, before = sorted(logs.iterdir())
    assert now.name == "sync.log" and before.name.startswith("sync.log-") and before.stat().st_ino == written
    said = [[line.rpartition(": ")[2] for line in each.read_text().splitlines()] for each in (before, now)]
    assert [[line.split()[0] for line in lines] for lines in said] == [["before", "meanwhile"], ["after"]]


def complaints(manifest: dict[str, Any]) -> list[str]:
    """What Kubernetes would say of it, with `--validate=strict`: unknown fields, wrong types, what is missing."""
    known = json.loads((HERE.parent / "tests/support/kubernetes.json").read_text())
    group, _, version = manifest["apiVersion"].rpartition("/")
    schema = known | {"$ref": f"#/$defs/io.k8s.api.{group or 'core'}.{version}.{manifest['kind']}"}
    return [f"{each.json_path}: {each.message}" for each in Draft202012Validator(schema).iter_errors(manifest)]


def test_manifests_have_fields_that_kubernetes_knows() -> None:
    for each in manifests():
        assert complaints(each) == [], each["kind"]
    for right, wrong in {
        "readinessProbe": "readynessProbe",
        "mountPath": "mountpath",
        "matchLabels": "matchLabel",
        "selector": "selectors",
        "concurrencyPolicy": "concurencyPolicy",
        "containerPort: 8484": "containerPort: http",
    }.items():
        texts = [each.read_text() for each in (HERE / "kubernetes").iterdir()]
        misspelled = [yaml.safe_load_all(re.sub(rf"\b{right}\b", wrong, text)) for text in texts]
        said = [text for each in misspelled for one in each for text in complaints(one)]
        assert any(wrong.rpartition(" ")[2] in text for text in said), f"{wrong}: {said}"


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


def test_the_airflow_provider_is_whole() -> None:
    """What it tells Airflow is there; `scripts/airflow_provider` runs it."""
    here = HERE / "airflow"
    project = tomllib.loads((here / "pyproject.toml").read_text())["project"]
    told = runpy.run_path(str(here / "airflow_replicator" / "get_provider_info.py"))["get_provider_info"]()
    assert told["package-name"] == project["name"] and told["versions"] == [project["version"]]
    for module in re.findall(r"airflow_replicator\.(\w+)", json.dumps(told)):
        assert (here / "airflow_replicator" / f"{module}.py").is_file(), module
    operators = re.findall(r"^class (\w+)\(", (here / "airflow_replicator/operators.py").read_text(), re.MULTILINE)
    assert operators and not [each for each in operators if each not in (here / "README.md").read_text()]


def stub(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(members)
    monkeypatch.setitem(sys.modules, name, module)


def test_tasks_of_airflow_fail_for_good_only_where_a_person_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Airflow: what of it the operators use is stood in for."""
    error = type("AirflowException", (Exception,), {})
    final, skipped = (type(name, (error,), {}) for name in ("AirflowFailException", "AirflowSkipException"))
    given = {each.__name__: each for each in (error, final, skipped)}
    stub(monkeypatch, "airflow")
    stub(monkeypatch, "airflow.exceptions", **given)
    names = ("BaseHook", "BaseOperator", "Asset")
    stub(monkeypatch, "airflow.sdk", **{name: type(name, (), {"log": logging.getLogger("task")}) for name in names})
    stub(monkeypatch, "requests")
    stub(monkeypatch, "airflow_replicator", __path__=[str(HERE / "airflow" / "airflow_replicator")])
    for name in ("airflow_replicator.assets", "airflow_replicator.hook", "airflow_replicator.operators"):
        stub(monkeypatch, name)  # so that it goes with the stubs
        del sys.modules[name]
        module = importlib.import_module(name)

    def ended(code: int | None, partial: str = "succeed") -> Any:
        operator = module.ReplicatorOperator(partial=partial)
        try:
            return operator.judged(sys.modules["airflow_replicator.hook"].Answer(code, {"status": "x"}))
        except error as raised:
            return type(raised)

    assert {code for code in range(256) if ended(code) is final} == {2, 4, 5, 6}
    assert ended(0) == ended(3) == {"status": "x"}
    assert (ended(3, "skip"), ended(3, "fail")) == (skipped, error)
    assert {ended(code) for code in (1, 7, 75, -9, -15, 137, 143, None)} == {error}
    rows = re.findall(r"^\| ([^|]+) \| fails, without a retry", (HERE / "airflow/README.md").read_text(), re.MULTILINE)
    assert set(map(int, re.findall(r"\d+", rows[0]))) == {2, 4, 5, 6}
