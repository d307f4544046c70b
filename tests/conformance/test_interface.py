"""docs/interface.md decides about all that the interface of a metastore can store; real servers show that it holds.

A new version of Hive: add it to `embedded/distributions`, run `python tests/support/interface.py`, and decide about
what the first tests name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import command
from filled import Fields, fields_of, filled
from hive_home import EXTERNAL, INPUT, OUTPUT, SERDE, VIEW, Home, client_of
from hive_metastore import ttypes
from hmsclient import HMSClient
from hmsclient.genthrift.hive_metastore import ttypes as newest
from interface import (
    HIVES,
    NOT_OF_A_REPLICA,
    PAGE,
    READS,
    REMOVES,
    REPLICATED,
    VERDICTS,
    Record,
    in_words,
    is_aside,
    jar_of,
    read_jar,
    rows,
)
from lab import Lab
from metastores import MetastoreFactory

from replicator.metastore.embedded.running import Running

Hives = Callable[..., Running]
NOT_STORED = "no server stores it"  # begin of a reason


# ---- the page -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hive", HIVES)
def test_the_record_is_the_interface_of_the_jars(hive: str) -> None:
    interface = read_jar(jar_of(hive))
    calls, structs = Record.read().of_version(hive)
    assert calls == set(interface.calls)
    assert structs == {name: set(fields) for name, fields in interface.stored().items() if fields}


def test_the_page_decides_about_every_call_that_stores_something() -> None:
    decided = Counter(name for row in rows() if not row.struct for name in row.names)
    wanted = {name for name in Record.read().calls if not is_aside(name)}
    assert {name: count for name, count in decided.items() if count > 1} == {}
    assert set(decided) == wanted, set(decided) ^ wanted


def test_the_page_decides_about_every_field_of_every_version() -> None:
    decided = Counter((row.struct, name, row.hives) for row in rows() if row.struct for name in row.names)
    structs = Record.read().structs
    wanted = {(struct, name, in_words(hives)) for struct in structs for name, hives in structs[struct].items()}
    assert {each: count for each, count in decided.items() if count > 1} == {}
    assert set(decided) == wanted, sorted(set(decided) ^ wanted)


def test_the_page_has_the_patterns_of_all_other_calls() -> None:
    text = PAGE.read_text()
    assert [each for each in f"{READS} {REMOVES}".split() if f"`{each}`" not in text] == []


def test_each_decision_has_a_reason_unless_it_is_replicated() -> None:
    assert {row.verdict for row in rows()} <= set(VERDICTS)
    assert [row for row in rows() if row.verdict == NOT_OF_A_REPLICA and not row.reason] == []


# ---- real servers ---------------------------------------------------------------------------------------------------


COLUMNS = {
    "boolean": "booleanStats",
    "bigint": "longStats",
    "double": "doubleStats",
    "string": "stringStats",
    "binary": "binaryStats",
    "decimal(9,2)": "decimalStats",
    "date": "dateStats",
    "timestamp": "timestampStats",
}
CONSTRAINTS = {
    "primary_key": "PrimaryKey",
    "foreign_key": "ForeignKey",
    "unique_constraint": "UniqueConstraint",
    "not_null_constraint": "NotNullConstraint",
    "default_constraint": "DefaultConstraint",
    "check_constraint": "CheckConstraint",
}
KEEP = ttypes.EnvironmentContext({"DO_NOT_UPDATE_STATS": "true"})


class Filling:
    """One object of each kind with a value in every field, in a database. `sent`: the structs as sent."""

    def __init__(self, home: Home, seed: int) -> None:
        self.home, self.seed, self.sent = home, seed, dict[str, Any]()

    def _filled(self, cls: Any, **own: Any) -> Any:
        db, place = self.home.db, f"file:{self.home.directory}"
        cols = [ttypes.FieldSchema(f"c{at}", type_, f"{at} {self.seed}") for at, type_ in enumerate(COLUMNS)]
        given = {
            "Database.name": db,
            "Database.locationUri": place,
            "Database.managedLocationUri": f"{place}/managed{self.seed}",
            "Database.ownerType": ttypes.PrincipalType.ROLE,
            "Database.type": None,
            "Database.connector_name": None,
            "Database.remote_dbname": None,
            "Table.dbName": db,
            "Table.tableType": EXTERNAL,
            "Table.partitionKeys": [],
            "Table.parameters": {"EXTERNAL": "TRUE", "own": f"größer {self.seed}"},
            "Table.ownerType": ttypes.PrincipalType.USER,
            "Table.viewOriginalText": None,
            "Table.viewExpandedText": None,
            "Table.creationMetadata": None,
            "Table.colStats": None,
            "Partition.dbName": db,
            "Partition.tableName": "parted",
            "Partition.values": ["1"],
            "Partition.colStats": None,
            "StorageDescriptor.cols": cols,
            "StorageDescriptor.inputFormat": INPUT,
            "StorageDescriptor.outputFormat": OUTPUT,
            "StorageDescriptor.bucketCols": [f"c{self.seed % 2}"],
            "StorageDescriptor.sortCols": [ttypes.Order("c1", self.seed % 2)],
            "SerDeInfo.serializationLib": SERDE,
            "SerDeInfo.serdeType": ttypes.SerdeType.SCHEMA_REGISTRY,
            "SkewedInfo.skewedColNames": ["c1"],
            "SkewedInfo.skewedColValues": [[f"{self.seed}"]],
            "SkewedInfo.skewedColValueLocationMaps": {},
            "Function.functionName": "f",
            "Function.dbName": db,
            "Function.ownerType": ttypes.PrincipalType.USER,
            "Function.functionType": ttypes.FunctionType.JAVA,
            "ResourceUri.resourceType": ttypes.ResourceType.FILE,
            "ResourceUri.uri": f"http://elsewhere/{self.seed}.jar",
            "CreationMetadata.dbName": db,
            "CreationMetadata.tblName": "materialized",
            "CreationMetadata.tablesUsed": {f"{db}.plain"},
            "CreationMetadata.catName": "hive",
            "ColumnStatisticsDesc.isTblLevel": True,
            "ColumnStatisticsDesc.dbName": db,
            "ColumnStatisticsDesc.tableName": "plain",
            "ColumnStatisticsDesc.partName": None,
            "ColumnStatistics.engine": "hive",
        } | {f"{name}.privileges": None for name in ("Database", "Table", "Partition")}
        given |= {f"{name}.catName": None for name in ("Table", "Partition", "Function", "ColumnStatisticsDesc")}
        given |= {"Database.catalogName": None, "Table.writeId": -1, "Partition.writeId": -1, "Table.txnId": None}
        return filled(cls, given | {key.replace("__", "."): value for key, value in own.items()}, self.seed)

    def database(self) -> Any:
        self.sent["database"] = self._filled(ttypes.Database)
        return self.sent["database"]

    def table(self, name: str, **own: Any) -> Any:
        place = self.home.directory / name
        place.mkdir(parents=True, exist_ok=True)
        given = {"Table__tableName": name, "StorageDescriptor__location": f"file:{place}"} | own
        self.sent[name] = self._filled(ttypes.Table, **given)
        return self.sent[name]

    def view(self, name: str, kind: str, **own: Any) -> Any:
        text = f"select c{self.seed % 2} from {self.home.db}.plain"
        texts = {"Table__viewOriginalText": text, "Table__viewExpandedText": text, "Table__tableType": kind}
        if kind == VIEW:
            own |= {"StorageDescriptor__location": None}
        return self.table(name, **texts, Table__parameters={"own": f"{self.seed}"}, **own)

    def tables(self) -> Iterator[Any]:
        yield self.table("plain")
        yield self.table("parted", Table__partitionKeys=[ttypes.FieldSchema("p", "string", f"key {self.seed}")])
        yield self.view("view", VIEW)
        if self.home.hive != "2.3":
            yield self.view("materialized", "MATERIALIZED_VIEW", Table__creationMetadata=self.creation())

    def creation(self) -> Any:
        made = self._filled(ttypes.CreationMetadata, CreationMetadata__sourceTables=[])
        if self.home.hive != "3.1":
            read = self.home.table("plain")
            made.sourceTables = [self._filled(ttypes.SourceTable, SourceTable__table=read)]
        return made

    def partition(self) -> Any:
        place = self.home.directory / "parted" / "p=1"
        place.mkdir(parents=True, exist_ok=True)
        self.sent["partition"] = self._filled(ttypes.Partition, StorageDescriptor__location=f"file:{place}")
        return self.sent["partition"]

    def function(self) -> Any:
        self.sent["function"] = self._filled(ttypes.Function)
        return self.sent["function"]

    def statistics(self) -> Any:
        objects = []
        for at, (type_, kind) in enumerate(COLUMNS.items()):
            if kind == "timestampStats" and self.home.hive in ("2.3", "3.1"):
                continue
            every = self._filled(ttypes.ColumnStatisticsData)
            data = ttypes.ColumnStatisticsData(**{kind: getattr(every, kind)})
            objects.append(ttypes.ColumnStatisticsObj(f"c{at}", type_, data))
        made = self._filled(ttypes.ColumnStatistics, ColumnStatistics__statsObj=objects)
        self.sent["statistics"] = made.statsObj
        return made

    def constraints(self) -> Iterator[tuple[str, Any]]:
        """Of the table `child`, which refers to `parent`; each with the call that adds it."""
        db, short = self.home.db, self.home.hive == "2.3"
        for kind, name in CONSTRAINTS.items():
            if short and not kind.endswith("_key"):
                continue
            struct = f"SQL{name}"
            tables = {"table_db": db, "table_name": "parent" if kind == "primary_key" else "child", "column_name": "a"}
            tables |= {"fktable_db": db, "fktable_name": "child", "fkcolumn_name": "a"}
            tables |= {"pktable_db": db, "pktable_name": "parent", "pkcolumn_name": "a"}
            names = {each: f"{each}_{db}" for each in ("pk_name", "fk_name", "uk_name", "nn_name")}
            own = {f"{struct}__{field}": value for field, value in (tables | names | {"catName": "hive"}).items()}
            own |= {f"{struct}__key_seq": 1, f"{struct}__dc_name": f"{kind}_{db}"}
            self.sent[kind] = self._filled(getattr(ttypes, struct), **own)
            request = getattr(ttypes, f"Add{name}Request")([self.sent[kind]])
            yield f"add_{kind}", request

    def make(self) -> None:
        client = self.home.client
        self.home.directory.mkdir(parents=True)
        client.create_database(self.database())
        for table in self.tables():
            client.create_table(table)
        client.add_partitions([self.partition()])
        client.create_function(self.function())
        client.update_table_column_statistics(self.statistics())
        for name in ("parent", "child"):
            self.home.create_table(name, kind=EXTERNAL)
        for call, request in self.constraints():
            getattr(client, call)(request)

    def change(self) -> None:
        client, db = self.home.client, self.home.db
        client.alter_database(db, self.database())
        for table in self.tables():
            client.alter_table_with_environment_context(db, table.tableName, table, KEEP)
        client.alter_partitions_with_environment_context(db, "parted", [self.partition()], KEEP)
        client.alter_function(db, "f", self.function())
        client.update_table_column_statistics(self.statistics())


def found(home: Home, names: set[str]) -> dict[str, Any]:
    """The same objects as a server gives them."""
    tables = {name: home.table(name) for name in names & {"plain", "parted", "view", "materialized"}}
    columns = [f"c{at}" for at in range(len(COLUMNS))]
    request = ttypes.TableStatsRequest(dbName=home.db, tblName="plain", colNames=columns, engine="hive")
    (partition,) = home.client.get_partitions(home.db, "parted", -1)
    return (
        tables
        | _constraints_found(home, names)
        | {
            "database": home.database(),
            "partition": partition,
            "function": home.client.get_function(home.db, "f"),
            "statistics": sorted(
                home.client.get_table_statistics_req(request).tableStats, key=lambda each: each.colName
            ),
        }
    )


def _constraints_found(home: Home, names: set[str]) -> dict[str, Any]:
    found = {}
    for kind in names & CONSTRAINTS.keys():
        name, table = f"{CONSTRAINTS[kind]}s", "parent" if kind == "primary_key" else "child"
        of = {"db_name": home.db, "tbl_name": table}
        if kind == "foreign_key":
            of = {"foreign_db_name": home.db, "foreign_tbl_name": table}
        answer = getattr(home.client, f"get_{kind}s")(getattr(ttypes, f"{name}Request")(**of, catName="hive"))
        found[kind] = getattr(answer, f"{name[0].lower()}{name[1:]}")
    return found


def faults(sent: Fields, here: Fields, there: Fields, decided: dict[str, tuple[str, str]]) -> Iterator[str]:
    """What differs from the page. here, there: at the source and at the target."""
    for field, values in sent.items():
        verdict, reason = decided[field]
        source, target = here.get(field, []), there.get(field, [])
        stored = [one for one, two in zip(values, source, strict=False) if _given(one, two)]
        arrived = source == target or (isinstance(values[0], dict) and _given(values[0], target[0]))
        if verdict == REPLICATED and stored and not arrived:
            yield f"{field}: {source} became {target}"
        if reason.startswith(NOT_STORED) and any(stored):  # an unset flag is given as False
            yield f"{field}: {values} is stored"


def _given(sent: Any, found: Any) -> bool:
    """A server adds properties, and gives unset fields a default."""
    if isinstance(sent, dict) and isinstance(found, dict):
        return bool(sent) and sent.items() <= found.items()
    return sent is not None and sent == found


@contextmanager
def opened(running: Running, db: str) -> Iterator[Home]:
    with client_of(running) as client:
        yield Home(running, client, db)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("hive", ["2.3", "3.1", "4.0", "4.2"])
def test_every_field_arrives_that_the_page_calls_replicated(hives: Hives, hive: str, tmp_path: Path) -> None:
    source, target = hives(hive), hives(hive, "target")
    pair = Lab(source, target, tmp_path)
    decided = {f"{row.struct}.{name}": (row.verdict, row.reason) for row in rows() for name in row.names if row.struct}
    for seed, since in ((3, None), (4, pair.here / "dump1")):
        with opened(source, pair.name) as home:
            filling = Filling(home, seed)
            filling.change() if since else filling.make()
            here = found(home, set(filling.sent))
            texts = _texts(home)
        assert pair.dump(since=since).code == 0
        assert pair.load().code == 0
        with opened(target, pair.name) as replica:
            replica.directory = pair.warehouse / f"{pair.name}.db"
            there = found(replica, set(filling.sent))
            wrong = [
                f"{name}: {fault}"
                for name, struct in filling.sent.items()
                for fault in faults(
                    _plain(struct, texts), _plain(here[name], texts), _plain(there[name], _texts(replica)), decided
                )
            ]
        assert wrong == [], seed


def _alone(one: Any, other: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The fields of two structs that differ, each by the attributes that lead to it."""
    for row in filter(None, type(one).thrift_spec):
        a, b = getattr(one, row[2]), getattr(other, row[2])
        if hasattr(a, "thrift_spec"):
            yield from _alone(a, b, (*path, row[2]))
        elif a != b:
            yield (*path, row[2])


def _of(struct: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        struct = getattr(struct, name)
    return struct


@pytest.mark.timeout(300)
def test_sketches_of_statistics_arrive_where_servers_return_them(
    metastore_factory: MetastoreFactory, tmp_path: Path
) -> None:
    """The bindings above are older than histograms."""
    kinds = {"bigint": "long", "double": "double", "decimal(9,2)": "decimal", "date": "date", "timestamp": "timestamp"}
    settings = {"hive.stats.fetch.bitvector": "true", "hive.stats.fetch.kll": "true"}
    source, target = (metastore_factory(name, hive="4.2", settings=settings) for name in ("source", "target"))
    silent = metastore_factory("silent", hive="4.2")
    pair = Lab(source, target, tmp_path)
    with opened(source, pair.name) as home:
        home.create()
        home.create_table("plain", columns=[(f"c{at}", type_, None) for at, type_ in enumerate(kinds)])
    sent = []
    for at, (type_, kind) in enumerate(kinds.items()):
        data = getattr(newest, f"{kind.capitalize()}ColumnStatsData")(numNulls=0, numDVs=at)
        data.bitVectors, data.histogram = f"bits {at}".encode(), f"histogram {at}".encode()
        of_column = newest.ColumnStatisticsData()
        setattr(of_column, f"{kind}Stats", data)
        sent.append(newest.ColumnStatisticsObj(f"c{at}", type_, of_column))
    description = newest.ColumnStatisticsDesc(isTblLevel=True, dbName=pair.name, tableName="plain")
    struct = newest.ColumnStatistics(description, sent)
    struct.engine = "hive"
    with _own_client(source.uri) as client:
        client.update_table_column_statistics(struct)
    assert [pair.dump().code, pair.load().code] == [0, 0]
    request = newest.TableStatsRequest(dbName=pair.name, tblName="plain", colNames=[each.colName for each in sent])
    request.engine = "hive"
    with _own_client(target.uri) as client:
        found = client.get_table_statistics_req(request).tableStats
    assert sorted(map(_sketches, found)) == list(map(_sketches, sent))

    def differing(here: Running, there: Running) -> set[str]:
        sides = ("--source", here.uri, "--target", there.uri, "--db", pair.name, "--engine", "local")
        return {each["kind"] for each in command("verify", *sides).output["differences"]}

    assert differing(source, target) == set()
    assert pair.load(None, "--warehouse", str(tmp_path / "silent"), target=silent.uri).code == 0
    assert differing(source, silent) == differing(silent, source) == set()  # it returns none to anyone
    (data,) = [each for each in vars(sent[0].statsData).values() if each is not None]
    data.bitVectors = None
    pair.target.metastore.drop_statistics(pair.name, "plain", "", "c0", "hive")
    with _own_client(target.uri) as client:
        client.update_table_column_statistics(struct)
    assert differing(source, target) == {"statistics"}  # it would return them


def _sketches(of_column: Any) -> tuple[str, bytes, bytes]:
    (data,) = [each for each in vars(of_column.statsData).values() if each is not None]
    return of_column.colName, data.bitVectors, data.histogram


@contextmanager
def _own_client(uri: str) -> Iterator[Any]:
    host, port = uri.removeprefix("thrift://").split(":")
    with HMSClient(host=host, port=int(port)) as client:
        yield client


@pytest.mark.timeout(300)
@pytest.mark.parametrize("hive", ["2.3", "4.2"])
def test_a_change_of_one_field_alone_arrives(hives: Hives, hive: str, tmp_path: Path) -> None:
    source, target = hives(hive), hives(hive, "target")
    pair = Lab(source, target, tmp_path)
    decided = {f"{row.struct}.{name}": row.verdict for row in rows() for name in row.names if row.struct}
    changed: dict[str, tuple[str, ...]] = {}
    with opened(source, pair.name) as home:
        home.create()
        fill, other = Filling(home, 3), Filling(home, 4)
        paths = list(_alone(fill.table("t0"), other.table("t0")))
        for at, path in enumerate(paths):
            name = f"t{at}"
            home.client.create_table(fill.table(name))
            if decided[f"{type(_of(fill.sent[name], path[:-1])).__name__}.{path[-1]}"] == REPLICATED:
                changed[name] = path
    assert len(changed) > 15
    assert [pair.dump().code, pair.load().code] == [0, 0]
    with opened(source, pair.name) as home:
        for name, path in changed.items():
            table = home.table(name)
            setattr(_of(table, path[:-1]), path[-1], _of(Filling(home, 4).table(name), path))
            home.client.alter_table_with_environment_context(pair.name, name, table, KEEP)
        here = {name: _of(home.table(name), path) for name, path in changed.items()}
    assert [pair.dump(since=pair.last).code, pair.load().code] == [0, 0]
    with opened(target, pair.name) as replica:
        there = {name: _of(replica.table(name), path) for name, path in changed.items()}
    lost = {path: (here[name], there[name]) for name, path in changed.items() if _own(here[name]) != _own(there[name])}
    assert lost == {}


def _own(value: Any) -> Any:
    """Of a table's properties, the one that is not a server's or replication's."""
    return value["own"] if isinstance(value, dict) and "own" in value else value


Texts = Callable[[Any], Any]


def _texts(home: Home) -> Texts:
    return lambda value: home.text(value) if isinstance(value, str) else value


def _plain(thing: Any, texts: Texts) -> Fields:
    """The fields without the names and places of one side."""
    return {field: [_each(value, texts) for value in values] for field, values in fields_of(thing).items()}


def _each(value: Any, texts: Texts) -> Any:
    if isinstance(value, dict):
        return {key: texts(each) for key, each in value.items()}
    return {texts(each) for each in value} if isinstance(value, set) else texts(value)
