"""`diagnose`: one file for a support case, without secrets. Reads, and checks policies as `check` does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec

from cmroot.root import open_existing
from replicator.commands.base import Options, verb
from replicator.commands.options import ReplaceFile
from replicator.core.config import NAME, Config, read_config
from replicator.core.not_replicated import Report
from replicator.core.option import arg, opt
from replicator.core.policy import Policy
from replicator.errors import ConfigError
from replicator.policies import lag as lags
from replicator.policies.checks import check
from replicator.policies.checks.check import PolicyChecked, impatient
from replicator.policies.memory import Memory, shown_history
from replicator.service.diagnosis_bundle import Bundle, Mask, MissingPart, refuse_existing
from replicator.service.diagnosis_sources import (
    OVERRIDDEN,
    disks,
    environment,
    java,
    root_summary,
    secrets,
    settings,
    spark,
    system,
    versions,
)
from replicator.service.schema import REVISIONS
from replicator.service.store import REVISION, ServiceStore

# ---- collect ---------------------------------------------------------------------------------------------------------


RUNS = 20
"""Of each policy, and of the service, newest first; and the service's newest logs."""

LOG_END = 64 << 10
"""Bytes of a log's end."""

SHOWN_TABLES = 1000
"""Of a policy's lag by tables."""


@dataclass(frozen=True, kw_only=True)
class Diagnosed(Report):
    """The report of `diagnose`. status: "written", or "partial" if something is missing. out: the file, of `bytes`
    bytes, with `parts`. policies: the health of each, according to `check`. missing: parts that could not be obtained,
    and why; the bundle contains this, too.
    """

    status: str
    out: str
    bytes: int = 0
    policies: dict[str, str] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    missing: list[MissingPart] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The subject of a diagnosis. file: of the configuration; None: the caller gave values. broken: why it cannot be
    read. policies: the diagnosed ones."""

    config: Config
    file: Path | None
    broken: Exception | None
    policies: Sequence[Policy]


def collect(
    subject: Subject,
    out: Path,
    *,
    overwrite: bool = False,
    env: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.time,
) -> Diagnosed:
    """Writes the bundle and returns its report. Raises Refused for an existing file."""
    env, now = dict(os.environ) if env is None else env, clock()
    bundle = Bundle(Mask(secrets(subject.config, env)))
    _add_machine(bundle, subject, env, now)
    _add_settings(bundle, subject, env)
    health = {policy.name: _add_policy(bundle, policy, subject.config) for policy in subject.policies}
    for number, place in enumerate(_roots(subject)):
        bundle.add(f"roots/{number}.json", partial(root_summary, place))
    if log := env.get(OVERRIDDEN["log.file"]) or subject.config.log.file:
        bundle.add("log.txt", partial(_end, Path(log)))
    _add_service(bundle, subject.config)
    bundle.add("missing.json", lambda: bundle.missing)
    bundle.add("README.txt", lambda: _about(bundle, now))
    size = bundle.write(out, now, overwrite=overwrite)
    return Diagnosed(
        status="partial" if bundle.missing else "written",
        out=str(out.absolute()),
        bytes=size,
        policies=health,
        parts=sorted(bundle.parts),
        missing=bundle.missing,
    )


def _add_machine(bundle: Bundle, subject: Subject, env: Mapping[str, str], now: float) -> None:
    places = [
        each for policy in subject.policies for each in (policy.cmroot, policy.target_cmroot, policy.dumps) if each
    ]
    bundle.add("versions.json", lambda: versions(env))
    bundle.add("java.json", lambda: java(env))
    bundle.add("spark.json", lambda: spark(env))
    bundle.add("system.json", lambda: system(now))
    bundle.add("disks.json", lambda: disks(dict.fromkeys([os.getcwd(), *places])))


def _add_settings(bundle: Bundle, subject: Subject, env: Mapping[str, str]) -> None:
    if subject.broken is not None:
        bundle.miss("configuration", subject.broken)
    if (
        subject.file is None
        and subject.broken is None
        and subject.config == Config(looked_for=subject.config.looked_for)
    ):
        bundle.lack("configuration", f"not found: {subject.config.looked_for}")
    bundle.add("configuration.json", lambda: settings(subject.config, subject.file, bundle.mask, env))
    bundle.add("environment.json", lambda: environment(bundle.mask, env))


def _add_policy(bundle: Bundle, policy: Policy, config: Config) -> str:
    """Its health; "unknown" where it could not be checked."""
    others = list(config.policies.values())
    begin = f"policies/{policy.name}"
    checked: PolicyChecked | None = bundle.add(
        f"{begin}/check.json",
        lambda: check.check(policy, others=others, gateway=config.gateway, single_user=config.ingestion.single_user),
    )
    measured = bundle.add(f"{begin}/lag.json", lambda: _lag(policy))
    for side, why in ((measured or {}).get("unreachable") or {}).items():
        bundle.lack(f"{begin}/lag.json", f"the {side} does not answer: {why}")
    memory = bundle.add(f"{begin}/memory.json", lambda: _memory(policy))
    for damaged in (memory or {}).get("damaged", []):
        bundle.lack(f"{begin}/memory.json", f"{damaged} cannot be parsed")
    if checked is None:
        return "unknown"
    for finding in checked.findings:
        if finding.health == "unknown":
            bundle.lack(f"{begin}/check.json", f"{finding.name}: {finding.text}")
    return checked.status


def _lag(policy: Policy) -> dict[str, Any]:
    with impatient(policy.source_metastore) as source, impatient(policy.target_metastore) as target:
        found = lags.lag(policy, source, target).to_dict()
    for name, value in found.items():
        if isinstance(value, list) and len(value) > SHOWN_TABLES:
            found[name] = [*value[:SHOWN_TABLES], f"... and {len(value) - SHOWN_TABLES} more"]
    return found


def _memory(policy: Policy) -> dict[str, Any]:
    """Runs, the scope, and a change of roles, as `<target_cmroot>/policies/<name>/` has them."""
    memory = Memory(open_existing(policy.target_cmroot), policy.name)
    return {
        **shown_history(memory, policy, RUNS).to_dict(),
        "scope": msgspec.to_builtins(memory.read_scope()),
        "role_change": msgspec.to_builtins(memory.read_role_change()),
    }


def _roots(subject: Subject) -> list[str]:
    found = [each for policy in subject.policies for each in (policy.cmroot, policy.target_cmroot)]
    return list(dict.fromkeys([*found, *filter(None, [subject.config.defaults.cmroot])]))


def _add_service(bundle: Bundle, config: Config) -> None:
    """Returns nothing if no service has run."""
    runs = bundle.add("service.json", lambda: _service(config))
    logs = Path(config.service.logs)
    for each in (runs or {}).get("runs", []):
        log = logs / each["id"] / "log.txt"
        if log.exists():
            bundle.add(f"service/{each['id']}.log", partial(_end, log))


def _service(config: Config) -> dict[str, Any]:
    with ServiceStore(config.service.store) as store:
        revision = store.revision(REVISIONS, REVISION)
        if revision is None:
            return {"store": store.url, "revision": None}
        holder, epoch, held = store.leader()
        return {
            "store": store.url,
            "revision": revision,
            "lease": {"holder": holder, "epoch": epoch, "held": held},
            "jobs": msgspec.to_builtins(list(store.jobs().values())),
            "runs": msgspec.to_builtins(store.runs(limit=RUNS)),
        }


def _end(log: Path) -> str:
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_END))
        text = file.read().decode(errors="replace")
    return f"(the last {LOG_END} of {size} bytes)\n{text.partition(chr(10))[2]}" if size > LOG_END else text


def _about(bundle: Bundle, now: float) -> str:
    lines = [
        f"A diagnosis of replicator, created {datetime.fromtimestamp(now, UTC).isoformat(timespec='seconds')}.",
        "Secrets are masked (***). It names hosts, databases, tables and files: read it before you send it.",
        "",
        *(f"{name}  {len(data)} bytes" for name, data in sorted(bundle.parts.items())),
        "",
        "Not included:" if bundle.missing else "Nothing is missing.",
        *(f"- {each.part}: {each.error}" for each in bundle.missing),
    ]
    return "\n".join(lines) + "\n"


# ---- the command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions(Options):
    policies: Annotated[Sequence[str], arg("Policies' names in the configuration; none: all.", "[POLICY]...")] = field(
        default=(), kw_only=False
    )
    out: Annotated[
        str | None,
        opt("File to write. Default: replicator-diagnosis-TIME.tar.gz in the working directory.", metavar="FILE"),
    ] = None
    overwrite: ReplaceFile = False

    def complete(self) -> Self:
        """Returns the options unchanged: a configuration that cannot be read is diagnosed, too."""
        return self


@verb(DiagnoseOptions)
def diagnose(options: DiagnoseOptions) -> Diagnosed:
    """Writes one file for a support case: versions, machine, configuration with the source of each value, health, lag
    and last runs of policies, a summary of each $cmroot, the service's last runs. Secrets are masked. Checks policies
    as `check` does, starts no Spark, changes nothing else. May run at any time, and again.

        replicator.diagnose(["west"], out="/tmp/case-17.tar.gz").missing

    The report and the file name the parts that could not be obtained. Raises UsageError for an unknown policy, Refused
    for an existing file."""
    broken: ConfigError | None = None
    try:
        config = options.settings
        if config == Config(looked_for=config.looked_for) and Path(config.looked_for).is_file():
            config = read_config(Path(config.looked_for))  # the command line passes none if it is invalid
    except ConfigError as error:
        given = options.config.looked_for if isinstance(options.config, Config) else options.config
        broken, config = error, Config(looked_for=str(given or NAME))
    file = Path(config.looked_for)
    policies = [config.policy(name) for name in options.policies] if not broken else []
    now = time.time()
    name = f"replicator-diagnosis-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}.tar.gz"
    out = Path(options.out or name)
    refuse_existing(out, overwrite=options.overwrite)
    subject = Subject(
        config=config,
        file=file if file.is_file() else None,
        broken=broken,
        policies=policies or list(config.policies.values()),
    )
    return collect(subject, out, overwrite=options.overwrite)
