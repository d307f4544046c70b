"""decode: a recorded notification log becomes changes, and these a plan, on one core."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
from hmsclient.genthrift.hive_metastore import ttypes

from benchmarks import ground
from benchmarks.bootstrapping import raw_client
from benchmarks.measure import Figures, Outcome, Timed, interleaved, median
from replicator.captures.dumps.layout import INCREMENTAL, DumpMetadata, Point, Scope
from replicator.core.model import Database, NotificationEvent
from replicator.metastore.events.notification_log import decode
from replicator.metastore.events.record import ChangeRecord, decode_line, encode
from replicator.metastore.thrift import ThriftMetastore
from replicator.replay.deciding import make_plan
from replicator.replay.placement import Placement
from replicator.replay.plan import Plan
from replicator.replay.squash import squash, surviving_partitions
from replicator.replay.target import TargetDatabase

ROUNDS = {"full": 100, "small": 20}  # of about 100 events each
REPEAT = {"full": 3, "small": 2}
WANTED = 10_000


def run(size: str, runs: int, directory: Path) -> Outcome:
    with ground.metastore(directory) as client:
        ground.create_database(client, "wide")
        after = client.current_event_id()
        _write_log(client, ROUNDS[size])
        events = client.next_events(after, 1_000_000)
        database = client.database("wide")
        tables = client.tables("wide", client.table_names("wide"))
    kinds = Counter(event.type for event in events)
    average = sum(len(event.message or "") for event in events) / len(events)
    there = {"wide": TargetDatabase(database, {table.name: table for table in tables})}
    records = _records(events)
    lines = [encode(record) for record in records]
    assert all(record.change.unread is None for record in records)
    figures = Figures()
    steps: dict[str, Callable[[], object]] = {
        "decode": lambda: _records(events),
        "decode, squash and plan": lambda: _plan(_records(events), database, there),
        "records to JSON": lambda: [encode(record) for record in records],
        "JSON to records, squash and plan": lambda: _plan([decode_line(line) for line in lines], database, there),
    }
    contestants: dict[str, Timed] = {
        name: lambda _, name=name, work=work: figures.timed(name, work)  # type: ignore[misc]
        for name, work in steps.items()
    }
    for work in contestants.values():
        work(0)
    took = interleaved(max(runs, 3), contestants)
    outcome = Outcome(["step", "events/s and core", "wanted"], figures=figures)
    for name, seconds in took.items():
        wanted = f">= {WANTED:,}" if name == "decode, squash and plan" else ""
        outcome.rows.append([name, f"{len(events) / median(seconds):,.0f}", wanted])
    listed = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    outcome.remarks.append(f"The log: {len(events):,} events ({listed}), {average:,.0f} bytes of message on average.")
    return outcome


def _write_log(client: ThriftMetastore, rounds: int) -> None:
    """Mixed changes of wide tables, made on a real metastore."""
    place = ground.create_table(client, "wide", "parts")
    ground.create_table(client, "wide", "flat", partitioned=False)
    transport, raw = raw_client(client.uri)
    for number in range(rounds):
        values = [f"{number:05d}-{index:02d}" for index in range(40)]
        for value in values:
            (place / f"day={value}").mkdir()
        for start in range(0, 40, 2):  # 20 events of 2 partitions each
            client.add_partitions("wide", "parts", [ground.partition(place, v, 0) for v in values[start : start + 2]])
        changed = [ground.partition(place, value, 1) for value in values]
        client.alter_partitions("wide", "parts", changed)  # 40 events
        table = client.table("wide", "flat")
        for index in range(15):
            comment = {"comment": f"{number}-{index}"}
            client.alter_table("wide", "flat", msgspec.structs.replace(table, parameters=table.parameters | comment))
        for value in values[:15]:
            data = ttypes.InsertEventRequestData(
                filesAdded=[f"file:{place}/day={value}/part-0"], filesAddedChecksum=[""]
            )
            raw.fire_listener_event(
                ttypes.FireEventRequest(
                    successful=True,
                    data=ttypes.FireEventRequestData(insertData=data),
                    dbName="wide",
                    tableName="parts",
                    partitionVals=[value],
                )
            )
        client.drop_partitions("wide", "parts", [f"day={value}" for value in values[30:]])  # 10 events
        if number % 10 == 0:
            ground.create_table(client, "wide", f"passing_{number}", partitioned=False)
            client.drop_table("wide", f"passing_{number}")
    transport.close()


def _records(events: list[NotificationEvent]) -> list[ChangeRecord]:
    return [
        ChangeRecord(position=number, event=event.id, time=event.time, change=decode(event).change)
        for number, event in enumerate(events, 1)
    ]


def _plan(records: list[ChangeRecord], database: Database, there: dict[str, TargetDatabase]) -> None:
    last = records[-1]
    end = Point(last.position, last.event, last.time)
    metadata = DumpMetadata(
        id="bench",
        kind=INCREMENTAL,
        created="",
        scope=Scope(databases=("wide",)),
        source="",
        root="/r",
        root_id="r",
        begin=Point(0, 0, 0),
        end=end,
        locations={"wide": "/source/wide.db"},
        records=len(records),
        files=0,
        removed=0,
        bytes=0,
        observed=0,
        buckets=1,
    )
    placement = Placement(
        databases={"wide": "wide"},
        source_locations={"wide": database.location or ""},
        target_locations={"wide": "/target/wide.db"},
        external="/target/external",
    )
    squashed = squash(records, (), bootstrap=False)
    make_plan(Plan(metadata, placement, 0, squashed, overwrite=True), there)
    for _ in surviving_partitions(squashed, records):
        pass
