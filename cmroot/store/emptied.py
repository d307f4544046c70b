"""Emptied directories: whoever takes the last out of one takes it away, too, and nobody else's with it. Acts."""

from __future__ import annotations

import errno
import os

from cmroot.store.place import is_local, local_path, remote_store
from cmroot.store.spelling import naming

_STAYS = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EBUSY})
"""It holds something, is gone, is a file or a symbolic link by now, or something is mounted there."""


def remove_if_empty(place: str | None) -> bool:
    """Whether an empty directory went; None, and an object store, have none. Raises NotWritable, or the
    OSError, for one that is empty, as far as one can tell, and does not go. May run twice."""
    if not place:
        return False
    path = local_path(place) if is_local(place) else place
    with naming(path):
        try:
            if not is_local(place):
                return remote_store(place).remove_directory(place)
            os.rmdir(path)
        except OSError as error:
            if error.errno not in _STAYS:
                raise
            return False
    return True
