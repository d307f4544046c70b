"""Commands for the first steps and for support: `replicator init` (asks for values that are not given), `demo`,
`diagnose` and `metastore`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from cmroot.root import looked_at
from replicator.cli.options import Session, json_option, options_of, pass_session
from replicator.cli.output import aligned, emit, note, shortened, size_text
from replicator.cli.status import FOUND
from replicator.cli.status import lines as check_lines
from replicator.commands.first_steps import Initialized, metastore_start, metastore_status, metastore_stop
from replicator.commands.first_steps import demo as run_demo
from replicator.commands.first_steps import init as run_init
from replicator.errors import UsageError
from replicator.service.diagnosis import Diagnosed
from replicator.service.diagnosis import diagnose as run_diagnose


@click.command()
@options_of(run_init)
@json_option
@pass_session
def init(session: Session, /, as_json: bool, **given: Any) -> int:
    """Write a first replicator.toml with two metastores and a policy between them, then check the policy.

    Both metastores must answer before anything is written. Exits as `replicator check` does.

    \b
    Example:
      replicator init
      replicator init --source thrift://a:9083 --target thrift://b:9083 --databases sales
    """
    for side in ("source", "target"):
        given[side] = given[side] or _asked(side)
    done = session.call(run_init, **given)
    emit(done, as_json, _lines(done))
    checked = done.check
    return FOUND if checked and (checked.status not in ("ok", "warning") or checked.not_replicated) else 0


def _asked(side: str) -> str:
    if not sys.stdin.isatty():
        raise UsageError(
            f"--{side} is missing", hint="give it, or run this command in a terminal, which prompts for it"
        )
    text: str = click.prompt(f"The {side}'s metastore, thrift://host:port", err=True)
    return text


def _lines(done: Initialized) -> Iterable[str]:
    yield f"{done.status}  {done.file}"
    if done.check is not None:
        yield from check_lines(done.check)
    yield f"next: replicator plan {done.policy}; replicator sync {done.policy}"


# ---- demo ------------------------------------------------------------------------------------------------------------
# `replicator demo`: replication between two embedded metastores.


@click.command()
@options_of(run_demo)
@json_option
@pass_session
def demo(session: Session, /, as_json: bool, **given: Any) -> int:
    """Demonstrate replication on two real Hive metastores with real Spark tables, in about a minute and a half.

    Shows each command, its output, and why it matters: a policy, a first run, changes without an event, the restore of
    a dropped partition, a verification of every byte. With --ingest: a table of PostgreSQL is landed by request,
    changed and landed again, replicated, landed without an erased data subject, and restored to its first version.
    Needs a network only for its set-up, and changes nothing outside its directory.

    \b
    Example:
      replicator demo
      replicator demo --keep /tmp/shop     ends with a page on both replicas, until Ctrl+C
      replicator demo --ingest             a table landed, replicated, a data subject erased, an earlier state restored
    """
    stream = sys.stderr if as_json else sys.stdout
    with waiting(stream) as (shown, about):

        def say(line: str) -> None:
            shown(line)
            if line[:1] == "\n":  # a step's title
                about(line.strip())

        reported = session.call(run_demo, say=say, page=not as_json, **given)
    emit(reported, as_json, ())
    return 0


@contextmanager
def waiting(stream: TextIO) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Yields a function that prints a line, and one that sets the text of a progress line with the time since it was
    set, which a terminal shows below the printed lines; other streams get none."""
    console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        yield lambda line: print(line, file=stream, flush=True), lambda title: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as display:
        task = display.add_task("", total=None)
        yield console.print, lambda title: display.reset(task, description=title)


# ---- diagnose --------------------------------------------------------------------------------------------------------
# `replicator diagnose`: one file for a support case.


MISSING = 3  # written, but some parts are missing


@click.command()
@options_of(run_diagnose)
@json_option
@pass_session
def diagnose(session: Session, /, as_json: bool, **given: Any) -> int:
    """Write a tar.gz for a support case: versions, machine, configuration with the source of each value, findings, lag
    and last runs of POLICY (default: every one), leases and a summary of each $cmroot, the service's last runs.

    Secrets are masked, names are not: read it before you send it. Checks policies as `replicator check` does; changes
    nothing else; starts no Spark. A configuration that cannot be read is diagnosed, too. Exits with 3 if something
    could not be obtained: the file names it.

    \b
    Example:
      replicator diagnose
      replicator diagnose west --out /tmp/case-17.tar.gz
    """
    report = session.call(run_diagnose, **given)
    emit(report, as_json, _diagnose_lines(report))
    return MISSING if report.missing else 0


def _diagnose_lines(report: Diagnosed) -> Iterable[str]:
    return aligned(
        [
            (report.status, f"{report.out}, {size_text(report.bytes)}"),
            *((f"policy {name}", health) for name, health in report.policies.items()),
            ("missing", shortened(f"{each.part}: {each.error}" for each in report.missing)),
        ]
    )


# ---- metastore -------------------------------------------------------------------------------------------------------
# `replicator metastore`: starts, inspects and stops a real Hive metastore in a directory.


@click.group()
def metastore() -> None:
    """Run a real Hive metastore: 2.3 out of PySpark's own jars, 3.1 to 4.2 fetched once from a Maven repository.

    \b
    Example: replicator metastore start --dir /tmp/source
    """


@metastore.command()
@options_of(metastore_start)
@json_option
@pass_session
def start(session: Session, /, as_json: bool, **given: Any) -> int:
    """Start the metastore of a directory. Uses its existing data, and returns when it answers.

    \b
    Examples:
      replicator metastore start --dir /tmp/source --port 9083
      replicator metastore start --dir /tmp/newer --hive 4.2
    """
    emit(session.call(metastore_start, **given), as_json)
    return 0


@metastore.command()
@options_of(metastore_stop)
@json_option
@pass_session
def stop(session: Session, /, as_json: bool, **given: Any) -> int:
    """Stop the metastore of a directory; its data is kept.

    \b
    Example: replicator metastore stop --dir /tmp/source
    """
    emit(session.call(metastore_stop, **given), as_json)
    return 0


@metastore.command()
@options_of(metastore_status)
@json_option
@pass_session
def status(session: Session, /, as_json: bool, **given: Any) -> int:
    """Show whether the metastore of a directory is running.

    \b
    Example: replicator metastore status --dir /tmp/source
    """
    emit(session.call(metastore_status, **given), as_json)
    return 0


# ---- first run -------------------------------------------------------------------------------------------------------
# A dry run before the first run of any job.


def tell_if_first(cmroot: str | None, dry_run: bool) -> str:
    """Warns immediately of a dry run without a root, as the report does later. Returns the warnings. cmroot: empty if a
    policy names it; then only the report warns. Raises as `looked_at`."""
    if not dry_run or not cmroot:
        return ""
    with looked_at(cmroot) as (_, words):
        pass
    if words:
        note(f"warning: {words}")
    return words
