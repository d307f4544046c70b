"""Where the bytes of a content may still be when `files/` has not got them: at the place they were kept from, or as a
version of its bucket. Reads only; what an engine runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cmroot.check.finding import RootFinding
from cmroot.errors import Error
from cmroot.keep.versions import version_size
from cmroot.store.checksum import checksum_at
from cmroot.store.place import join
from cmroot.store.resolve import located


@dataclass(frozen=True)
class AlternateSourceTask:
    """A kept entry, as a row of `cmroot.expire.kept.KEPT`."""

    row: dict[str, Any]


@dataclass(frozen=True)
class VersionTask:
    """Rows whose bytes a bucket keeps by version."""

    rows: Sequence[dict[str, Any]]


def look(task: AlternateSourceTask) -> tuple[dict[str, Any], str]:
    """The row, and why the place that it was kept from has not these bytes; empty when it has."""
    row = task.row
    if not row["location"]:
        return row, "it is not known where it was kept from"
    place = join(row["location"], row["path"])
    try:
        if located(place).size() == row["size"] and checksum_at(place) == (row["checksum"], row["size"]):
            return row, ""
    except (FileNotFoundError, NotADirectoryError):
        return row, f"{place} does not exist"
    except (Error, OSError) as error:
        return row, f"{place} cannot be read ({error})"
    return row, f"{place} holds other bytes"


def check_versions(task: VersionTask) -> list[RootFinding]:
    """A finding for each version that its bucket has not got any more. Asks for its size, reads none."""
    findings = []
    for row in task.rows:
        place = join(row["location"], row["path"])
        try:
            if version_size(place, row["version"]) == row["size"]:
                continue
            wrong = "has another size"
        except FileNotFoundError:
            wrong = "is gone"
        except (Error, OSError) as error:
            wrong = f"cannot be asked for: {error}"
        findings.append(
            RootFinding(
                "version",
                f"{place} at version {row['version']}",
                f"the version {wrong}",
                "lost, unless the bucket has a copy elsewhere; a load that needs it fails and names it",
                row["reason"],
            )
        )
    return findings
