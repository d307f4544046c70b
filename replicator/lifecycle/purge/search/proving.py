"""The proof before a swap: Spark reads what was written again, and finds each row that was to stay, in every column.

Files are rewritten by other readers and writers than Spark's, so a row that one of those loses, changes or lets stay
shows. Order does not count: of each file, or of a whole partition that Spark itself wrote, the number of rows and the
sum of their hashes are compared. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import xxhash

from cmroot.store.place import join, normal
from replicator.core.text.sql_text import quoted_name
from replicator.lifecycle.purge.copies import is_below
from replicator.lifecycle.purge.onboarding import Onboarded, data_columns, is_sparks
from replicator.lifecycle.purge.partition_rewrite import Staging
from replicator.lifecycle.purge.partitions import is_data, look_at
from replicator.lifecycle.purge.search import searching
from replicator.lifecycle.purge.search.searching import by_path, by_serde, place_of, settings

WHOLE = 128 << 20
"""Bytes of rewritten files up to which all of a batch are proved; of more, so many, and one file of each partition. To
read them twice takes about as long as to write them."""

FEW = 4
"""Files of a partition that are read one by one through its serde; of more, the directory is."""

Digest = tuple[int, int, int]
"""Rows, and the sums of the low and of the high halves of their hashes."""

NOTHING = (0, 0, 0)

_SETTINGS = {
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.legacy.allowHashOnMapType": "true",
    "spark.sql.parquet.int96TimestampConversion": "true",
    "spark.sql.session.timeZone": "Pacific/Kiritimati",
    "spark.sql.hive.convertMetastoreParquet": "false",
    "spark.sql.hive.convertMetastoreOrc": "false",
}
"""A zone far from all others, so that a file whose times mean something else afterwards shows."""


@dataclass(frozen=True)
class Proved:
    """One part. files: how many were compared; error: why it may not be swapped."""

    files: int
    error: str = ""


def prove(session: Any, onboarded: Onboarded, several: Sequence[Staging]) -> dict[str, Proved]:
    """Of each part, by its name. To be asked after the table was searched, as it uses that search's view of the ids."""
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
    """Names of the rewritten files that are proved, by part."""
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
    if staging.format.kind == "spark":
        same = _below(found, old) == _below(found, new)
        return Proved(len(names), "" if same else "Spark reads other rows in the new directory than were to stay")
    for name in names:
        before, after = (found.get(normal(join(home, name)), NOTHING) for home in (old, new))
        if before != after:
            reported = (
                f"{before[0]:,} rows were to stay" if before[0] != after[0] else "a row that was to stay was changed"
            )
            return Proved(len(names), f"{name}: {reported}, and Spark reads {after[0]:,}")
    return Proved(len(names))


def _below(found: dict[str, Digest], place: str) -> Digest:
    return reduce(_plus, (digest for file, digest in found.items() if is_below(file, [place])), NOTHING)


def _plus(one: Digest, other: Sequence[int]) -> Digest:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


# ---- what Spark reads ---------------------------------------------------------------------------------------------


def _frames(
    session: Any, onboarded: Onboarded, several: Sequence[Staging], chosen: dict[str, list[str]], *, new: bool
) -> Iterator[tuple[bool, Any]]:
    """DataFrames of the files before or after, and whether Spark's own readers read them, which escape names."""
    by_kind: dict[str, list[Staging]] = {}
    for staging in several:
        native = _native(onboarded, staging)
        if native:
            by_kind.setdefault(native, []).append(staging)
            continue
        for place in _places(staging, chosen[staging.part.name], new=new, few=FEW):
            yield False, by_serde(session, onboarded.table, staging.part.storage, place)
    for kind, some in by_kind.items():
        places = [place for each in some for place in _places(each, chosen[each.part.name], new=new)]
        for frame in _read(session, kind, onboarded, some[0], places):
            yield True, frame


def _native(onboarded: Onboarded, staging: Staging) -> str:
    """Spark's own reader of a part's files; "" where only the serde reads them."""
    kind, serde = staging.format.kind, staging.part.storage.serde.library or ""
    if kind in ("parquet", "orc") or (kind == "spark" and serde.endswith("OrcSerde")):
        return "orc" if kind == "spark" else kind
    return kind if kind in ("csv", "json") and is_sparks(onboarded.table) else ""


def _places(staging: Staging, names: Sequence[str], *, new: bool, few: int | None = None) -> list[str]:
    """What to read of a part; `few`: of more files the directory."""
    home = staging.new if new else staging.part.location
    if few is not None and len(names) > few:
        return [home]
    if staging.format.kind == "spark":  # other files than before
        names = [each.path_relative for each in look_at(home).files if each.size and is_data(each.path_relative)]
    return [join(home, name) for name in names]


def _read(session: Any, kind: str, onboarded: Onboarded, staging: Staging, places: Sequence[str]) -> Iterator[Any]:
    """All files at once, or one by one where they have columns that do not go together; of one with a column of a type
    that Spark has not, only those that the partition knows."""
    if kind in ("csv", "json"):
        given = staging.part.storage.serde.parameters
        options = {key: value for key, value in given.items() if key.lower() not in ("path", "serialization.format")}
        yield by_path(session, kind, places, data_columns(onboarded.table), options)
        return
    try:
        yield by_path(session, kind, places)
    except Exception as error:
        if not searching.is_sparks(error):
            raise
        for place in places:
            try:
                yield by_path(session, kind, [place])
            except Exception as its:
                if not searching.is_sparks(its):
                    raise
                known = staging.part.storage.columns or data_columns(onboarded.table)
                yield by_path(session, kind, [place], known)


def _hashed(frame: Any, onboarded: Onboarded, *, escaped: bool) -> Any:
    """Of all columns; nulls are distinguished, which the hash alone would pass over."""
    values = ", ".join(_with_nulls(quoted_name(field.name), field.dataType, 0) for field in frame.schema.fields)
    file = "xxhash64(input_file_name())" if escaped else "input_file_name()"
    reported = [f"{file} AS file", f"xxhash64({values}) AS hash", f"{searching.key_column(onboarded)} AS key"]
    return frame.alias("t").selectExpr(*reported)


def _names(frame: Any) -> dict[int, str]:
    """The files of a frame by Spark's hash of their names: to group rows by a number takes it half as long."""
    return {_signed(xxhash.xxh64_intdigest(name.encode(), seed=42)): name for name in frame.inputFiles()}


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _with_nulls(value: str, type_: Any, depth: int) -> str:
    """Two expressions to hash: whether a value is null, and the value, of whose maps each writer orders the entries."""
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
        case _:
            reported = value
    return f"isnull({value}), {reported}"


def _sides(session: Any, hashed: Sequence[tuple[bool, bool, Any]]) -> Iterator[tuple[Any, bool]]:
    """(frame, escaped): the frames of one kind and side as one, of the old files only the rows that were to stay."""
    for kind in sorted({(escaped, new) for escaped, new, _ in hashed}):
        frame = _union(each for *which, each in hashed if tuple(which) == kind)
        escaped, new = kind
        yield (frame if new else frame.join(session.table(searching.KEYS), "key", "left_anti")), escaped


def _union(frames: Iterable[Any]) -> Any:
    return reduce(lambda one, other: one.union(other), frames)


def _summed(frame: Any, escaped: bool) -> Any:
    """Halves of a hash are summed apart, as no column of rows makes those overflow; decimals take Spark ten times as
    long."""
    sums = ["`count(1)` AS rows", "`sum(low)` AS low", "`sum(high)` AS high"]
    return (
        frame.selectExpr("file", "hash & 4294967295 AS low", "shiftrightunsigned(hash, 32) AS high")
        .groupBy("file")
        .agg({"*": "count", "low": "sum", "high": "sum"})
        .selectExpr("CAST(file AS STRING) AS file", f"{str(escaped).lower()} AS escaped", *sums)
    )
