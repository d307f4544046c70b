"""`diagnose`: one file for a support case, without secrets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

from replicator.commands.base import Options, verb
from replicator.commands.diagnosis import collect
from replicator.commands.diagnosis.collect import Diagnosed, Subject, refuse_existing
from replicator.commands.options import ReplaceFile, arg, opt
from replicator.core.config import NAME, Config, read_config
from replicator.errors import ConfigError


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
        """As they are: a configuration that cannot be read is diagnosed, too."""
        return self


@verb(DiagnoseOptions)
def diagnose(options: DiagnoseOptions) -> Diagnosed:
    """Writes one file for a support case: versions, machine, configuration with the source of each value, health, lag
    and last runs of policies, a summary of each $cmroot, the service's last runs. Secrets are masked. Checks policies
    as `check` does, starts no Spark, changes nothing else. May run at any time, and again.

        replicator.diagnose(["west"], out="/tmp/case-17.tar.gz").missing

    What cannot be had is named in the report and in the file. Raises UsageError where there is no such policy, Refused
    for a file that is there already."""
    broken: ConfigError | None = None
    try:
        config = options.settings
        if config == Config(looked_for=config.looked_for) and Path(config.looked_for).is_file():
            config = read_config(Path(config.looked_for))  # the command line gives nothing for one that is wrong
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
    return collect.diagnose(subject, out, overwrite=options.overwrite)
