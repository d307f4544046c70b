"""Versions of a dataset in files: the units of removal, and their ages. Reads only.

Each finder lists the dataset once. A name that matches its pattern without a valid time is reported with the reason, as
it is retained forever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cmroot.store.local import Child
from cmroot.store.place import Place, folded, join, located, name_of, split_authority
from cmroot.text import is_text, shown, unsafe
from replicator.core.text import Period
from replicator.errors import ConfigError, Error
from replicator.lifecycle.retention.config_store import Settings
from replicator.lifecycle.retention.job_configuration import (
    DEFAULT_ZONE,
    VERSIONS,
    DatePattern,
    Unreadable,
    date_pattern,
    known,
    parse_lookback,
)

# ---- globs -----------------------------------------------------------------------------------------------------------
# Directory listings, and Hadoop's globs over them, level by level. Reads only.
#
# Symbolic links are reported and never followed. An unreadable directory is an error, never an empty one.


@dataclass
class Found:
    """Names excluded from a listing: symbolic links that matched a glob, and `unnamed`: names that no plan can refer
    to, as they are not UTF-8 (bytes are shown as `\\xNN`) or lead elsewhere."""

    links: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)


def children(place: str, found: Found | None = None) -> list[Child]:
    """Returns the names directly below, sorted. Raises FileNotFoundError if the directory does not exist, NotWritable
    if it may not be read. Names that are not UTF-8 are added to `found` and omitted; without it, they are returned."""
    listed = Place(place).children()
    if found is None:
        return listed
    found.unnamed += [shown(each.path) for each in listed if not _is_nameable(each.path)]
    return [each for each in listed if _is_nameable(each.path)]


def files_below(place: str, found: Found | None = None) -> Iterator[Child]:
    """Yields every file and every empty directory below a path, with one directory's listing in memory at a time.
    `found`: as for `children`."""
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
    """Yields everything that a Hadoop glob matches (`*`, `?`, `[a-c]`, `[^a]`, `{a,b}`, `\\` before a sign), sorted by
    level. Links that match, and names that are not UTF-8, are added to `found` and omitted."""
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
    """Returns True if a plan can refer to the path: its name is text and does not lead elsewhere (`..` in a bucket)."""
    return is_text(path) and not unsafe(name_of(path))


def glob_regex(pattern: str) -> str:
    """Returns a glob for one level, or for a complete path, as a regular expression: `*` does not match a slash."""
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
    """Expands braces that contain a slash into several patterns."""
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


# ---- dataset versions ------------------------------------------------------------------------------------------------


TIME, MARK, NONE = "time", "mark", "none"
"""The sort keys of versions: a time, a text, or nothing."""

SHOWN = 20  # ignored names in a report; all are counted


@dataclass(frozen=True, slots=True)
class Version:
    """A unit that is removed or retained as a whole. `path`: a directory or file; `name`: for reports. `partition`: of
    a Hive table. `mtime`: if set, a different modification time means that the version has changed since."""

    path: str
    name: str
    time: datetime | None = None
    mark: str = ""
    partition: str = ""
    mtime: float | None = None


@dataclass
class Listed:
    """All versions of a dataset by one finder. `by`: their sort key. `ignored`: number of names without a time, `why`:
    the first reasons. `doubts`: warnings about settings. `unnamed`: retained paths, as names are not UTF-8."""

    by: str
    versions: list[Version] = field(default_factory=list)
    ignored: int = 0
    why: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)

    def ignore(self, why: str) -> None:
        self.ignored += 1
        if len(self.why) < SHOWN:
            self.why.append(why)

    def newest_first(self) -> list[Version]:
        if self.by == TIME:
            return sorted(self.versions, key=lambda each: (each.time or _NEVER, each.name), reverse=True)
        return sorted(self.versions, key=lambda each: (each.mark, each.name), reverse=True)


_ZONES = ("version.datetime.timezone", "gobblin.retention.datetime.pattern.timezone")
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Pair:
    """The settings of one version finder with its policy. `own`: keys as `version.finder.class`; `whole`: the
    dataset's, for older key names; None in an element of `dataset.partitions`."""

    own: Settings
    whole: Settings | None = None

    def text(self, key: str, *older: str) -> str | None:
        found = self.own.text(key)
        return self.whole.text(*older) if found is None and older and self.whole else found

    def required(self, key: str, *older: str) -> str:
        found = self.text(key, *older)
        if found is None:
            raise self.own.missing(key)
        return found

    def class_of(self, key: str, table: dict[str, str], what: str) -> str | None:
        text = self.own.text(key)
        return known(text, table, what, self.own.origin(key)) if text is not None else None

    def lookback(self, key: str, *older: str) -> Period:
        text = self.required(key, *older)
        try:
            return parse_lookback(text)
        except ValueError as error:
            raise self.own.wrong(key, self.own.find(key), f"is not a valid lookback: {error}") from error


Finder = Callable[[str, datetime], Listed]
"""(the dataset's directory, now) -> its versions."""


def path_finder(pair: Pair) -> Finder:
    """Returns the configured finder. Raises ConfigError for invalid settings, before anything is listed."""
    kind = pair.class_of("version.finder.class", VERSIONS, "version finder")
    match kind:
        case "modification":
            pattern = _glob_of(pair, "gobblin.retention.version.finder.pattern") or "*"
            return lambda dataset, now: _modified(dataset, pattern)
        case "datetime":
            dates = dates_of(pair)
            where = _glob_of(pair) or re.sub(r"[^/]+", "*", dates.pattern)
            said = doubts(dates, pair.text(*_ZONES) is not None)
            return lambda dataset, now: _dated(dataset, where, dates, said)
        case "lookback":
            dates, period = dates_of(pair), pair.lookback("version.lookback.period")
            prefix = pair.text("version.path.prefix") or ""
            if period.months:
                raise pair.own.wrong(
                    "version.lookback.period", pair.own.find("version.lookback.period"), "accepts only days and hours"
                )
            return lambda dataset, now: _generated(dataset, prefix, dates, period, now)
        case "root_modification":
            return lambda dataset, now: _entries(dataset, [located(dataset).child()])
        case "files":
            return lambda dataset, now: _files(dataset)
        case "single":
            return lambda dataset, now: Listed(NONE, [Version(dataset, dataset)] if located(dataset).child() else [])
        case "unix" | "watermark":
            regex = pair.text("version.watermark.regex", "gobblin.retention.watermark.regex")
            try:
                wanted = re.compile(regex if regex else "(.*)", re.DOTALL)
            except re.error as error:
                raise pair.own.wrong(
                    "version.watermark.regex", None, f"is not a valid regular expression: {error}"
                ) from error
            return lambda dataset, now: _marked(dataset, wanted, kind)
        case None:
            raise pair.own.missing("version.finder.class")
        case _:
            raise pair.own.wrong(
                "version.finder.class",
                pair.own.find("version.finder.class"),
                "finds partitions of Hive tables, not files",
            )


def _glob_of(pair: Pair, *older: str) -> str | None:
    pattern = pair.text("version.globPattern", *older)
    try:
        glob_regex(pattern or "")
    except ValueError as error:
        found = pair.own.find("version.globPattern")
        raise pair.own.wrong("version.globPattern", found, f"is not a valid glob: {error}") from error
    return pattern


def dates_of(pair: Pair) -> DatePattern:
    """Returns the pattern and zone of names. Raises ConfigError."""
    pattern = pair.required("version.datetime.pattern", "gobblin.retention.datetime.pattern")
    zone = pair.text(*_ZONES)
    return checked_pattern(pair, "version.datetime.pattern", pattern, zone)


def checked_pattern(pair: Pair, key: str, pattern: str, zone: str | None) -> DatePattern:
    try:
        return date_pattern(pattern, zone or DEFAULT_ZONE)
    except ValueError as error:
        raise pair.own.wrong(key, pair.own.find(key), f"cannot be used: {error}") from error


def doubts(dates: DatePattern, has_zone: bool) -> list[str]:
    """Returns warnings about a pattern, for reports."""
    found = [dates.warning] if dates.warning else []
    if not has_zone:
        found.append(f"no time zone is set, so names are read in {dates.zone_name}")
    return found


def _modified(dataset: str, pattern: str) -> Listed:
    found = Found()
    listed = _entries(dataset, _hits(dataset, pattern, found))
    _tell(listed, found)
    return listed


def _files(dataset: str) -> Listed:
    found = Found()
    listed = _entries(dataset, files_below(dataset, found))
    _tell(listed, found)
    return listed


def _dated(dataset: str, pattern: str, dates: DatePattern, said: list[str]) -> Listed:
    listed, found = Listed(TIME, doubts=list(said)), Found()
    for each in _hits(dataset, pattern, found):
        name = _below(dataset, each.path)
        try:
            listed.versions.append(Version(each.path, name, dates.read_end(name)))
        except Unreadable as error:
            listed.ignore(str(error))
    _tell(listed, found)
    return listed


def _generated(dataset: str, prefix: str, dates: DatePattern, period: Period, now: datetime) -> Listed:
    """Lists existing versions only: checks each distinct name once."""
    listed = Listed(TIME)
    hours = (period.days * 86400 + period.seconds) // 3600
    names = {
        dates.write(moment): None
        for moment in (now - timedelta(hours=hours) + timedelta(hours=n) for n in range(hours + 1))
    }
    for name in names:
        path = join(dataset, prefix, name)
        one = located(path).child()
        if one and not one.is_link:
            try:
                listed.versions.append(Version(path, _below(dataset, path), dates.read(name)))
            except Unreadable as error:
                listed.ignore(str(error))
    return listed


def _entries(dataset: str, entries: Iterable[Child | None]) -> Listed:
    listed = Listed(TIME)
    for each in entries:
        if each is None:
            continue
        if each.mtime is None:
            raise Error(
                f"{each.path}: the store has no modification times of directories",
                hint="use DateTimeDatasetVersionFinder or FileLevelTimestampVersionFinder there",
            )
        moment = datetime.fromtimestamp(each.mtime, UTC)
        listed.versions.append(Version(each.path, _below(dataset, each.path), moment, mtime=each.mtime))
    return listed


def _marked(dataset: str, wanted: re.Pattern[str], kind: str) -> Listed:
    listed, found = Listed(TIME if kind == "unix" else MARK), Found()
    for each in children(dataset, found):
        name = name_of(each.path)
        match = wanted.search(name)
        mark = match[1] if match and wanted.groups else None
        if each.is_link:
            listed.ignore(f"{name!r} is a symbolic link")
        elif mark is None:
            listed.ignore(f"{name!r} does not match, or the expression has no group: {wanted.pattern}")
        elif kind == "watermark":
            listed.versions.append(Version(each.path, name, mark=mark))
        else:
            try:
                listed.versions.append(Version(each.path, name, datetime.fromtimestamp(int(mark) / 1000, UTC)))
            except (ValueError, OverflowError, OSError):
                listed.ignore(f"{mark!r} of {name!r} is not a time in milliseconds")
    _tell(listed, found)
    return listed


def _hits(dataset: str, pattern: str, found: Found) -> Iterator[Child]:
    """Yields the matches of a pattern below the dataset, whose own name may contain pattern characters."""
    if not pattern.strip("/"):
        raise ConfigError("version.globPattern is empty", hint="write * for everything in the dataset")
    literal = re.sub(r"([*?\[\]{}\\])", r"\\\1", dataset)
    return glob(join(literal, pattern), found)


def _below(dataset: str, path: str) -> str:
    return path[len(dataset.rstrip("/")) + 1 :] or path


def _tell(listed: Listed, found: Found) -> None:
    listed.unnamed += found.unnamed
    for link in found.links:
        listed.ignore(f"{link} is a symbolic link")
