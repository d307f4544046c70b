"""More features: keys and constraints, and what only Hive 3 and 4 have. ALL has every feature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from constraints import Constraints
from features import FEATURES, Feature, table_shown
from hive_home import EXTERNAL, Home
from hive_metastore import ttypes
from hive_objects import FULL_ACID, INSERT_ONLY, HiveClient

_ORC = "org.apache.hadoop.hive.ql.io.orc.Orc"


# ---- constraints ----------------------------------------------------------------------------------------------------


def _constraints(home: Home) -> Constraints:
    return Constraints(home.uri, newer=home.hive != "2.3")


def _keys(home: Home) -> None:
    home.create()
    for name in ("parent", "child"):
        home.create_table(name, kind=EXTERNAL, files={"f": "1,x\n"})
    found = _constraints(home)
    found.primary(f"{home.db}.parent", f"pk_{home.db}", "a", "b")
    found.primary(f"{home.db}.child", f"ck_{home.db}", "b")


def _other_keys(home: Home) -> None:
    found = _constraints(home)
    found.drop(f"{home.db}.parent", f"pk_{home.db}")
    found.primary(f"{home.db}.parent", f"again_{home.db}", "a")
    found.foreign(f"{home.db}.child", f"fk_{home.db}", "a", f"{home.db}.parent", "a")


def _constraints_shown(home: Home) -> Any:
    """Names of constraints have the source's database in them on both sides."""
    return _constraints(home).shown("<db>.parent", "<db>.child", rename={"<db>": home.db})


def _newer_constraints(home: Home) -> None:
    home.needs("3.1", "4.0", "4.2")
    _keys(home)
    found, child = _constraints(home), f"{home.db}.child"
    found.unique(child, f"uq_{home.db}", "a", "b")
    found.of_column("not_null", child, f"nn_{home.db}", "a")
    found.of_column("default", child, f"df_{home.db}", "b", "'größer'")
    found.of_column("check", child, f"ch_{home.db}", "a", "a > 0")


def _other_newer_constraints(home: Home) -> None:
    found = _constraints(home)
    for name in ("uq", "ch"):
        found.drop(f"{home.db}.child", f"{name}_{home.db}")
    found.of_column("not_null", f"{home.db}.parent", f"np_{home.db}", "a")


def _children(home: Home) -> Any:
    return {name: table_shown(home, name) for name in ("parent", "child")}


# ---- kinds of tables ------------------------------------------------------------------------------------------------


def _materialized(home: Home) -> None:
    home.needs("3.1", "4.0", "4.2")
    home.create()
    home.create_table("t", kind=EXTERNAL, files={"f": "1,x\n"})
    materialize(home, "mv")


def materialize(home: Home, name: str, *, rows: str = "rows\n") -> None:
    """A materialized view of the table `t`, with these rows in a file."""
    made = ttypes.CreationMetadata(catName="hive", dbName=home.db, tblName=name, tablesUsed={f"{home.db}.t"})
    if home.hive != "3.1":
        read = ttypes.SourceTable(table=home.table("t"), insertedCount=0, updatedCount=0, deletedCount=0)
        made.sourceTables = [read]
    text = f"select a from {home.db}.t"
    fields = {"creationMetadata": made, "viewOriginalText": text, "viewExpandedText": text}
    HiveClient(home.client, home.hive).table(home.db, name, kind="MATERIALIZED_VIEW", **fields)
    place = _place(home.table(name))
    place.mkdir(parents=True, exist_ok=True)
    if rows:
        (place / "000000_0").write_text(rows)


def _materialized_shown(home: Home) -> Any:
    names = sorted(set(home.client.get_all_tables(home.db)) - {"t"})
    tables = [home.table(name) for name in names]
    return _plain(home), [
        (each.tableType, home.text(each.viewExpandedText), _used(home, each.creationMetadata), _rows(each))
        for each in tables
    ]


def _place(table: Any) -> Path:
    return Path(table.sd.location.removeprefix("file:"))


def _rows(table: Any) -> dict[str, str]:
    """By file."""
    return {path.name: path.read_text() for path in _place(table).iterdir()}


def _used(home: Home, made: Any) -> Any:
    """Nothing on Hive 2.3, which stores none."""
    return made and (home.text(made.dbName), sorted(str(home.text(each)) for each in made.tablesUsed))


def _transactional(home: Home, parameters: dict[str, str]) -> None:
    home.create()
    home.create_table("t", kind=EXTERNAL, files={"f": "1,x\n"})
    if home.hive == "2.3":  # which wants buckets
        storage = {"inputFormat": f"{_ORC}InputFormat", "outputFormat": f"{_ORC}OutputFormat"}
        buckets = {"numBuckets": 2, "bucketCols": ["a"]}
        serde = ttypes.SerDeInfo(serializationLib=f"{_ORC}Serde", parameters={})
        home.create_table("rows", parameters=parameters, storage=storage | buckets | {"serdeInfo": serde})
    else:
        HiveClient(home.client, home.hive).table(home.db, "rows", parameters)


def _insert_only(home: Home) -> None:
    home.needs("3.1", "4.0", "4.2")
    _transactional(home, INSERT_ONLY)


def _transactional_shown(home: Home) -> Any:
    return sorted(home.client.get_all_tables(home.db)), _plain(home)


def _plain(home: Home) -> Any:
    return table_shown(home, "t")


def _changed_plain(home: Home) -> None:
    table = home.table("t")
    table.parameters["own"] = "y"
    home.client.alter_table(home.db, "t", table)


# ---- catalogs -------------------------------------------------------------------------------------------------------


def _beside_another(home: Home) -> None:
    """The other one has tables of the same name, and one of its own."""
    home.needs("3.1", "4.0", "4.2")
    home.create()
    home.create_table("t", kind=EXTERNAL, files={"f": "1,x\n"})
    place = f"file:{home.directory}-catalog"
    catalog = ttypes.Catalog(_catalog(home), "", place)
    home.client.create_catalog(ttypes.CreateCatalogRequest(catalog))
    other = ttypes.Database(name=home.db, locationUri=f"{place}/db", parameters={}, catalogName=_catalog(home))
    home.client.create_database(other)
    for name in ("t", "other"):
        _table_of_another(home, name)


def _catalog(home: Home) -> str:
    return f"cat_{home.db}".replace(".", "_")


def _table_of_another(home: Home, name: str) -> None:
    storage = home.storage(f"{home.directory}-catalog/db/{name}", [("elsewhere", "int", None)])
    table = ttypes.Table(
        tableName=name, dbName=home.db, catName=_catalog(home), owner="o", sd=storage, partitionKeys=[],
        parameters={"EXTERNAL": "TRUE"}, tableType=EXTERNAL,
    )  # fmt: skip
    home.client.create_table(table)


def _other_of_another(home: Home) -> None:
    _table_of_another(home, "later")
    _changed_plain(home)


def _drop_another(home: Home) -> None:
    home.client.drop_database(f"@{_catalog(home)}#{home.db}", False, True)
    home.client.drop_catalog(ttypes.DropCatalogRequest(name=_catalog(home)))


ALL: tuple[Feature, ...] = (
    *FEATURES,
    Feature("keys", "primary and foreign keys, changed and dropped", _keys, _constraints_shown, _other_keys, _children),
    Feature(
        "rules",
        "UNIQUE, NOT NULL, DEFAULT and CHECK, changed and dropped",
        _newer_constraints,
        _constraints_shown,
        _other_newer_constraints,
        _children,
    ),
    Feature(
        "materialized",
        "materialized view",
        _materialized,
        _materialized_shown,
        lambda home: materialize(home, "later"),
        _plain,
    ),
    Feature(
        "acid",
        "full ACID table",
        lambda home: _transactional(home, FULL_ACID),
        _transactional_shown,
        _changed_plain,
        _plain,
    ),
    Feature("inserts", "insert-only table", _insert_only, _transactional_shown, _changed_plain, _plain),
    Feature(
        "catalog",
        "database beside one of its name in another catalog",
        _beside_another,
        _transactional_shown,
        _other_of_another,
        drop=_drop_another,
    ),
)
