"""Features of Hive metastores, as data: how each is made on a server, and what a reader sees of it.

`scripts/compatibility` runs every one on every server as source and target; docs/compatibility.md shows what became of
it. A feature is made in a database of its own, by bindings that the product does not use. A new one is a row of
FEATURES (or of `newer_features.ALL`) and two or three short functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grants import Grants
from hive_home import COLUMNS, EXTERNAL, VIEW, Home
from hive_metastore import ttypes

TYPES = [
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "decimal(38,18)",
    "varchar(9)",
    "char(3)",
    "array<int>",
    "map<string,array<double>>",
    "struct<a:int,b:struct<c:string>>",
    "uniontype<int,string>",
]
PARTITIONED = (("day", "string", "the day"), ("n", "int", None))
VALUES = (("2026-01-01", "1"), ("späte/r %= Tag", "2"))


@dataclass(frozen=True)
class Feature:
    """`name`: the rest of its database's name. `title`: its row in the table. `make`: raises Unavailable where the
    server has no such thing. `shown`: the same on both sides where it is replicated. `change`: a change that the next
    increment has to bring. `rest`: what arrives also where the feature is named as not replicated (all, where it may
    not be named). `drop`: what of it is not in its database, to be removed with it."""

    name: str
    title: str
    make: Callable[[Home], None]
    shown: Callable[[Home], Any]
    change: Callable[[Home], None] | None = None
    rest: Callable[[Home], Any] | None = None
    drop: Callable[[Home], None] | None = None


# ---- tables ---------------------------------------------------------------------------------------------------------


def _managed(home: Home) -> None:
    home.create()
    home.create_table("t", parameters={"comment": "größer, 大きい", "own": "x=1"}, files={"f": "1,x\n"})


def _external(home: Home) -> None:
    home.create()
    home.create_table("t", kind=EXTERNAL, files={"f": "1,x\n"})
    home.create_table("purged", kind=EXTERNAL, parameters={"external.table.purge": "true"}, files={"f": "1,x\n"})


def _renamed(home: Home) -> None:
    table = home.table("t")
    table.tableName = "other"
    home.client.alter_table(home.db, "t", table)
    home.create_table("t", kind=EXTERNAL, files={"g": "2,y\n"})


def _types(home: Home) -> None:
    home.create()
    home.create_table("t", columns=[(f"c{at}", each, f"von {each}: ü") for at, each in enumerate(TYPES)])


def _timestamp_with_zone(home: Home) -> None:
    home.needs("3.1", "4.0", "4.2")
    home.create()
    home.create_table("t", columns=[("c", "timestamp with local time zone", None)])


def _partitioned(home: Home) -> None:
    home.create()
    home.create_table("t", keys=PARTITIONED)
    home.add_partitions("t", VALUES, own="x")


def _more_partitions(home: Home) -> None:
    home.add_partitions("t", [("2026-01-03", "3")])


def _layout(home: Home) -> None:
    home.create()
    sort = [ttypes.Order("b", 1), ttypes.Order("a", 0)]
    home.create_table("bucketed", storage={"numBuckets": 4, "bucketCols": ["a"], "sortCols": sort})
    skew = ttypes.SkewedInfo(skewedColNames=["a"], skewedColValues=[["1"], ["2"]], skewedColValueLocationMaps={})
    home.create_table("skewed", storage={"skewedInfo": skew})


def _view(home: Home) -> None:
    home.create()
    home.create_table("t")
    text = f"SELECT a, 'größer' AS b FROM {home.db}.t"
    home.create_table("v", kind=VIEW, viewOriginalText=text, viewExpandedText=text, storage={"location": None})


def _partitioned_view(home: Home) -> None:
    home.create()
    home.create_table("t", keys=PARTITIONED)
    text = f"SELECT a, b, day, n FROM {home.db}.t"
    bare = {"location": None}
    home.create_table("v", kind=VIEW, keys=PARTITIONED, viewOriginalText=text, viewExpandedText=text, storage=bare)
    _add_to_view(home, *VALUES)


def _add_to_view(home: Home, *some: tuple[str, ...]) -> None:
    for values in some:
        sd = home.storage("v", location=None)
        made = ttypes.Partition(list(values), home.db, "v", 0, 0, sd, {"own": values[1]})
        home.client.add_partition(made)


def _other_partitions_of_view(home: Home) -> None:
    home.client.drop_partition(home.db, "v", list(VALUES[0]), False)
    _add_to_view(home, ("2026-01-02", "3"))


def _owners(home: Home) -> None:
    home.create()
    for kind in ("USER", "ROLE", "GROUP"):
        home.create_table(kind.lower(), owner="anna", ownerType=getattr(ttypes.PrincipalType, kind))


def _tables_shown(home: Home) -> Any:
    return {name: table_shown(home, name) for name in home.client.get_all_tables(home.db)}


def table_shown(home: Home, name: str) -> Any:
    """What both sides have alike of a table."""
    table = home.table(name)
    sd = table.sd
    return {
        "columns": [(each.name, each.type, each.comment or "") for each in [*sd.cols, *table.partitionKeys]],
        "view": [home.text(table.viewOriginalText), home.text(table.viewExpandedText)],
        "layout": [max(sd.numBuckets, 0), sd.bucketCols, [(each.col, each.order) for each in sd.sortCols]],
        "skew": [sd.skewedInfo.skewedColNames, sd.skewedInfo.skewedColValues] if sd.skewedInfo else [[], []],
        "own": [table.parameters.get(key) for key in ("comment", "own")],
        "partitions": _partitions_shown(home, name) if table.partitionKeys else None,
        "location": home.text(sd.location),
    }


def _partitions_shown(home: Home, name: str) -> Any:
    found = home.client.get_partitions(home.db, name, -1)
    return sorted((tuple(each.values), home.text(each.sd.location), each.parameters.get("own")) for each in found)


def _owners_shown(home: Home) -> Any:
    tables = [home.table(name) for name in ("user", "role", "group")]
    return [(each.owner, each.ownerType) for each in tables]


# ---- grants ---------------------------------------------------------------------------------------------------------


def _grants(home: Home) -> None:
    home.create()
    home.create_table("t")
    grants = Grants(home.uri)
    grants.role(f"role_of_{home.db}", "user:ann", "group:staff")
    grants.grant("user:anna", "SELECT", home.db)
    grants.grant("group:staff", "INSERT", f"{home.db}.t", option=True)
    grants.grant(f"role:role_of_{home.db}", "SELECT", f"{home.db}.t:a", by="role:admin")


def _other_grants(home: Home) -> None:
    grants = Grants(home.uri)
    grants.revoke("user:anna", "SELECT", home.db)
    grants.revoke("group:staff", "INSERT", f"{home.db}.t")
    grants.grant("user:anna", "ALL", f"{home.db}.t")
    grants.leave(f"role_of_{home.db}", "group:staff")


def _grants_shown(home: Home) -> Any:
    found = Grants(home.uri).shown(home.db, f"{home.db}.t", f"{home.db}.t:a")
    roles = {each.split(" to role:")[1].split(" ")[0] for each in found if " to role:" in each}
    return found, {role: Grants(home.uri).members(role) for role in roles}


# ---- statistics -----------------------------------------------------------------------------------------------------


def column_statistics(home: Home, table: str, number: int, partition: str | None = None, engine: str = "hive") -> Any:
    """Of the columns a and b."""
    desc = ttypes.ColumnStatisticsDesc(
        isTblLevel=partition is None, dbName=home.db, tableName=table, partName=partition, lastAnalyzed=1
    )
    longs = ttypes.LongColumnStatsData(lowValue=-number, highValue=number, numNulls=0, numDVs=number)
    texts = ttypes.StringColumnStatsData(maxColLen=number, avgColLen=0.5, numNulls=1, numDVs=2)
    data = (ttypes.ColumnStatisticsData(longStats=longs), ttypes.ColumnStatisticsData(stringStats=texts))
    stats = [ttypes.ColumnStatisticsObj(name, kind, each) for (name, kind, _), each in zip(COLUMNS, data, strict=True)]
    return ttypes.ColumnStatistics(statsDesc=desc, statsObj=stats, engine=engine)


def set_statistics(home: Home, table: str, number: int, partition: str | None = None, engine: str = "hive") -> None:
    """As a client does after it has analyzed a table or a partition, in one call."""
    stats = column_statistics(home, table, number, partition, engine)
    request = ttypes.SetPartitionsStatsRequest(colStats=[stats], needMerge=False, engine=engine)
    home.client.set_aggr_stats_for(request)


def statistics_shown(home: Home, table: str, names: tuple[str, ...] = (), engine: str = "hive") -> Any:
    """(column, statistics) of a table, or of each of its partitions."""
    columns = [name for name, _, _ in COLUMNS]
    if not names:
        asked = ttypes.TableStatsRequest(dbName=home.db, tblName=table, colNames=columns, engine=engine)
        found = home.client.get_table_statistics_req(asked).tableStats
        return sorted((each.colName, str(each.statsData)) for each in found)
    request = ttypes.PartitionsStatsRequest(
        dbName=home.db, tblName=table, colNames=columns, partNames=list(names), engine=engine
    )
    found = home.client.get_partitions_statistics_req(request).partStats
    return {name: sorted((each.colName, str(each.statsData)) for each in some) for name, some in found.items() if some}


def _table_statistics(home: Home) -> None:
    home.create()
    home.create_table("t", parameters={"numFiles": "1", "totalSize": "4", "numRows": "1"}, files={"f": "1,x\n"})
    set_statistics(home, "t", 3)


def _other_table_statistics(home: Home) -> None:
    set_statistics(home, "t", 4)
    home.client.delete_table_column_statistics(home.db, "t", "b", "hive")


def _engine_statistics(home: Home) -> None:
    home.needs("4.0", "4.2")
    home.create()
    home.create_table("t")
    home.create_table("p", keys=[("p", "int", None)])
    home.add_partitions("p", [("1",)])
    for number, engine in enumerate(_ENGINES):
        set_statistics(home, "t", number, engine=engine)
    set_statistics(home, "p", 3, engine="impala")
    set_statistics(home, "p", 4, "p=1", "impala")


_ENGINES = ("hive", "impala")


def _other_engine_statistics(home: Home) -> None:
    set_statistics(home, "t", 6, engine="impala")
    home.client.delete_table_column_statistics(home.db, "t", "b", "impala")
    home.client.delete_partition_column_statistics(home.db, "p", "p=1", "a", "impala")


def _engines_shown(home: Home) -> Any:
    return [
        statistics_shown(home, table, names, engine)
        for engine in _ENGINES
        for table, names in (("t", ()), ("p", ()), ("p", ("p=1",)))
    ]


def _partition_statistics(home: Home) -> None:
    home.create()
    home.create_table("t", keys=[("p", "int", None)])
    home.add_partitions("t", [("1",), ("2",), ("3",)])
    for number in (1, 2, 3):
        set_statistics(home, "t", number, f"p={number}")


_NAMES = ("p=1", "p=2", "p=3")


def _other_partition_statistics(home: Home) -> None:
    set_statistics(home, "t", 20, "p=2")
    home.client.update_partition_column_statistics(column_statistics(home, "t", 10, "p=1"))  # another event
    for column in ("a", "b"):
        home.client.delete_partition_column_statistics(home.db, "t", "p=3", column, "hive")


# ---- databases and functions ----------------------------------------------------------------------------------------


def _database(home: Home) -> None:
    home.create(
        description="größer, 大きい", parameters={"own": "ü"}, ownerName="gruppe", ownerType=ttypes.PrincipalType.ROLE
    )


def _database_shown(home: Home) -> Any:
    found = home.database()
    return (
        found.description,
        found.parameters.get("own"),
        found.ownerName,
        found.ownerType,
        home.text(found.locationUri),
    )


def _altered_database(home: Home) -> None:
    found = home.database()
    found.parameters["own"] = "y"
    found.ownerName = "anna"
    home.client.alter_database(home.db, found)


def _managed_location(home: Home) -> None:
    home.needs("4.0", "4.2")
    home.create(managedLocationUri=f"file:{home.directory}/managed")
    home.create_table("t", files={"f": "1,x\n"})


def _other_managed_location(home: Home) -> None:
    found = home.database()
    found.managedLocationUri = f"file:{home.directory}/other"
    home.client.alter_database(home.db, found)


def _remote(home: Home) -> None:
    """Of a connector that a server would have to reach; the database alone can be made without."""
    home.needs("4.0", "4.2")
    home.create(
        description="elsewhere", type=ttypes.DatabaseType.REMOTE, connector_name="nowhere", remote_dbname="other"
    )


def _function(home: Home) -> None:
    home.create()
    resource = ttypes.ResourceUri(ttypes.ResourceType.JAR, "http://elsewhere/f.jar")
    function = ttypes.Function(
        functionName="f",
        dbName=home.db,
        className="org.example.F",
        ownerName="anna",
        ownerType=ttypes.PrincipalType.USER,
        functionType=ttypes.FunctionType.JAVA,
        resourceUris=[resource],
    )
    home.client.create_function(function)


def _function_shown(home: Home) -> Any:
    found = home.client.get_function(home.db, "f")
    return found.className, found.ownerName, [(each.resourceType, each.uri) for each in found.resourceUris]


FEATURES: tuple[Feature, ...] = (
    Feature("database", "database: comment, properties, owner", _database, _database_shown, _altered_database),
    Feature("managed", "managed table", _managed, _tables_shown),
    Feature("external", "external table, purged and not", _external, _tables_shown),
    Feature("renamed", "table renamed, and another one in its place", _managed, _tables_shown, _renamed),
    Feature("types", "column types", _types, _tables_shown),
    Feature("zoned", "timestamp with local time zone", _timestamp_with_zone, _tables_shown),
    Feature("partitioned", "partitioned table", _partitioned, _tables_shown, _more_partitions),
    Feature("layout", "buckets, sorting, skew", _layout, _tables_shown),
    Feature("view", "view", _view, _tables_shown),
    Feature("parts_of_view", "partitions of a view", _partitioned_view, _tables_shown, _other_partitions_of_view),
    Feature("grants", "grants of databases, tables and columns; roles", _grants, _grants_shown, _other_grants),
    Feature("owners", "owner of a table: user, role, group", _owners, _owners_shown, rest=_tables_shown),
    Feature(
        "location",
        "`managedLocationUri` of a database",
        _managed_location,
        lambda home: home.text(home.database().managedLocationUri),
        _other_managed_location,
        _tables_shown,
    ),
    Feature(
        "remote",
        "REMOTE database and its data connector",
        _remote,
        lambda home: home.database().remote_dbname,
        rest=lambda home: home.database().description,
    ),
    Feature("function", "function", _function, _function_shown),
    Feature(
        "stats",
        "column statistics of a table, changed and deleted",
        _table_statistics,
        lambda home: statistics_shown(home, "t"),
        _other_table_statistics,
    ),
    Feature(
        "engines",
        "column statistics of other engines, changed and deleted",
        _engine_statistics,
        _engines_shown,
        _other_engine_statistics,
        lambda home: (_tables_shown(home), statistics_shown(home, "t")),
    ),
    Feature(
        "partstats",
        "column statistics of partitions, changed and deleted",
        _partition_statistics,
        lambda home: statistics_shown(home, "t", _NAMES),
        _other_partition_statistics,
    ),
)
