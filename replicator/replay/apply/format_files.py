"""Files of a load's tables, as their formats treat them: which wait for all data, which are translated, and which
directories appear as a whole. On executors.

A directory that must not be seen in part is copied under a hidden name and renamed when it is complete. Object stores
cannot rename: there such a directory appears file by file.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import BinaryIO
from urllib.parse import unquote

import msgspec

from cmroot.errors import UnknownPlace
from cmroot.store.checksum import checksum_at, checksum_stream
from cmroot.store.hdfs import SCHEMES
from cmroot.store.place import join, located, normal, relative
from cmroot.store.s3 import RENAMING
from cmroot.store.spelling import scheme
from replicator.core.formats import FORMATS
from replicator.core.formats.interface import TableFile, TableFormat
from replicator.core.formats.outside import outside_directory, outside_entry
from replicator.errors import FormatError
from replicator.replay.apply.copying import Placed, Placing, place_file, remove_file
from replicator.replay.apply.named_places import Homes, Naming, homes_of, moved, of_databases, recorded_bytes
from replicator.replay.apply.origins import Wanted, directory_of, origins
from replicator.replay.plan import EntryKey, FileRules

UNREADABLE = "in a file of deletes that cannot be read"  # in place of a location
KNOWN = 10_000  # directories whose translation is remembered
HIDDEN = ".acid-"  # begin of the name of a directory that is not complete
NOWHERE: EntryKey = (0, "", "", "", "")  # of a table in one file
_CAN_RENAME = {"file", *SCHEMES, *RENAMING}
_EVERYWHERE = [each for each in FORMATS.values() if each.everywhere]


@dataclass(frozen=True)
class TableDirectories:
    """The directories of tables and partitions whose format is special, among those of a task: by their paths on the
    target, ending with a slash."""

    formats: Mapping[str, TableFormat] = field(default_factory=dict)

    @classmethod
    def of(cls, homes: Mapping[str, EntryKey], rules: FileRules) -> TableDirectories:
        """homes: all directories of objects, with a key of their entries (see `fold_entries`)."""
        if not any(FORMATS[name].special for name in rules.formats):
            return cls()
        found = ((directory, rules.format_at(key)) for directory, key in homes.items())
        return cls({directory: format for directory, format in found if format.special})

    def home(self, target: str) -> str:
        """Returns the directory of the table or partition that a file belongs to; "" if its format is not special."""
        return directory_of(target, self.formats) if self.formats else ""

    def waits_for(self, target: str) -> tuple[str, TableFormat] | None:
        """Returns the directory and the format that publishes a file after all data; None if it is copied with the
        data. The directory is empty for a log that is recognised by its path alone."""
        if home := self.home(target):
            format = self.formats[home]
            if format.waits(target[len(home) :]):
                return home, format
        return next((("", format) for format in _EVERYWHERE if format.waits(target)), None)

    def whole(self, target: str) -> str:
        """Returns the directory that a file belongs to if that appears as a whole; "" for other files."""
        home = self.home(target)
        name = self.formats[home].whole(target[len(home) :]) if home else ""
        return f"{home}{name}" if name and scheme(target) in _CAN_RENAME else ""

    def in_hidden(self, files: Iterable[Wanted]) -> Iterator[Wanted]:
        """Yields files as they are copied: into hidden directories, where the whole does not exist yet."""
        is_new = lru_cache(maxsize=None)(lambda directory: not located(directory).exists())
        for file in files:
            directory = self.whole(file.target)
            if directory and is_new(directory):
                yield msgspec.structs.replace(file, target=hidden(directory) + file.target[len(directory) :])
            else:
                yield file

    def appear(self, files: Iterable[Wanted], remove: Callable[[str], object]) -> None:
        """Gives hidden directories their names, when all of their files are in them, and removes what earlier loads
        have left in others. files: all of a share's directories; remove: moves a file to `$cmroot`. May run twice;
        after a repeated load of which a part appeared, files are moved one by one."""
        wanted: dict[str, set[str]] = {}
        touched = set[str]()
        for file in files:
            touched.add(self.home(file.target))
            if directory := self.whole(file.target):
                wanted.setdefault(directory, set()).add(file.target[len(directory) + 1 :])
        for home in sorted(touched - {""}):
            for name in located(home).list() if scheme(home) in _CAN_RENAME else ():
                directory = f"{home}{name.removeprefix(HIDDEN)}"
                if name.startswith(HIDDEN):
                    _appear(directory, wanted.get(directory, set()), remove)


def hidden(directory: str) -> str:
    above, _, name = directory.rpartition("/")
    return f"{above}/{HIDDEN}{name}"


def _appear(directory: str, wanted: Collection[str], remove: Callable[[str], object]) -> None:
    staged, place = located(hidden(directory)), located(directory)
    for path in staged.find():
        if path not in wanted:  # of another load, which was killed
            (staged / path).remove_own()
    if wanted and not place.exists():
        staged.move(place)
        return
    for path in wanted and staged.find():
        remove(f"{directory}/{path}")
        (staged / path).move(place / path)
    staged.remove_tree()


def renamed_database(name: str, source: str, target: str) -> str:
    """Returns the target's name of a table's database, for the source's in any case; any other unchanged."""
    return target if name.lower() == source.lower() else name


# ---- translation -----------------------------------------------------------------------------------------------------


class Outside(FormatError):
    """A file of a table names a location outside of it."""


@dataclass(frozen=True)
class Mover:
    """The translation of paths. homes: locations of the table on the source and the target, its own first. former: for
    a metadata file that is not the table's: paths that no replica can have stay."""

    homes: Homes
    former: bool = False
    _directories: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __call__(self, path: str) -> str:
        """Raises Outside for a path that would not be in the target's location."""
        above, _, name = path.rpartition("/")
        if name in ("", ".", ".."):
            return self._moved(path)
        if above not in self._directories:
            if len(self._directories) == KNOWN:
                self._directories.clear()
            self._directories[above] = self._moved_directory(above)
        if directory := self._directories[above]:
            return f"{directory}/{name}"
        return self._moved(path)

    def _moved_directory(self, path: str) -> str:
        """Returns a directory as all of its files are moved; "" if that depends on their names."""
        now = moved(path, self.homes)
        if now == path or path.endswith("/") or any(relative(source, path) is not None for source, _ in self.homes):
            return ""
        below = any(relative(now, target) is not None for _, target in self.homes)
        return now if self.former or below else ""

    def _moved(self, path: str) -> str:
        now = moved(path, self.homes)
        with suppress(UnknownPlace):
            is_own = now != path or any(relative(path, source) is not None for source, _ in self.homes)
            if not is_own and self.homes and (found := outside_entry(path)) is not None:
                now = moved(path, ((found[0], join(self.homes[0][1], outside_directory(found[0]))),))
            if any(relative(now, target) is not None for _, target in self.homes):  # also by `..`
                return now
        if self.former:
            return now
        raise Outside(f"{path} is outside of its table's location", hint="see docs/formats.md, Iceberg")

    def in_order(self, bounds: Sequence[str]) -> bool:
        """Returns True if all paths within bounds keep their order on the target: one path, or those in the table."""
        if len(bounds) == 2 and bounds[0] == bounds[1] and outside_entry(bounds[0]) is not None:
            return True
        with suppress(UnknownPlace):
            return all(any(relative(path, source) for source, _ in self.homes) for path in bounds)
        return False

    @property
    def stays(self) -> bool:
        """True if the target has the source's paths, except of files outside of the table's location."""
        return all(normal(source) == normal(target) for source, target in self.homes)


@dataclass(frozen=True)
class UriMover:
    """The translation of URL-encoded places of files, of any table. homes: locations that the target has, each with its
    location there, the longest first."""

    homes: Homes

    def __call__(self, path: str) -> str:
        """Raises Outside for a place in none of them."""
        place = unquote(path)
        with suppress(UnknownPlace):
            home = next((each for each in self.homes if relative(place, each[0]) is not None), None)
            now = moved(path, self.homes, encoded=True)
            if home and (now != path or normal(home[0]) == normal(home[1])):
                return now
        raise Outside(f"{place} is in no location that the target has", hint="see docs/formats.md, Delta")

    def is_replicated(self, place: str) -> bool:
        """Returns True for a place of the target in one of them."""
        with suppress(UnknownPlace):
            return any(relative(place, target) is not None for _, target in self.homes)
        return False


@dataclass
class TableLoad:
    """The load of one table or partition, for its format: `Loading`. key: of its entries; note: gets the outcome of
    each file; listed: returns a file with the bytes that it has on the target, if it lists places."""

    directory: str
    key: EntryKey
    rules: FileRules
    how: Placing
    note: Callable[[Wanted, Placed], None] = lambda file, placed: None
    listed: Callable[[Wanted], Wanted] = lambda file: file

    @cached_property
    def pointer(self) -> str:
        found = self.rules.rules_of(*self.key[:4])
        return found[0].pointer if found else ""

    @cached_property
    def names_others(self) -> bool:
        found = self.rules.rules_of(*self.key[:4])
        return bool(found and found[0].names_others)

    @cached_property
    def _own(self) -> list[tuple[str | None, str | None]]:
        found = self.rules.rules_of(*self.key[:4])
        own = found[0].location if found else None
        pairs: list[tuple[str | None, str | None]] = [self.rules.places(*self.key) or (None, None)]
        if found and own:
            pairs.append((own, self.rules.placement.inside(found[0].db, own, own)))
        return pairs

    @cached_property
    def _homes(self) -> Homes:
        return homes_of(self._own)

    @property
    def stays(self) -> bool:
        return self.move.stays

    @cached_property
    def move(self) -> Mover:
        return Mover(self._homes)

    def move_own(self, text: str) -> str:
        return moved(text, self._homes)

    def in_order(self, bounds: Sequence[str]) -> bool:
        return self.move.in_order(bounds)

    def move_database(self, name: str) -> str:
        found = self.rules.rules_of(*self.key[:4])
        return renamed_database(name, found[0].db, found[0].name[0]) if found and found[0].name else name

    @cached_property
    def move_any(self) -> Mover:
        return Mover(self._homes, former=True)

    @cached_property
    def move_uri(self) -> UriMover:
        return UriMover(homes_of([*self._own, *of_databases(self.rules.placement)]))

    def recorded(self, file: TableFile) -> bytes | None:
        if file.checksum is None or file.size is None:
            return None
        return recorded_bytes(_wanted(file), file.checksum, file.size, self.how)

    def head(self, file: TableFile, read: Callable[[BinaryIO], bool]) -> bool:
        assert file.checksum is not None and file.size is not None
        for origin in origins(_wanted(file), file.checksum, file.size, self.how.roots, self.how.kept):
            with suppress(FileNotFoundError), origin.open_read() as stream:
                return read(stream)
        return False

    def place(self, file: TableFile, content: bytes | None = None) -> bool:
        wanted = self.listed(_wanted(file)) if content is None else with_content(_wanted(file), content)
        placed = place_file(wanted, self.how)
        self.note(wanted, placed)
        return placed.origin != "missing"

    def had(self, place: str) -> bool:
        return self.how.roots.alone or self.how.roots.has(*checksum_at(place))

    def have(self, file: TableFile, content: bytes) -> None:
        self.note(with_content(_wanted(file), content), Placed("present", len(content)))

    def missing(self, file: TableFile, reason: str) -> None:
        self.note(_wanted(file), Placed("missing", reason=reason))

    def remove(self, place: str) -> None:
        remove_file(place, self.how.roots, private=self.how.private)


def _wanted(file: TableFile) -> Wanted:
    if isinstance(file, Wanted):
        return file
    return Wanted(file.source, file.target, file.size, None, file.checksum, 0)


def with_content(file: Wanted, content: bytes) -> Wanted:
    checksum, size = checksum_stream(io.BytesIO(content))
    return msgspec.structs.replace(file, checksum=checksum, size=size, content=content)


def translated_data(file: Wanted, format: TableFormat, load: TableLoad) -> tuple[Wanted, Naming | None]:
    """Returns a data file as it must be on the target, and a report of one that cannot be translated. One whose bytes
    are not available is unchanged: placing it reports why."""
    try:
        content = format.translated(file, load)
    except FormatError:
        table, partition = load.rules.object_at(*load.key[:4]) or (load.key[1:3], load.key[3])
        return file, Naming(table, partition, file.target[len(load.directory) :], UNREADABLE)
    return (file if content is None else with_content(file, content)), None
