"""Access control: mode, owner and group of the retained versions. Decides and acts, one path at a time.

Only the version's own path is changed, not its content, and never the target of a symbolic link.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

import msgspec

from cmroot.errors import UNREADABLE, FormatError
from cmroot.keep.journal import files_at
from cmroot.store.listing import FileState
from cmroot.store.place import Place, is_local, local_path, normal
from cmroot.store.spelling import naming
from cmroot.text import shown
from replicator.core.engine import LocalEngine
from replicator.errors import ConfigError, Error
from replicator.lifecycle.retention.dataset_versions import Listed, Pair, Version
from replicator.lifecycle.retention.policies import Policy, selection_policy


class Access(msgspec.Struct, frozen=True):
    """The access settings of a path; None: unchanged. mode: as `parse_mode` reads it."""

    mode: str | None = None
    owner: str | None = None
    group: str | None = None

    def __str__(self) -> str:
        said = [f"{key} {value}" for key, value in msgspec.structs.asdict(self).items() if value is not None]
        return ", ".join(said)


@dataclass(frozen=True)
class AccessPolicy:
    name: str
    policy: Policy
    access: Access


def access_policies(pair: Pair) -> tuple[list[AccessPolicy], list[str]]:
    """Returns the policies of `accessControl.policies`, in their order, and warnings about them. Raises ConfigError."""
    control = pair.own.below("accessControl")
    found: list[AccessPolicy] = []
    warnings: list[str] = []
    for name in (control.texts("policies") or []) if control else []:
        assert control
        own = control.below(name)
        if own is None:
            raise control.missing(name)
        if own.find("owner") is None and own.find("user") is not None:
            warnings.append(f"{own.origin('user')}: accessControl.{name}.user is read as owner")
        access = Access(own.text("mode"), own.text("owner", "user"), own.text("group"))
        if access.mode is not None:
            try:
                parse_mode(access.mode, 0)
            except ValueError as error:
                raise own.wrong("mode", own.find("mode"), str(error)) from error
        if access == Access():
            raise ConfigError(
                f"{own.name}: sets neither mode nor owner nor group", hint="set one, or remove the policy"
            )
        found.append(AccessPolicy(name, selection_policy(Pair(own)), access))
    return found, warnings


def wanted_access(
    policies: Sequence[AccessPolicy], listed: Listed, versions: Sequence[Version], now: datetime
) -> dict[int, tuple[Access, str]]:
    """Returns the number of a version (newest first) -> its access, and why. The last of several policies counts."""
    found: dict[int, tuple[Access, str]] = {}
    for each in policies:
        for number, why in each.policy.select(versions, listed.by, now).items():
            before = found[number][0] if number in found else Access()
            merged = Access(
                each.access.mode or before.mode, each.access.owner or before.owner, each.access.group or before.group
            )
            found[number] = (merged, f"accessControl.{each.name}: {why}")
    return found


def parse_mode(text: str, now: int) -> int:
    """Parses `755`, `0755`, `u=rwx,g-w`: returns the new mode of a path whose mode is `now`. Raises ValueError."""
    if re.fullmatch(r"[01]?[0-7]{3}|0[0-7]{3,4}", text):
        return int(text, 8)
    mode = now
    for clause in text.split(","):
        match = re.fullmatch(r"([ugoa]*)([-+=])([rwxX]*)", clause)
        if match is None:
            raise ValueError(f"{text!r} is not a valid mode: write 755 or u=rwx,g=rx")
        who = "ugo" if not match[1] or "a" in match[1] else match[1]
        bits = sum({"r": 4, "w": 2, "x": 1, "X": 1}[sign] for sign in set(match[3].replace("X", "x")))
        for each in who:
            shift = {"u": 6, "g": 3, "o": 0}[each]
            if match[2] == "=":
                mode &= ~(7 << shift)
            mode = mode & ~(bits << shift) if match[2] == "-" else mode | (bits << shift)
    return mode


def is_set(path: str, access: Access) -> bool:
    """Returns True if a path has the access already. Raises FileNotFoundError if it does not exist."""
    status = os.lstat(_local(path))
    mode = status.st_mode & 0o7777
    owner, group = _ids(access)
    return (
        (access.mode is None or parse_mode(access.mode, mode) == mode)
        and (owner in (-1, status.st_uid))
        and (group in (-1, status.st_gid))
    )


def set_access(path: str, access: Access) -> None:
    """Sets owner and group, then the mode, as the former may clear bits of the latter. May run twice. Raises Error."""
    place = _local(path)
    owner, group = _ids(access)
    with naming(place):
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if (owner, group) != (-1, -1):
                os.fchown(descriptor, owner, group)
            if access.mode is not None:
                os.fchmod(descriptor, parse_mode(access.mode, os.fstat(descriptor).st_mode & 0o7777))
        finally:
            os.close(descriptor)


def _ids(access: Access) -> tuple[int, int]:
    hint = "it must exist on this machine"
    try:
        owner = -1 if access.owner is None else pwd.getpwnam(access.owner).pw_uid
    except KeyError:
        raise Error(f"user {access.owner!r} does not exist", hint=hint) from None
    try:
        return owner, -1 if access.group is None else grp.getgrnam(access.group).gr_gid
    except KeyError:
        raise Error(f"group {access.group!r} does not exist", hint=hint) from None


def _local(path: str) -> str:
    if not is_local(path):
        raise Error(f"{path}: the store has no owners and modes", hint="accessControl works on local and mounted files")
    return local_path(path)


# ---- begun -----------------------------------------------------------------------------------------------------------
# Interrupted removals: directories dated by their modification time, of which a killed run removed some files. Acts.
#
# Where a directory cannot be removed by one rename (HDFS, another device), each removed file updates its modification
# time, so the rest would look new. Before the first file is removed, `<cmroot>/retention/removing-<id>` records the
# contents of each directory; as long as the current contents are a subset of them, the directory keeps its recorded
# time.


VERSION = 1
_NOTE = "removing-"
AT_ONCE = 8  # directories listed at once


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A directory whose files are about to be removed. mtime: seconds since 1970, as in the plan; files: all below."""

    path: str
    mtime: float
    files: list[FileState]
    version: int = VERSION


@dataclass(frozen=True)
class Beginnings:
    """The notes of a root. place: `<cmroot>/retention`. Requires the lease of retention, except for `dates`."""

    place: Place

    def note(self, begun: Iterator[Begun]) -> Place | None:
        """Writes a note durably, before the first file is removed; call `remove_own` on it when all are removed.
        Returns None if there is nothing to note. Keeps one directory at a time in memory."""
        first = next(begun, None)
        if first is None:
            return None
        note = self.place / f"{_NOTE}{uuid.uuid4().hex}"
        with note.open_write() as file:
            for each in chain([first], begun):
                file.write(msgspec.json.encode(each) + b"\n")
        return note

    def dates(self) -> dict[str, float]:
        """Returns (path, as `normal` writes it) -> the recorded time. Raises FormatError for a damaged note."""
        found: dict[str, float] = {}
        for note in self._notes():
            for path, mtime in self._rests(note):
                found[path] = min(mtime, found.get(path, mtime))
        return found

    def settle(self) -> None:
        """Removes the notes that no directory requires any more. May run twice."""
        for note in self._notes():
            if next(self._rests(note), None) is None:
                note.remove_own()

    def _notes(self) -> Iterator[Place]:
        return (self.place / name for name in self.place.list() if name.startswith(_NOTE))

    def _rests(self, note: Place) -> Iterator[tuple[str, float]]:
        """Yields directories of which a part exists, with no new or changed files."""
        with note.open_read() as file:
            for found in LocalEngine(AT_ONCE).run(_rest, (_decode(line, str(note)) for line in file)):
                if found is not None:
                    yield normal(found.path), found.mtime


def begun(path: str, mtime: float) -> Begun:
    """Returns the current contents. Raises OSError or Error for a directory that cannot be listed."""
    return Begun(path=path, mtime=mtime, files=_states(path))


def _states(path: str) -> list[FileState]:
    return [msgspec.structs.replace(state, path_relative=shown(name)) for name, state in files_at(path)]


def _rest(then: Begun) -> Begun | None:
    with suppress(FileNotFoundError):
        there = Place(then.path).child()
        if there is not None and there.is_directory and set(_states(then.path)) < set(then.files):
            return then
    return None


def _decode(line: bytes, place: str) -> Begun:
    try:
        found = msgspec.json.decode(line, type=Begun)
    except UNREADABLE as error:
        raise FormatError(
            f"{place}: {error}", hint="remove the file: its leftover directories are then dated by their own times"
        ) from error
    if found.version != VERSION:
        raise FormatError(f"{place}: version {found.version}, this release knows {VERSION}", hint="use a newer release")
    return found
