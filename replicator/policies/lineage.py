"""OpenLineage events of a policy's runs: START, and COMPLETE with the tables that were touched, or FAIL.

The receiver does not affect a run: if it is unavailable, that is a warning, and nothing is sent again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import msgspec

from replicator.captures.dumps.layout import DumpReader
from replicator.core.connections import read_secret
from replicator.core.policy import Policy
from replicator.core.sending import post
from replicator.core.service_config import LineageConfig
from replicator.errors import Error
from replicator.policies.run import SyncRun

SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
ERROR_SCHEMA = "https://openlineage.io/spec/facets/1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet"
PRODUCER = f"https://pypi.org/project/replicator/{version('replicator')}"
PATIENCE = 5.0  # seconds for one event
TABLES = 10_000
"""Tables named in one event; for a larger bootstrap, a warning contains the total."""


@dataclass
class Lineage:
    """The lineage of one policy. problems: why events of the last reported run were not received."""

    config: LineageConfig
    policy: Policy
    problems: list[str] = field(default_factory=list)

    def told(self, work: Callable[[], SyncRun]) -> SyncRun:
        """Runs it and emits START, then COMPLETE or FAIL events. Raises what the run raises."""
        if not self._wanted:
            return work()
        run = str(uuid.uuid4())
        self._emit("START", run, _now())
        try:
            report = work()
        except BaseException as error:
            self._emit("FAIL", run, _now(), error=str(error) or type(error).__name__)
            raise
        self._complete(run, report)
        return report

    def done(self, report: SyncRun) -> None:
        """Emits the events of a completed run."""
        if self._wanted:
            run, now = str(uuid.uuid4()), datetime.now(UTC)
            self._emit("START", run, (now - timedelta(seconds=report.seconds)).isoformat())
            self._complete(run, report)

    def failed(self, error: Exception) -> None:
        """Emits the events of a failed run."""
        if self._wanted:
            run = str(uuid.uuid4())
            self._emit("START", run, _now())
            self._emit("FAIL", run, _now(), error=str(error) or type(error).__name__)

    @property
    def _wanted(self) -> bool:
        return bool(self.config.file or self.config.url)

    def _complete(self, run: str, report: SyncRun) -> None:
        touched: dict[tuple[str, str], None] = {}
        try:
            for dump in report.dumps:
                touched |= dict.fromkeys((table.db, table.name) for table in DumpReader(dump).tables())
        except (Error, OSError) as error:
            self.problems.append(f"lineage: the tables of {dump} are unknown: {error}")
        if len(touched) > TABLES:
            self.problems.append(f"lineage: only {TABLES:,} of {len(touched):,} tables are named")
        here, there = self.policy.source, self.policy.target
        if report.reverse:
            here, there = there, here
        named = list(touched)[:TABLES]
        self._emit(
            "COMPLETE",
            run,
            _now(),
            inputs=datasets(here, named),
            outputs=datasets(there, [(self._replica(db, report.reverse), name) for db, name in named]),
        )
        report.warnings += self.problems
        self.problems.clear()

    def _replica(self, db: str, reverse: bool) -> str:
        renamed = self.policy.rename_db
        return {new: old for old, new in renamed.items()}.get(db, db) if reverse else renamed.get(db, db)

    def _emit(self, kind: str, run: str, moment: str, *, error: str = "", **datasets: list[dict[str, str]]) -> None:
        facets = {}
        if error:
            base = {"_producer": PRODUCER, "_schemaURL": ERROR_SCHEMA, "programmingLanguage": "python"}
            facets["errorMessage"] = {**base, "message": error[:2000]}
        event: dict[str, Any] = {
            "eventType": kind,
            "eventTime": moment,
            "run": {"runId": run, "facets": facets},
            "job": {"namespace": self.config.namespace, "name": self.policy.name},
            "inputs": datasets.get("inputs", []),
            "outputs": datasets.get("outputs", []),
            "producer": PRODUCER,
            "schemaURL": SCHEMA,
        }
        try:
            send(self.config, msgspec.json.encode(event))
        except (OSError, ValueError, Error) as problem:
            self.problems.append(f"lineage: {kind} was not received: {problem}")


def send(config: LineageConfig, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    """Sends one event to the configured receivers. Raises OSError, ValueError or Error if one of them did not receive
    it; the other one still does."""
    with contextlib.ExitStack() as afterwards:
        if config.url:
            afterwards.callback(_post, config, body, headers)
        if config.file:
            _append(config.file, body + b"\n")


def _append(path: str, line: bytes) -> None:
    """Appends the complete line or nothing: a line truncated by a full disk would corrupt the next one, too."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    with open(descriptor, "ab", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # other runs append here, too
        end = os.fstat(descriptor).st_size
        if end and os.pread(descriptor, 1, end - 1) != b"\n":
            line = b"\n" + line  # the previous writer was interrupted
        try:
            while line:
                line = line[os.write(descriptor, line) :]
        except OSError:
            os.ftruncate(descriptor, end)
            raise


def _post(config: LineageConfig, body: bytes, headers: Mapping[str, str] | None) -> None:
    if config.url:
        given = dict(headers or {})
        if config.token:
            given["Authorization"] = f"Bearer {read_secret(config.token, 'lineage.token')}"
        post(config.url, body, given, patience=PATIENCE)


def datasets(uri: str, tables: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """Returns the OpenLineage names of tables of a metastore: `hive://HOST:PORT`, and `DB.TABLE`."""
    namespace = f"hive://{urlsplit(uri.split(',')[0]).netloc}"
    return [{"namespace": namespace, "name": f"{db}.{name}"} for db, name in tables]


def _now() -> str:
    return datetime.now(UTC).isoformat()
