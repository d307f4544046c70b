"""Spark's work before a swap: writes partitions in formats that no other reader rewrites, and proves all new files.

RCFile, and ORC that pyarrow cannot represent: the anti-join of one file with the ids is written under the name of that
file, with the partition's own serde and columns. The omitted rows must be those of the search.
The proof reads the rewritten files: Spark must find each row to be retained, in every column. It compares the number
of rows and the sum of their hashes per file, regardless of order, and so reveals rows that other readers and writers
lose, change or do not erase. The proof changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from cmroot.errors import Error
from cmroot.store.blocks import Unsupported
from cmroot.store.checksum import checksum_at
from cmroot.store.place import give_rights, join, located, normal
from cmroot.store.spelling import hadoop_place
from replicator.core.cluster import is_of_spark
from replicator.core.engine import AutoEngine
from replicator.core.model import Storage
from replicator.core.spark import counted, settings
from replicator.core.text import quoted_name, quoted_text
from replicator.lifecycle.purge import searching
from replicator.lifecycle.purge.file_names import place_of
from replicator.lifecycle.purge.ids import KEYS, compared, lost_columns, reader_options, with_former
from replicator.lifecycle.purge.options import Onboarded, data_columns, is_sparks
from replicator.lifecycle.purge.rewrite.formats import check_by_spark
from replicator.lifecycle.purge.searching import by_path, by_serde
from replicator.lifecycle.purge.swapping import Staged, Staging, give_directories
from replicator.lifecycle.purge.table_files import is_data, look_at
from replicator.lifecycle.purge.transactional_files import file_columns

# ---- rewriting by Spark ----------------------------------------------------------------------------------------------


_INSTANTS = "LazyBinaryColumnarSerDe"
"""The serde that stores timestamps as instants; the others store local times."""
_ID = "replicator_purge_id"  # not a column of any table
_WRITTEN = ".spark"
"""The directory in which Spark writes one file, which gets its own name then."""

_WITHOUT_RULES = re.compile(r"Z|UCT|Zulu|Universal|Greenwich|Etc/.*|(UTC|GMT)([+-].*)?|[+-].*")


def stage_by_spark(session: Any, onboarded: Onboarded, staging: Staging, found: str, engines: AutoEngine) -> Staged:
    """Writes a partition. Requires a preceding search of the table, because it uses that search's view of the ids.
    found: where Spark wrote which ids it found in which file."""
    part = staging.part
    try:
        if onboarded.state is not None:
            raise Unsupported("only Spark could rewrite a file, and it does not write transactional tables")
        check_by_spark(onboarded.table, part.storage, onboarded.field)
        check_zone(session, onboarded, part.storage)
    except Unsupported as error:
        return Staged(staging, error=str(error), final=True)
    old = by_serde(session, onboarded.table, part.storage, part.location)
    if lost := lost_columns(engines, staging, old.schema.jsonValue(), len(old.columns)):
        return Staged(staging, error=lost, final=True)
    staged = Staged(staging)
    before, key = int(old.count()), searching.key_column(onboarded)
    staged.rows = before
    staged.bytes = sum(state.size for state in staging.look.files)
    staged.files = staged.files_before = sum(is_data(state.path_relative) for state in staging.look.files)
    staged.rewritten = len(staging.matched)
    for name in sorted(staging.matched):
        staged.erased += _write_file(session, onboarded, staging, name, key)
        new_file = join(staging.new, name)
        staged.lacking = give_rights(join(part.location, name), new_file) or staged.lacking
        staged.checksums[name] = _checksum(join(part.location, name)), _checksum(new_file)
    staged.lacking = give_directories(staging) or staged.lacking
    new = by_serde(session, onboarded.table, part.storage, staging.new)
    if staged.erased != staging.rows_matched:
        staged.error = f"{staged.erased:,} of {before:,} rows were left out, but Spark found {staging.rows_matched:,}"
    elif wrong := _otherwise(session, onboarded, staging, found, old, new):
        staged.error = f"for {wrong:,} ids, Spark found other numbers of rows than were left out"
    return staged


def _write_file(session: Any, onboarded: Onboarded, staging: Staging, name: str, key: str) -> int:
    """Writes one file without the rows to erase, under its name. Returns the number of rows left out."""
    storage = staging.part.storage
    old = by_serde(session, onboarded.table, storage, join(staging.part.location, name))
    before = int(old.count())
    ids = session.table(KEYS).withColumnRenamed("key", _ID)
    keyed = old.alias("t").selectExpr("t.*", f"{compared(onboarded, key)} AS {_ID}")
    staying = keyed.join(ids, _ID, "left_anti").drop(_ID)
    kept, rows = counted(staying.coalesce(1))
    directory = join(staging.new, _WRITTEN)
    _write(kept, directory, storage, _properties(onboarded, storage))
    written = [state.path_relative for state in look_at(directory).files if is_data(state.path_relative)]
    if len(written) != 1:
        raise Error(f"{directory}: Spark wrote {len(written)} files for {name}", hint="run the same command again")
    located(join(directory, written[0])).move(located(join(staging.new, name)))
    located(directory).remove_own_tree()
    return before - rows()


def _write(kept: Any, place: str, storage: Storage, properties: Mapping[str, str]) -> None:
    if (storage.serde.library or "").endswith("OrcSerde"):
        codec = {key.lower(): value for key, value in properties.items()}.get("orc.compress")
        writer = kept.write.mode("overwrite")
        (writer.option("compression", codec.lower()) if codec else writer).orc(hadoop_place(place))
    else:
        kept.createOrReplaceTempView("replicator_purge_kept")
        kept.sparkSession.sql(_insert(place, storage))


def _otherwise(session: Any, onboarded: Onboarded, staging: Staging, found: str, old: Any, new: Any) -> int:
    """Returns the number of ids whose row count in the search differs from that in the old less the new files."""
    files = session.createDataFrame(pa.table({"file": sorted(staging.uris.values())}))
    counts = [session.read.parquet(hadoop_place(found)).join(files, "file").select("key", "rows")]
    key = searching.key_column(onboarded)
    values = [f"{key} AS value", f"{compared(onboarded, key)} AS key"]
    for frame, sign in ((old, -1), (new, 1)):
        keys = frame.alias("t").selectExpr(*values).join(session.table(KEYS), "key", "left_semi")
        counts.append(keys.selectExpr("value AS key", f"{sign}L AS rows"))
    summed = reduce(lambda one, other: one.union(other), counts).groupBy("key").agg({"rows": "sum"})
    return int(summed.where("`sum(rows)` <> 0").count())


def check_zone(session: Any, onboarded: Onboarded, storage: Storage) -> None:
    """Raises Unsupported if rewriting might shift timestamps. Hive's serdes and ORC interpret local times in the JVM's
    time zone, regardless of the session's, so local times that the zone skips would be shifted."""
    serde = (storage.serde.library or "").rpartition(".")[2]
    columns = storage.columns or data_columns(onboarded.table)
    if serde == _INSTANTS or not any("timestamp" in column.type.lower() for column in columns):
        return
    tasks = session.sparkContext.defaultParallelism
    asked = f"SELECT DISTINCT reflect('java.time.ZoneId', 'systemDefault') FROM range(0, {tasks}, 1, {tasks})"
    for (zone,) in session.sql(asked).collect():
        if not _WITHOUT_RULES.fullmatch(zone):
            raise Unsupported(
                f"timestamps of {serde} are local times, and Spark's time zone {zone} skips hours: run with TZ=UTC,"
                " or with -Duser.timezone=UTC in spark.driver.extraJavaOptions and spark.executor.extraJavaOptions"
            )


def _checksum(place: str) -> str:
    return checksum_at(place)[0]


def _properties(onboarded: Onboarded, storage: Storage) -> dict[str, str]:
    return {**onboarded.table.parameters, **storage.parameters, **storage.serde.parameters}


def _insert(place: str, storage: Storage) -> str:
    given = storage.serde.parameters
    properties = ", ".join(f"{quoted_text(key)} = {quoted_text(value)}" for key, value in given.items())
    return (
        f"INSERT OVERWRITE DIRECTORY {quoted_text(hadoop_place(place))}"
        f" ROW FORMAT SERDE {quoted_text(storage.serde.library or '')}"
        + (f" WITH SERDEPROPERTIES ({properties})" if properties else "")
        + f" STORED AS INPUTFORMAT {quoted_text(storage.input_format or '')}"
        f" OUTPUTFORMAT {quoted_text(storage.output_format or '')} SELECT * FROM replicator_purge_kept"
    )


# ---- proof -----------------------------------------------------------------------------------------------------------


WHOLE = 128 << 20
"""Up to this many bytes of rewritten files, all files of a batch are proved; beyond it, files of about this size in
total, and at least one of each partition. Reading them twice takes about as long as writing them."""

FEW = 4
"""Up to this many files of a partition are read one by one through its serde; beyond it, the directory is read."""

Digest = tuple[int, int, int]
"""The number of rows, and the sums of the low and of the high halves of their hashes."""

NOTHING = (0, 0, 0)

_SETTINGS = {
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.legacy.allowHashOnMapType": "true",
    "spark.sql.parquet.int96TimestampConversion": "true",
    "spark.sql.session.timeZone": "Pacific/Kiritimati",
    "spark.sql.hive.convertMetastoreParquet": "false",
    "spark.sql.hive.convertMetastoreOrc": "false",
}
"""A time zone far from all others, so that a changed meaning of a file's times is detected."""


@dataclass(frozen=True)
class Proved:
    """The result for one part. files: how many were compared; error: why it may not be swapped."""

    files: int
    error: str = ""


def prove(session: Any, onboarded: Onboarded, several: Sequence[Staging]) -> dict[str, Proved]:
    """Returns the results by part name. Requires a preceding search of the table, whose view of the ids it uses."""
    if not several:
        return {}
    chosen = dict(_chosen(several))
    found: dict[str, Digest] = {}
    names: dict[int, str] = {}
    with settings(session, _SETTINGS):
        hashed = []
        for new in (False, True):
            for escaped, frame in _frames(session, onboarded, several, chosen, new=new):
                names |= _names(frame) if escaped else {}
                hashed.append((escaped, new, _hashed(frame, onboarded, escaped=escaped)))
        rows = _union(_summed(*each) for each in _sides(session, hashed)).collect()
    for file, escaped, *digest in rows:
        place = place_of(names.get(int(file), file) if escaped else file, escaped=escaped)
        found[place] = _plus(found.get(place, NOTHING), digest)
    return {each.part.name: _judged(each, chosen[each.part.name], found) for each in several}


def _chosen(several: Sequence[Staging]) -> Iterator[tuple[str, list[str]]]:
    """Yields the names of the rewritten files to prove, by part."""
    left = WHOLE
    for staging in several:
        names: list[str] = []
        for state in sorted(staging.look.files, key=lambda each: xxhash.xxh3_64_intdigest(each.path_relative.encode())):
            if state.path_relative in staging.matched and (left > 0 or not names):
                names.append(state.path_relative)
                left -= state.size
        yield staging.part.name, names


def _judged(staging: Staging, names: Sequence[str], found: dict[str, Digest]) -> Proved:
    old, new = normal(staging.part.location), normal(staging.new)
    for name in names:
        before, after = (found.get(normal(join(home, name)), NOTHING) for home in (old, new))
        if before != after:
            reported = (
                f"{before[0]:,} rows were to be kept"
                if before[0] != after[0]
                else "a row that was to be kept was changed"
            )
            return Proved(len(names), f"{name}: {reported}, and Spark reads {after[0]:,}")
    return Proved(len(names))


def _plus(one: Digest, other: Sequence[int]) -> Digest:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


# ---- what Spark reads ---------------------------------------------------------------------------------------------


def _frames(
    session: Any, onboarded: Onboarded, several: Sequence[Staging], chosen: dict[str, list[str]], *, new: bool
) -> Iterator[tuple[bool, Any]]:
    """Yields DataFrames of the files before or after, with True for Spark's own readers, which escape names."""
    by_kind: dict[str, list[Staging]] = {}
    for staging in several:
        native = _native(onboarded, staging)
        if native:
            by_kind.setdefault(native, []).append(staging)
            continue
        storage = msgspec.structs.replace(staging.part.storage, columns=with_former(onboarded, staging.part.storage))
        for place in _places(staging, chosen[staging.part.name], new=new, few=FEW):
            yield False, by_serde(session, onboarded.table, storage, place)
    for kind, some in by_kind.items():
        places = [place for each in some for place in _places(each, chosen[each.part.name], new=new)]
        for frame in _read(session, kind, onboarded, some[0], places):
            yield True, frame


def _native(onboarded: Onboarded, staging: Staging) -> str:
    """Returns Spark's own reader for a part's files; "" if only the serde reads them."""
    kind, serde = staging.format.kind, staging.part.storage.serde.library or ""
    if kind in ("parquet", "orc") or (kind == "spark" and serde.endswith("OrcSerde")):
        return "orc" if kind == "spark" else kind
    return kind if kind in ("csv", "json") and is_sparks(onboarded.table) else ""


def _places(staging: Staging, names: Sequence[str], *, new: bool, few: int | None = None) -> list[str]:
    """Returns the paths to read of a part; `few`: for more files, the directory."""
    home = staging.new if new else staging.part.location
    if few is not None and len(names) > few:
        return [home]
    return [join(home, name) for name in names]


def _read(session: Any, kind: str, onboarded: Onboarded, staging: Staging, places: Sequence[str]) -> Iterator[Any]:
    """Yields all files in one frame, or one frame each if their columns cannot be merged. For a file with a column type
    unknown to Spark, reads only the partition's known columns."""
    if kind in ("csv", "json"):
        storage = msgspec.structs.replace(staging.part.storage, columns=data_columns(onboarded.table))
        yield by_path(session, kind, places, with_former(onboarded, storage), reader_options(storage))
        return
    try:
        yield by_path(session, kind, places)
    except Exception as error:
        if not is_of_spark(error):
            raise
        for place in places:
            try:
                yield by_path(session, kind, [place])
            except Exception as its:
                if not is_of_spark(its):
                    raise
                known = staging.part.storage.columns or data_columns(onboarded.table)
                yield by_path(session, kind, [place], file_columns(onboarded.table, known))


def _hashed(frame: Any, onboarded: Onboarded, *, escaped: bool) -> Any:
    """Hashes all columns, including null flags, because the hash itself ignores nulls."""
    values = ", ".join(_with_nulls(quoted_name(field.name), field.dataType, 0) for field in frame.schema.fields)
    file = "xxhash64(input_file_name())" if escaped else "input_file_name()"
    reported = [
        f"{file} AS file",
        f"xxhash64({values}) AS hash",
        f"{compared(onboarded, searching.key_in(frame, onboarded))} AS key",
    ]
    return frame.alias("t").selectExpr(*reported)


def _names(frame: Any) -> dict[int, str]:
    """Returns the files of a frame by Spark's hash of their names: grouping rows by a number takes half as long."""
    return {_signed(xxhash.xxh64_intdigest(name.encode(), seed=42)): name for name in frame.inputFiles()}


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _with_nulls(value: str, type_: Any, depth: int) -> str:
    """Returns expressions to hash: a null flag, and the value with sorted maps, whose order varies by writer, and with
    the text and types of variants, and the well-known binary and reference system of geometries."""
    each = f"x{depth}"
    match type_.typeName():
        case "array":
            reported = f"transform({value}, {each} -> struct({_with_nulls(each, type_.elementType, depth + 1)}))"
        case "map":
            pair = (f"{each}.key", type_.keyType), (f"{each}.value", type_.valueType)
            hashed = ", ".join(_with_nulls(*one, depth + 1) for one in pair)
            reported = f"array_sort(transform(map_entries({value}), {each} -> xxhash64({hashed})))"
        case "struct":
            inner = ((f"{value}.{quoted_name(field.name)}", field.dataType) for field in type_.fields)
            reported = f"struct({', '.join(_with_nulls(*one, depth) for one in inner)})"
        case "variant":  # which Spark does not hash
            reported = f"to_json({value}), schema_of_variant({value})"
        case "geometry" | "geography":  # nor these
            reported = f"st_asbinary({value}), st_srid({value})"
        case _:
            reported = value
    return f"isnull({value}), {reported}"


def _sides(session: Any, hashed: Sequence[tuple[bool, bool, Any]]) -> Iterator[tuple[Any, bool]]:
    """Yields (frame, escaped): one frame for each kind and side; for the old files, only the rows to be retained."""
    for kind in sorted({(escaped, new) for escaped, new, _ in hashed}):
        frame = _union(each for *which, each in hashed if tuple(which) == kind)
        escaped, new = kind
        yield (frame if new else frame.join(session.table(KEYS), "key", "left_anti")), escaped


def _union(frames: Iterable[Any]) -> Any:
    return reduce(lambda one, other: one.union(other), frames)


def _summed(frame: Any, escaped: bool) -> Any:
    """Sums the halves of the hashes separately, because those sums cannot overflow; decimals would take Spark ten times
    as long."""
    sums = ["`count(1)` AS rows", "`sum(low)` AS low", "`sum(high)` AS high"]
    return (
        frame.selectExpr("file", "hash & 4294967295 AS low", "shiftrightunsigned(hash, 32) AS high")
        .groupBy("file")
        .agg({"*": "count", "low": "sum", "high": "sum"})
        .selectExpr("CAST(file AS STRING) AS file", f"{str(escaped).lower()} AS escaped", *sums)
    )
