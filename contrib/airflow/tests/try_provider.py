"""Tries the provider on a real Airflow, two real metastores and a real service: `try_provider.py AIRFLOW DIRECTORY`.

AIRFLOW is the program in an environment that has Airflow and the provider; this runs in the environment that has
replicator. Prints what passed, a line each, and ends with 1 where something did not. The README's table is that of the
last run, as a whole."""

from __future__ import annotations

import json
import os
import platform
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plain_tables import PlainDatabase

from replicator.metastore.embedded import running
from replicator.metastore.thrift import ThriftMetastore, connect

DAGS = Path(__file__).parents[1] / "example_dags"
README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- written by scripts/airflow_provider -->\n", "<!-- to here -->\n"
YEARLY = 'cron = "0 0 1 1 *"'
CROSS = "SELECT sum(a.id * b.id) FROM range(10000000) a CROSS JOIN range(10000000) b"
PATIENCE = 900.0  # seconds for a DAG
REPLICATOR = [sys.executable, "-m", "replicator"]


class Trial:
    """What was tried, and how it ended."""

    def __init__(self, airflow: str, here: Path) -> None:
        self.airflow, self.here = airflow, here
        self.config = here / "replicator.toml"
        self.rows: list[tuple[str, str, float]] = []
        self.env: dict[str, str] = {}

    def check(self, what: str, look: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            found, said = look(), "passed"
        except Exception as error:
            found, said = None, f"failed: {type(error).__name__}: {str(error)[-1500:]}"
        self.rows.append((what, said, time.monotonic() - began))
        print(f"{said:8.400} {self.rows[-1][2]:6.1f} s  {what}", flush=True)
        return found

    def replicator(self, *arguments: str, wanted: int = 0) -> dict[str, Any]:
        done = subprocess.run(
            [*REPLICATOR, "--config", str(self.config), *arguments], cwd=self.here, capture_output=True, text=True
        )
        assert done.returncode == wanted, f"{arguments}: {done.returncode}: {done.stdout}{done.stderr}"
        return dict(json.loads(done.stdout)) if "--json" in arguments else {"said": done.stdout.strip()}

    def with_airflow(self, *arguments: str, wanted: int | None = 0) -> str:
        done = subprocess.run(
            [self.airflow, *arguments], cwd=self.here, env=self.env, capture_output=True, text=True, timeout=PATIENCE
        )
        said = done.stdout + done.stderr
        (self.here / f"airflow-{len(self.rows)}.log").write_text(said)
        assert wanted is None or done.returncode == wanted, f"{arguments}: {done.returncode}: {said}"
        return said

    def dag(self, name: str, states: Mapping[str, str]) -> str:
        """Runs a DAG, and compares the states of its tasks, as Airflow's database has them."""
        said = self.with_airflow("dags", "test", name, "--dagfile-path", str(DAGS / "replicate.py"), wanted=None)
        query = (
            "SELECT task_id, state FROM task_instance WHERE run_id = "
            "(SELECT run_id FROM dag_run WHERE dag_id = ? ORDER BY id DESC LIMIT 1) AND dag_id = ?"
        )
        with closing(sqlite3.connect(self.here / "airflow" / "airflow.db")) as database:
            found = dict(database.execute(query, (name, name)))
        assert {task: found.get(task) for task in states} == dict(states), f"{found}: {said}"
        return said


def processes(text: str) -> list[str]:
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = place.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(f"{place.parent.name} {line}")
    return found


def fill(client: ThriftMetastore, here: Path) -> None:
    db = PlainDatabase(client, "sales", here / "source" / "warehouse")
    db.create()
    text = "".join(f"{number}\x01person {number}\n" for number in range(20))
    db.partitioned("orders", {"old": {"part-0": text}, "new": {"part-0": "77\x01somebody\n"}})
    db.alter("orders", **{"dataset.descriptor": '{"privacy": {"column": "a"}}'})
    db.table("requests", {"part-0": "".join(f"{number}\x01\n" for number in range(10))})


def configure(trial: Trial, source: str, target: str) -> None:
    here = trial.here
    jobs = {
        "west": ["sync", "west"],
        "verify-west": ["verify", "west"],
        "slow-drill": ["drill", "west", "--query", CROSS],
    }
    trial.config.write_text(
        f'[metastores.a]\nuri = "{source}"\n[metastores.b]\nuri = "{target}"\n'
        f'[service]\nstore = "sqlite:///{here}/service.sqlite"\nlogs = "{here}/logs"\ngrace = "10s"\n'
        + "".join(f"[service.jobs.{name}]\ncommand = {json.dumps(line)}\n{YEARLY}\n" for name, line in jobs.items())
        + '[policies.west]\nsource = "a"\ntarget = "b"\ndatabases = "sales"\n'
        + f'cmroot = "{here}/source/.cmroot"\ntarget_cmroot = "{here}/target/.cmroot"\ndumps = "{here}/dumps"\n'
    )


def serve(trial: Trial) -> tuple[subprocess.Popen[bytes], str]:
    ready = trial.here / "url"
    line = [*REPLICATOR, "--config", str(trial.config), "serve", "--listen", "127.0.0.1:0", "--ready-file", str(ready)]
    with (trial.here / "server.log").open("wb") as log:
        process = subprocess.Popen(line, cwd=trial.here, stdout=log, stderr=log)
    until = time.monotonic() + 60
    while not (ready.exists() and ready.read_text().endswith("\n")):
        assert process.poll() is None and time.monotonic() < until, (trial.here / "server.log").read_text()
        time.sleep(0.1)
    return process, ready.read_text().strip()


def environment(trial: Trial, url: str, token: str) -> dict[str, str]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    by_command = {"executable": REPLICATOR, "config": str(trial.config), "grace": 10}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
    return {
        **kept,
        "AIRFLOW_HOME": str(trial.here / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW_CONN_REPLICATOR_CLI": json.dumps({"conn_type": "replicator", "extra": by_command}),
        "AIRFLOW_CONN_REPLICATOR_HTTP": json.dumps(
            {"conn_type": "replicator", "schema": "http", "host": host, "port": int(port), "password": token}
        ),
    }


def attempts(trial: Trial) -> None:
    def installed() -> None:
        trial.with_airflow("db", "migrate")
        assert "airflow-provider-replicator" in trial.with_airflow("providers", "list", "--output", "json")
        assert "replicator" in trial.with_airflow("providers", "hooks", "--output", "json")

    def by_command_line() -> None:
        tasks = ("sync", "close", "verify", "drill", "purge", "sync_again")
        trial.dag("replicate_by_command_line", dict.fromkeys(tasks, "success"))
        trial.replicator("verify", "west")
        erased = [each.read_text() for each in (trial.here / "target").rglob("part-0") if ".cmroot" not in str(each)]
        assert erased and not any("person 3" in text for text in erased)

    def over_http() -> None:
        trial.dag("replicate_over_http", dict.fromkeys(("sync", "close", "verify"), "success"))
        runs = trial_runs(trial)
        assert [(each["job"], each["state"]) for each in runs] == [("verify-west", "done"), ("west", "done")]

    def killed_command() -> None:
        said = trial.dag("kill_a_command", {"follow": "failed"})
        assert "ending process" in said, said
        assert processes("sync west --follow") == []
        trial.replicator("sync", "west")  # its lease is free

    def killed_run() -> None:
        trial.dag("kill_a_run", {"slow": "failed"})
        until = time.monotonic() + 60
        while (last := trial_runs(trial)[0])["state"] in ("queued", "running") and time.monotonic() < until:
            time.sleep(0.5)
        assert (last["job"], last["state"]) == ("slow-drill", "cancelled"), last

    def differences() -> None:
        (next(iter((trial.here / "target").rglob("part-0")))).write_text("1\x01another\n")
        said = trial.dag("replicate_over_http", {"verify": "failed"})
        assert "differences" in said

    trial.check("Airflow knows the provider, its hook and its connection type", installed)
    trial.check("by the command line: sync, lag sensor (deferred), verify, drill, purge, sync", by_command_line)
    trial.check("over HTTP: sync, lag sensor, verify", over_http)
    trial.check("on_kill ends a command with its group, and its lease is free", killed_command)
    trial.check("on_kill cancels a run of the service", killed_run)
    trial.check("a difference fails the task, and its report is in the log", differences)


def trial_runs(trial: Trial) -> list[dict[str, Any]]:
    """Newest first, as the service tells them."""
    headers = {"Authorization": f"Bearer {trial.env['TOKEN']}"}
    with urllib.request.urlopen(urllib.request.Request(f"{trial.env['URL']}/api/v1/runs", headers=headers)) as answer:
        return list(json.load(answer)["items"])


def with_table(page: str, trial: Trial) -> str:
    """The page with what this run found in the place of what stood there."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"{README} lacks {BEGIN}or {END}"
    version = trial.with_airflow("version").splitlines()[0]
    today, load = datetime.now(UTC).date(), os.getloadavg()[2]
    head = f"Airflow {version}, Python {platform.python_version()}, metastores of Hive 2.3, {today}"
    cells = [(what, " ".join(said.split())[:200].replace("|", "\\|"), f"{took:.0f}") for what, said, took in trial.rows]
    table = "".join(f"| {' | '.join(row)} |\n" for row in [("tried", "result", "seconds"), ("---",) * 3, *cells])
    cores = f"{os.cpu_count()} cores with a load of {load:.0f}"
    return f"{before}{BEGIN}\n{head}, {cores}, in one run:\n\n{table}\n{END}{after}"


def main() -> int:
    here = Path(sys.argv[2]).absolute()
    trial = Trial(sys.argv[1], here)
    server: subprocess.Popen[bytes] | None = None
    try:
        sides = [running.start(here / name, env=os.environ) for name in ("source", "target")]
        with connect(sides[0].uri) as client:
            fill(client, here)
        configure(trial, sides[0].uri, sides[1].uri)
        token = trial.replicator("token", "create", "airflow", "--role", "operator")["said"]
        server, url = serve(trial)
        trial.env = environment(trial, url, token) | {"TOKEN": token, "URL": url}
        attempts(trial)
        README.write_text(with_table(README.read_text(), trial))
    finally:
        if server is not None:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
        for name in ("source", "target"):
            running.stop(here / name)
    failed = sum(not said.startswith("passed") for _, said, _ in trial.rows)
    print(f"{len(trial.rows) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
