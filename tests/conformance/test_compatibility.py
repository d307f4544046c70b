"""Every feature between servers of several versions of Hive, and what is no difference between them.

The pairs are those in which the most differs; `scripts/compatibility` runs all sixteen, and writes the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import Answer, command
from compatibility import (
    ABSENT,
    BEGIN,
    END,
    NAMED,
    ON_BOTH,
    ON_DERBY,
    REPLICATED,
    Pair,
    Source,
    both,
    expected,
    lacks_table,
    observe,
    rules_table,
    sign,
    with_postgres,
    with_table,
)
from features import Feature, column_statistics, set_statistics
from hive_home import EXTERNAL, Home, client_of
from hive_metastore import ttypes
from lab import Lab
from metastores import shared
from newer_features import ALL, materialize
from pool import Pool

from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.metastore.transactions import STRICT
from replicator.replay.server_rules import ACCURATE, LACKS, RULES, TRANSLATED

Hives = Callable[..., Running]
PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
BY_NAME = {feature.name: feature for feature in ALL}


def test_managed_tables_are_external_where_a_hive_3_asks_for_transactional_ones(
    pool: Pool, source_metastore: Running, tmp_path: Path
) -> None:
    with shared(pool) as metastore:
        target = metastore("strict", hive="3.1", host="0.0.0.0", settings={STRICT: "true"})
        lab = Lab(source_metastore, target, tmp_path)
        lab.db().table("t", {"a": "1"})
        config = ["--config", str(lab.config())]
        planned = command(*config, "plan", lab.policy.name)
        assert any(STRICT in each for each in planned.output["warnings"]), planned
        for _ in range(2):
            assert lab.sync().not_replicated == []
            assert command(*config, "verify", lab.policy.name).code == 0
            there = lab.replica().metastore.table(f"{lab.name}_a", "t")
            assert (there.kind, there.parameters["external.table.purge"]) == (EXTERNAL, "TRUE")
            lab.db().alter("t", owner="another")
            lab.db().write("t", {"b": "2"})
        lab.db().drop("t")
        assert lab.sync().not_replicated == []
        assert list(lab.replica().home.iterdir()) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("source", "targets"),
    [
        pytest.param("2.3", ["4.2"], marks=pytest.mark.long),
        pytest.param("3.1", ["4.0"], marks=pytest.mark.long),
        ("4.2", ["2.3", "4.2"]),
    ],
)
def test_features_arrive_as_the_page_says(hives: Hives, tmp_path: Path, source: str, targets: list[str]) -> None:
    found = observe(hives, tmp_path, [source], targets)
    page = PAGE.read_text()
    seen = {key: sign(outcome) for key, outcome in found.items()}
    wanted = {key: expected(page, BY_NAME[key[0]], *key[1:]) for key in found}
    assert seen == wanted, {key: found[key] for key in found if seen[key] != wanted[key]}


# ---- what is no difference ------------------------------------------------------------------------------------------


@pytest.fixture
def home(hives: Hives, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Home]]:
    """`home("4.2")`: a new database of a server."""
    clients: list[Any] = []
    number = abs(hash(request.node.name)) % 100_000

    def of(hive: str) -> Home:
        running = hives(hive)
        context = client_of(running)
        clients.append(context)
        return Home(running, context.__enter__(), f"rules_{number}")

    yield of
    for context in clients:
        context.__exit__(None, None, None)


def _owner_of_database(home: Home) -> Any:
    home.create()
    return home.database().ownerName


def _owner_type(home: Home) -> Any:
    home.create()
    home.create_table("t", owner="anna", ownerType=None)
    with connect(home.uri) as metastore:  # the other bindings take USER for none
        return metastore.table(home.db, "t").owner_type


def _translation(home: Home) -> Any:
    home.create()
    home.create_table("t")
    table = home.table("t")
    return table.tableType, table.parameters.get(TRANSLATED), table.parameters.get("external.table.purge")


def _erasure_coded(home: Home) -> Any:
    home.create()
    home.create_table("t", keys=[("p", "int", None)])
    home.add_partitions("t", [("1",)])
    return home.client.get_partitions(home.db, "t", -1)[0].parameters.get("numFilesErasureCoded")


def _basic_statistics(home: Home) -> Any:
    home.create()
    home.create_table("t", keys=[("p", "int", None)])
    home.add_partitions("t", [("1",)])
    set_statistics(home, "t", 1, "p=1")
    return "BASIC_STATS" in home.client.get_partitions(home.db, "t", -1)[0].parameters[ACCURATE]


def _format_of_serde(home: Home) -> Any:
    home.create()
    orc = "org.apache.hadoop.hive.ql.io.orc.Orc"
    serde = ttypes.SerDeInfo(serializationLib=f"{orc}Serde", parameters={"serialization.format": "1"})
    formats = {"inputFormat": f"{orc}InputFormat", "outputFormat": f"{orc}OutputFormat", "serdeInfo": serde}
    storage = home.storage("t", **formats, numBuckets=1, bucketCols=["a"])
    about = {"owner": "o", "tableType": "MANAGED_TABLE", "parameters": {"transactional": "true"}}
    made = ttypes.Table(dbName=home.db, tableName="t", sd=storage, partitionKeys=[], **about)
    home.write("t", {})
    if home.hive in ("2.3", "3.1"):
        home.client.create_table(made)
    else:
        can = ["HIVEFULLACIDWRITE"]
        home.client.create_table_req(ttypes.CreateTableRequest(table=made, processorCapabilities=can))
    return home.table("t").sd.serdeInfo.parameters.get("serialization.format")


def _counted_view(home: Home) -> Any:
    home.create()
    home.create_table("t", kind=EXTERNAL)
    if home.hive == "2.3":  # which has no metadata of their creation
        home.create_table("mv", kind="MATERIALIZED_VIEW")
    else:
        materialize(home, "mv", rows="")
        home.client.alter_table(home.db, "mv", home.table("mv"))
    parameters = home.table("mv").parameters
    return parameters.get("numFiles"), parameters.get("totalSize")


SEEN: dict[str, tuple[Callable[[Home], Any], Callable[[Any], bool], tuple[str, ...]]] = {
    RULES[0].what: (_owner_of_database, lambda seen: bool(seen), ("4.0", "4.2")),
    RULES[1].what: (_owner_type, lambda seen: seen == "USER", ("3.1", "4.0", "4.2")),
    RULES[2].what: (_translation, lambda seen: seen == (EXTERNAL, "TRUE", "TRUE"), ("4.0", "4.2")),
    RULES[3].what: (_erasure_coded, lambda seen: seen == "0", ("4.0", "4.2")),
    RULES[4].what: (_basic_statistics, lambda seen: bool(seen), ("4.0", "4.2")),
    RULES[5].what: (_format_of_serde, lambda seen: seen is None, ("4.0", "4.2")),
    RULES[6].what: (_counted_view, lambda seen: seen == ("0", "0"), ("2.3", "3.1", "4.0", "4.2")),
}
"""For each rule: what is done, whether a server has added what it says, and the servers that do."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.what[:20])
def test_servers_add_what_a_rule_says(home: Callable[[str], Home], rule: Any) -> None:
    do, added, servers = SEEN[rule.what]
    seen = {hive: do(home(hive)) for hive in ("2.3", "3.1", "4.0", "4.2")}
    assert tuple(hive for hive in seen if added(seen[hive])) == servers, seen
    assert rule.servers == servers


def test_page_has_the_rules() -> None:
    page = PAGE.read_text()
    assert rules_table() in page and lacks_table() in page


# ---- what is one ----------------------------------------------------------------------------------------------------


def _alter_table(change: Callable[[Any], None], name: str = "t") -> Callable[[Home], None]:
    def alter(home: Home) -> None:
        table = home.table(name)
        change(table)
        context = ttypes.EnvironmentContext({"DO_NOT_UPDATE_STATS": "true"})
        home.client.alter_table_with_environment_context(home.db, name, table, context)

    return alter


def _alter_partition(home: Home) -> None:
    part = home.client.get_partitions(home.db, "t", -1)[0]
    part.parameters["own"] = "other"
    context = ttypes.EnvironmentContext({"DO_NOT_UPDATE_STATS": "true"})
    home.client.alter_partitions_with_environment_context(home.db, "t", [part], context)


def _alter_database(home: Home) -> None:
    found = home.database()
    found.ownerName = "somebody"
    home.client.alter_database(home.db, found)


def _set_partition_statistics(home: Home) -> None:
    request = ttypes.SetPartitionsStatsRequest(
        colStats=[column_statistics(home, "t", 99, "p=1")], needMerge=False, engine="hive"
    )
    home.client.set_aggr_stats_for(request)


OTHER: dict[str, Callable[[Home], None]] = {
    "database": _alter_database,
    "managed": _alter_table(lambda table: table.parameters.update(own="other")),
    "external": _alter_table(lambda table: table.parameters.update({"external.table.purge": "false"}), "purged"),
    "types": _alter_table(lambda table: setattr(table.sd.cols[0], "comment", "other")),
    "partitioned": _alter_partition,
    "layout": _alter_table(lambda table: setattr(table.sd, "numBuckets", 8), "bucketed"),
    "owners": _alter_table(lambda table: setattr(table, "ownerType", ttypes.PrincipalType.USER), "role"),
    "stats": lambda home: set_statistics(home, "t", 99),
    "partstats": _set_partition_statistics,
    "view": lambda home: home.client.drop_table(home.db, "v", False),
    "function": lambda home: home.client.drop_function(home.db, "f"),
}
"""By feature: something that only the target has otherwise."""


@pytest.mark.timeout(600)
def test_what_a_user_could_have_set_is_a_difference(hives: Hives, tmp_path: Path) -> None:
    source = Source(hives("3.1"), tmp_path, prefix="d")
    source.make([BY_NAME[name] for name in OTHER])
    source.dump("first")
    pair = Pair(source, hives("4.2"))
    assert pair.load(tmp_path / "first").code == 0
    assert pair.verify().code == 0
    with client_of(pair.target) as client:
        for name, change in OTHER.items():
            change(Home(pair.target, client, pair.db(BY_NAME[name])))
    verified = pair.verify()
    assert verified.code == 4
    named = {each.partition(".")[0] for each in verified.output["differing"]}
    assert named == {source.db(BY_NAME[name]) for name in OTHER}
    repaired = _repair(pair, BY_NAME["partstats"])
    assert repaired.code == 0, repaired
    named = {each.partition(".")[0] for each in pair.verify().output["differing"]}
    assert source.db(BY_NAME["partstats"]) not in named


def _repair(pair: Pair, feature: Feature) -> Answer:
    source = pair.source
    return command(
        "repair", "--source", source.running.uri, "--target", pair.target.uri, "--cmroot", str(source.here / "cmroot"),
        "--db", source.db(feature), "--rename-db", f"{source.db(feature)}={pair.db(feature)}", "--engine", "local",
        "--target-cmroot", str(source.here / f"target-{pair.target.hive}"),
    )  # fmt: skip


def test_owners_that_a_server_cannot_store_are_named(hives: Hives, tmp_path: Path) -> None:
    source = Source(hives("4.2"), tmp_path, prefix="o")
    source.make([BY_NAME["owners"]])
    source.dump("first")
    pair = Pair(source, hives("2.3"))
    for answer in (pair.load(tmp_path / "first"), pair.verify()):
        assert answer.code == 3
        named = [(each["object"].partition(".")[2], each["reason"]) for each in answer.output["not_replicated"]]
        assert named == [("group", LACKS[0].reason), ("role", LACKS[0].reason)]


def test_what_is_named_is_no_excuse_for_the_rest(hives: Hives, tmp_path: Path) -> None:
    source = Source(hives("4.2"), tmp_path, prefix="e")
    source.make([BY_NAME["owners"]])
    source.dump("first")
    pair = Pair(source, hives("2.3"))
    assert pair.outcomes("first") == {"owners": NAMED}
    source.there = [replace(BY_NAME["owners"], rest=lambda home: home.db)]  # which is another on the target
    assert sign(pair.outcomes("first")["owners"]) == "**lost**"


def test_the_page_says_postgresql_as_long_as_it_holds() -> None:
    page = with_table(f"before\n{BEGIN}{END}after\n", "| a |\n")
    assert ON_DERBY in page
    both_stores = with_postgres(page)
    assert ON_BOTH in both_stores and ON_DERBY not in both_stores
    assert with_table(both_stores, "| a |\n") == both_stores
    other = with_table(both_stores, "| b |\n")
    assert ON_DERBY in other and ON_BOTH not in other
    assert other.startswith("before\n") and other.endswith("after\n")


def test_the_worse_of_bootstrap_and_increment_counts() -> None:
    assert both(NAMED, REPLICATED) == both(REPLICATED, NAMED) == NAMED
    assert both(REPLICATED, REPLICATED) == REPLICATED
    for worse in ("lost: a", "differs: b", "failed: c"):
        assert both(NAMED, worse) == both(worse, NAMED) == both(REPLICATED, worse) == worse
    assert both(ABSENT, ABSENT) == ABSENT
