"""Files of Delta logs among those of a load: which they are, and whose a commit is."""

from __future__ import annotations

from cmroot.keep.content import is_kept
from cmroot.store.checksum import checksum_at
from cmroot.store.delta import LOG, commit_version
from replicator.replay.copy.origins import Roots, Wanted

_BELOW = f"/{LOG}/"


def is_log(place: str) -> bool:
    """Whether a file is published with the logs, after all data."""
    return _BELOW in place


def log_of(place: str) -> str:
    """The directory of the table whose log has this file."""
    return place[: place.rindex(_BELOW)]


def is_foreign(file: Wanted, roots: Roots) -> bool:
    """Whether the target has a commit of this version that the source never had: other bytes, which its `$cmroot` does
    not know either."""
    if not is_log(file.target) or commit_version(file.target) is None:
        return False
    try:
        checksum, size = checksum_at(file.target)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return (checksum, size) != (file.checksum, file.size) and not is_kept(roots.source, checksum, size)
