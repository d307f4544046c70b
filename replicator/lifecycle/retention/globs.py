"""What lies in a directory, and Hadoop's globs over it, level by level. Reads only.

Symbolic links are reported and never followed. A directory that cannot be read is an error, never an empty one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from cmroot.store.local import Child
from cmroot.store.place import Place, folded, name_of, split_authority
from cmroot.text import is_text, shown, unsafe


@dataclass
class Found:
    """What a listing went past: symbolic links that matched a glob, and `unnamed`: what no plan can name: a name that
    is not UTF-8 (its bytes are shown as `\\xNN`), or leads elsewhere."""

    links: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)


def children(place: str, found: Found | None = None) -> list[Child]:
    """Names directly below, sorted; FileNotFoundError when there is no such directory. Raises NotWritable for one that
    may not be read. Names that are not UTF-8 are noted in `found` and left out; without it, they are reported as
    others."""
    listed = Place(place).children()
    if found is None:
        return listed
    found.unnamed += [shown(each.path) for each in listed if not _is_nameable(each.path)]
    return [each for each in listed if _is_nameable(each.path)]


def files_below(place: str, found: Found | None = None) -> Iterator[Child]:
    """Every file and every empty directory below a place, a directory's listing in memory at a time. `found`: as for
    `children`."""
    waiting = [place]
    while waiting:
        here = waiting.pop()
        listed = children(here)
        if not listed and here != place:
            empty = Place(here).child()
            if empty:
                yield empty
        for each in listed:
            if found is not None and not _is_nameable(each.path):
                found.unnamed.append(shown(each.path))
            elif each.is_directory:
                waiting.append(each.path)
            elif not each.is_link:
                yield each


def glob(pattern: str, found: Found | None = None) -> Iterator[Child]:
    """Everything that a pattern of Hadoop's matches (`*`, `?`, `[a-c]`, `[^a]`, `{a,b}`, `\\` before a sign), sorted by
    level. Links that match, and names that are not UTF-8, are noted in `found` and left out."""
    head, path = split_authority(folded(pattern))
    for alternative in _alternatives(path):
        yield from _match(head, [name for name in alternative.split("/") if name], found or Found())


def _match(head: str, names: list[str], found: Found) -> Iterator[Child]:
    literal = 0
    while literal < len(names) and not _is_wild(names[literal]):
        literal += 1
    start = f"{head}/" + "/".join(_plain(name) for name in names[:literal])
    if literal == len(names):
        one = Place(start).child()
        if one and not one.is_link:
            yield one
        return
    yield from _descend(start, names[literal:], found)


def _descend(place: str, names: list[str], found: Found) -> Iterator[Child]:
    name, *rest = names
    if not _is_wild(name):
        one = (Place(place) / _plain(name)).child()
        matching = [one] if one else []
    else:
        matches = re.compile(glob_regex(name)).fullmatch
        try:
            matching = [each for each in children(place) if matches(name_of(each.path))]
        except (FileNotFoundError, NotADirectoryError):
            return
    for each in matching:
        if not _is_nameable(each.path):
            if each.is_directory or not rest:
                found.unnamed.append(shown(each.path))
        elif each.is_link:
            found.links.append(each.path)
        elif not rest:
            yield each
        elif each.is_directory:
            yield from _descend(each.path, rest, found)


def _is_nameable(path: str) -> bool:
    """Whether a plan can name it: its name is text, and of a bucket none that leads elsewhere (`..`)."""
    return is_text(path) and not unsafe(name_of(path))


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
