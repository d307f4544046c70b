"""A look at the files of a table before a search: a listing, and the columns that each file has, against the table's.

A search reads files by the table's present description. A file that was written under another one may hold ids in a
column that no reader looks at: before a rename, under a name in another case, at another position, in a column that was
dropped since. Such files are gaps of the search, by name. Footers, headers and JSON are read, by the tasks that list
the files.

A descriptor can name the earlier columns of the ids, `"ids": {"former": ["cust"]}`: files without the present column
are then searched by the former one. An empty list declares that files without the column hold no ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.store.acid import State
from cmroot.store.blocks import Unsupported
from cmroot.store.place import join, located
from replicator.core.engine import AutoEngine
from replicator.core.grouping import batched
from replicator.core.model import Storage
from replicator.core.text import count_text
from replicator.errors import Error
from replicator.lifecycle.purge.file_names import MARK_BYTES, IdTexts, NamedIds
from replicator.lifecycle.purge.options import Onboarded, data_columns
from replicator.lifecycle.purge.rewrite import parquet_footer
from replicator.lifecycle.purge.rewrite.avro import read_schema
from replicator.lifecycle.purge.rewrite.formats import AvroType, Kind, Names, format_of, has_no_names
from replicator.lifecycle.purge.rewrite.line_files import decompressed, lines_of
from replicator.lifecycle.purge.table_files import Look, Part, is_data, look_at
from replicator.lifecycle.purge.transactional_files import COLUMNS, WITHOUT_IDS, tops_of, unsearched, without

SHOWN = 3  # columns and files that a reason names
REASONS = 10  # of one location
UNKNOWN = 20
"""The number of columns unknown to the table that are searched by value; a location with more is a gap."""

_BY_POSITION = ("parquet.column.index.access", "orc.force.positional.evolution")
"""Properties by which Hive reads columns by their position, while Spark reads them by name."""
_SCHEMAS = {"avro.schema.literal", "avro.schema.url"}
"""Properties with a reader's schema: Hive reads no other columns, such as a former one."""
_UNNAMED = re.compile(r"_col\d+")

Field = tuple[str, tuple["Field", ...]]
"""A column of a file, and the fields in it. `(..., ())` of a scalar."""
COMPLEX: tuple[Field, ...] = (("", ()),)
"""The fields of an array or map, in which no id is looked for."""


class Wanted(msgspec.Struct, frozen=True):
    """How the files of a location are searched. path: the possible names of the ids' column and of the fields in it,
    each with its own first; exact: names are case-sensitive. columns: of the table, in lower case; index: of the ids'
    column among those of the partition, -1 if it differs from the table's; width: the number of these. positional: Hive
    reads by position. former: see `Onboarded`. why: the reason why the files' own columns are not read; "". with_ids:
    rows have the ids of a transactional table."""

    kind: Kind
    path: tuple[Names, ...] = ()
    exact: bool = False
    columns: frozenset[str] = frozenset()
    index: int = -1
    width: int = 0
    positional: bool = False
    former: tuple[str, ...] | None = None
    why: str = ""
    with_ids: bool = False


class FileColumns(msgspec.Struct, frozen=True):
    """What was found at one location. kind: of its files; reasons: why files may hold ids that the search does not see;
    unknown: scalar columns that the table does not have; former: whether a file has the ids in a former column."""

    kind: Kind = "spark"
    reasons: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    former: bool = False


def wanted(onboarded: Onboarded, storage: Storage) -> Wanted | None:
    """Returns how a partition's files are searched; None if files of the format have no names of columns, or
    the ids are in no column."""
    table = onboarded.table
    if onboarded.is_key:
        return None
    try:
        format_ = format_of(table, storage, onboarded.field, onboarded.type)
    except Unsupported as error:
        return None if has_no_names(table, storage) else Wanted("spark", why=str(error))
    if format_.kind == "sequence" and format_.rows == "json" and onboarded.former != ():
        return Wanted("sequence", why="JSON in a SequenceFile")
    if format_.kind not in ("parquet", "orc", "avro", "json"):
        return None
    names = [column.name.lower() for column in data_columns(table)]
    own = [column.name.lower() for column in storage.columns] or names
    index = names.index(onboarded.field[0])
    properties = {**table.parameters, **storage.parameters, **storage.serde.parameters}
    settings = {key.lower(): value.strip().lower() for key, value in properties.items()}
    return Wanted(
        format_.kind,
        format_.spellings or tuple((part,) for part in format_.field),
        format_.kind == "json" and format_.by == "spark",
        frozenset((*names, *own)),
        index if own[index : index + 1] == [onboarded.field[0]] else -1,
        len(own),
        any(settings.get(each) == "true" for each in _BY_POSITION),
        onboarded.former if not onboarded.former or not (_SCHEMAS & settings.keys()) else None,
        with_ids=onboarded.in_files != onboarded.field,
    )


def columns_at(location: str, names: Sequence[str], how: Wanted) -> FileColumns:
    """Reads the columns of files of one location. names: of data files."""
    if how.why:
        reason = f"{count_text(len(names), 'file')} whose columns are not compared with the table's: {how.why}"
        return FileColumns(how.kind, (reason,) if names else ())
    reasons: dict[str, list[str]] = {}
    unknown: dict[str, bool] = {}
    former = False
    for name in names:
        if how.with_ids and name.startswith("delete_delta_"):
            continue  # ids of rows
        try:
            with located(join(location, name)).open_read() as source:
                found = _json_of(name, source, how) if how.kind == "json" else _found(how, _fields(how.kind, source))
        except (Error, Unsupported, OSError, pa.ArrowException) as error:
            text = (str(error) or type(error).__name__).splitlines()[0][:200]
            found = _File(f"whose columns cannot be read ({text})")
        if found.reason:
            reasons.setdefault(found.reason, []).append(name)
        unknown |= found.unknown
        former |= found.former
    for name in [name for name, is_scalar in unknown.items() if not is_scalar]:
        reasons.setdefault(
            f"with a column {name}, which the table does not have, and in which nothing is looked for", []
        )
    scalars = sorted(name for name, is_scalar in unknown.items() if is_scalar)
    if len(scalars) > UNKNOWN:
        reasons[f"with {len(scalars):,} columns that the table does not have, such as {scalars[0]}"] = []
        scalars = []
    return FileColumns(how.kind, tuple(_sentence(*each) for each in reasons.items()), tuple(scalars), former)


def _sentence(reason: str, names: Sequence[str]) -> str:
    if not names:
        return f"files {reason}"
    count = "a file" if len(names) == 1 else f"{len(names):,} files"
    return f"{count} {reason}, such as {names[0]}" if len(names) > 1 else f"the file {names[0]} {reason}"


def merged(found: Sequence[FileColumns]) -> FileColumns:
    """Returns what several tasks have found at one location."""
    reasons = list(dict.fromkeys(reason for each in found for reason in each.reasons))
    if len(reasons) > REASONS:
        reasons[REASONS:] = [f"similar files, for {len(reasons) - REASONS:,} more reasons"]
    unknown = sorted({name for each in found for name in each.unknown})
    if len(unknown) > UNKNOWN:
        reasons.append(f"files with {len(unknown):,} columns that the table does not have, such as {unknown[0]}")
        unknown = []
    return FileColumns(found[0].kind, tuple(reasons), tuple(unknown), any(each.former for each in found))


class _File(msgspec.Struct, frozen=True):
    """What one file shows. `unknown`: columns, with True for scalars."""

    reason: str = ""
    unknown: dict[str, bool] = {}
    former: bool = False


def _found(how: Wanted, fields: Sequence[Field]) -> _File:
    if how.with_ids and tuple(name for name, _ in fields) != COLUMNS:
        return _File(WITHOUT_IDS)
    fields = fields[-1][1] if how.with_ids else fields
    if how.kind == "orc" and not how.with_ids and fields and all(_UNNAMED.fullmatch(name) for name, _ in fields):
        if how.index < 0:
            return _File("without names of columns, in a partition whose columns have another order than its table's")
        if len(fields) > how.width:
            return _File(f"with {len(fields)} columns without names, where the table has {how.width}")
        return _File() if how.index < len(fields) else _missing(how, fields)
    if how.positional and how.kind != "avro":
        at = fields[how.index][0].lower() if 0 <= how.index < len(fields) else ""
        if at != how.path[0][0]:
            return _File(f"in which Hive reads the ids by position, from the column {at or '(none)'}")
    known = how.columns | {name.lower() for name in how.path[0]}
    unknown = {name: below == () for name, below in fields if name.lower() not in known}
    lower = [name.lower() for name, _ in fields]
    earlier = [name for name in how.former or () if name in lower and len(how.path) == 1]
    if how.path[0][0] in lower and earlier:
        return _File(f"with the columns {how.path[0][0]} and {earlier[0]}, both of ids", unknown)
    if not any(name.lower() in lower for name in how.path[0]):
        if len(earlier) == 1:
            rest = {name: scalar for name, scalar in unknown.items() if name.lower() != earlier[0]}
            return _File("", rest, former=True)
        return msgspec.structs.replace(_missing(how, fields, earlier), unknown=unknown)
    return _File(_at_path(how, fields), unknown)


def _missing(how: Wanted, fields: Sequence[Field], earlier: Sequence[str] = ()) -> _File:
    """Describes a file without the column of the ids; nothing, if the descriptor declares that it holds none."""
    if how.former is not None and not earlier:
        return _File()
    shown = ", ".join(name for name, _ in fields[:SHOWN]) + (", ..." if len(fields) > SHOWN else "")
    return _File(f"without a column {how.path[0][0]} (columns: {shown})")


def _at_path(how: Wanted, fields: Sequence[Field]) -> str:
    """Returns why the ids are not found in a file exactly once, or ""."""
    for names in how.path:
        lower = {name.lower() for name in names}
        found = [(name, below) for name, below in fields if name.lower() in lower]
        if len(found) != 1:
            return f"with {len(found)} columns named {names[0]}" if found else f"without a field {names[0]}"
        fields = found[0][1]
    return ""


# ---- reading ---------------------------------------------------------------------------------------------------------


def _fields(kind: Kind, source: BinaryIO) -> tuple[Field, ...]:
    """Returns the columns of a file, in order. Raises Unsupported, pa.ArrowException, OSError."""
    if kind == "avro":
        return _of_record(read_schema(source))
    if kind == "orc":
        from pyarrow import orc

        schema = orc.ORCFile(source).schema
        return tuple((each.name, _of_type(each.type)) for each in schema)
    try:
        return tuple((each.name, _of_type(each.type)) for each in pq.read_schema(source))
    except pa.ArrowException:
        return _of_footer(parquet_footer.top_columns(parquet_footer.read_footer(source)))


def _of_footer(tops: Mapping[str, bool]) -> tuple[Field, ...]:
    return tuple((name, () if is_scalar else COMPLEX) for name, is_scalar in tops.items())


def _of_type(type_: pa.DataType) -> tuple[Field, ...]:
    if pa.types.is_struct(type_):
        return tuple((each.name, _of_type(each.type)) for each in type_) or COMPLEX
    return COMPLEX if pa.types.is_nested(type_) else ()


def _of_record(type_: AvroType) -> tuple[Field, ...]:
    records = [each for each in (type_, *type_.inner) if each.kind == "record"]
    if len(records) == 1 and type_.kind in ("record", "union"):
        return tuple((each.name, _of_record(each.type)) for each in records[0].fields) or COMPLEX
    kinds = {type_.kind, *(each.kind for each in type_.inner)}
    return COMPLEX if kinds & {"array", "map", "record"} else ()


def _json_of(name: str, source: BinaryIO, how: Wanted) -> _File:
    """Reads all lines: each record has its own names. A record without the ids' field is one without an id, unless it
    has fields that the table does not know."""
    unknown: dict[str, bool] = {}
    missing, former, former_names = 0, False, set(how.former or ())
    for record in _records(name, source):
        fields = _members(record)
        spelled = [each for each, _ in fields] if how.exact else [each.lower() for each, _ in fields]
        own, earlier = how.path[0][0] in spelled, former_names.intersection(spelled)
        strange = {name: below == () for name, below in fields if _is_strange(name, how) and name not in earlier}
        if len(unknown) <= UNKNOWN:
            unknown |= strange
        if len(earlier) + own > 1:
            names = ", ".join([how.path[0][0], *(how.former or ())])
            return _File(f"with records that have several fields of ids: {names}")
        former |= bool(earlier)
        missing += bool(strange) and not own and not earlier
    if not missing or how.former == ():
        return _File("", unknown, former)
    others = ", ".join(list(unknown)[:SHOWN])
    reason = f"with records that have no {how.path[0][0]}, but fields that the table does not have ({others})"
    return _File(reason, unknown, former)


def _is_strange(name: str, how: Wanted) -> bool:
    """Returns True for a field that no column shows; for Spark, also one that differs from the ids' in case."""
    if how.exact and name != how.path[0][0] and name.lower() == how.path[0][0].lower():
        return True
    return name.lower() not in how.columns


def _records(name: str, source: BinaryIO) -> Iterator[dict[str, object]]:
    for lines in lines_of(decompressed(name, source)):
        for line in lines:
            try:
                found = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue  # no reader finds an id in it
            if isinstance(found, dict):
                yield found


def _members(record: Mapping[str, object]) -> tuple[Field, ...]:
    return tuple((name, COMPLEX if isinstance(value, dict | list) else ()) for name, value in record.items())


# ---- looking ---------------------------------------------------------------------------------------------------------
# Lists the locations of a table, and reads which columns their files have, before a search.


COPYING = "._COPYING_"
"""The end of the names of files that `hadoop fs -put` writes: Hive reads one that was left, Spark's readers do not."""
LOCATIONS = 200
"""The maximum number of locations of a task that lists them."""
FEW = 20
"""Up to this number of files, the task that lists a location also reads their columns."""
FILES = 500
"""The number of files whose columns a further task reads."""
SHARES = 64
"""The maximum number of tasks that share the files of one location, which each of them lists again."""


class LooksTask(msgspec.Struct, frozen=True):
    """Locations to list, and the ones that contain RCFiles. wanted: how their files are searched; None: columns have no
    names in them. texts: what is looked for in names and marks. state: the write ids of a transactional table."""

    locations: tuple[str, ...]
    of_columns: frozenset[str]
    wanted: Wanted | None = None
    texts: IdTexts | None = None
    state: State | None = None


class Looked(msgspec.Struct, frozen=True):
    """The result of listing one location. digest: see Look. nested: a file of rows that Spark's readers ignore, in a
    sub-directory or by its name, or ""; unread: files that readers do not read as rows, as text, or ""; misread: an
    RCFile of which readers miss rows, or "". columns: of the files, against those of the search; left: shares of them
    that are still to be read. texts: of names, which could be ids; large: a mark that is not searched, or "".
    left_out: directories of a transactional table that are not searched, and why; directories: the others."""

    location: str
    digest: str
    nested: str = ""
    unread: str = ""
    misread: str = ""
    columns: FileColumns = FileColumns()
    left: tuple[Share, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    large: str = ""
    left_out: dict[str, str] = {}
    directories: frozenset[str] | None = None


class Share(msgspec.Struct, frozen=True):
    """One of `of` shares of the files of a location, whose columns are to be read; files: about how many these are."""

    location: str
    wanted: Wanted
    index: int
    of: int
    files: int
    state: State | None = None


def run_shares_task(task: Sequence[Share]) -> list[tuple[str, FileColumns]]:
    """Reads the columns of several shares. Lists their locations again; may run twice."""
    found = []
    for share in task:
        look = look_at(share.location)
        names = _data(without(look, unsearched(look, share.state)))[share.index :: share.of]
        found.append((share.location, columns_at(share.location, names, share.wanted)))
    return found


def bundled(shares: Iterable[Share]) -> Iterator[list[Share]]:
    """Yields tasks of about FILES files."""
    bundle: list[Share] = []
    for share in shares:
        bundle.append(share)
        if sum(each.files for each in bundle) >= FILES:
            yield bundle
            bundle = []
    if bundle:
        yield bundle


def run_looks_task(task: LooksTask) -> list[Looked]:
    """Lists the locations of a task, in its order."""
    return [_looked(task, location, look_at(location)) for location in task.locations]


def _looked(task: LooksTask, location: str, look: Look) -> Looked:
    left_out = unsearched(look, task.state)
    searched = without(look, left_out)
    data = _data(searched)
    nested = next((name for name in data if "/" in name or name.endswith(COPYING)), "")
    unread = [*look.unnamed, *look.passed_over]
    more = f" and {len(unread) - 3:,} more" if len(unread) > 3 else ""
    misread = ""
    if location in task.of_columns:
        misread = next((name for name in data if _is_misread(join(location, name))), "")
    columns, left = FileColumns(), tuple[Share, ...]()
    if task.wanted and (len(data) <= FEW or task.wanted.why):
        columns = columns_at(location, data, task.wanted)
    elif task.wanted:
        of = min(SHARES, -(-len(data) // FILES))
        left = tuple(Share(location, task.wanted, index, of, -(-len(data) // of), task.state) for index in range(of))
    texts = tuple(dict(task.texts.at(location, look)).items()) if task.texts else ()
    large = next((name for name, size in look.marks if size > MARK_BYTES), "")
    found = (nested, ", ".join(unread[:3]) + more, misread, columns, left, texts, large, left_out)
    return Looked(location, searched.digest, *found, tops_of(searched) if task.state else None)


def _data(look: Look) -> list[str]:
    """Returns the names of the files that readers read as rows, in an order."""
    return [each.path_relative for each in look.files if each.size and is_data(each.path_relative)]


def _is_misread(place: str) -> bool:
    """Returns True for an RCFile compressed with bzip2, according to its header. Hive's reader silently misses some or
    all of its rows: it asks the codec how many bytes are available, which the codec knows only at their end."""
    with located(place).open_read() as file:
        return b".BZip2Codec" in file.read(256)


def looks_tasks(parts: Iterable[Part], onboarded: Onboarded, texts: IdTexts | None = None) -> Iterator[LooksTask]:
    """Yields tasks of at most LOCATIONS locations whose files are searched in the same way."""
    known: dict[Any, Wanted | None] = {}

    def how(part: Part) -> Wanted | None:
        storage = part.storage
        settings = sorted({**storage.parameters, **storage.serde.parameters}.items())
        key = (storage.serde.library, storage.input_format, storage.columns, tuple(settings))
        if key not in known:
            known[key] = wanted(onboarded, storage)
        return known[key]

    for same, group in groupby(parts, how):
        for batch in batched(group, LOCATIONS):
            of_rows = () if onboarded.is_key else batch
            of_columns = (
                part.location for part in of_rows if (part.storage.input_format or "").endswith("RCFileInputFormat")
            )
            locations = tuple(part.location for part in batch)
            yield LooksTask(locations, frozenset(of_columns), same, texts, onboarded.state)


def look_at_all(
    engines: AutoEngine, parts: Sequence[Part], onboarded: Onboarded, names: NamedIds | None = None
) -> dict[str, Looked]:
    """Lists each location, and reads which columns its files have. Must precede the search, so that later changes are
    noticed. names: gets the texts of names and marks that could be ids."""
    tasks = looks_tasks(parts, onboarded, names.texts if names else None)
    answers = engines.for_work(len(parts)).run(run_looks_task, tasks)
    looked = dict[str, Looked]()
    for each in (each for answer in answers for each in answer):
        if names:
            names.add(each.texts)
        looked[each.location] = msgspec.structs.replace(each, texts=())
    left = [share for each in looked.values() for share in each.left]
    columns: dict[str, list[FileColumns]] = {}
    engine = engines.for_work(sum(share.files for share in left))
    for location, found in (each for answer in engine.run(run_shares_task, bundled(left)) for each in answer):
        columns.setdefault(location, []).append(found)
    several = {place: msgspec.structs.replace(looked[place], columns=merged(found)) for place, found in columns.items()}
    return looked | several
