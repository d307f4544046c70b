"""Objects as they stand on the target."""

from __future__ import annotations

from replicator.core.model import Table
from replicator.metastore.requests import CATALOG
from replicator.replay.placement import Placement
from replicator.replay.replica import Mark, replica_table


def test_a_materialized_view_names_what_it_reads_without_its_catalog() -> None:
    """HiveServer2 sends `catalog.database.table`; older clients `database.table`."""
    used = ["lake.sales.orders", "sales.days", "other.sales.orders", "lake.t"]
    read = {"1": {"rec": {"1": {"str": "orders"}, "2": {"str": "sales"}, "17": {"str": "lake"}}}}
    made = {"1": {"str": "lake"}, "2": {"str": "sales"}, "3": {"str": "mv"}, "4": {"set": ["str", 4, *used]}}
    made["7"] = {"lst": ["rec", 1, read]}
    table = Table(db="sales", name="mv", kind="MATERIALIZED_VIEW", extra={"16": {"rec": made}})
    placement = Placement({"sales": "copy"}, {"sales": "/a"}, {"sales": "/b"}, None)
    fields = replica_table(table, placement, Mark(1, 1, "s")).extra["16"]["rec"]
    assert fields["4"]["set"][2:] == ["copy.orders", "copy.days", "other.sales.orders", "lake.t"]
    assert (fields["1"]["str"], fields["2"]["str"]) == (CATALOG, "copy")
    (source,) = (each["1"]["rec"] for each in fields["7"]["lst"][2:])
    assert source == {"1": {"str": "orders"}, "2": {"str": "copy"}}
    assert made["1"]["str"] == "lake" and made["4"]["set"][2:] == used
