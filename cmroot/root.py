"""The change-management root as a place: its FORMAT file and its directories. What lies in them is told elsewhere."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from cmroot.errors import UNREADABLE, FormatError, NotWritable
from cmroot.names import check_id
from cmroot.store.local import is_directory
from cmroot.store.place import is_local, join, local_path, normal, store_for

FORMAT = "FORMAT"
VERSION = 1

DIRECTORIES = ("files", "incoming", "log", "slots", "holds", "legal", "dumps", "taken", "taking", "expiring")

GUARDS = ("slots", "holds", "legal", "dumps")
"""What forbids removals. Made once, when the root is new or of a release that did not tell, and noted in `.made`: one
that is missing afterwards was lost, with whatever it said, and is never made again by itself."""

MADE = ".made"
_HERE = ".here"  # where a store has no empty directories


class Format(msgspec.Struct, frozen=True):
    """The content of `FORMAT`: which kind of root, which version of it, its own id, when it was made (ISO 8601)."""

    format: str
    version: int
    id: str
    created: str


class _Made(msgspec.Struct, frozen=True):
    """The content of `.made`: the guards that this root was given."""

    version: int
    directories: tuple[str, ...]


class _Versioned(msgspec.Struct, frozen=True):
    format: str
    version: int


@dataclass(frozen=True)
class ChangeRoot:
    """An opened root. `place` is written the one way (absolute path, or URL without trailing slash)."""

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


def create_or_open(place: str, kind: str = "cmroot") -> ChangeRoot:
    """Open a root, making it first when the place is empty or missing. Safe to run twice and by two at once.

    Raises NotWritable for a place in use by something else, FormatError for another kind or an unknown version.
    """
    place = normal(place)
    store = store_for(place)
    if not store.exists(join(place, FORMAT)):
        refuse_other(place, kind)
        store.mkdirs(place, private=True)
        made = Format(kind, VERSION, str(uuid.uuid4()), datetime.now(UTC).isoformat(timespec="seconds"))
        store.create_exclusive(join(place, FORMAT), _pretty(made))  # whoever was first has made it
    root = open_existing(place, kind)
    given = _made(place)
    for name in DIRECTORIES:
        if name not in given:
            store.mkdirs(join(place, name))
    fresh = [name for name in GUARDS if name not in given]
    if fresh:
        for name in fresh:
            if not is_local(place):
                store.write_bytes(join(place, name, _HERE), b"")
        store.write_bytes(join(place, MADE), msgspec.json.encode(_Made(1, tuple(sorted({*given, *fresh})))) + b"\n")
    return root


def refuse_other(place: str, kind: str = "cmroot") -> None:
    """Raises NotWritable for a place without FORMAT that has something else."""
    if store_for(place).list(place):
        raise NotWritable(
            f"{place}: not empty, and not a {kind} (it has no {FORMAT})",
            hint="choose an empty directory, or one that a run before made",
        )


def guard_names(place: str, guard: str) -> list[str]:
    """The names in one of GUARDS of a root. Raises FormatError when the root had the directory and has it
    no more: what it forbade is not known then."""
    directory = join(place, guard)
    names = store_for(place).list(directory)
    there = bool(names) if is_local(place) else _HERE in names
    if not there and not (is_local(place) and is_directory(local_path(directory))) and guard in _made(place):
        raise FormatError(
            f"{directory}: missing, so what it forbids to remove is not known, and nothing may go",
            hint=f"restore it from a copy of the root; if nobody needs what it had, make {_empty(place, guard)}",
            details={"damaged": [directory]},
        )
    return [name for name in names if not name.startswith(".")]


def _empty(place: str, guard: str) -> str:
    return "an empty directory" if is_local(place) else f"an empty object {join(place, guard, _HERE)}"


def _made(place: str) -> tuple[str, ...]:
    path = join(place, MADE)
    try:
        return msgspec.json.decode(store_for(place).read_bytes(path), type=_Made).directories
    except FileNotFoundError:
        return ()
    except msgspec.DecodeError as error:
        raise FormatError(f"{path}: {error}", hint="remove it; the next run writes it again") from error


def open_existing(place: str, kind: str = "cmroot") -> ChangeRoot:
    """Open a root that must be there; writes nothing. Raises FormatError when it is not one this release knows."""
    place = normal(place)
    path = join(place, FORMAT)
    try:
        data = store_for(place).read_bytes(path)
    except FileNotFoundError:
        raise FormatError(f"{place}: not a {kind} (it has no {FORMAT})", hint="check the path of the root") from None
    try:
        versioned = msgspec.json.decode(data, type=_Versioned)
        if versioned.format != kind:
            raise FormatError(f"{place}: a {versioned.format}, not a {kind}", hint="check the path of the root")
        if versioned.version != VERSION:
            raise FormatError(
                f"{place}: version {versioned.version} of the format, this release knows {VERSION}",
                hint="use the release that wrote it, or a newer one",
            )
        found = msgspec.json.decode(data, type=Format)
        check_id(path, "the id", found.id)
        return ChangeRoot(place, found)
    except UNREADABLE as error:
        raise FormatError(f"{path}: {error}", hint="restore this small file from a backup of the root") from error


def _pretty(value: Format) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
