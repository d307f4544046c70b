"""The tree of an Iceberg table: what its files name, and why a table cannot be translated."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

from cmroot.errors import FormatError, UnknownPlace
from cmroot.store import iceberg
from cmroot.store.place import join, relative
from cmroot.store.spelling import refuse_credentials
from cmroot.text import unsafe
from replicator.core.formats.interface import NamedFiles
from replicator.core.formats.outside import WRITE_PATHS, outside_entry

_LEADING = ("list", "manifest")  # kinds of files that name others


def leads_on(path: str, top: str) -> bool:
    """Returns True for a list or manifest, and for the table's metadata file: earlier ones lead to no present file."""
    return path == top or (iceberg.in_tree(path) and not iceberg.is_metadata(path))


def may_be_top(path: str) -> bool:
    return iceberg.in_tree(path) and iceberg.is_metadata(path) and not unsafe(path)


def writes_outside(places: Iterable[str], location: str) -> str:
    outside = next((place for place in places if relative(place, location) is None), "")
    return f"its writers write to {outside}, which is outside of its location" if outside else ""


def examine(path: str, location: str, stream: BinaryIO, named: NamedFiles) -> str:
    """Examines a metadata file, list or manifest, to its end: a table that is not replicated is captured, too. Leaves
    `named` empty if the file, or one that it names and that leads on, cannot be read: then the tree is unknown."""
    problem, is_metadata = "", iceberg.is_metadata(path)
    try:
        data = stream.read()
        if is_metadata:
            places = iceberg.locations_of(path, data, WRITE_PATHS)
            odd = [place for place in places if outside_entry(place) is None]
            problem = writes_outside([*iceberg.locations_of(path, data, iceberg.OF_TREES), *odd], location)
            named += (("", own, False) for own in _earlier(path, data, location))
        is_followed = True
        for each in iceberg.references(path, data):
            count = len(named)
            try:
                why = _noted(each, location, named, of_metadata=is_metadata)
            except UnknownPlace as error:
                why = error.message
            is_followed = is_followed and (each.kind not in _LEADING or any(leads for *_, leads in named[count:]))
            problem = problem or why
    except (FormatError, UnknownPlace) as error:
        problem, is_followed = error.message, False
    if not is_followed:
        named.clear()
    return problem


def _earlier(path: str, data: bytes, location: str) -> Iterator[str]:
    for place in iceberg.earlier(path, data):
        if (own := relative(place, location)) and may_be_top(own):
            yield own


def _noted(each: iceberg.Reference, location: str, named: NamedFiles, *, of_metadata: bool) -> str:
    """Adds a file that is named. Returns why it cannot be translated. Raises UnknownPlace likewise."""
    problem = iceberg.problem_of(each)
    if (own := relative(each.path, location)) is None:
        refuse_credentials(each.path)
        if (entry := outside_entry(each.path)) is None or of_metadata or each.kind in _LEADING:
            more = "" if entry else ", by a path that no replica can have"
            return f"its file {each.path} is outside of its location{more}"
        named.append((*entry, False))
    elif not own or unsafe(own):
        return f"its file {each.path} has a path that no replica can have"
    else:
        leads = each.kind in _LEADING
        named.append(("", own, leads and iceberg.in_tree(own)))
        if iceberg.in_tree(own) != leads and not problem:  # only those there are translated so
            return f"its file {each.path} is not where its kind is expected"
    return f"{each.path}: {problem}" if problem else ""


def walk(pointer: str, read: Callable[[str], bytes | None]) -> Iterator[iceberg.Reference]:
    """Yields every file that a metadata file leads to, each list and manifest once. Raises FileNotFoundError."""
    waiting, seen = [pointer], {pointer}
    while waiting:
        path = waiting.pop()
        data = read(path)
        if data is None:
            raise FileNotFoundError(f"{path} does not exist")
        for each in iceberg.references(path, data):
            yield each
            if each.kind in ("list", "manifest") and each.path not in seen:
                seen.add(each.path)
                waiting.append(each.path)


def paths_below(tops: Sequence[str], location: str, read: Callable[[str], bytes | None]) -> set[str]:
    """Returns the files of a table in its location, as captures record them. Reads nothing outside of it. Raises
    FileNotFoundError for a missing file that leads on, FormatError for a tree that is not followed."""
    found, waiting = set(tops), [tops[0]]
    while waiting:
        path, named = waiting.pop(), list[tuple[str, str, bool]]()
        if (data := read(join(location, path))) is None:
            raise FileNotFoundError(f"{path} does not exist")
        problem = examine(path, location, io.BytesIO(data), named)
        if problem and not named:
            raise FormatError(problem)
        new = {own: leads for store, own, leads in named if not store and own not in found}
        found.update(new)
        waiting += [own for own, leads in new.items() if leads]
    return found
