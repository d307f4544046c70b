"""Renames on stores behind fsspec that have directories: onto a free name, and onto one that is taken.

A name that is taken is replaced by the store's own rename with overwrite where fsspec's driver leads to one: SFTP
(posix-rename), WebHDFS (OVERWRITE), SMB. Elsewhere (HDFS by pyarrow) it takes two steps: the new file becomes
`.aside-next-<name>`, the old one goes, the new one gets the name. While the name is free, `next` is what it means; so
no reader sees neither, and a kill between the steps loses nothing. One writer at a time for each name.
"""

from __future__ import annotations

import contextlib
from typing import Any

from cmroot.errors import NotWritable
from cmroot.store.spelling import STAGING

RENAMING = frozenset({"hdfs", "arrow_hdfs", "webhdfs", "sftp", "ssh", "smb"})
"""fsspec protocols with directories and a rename: a file there is visible while it is written, so it is written
aside. All others are object stores, where an object appears whole when its upload ends."""

_OVERWRITING = frozenset({"webhdfs", "sftp", "ssh", "smb"})

NEXT = STAGING + "next-"


def in_two_steps(scheme: str) -> bool:
    """Whether a name may be free for a moment, while `next` has its content."""
    return scheme in RENAMING - _OVERWRITING


def next_of(key: str) -> str:
    above, slash, name = key.rpartition("/")
    return f"{above}{slash}{NEXT}{name}"


def meant(name: str) -> str:
    """The name that a file of a listing stands for: of a `next`, the one it is to get."""
    return name.removeprefix(NEXT)


def replace(filesystem: Any, scheme: str, staged: str, key: str) -> None:
    """Give a file a name that another may have: readers find the old content or the new, whenever they look."""
    if scheme in ("sftp", "ssh"):
        filesystem.mv(staged, key)  # posix-rename@openssh.com
    elif scheme == "webhdfs":
        filesystem._call("RENAME", method="put", path=staged, destination=key, renameoptions="OVERWRITE")
    elif scheme == "smb":
        _replace_smb(filesystem, staged, key)
    else:
        _replace_in_two_steps(filesystem, staged, key)


def rename_onto_free(filesystem: Any, scheme: str, staged: str, key: str) -> None:
    """Give a file a name that nobody has. Whether `staged` is left afterwards tells whether somebody had: drivers drop
    a store's refusal, or raise it."""
    with contextlib.suppress(OSError):
        if scheme in ("sftp", "ssh"):
            filesystem.ftp.rename(staged, key)  # mv would overwrite
        else:
            filesystem.mv(staged, key)


def _replace_in_two_steps(filesystem: Any, staged: str, key: str) -> None:
    following = next_of(key)
    if is_there(filesystem, following):  # of a writer that was killed
        if is_there(filesystem, key):
            _remove(filesystem, following)  # it had not begun to count
        else:
            _move(filesystem, following, key)
    if is_there(filesystem, key):
        _move(filesystem, staged, following)
        _remove(filesystem, key)  # from here on `next` counts
        staged = following
    _move(filesystem, staged, key)


def is_there(filesystem: Any, key: str) -> bool:
    """Not fsspec's `exists`, which takes every error for an absence."""
    try:
        filesystem.info(key)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _move(filesystem: Any, old: str, new: str) -> None:
    filesystem.mv(old, new)
    if is_there(filesystem, old):  # a refused rename looks like success
        raise NotWritable(f"{new}: the store refused to rename {old} to it", hint="look at the store's log")


def _remove(filesystem: Any, key: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm_file(key)


def _replace_smb(filesystem: Any, staged: str, key: str) -> None:
    import smbclient  # type: ignore[import-not-found]
    from fsspec.implementations.smb import _as_unc_path

    old, new = (_as_unc_path(filesystem.host, name) for name in (staged, key))
    smbclient.replace(old, new, port=filesystem._port)
