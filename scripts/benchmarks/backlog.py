"""backlog: the next capture after very many events that change nothing, as the transactions of Hive 4's queries are.

Some transactions are real, on a 4.2 server; their rows are multiplied in its PostgreSQL database. Each capture is a
process of its own, whose peak the kernel tells.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from hmsclient.genthrift.hive_metastore import ttypes
from postgres import running_postgres

from benchmarks import ground
from benchmarks.bootstrapping import raw_client
from benchmarks.measure import Outcome
from replicator.metastore.embedded import running as embedded
from replicator.metastore.events.scope import behind
from replicator.metastore.thrift import ThriftMetastore, connect

EVENTS = {"full": (10_000, 100_000, 1_000_000), "small": (10_000, 100_000)}
REAL = 50  # transactions
PAGE = 10_000
WANTED_MEMORY, WANTED_TIME = 1.3, 3.0

_COLUMNS = '"EVENT_TIME", "EVENT_TYPE", "DB_NAME", "TBL_NAME", "MESSAGE", "MESSAGE_FORMAT", "CAT_NAME"'
_MULTIPLY = f"""
INSERT INTO "NOTIFICATION_LOG" ("NL_ID", "EVENT_ID", {_COLUMNS})
SELECT newest."NL_ID" + n, newest."EVENT_ID" + n, {", ".join(f"model.{each.strip()}" for each in _COLUMNS.split(","))}
FROM generate_series(1, %(count)s) AS n
JOIN (SELECT row_number() OVER (ORDER BY "EVENT_ID") - 1 AS at, * FROM "NOTIFICATION_LOG"
      WHERE "EVENT_ID" > %(after)s AND "EVENT_TYPE" IN ('OPEN_TXN', 'COMMIT_TXN')) AS model
  ON model.at = n %% %(models)s
CROSS JOIN (SELECT max("NL_ID") AS "NL_ID", max("EVENT_ID") AS "EVENT_ID" FROM "NOTIFICATION_LOG") AS newest
"""


def run(size: str, runs: int, directory: Path) -> Outcome:
    outcome = Outcome(["events", "bare calls", "capture", "times the calls", "Python peak", "log", "status", "wanted"])
    with _server(directory) as (client, database):
        place = ground.create_database(client, "many")
        ground.create_table(client, "many", "t", partitioned=False)
        (place / "t" / "f").write_text("1")
        ground.captured(client, str(directory / "cmroot"), ["many"], ground.engine())
        after = client.current_event_id()
        _transact(client)
        idle = _child(client.uri, directory, 0)["python"]
        for count in EVENTS[size]:
            begin = client.current_event_id()
            with psycopg.connect(database) as connection:
                connection.execute(_MULTIPLY, {"count": count, "after": after, "models": 2 * REAL})
                connection.execute('UPDATE "NOTIFICATION_SEQUENCE" SET "NEXT_EVENT_ID" = "NEXT_EVENT_ID" + %s', [count])
                connection.execute(
                    'UPDATE "SEQUENCE_TABLE" SET "NEXT_VAL" = (SELECT max("NL_ID") + 100 FROM '
                    '"NOTIFICATION_LOG") WHERE "SEQUENCE_NAME" LIKE %s',
                    ["%MNotificationLog"],
                )
            answer = _child(client.uri, directory, begin)
            assert answer["events"] == count and answer["through"] == begin + count, answer
            assert (answer["records"], answer["listed"]) == (1, 0), answer
            bare = _read_bare(client.uri, begin, begin + count)
            outcome.rows.append(
                [
                    f"{count:,}",
                    f"{bare:.2f} s",
                    f"{answer['seconds']:.2f} s",
                    f"{answer['seconds'] / bare:.2f}",
                    f"{answer['python']:.0f} MB",
                    f"{answer['bytes']:,.0f} bytes",
                    f"{answer['status']:.2f} s",
                    f"<= {WANTED_TIME} times, <= {WANTED_MEMORY} times the idle peak",
                ]
            )
    outcome.remarks.append(
        f"A capture without new events has a peak of {idle:.0f} MB. `log`: what the capture added to the captured log; "
        "`status`: how long `replicator status` asks for what waits, before the capture."
    )
    return outcome


@contextmanager
def _server(directory: Path) -> Iterator[tuple[ThriftMetastore, str]]:
    """A 4.2 server, and the URL of its database."""
    with running_postgres() as server:
        settings = server.jdbc()
        try:
            running = embedded.start(directory / "metastore", hive="4.2", settings=settings, env=os.environ)
            with connect(running.uri) as client:
                url = settings["javax.jdo.option.ConnectionURL"].removeprefix("jdbc:postgresql://")
                yield client, f"postgresql://{settings['javax.jdo.option.ConnectionUserName']}@{url}"
        finally:
            embedded.stop(directory / "metastore")


def _transact(client: ThriftMetastore) -> None:
    """As so many queries open and end them."""
    transport, raw = raw_client(client.uri)
    for _ in range(REAL):
        opened = raw.open_txns(ttypes.OpenTxnRequest(num_txns=1, user="bench", hostname="bench"))
        raw.commit_txn(ttypes.CommitTxnRequest(txnid=opened.txn_ids[0]))
    transport.close()


def _read_bare(uri: str, after: int, newest: int) -> float:
    """Seconds of the bare calls for these events."""
    transport, raw = raw_client(uri)
    began = time.perf_counter()
    while after < newest:
        request = ttypes.NotificationEventRequest(lastEvent=after, maxEvents=PAGE)
        after = raw.get_next_notification(request).events[-1].eventId
    took = time.perf_counter() - began
    transport.close()
    return took


def _child(uri: str, directory: Path, after: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.backlog", uri, str(directory / "cmroot"), str(after)]
    answer: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return answer


def measured(uri: str, root: str, after: int) -> dict[str, float]:
    """The next capture of `many`, and the look for what waits since an event; times in seconds, the peak in MB."""
    with connect(uri) as client:
        began = time.perf_counter()
        behind(client, after, time.time)
        looked = time.perf_counter() - began
        before = _bytes(root)
        began = time.perf_counter()
        _, captured = ground.captured(client, root, ["many"], ground.engine())
        seconds = time.perf_counter() - began
    return {
        "events": captured.events,
        "records": captured.records,
        "through": captured.through_event,
        "listed": len(captured.unknown) + len(captured.unknown_kinds) + len(captured.warnings),
        "seconds": seconds,
        "status": looked,
        "python": ground.peak(),
        "bytes": _bytes(root) - before,
    }


def _bytes(root: str) -> int:
    return sum(each.stat().st_size for each in Path(root, "log").rglob("*") if each.is_file())


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
