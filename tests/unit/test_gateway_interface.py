"""No method of any known metastore passes the gateway without a decision, and none that deletes files unprotected."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import hmsclient.genthrift.hive_metastore.ThriftHiveMetastore as of_2_3
import pymetastore.hive_metastore.ThriftHiveMetastore as of_3
import pytest
from hive_metastore import ThriftHiveMetastore as of_4

from replicator.captures.gateways.messages import SHAPES
from replicator.captures.gateways.upstream import PASSED, REFUSED, REMOVING, handling

ONLY_4_2 = """
abort_Compactions add_write_ids_to_min_history alter_database_req alter_dataconnector_req append_partition_req
create_database_req create_dataconnector_req delete_column_statistics_req drop_dataconnector_req drop_partition_req
drop_table_req fetch_partition_names_req get_databases_req get_functions_req get_partitions_by_filter_req
get_properties get_replayed_txns_for_policy set_properties submit_for_cleanup
"""
"""Methods of 4.2.0, by the classes of its server, that no bindings have."""

DELETING = {"deleteData", "purge", "ifPurge", "cascade", "deleteManagedDir"}
"""Names of arguments that only a call has that deletes, or may delete, what belongs to an object."""

KEEPING = {"alter_table_with_cascade", "drop_dataconnector", "drop_index_by_name", "cm_recycle"}
"""What has such an argument or name, and passes: see `upstream.REMOVING`, or it has no files."""


def methods(bindings: ModuleType) -> dict[str, Any]:
    """Name -> its arguments' class."""
    client = {name for name, _ in inspect.getmembers(bindings.Iface, inspect.isfunction)}
    return {name: getattr(bindings, f"{name}_args", None) for name in client if not name.startswith("__")}


def fields(struct: Any, depth: int = 0) -> Iterator[str]:
    """Names of a struct's fields, and of structs in it."""
    for spec in filter(None, getattr(struct, "thrift_spec", None) or ()):
        yield spec[2]
        if isinstance(spec[3], (list, tuple)) and spec[3] and inspect.isclass(spec[3][0]) and depth < 2:
            yield from fields(spec[3][0], depth + 1)


@pytest.mark.parametrize("bindings", [of_2_3, of_3, of_4], ids=["2.3", "3", "4"])
def test_every_method_has_its_handling(bindings: ModuleType) -> None:
    known = methods(bindings)
    assert len(known) > 150
    assert not [name for name in known if handling(name) == "unknown"]


def test_every_method_of_4_2_has_its_handling() -> None:
    assert not [name for name in ONLY_4_2.split() if handling(name) == "unknown"]


@pytest.mark.parametrize("bindings", [of_2_3, of_3, of_4], ids=["2.3", "3", "4"])
def test_no_method_that_can_delete_passes(bindings: ModuleType) -> None:
    for name, arguments in methods(bindings).items():
        deleting = DELETING & set(fields(arguments))
        if deleting and name not in KEEPING:
            assert handling(name) in ("intercept", "refuse"), f"{name} has {deleting}"
        if re.match("drop_(table|partition|database|catalog)|truncate", name):
            assert handling(name) in ("intercept", "refuse"), name


def test_a_method_that_nobody_knows_does_not_pass() -> None:
    for name in ("drop_everything", "truncate_database", "purge_table", "remove_files", "drop_partitions_req2"):
        assert handling(name) == "unknown"
    assert handling("get_everything") == handling("list_more") == "pass"


def test_a_method_is_in_one_list_only() -> None:
    assert not PASSED & set(SHAPES) and not PASSED & REFUSED and not REFUSED & set(SHAPES) and PASSED > REMOVING
