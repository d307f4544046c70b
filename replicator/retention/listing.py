"""What lies in a directory, and Hadoop's globs over it, level by level. Reads only.

Symbolic links are reported and never followed. A directory that cannot be read is an error, never an empty one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from stat import S_ISDIR, S_ISLNK
from typing import Any

from cmroot.store.naming import naming
from cmroot.store.place import is_local, join, local_path, name_of, normal, split_authority, store_for
from cmroot.store.spelling import STAGING
from cmroot.text import is_text, shown


@dataclass(frozen=True, slots=True)
class Entry:
    """One name. mtime: seconds since 1970, None where the store keeps none (directories of object stores)."""

    path: str
    is_directory: bool
    mtime: float | None
    size: int = 0
    is_link: bool = False


@dataclass
class Found:
    """What a listing went past: symbolic links that matched a glob, and `unnamed`: what no plan can name, as its name
    is not UTF-8; these bytes are shown as `\\xNN`."""

    links: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)


def children(place: str, found: Found | None = None) -> list[Entry]:
    """Names directly below, sorted; FileNotFoundError when there is no such directory. Raises NotWritable for one that
    may not be read. Names that are not UTF-8 are noted in `found` and left out; without it, they are reported as
    others."""
    listed = _local_children(local_path(place)) if is_local(place) else _store_children(place)
    if found is None:
        return listed
    found.unnamed += [shown(each.path) for each in listed if not is_text(each.path)]
    return [each for each in listed if is_text(each.path)]


def entry(place: str) -> Entry | None:
    """One name by itself; None when nothing is there."""
    if is_local(place):
        path = local_path(place)
        try:
            with naming(path):
                return _entry(path, os.lstat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
    filesystem = store_for(place).filesystem  # type: ignore[attr-defined]
    try:
        return _store_entry(place, filesystem.info(_key(place)))
    except FileNotFoundError:
        return None


def files_below(place: str, found: Found | None = None) -> Iterator[Entry]:
    """Every file and every empty directory below a place, a directory's listing in memory at a time. `found`: as for
    `children`."""
    waiting = [place]
    while waiting:
        here = waiting.pop()
        listed = children(here)
        if not listed and here != place:
            empty = entry(here)
            if empty:
                yield empty
        for each in listed:
            if found is not None and not is_text(each.path):
                found.unnamed.append(shown(each.path))
            elif each.is_directory:
                waiting.append(each.path)
            elif not each.is_link:
                yield each


def glob(pattern: str, found: Found | None = None) -> Iterator[Entry]:
    """Everything that a pattern of Hadoop's matches (`*`, `?`, `[a-c]`, `[^a]`, `{a,b}`, `\\` before a sign), sorted by
    level. Links that match, and names that are not UTF-8, are noted in `found` and left out."""
    head, path = split_authority(normal(pattern))
    for alternative in _alternatives(path):
        yield from _match(head, [name for name in alternative.split("/") if name], found or Found())


def _match(head: str, names: list[str], found: Found) -> Iterator[Entry]:
    literal = 0
    while literal < len(names) and not _is_wild(names[literal]):
        literal += 1
    start = f"{head}/" + "/".join(_plain(name) for name in names[:literal])
    if literal == len(names):
        one = entry(start)
        if one and not one.is_link:
            yield one
        return
    yield from _descend(start, names[literal:], found)


def _descend(place: str, names: list[str], found: Found) -> Iterator[Entry]:
    name, *rest = names
    if not _is_wild(name):
        one = entry(join(place, _plain(name)))
        matching = [one] if one else []
    else:
        matches = re.compile(glob_regex(name)).fullmatch
        try:
            matching = [each for each in children(place) if matches(name_of(each.path))]
        except (FileNotFoundError, NotADirectoryError):
            return
    for each in matching:
        if not is_text(each.path):
            if each.is_directory or not rest:
                found.unnamed.append(shown(each.path))
        elif each.is_link:
            found.links.append(each.path)
        elif not rest:
            yield each
        elif each.is_directory:
            yield from _descend(each.path, rest, found)


def glob_regex(pattern: str) -> str:
    """One level, or a whole path, of a glob as a regular expression: `*` does not match a slash."""
    out, at, depth = "", 0, 0
    while at < len(pattern):
        sign = pattern[at]
        at += 1
        if sign == "\\" and at < len(pattern):
            out += re.escape(pattern[at])
            at += 1
        elif sign == "*":
            out += "[^/]*"
        elif sign == "?":
            out += "[^/]"
        elif sign == "[":
            end = pattern.find("]", at + 1)
            if end < 0:
                raise ValueError(f"{pattern!r}: a [ is not closed")
            inside = pattern[at:end].replace("\\", "\\\\").replace("[", "\\[")
            out += "[" + ("^" + inside[1:] if inside[0] in "!^" else inside) + "]"
            at = end + 1
        elif sign == "{":
            out, depth = out + "(?:", depth + 1
        elif sign == "}" and depth:
            out, depth = out + ")", depth - 1
        elif sign == "," and depth:
            out += "|"
        else:
            out += re.escape(sign)
    if depth:
        raise ValueError(f"{pattern!r}: a {{ is not closed")
    try:
        re.compile(out)
    except re.error as error:
        raise ValueError(f"{pattern!r}: {error}") from error
    return out


def _alternatives(path: str) -> list[str]:
    """Braces that hold a slash are several patterns."""
    match = re.search(r"(?<!\\)\{([^{}]*/[^{}]*)\}", path)
    if match is None:
        return [path]
    return [
        each
        for choice in match[1].split(",")
        for each in _alternatives(path[: match.start()] + choice + path[match.end() :])
    ]


def _is_wild(name: str) -> bool:
    return re.search(r"(?<!\\)[*?\[{]", name) is not None


def _plain(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name)


def _local_children(path: str) -> list[Entry]:
    found = []
    with naming(path), os.scandir(path) as entries:
        for each in entries:
            if each.name.startswith(STAGING):
                continue
            try:
                found.append(_entry(join(path, each.name), each.stat(follow_symlinks=False), each.is_symlink()))
            except FileNotFoundError:
                continue  # gone since the directory was opened
    return sorted(found, key=lambda each: each.path)


def _entry(path: str, status: os.stat_result, is_link: bool | None = None) -> Entry:
    link = S_ISLNK(status.st_mode) if is_link is None else is_link
    return Entry(path, S_ISDIR(status.st_mode), status.st_mtime, status.st_size, link)


def _store_children(place: str) -> list[Entry]:
    filesystem = store_for(place).filesystem  # type: ignore[attr-defined]
    with naming(place):
        rows = filesystem.ls(_key(place), detail=True)
    own = _key(place).rstrip("/")
    found = []
    for row in rows:
        name = row["name"].rstrip("/")
        if name != own:  # a marker of the directory itself
            found.append(_store_entry(join(place, name_of(name)), row))
    return sorted(found, key=lambda each: each.path)


def _key(place: str) -> str:
    store: Any = store_for(place)
    return str(store.key(place))


def _store_entry(place: str, row: dict[str, Any]) -> Entry:
    directory = row["type"] == "directory"
    time = row.get("LastModified") or row.get("mtime") or row.get("modificationTime") or row.get("last_modified")
    return Entry(place, directory, _seconds(time), int(row.get("size") or 0))


def _seconds(time: object) -> float | None:
    match time:
        case datetime():
            return time.timestamp()
        case int() | float():
            return time / 1000 if time > 1e11 else float(time)
        case _:
            return None
