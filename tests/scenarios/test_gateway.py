"""The gateway on a real metastore: drops delete nothing that `$cmroot` does not have, and all else passes unchanged."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gateways import FILES, Guarded, contents, guarded
from history_generator import is_newer
from raw_thrift import RawClient, struct

from replicator.core.model import EXTERNAL, Column, Table
from replicator.metastore.embedded.running import Running
from replicator.metastore.java import find_java, spark_environment

TWO_KEYS = (Column("p", "string"), Column("q", "string"))
PURGING = struct({1: {"ifPurge": "TRUE"}})


# ---- what deletes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["drop_table", "drop_table_with_environment_context"])
def test_a_dropped_table_is_kept_under_its_event(guard: Guarded, name: str) -> None:
    guard.database.table("t", FILES)
    context = [PURGING] if name.endswith("context") else []
    guard.call(name, guard.db.upper(), "T", True, *context)
    assert guard.direct.table_names(guard.db) == []
    assert not guard.place("t").exists() and guard.database.home.exists()
    assert guard.taken() == {"t/one": FILES["one"], "t/two": FILES["two"]}
    assert {guard.events()[event] for _, event in guard.entries()} == {"DROP_TABLE"}
    row = guard.entries()[0][0]
    assert row["location"] == f"file:{guard.place('t')}" and row["kept"] and row["partition"] == ""
    assert guard.is_settled()


def test_a_dropped_partitioned_table_is_kept_with_partitions_that_lie_elsewhere(guard: Guarded, tmp_path: Path) -> None:
    guard.database.partitioned("t", {"a": {"f": "a"}, "b c": {"f": "b"}})
    elsewhere = tmp_path / "elsewhere" / "p=x"
    elsewhere.mkdir(parents=True)
    (elsewhere / "f").write_text("x")
    storage = guard.direct.table(guard.db, "t").storage
    assert storage is not None
    partition = next(guard.direct.partitions(guard.db, "t", ["p=a"]))[0]
    there = type(storage)(**{**_fields(storage), "location": f"file:{elsewhere}"})
    guard.direct.add_partitions(guard.db, "t", [type(partition)(values=("x",), storage=there)])
    (guard.place("t") / "notes").write_text("the table's")
    (guard.place("t") / "stray").mkdir()
    (guard.place("t") / "stray/f").write_text("nobody's")
    guard.call("drop_table", guard.db, "t", True)
    assert guard.taken() == {"t/notes": "the table's", "t/p=a/f": "a", "t/p=b c/f": "b", "t/p=x/f": "x"}
    assert not guard.place("t").exists() and not elsewhere.exists() and elsewhere.parent.exists()
    kept = [path.read_text() for path in Path(guard.root.files).rglob("*") if path.is_file()]
    assert "nobody's" in kept
    assert len({event for _, event in guard.entries()}) == 1


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


@pytest.mark.parametrize(
    ("name", "which"),
    [
        ("drop_partition", ["a", "1/2"]),
        ("drop_partition_with_environment_context", ["a", "1/2"]),
        ("drop_partition_by_name", "p=a/q=1%2F2"),
        ("drop_partition_by_name_with_environment_context", "p=a/q=1%2f2"),
    ],
)
def test_a_dropped_partition_is_kept_and_emptied_directories_go(guard: Guarded, name: str, which: Any) -> None:
    guard.database.table("t", partition_keys=TWO_KEYS)
    _add(guard, "t", {("a", "1/2"): "dropped", ("b", "1"): "stays", ("b", "2"): "stays too"})
    context = [PURGING] if name.endswith("context") else []
    output = guard.call(name, guard.db, "t", which, True, *context)
    assert output.fields[0].value == b"\1"
    assert guard.taken() == {"t/p=a/q=1%2F2/f": "dropped"}
    assert contents(guard.place("t")) == {"p=b/q=1/f": "stays", "p=b/q=2/f": "stays too"}
    assert not (guard.place("t") / "p=a").exists()
    assert guard.direct.partition_names(guard.db, "t") == ["p=b/q=1", "p=b/q=2"]


def _add(guard: Guarded, table: str, files: dict[tuple[str, ...], str]) -> None:
    from plain_tables import text_storage

    from replicator.core.model import Partition, partition_name

    made = []
    for values, text in files.items():
        place = guard.place(table) / partition_name(TWO_KEYS, values)
        place.mkdir(parents=True)
        (place / "f").write_text(text)
        made.append(Partition(values=values, storage=text_storage(place)))
    guard.direct.add_partitions(guard.db, table, made)


def test_partitions_dropped_by_name_are_kept_together(guard: Guarded) -> None:
    guard.database.partitioned("t", {value: {"f": value} for value in "abcd"})
    request = struct({1: guard.db, 2: "t", 3: struct({1: ["p=a", "p=c"]}), 4: True})
    output = guard.call("drop_partitions_req", request)
    assert len(output.fields[0].value[0].value.items) == 2, "the answer has the partitions, as the metastore sent it"
    assert guard.taken() == {"t/p=a/f": "a", "t/p=c/f": "c"}
    first, *_ = (id for id, type in guard.events().items() if type == "DROP_PARTITION")
    assert {event for _, event in guard.entries()} == {first}
    assert contents(guard.place("t")) == {"p=b/f": "b", "p=d/f": "d"}


EXPRESSION = """
import sys, base64
from pyspark.java_gateway import launch_gateway
gateway = launch_gateway()
ql = gateway.jvm.org.apache.hadoop.hive.ql
types = gateway.jvm.org.apache.hadoop.hive.serde2.typeinfo.TypeInfoFactory
children = gateway.jvm.java.util.ArrayList()
children.add(ql.plan.ExprNodeColumnDesc(types.stringTypeInfo, "p", "t", True))
children.add(ql.plan.ExprNodeConstantDesc(types.stringTypeInfo, "b"))
node = ql.plan.ExprNodeGenericFuncDesc(types.booleanTypeInfo, ql.udf.generic.GenericUDFOPGreaterThan(), children)
print(base64.b64encode(bytes(ql.exec.SerializationUtilities.serializeExpressionToKryo(node))).decode())
gateway.shutdown()
"""


@pytest.fixture(scope="module")
def greater_than_b() -> bytes:
    """p > 'b' as Hive's own client serializes it."""
    environment = {**os.environ, **spark_environment(find_java(os.environ))}
    done = subprocess.run([sys.executable, "-c", EXPRESSION], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return base64.b64decode(done.stdout.split()[-1])


def test_partitions_dropped_by_an_expression_are_kept(guard: Guarded, greater_than_b: bytes) -> None:
    if is_newer(guard.running.uri):
        pytest.skip("an expression is for the server of its client's version, and Spark's is Hive 2.3")
    guard.database.partitioned("t", {value: {"f": value} for value in "abcd"})
    expressions = struct({2: [struct({1: greater_than_b})]})
    guard.call("drop_partitions_req", struct({1: guard.db, 2: "t", 3: expressions, 4: True}))
    assert guard.taken() == {"t/p=c/f": "c", "t/p=d/f": "d"}
    assert guard.direct.partition_names(guard.db, "t") == ["p=a", "p=b"]
    assert contents(guard.place("t")) == {"p=a/f": "a", "p=b/f": "b"}


def test_a_database_dropped_with_its_tables_is_kept_table_by_table(guard: Guarded) -> None:
    guard.database.table("t", FILES)
    guard.database.partitioned("parts", {"a": {"f": "a"}})
    view = Table(db=guard.db, name="view", kind="VIRTUAL_VIEW", view_original="SELECT 1", view_expanded="SELECT 1")
    guard.direct.create_table(view)
    guard.database.function("f")
    guard.call("drop_database", guard.db, True, True)
    assert guard.db not in guard.direct.database_names()
    assert guard.taken() == {"t/one": FILES["one"], "t/two": FILES["two"], "parts/p=a/f": "a"}
    named = {(row["table"], event) for row, event in guard.entries()}
    assert len(named) == 2 and {guard.events()[event] for _, event in named} == {"DROP_TABLE"}


def test_a_dropped_databases_directory_goes_when_it_is_empty_and_stays_when_it_is_not(guard: Guarded) -> None:
    guard.call("drop_database", guard.db, True, False)
    assert not guard.database.home.exists()
    guard.database.create()
    guard.database.table("outside", {"f": "external"}, kind=EXTERNAL)
    guard.call("drop_database", guard.db, True, True)
    assert contents(guard.database.home) == {"outside/f": "external"}, "the metastore itself would have deleted it"


def test_what_a_metastore_would_not_delete_is_not_taken(guard: Guarded) -> None:
    guard.database.table("external", FILES, kind=EXTERNAL)
    guard.database.table("managed", FILES)
    guard.call("drop_table", guard.db, "external", True)
    guard.call("drop_table", guard.db, "managed", False)
    assert contents(guard.place("external")) == FILES == contents(guard.place("managed"))
    assert guard.entries() == [] and guard.direct.table_names(guard.db) == []


def test_an_external_table_that_is_to_be_purged_is_kept(guard: Guarded) -> None:
    guard.database.table("t", FILES, kind=EXTERNAL)
    guard.database.alter("t", **{"external.table.purge": "true"})
    guard.call("drop_table", guard.db, "t", True)
    assert guard.taken() == {"t/one": FILES["one"], "t/two": FILES["two"]}
    assert not guard.place("t").exists()


def test_a_table_without_its_directory_can_be_dropped(guard: Guarded) -> None:
    guard.database.table("t")
    os.rmdir(guard.place("t"))
    guard.call("drop_table", guard.db, "t", True)
    assert guard.direct.table_names(guard.db) == [] and guard.is_settled()


# ---- what is refused ------------------------------------------------------------------------------------------------


def states(place: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in [place, *place.rglob("*")]}


def test_what_the_metastore_refuses_is_back_as_it_was(guard: Guarded) -> None:
    guard.database.partitioned("t", {"a": {"f": "a"}, "b": {"f": "b"}})
    before = states(guard.place("t") / "p=a")
    some = struct({1: guard.db, 2: "t", 3: struct({1: ["p=a", "p=missing"]}), 4: True, 5: False})
    output = guard.client.call("drop_partitions_req", some)
    assert output.failed and "partitions to drop are missing" in output.message
    assert states(guard.place("t") / "p=a") == before
    assert guard.entries() == [] and guard.is_settled()
    assert guard.direct.partition_names(guard.db, "t") == ["p=a", "p=b"]


def test_a_truncation_that_the_metastore_does_not_know_changes_nothing(guard: Guarded) -> None:
    """2.3 has none; newer ones are played by `test_gateway_truncation`."""
    if is_newer(guard.running.uri):
        pytest.skip("newer servers know truncations: test_hive4")
    guard.database.table("t", FILES)
    before = states(guard.place("t"))
    for name in ("truncate_table", "truncate_table_req"):
        arguments = [guard.db, "t"] if name == "truncate_table" else [struct({1: guard.db, 2: "t"})]
        output = guard.client.call(name, *arguments)
        assert output.protocol_error and "Invalid method" in output.message
        assert states(guard.place("t")) == before and guard.entries() == [] and guard.is_settled()


def test_what_does_not_exist_is_told_by_the_metastore(guard: Guarded) -> None:
    guard.database.partitioned("t", {"a": {"f": "a"}})
    for name, *arguments in (
        ("drop_table", guard.db, "none", True),
        ("drop_partition", guard.db, "t", ["x"], True),
        ("drop_partition", guard.db, "none", ["x"], True),
        ("drop_partition", guard.db, "t", ["a", "b"], True),
        ("drop_database", "no_such_db", True, True),
    ):
        through, direct = guard.client.call(name, *arguments), None
        with RawClient(guard.running.uri) as client:
            direct = client.call(name, *arguments)
        assert through == direct and through.failed, name
    assert contents(guard.place("t")) == {"p=a/f": "a"} and guard.is_settled()


@pytest.mark.parametrize("name", ["drop_everything", "purge_table"])
def test_an_unknown_call_is_refused_unless_it_is_allowed(source_metastore: Running, tmp_path: Path, name: str) -> None:
    with guarded(source_metastore, tmp_path) as guard:
        output = guard.client.call(name, "x")
        assert output.failed and "--pass-unknown-drops" in output.message
        guard.call("get_all_databases")  # the connection goes on
        assert guard.gateway.stop().refused == 1
    with guarded(source_metastore, tmp_path, pass_unknown=True) as guard:
        assert "Invalid method name" in guard.client.call(name, "x").message


def test_the_drop_of_a_catalog_is_always_refused(source_metastore: Running, tmp_path: Path) -> None:
    with guarded(source_metastore, tmp_path, pass_unknown=True) as guard:
        assert "cannot protect" in guard.client.call("drop_catalog", struct({1: "sales"})).message


def test_a_drop_in_another_catalog_is_refused(guard: Guarded) -> None:
    guard.database.table("t", FILES)
    output = guard.client.call("drop_table", f"@other#{guard.db}", "t", True)
    assert output.failed and "catalog other" in output.message and not output.protocol_error
    assert contents(guard.place("t")) == FILES


def test_a_cmroot_among_the_files_of_a_table_refuses_its_drop(source_metastore: Running, tmp_path: Path) -> None:
    inside = source_metastore.warehouse / "inside.db" / "t"
    with guarded(source_metastore, tmp_path, cmroot=inside / "cmroot") as guard:
        storage = guard.database.table("x").storage
        assert storage is not None
        moved = type(storage)(**{**_fields(storage), "location": f"file:{inside}"})
        guard.direct.create_table(Table(db=guard.db, name="t", storage=moved))
        output = guard.client.call("drop_table", guard.db, "t", True)
        assert output.failed and "or is inside of it" in output.message
        assert "t" in guard.direct.table_names(guard.db) and inside.exists()


@pytest.mark.parametrize("below", ["files", "", ".."])
def test_a_table_whose_directory_leads_into_the_root_is_not_dropped(guard: Guarded, tmp_path: Path, below: str) -> None:
    """A managed table at a link to `$cmroot`, or below one: what the root has stays, and the drop is refused."""
    link = tmp_path / "link"
    link.symlink_to(guard.root.place)
    guard.database.table("kept", FILES)
    guard.call("drop_table", guard.db, "kept", True)
    table = guard.database.table("t")
    assert table.storage
    storage = type(table.storage)(**{**_fields(table.storage), "location": f"file:{link / below}"})
    guard.direct.alter_table(guard.db, "t", type(table)(**{**_fields(table), "storage": storage}))
    before = contents(Path(guard.root.files))
    output = guard.client.call("drop_table", guard.db, "t", True)
    assert output.failed and "change-management root" in output.message
    assert contents(Path(guard.root.files)) == before and len(before) == 2
    assert guard.direct.table_names(guard.db) == ["t"] and guard.is_settled() and link.is_symlink()
