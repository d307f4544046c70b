"""What is published as what has landed: rows that were copied to others are bound to these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from replicator.core.model import Column, Partition, Table
from replicator.core.source_config import IngestionConfig, SourceConfig
from replicator.errors import MetastoreUnreachable, ObjectNotFound
from replicator.ingestion.ingestion_request import Asset, Claimed, Request
from replicator.ingestion.landing.erased import Erased, refuse_empty_list
from replicator.ingestion.landing.file_steps import publish_days
from replicator.ingestion.landing.landing_log import Work
from replicator.ingestion.landing.landing_schema import (
    DESCRIPTOR,
    SEAL,
    RowsRefused,
    constraints_of,
    landed_until,
    seal_of,
    watermark_text,
)
from replicator.ingestion.landing.landing_steps import describe
from replicator.ingestion.landing.publishing import BaseChanged, Landed, publish
from replicator.ingestion.reading.source_table import ForeignKey, SourceTable
from replicator.lifecycle.housekeeping.settings import UNREFERENCED_PERIOD
from replicator.metastore.client import Metastore

CRM = Asset("crm", "olga", sources=("crm",))
APPEND = Request("crm", "crm", "public", "people", mode="append", watermark="id")
MERGE = Request("crm", "crm", "public", "people", mode="merge", key=("id",), watermark="id", schema_policy="recreate")
COLUMNS = (Column("id", "bigint"), Column("email", "string"))


class Tables:
    """A metastore of one table. away: the call that it does not answer."""

    def __init__(self) -> None:
        self.found: Table | None = None
        self.parts: dict[str, Partition] = {}
        self.away = ""

    def table(self, db: str, name: str) -> Table:
        if self.found is None:
            raise ObjectNotFound(f"{db}.{name}")
        return self.found

    def create_table(self, table: Table) -> None:
        if self.away == "create_table":
            raise MetastoreUnreachable("away")
        self.found, self.parts = table, {}

    def alter_table(self, db: str, name: str, table: Table) -> None:
        self.found = table

    def drop_table(self, db: str, name: str) -> None:
        self.found, self.parts = None, {}

    def partition_names(self, db: str, name: str) -> list[str]:
        return [f"landed={each}" for each in self.parts]

    def partitions(self, db: str, name: str, names: Sequence[str]) -> Iterator[list[Partition]]:
        yield [part for value, part in self.parts.items() if {f"landed={value}", f"day={value}"} & {*names}]

    def add_partitions(self, db: str, name: str, parts: Sequence[Partition]) -> None:
        if self.away == "add_partitions":
            raise MetastoreUnreachable("away")
        self.parts = {part.values[0]: part for part in parts} | self.parts

    def alter_partitions(self, db: str, name: str, parts: Sequence[Partition]) -> None:
        self.parts |= {part.values[0]: part for part in parts}

    def constraints(self, db: str, names: Sequence[str]) -> dict[str, Any]:
        return {}

    def table_names(self, db: str) -> list[str]:
        return []

    def current_event_id(self) -> int:
        return 1


@pytest.fixture
def tables() -> Tables:
    return Tables()


def until(tables: Tables, job: int, remembered: dict[str, Any] | None = None, request: Request = APPEND) -> str | None:
    """What a job copies rows behind."""
    return landed_until(cast(Metastore, tables), tables.found, request, COLUMNS, job, remembered or {})


def land(tables: Tables, landed: Landed, request: Request = APPEND, asset: Asset = CRM) -> Any:
    return publish(cast(Metastore, tables), asset, request, landed)


def copied(tables: Tables, job: int, fence: int, high: int, request: Request = APPEND, **more: Any) -> Landed:
    """Rows up to `high`, behind those that are there."""
    low = until(tables, job, more.get("remembered"), request)
    given = {"columns": COLUMNS, "low": low, "watermark": watermark_text(request, str(high))}
    given |= {"location": f"/l/v-{job}-{fence}", **more}
    rows = high - int(low or 0)
    return Landed(job, fence, home="/l", rows=rows, files=1, bytes=1, **given)


def rows_of(tables: Tables) -> dict[str, str]:
    return {value: part.parameters["numRows"] for value, part in tables.parts.items()}


def test_rows_are_not_appended_twice_where_a_call_of_a_job_that_ended_comes_late(tables: Tables) -> None:
    land(tables, copied(tables, 1, 1, 10))
    two, three = copied(tables, 2, 2, 20), copied(tables, 3, 3, 30)
    land(tables, two)
    with pytest.raises(BaseChanged, match="no longer has the rows"):
        land(tables, three)
    again = copied(tables, 3, 3, 30)
    land(tables, again)
    assert rows_of(tables) == {"1": "10", "2": "10", "3": "10"}
    assert land(tables, again).again, "once it is there, other rows than before are no question"


def test_a_partitioned_table_that_is_replaced_is_complete_after_a_death_at_any_call(tables: Tables) -> None:
    land(tables, copied(tables, 1, 1, 10))
    request = msgspec.structs.replace(APPEND, schema_policy="recreate")
    other = (Column("id", "bigint"), Column("email", "binary"))
    whole = copied(tables, 2, 2, 20, request, columns=other, whole=True)
    tables.away = "create_table"
    with pytest.raises(MetastoreUnreachable):
        land(tables, whole, request)
    assert tables.found is None
    tables.away = "add_partitions"
    with pytest.raises(MetastoreUnreachable):
        land(tables, whole, request)
    assert rows_of(tables) == {}
    tables.away = ""
    land(tables, whole, request)
    assert land(tables, whole, request).again
    assert rows_of(tables) == {"2": "10"} and tables.found and tables.found.storage
    assert tables.found.storage.columns == other


def test_what_a_job_has_appended_itself_counts_for_no_other_rows_and_gives_way_to_what_it_copied_again(
    tables: Tables,
) -> None:
    land(tables, copied(tables, 1, 1, 10))
    land(tables, copied(tables, 2, 2, 20))
    for fence, location in ((2, "/l/v-2-2-1"), (3, "/l/v-2-3")):
        land(tables, copied(tables, 2, fence, 30, location=location))
        assert rows_of(tables) == {"1": "10", "2": "20"} and tables.parts["2"].location == location


@pytest.mark.parametrize("request_", [APPEND, MERGE], ids=["append", "merge"])
def test_an_increment_makes_no_table_of_its_own(tables: Tables, request_: Request) -> None:
    land(tables, copied(tables, 1, 1, 10, request_), request_)
    two = copied(tables, 2, 2, 20, request_, base="/l/v-1-1")
    assert two.low == "10"
    tables.drop_table("crm_public", "people")
    with pytest.raises(BaseChanged):
        land(tables, two, request_)
    assert tables.found is None
    land(tables, copied(tables, 2, 2, 20, request_), request_)
    assert until(tables, 3, request=request_) == "20"


def test_what_a_table_had_that_was_dropped_is_not_what_the_next_one_has(tables: Tables) -> None:
    land(tables, copied(tables, 1, 1, 10))
    tables.drop_table("crm_public", "people")
    tables.away = "add_partitions"
    with pytest.raises(MetastoreUnreachable):
        land(tables, copied(tables, 2, 2, 20))
    of_one = {"job": 1, "watermark": watermark_text(APPEND, "10")}
    assert tables.found and until(tables, 3, of_one) is None, "the table that job 2 has made is empty"
    assert until(tables, 4, {**of_one, "job": 3}) == "10", "its partitions have expired"


def test_nothing_is_appended_where_there_is_nothing_new(tables: Tables) -> None:
    land(tables, copied(tables, 1, 1, 10))
    assert land(tables, copied(tables, 2, 2, 10)).empty and rows_of(tables) == {"1": "10"}


def test_a_merge_into_other_columns_copies_all_rows(tables: Tables) -> None:
    land(tables, copied(tables, 1, 1, 10, MERGE), MERGE)
    assert until(tables, 2, request=MERGE) == "10"
    more = (*COLUMNS, Column("country", "string"))
    assert landed_until(cast(Metastore, tables), tables.found, MERGE, more, 2, {}) is None


@pytest.mark.parametrize("mode", ["overwrite", "append", "merge", "days"])
@pytest.mark.parametrize("high", [10, 20], ids=["nothing", "rows"])
def test_a_table_that_is_there_is_known_to_purge_and_housekeeping_as_its_asset_says_now(
    tables: Tables, mode: Any, high: int, tmp_path: Path
) -> None:
    request = msgspec.structs.replace(APPEND, mode="append" if mode == "days" else mode, key=("id",))

    if mode == "days":
        request = msgspec.structs.replace(request, watermark=None)

    def landed(job: int, high: int, asset: Asset) -> None:
        rows = copied(tables, job, job, high, request, base=tables.found and tables.found.location)
        if mode == "days":
            days = {f"2026-11-{high}": "digest"} if high > 10 * (job - 1) else {}
            publish_days(cast(Metastore, tables), asset, request, replace(rows, location=str(tmp_path)), days)
        else:
            land(tables, rows, request, asset)

    landed(1, 10, CRM)
    personal = msgspec.structs.replace(CRM, erasure_ids="gdpr.gone:id", erasure_column="Email", retention="7d")
    landed(2, high, personal)
    assert tables.found
    known = tables.found.parameters
    assert known[DESCRIPTOR] == '{"privacy":{"column":"email"}}' and known[UNREFERENCED_PERIOD] == "PT604800S"
    assert known[SEAL] == seal_of(known)
    landed(3, high, CRM)
    assert not {DESCRIPTOR, UNREFERENCED_PERIOD} & tables.found.parameters.keys(), "nor longer than it says so"


def test_new_columns_of_a_table_that_is_appended_to_stand_at_its_end(tables: Tables) -> None:
    """Readers of ORC know columns by their places."""
    request = msgspec.structs.replace(APPEND, schema_policy="recreate")
    land(tables, copied(tables, 1, 1, 10), request)
    phone = Column("phone", "string")
    land(tables, copied(tables, 2, 2, 20, columns=(COLUMNS[0], phone, COLUMNS[1])), request)
    assert tables.found and tables.found.storage and tables.found.storage.columns == (*COLUMNS, phone)


def test_a_list_of_erased_people_is_remembered_by_a_job_that_has_no_rows(tables: Tables, tmp_path: Path) -> None:
    """So one that is empty by a failed export is refused then, too."""
    directory = tmp_path / "public" / "t"
    directory.mkdir(parents=True)
    (directory / "_description.json").write_text('{"format": "parquet", "days": {"layout": "%Y-%m-%d"}}')
    config = IngestionConfig(landing=str(tmp_path / "l"), sources={"crm": SourceConfig(path=str(tmp_path))})
    asset = msgspec.structs.replace(CRM, erasure_ids="gdpr.gone:id", erasure_column="id")
    remembered: dict[str, Any] = {"erasure_ids": 40_000}
    request = msgspec.structs.replace(APPEND, source="crm", schema="public", table="t")
    for job in (2, 3):
        claimed = Claimed(job, 1, job, "h", request, "", {})
        work = Work(claimed, asset, config, cast(Any, tables), cast(Any, None), None, remembered, lambda _: None)
        remembered = describe(work, {})
    with pytest.raises(RowsRefused, match="had 40000 erased data subjects, and has none now"):
        refuse_empty_list(replace(work, remembered=remembered), Erased(0, 0))


@pytest.mark.parametrize(
    "asked, holds",
    [
        ({}, [True, False]),
        ({"mode": "merge", "key": ("ID",)}, [True, False]),
        ({"mode": "merge", "key": ("email",)}, [False, False]),
        ({"mode": "append", "watermark": "id"}, []),
    ],
)
def test_planners_rely_only_on_keys_that_hold(asked: dict[str, Any], holds: list[bool]) -> None:
    foreign = ForeignKey("f", ("customer",), "public", "customers", ("id",))
    source = SourceTable("public", "t", (), primary_key=("Id",), foreign_keys=(foreign,))
    request = Request(asset="crm", source="crm", schema="public", table="t", **asked)
    assert [each.rely for each in constraints_of(source, request)] == holds
