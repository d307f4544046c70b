"""`replicator capture`: bring the captured log up to now, once or again and again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from replicator.captures.recording import Captured, CapturesFollowed
from replicator.cli.options import Session, json_options, options_of, pass_session
from replicator.cli.output import aligned, count_text, emit, note, shortened, size_text, took, write
from replicator.commands.capture import capture as run
from replicator.core.not_replicated import PARTIAL
from replicator.core.runtime import INTERRUPTED, TERMINATED, Terminated


@click.command()
@options_of(run, engine=True)
@json_options
@pass_session
def capture(session: Session, /, as_json: bool, **given: Any) -> int:
    """Read the notification log into $cmroot, with the files and checksums of every change, and keep the files.

    A root captures every database that a command has ever named for it; the output lists them.

    \b
    Example:
      replicator capture west
      replicator capture --source thrift://a:9083 --cmroot /warehouse/.cmroot --db sales
      replicator capture --source prod --cmroot /warehouse/.cmroot --follow --interval 30s
    """
    if given["follow"]:
        return _follow(session, as_json, given)
    captured = session.call(run, **given)
    emit(captured, as_json, describe(captured))
    return PARTIAL if captured.not_replicated else 0


def describe(captured: Captured) -> Iterable[str]:
    """A capture for a person."""
    yield from aligned(
        [
            (
                captured.status,
                f"{count_text(captured.records, 'record')} ({captured.observed:,} found by scan) "
                f"from {count_text(captured.events, 'event')}",
            ),
            ("through", f"event {captured.through_event}, position {captured.position}"),
            (
                "files",
                f"{captured.files:,} new or changed, {size_text(captured.bytes)}, kept by {captured.keeper}"
                if captured.files
                else "no new or changed ones",
            ),
            ("log", captured.root),
            ("databases", shortened(captured.databases)),
            ("not replicated", shortened(map(str, captured.not_replicated))),
            ("unknown", shortened(captured.unknown)),
            ("scanned", captured.scanned),
            ("warning", shortened(captured.warnings)),
            ("took", took(captured.seconds)),
        ]
    )


def _follow(session: Session, as_json: bool, given: Mapping[str, Any]) -> int:
    """Captures until a signal comes, which is the way it ends; an error that trying again cannot help is raised."""
    total = CapturesFollowed()

    def reported(captured: Captured) -> None:
        total.add(captured)
        if captured.records and not as_json:
            write(
                [
                    f"event {captured.through_event}, position {captured.position}: "
                    f"{count_text(captured.records, 'record')}, {count_text(captured.files, 'file')}, "
                    f"{size_text(captured.bytes)}"
                ]
            )

    def failed(error: Exception, wait: float) -> None:
        note(f"{error}; trying again in {wait:.0f} s")

    code = 0
    try:
        session.call(run, reported=reported, failed=failed, **given)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Terminated:
        code = TERMINATED
    said = f"stopped after {count_text(total.rounds, 'capture')}"
    emit({**total.to_dict(), "status": "stopped", "exit_code": code}, as_json, [said])
    return code
