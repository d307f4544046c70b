"""Renames on stores behind fsspec that have directories: onto a free name, and onto one that is taken.

A name that is taken is replaced by the store's own rename with overwrite: posix-rename, or one with an option.
"""

from __future__ import annotations

import contextlib
from typing import Any

RENAMING = frozenset({"webhdfs", "sftp", "ssh", "smb"})
"""fsspec protocols with directories and a rename: a file there is visible while it is written, so it is written
aside. All others are object stores, where an object appears whole when its upload ends."""


def replace(filesystem: Any, scheme: str, staged: str, key: str) -> None:
    """Give a file a name that another may have: readers find the old content or the new, whenever they look."""
    if scheme in ("sftp", "ssh"):
        filesystem.mv(staged, key)  # posix-rename@openssh.com
    elif scheme == "webhdfs":
        filesystem._call("RENAME", method="put", path=staged, destination=key, renameoptions="OVERWRITE")
    else:
        _replace_smb(filesystem, staged, key)


def rename_onto_free(filesystem: Any, scheme: str, staged: str, key: str) -> None:
    """Give a file a name that nobody has. Whether `staged` is left afterwards tells whether somebody had: drivers drop
    a store's refusal, or raise it."""
    with contextlib.suppress(OSError):
        if scheme in ("sftp", "ssh"):
            filesystem.ftp.rename(staged, key)  # mv would overwrite
        else:
            filesystem.mv(staged, key)


def is_there(filesystem: Any, key: str) -> bool:
    """Not fsspec's `exists`, which takes every error for an absence."""
    try:
        filesystem.info(key)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _replace_smb(filesystem: Any, staged: str, key: str) -> None:
    import smbclient  # type: ignore[import-not-found]
    from fsspec.implementations.smb import _as_unc_path

    old, new = (_as_unc_path(filesystem.host, name) for name in (staged, key))
    smbclient.replace(old, new, port=filesystem._port)
