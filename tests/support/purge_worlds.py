"""Databases of chance, to be purged: tables of every format, with files of every writer, in places of every kind."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec
import purge_writers as writers
from purge_readers import output, rows_of
from purges import DESCRIPTOR, Warehouse

from replicator.core.model import DEFAULT_PARTITION, partition_spec
from replicator.lifecycle.purge.table_files import parts_of

PEOPLE, GONE = 40, 6
LONG_AGO = 1_700_000_000
VALUES = ("a:b", "a%3Ab", "a/b", "a=b", "it's", "50%", "a#b", "a?b", "a b", "ä", "plain", "{c}*", None)
MARK = re.compile(r"person-\w+-[0-9a-f]{16}")
ZONES = ("UTC", "America/Los_Angeles", "Asia/Kathmandu", "Europe/Berlin")
DEEP = {
    "mapreduce.input.fileinputformat.input.dir.recursive": "true",
    "spark.sql.hive.convertMetastoreParquet": "false",
    "spark.sql.hive.convertMetastoreOrc": "false",
}
"""With which Spark reads sub-directories and partitions of several formats, as Hive does."""
PLAIN = {key: "true" if "convert" in key else "false" for key in DEEP}


@dataclass(frozen=True)
class Format:
    """stored: what makes a table of it; columns: which it can have; programs: that write its files, beside Spark, and
    options of theirs; ids: types of the column of ids; conf: of Spark when it writes."""

    stored: str
    columns: str
    programs: tuple[writers.Write, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    ids: tuple[str, ...] = tuple(writers.IDS)
    conf: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_sparks(self) -> bool:
        return self.stored.startswith("USING")


ALL = "".join(writers.TYPES)
FLAT = "".join(name for name in writers.TYPES if name not in writers.NESTED)
OLD = "bnxwls"
"""Columns that Hive's own reader of Parquet takes from every writer."""
PARQUET = (writers.parquet_of_arrow, writers.parquet_of_duckdb)
HIVES = {
    "spark.sql.hive.convertMetastoreParquet": ("true", "false"),
    "spark.sql.hive.convertMetastoreOrc": ("true", "false"),
}
OF_PARQUET = {
    "spark.sql.parquet.compression.codec": ("none", "snappy", "gzip", "zstd", "lz4_raw"),
    "spark.sql.parquet.outputTimestampType": ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"),
    "spark.sql.parquet.datetimeRebaseModeInWrite": ("CORRECTED", "LEGACY"),
    "spark.sql.parquet.int96RebaseModeInWrite": ("CORRECTED", "LEGACY"),
    "spark.sql.parquet.writeLegacyFormat": ("true", "false"),
}
OF_ORC = {"spark.sql.orc.compression.codec": ("none", "snappy", "zlib", "zstd", "lz4")}
CODEC = "mapreduce.output.fileoutputformat.compress.codec"
OF_TEXT = {
    "hive.exec.compress.output": ("true", "false"),
    "mapreduce.output.fileoutputformat.compress.type": ("BLOCK", "RECORD"),
    CODEC: tuple(f"org.apache.hadoop.io.compress.{name}Codec" for name in ("Gzip", "BZip2", "Default")),
}
OF_RECORDS = OF_TEXT | {CODEC: tuple(each.replace("Gzip", "Snappy") for each in OF_TEXT[CODEC])}
OF_COLUMNS = OF_RECORDS | {CODEC: tuple(each for each in OF_RECORDS[CODEC] if "BZip2" not in each)}
"""Hive's reader of RCFile loses values that bzip2 has packed."""
FORMATS = {
    "parquet": Format("STORED AS PARQUET", ALL, PARQUET, conf=OF_PARQUET | HIVES),
    "parquet_of_spark": Format("USING parquet", ALL, PARQUET, conf=OF_PARQUET),
    "orc": Format("STORED AS ORC", ALL, (writers.orc_of_arrow,), conf=OF_ORC | HIVES),
    "orc_of_spark": Format("USING orc", ALL, (writers.orc_of_arrow,), conf=OF_ORC),
    "text": Format(
        "ROW FORMAT DELIMITED FIELDS TERMINATED BY '|' ESCAPED BY '\\\\'",
        FLAT,
        (writers.text_of_python,),
        {"separator": "|", "escape": "\\"},
        conf=OF_TEXT,
    ),
    "text_of_hive": Format(
        "STORED AS TEXTFILE", ALL, (writers.text_of_python,), {"separator": "\x01", "escape": ""}, conf=OF_TEXT
    ),
    "csv_of_hive": Format(
        "ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.OpenCSVSerde' STORED AS TEXTFILE",
        "w",
        (writers.csv_of_python,),
        {"separator": ","},
        ("STRING",),
        OF_TEXT,
    ),
    "csv_of_spark": Format(
        "USING csv OPTIONS (header 'true', sep ';')",
        FLAT.replace("r", ""),
        (writers.csv_of_python,),
        {"separator": ";", "header": "yes"},
    ),
    "json": Format("USING json", ALL, (writers.json_of_python,)),
    "avro": Format("STORED AS AVRO", ALL, (writers.avro_of_python,)),
    "sequence": Format("STORED AS SEQUENCEFILE", ALL, conf=OF_RECORDS),
    "rcfile": Format("STORED AS RCFILE", ALL.replace("r", ""), conf=OF_COLUMNS),  # it writes no empty binary
    "rcfile_of_text": Format(
        "ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.columnar.ColumnarSerDe' STORED AS RCFILE", ALL, conf=OF_COLUMNS
    ),
}
UNDESCRIBED = "without_descriptor"
MIXED = ("parquet", "orc", "text_of_hive", "avro")
"""Formats that partitions of one table may have together."""


@dataclass
class Made:
    """A table. deep: whether it has files in sub-directories, or partitions of several formats."""

    format: Format
    types: dict[str, str]
    deep: bool
    formats: dict[str, str] = field(default_factory=dict)


class World:
    """One database below `place`. going: marks of the rows that have an id, as Spark reads them; unsearched: those of
    people who are to go in files that no purge reads, and the partition."""

    def __init__(self, warehouse: Warehouse, place: Path, db: str, seed: int, tables: int) -> None:
        self.warehouse, self.random, self.place, self.db = warehouse, Random(seed), place, db
        self.done = [f"PURGE_SEED={seed}"]
        self.gone = self.random.sample(range(PEOPLE), GONE)
        self.made: dict[str, Made] = {}
        self.going, self.unsearched = set[str](), dict[str, str]()
        self.numbers = 0
        ids = ", ".join(f"({person})" for person in self.gone)
        warehouse.sql(
            f"CREATE DATABASE {db} LOCATION '{place}/{db}.db'",
            "CREATE DATABASE IF NOT EXISTS asked",
            f"CREATE TABLE asked.{db} AS SELECT bigint(col1) AS member FROM VALUES {ids}",
        )
        self.ids = f"asked.{db}:member"
        self.settings(PLAIN)
        for name in self.random.sample(sorted(FORMATS), tables):
            self.table(name)
        if self.chance(0.3):
            self._undescribed()

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def run(self, statement: str, about: object = "") -> None:
        self.done.append(f"{statement} {about}")
        self.warehouse.sql(statement)

    def settings(self, values: dict[str, str]) -> None:
        for key, value in values.items():
            self.warehouse.session.conf.set(key, value)

    # ---- tables ----

    def table(self, name: str) -> None:
        format_, random = FORMATS[name], self.random
        deep = self.chance(0.3) and name not in ("csv_of_hive", "csv_of_spark")
        columns = OLD if deep else format_.columns
        types = {"id": random.choice(("BIGINT", "INT", "STRING") if deep else format_.ids), "v": "STRING"}
        for each in random.sample(columns, random.randrange(len(columns) + 1)):
            types[each] = "STRING" if name == "csv_of_hive" else writers.TYPES[each][0]
        keys = {"k": "STRING", "y": "INT"} if self.chance(0.3) else {"k": "STRING"} if self.chance(0.8) else {}
        external = self.chance(0.4)
        self._create(name, format_, types, keys, f"{self.place}/elsewhere/{self.db}_{name}" if external else "")
        made = self.made[name] = Made(format_, types, deep)
        for value in random.sample(VALUES, random.randrange(1, 4)) if keys else []:
            self._partition(name, {"k": value, "y": random.randrange(2020, 2027)} if "y" in keys else {"k": value})
        if deep and keys and name in MIXED:
            self._mix(name)
        for part, home in self.homes(name).items():
            home.mkdir(parents=True, exist_ok=True)
            for _ in range(random.randrange(1, 4)):
                self._write(made, name, part, home)
            if deep and self.chance(0.6):
                self._nest(name, part, home)
            if self.chance(0.15):
                self._hide(name, part, home)

    def _create(self, name: str, format_: Format, types: dict[str, str], keys: dict[str, str], place: str) -> None:
        columns = [f"`{each}` {type_}" for each, type_ in types.items()]
        named = [f"{key} {type_}" for key, type_ in keys.items()]
        if format_.is_sparks:
            columns, named = [*columns, *named], list(keys)
        reported = f"({', '.join(columns)})"
        partitioned = f" PARTITIONED BY ({', '.join(named)})" if named else ""
        middle = f" {format_.stored}{partitioned}" if format_.is_sparks else f"{partitioned} {format_.stored}"
        kind = "EXTERNAL " if place and not format_.is_sparks else ""
        location = f" LOCATION '{place}'" if place else ""
        self.run(f"CREATE {kind}TABLE {self.db}.{name} {reported}{middle}{location} TBLPROPERTIES ({DESCRIPTOR})")

    def _undescribed(self) -> None:
        mark = writers.marker(self.gone[0], self.random)
        self.run(f"CREATE TABLE {self.db}.{UNDESCRIBED} (id BIGINT, v STRING)")
        self.run(f"INSERT INTO {self.db}.{UNDESCRIBED} VALUES ({self.gone[0]}, '{mark}')")
        self.unsearched[mark] = UNDESCRIBED

    def _partition(self, name: str, values: dict[str, object]) -> None:
        self.numbers += 1
        place = f" LOCATION '{self.place}/parts/{self.numbers}'" if self.chance(0.2) else ""
        self.run(f"ALTER TABLE {self.db}.{name} ADD PARTITION ({spec(values)}){place}")

    def _mix(self, name: str) -> None:
        """Some partitions get another format than their table's."""
        metastore, made = self.warehouse.metastore, self.made[name]
        table = metastore.table(self.db, name)
        for part in parts_of(metastore, table):
            other = self.random.choice(MIXED)
            if other == name or table.storage is None:
                continue
            shape = f"shapes_{self.db}.{name}_{other}"
            columns = ", ".join(f"`{each}` {type_}" for each, type_ in made.types.items())
            self.warehouse.sql(
                f"CREATE DATABASE IF NOT EXISTS shapes_{self.db}",
                f"CREATE TABLE IF NOT EXISTS {shape} ({columns}) {FORMATS[other].stored}",
            )
            storage = metastore.table(*shape.split(".")).storage
            assert storage is not None
            storage = msgspec.structs.replace(storage, location=part.location)
            metastore.alter_partitions(self.db, name, [msgspec.structs.replace(part.obj, storage=storage)])
            made.formats[part.name] = other
            self.done.append(f"{name}/{part.name} is {other}")

    # ---- files ----

    def _write(self, made: Made, name: str, part: str, home: Path) -> None:
        """A file of one of the writers, Spark among them."""
        other = made.formats.get(part)
        format_ = FORMATS[other] if other else made.format
        people = [self.random.choice((None, *range(PEOPLE))) for _ in range(self.random.randrange(1, 12))]
        rows = writers.table_of(self.random, made.types, people)
        write = self.random.choice(format_.programs if other else (*format_.programs, None))
        if write is not None:
            path = write(home / self._name(), rows, self.random, {**made.types, **format_.options})
            self.done.append(f"{write.__name__}: {path} {people}")
            return
        conf = {key: self.random.choice(options) for key, options in format_.conf.items()}
        self.settings({"spark.sql.session.timeZone": self.random.choice(ZONES), **conf})
        self.warehouse.session.createDataFrame(rows).coalesce(1).createOrReplaceTempView("made")
        values = dict(zip(*partition_spec(part), strict=True)) if part else {}
        where = f" PARTITION ({spec(values)})" if part else ""
        columns = ", ".join(f"CAST({each} AS {type_})" for each, type_ in made.types.items())
        self.run(f"INSERT INTO {self.db}.{name}{where} SELECT {columns} FROM made", f"{conf} {people}")

    def _name(self) -> str:
        self.numbers += 1
        return self.random.choice((f"part-{self.numbers:05}", f"{self.numbers:06}_0", f"data {self.numbers}%41"))

    def _nest(self, name: str, part: str, home: Path) -> None:
        """As Hive on Tez leaves them after UNION ALL. Spark's own tables do not have them."""
        self._move(home, "HIVE_UNION_SUBDIR_1", unsearched=f"{name}/{part}" if self.made[name].format.is_sparks else "")

    def _hide(self, name: str, part: str, home: Path) -> None:
        """As jobs that did not end leave them: days ago, as those of a running job stay where they are."""
        self._move(home, self.random.choice(("_temporary/0", ".hive-staging_1")), unsearched=f"{name}/{part}")

    def _move(self, home: Path, below: str, *, unsearched: str) -> None:
        paths = sorted(path for path in home.iterdir() if path.is_file() and path.name[0] not in "._")
        path = self.random.choice(paths)
        if unsearched:
            marks = (mark for mark in MARK.findall(" ".join(rows_of(path))) if person_of(mark) in self.gone)
            self.unsearched |= dict.fromkeys(marks, unsearched.rstrip("/"))
        (home / below).mkdir(parents=True, exist_ok=True)
        self.done.append(f"{path} -> {below} unsearched={unsearched}")
        path.rename(home / below / path.name)
        os.utime(home / below / path.name, times=(LONG_AGO, LONG_AGO))

    # ---- what it holds ----

    def homes(self, table: str) -> dict[str, Path]:
        """By partition, where it lies now."""
        metastore = self.warehouse.metastore
        found = metastore.table(self.db, table)
        return {each.name: Path(each.location.removeprefix("file:")) for each in parts_of(metastore, found)}

    def by_files(self) -> dict[str, Counter[str]]:
        """By table and partition, the rows, as independent readers say them."""
        return {
            f"{table}/{part}".rstrip("/"): Counter(row for path in data_files(home) for row in rows_of(path))
            for table in self.made
            for part, home in self.homes(table).items()
        }

    def by_spark(self) -> dict[str, Counter[str]]:
        """By table, as Spark says them."""
        found, gone = {}, set(map(str, self.gone))
        for name, made in self.made.items():
            hives = made.deep and not made.format.is_sparks
            self.settings({"spark.sql.session.timeZone": "UTC", **(DEEP if hives else PLAIN)})
            rows = self.warehouse.rows(f"{self.db}.{name}")
            found[name] = Counter(map(output, rows))
            self.going.update(row[1] for row in rows if str(row[0]) in gone)
        return found

    def stays(self, row: str) -> bool:
        return self.going.isdisjoint(MARK.findall(row))

    def unread(self) -> set[str]:
        """Partitions where files lie now that no purge reads."""
        found = {f"{self.db}.{UNDESCRIBED}"} & {f"{self.db}.{table}" for table in self.unsearched.values()}
        for table, made in self.made.items():
            for part, home in self.homes(table).items():
                for path in (path for path in home.rglob("*") if path.is_file() and path.suffix != ".crc"):
                    below = path.relative_to(home).parts
                    hidden = any(each.startswith((".", "_")) for each in below[:-1])
                    if hidden or (len(below) > 1 and made.format.is_sparks):
                        found.add(f"{self.db}.{table}/{part}".rstrip("/"))
        return found


def person_of(mark: str) -> int | None:
    text = mark.split("-")[1]
    return int(text) if text.isdecimal() else None


def spec(values: dict[str, object]) -> str:
    """PARTITION's inside."""

    def literal(value: object) -> str:
        if value is None or value == DEFAULT_PARTITION:
            return "null"
        return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"

    return ", ".join(f"{key} = {literal(value)}" for key, value in values.items())


def data_files(home: Path) -> Iterator[Path]:
    for path in sorted(home.rglob("*")):
        if path.is_file() and not any(part.startswith((".", "_")) for part in path.relative_to(home).parts):
            yield path
