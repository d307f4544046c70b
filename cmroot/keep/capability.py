"""What a root and a store can do for each other, found out by trying: links, and writing at all.

Each question is answered by the reason why not; an empty answer is yes. Whether a bucket keeps versions, says
`versions`.
"""

from __future__ import annotations

import contextlib
import os

from cmroot.errors import NotWritable, UnknownPlace
from cmroot.keep.content import fresh_incoming
from cmroot.store.local import raise_unless_gone, same_device, status_of
from cmroot.store.place import Place, is_local, join, local_path
from cmroot.store.spelling import naming

PROBE = "probe"  # begins the names of what is tried; a sweep removes those that a crash left


def why_no_link(root: str, location: str) -> str:
    """Links from the root to files below a location: tried with the first file there, or with one of our own when there
    is none. Raises NotWritable or NoSpace when the root takes nothing at all."""
    if not (is_local(root) and is_local(location)):
        return "links need a local filesystem"
    if not same_device(root, location):
        return "they are on different devices"
    root = local_path(root)
    with naming(root):
        own = fresh_incoming(root, PROBE)
        linked = own + "-linked"
        example = _first_file(local_path(location))
        try:
            if example is None:
                os.close(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            os.link(os.path.realpath(example or own), linked)
        except FileNotFoundError:
            return ""  # the example vanished, as files in a live warehouse do; the devices say yes
        except OSError as error:
            return error.strerror or str(error)
        finally:
            for path in (own, linked):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
    return ""


def why_no_copy(root: str) -> str:
    """Writing into the root: a small file is written and removed. Raises NoSpace when it is full, which passes."""
    try:
        files = Place(root) / "files"
        if files.local and not os.access(_nearest(files.local), os.W_OK | os.X_OK):
            return f"{files}: this user may not write there"
        probe = Place(fresh_incoming(root, PROBE))
        probe.write_bytes(b"written to see whether this can be written\n")
        probe.remove_own()
    except (NotWritable, UnknownPlace) as error:
        return error.message
    except NotImplementedError as error:  # stores that fsspec can only read
        return f"{root}: cannot be written ({error or type(error).__name__})"
    return ""


def _nearest(path: str) -> str:
    """The path, or the nearest directory above it that exists."""
    while status_of(path) is None:
        path = os.path.dirname(path)
    return path


def _first_file(location: str) -> str | None:
    for directory, _, names in os.walk(location, onerror=raise_unless_gone):
        for name in names:
            if not name.startswith("."):
                return join(directory, name)
    return None
