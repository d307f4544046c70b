"""The ids of a purge: read once, so that all tables of a run see the same; and how they are compared with values.
Writes the run's snapshot, and no table.

Few ids are collected in one job and returned to Spark as a local table; larger sets never leave Spark.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from cmroot.errors import Error, FormatError
from cmroot.store.blocks import Input, Unsupported
from cmroot.store.place import Place, join, located
from cmroot.store.spelling import hadoop_place
from replicator.core.engine import AutoEngine
from replicator.core.model import Column, Storage, Table
from replicator.core.text import SETTINGS, quoted_name, scalar_type
from replicator.errors import Refused
from replicator.lifecycle.purge.matching import NEAR, form_of, form_of_ids, is_matched
from replicator.lifecycle.purge.options import Onboarded, data_columns
from replicator.lifecycle.purge.rewrite.sequence import read_header, read_int, read_text
from replicator.lifecycle.purge.state import RunDirectory
from replicator.lifecycle.purge.swapping import Staging
from replicator.lifecycle.purge.table_files import is_data

FEW = 100_000
"""The maximum number of ids held in memory, if they are numbers or texts; larger sets are held only by Spark."""

VIEW = "replicator_purge_ids"

_FOUND = VIEW + "_found"

_PLAIN = frozenset({"tinyint", "smallint", "int", "bigint", "string", "date"})
"""Types that Arrow and Spark read and write equally."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ids:
    """The ids of a run: a Spark session with a view of them, their number, and their Spark type."""

    session: Any
    count: int
    type: str

    @property
    def hint(self) -> str:
        """The join hint for few ids, whose number Spark does not know: BROADCAST, to avoid a shuffle of the table."""
        return "BROADCAST" if self.count <= FEW else ""

    @cached_property
    def shape(self) -> tuple[int, int, bool]:
        """The shortest and the longest text of an id, and whether all consist of digits."""
        text = "cast(id AS string)"
        columns = (f"min(length({text}))", f"max(length({text}))", f"NOT max(NOT {text} RLIKE '^[0-9]+$')")
        least, most, digits = self.session.table(VIEW).selectExpr(*columns).collect()[0]
        return least, most, digits

    @cached_property
    def digest(self) -> str:
        """Four hexadecimal digits that differ for other ids, whatever their order. Not more, because a run remains
        longer than its ids, and by a whole digest of one id a person could be found."""
        digest = "coalesce(bit_xor(xxhash64(cast(id AS string))), 0L) & 65535"
        ((value,),) = self.session.table(VIEW).selectExpr(digest).collect()
        return f"{value:04x}"

    def close(self) -> None:
        """Removes the ids from Spark's memory after a run, because its session may continue in other use."""
        try:
            self.session.table(VIEW).unpersist()
            self.session.catalog.dropTempView(VIEW)
        except Exception as error:
            log.info("Spark did not release the ids: %s", error)


def split_ids(text: str) -> tuple[str, str]:
    """Splits "db.table:column" into ("db.table", "column"). Raises Refused for anything else."""
    table, colon, column = text.partition(":")
    if not colon or table.count(".") != 1 or not all(table.split(".")) or not column:
        raise Refused(f"{text!r} does not name a column of ids", hint="write --ids db.table:column")
    return table, column


def read_ids(session: Any, text: str, snapshot: str | None) -> Ids:
    """Reads the distinct ids of "db.table:column", without nulls. With `snapshot`, writes them there first and reads
    them from there, so that all tables of a run see the same. Raises Refused if there are none, for whatever reason."""
    table, column = split_ids(text)
    db, _, name = table.partition(".")
    _take_text_as_text(session)
    if not session.catalog.tableExists(quoted_name(db, name)):
        raise Refused(f"the ids table {table} does not exist, so nothing would be erased", hint="check --ids")
    source = session.table(quoted_name(db, name))
    found = [field for field in source.schema.fields if field.name.lower() == column.lower()]
    if not found:
        names = ", ".join(field.name for field in source.schema.fields)
        raise Refused(f"{table} has no column {column}, so nothing would be erased", hint=f"its columns: {names}")
    ids = source.selectExpr(f"{value_of(found[0])} AS id").where("id IS NOT NULL").distinct()
    if ids.schema.fields[0].dataType.simpleString() in _PLAIN and hasattr(ids, "toArrow"):  # since Spark 4
        few = ids.limit(FEW + 1).toArrow()
        if few.num_rows <= FEW:
            if snapshot is not None:
                _write(few, snapshot)
            return _view(session, session.createDataFrame(few, ids.schema), few.num_rows)
    if snapshot is not None:
        ids.write.mode("overwrite").parquet(hadoop_place(snapshot))
        return open_ids(session, snapshot)
    return _view(session, ids.cache())


def value_of(field: Any) -> str:
    """Returns SQL for the id in a column (a StructField); strips trailing blanks of a `char`, which are padding."""
    value = quoted_name(field.name)
    is_padded = field.metadata.get("__CHAR_VARCHAR_TYPE_STRING", "").startswith("char")
    return f"rtrim({value})" if is_padded else value


def _write(ids: pa.Table, snapshot: str) -> None:
    """Writes the ids in Spark's format. They are read only after the run has recorded them."""
    place = Place(snapshot)
    place.remove_own_tree()
    with (place / "ids.parquet").open_write() as file:
        pq.write_table(ids, file)


def open_ids(session: Any, snapshot: str) -> Ids:
    """Opens the ids that a run has written."""
    _take_text_as_text(session)
    return _view(session, session.read.parquet(hadoop_place(snapshot)).cache())


def ids_of(session: Any, text: str, directories: Sequence[RunDirectory]) -> Ids:
    """Returns the ids of runs, or, without runs, the present ones of "db.table:column". Raises Refused if a run's own
    copy was removed, and its table has other ids now, or the run has no checksum by which to compare them."""
    for directory in directories:
        if Place(directory.ids).list():
            return open_ids(session, directory.ids)
    known = [run for run in (each.read_run() for each in directories) if run.ids]
    for run in known:
        if not run.ids_digest:
            raise Refused(
                f"purge {run.id} is of an earlier release, which recorded no checksum of its ids, and its own copy was"
                f" removed with its last backup: {text} may have other ids now",
                hint="certify the present ids with --ids; `purge certificate` shows the certificates that were made",
            )
    ids = read_ids(session, text, None)
    for run in known:
        if (ids.count, ids.digest) != (run.ids, run.ids_digest):
            ids.close()
            raise Refused(
                f"{text} has other ids now ({ids.count:,}) than purge {run.id} had ({run.ids:,}), whose own copy was"
                " removed with its last backup",
                hint="restore its ids in that table, or purge and certify the present ones; `purge certificate` shows"
                " the certificates that were made",
            )
    return ids


def _take_text_as_text(session: Any) -> None:
    for key, value in SETTINGS.items():
        session.conf.set(key, value)


def _view(session: Any, ids: Any, count: int | None = None) -> Ids:
    count = ids.count() if count is None else count
    if not count:
        raise Refused(
            "the table of ids is empty, so nothing would be erased",
            hint="an empty list of ids is more often a failed export than a day without requests",
        )
    type_ = ids.schema.fields[0].dataType.simpleString()
    try:
        scalar_type(type_)
    except ValueError as error:
        raise Refused(f"the ids cannot be compared: {error}", hint="name a column of a scalar type in --ids") from error
    ids.createOrReplaceTempView(VIEW)
    return Ids(session, count, type_)


# ---- comparison ------------------------------------------------------------------------------------------------------


KEYS = VIEW + "_keys"
"""The view of the ids, cast to the type of the column that was searched last."""


class LossyIds(Exception):
    """Raised if a column's type can represent none of the ids; the message contains an example."""


def keys_of(ids: Ids, onboarded: Onboarded) -> tuple[Any, int, str]:
    """Returns the ids in the form in which the table's column is compared (`key`), their number, and a description of
    those that its type cannot represent, or "". Raises LossyIds."""
    if onboarded.match:
        return _by_rules(ids, onboarded)
    return _exactly(ids, scalar_type(comparable_type(onboarded.type)))


def comparable_type(type_: str) -> str:
    """Returns the type in which Spark compares values of a Hive type."""
    return "string" if type_.startswith(("char", "varchar")) else type_


def compared(onboarded: Onboarded, value: str) -> str:
    """Returns SQL for what is compared with KEYS. value: SQL for a value of the column."""
    return form_of(value, onboarded.type, onboarded.match) if onboarded.match else value


def _exactly(ids: Ids, type_: str) -> tuple[Any, int, str]:
    """Returns the ids as values of a type (`key`), their number, and a description of those that are none."""
    try:
        keys = ids.session.sql(f"SELECT id, try_cast(id AS {type_}) AS key FROM {VIEW}")
    except Exception as error:
        if "DATATYPE_MISMATCH" not in str(error):
            raise
        raise LossyIds(f"ids of type {ids.type} cannot be converted to {type_}") from error
    same, count, lossy = f"try_cast(key AS {ids.type}) <=> id", ids.count, ""
    lost = keys.where(f"key IS NULL OR NOT ({same})")
    if type_ != ids.type and (example := lost.limit(1).collect()):
        count -= (lost_count := lost.count())
        lossy = f"{lost_count:,} of {ids.count:,} ids, such as {example[0][0]!r}, are no {type_}"
        if not count:
            raise LossyIds(f"{lossy}: nothing can be searched")
        keys = keys.where(f"key IS NOT NULL AND {same}")
    return keys.selectExpr("key"), count, lossy


def _by_rules(ids: Ids, onboarded: Onboarded) -> tuple[Any, int, str]:
    """Returns the ids in the form of the table's match rules (`key`). No id is too long or no number: all are texts."""
    if not is_matched(ids.type):
        raise LossyIds(f"ids.match compares texts and numbers, and the ids are of type {ids.type}")
    try:
        form = form_of_ids(ids.type, onboarded.type, onboarded.match)
        return ids.session.sql(f"SELECT DISTINCT {form} AS key FROM {VIEW}"), ids.count, ""
    except Exception as error:
        if "DATATYPE_MISMATCH" not in str(error) and "UNRESOLVED_ROUTINE" not in str(error):
            raise
        raise LossyIds(f"ids.match {', '.join(onboarded.match)} needs Spark 4 or newer") from error


def write_matched(ids: Ids, onboarded: Onboarded, found: str, place: str) -> None:
    """Writes which ids a search has found, as Parquet. found: its results. May run twice."""
    type_ = scalar_type(comparable_type(onboarded.type))
    keys = ids.session.read.parquet(hadoop_place(found)).select("key").distinct()
    keys.createOrReplaceTempView(_FOUND)
    how = f"try_cast(id AS {type_}) = key AND try_cast(key AS {ids.type}) <=> id"
    if onboarded.match:
        keys.selectExpr(f"{compared(onboarded, 'key')} AS key").createOrReplaceTempView(_FOUND)
        forms = f"SELECT id, {form_of_ids(ids.type, onboarded.type, onboarded.match)} AS form FROM {VIEW}"
        matched = ids.session.sql(f"SELECT id FROM ({forms}) LEFT SEMI JOIN {_FOUND} ON form = key")
    else:
        matched = ids.session.sql(f"SELECT id FROM {VIEW} LEFT SEMI JOIN {_FOUND} ON {how}")
    matched.write.mode("overwrite").parquet(hadoop_place(place))


def is_by_serde(table: Table, storage: Storage) -> bool:
    """Returns True for files with named columns that only Hive's serdes read, one directory at a time."""
    return _provider(table) == "hive" and (storage.serde.library or "").endswith(("AvroSerDe", "JsonSerDe"))


def _provider(table: Table) -> str:
    return table.parameters.get("spark.sql.sources.provider", "hive").lower()


def with_former(onboarded: Onboarded, storage: Storage) -> tuple[Column, ...]:
    """Returns the columns of a part, and the ids' former ones in formats whose columns a reader must be given."""
    columns = storage.columns or data_columns(onboarded.table)
    if not onboarded.former or not (_provider(onboarded.table) == "json" or is_by_serde(onboarded.table, storage)):
        return columns
    return (*columns, *(Column(name, onboarded.type) for name in onboarded.former))


def reader_options(storage: Storage) -> dict[str, str]:
    """Returns a table's options of one of Spark's own readers."""
    given = storage.serde.parameters
    return {key: value for key, value in given.items() if key.lower() not in ("path", "serialization.format")}


# ---- ids that were not found -----------------------------------------------------------------------------------------


_MISSING = VIEW + "_missing"


@dataclass(frozen=True)
class Searched:
    """A column that was searched. table: SQL for a table or view; column: SQL for it in the table `t`; type: its
    type."""

    table: str
    column: str
    type: str


def view_missing(ids: Ids, matched: Sequence[str]) -> Any:
    """Returns a DataFrame of the ids that are in none of the results of a run, and makes a view of it."""
    missing = ids.session.table(VIEW)
    if matched:
        ids.session.read.parquet(*map(hadoop_place, matched)).createOrReplaceTempView(_FOUND)
        missing = ids.session.sql(f"SELECT id FROM {VIEW} LEFT ANTI JOIN {_FOUND} USING (id)")
    missing.createOrReplaceTempView(_MISSING)
    return missing


def near_misses(ids: Ids, searched: Iterable[Searched], place: str, advance: Callable[[int], object]) -> int:
    """Returns how many missing ids equal a value in some table by all match rules together. Reads each column once;
    requires the view of `view_missing`. place: a directory for the results, which the caller removes. May run twice."""
    results = []
    for number, each in enumerate(searched):
        ids.session.sql(f"REFRESH TABLE {each.table}")
        wanted = f"SELECT id, {form_of_ids(ids.type, each.type, NEAR)} AS form FROM {_MISSING}"
        form = f"{form_of(each.column, each.type, NEAR)} AS form"
        values = f"SELECT {form} FROM {each.table} t WHERE {each.column} IS NOT NULL"
        hint = f"/*+ {ids.hint}(w) */ " if ids.hint else ""
        near = ids.session.sql(f"SELECT {hint}DISTINCT w.id FROM ({values}) v JOIN ({wanted}) w ON v.form = w.form")
        results.append(f"{place}/{number}")
        near.write.mode("overwrite").parquet(hadoop_place(results[-1]))
        advance(1)
    if not results:
        return 0
    return int(ids.session.read.parquet(*map(hadoop_place, results)).distinct().count())


# ---- lost columns ----------------------------------------------------------------------------------------------------
# Detection of columns that Spark would lose: those in a file but not in the metastore. Reads only the files' headers.
#
# A partition written by Spark gets its columns from the metastore, so it is left unchanged if one of its files has
# others.


FILES = 200
_RCFILE, _COLUMNS = b"RCF\x01", "hive.io.rcfile.column.number"
_BY_POSITION = re.compile(r"_col(\d+)")
"""The names that early versions of Hive gave to all ORC columns: readers match them by position."""


class ColumnsTask(msgspec.Struct, frozen=True):
    """Files of one serde. columns: of the table, in order; known: paths of these columns and of the fields in them."""

    serde: str
    columns: tuple[str, ...]
    known: frozenset[str]
    places: tuple[str, ...]


def lost_columns(engines: AutoEngine, staging: Staging, schema: Mapping[str, Any], count: int) -> str:
    """Returns why Spark cannot write a part, as a sentence, or "". schema: of the part, as Spark's JSON; count: number
    of its columns without partition keys."""
    columns = tuple(field["name"].lower() for field in schema["fields"][:count])
    known, home = frozenset(_paths_of_table(schema)), staging.part.location
    files = [state.path_relative for state in staging.look.files if state.size and is_data(state.path_relative)]
    tasks = [
        ColumnsTask(
            staging.part.storage.serde.library or "",
            columns,
            known,
            tuple(join(home, name) for name in files[at : at + FILES]),
        )
        for at in range(0, len(files), FILES)
    ]
    return next(filter(None, engines.for_work(len(files)).run(run_columns_task, tasks)), "")


def run_columns_task(task: ColumnsTask) -> str:
    """Describes the unknown columns of the first file that has any; "" if none has. Reads only."""
    for place in task.places:
        try:
            with located(place).open_read() as source:
                lost = _lost(task, source)
        except (Error, Unsupported, OSError, pa.ArrowException) as error:
            return f"{place}: {(str(error) or type(error).__name__).splitlines()[0][:300]}"
        if lost:
            return f"{place}: {lost}; only Spark can rewrite this file, and it would lose the rest"
    return ""


def _lost(task: ColumnsTask, source: BinaryIO) -> str:
    if task.serde.endswith("OrcSerde"):
        from pyarrow import orc

        found = orc.ORCFile(source).schema
        names = [_named(field.name, task.columns) for field in found]
        if not all(_BY_POSITION.fullmatch(field.name) for field in found):
            names = [field.name for field in found]
        paths = (path for name, type_ in zip(names, found.types, strict=True) for path in _paths_of_file(name, type_))
        lost = ", ".join(path for path in paths if path.lower() not in task.known)
        return f"its table has no {lost}" if lost else ""
    if "Columnar" in task.serde:
        count = _rcfile_columns(Input(source))
        return f"its table has {len(task.columns):,} of its {count:,} columns" if count > len(task.columns) else ""
    return ""


def _named(name: str, columns: tuple[str, ...]) -> str:
    position = _BY_POSITION.fullmatch(name)
    return columns[int(position[1])] if position and int(position[1]) < len(columns) else name


def _rcfile_columns(file: Input) -> int:
    """Returns the header's number of columns. The format's first version has the header of a SequenceFile."""
    if file.take(4) == _RCFILE:
        if file.take(1) != b"\0":
            read_text(file)  # codec
        notes = {read_text(file): read_text(file) for _ in range(read_int(file))}
    else:
        notes = dict(read_header(file.again()).notes)
    count = notes.get(_COLUMNS, "")
    if not count.isdecimal():
        raise FormatError("it is not an RCFile")
    return int(count)


# Paths: `a`, `a.b` of a struct, `a[]` of an array, `a{k}` and `a{v}` of a map


def _paths_of_file(path: str, type_: pa.DataType) -> Iterator[str]:
    yield path
    if pa.types.is_struct(type_):
        for field in type_:
            yield from _paths_of_file(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(type_):
        yield from _paths_of_file(f"{path}{{k}}", type_.key_type)
        yield from _paths_of_file(f"{path}{{v}}", type_.item_type)
    elif pa.types.is_list(type_):
        yield from _paths_of_file(f"{path}[]", type_.value_type)


def _paths_of_table(type_: Any, path: str = "") -> Iterator[str]:
    """type_: Spark's JSON."""
    if path:
        yield path
    match type_:
        case {"type": "struct", "fields": fields}:
            for field in fields:
                name = str(field["name"]).lower()
                yield from _paths_of_table(field["type"], f"{path}.{name}" if path else name)
        case {"type": "map", "keyType": key, "valueType": value}:
            yield from _paths_of_table(key, f"{path}{{k}}")
            yield from _paths_of_table(value, f"{path}{{v}}")
        case {"type": "array", "elementType": element}:
            yield from _paths_of_table(element, f"{path}[]")
