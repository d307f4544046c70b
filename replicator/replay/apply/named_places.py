"""Files that contain locations: logs of streaming sinks, manifests, markers of committers. Runs on executors, too.

Spark reads a directory with a `_spark_metadata` only through that log, which names each file by its whole path. A copy
of it would lead readers of the replica to the source's files. So a load translates the paths in such files as it does
those in metadata, and names every other small file that contains a location of the source. Delta logs have a
translation of their own (`cmroot.store.delta`). Hidden files (`.x`) are never copied.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from urllib.parse import unquote, unquote_to_bytes

import msgspec

from cmroot.errors import Error, FormatError
from cmroot.store.checksum import checksum_stream
from cmroot.store.listing import FileState, list_tree, may_name_places
from cmroot.store.place import folded, is_local, join, located, normal, parent, scheme, split_authority, tidied
from replicator.core.formats import FORMATS, PLAIN, format_of, named_metadata, of_metadata
from replicator.core.formats.interface import TableFormat
from replicator.core.model import Table
from replicator.core.named_files import NAMED
from replicator.core.not_replicated import NAMES_SOURCE, NotReplicated
from replicator.errors import ObjectNotFound
from replicator.metastore.client import MetastoreReader
from replicator.replay.apply.copying import Placing, at_most
from replicator.replay.apply.origins import Wanted, directory_of, origins
from replicator.replay.placement import Placement, Translate, is_published
from replicator.replay.plan import EntryKey, FileRules, Plan
from replicator.replay.replica import has_replicated_data
from replicator.replay.server_rules import not_understood, rename_databases

Homes = tuple[tuple[str, str], ...]
"""Locations of the source, each with its location on the target: the longest first, so that the first match counts."""

SMALL = 1 << 20  # bytes up to which any file with such a name is read
LARGEST = 256 << 20  # bytes up to which a known file is translated: Spark reads a whole stream log into its driver
TOO_LARGE = f"a file of more than {LARGEST >> 20} MiB"  # in place of a location
SHOWN = 5  # files of one object that a report names

_STREAM_LOG = re.compile(r"(?:.*/)?_spark_metadata/\d+(?:\.compact)?")
_MANIFEST = re.compile(r"(?:.*/)?_symlink_format_manifest/(?:.*/)?manifest")  # one path a line
_COMMITTED = re.compile(r"(?:.*/)?_SUCCESS")  # JSON of S3A's committers
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_PLACE = re.compile(r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):)?(?://(?P<authority>[^/]*))?(?P<path>/.*)", re.DOTALL)
_QUOTED = re.compile(r'[\x00-\x20%"<>\\^`{|}#?\[\]\x7f]')  # by `java.net.URI`


def homes_of(pairs: Iterable[tuple[str | None, str | None]], *, roots: bool = False) -> Homes:
    """Returns homes in their order; of several pairs with one source location the first counts. Leaves out pairs
    without a location, and, unless `roots`, a filesystem's root, which every path would name."""
    found: dict[str, str] = {}
    for source, target in pairs:
        if source and target and (roots or split_authority(folded(source))[1].strip("/")):
            found.setdefault(folded(source), tidied(target))
    return tuple(sorted(found.items(), key=lambda pair: (-len(pair[0]), pair)))


def may_name(path: str, format: TableFormat) -> bool:
    """Returns True for a file that may name places, by its path in its object's directory."""
    return may_name_places(path) or format.names_places(path) or format.names_source(path)


def limit_of(path: str, format: TableFormat) -> int:
    """Returns the size in bytes up to which a file is examined, by its path in its object's directory."""
    known = _STREAM_LOG.fullmatch(path) or _MANIFEST.fullmatch(path) or format.names_places(path) or of_metadata(path)
    return LARGEST if known else SMALL


def translated(path: str, data: bytes, homes: Homes, format: TableFormat = PLAIN, store: str = "") -> tuple[bytes, str]:
    """Returns the content of a file for the target, and a location of the source that it still names ("": none).
    path: in its object's directory. Only formats that are known to name files are translated; a path is translated to
    the target's form of the same object, all other bytes stay. format, store: of the table and its database."""
    if format.names_places(path):
        return format.translated_places(data, lambda line: _moved_line(line, homes, store))
    with suppress(UnicodeDecodeError):
        if _STREAM_LOG.fullmatch(path) or _COMMITTED.fullmatch(path):
            encoded = not _COMMITTED.fullmatch(path)
            data = _STRING.sub(lambda found: _literal(found[0], homes, encoded), data.decode()).encode()
        elif _MANIFEST.fullmatch(path):
            data = re.sub(r"[^\r\n]+", lambda line: moved(line[0], homes), data.decode()).encode()
    return data, named_in(data, homes)


def translated_metadata(
    format: TableFormat, path: str, data: bytes, homes: Homes, databases: Mapping[str, str]
) -> tuple[bytes, str]:
    """Returns a metadata file that metadata names as on the target, and where a query in it may still name the source
    ("": nowhere). One of another content stays as it is. databases: source name -> target name."""
    left = list[str]()

    def renamed(query: str) -> str:
        if why := not_understood(databases, query) or format.view_problem(query, databases):
            left.append(f"in a query that {why}")
            return query
        return rename_databases(query, databases) or query

    try:
        content = format.translated_metadata(
            path, data, lambda place: moved(place, homes), lambda name: databases.get(name, name), renamed
        )
    except FormatError:
        return data, named_in(data, homes)
    return content, left[0] if left else ""


def metadata_translation(
    source: Table, target: Table, placement: Placement, tell: Callable[[str], None]
) -> Translate | None:
    """Returns the translation of the metadata file that an object names; None if it names none. tell: receives the
    reason if a query in it still names the source."""
    format = format_of(source)
    if not named_metadata(source):
        return None
    homes = homes_of([(source.location, target.location), *of_databases(placement)])

    def translate(path: str, data: bytes) -> bytes:
        content, left = translated_metadata(format, path, data, homes, placement.databases)
        if left:
            tell(reason({path: left}))
        return content

    return translate


def moved(value: str, homes: Homes, *, encoded: bool = False) -> str:
    """Returns a path of the source as it is on the target; any other text unchanged. encoded: it is a URI, as Java
    writes them, so that `%20` is a space."""
    now = _moved(value, homes, encoded=encoded)
    return value if now is None else now


def _moved(value: str, homes: Homes, *, encoded: bool = False) -> str | None:
    """Returns the same; None for a text that is not a path in one of the locations."""
    given = _PLACE.fullmatch(value)
    for source, target in homes if given else ():
        assert given is not None
        below = _below(given, source, encoded)
        if below is not None and normal(source) == normal(target):
            return value
        if below is not None:
            head, path = split_authority(target)
            path = _quoted(path) if encoded else path
            plain, local = given["scheme"] is None, is_local(target)
            if local and is_local(source):
                head = value[: given.start("path")]
            elif local:
                head = "file://"
            elif plain and not is_local(source):
                head = ""
            return head + path.rstrip("/") + below
    return None


def _literal(text: str, homes: Homes, encoded: bool) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    now = moved(value, homes, encoded=encoded)
    return text if now == value else json.dumps(now, ensure_ascii=False)


def _below(given: re.Match[str], source: str, encoded: bool) -> str | None:
    """Returns the rest of a path that is at or below a location of the source, as written; None for any other."""
    head, top = split_authority(source)
    if given["scheme"] is not None and scheme(f"{given['scheme']}://x/") != scheme(source):
        return None
    host, own = given["authority"] or "", head.partition("://")[2]
    if host not in ("", "localhost" if is_local(source) else own, own.partition(":")[0]):
        return None
    names, wanted = given["path"].split("/"), [name for name in top.split("/") if name]
    names = ["", *(name for name in names[1:-1] if name), names[-1]]
    if [unquote(name) if encoded else name for name in names[1 : len(wanted) + 1]] != wanted:
        return None
    return "".join(f"/{name}" for name in names[len(wanted) + 1 :])


def _quoted(path: str) -> str:
    return _QUOTED.sub(lambda found: f"%{ord(found[0]):02X}", path)


# ---- detection -------------------------------------------------------------------------------------------------------
# Any spelling of a location: plain or URL-encoded, with one or three slashes after `file:`, with another name of its
# scheme (`s3:`, `s3a:`), with or without its NameNode or bucket, and with the slashes that JSON may escape.


_NAME = rb"[A-Za-z0-9_=~+@$%&\x80-\xff-]"
_BEGIN, _END = rb"(?<!" + _NAME + rb")(?<!\.)", rb"(?!\.?" + _NAME + rb")"


def named_in(data: bytes, homes: Homes) -> str:
    """Returns a location of the source that a content names, in any spelling; "" if it names none. Names of the target
    do not count, also if the target is in the source's location, or at the same path."""
    searches, masks = _searches(homes, _is_binary(data))
    texts = [_plain(data), *([_plain(unquote_to_bytes(data))] if b"%" in data else [])]
    for text in texts:
        for mask in masks if any(search.search(text) for _, search in searches) else ():
            text = mask.sub(b"\x00", text)
        for source, search in searches:
            if search.search(text):
                return source
    return ""


def _is_binary(data: bytes) -> bool:
    """Returns True if any byte may precede a path, such as its length."""
    try:
        return b"\x00" in data or not (data.isascii() or data.decode())
    except UnicodeDecodeError:
        return True


def _plain(data: bytes) -> bytes:
    return re.sub(rb"/{2,}", b"/", data.replace(b"\\/", b"/")).replace(b"file:/localhost/", b"file:/")


_Search = tuple[str, re.Pattern[bytes]]


@lru_cache(maxsize=256)
def _searches(homes: Homes, binary: bool) -> tuple[list[_Search], list[re.Pattern[bytes]]]:
    """Returns the patterns of the source's locations, and of those of the target whose names may contain one."""
    moving = [(source, target) for source, target in homes if normal(source) != normal(target)]
    found = []
    for source, target in moving:
        alike = split_authority(normal(source))[1] == split_authority(normal(target))[1]
        found.append((source, _pattern(source, binary=binary, with_plain=not alike)))
    tops = {split_authority(source)[1] for source, _ in moving}
    masks = sorted({normal(target) for _, target in homes}, key=len, reverse=True)
    return found, [_pattern(each, binary=binary) for each in masks if any(_is_in(each, top) for top in tops)]


def _is_in(place: str, top: str) -> bool:
    return f"{split_authority(place)[1]}/".startswith(f"{top.rstrip('/')}/")


def _pattern(place: str, *, binary: bool, with_plain: bool = True) -> re.Pattern[bytes]:
    """Returns the pattern of a location in a text of `_plain`. with_plain: a path of a store also counts without its
    authority, unless it is a single name, such as `/data`, which other filesystems have, too."""
    head, path = split_authority(place)
    named = re.escape(path.rstrip("/").encode())
    plain = named if binary else _BEGIN + named
    if is_local(place):
        return re.compile(plain + _END)
    host, colon, port = head.partition("://")[2].partition(":")
    authority = re.escape(host.encode()) + (b"(?::" + re.escape(port.encode()) + b")?" if colon else b"")
    whole = b":/" + authority + named
    also = b"|" + plain if with_plain and path.strip("/").count("/") else b""
    return re.compile(b"(?:" + whole + also + b")" + _END)


# ---- copying ---------------------------------------------------------------------------------------------------------


class Naming(msgspec.Struct, frozen=True):
    """A file of an object whose content names a location of the source: table and partition by their names on the
    target, the file's path in the object's directory, and that location."""

    table: tuple[str, str]
    partition: str
    path: str
    source: str


def translated_file(
    file: Wanted, objects: Mapping[str, EntryKey], rules: FileRules, how: Placing
) -> tuple[Wanted, Naming | None]:
    """Returns a file as it must be on the target, and, if it still names the source, a report of that. objects: the
    directories of the target, ending with a slash, with a key of their entries. A file whose bytes are not available is
    returned unchanged: placing it reports why."""
    directory = directory_of(file.target, objects)
    path = file.target[len(directory) :]
    if not directory or file.checksum is None or not file.size:
        return file, None
    key, format = objects[directory], of_metadata(path) if objects[directory][2] == NAMED else None
    listing, limit = rules.format_at(key), limit_of(path, rules.format_at(key))
    if not (format or may_name(path, listing)):
        return file, None
    about = rules.object_at(*key[:4]) or (key[1:3], key[3])
    if file.size > limit:
        return file, Naming(*about, path, TOO_LARGE) if limit == LARGEST else None
    data = recorded_bytes(file, file.checksum, file.size, how)
    if data is None:
        return file, None
    homes = _homes_at(key, rules)
    if listing.names_places(path):
        content, source = listing.translated_places(data, partial(_line_at, key, rules))
    elif format:
        content, source = translated_metadata(format, path, data, homes, rules.placement.databases)
    else:
        content, source = translated(path, data, homes)
    if content != data:
        checksum, size = checksum_stream(io.BytesIO(content))
        file = msgspec.structs.replace(file, checksum=checksum, size=size, content=content)
    return file, Naming(*about, path, source) if source else None


def _homes_at(key: EntryKey, rules: FileRules) -> Homes:
    """Returns the locations that a file of an object may name: its own, its table's, those of the databases, and mapped
    ones."""
    found, placement = rules.rules_of(*key[:4]), rules.placement
    pairs: list[tuple[str | None, str | None]] = [rules.places(*key) or (None, None)]
    if found is not None and (home := found[0].location):
        pairs.append((home, placement.inside(found[0].db, home, home)))
    return homes_of([*pairs, *of_databases(placement)])


def _line_at(key: EntryKey, rules: FileRules, line: str) -> str | None:
    """Returns a place in a file of an object as it is on the target; None if neither a table of the same database nor
    a mapping has it there."""
    found, placement = rules.rules_of(*key[:4]), rules.placement
    if found is None or rules.known is None:
        return None
    store = placement.source_locations.get(found[0].db, "")
    if (mapped := _moved_line(line, homes_of(placement.mappings, roots=True), store)) is not None:
        return mapped
    with suppress(Error):
        place = _whole(line, store)
        there = placement.table(found[0].db, place)
        if normal(there) == normal(place) or _is_known(folded(there), rules.known):
            return _moved_line(line, homes_of([(place, there)]), store)
    return None


def _moved_line(line: str, homes: Homes, store: str) -> str | None:
    """Returns a place in a file of a table as it is on the target; None for one that is not in the locations, or that a
    load has published. store: the location of the table's database, on whose filesystem plain paths are."""
    place = _whole(line, store)
    for home in () if is_published(place) else homes:
        if (now := _moved(place, (home,))) is not None:
            return _moved(line, (home,)) if now == place or is_local(home[1]) else now
    return None


def _whole(line: str, store: str) -> str:
    """Returns a place with its filesystem, if it is on that of a database."""
    given, head = _PLACE.fullmatch(line), split_authority(store)[0]
    below = _below(given, f"{head}/", False) if given else None
    return line if below is None else f"{head}{below}"


def _is_known(place: str, known: Collection[str]) -> bool:
    while place not in known and parent(place) != place:
        place = parent(place)
    return place in known


def known_tables(plan: Plan, target: MetastoreReader) -> frozenset[str] | None:
    """Returns the directories of the tables that the target has after a load, for tables whose files list places. None
    if the load has none of these, or publishes by snapshots: each load moves tables then."""
    steps = {step.name: step.table for step in plan.tables if step.table and not step.shared}
    if plan.snapshot or not any(plan.format_of(step.lineage.table).lists_places for step in plan.tables):
        return None
    gone = {(each.db, each.name) for each in plan.drops} | {each.name for each in plan.left_out}
    gone |= {step.rename_from for step in plan.tables if step.rename_from} | {step.name for step in plan.tables}
    found = list(steps.values())
    for name in plan.placement.databases.values():
        with suppress(ObjectNotFound):
            there = target.tables(name, target.table_names(name))
            found += [each for each in there if (each.db, each.name) not in gone and has_replicated_data(each)]
    return frozenset(folded(each.location) for each in found if each.location and not each.is_view)


def of_databases(placement: Placement) -> list[tuple[str | None, str | None]]:
    """Returns the locations of mappings and databases, for `homes_of`."""
    homes = placement.source_locations.items()
    return [*placement.mappings, *((home, placement.target_locations.get(db)) for db, home in homes)]


def recorded_bytes(file: Wanted, checksum: str, size: int, how: Placing) -> bytes | None:
    """Returns the recorded bytes; None if they are not available anywhere."""
    for origin in origins(file, checksum, size, how.roots, how.kept):
        with suppress(FileNotFoundError), origin.open() as stream:
            data = at_most(stream, size + 1)
            if checksum_stream(io.BytesIO(data)) == (checksum, size):
                return data
    return None


def reported(found: Iterable[Naming], name_of: Callable[[tuple[str, str]], str]) -> list[NotReplicated]:
    """Returns one entry for each object. name_of: returns the source's name of a table."""
    objects: dict[tuple[str, str], dict[str, str]] = {}
    for each in found:
        objects.setdefault((name_of(each.table), each.partition), {})[each.path] = each.source
    return [NotReplicated(name, reason(files), partition) for (name, partition), files in objects.items()]


def note_naming(plan: Plan, found: Sequence[Naming], count: int) -> None:
    """Adds copied files that name the source to the reports of a load. count: theirs, and of those beyond the list."""
    plan.lacked[:0] = reported(found, plan.source_of)
    if count > len(found):
        plan.warnings.append(f"{count - len(found):,} more files name locations of the source")


def reason(files: Mapping[str, str]) -> str:
    """Returns the reason for files of one object: their paths, each with the location that it names."""
    paths = sorted(files)
    more = f", and {len(paths) - SHOWN:,} more" if len(paths) > SHOWN else ""
    return f"{NAMES_SOURCE}, {files[paths[0]]}, and are not translated: {', '.join(paths[:SHOWN])}{more}"


# ---- earlier reports -------------------------------------------------------------------------------------------------


class NamingTask(msgspec.Struct, frozen=True):
    """A directory of the target, the locations that its files may name, the name of its table's format, and the
    location of its database."""

    directory: str
    homes: Homes
    format: str = PLAIN.name
    store: str = ""


def naming_tasks(
    directories: Iterable[str], table: tuple[Table, Table], plan: Plan, known: Collection[str] | None
) -> list[NamingTask]:
    """Returns the tasks for directories of a table. table: at the source and on the target; known: as `FileRules`."""
    source, target = table
    format, pairs = plan.format_of(source), [(source.location, target.location), *of_databases(plan.placement)]
    if format.lists_places:  # then its files must name places of the target
        places = () if known is None else (*(place for _, place in plan.placement.mappings), *known)
        pairs = [(place, place) for place in places]
    homes, store = homes_of(pairs, roots=format.lists_places), plan.placement.target_locations.get(source.db, "")
    return [NamingTask(each, homes, format.name, store) for each in directories]


def run_naming_task(task: NamingTask) -> dict[str, str]:
    """Returns the files of a directory that name a location of the source, by their paths, each with that location."""
    found, listing, format = dict[str, str](), list_tree(task.directory), FORMATS[task.format]
    for file in listing.files if listing else ():
        path = file.path_relative
        if (may_name(path, format) or of_metadata(path)) and (said := _named_at(task, file, format)):
            found[path] = said
    return found


def _named_at(task: NamingTask, file: FileState, format: TableFormat) -> str:
    path, limit = file.path_relative, limit_of(file.path_relative, format)
    if file.size > limit:
        return TOO_LARGE if limit == LARGEST else ""
    with suppress(FileNotFoundError), located(join(task.directory, path)).open_stream() as stream:
        data = at_most(stream, limit)
        if format.names_places(path):
            return translated(path, data, task.homes, format, task.store)[1]
        return named_in(data, task.homes)
    return ""
