"""Operators: one command of replicator each, to its end. The task's result is the command's report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from airflow.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk import BaseOperator

from airflow_replicator.assets import replica_asset
from airflow_replicator.hook import Answer, ReplicatorHook

PARTIAL, DIFFERS = 3, 4
FINAL = frozenset({2, DIFFERS, 5, 6})
"""Exit codes that want a person. After all others a retry may help: failed, the lease is held, transient, killed by a
signal (-9, 137, 143), lost (None)."""

LARGEST = 48_000
"""Characters of a report in XCom. Of a larger one, lists are left out."""


class ReplicatorOperator(BaseOperator):
    """Runs any command of replicator.

    arguments: the command line without `replicator`, `--config` and `--json`. job: over HTTP, the service's job that
    is run in their place. partial: what exit code 3 does (finished, and something is named that is not replicated):
    "succeed" (the log has a warning), "skip" or "fail"."""

    template_fields: Sequence[str] = ("arguments", "job", "replicator_conn_id")
    ui_color = "#d8e8f0"

    def __init__(
        self,
        *,
        arguments: Sequence[str] = (),
        job: str | None = None,
        replicator_conn_id: str = ReplicatorHook.default_conn_name,
        partial: str = "succeed",
        **more: Any,
    ) -> None:
        super().__init__(**more)
        if partial not in ("succeed", "skip", "fail"):
            raise ValueError(f"partial={partial!r} is none of succeed, skip, fail")
        self.arguments = arguments
        self.job = job
        self.replicator_conn_id = replicator_conn_id
        self.partial = partial
        self._hook: ReplicatorHook | None = None

    def execute(self, context: Any) -> dict[str, Any]:
        self._hook = ReplicatorHook(self.replicator_conn_id)
        answer = self._hook.run(list(self.command()), job=self.job, key=_key(context))
        return self.judged(answer)

    def command(self) -> Sequence[str]:
        """The command line of this task."""
        return self.arguments

    def on_kill(self) -> None:
        if self._hook is not None:
            self._hook.kill()

    def judged(self, answer: Answer) -> dict[str, Any]:
        """The report of a command that did what it should; else the task fails, for good where a retry cannot help."""
        if answer.exit_code == PARTIAL:
            self.log.warning("partial: %s", json.dumps(answer.report.get("not_replicated", answer.report))[:4000])
            if self.partial == "skip":
                raise AirflowSkipException(str(answer))
        if answer.exit_code == 0 or (answer.exit_code == PARTIAL and self.partial == "succeed"):
            return _small(answer.report)
        if answer.exit_code == DIFFERS:
            raise AirflowFailException(f"differences: {json.dumps(answer.report)[:4000]}")
        raise (AirflowFailException if answer.exit_code in FINAL else AirflowException)(str(answer))


class ReplicatorSyncOperator(ReplicatorOperator):
    """One run of a policy. Its outlet is the asset of the policy (`replica_asset`), besides those that are given.

    policy: its name. job: over HTTP, the service's job; the policy's own."""

    template_fields: Sequence[str] = ("policy", *ReplicatorOperator.template_fields)

    def __init__(self, *, policy: str, job: str | None = None, **more: Any) -> None:
        conn_id = more.get("replicator_conn_id", ReplicatorHook.default_conn_name)
        if "{{" not in f"{policy}{conn_id}":  # a template is not known when the DAG is read
            more["outlets"] = [*(more.get("outlets") or []), replica_asset(policy, conn_id)]
        super().__init__(job=policy if job is None else job, **more)
        self.policy = policy

    def command(self) -> Sequence[str]:
        return ["sync", self.policy, *self.arguments]


class ReplicatorVerifyOperator(ReplicatorOperator):
    """Compares both sides of a policy. Differences (exit code 4) fail the task, without a retry.

    policy: its name. sample: so many tables, in turns; None: all. job: over HTTP, a job with such a command."""

    template_fields: Sequence[str] = ("policy", *ReplicatorOperator.template_fields)

    def __init__(self, *, policy: str, sample: int | None = None, **more: Any) -> None:
        super().__init__(**more)
        self.policy, self.sample = policy, sample

    def command(self) -> Sequence[str]:
        sample = [] if self.sample is None else ["--sample", str(self.sample)]
        return ["verify", self.policy, *sample, *self.arguments]


class ReplicatorDrillOperator(ReplicatorOperator):
    """Rehearses a failover of a policy. Exit code 3, a query that failed or answered wrong, fails the task.

    policy: its name. queries: besides the policy's `smoke`. job: over HTTP, a job with such a command."""

    template_fields: Sequence[str] = ("policy", "queries", *ReplicatorOperator.template_fields)

    def __init__(self, *, policy: str, queries: Sequence[str] = (), partial: str = "fail", **more: Any) -> None:
        super().__init__(partial=partial, **more)
        self.policy, self.queries = policy, queries

    def command(self) -> Sequence[str]:
        return ["drill", self.policy, *(part for query in self.queries for part in ("--query", query)), *self.arguments]


class ReplicatorPurgeOperator(ReplicatorOperator):
    """Erases the rows of persons, as `replicator purge run`. Exit code 3, something was not purged, fails the task.

    policy: gives metastore and root; None: `arguments` do. ids, tables: of --ids and --table-whitelist. dry_run:
    show only. job: over HTTP, a job with such a command."""

    template_fields: Sequence[str] = ("policy", "ids", "tables", *ReplicatorOperator.template_fields)

    def __init__(
        self,
        *,
        policy: str | None = None,
        ids: str | None = None,
        tables: str | None = None,
        dry_run: bool = False,
        partial: str = "fail",
        **more: Any,
    ) -> None:
        super().__init__(partial=partial, **more)
        self.policy, self.ids, self.tables, self.rehearse = policy, ids, tables, dry_run

    def command(self) -> Sequence[str]:
        return [
            *("purge", "run"),
            *([self.policy] if self.policy else []),
            *(["--ids", self.ids] if self.ids else []),
            *(["--table-whitelist", self.tables] if self.tables else []),
            *(["--dry-run"] if self.rehearse else []),
            *self.arguments,
        ]


def _key(context: Any) -> str:
    """The same for a request that is sent again, another one for each try."""
    task = context.get("ti") if hasattr(context, "get") else None
    if task is None:
        return ""
    parts = (task.dag_id, task.task_id, task.run_id, getattr(task, "map_index", -1), getattr(task, "try_number", 0))
    return "/".join(map(str, parts))[-200:]


def _small(report: dict[str, Any]) -> dict[str, Any]:
    if len(json.dumps(report)) <= LARGEST:
        return report
    kept = {name: value for name, value in report.items() if not isinstance(value, list | dict)}
    return {**kept, "left_out": sorted(report.keys() - kept.keys())}
