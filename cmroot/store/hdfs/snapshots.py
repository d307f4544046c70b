"""Snapshots of HDFS directories, by WebHDFS: creating and deleting them, and the differences between two.

Errors are OSErrors with the NameNode's reason. A snapshot can be created only of a directory that an administrator has
allowed (`hdfs dfsadmin -allowSnapshot`), by its owner.
"""

from __future__ import annotations

import errno
import http.client
import os
from typing import Any, NamedTuple
from xml.etree import ElementTree

from cmroot.store.hdfs.authentication import open_url
from cmroot.store.hdfs.checksums import PATIENCE, ask, web_addresses
from cmroot.store.place import join
from cmroot.store.spelling import normal, split_authority

DIRECTORY = ".snapshot"

CAPTURES_OPEN = "dfs.namenode.snapshot.capture.openfiles"
"""If this is not true, a file that is open for writing during a snapshot has in the snapshot also the data written
later, so the diff to the next snapshot does not list it."""

_ABSENT = ("the snapshot does not exist", "Cannot find the snapshot", "is not a snapshottable directory")
_REPLACED = "\ufffd"  # a byte of a name that is not text


class Difference(NamedTuple):
    """One difference. kind: CREATE, DELETE, MODIFY or RENAME; entries below a directory that was created, deleted or
    renamed are not listed. Paths are absolute; `target`: of a rename."""

    kind: str
    path: str
    target: str = ""


def snapshottable(store: str) -> list[str]:
    """Returns the directories of a store (`hdfs://...`) of which this user may create snapshots, as absolute paths."""
    found = ask(join(store, "/"), "GETSNAPSHOTTABLEDIRECTORYLIST").get("SnapshottableDirectoryList") or ()
    return [f"{each['parentFullPath'].rstrip('/')}/{each['dirStatus']['pathSuffix']}" for each in found]


def create_snapshot(directory: str, name: str) -> None:
    """Raises FileNotFoundError without the directory; OSError if it is not snapshottable, or has too many snapshots."""
    ask(directory, "CREATESNAPSHOT", "PUT", snapshotname=name)


def delete_snapshot(directory: str, name: str) -> None:
    """Deletes a snapshot. May run twice: a missing snapshot or directory is not an error."""
    try:
        ask(directory, "DELETESNAPSHOT", "DELETE", snapshotname=name)
    except FileNotFoundError:
        return
    except OSError as error:
        if not any(each in str(error) for each in _ABSENT):
            raise


def differences(directory: str, old: str, new: str = "") -> list[Difference]:
    """Returns the differences from one snapshot to another, or to the present. The NameNode scans everything below.

    A file that was truncated and rewritten in place to the same length is not listed; no table format does that.
    """
    answer = ask(directory, "GETSNAPSHOTDIFF", oldsnapshotname=old, snapshotname=new)
    top = split_authority(normal(directory))[1] or "/"
    try:
        report = answer["SnapshotDiffReport"]
        asked_for = (report["snapshotRoot"], report["fromSnapshot"], report["toSnapshot"]) == (top, old, new)
        found = [_difference(top, each) for each in report["diffList"]]
    except (KeyError, TypeError) as error:
        raise OSError(errno.EIO, f"WebHDFS: no snapshot diff: {error!r} is missing", directory) from None
    if not asked_for or any(_REPLACED in each.path + each.target for each in found):
        raise OSError(errno.EIO, "WebHDFS: a snapshot diff of other snapshots, or names that are not text", directory)
    return found


def captures_open_files(store: str) -> bool:
    """Returns True if snapshots freeze open files: all NameNodes that respond report so (`/conf`), at least one."""
    said = []
    for address in web_addresses(store, os.environ.get("HADOOP_CONF_DIR", "")):
        try:
            with open_url(f"{address}/conf?name={CAPTURES_OPEN}", "GET", PATIENCE) as answer:
                found = ElementTree.fromstring(answer.read()).findtext("property/value", "")
        except (OSError, http.client.HTTPException, ElementTree.ParseError):
            continue
        said.append(found.strip() == "true")
    return bool(said) and all(said)


def _difference(top: str, said: dict[str, Any]) -> Difference:
    target = said.get("targetPath")
    return Difference(said["type"], _absolute(top, said["sourcePath"]), _absolute(top, target) if target else "")


def _absolute(top: str, path: str) -> str:
    return f"{top.rstrip('/')}/{path}" if path else top
