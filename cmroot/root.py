"""The change-management root as a place: its FORMAT file and its directories. What lies in them is told elsewhere."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from cmroot.errors import FormatError, NotWritable
from cmroot.place import join, normal, store_for

FORMAT = "FORMAT"
VERSION = 1

DIRECTORIES = ("files", "incoming", "log", "slots", "holds", "dumps", "taken", "taking", "expiring")


class Format(msgspec.Struct, frozen=True):
    """The content of `FORMAT`: which kind of root, which version of it, its own id, when it was made (ISO 8601)."""

    format: str
    version: int
    id: str
    created: str


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
        if store.list(place):
            raise NotWritable(
                f"{place}: not empty, and not a {kind} (it has no {FORMAT})",
                hint="choose an empty directory, or one that a run before made",
            )
        made = Format(kind, VERSION, str(uuid.uuid4()), datetime.now(UTC).isoformat(timespec="seconds"))
        store.create_exclusive(join(place, FORMAT), _pretty(made))  # whoever was first has made it
    root = open_existing(place, kind)
    for name in DIRECTORIES:
        store.mkdirs(join(place, name))
    return root


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
        return ChangeRoot(place, msgspec.json.decode(data, type=Format))
    except msgspec.DecodeError as error:
        raise FormatError(f"{path}: {error}", hint="restore this small file from a backup of the root") from error


def _pretty(value: Format) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
