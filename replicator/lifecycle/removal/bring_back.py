"""Bringing back what a run removed: the files of the audit record, from `$cmroot` to where they were. Acts.

Files only: metadata that went with them is in the captured log (`replicator restore`) or made again by its owner.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cmroot.errors import Error, Exists
from cmroot.keep.restore import restore_file
from replicator.core.report import Report
from replicator.errors import ObjectNotFound
from replicator.lifecycle.removal.audit import REMOVED, begin_audit, read_audit
from replicator.lifecycle.removal.remove import finish_begun


@dataclass
class BroughtBack(Report):
    """files, bytes: written. there: paths that have a file already, which stays. lost: path -> why its bytes cannot be
    had. found_run: what killed runs had taken and not filed is recorded as this run's now, which can be undone, too;
    "": nothing."""

    status: str = "restored"
    run: str = ""
    files: int = 0
    bytes: int = 0
    there: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    found_run: str = ""


def bring_back(
    root: str,
    run: str | None,
    *,
    job: str | None = None,
    path: str | None = None,
    since: str | None = None,
    dry_run: bool = False,
) -> BroughtBack:
    """Every file that a run removed, or those at and below a path; run: None for all runs; job, since (ISO 8601): only
    what this job removed, and from then on. Hashed on the way. Replaces nothing, so it may run twice. A killed run's
    files are filed first. Raises ObjectNotFound when the record knows no such file, LeaseHeld while another run is at
    work on the root and there are files to be filed."""
    done = BroughtBack("planned" if dry_run else "restored", run or "")
    if not dry_run and finish_begun(audit := begin_audit(root, "undo")):
        done.found_run = audit.run
    for row in read_audit(root, job=job, run=run, path=path, outcome=REMOVED, since=since):
        if row.what != "file" or row.checksum is None or row.bytes is None:
            continue
        try:
            if not dry_run:
                restore_file(root, row.checksum, row.bytes, row.path)
        except Exists:
            done.there.append(row.path)
            continue
        except Error as error:
            done.lost[row.path] = error.message
            continue
        done.files += 1
        done.bytes += row.bytes
    if not (done.files or done.there or done.lost):
        what = f"{root}: run {run!r} has removed no such file" if run else f"{root}: no removal of {path} is recorded"
        raise ObjectNotFound(what, hint="`replicator audit ls` shows the runs")
    return done
