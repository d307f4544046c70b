"""Stamps: a file that a load has published carries the checksum of its bytes as an extended attribute, so that another
load tells without reading whether it is the one that an entry names.

Size and time do not tell: tools restore times (`rsync -t`, `tar x`, fixed build times). Where a filesystem has no
attributes, and for files that no load of ours has stamped, bytes are read. What writes into a published file in place
and restores its time is not noticed here; comparing by checksum is for that.
"""

from __future__ import annotations

import errno
import os

_NAME = "user.replicator.xxh3_128"  # the checksum's 16 bytes
_NONE = frozenset({errno.ENODATA, errno.ENOTSUP, errno.EPERM, errno.EACCES})
_NO_ROOM = frozenset({errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.E2BIG, errno.ERANGE})
_AVAILABLE = hasattr(os, "setxattr")  # Linux


def stamp(file: int | str, checksum: str) -> None:
    """Of a file whose bytes were read. Where that cannot be, the file is read again the next time."""
    if not _AVAILABLE:
        return
    try:
        os.setxattr(file, _NAME, bytes.fromhex(checksum))
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise


def is_stamped(path: str, checksum: str) -> bool:
    """Whether a load has published these bytes in the file. Its size and time are for the caller to compare, too."""
    return _stamp_of(path) == bytes.fromhex(checksum)


def is_published(path: str) -> bool:
    """Whether a load has published a file there, whatever is in it now; False where files carry no stamps."""
    return _stamp_of(path) is not None


def _stamp_of(path: str) -> bytes | None:
    if not _AVAILABLE:
        return None
    try:
        return os.getxattr(path, _NAME)
    except OSError as error:
        if error.errno not in _NONE:
            raise
        return None
