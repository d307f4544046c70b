"""A dump of a database with plain, Delta, Iceberg and transactional tables ends at one position: `show`, pages,
recovery points and restores name the state of each table there, and other readers find it in a restored copy."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import deltalake
import msgspec
import pyarrow as pa
import pytest
import web
from acid_tables import AcidLab, acid_lab
from command_line import Answer, command
from hive_metastore import ttypes
from hive_objects import hive_client
from iceberg_spark import IcebergSpark
from iceberg_tables import catalog
from lab import Lab
from plain_tables import text_storage
from pool import Pool
from running_service import Service

from cmroot.log.captured import segments
from replicator.captures.dumps.table_moments import moments_at
from replicator.cli.main import run
from replicator.core.model import EXTERNAL, Table
from replicator.metastore.embedded.running import Running

Moments = dict[str, str]


@pytest.fixture
def acid(pool: Pool, tmp_path: Path) -> Iterator[AcidLab]:
    with acid_lab(pool, tmp_path) as made:
        yield made


def append(place: Path, number: int) -> None:
    deltalake.write_deltalake(str(place), pa.table({"id": pa.array([number], pa.int64())}), mode="append")


def write(lab: AcidLab, lake: IcebergSpark, number: int) -> None:
    """One more state of each table; of the transactional one with a transaction that is rolled back."""
    lab.source.write("plain", {f"{number}": "row"})
    lab.source.alter("plain", last=str(number))
    append(lab.source.home / "delta", number)
    lake(f"insert into c.{lab.name}.ice values ({number}), ({number + 100})")
    lab.run(f"insert into {{db}}.acid values ({number}, 'n')")
    lab.rolled_back(f"insert into {{db}}.acid values ({number}, 'aborted')")


def moments(running: Running, db: str) -> Moments:
    """The states of a database's tables as other readers find them: Delta's version by delta-rs, Iceberg's snapshot by
    PyIceberg, the write ids by the metastore itself."""
    with hive_client(running) as client:
        there = urlsplit(client.thrift.get_table(db, "delta").sd.location).path
        high = client.thrift.get_open_txns().txn_high_water_mark
        snapshot = f"{high}:{2**63 - 1}::"
        request = ttypes.GetValidWriteIdsRequest(fullTableNames=[f"{db}.acid"], validTxnList=snapshot)
        (ids,) = client.thrift.get_valid_write_ids(request).tblValidWriteIds
    ice = catalog(running.uri).load_table(f"{db}.ice")
    file = ice.metadata_location.rpartition("/")[2]
    return {
        "acid": f"write ids to {ids.writeIdHighWaterMark}",
        "delta": f"version {deltalake.DeltaTable(there).version()}",
        "ice": f"snapshot {ice.metadata.current_snapshot_id} ({file})",
    }


def compared(named: Moments) -> Moments:
    """Without the numbers of open and aborted ids: a copy has no aborted ones, as it lacks their files."""
    return {name: moment.partition(",")[0] for name, moment in named.items()}


def last_of(records: list[dict[str, Any]]) -> Moments:
    """The last moment that `show` names of each table."""
    named = {}
    for each in records:
        if "moment" in each:
            change = each["change"]
            table = change["table"]
            named[table["name"] if isinstance(table, dict) else table] = each["moment"]
    return named


def restore(lab: Lab, position: int, *more: str) -> Answer:
    arguments = ["--cmroot", str(lab.cmroot), "--db", lab.name, "--to", f"@{position}", "--target", lab.target_uri]
    return command("restore", *arguments, "--engine", "local", *more)


def printed(*arguments: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run(arguments) == 0
    return out.getvalue()


def test_versions_of_a_table_that_is_renamed_replaced_and_made_again(fixture: Lab) -> None:
    """After each capture, delta-rs reads the version; a second table of that name is in the way."""
    db, places = fixture.source, {}
    wanted = dict[int, dict[str, str]]()

    def make(name: str, *numbers: int, path: str = "") -> None:
        parameters = {"EXTERNAL": "TRUE", "spark.sql.sources.provider": "delta"}
        place = places[name] = db.home / (path or name)
        table = Table(db=db.name, name=name, kind=EXTERNAL, storage=text_storage(place), parameters=parameters)
        db.metastore.create_table(table)
        for each in numbers:
            append(place, each)

    def rename(old: str, new: str) -> None:
        db.rename(old, new)
        places[new] = places.pop(old)

    def drop(name: str) -> None:
        db.metastore.drop_table(db.name, name)
        shutil.rmtree(places.pop(name))

    def replace_log() -> None:
        """Another table at the same place, without a statement in the metastore."""
        shutil.rmtree(places["t"])
        append(places["t"], 7)

    def to_plain() -> None:
        there = db.metastore.table(db.name, "t")
        parameters = {key: value for key, value in there.parameters.items() if key != "spark.sql.sources.provider"}
        db.metastore.alter_table(db.name, "t", msgspec.structs.replace(there, parameters=parameters))
        del places["t"]

    for step in (
        lambda: make("t", 1, 2, 3, path="elsewhere"),
        lambda: append(places["t"], 4),
        lambda: (rename("t", "u"), make("t", 1)),
        lambda: (drop("u"), append(places["t"], 2)),
        replace_log,
        lambda: make("v", 1, 2),
        lambda: (drop("v"), make("v", 1)),
        to_plain,
    ):
        step()
        captured = fixture.capture()
        assert captured.code == 0, captured
        position = captured.output["position"]
        wanted[position] = {name: f"version {deltalake.DeltaTable(str(at)).version()}" for name, at in places.items()}
    log = segments(str(fixture.cmroot))
    for position, there in wanted.items():
        found = moments_at(log, [db.name], position)
        assert {each.table.partition(".")[2]: each.moment for each in found} == there, position
        planned = restore(fixture, position, "--dry-run")
        assert (planned.code, planned.output["moments"]) == (0, there), position
    shown = json.loads(printed("show", str(fixture.cmroot), "--table", f"{db.name}.t", "--json"))
    assert [each["moment"] for each in shown["records"] if "moment" in each][-3:] == [
        "version 0",
        "version 1",
        "version 0",
    ]


@pytest.mark.long
def test_the_moment_of_each_table_is_named_and_found_in_a_restored_copy(acid: AcidLab, tmp_path: Path) -> None:
    acid.make("acid")
    acid.source.table("plain")
    acid.source.table("delta", kind=EXTERNAL)
    acid.source.alter("delta", **{"spark.sql.sources.provider": "delta"})
    wanted, plain = dict[int, Moments](), dict[int, list[str]]()
    with IcebergSpark(acid.source_uri, acid.source.home.parent) as lake:
        lake(f"create table c.{acid.name}.ice (id bigint) using iceberg tblproperties ('format-version' = '2')")
        for number in range(6):
            write(acid, lake, number)
            if number % 2:
                before = acid.last if acid.dumps else None
                dumped = acid.dump(since=before)
                assert dumped.code == 0, dumped
                position = dumped.output["to_position"]
                wanted[position] = moments(acid.hive, acid.name)
                plain[position] = sorted(path.name for path in (acid.source.home / "plain").iterdir())
                shown = json.loads(printed("show", str(acid.last), "--json"))
                assert shown["end"]["position"] == position
                assert compared(last_of(shown["records"])) == wanted[position]
    assert len({str(each) for each in wanted.values()}) == 3, wanted
    newest = max(wanted)

    service = Service(tmp_path)
    service.configure({}, {"west": {**acid.keys, "databases": acid.name}})
    service.start()
    try:
        for position, there in wanted.items():
            found = service.get(f"policies/west/restore-points/tables?at=@{position}")
            assert (found["position"], found["databases"]) == (position, [acid.name])
            named = {each["table"].partition(".")[2]: each["moment"] for each in found["tables"]}
            assert compared(named) == there, "all tables at this point"
            page = web.get(f"{service.urls[0]}/policies/west/restore-points?at=@{position}").text
            assert f"Tables at @{position}" in page and all(each in page for each in named.values())
        listed = {each["table"].partition(".")[2]: each["moment"] for each in service.get("tables")["tables"]}
        assert listed.pop("plain") == "" and compared(listed) == wanted[newest], "as of the last capture"
        for page in ("policies/west", "tables?policy=west"):
            text = web.get(f"{service.urls[0]}/{page}").text
            assert all(each in text for each in listed.values()), page
        root = "policies/west/cmroot"
        for name, moment in listed.items():
            entries = service.get(f"tables/{acid.name}.{name}/timeline?kind=record&order=newest&root={root}")["entries"]
            assert next(each["moment"] for each in entries if each["moment"]) == moment
            assert moment in web.get(f"{service.urls[0]}/tables/{acid.name}.{name}").text
        entries = service.get(f"tables/{acid.name}.delta/timeline?kind=record&root={root}")["entries"]
        versions = [each["moment"] for each in entries if each["moment"]]
        assert versions == ["version 1", "version 3", "version 5"], "each row of the table's page"
    finally:
        service.stop()

    for position, there in wanted.items():
        into = f"{acid.name}_at_{position}"
        planned, restored = (
            restore(acid, position, "--into", into, "--dry-run"),
            restore(acid, position, "--into", into),
        )
        assert (planned.code, restored.code) == (0, 0), (planned, restored)
        assert planned.output["moments"] == restored.output["moments"]
        named = compared(restored.output["moments"])
        assert named == moments(acid.target_running, into) == there
        copy = Path(urlsplit(str(acid.target.metastore.table(into, "plain").location)).path)
        assert sorted(path.name for path in copy.iterdir()) == plain[position]
    line = printed(
        *("restore", "--cmroot", str(acid.cmroot), "--db", acid.name, "--to", f"@{newest}", "--dry-run"),
        *("--target", acid.target_uri, "--into", f"{acid.name}_x", "--engine", "local"),
    )
    assert all(f"{name}: {moment}" in line for name, moment in restored.output["moments"].items())
