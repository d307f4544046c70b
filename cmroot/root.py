"""The layout of a change-management root: its FORMAT file and its directories. Creates and opens roots. The modules of
`log`, `keep` and `pins` describe the contents.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
import xxhash

from cmroot.errors import UNREADABLE, FormatError, NotWritable
from cmroot.names import check_id
from cmroot.store.local import is_directory
from cmroot.store.place import Place, as_written, join, scratch

FORMAT = "FORMAT"
VERSION = 1

DIRECTORIES = ("files", "incoming", "log", "slots", "holds", "legal", "dumps", "taken", "taking", "expiring")

GUARDS = ("slots", "holds", "legal", "dumps")
"""The directories whose files forbid removals. Created once, when the root is new or of a release that did not note
them, and noted in `.made`. One that is missing later was lost with its contents, and is not recreated automatically."""

MADE = ".made"
KIND = "cmroot"  # the kind of a root, as written in FORMAT
_HERE = ".here"  # marks a guard on stores that have no empty directories


class Format(msgspec.Struct, frozen=True):
    """The content of `FORMAT`: the kind of root, its format version, its id, and its creation time (ISO 8601)."""

    format: str
    version: int
    id: str
    created: str


class _Made(msgspec.Struct, frozen=True):
    """The content of `.made`: the guards that were created for this root."""

    version: int
    directories: tuple[str, ...]


class _Versioned(msgspec.Struct, frozen=True):
    format: str
    version: int


@dataclass(frozen=True)
class ChangeRoot:
    """An opened root. `place` is normalised: an absolute path, or a URL without trailing slash."""

    place: str
    format: Format

    @property
    def id(self) -> str:
        return self.format.id

    @property
    def files(self) -> str:
        return join(self.place, "files")

    @property
    def incoming(self) -> str:
        return join(self.place, "incoming")

    @property
    def log(self) -> str:
        return join(self.place, "log")

    @property
    def slots(self) -> str:
        return join(self.place, "slots")

    @property
    def holds(self) -> str:
        return join(self.place, "holds")


def create_or_open(place: str) -> ChangeRoot:
    """Opens a root; creates it first if the place is empty or missing. May run twice, also concurrently.

    Raises NotWritable for a place that is used for something else, FormatError for another kind or an unknown version.
    """
    at = as_written(place)
    if not (at / FORMAT).exists():
        refuse_other(at)
        at.mkdirs(private=True)
        made = Format(KIND, VERSION, str(uuid.uuid4()), datetime.now(UTC).isoformat(timespec="seconds"))
        (at / FORMAT).create_exclusive(_pretty(made))  # the first of several concurrent runs creates it
    root = open_existing(str(at))
    given = _made(at)
    for name in DIRECTORIES:
        if name not in given:
            (at / name).mkdirs()
    fresh = [name for name in GUARDS if name not in given]
    if fresh:
        for name in fresh:
            if not at.local:
                (at / name / _HERE).write_bytes(b"")
        (at / MADE).write_bytes(msgspec.json.encode(_Made(1, tuple(sorted({*given, *fresh})))) + b"\n")
    return root


def refuse_other(place: Place) -> None:
    """Raises NotWritable for a place that has other files but no FORMAT."""
    if place.list():
        raise NotWritable(
            f"{place}: not empty, and not a {KIND} (it has no {FORMAT})",
            hint="choose an empty directory, or one that an earlier run created",
        )


def guard_names(place: str, guard: str) -> list[str]:
    """Returns the names in one of the GUARDS of a root. Raises FormatError when the root had the directory and it is
    now missing, because the removals that it forbade are then unknown."""
    directory = Place(place) / guard
    names = directory.list()
    there = bool(names) or is_directory(directory.local) if directory.local else _HERE in names
    if not there and guard in _made(directory.parent):
        raise FormatError(
            f"{directory}: missing, so the files that it protects are unknown, and nothing may be removed",
            hint=f"restore it from a copy of the root; if its content is not needed, create {_empty(directory)}",
            details={"damaged": [str(directory)]},
        )
    return [name for name in names if not name.startswith(".")]


def _empty(directory: Place) -> str:
    return "an empty directory" if directory.local else f"an empty object {directory / _HERE}"


def _made(place: Place) -> tuple[str, ...]:
    path = place / MADE
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Made).directories
    except FileNotFoundError:
        return ()
    except msgspec.DecodeError as error:
        raise FormatError(f"{path}: {error}", hint="remove it; the next run writes it again") from error


def open_existing(place: str) -> ChangeRoot:
    """Opens an existing root; writes nothing. Raises FormatError when this release does not support it."""
    path = as_written(place) / FORMAT
    place = str(path.parent)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise FormatError(f"{place}: not a {KIND} (it has no {FORMAT})", hint="check the path of the root") from None
    try:
        versioned = msgspec.json.decode(data, type=_Versioned)
        if versioned.format != KIND:
            raise FormatError(f"{place}: a {versioned.format}, not a {KIND}", hint="check the path of the root")
        if versioned.version != VERSION:
            raise FormatError(
                f"{place}: version {versioned.version} of the format, this release knows {VERSION}",
                hint="use the release that wrote it, or a newer one",
            )
        found = msgspec.json.decode(data, type=Format)
        check_id(str(path), "the id", found.id)
        return ChangeRoot(place, found)
    except UNREADABLE as error:
        raise FormatError(f"{path}: {error}", hint="restore this small file from a backup of the root") from error


def _pretty(value: Format) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


# ---- rehearsal -------------------------------------------------------------------------------------------------------
# A root for dry runs: the existing one, or an empty temporary one. Nothing is written at the place.


@contextmanager
def looked_at(place: str) -> Iterator[tuple[ChangeRoot, str]]:
    """Yields the root, and a note to report when the root does not exist yet. Raises like `create_or_open`: NotWritable
    for a place that is used for something else, FormatError for another kind or an unknown version."""
    at = as_written(place)
    if (at / FORMAT).exists():
        yield open_existing(str(at)), ""
        return
    refuse_other(at)
    with scratch("root") as here:
        yield create_or_open(join(str(here), "root")), f"{at}: no $cmroot yet; the first run creates it"


# ---- sealed ----------------------------------------------------------------------------------------------------------
# Sealed files: a JSON value with its format, version and checksum. Pure.
#
#     {"format": "replicator-run", "version": 1, "xxh3_128": "...", "body": {...}}
#
# The checksum covers the bytes of `body` exactly as they are in the file.


T = TypeVar("T")


class _File(msgspec.Struct, frozen=True):
    format: str
    version: int
    xxh3_128: str
    body: msgspec.Raw


def seal(format: str, value: Any) -> bytes:
    """Returns the bytes of the file."""
    body = msgspec.json.encode(value)
    return msgspec.json.encode(_File(format, VERSION, xxhash.xxh3_128_hexdigest(body), msgspec.Raw(body))) + b"\n"


def unseal(data: bytes, kind: type[T], format: str, path: str, hint: str) -> T:
    """Returns the value of a file that was read from `path`. Raises FormatError with the hint when the file is damaged
    or of another kind."""
    try:
        file = msgspec.json.decode(data, type=_File)
        if file.format != format:
            raise FormatError(f"{path}: a {file.format}, not a {format}", hint=hint)
        if file.version != VERSION:
            raise FormatError(
                f"{path}: version {file.version}, this release knows {VERSION}", hint="use the release that wrote it"
            )
        if xxhash.xxh3_128_hexdigest(bytes(file.body)) != file.xxh3_128:
            raise FormatError(f"{path}: damaged: its checksum differs", hint=hint)
        return msgspec.json.decode(file.body, type=kind)
    except UNREADABLE as error:
        raise FormatError(f"{path}: damaged: {error}", hint=hint) from error
