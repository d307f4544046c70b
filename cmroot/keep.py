"""Keepers: how bytes come to be kept while their source still has them. Recycling, re-exported here, is for what we
remove ourselves. Nothing touches a kept file's times, which a link shares with its source."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import ClassVar, Protocol

from cmroot.content import (
    Kept,
    content_name,
    file_by_copy,
    file_by_link,
    fresh_incoming,
    is_kept,
    locate,
    opened,
    read_steadily,
)
from cmroot.errors import KeepError
from cmroot.objects import keep_object, read_object
from cmroot.place import is_local, join, local_path, naming, same_device
from cmroot.recycle import Record, Recycled, Swept, recycle, recycle_tree, sweep_incoming

__all__ = [
    "CopyKeeper",
    "Keeper",
    "Kept",
    "LinkKeeper",
    "NoKeeper",
    "Record",
    "Recycled",
    "Swept",
    "choose_keeper",
    "content_name",
    "is_kept",
    "locate",
    "recycle",
    "recycle_tree",
    "sweep_incoming",
]


class Keeper(Protocol):
    """Keeps the bytes of one file. A value: may be pickled, and used by several threads and processes at once."""

    name: ClassVar[str]

    def keep(self, path: str) -> Kept:
        """Safe to run twice. FileNotFoundError: the file was gone when it was opened. KeepError: it could not be
        kept; the source is as it was."""


@dataclass(frozen=True)
class LinkKeeper:
    """A hard link per content: no bytes are copied, and whoever unlinks or replaces the source, the bytes stay.

    Root and source lie on one local filesystem. Does not protect against writing into a source file in place. A file
    that cannot be linked (too many links, another owner's) or was unlinked meanwhile is copied instead. Durable after
    `Store.sync(root)`, once for any number of files: the captured log does it before its marker.
    """

    root: str
    name: ClassVar[str] = "link"

    def keep(self, path: str) -> Kept:
        path = local_path(path)
        with naming(path), opened(path) as descriptor:
            kept = read_steadily(descriptor, path)
            file_by_link(local_path(self.root), descriptor, kept)
            return kept


@dataclass(frozen=True)
class CopyKeeper:
    """A copy per content, for another device or store: written aside in `incoming/` while it is hashed, synced, then
    given its name. Protects against writing in place too."""

    root: str
    name: ClassVar[str] = "copy"

    def keep(self, path: str) -> Kept:
        if not (is_local(path) and is_local(self.root)):
            return keep_object(self.root, path)
        path = local_path(path)
        with naming(path), opened(path) as descriptor:
            return file_by_copy(local_path(self.root), descriptor, path)


@dataclass(frozen=True)
class NoKeeper:
    """Keeps nothing, only tells what the bytes are. What the source drops before it is copied is lost: by choice."""

    name: ClassVar[str] = "none"

    def keep(self, path: str) -> Kept:
        if not is_local(path):
            return read_object(path)
        path = local_path(path)
        with naming(path), opened(path) as descriptor:
            return read_steadily(descriptor, path)


def choose_keeper(root: str, example_location: str, requested: str = "auto") -> Keeper:
    """The keeper for files like those below `example_location`: a link where one can really be made, else a copy.

    Tries with the first file found there, or with one of its own when there is none and the device is the same.
    `requested` is auto, link, copy or none; KeepError when `link` is asked for and cannot be had.
    """
    match requested:
        case "none":
            return NoKeeper()
        case "copy":
            return CopyKeeper(root)
        case "auto" | "link":
            reason = _why_no_link(root, example_location)
            if not reason:
                return LinkKeeper(root)
            if requested == "auto":
                return CopyKeeper(root)
            raise KeepError(
                f"{example_location}: files here cannot be linked into {root}: {reason}",
                hint="put $cmroot on the same filesystem as the warehouse, or choose the copy keeper",
            )
    raise KeepError(f"there is no keeper {requested!r}", hint="choose auto, link, copy or none")


def _why_no_link(root: str, location: str) -> str:
    """Empty when a link can be made."""
    if not (is_local(root) and is_local(location)):
        return "links need a local filesystem"
    if not same_device(root, location):
        return "they are on different devices"
    root = local_path(root)
    with naming(root):
        own = fresh_incoming(root, "probe")
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


def _first_file(location: str) -> str | None:
    for directory, _, names in os.walk(location):
        for name in names:
            if not name.startswith("."):
                return join(directory, name)
    return None
