"""Errors of the operating system that a person must act on, as ours: with the path and a hint."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import NoReturn

from cmroot.errors import Error, NoSpace, NotWritable


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Turns errors of the operating system that a person must act on into ours, with the path and a hint.

    A missing file stays FileNotFoundError, an existing one FileExistsError: callers decide on those.
    """
    try:
        yield
    except OSError as error:
        raise_named(error, path)


def raise_named(error: OSError, path: str) -> NoReturn:
    """What `naming` does, for loops in which a context manager per file would be felt."""
    better = _named(error, path)
    if better is None:
        raise error
    raise better from error


def _named(error: OSError, path: str) -> Error | None:
    culprit = error.filename2 or error.filename  # of a link or rename, the new name
    what = f"{culprit if isinstance(culprit, str) else path}: {error.strerror or error}"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return NoSpace(what, hint="free space or raise the quota, then run the same command again")
        case errno.EACCES | errno.EPERM:
            return NotWritable(what, hint=_ALLOW)
        case errno.EROFS:
            return NotWritable(what, hint="the mount is read-only: remount it, or choose another place")
        case errno.ENOTDIR:
            return NotWritable(what, hint="a parent of this path is a file, not a directory: choose another place")
    if isinstance(error, PermissionError):  # of a store that has no error numbers
        return NotWritable(what, hint=_ALLOW)
    return None


_ALLOW = "give this user the right to read and write there, or choose another place"
