"""tables: a warehouse of many small tables, dumped, loaded, verified and followed, against bare thrift calls over as
many connections as the server answers fastest."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from hmsclient.genthrift.hive_metastore import ttypes

from benchmarks import ground
from benchmarks.bootstrapping import partition_requests, raw_client
from benchmarks.measure import Outcome, interleaved, median, ratio, s, timed
from cmroot.root import ChangeRoot
from replicator.compare.both_sides import Comparison
from replicator.compare.verify import verify
from replicator.core.grouping import batched
from replicator.core.model import EXTERNAL, Table
from replicator.core.runtime import Runtime
from replicator.metastore import requests
from replicator.metastore.fields import method
from replicator.metastore.requests import CATALOG, table_to_thrift
from replicator.metastore.thrift import ThriftMetastore
from replicator.replay.apply.load import load
from replicator.replay.apply.planning import LoadSettings

TABLES = {"full": (100, 400, 2_000), "small": (100, 400)}
PARTITIONS = {"full": 25, "small": 10}
CONNECTIONS = (1, 2, 4, 8, 16)
TRIED = 40  # tables for each number of connections, twice
INCREMENTS = 5
WANTED, FLAT = 1.3, 1.5

Send = Callable[[Any], object]  # what to do with a raw client


def run(size: str, runs: int, directory: Path, *, tables: str = "", partitions: int = 0, hive: str = "2.3") -> Outcome:
    """tables: how many, one warehouse after the other; partitions: in each table. Otherwise as the size says."""
    counts = sorted(map(int, tables.split(","))) if tables else TABLES[size]
    partitions = partitions or PARTITIONS[size]
    outcome = Outcome(["tables", "step", "bare calls", "ours", "times the calls", "wanted"])
    widths: _Widths | None = None
    increments: dict[str, list[float]] = {}
    for count in counts:
        here = directory / str(count)
        here.mkdir()
        warehouse = _Warehouse(here, count, partitions, hive)
        with ground.metastore(here, "source", hive) as source, ground.metastore(here, "target", hive) as target:
            widths = widths or _try(source, here, partitions)
            outcome.rows += _measure(warehouse, source, target, widths, runs, increments)
        shutil.rmtree(here)
    assert widths
    for step, seconds in increments.items():
        grows = f"{seconds[-1] / seconds[0]:.2f} (last to first)"
        outcome.rows.append(["", step, "", ", ".join(f"{each:.2f} s" for each in seconds), grows, f"<= {FLAT}"])
    outcome.remarks.append(
        f"Hive {hive}; {partitions} partitions of one file in each table; bare calls: writes over "
        f"{widths.writes} and reads over {widths.reads} connections, the best of {', '.join(map(str, CONNECTIONS))}."
    )
    return outcome


@dataclass(frozen=True)
class _Widths:
    writes: int
    reads: int


@dataclass
class _Warehouse:
    """A database `many` of the source, in files below a directory, and its replicas."""

    directory: Path
    tables: int
    partitions: int
    hive: str
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def settings(self, db: str) -> LoadSettings:
        place = self.directory / "replicas"
        place.mkdir(exist_ok=True)
        return LoadSettings(warehouse=str(place), cmroot=str(place / ".cmroot"), rename=[("many", db)])

    def load(self, dump: Path, target: ThriftMetastore, db: str) -> float:
        loaded = load(str(dump), target, self.settings(db), Runtime(ground.engine("auto")))
        assert loaded.status in ("loaded", "already loaded"), loaded
        return loaded.seconds


# ---- bare calls ----------------------------------------------------------------------------------------------------


def over(uri: str, connections: int, calls: Iterable[Send]) -> float:
    """Seconds of these calls over so many connections."""
    waiting, lock = iter(calls), Lock()

    def work(client: Any) -> None:
        while True:
            with lock:
                send = next(waiting, None)
            if send is None:
                return
            send(client)

    opened = [raw_client(uri) for _ in range(connections)]
    with ThreadPoolExecutor(connections) as pool:
        seconds = timed(lambda: list(pool.map(work, [client for _, client in opened])))
    for transport, _ in opened:
        transport.close()
    return seconds


def creates(home: Path, db: str, tables: int, partitions: int) -> list[Send]:
    """Two calls for each table; its directories are made here."""
    return [_create(home, db, f"t{number}", partitions) for number in range(tables)]


def _create(home: Path, db: str, name: str, partitions: int) -> Send:
    values = [f"{value:04d}" for value in range(partitions)]
    for value in values:
        (home / name / f"day={value}").mkdir(parents=True)
    table = table_to_thrift(
        Table(
            db=db,
            name=name,
            kind=EXTERNAL,
            owner="bench",
            storage=ground.storage(home / name),
            partition_keys=ground.KEYS,
            parameters={"EXTERNAL": "TRUE"},
        )
    )
    additions = list(partition_requests(db, name, home / name, values))

    def send(client: Any) -> None:
        client.create_table(table)
        for request in additions:
            client.add_partitions_req(request)

    return send


def reads(uri: str, db: str) -> list[Send]:
    """One call for some hundred tables, and for each table one for its partitions and one for its constraints: of all
    kinds where the server has such a call, else of primary keys."""
    transport, client = raw_client(uri)
    names = client.get_all_tables(db)
    constraints = _constraints if requests.knows_all_in_one(client) else _primary_keys
    transport.close()
    whole = [_tables(db, some) for some in batched(names, 500)]
    return [*whole, *(call(db, name) for name in names for call in (_partitions, constraints))]


def _tables(db: str, names: list[str]) -> Send:
    return lambda client: client.get_table_objects_by_name_req(ttypes.GetTablesRequest(dbName=db, tblNames=names))


def _partitions(db: str, name: str) -> Send:
    return lambda client: client.get_partitions(db, name, -1)


def _primary_keys(db: str, name: str) -> Send:
    return lambda client: client.get_primary_keys(ttypes.PrimaryKeysRequest(db_name=db, tbl_name=name))


def _constraints(db: str, name: str) -> Send:
    """Hive 4's call, which hmsclient's binding lacks."""
    request = ttypes.AllTableConstraintsRequest(dbName=db, tblName=name, catName=CATALOG)
    return method("get_all_table_constraints", request)


def _try(client: ThriftMetastore, directory: Path, partitions: int) -> _Widths:
    """The numbers of connections over which this server answers fastest; each is tried twice, in both orders, after a
    warm-up."""
    writes, reading = dict.fromkeys(CONNECTIONS, 0.0), dict.fromkeys(CONNECTIONS, 0.0)
    for turn, connections in enumerate((1, *CONNECTIONS, *reversed(CONNECTIONS))):
        db = f"try_{turn}"
        home = ground.create_database(client, db)
        calls = creates(home, db, TRIED, partitions)
        ground.settle(directory)
        making = over(client.uri, connections, calls)
        asking = over(client.uri, connections, reads(client.uri, db) * 3)
        if turn:
            writes[connections] += making
            reading[connections] += asking
    return _Widths(_best(writes), _best(reading))


def _best(seconds: dict[int, float]) -> int:
    """The smallest number that is as good as the best, but for what two tries differ by."""
    return min(number for number, took in seconds.items() if took <= 1.05 * min(seconds.values()))


# ---- steps ---------------------------------------------------------------------------------------------------------


def _measure(
    warehouse: _Warehouse,
    source: ThriftMetastore,
    target: ThriftMetastore,
    widths: _Widths,
    runs: int,
    increments: dict[str, list[float]],
) -> list[Sequence[str]]:
    count, here = warehouse.tables, warehouse.directory
    home = ground.create_database(source, "many")
    making = over(source.uri, widths.writes, creates(home, "many", count, warehouse.partitions))
    for number, place in enumerate(sorted(home.glob("*/*"))):
        ground.small_files(place, number, 1)
    dumps, root, dump = _dump(warehouse, source, widths, runs)
    loads = _load(warehouse, target, dump, widths, runs)
    compared = _verify(source, target, widths, runs, here)
    changes = _increments(warehouse, source, target, root, dump)
    for step, seconds in changes.items():
        increments.setdefault(step, []).append(median(seconds))
    rows = [
        [f"{count:,}", step, s(took["bare"]), s(took["ours"]), ratio(took["ours"], took["bare"]), f"<= {WANTED}"]
        for step, took in {"dump": dumps, "load": loads, "verify": compared}.items()
    ]
    return [[f"{count:,}", "made", f"{making:.2f} s", "", "", ""], *rows]


def _dump(
    warehouse: _Warehouse, source: ThriftMetastore, widths: _Widths, runs: int
) -> tuple[dict[str, list[float]], ChangeRoot, Path]:
    here, kept = warehouse.directory, list[tuple[ChangeRoot, Path]]()

    def bare(_: int) -> float:
        ground.settle(here)
        return over(source.uri, widths.reads, reads(source.uri, "many"))

    def ours(number: int) -> float:
        for old, dump in kept:
            shutil.rmtree(old.place), shutil.rmtree(dump)
        kept.clear()
        out = here / f"dump-{number}"
        ground.settle(here)
        root, captured = ground.captured(source, str(here / f"cmroot-{number}"), ["many"], ground.engine("auto"))
        dumped = ground.dumped(source, root, out, ["many"])
        kept.append((root, out))
        assert dumped.files == warehouse.tables * warehouse.partitions, dumped
        return captured.seconds + dumped.seconds

    bare(runs)
    took = interleaved(runs, {"bare": bare, "ours": ours})
    return took, *kept[0]


def _load(
    warehouse: _Warehouse, target: ThriftMetastore, dump: Path, widths: _Widths, runs: int
) -> dict[str, list[float]]:
    """The last replica stays, as `many`. What the last run made is not dropped: PostgreSQL takes minutes for it."""
    here = warehouse.directory

    def bare(number: int) -> float:
        home = ground.create_database(target, f"bare_{number}")
        calls = creates(home, f"bare_{number}", warehouse.tables, warehouse.partitions)
        ground.settle(here)
        seconds = over(target.uri, widths.writes, calls)
        if number < runs - 1:
            _drop(target, f"bare_{number}")
        return seconds

    def ours(number: int) -> float:
        ground.settle(here)
        db = f"many_{number}" if number < runs - 1 else "many"
        seconds = warehouse.load(dump, target, db)
        if db != "many":
            _drop(target, db)
            shutil.rmtree(here / "replicas")
        return seconds

    return interleaved(runs, {"bare": bare, "ours": ours})


def _drop(client: ThriftMetastore, db: str) -> None:
    transport, raw = raw_client(client.uri)
    raw.drop_database(db, False, True)
    transport.close()


def _verify(
    source: ThriftMetastore, target: ThriftMetastore, widths: _Widths, runs: int, directory: Path
) -> dict[str, list[float]]:
    """Bare: both sides at once."""

    def bare(_: int) -> float:
        ground.settle(directory)
        with ThreadPoolExecutor(2) as pool:
            sides = [(each.uri, reads(each.uri, "many")) for each in (source, target)]
            return timed(lambda: list(pool.map(lambda side: over(side[0], widths.reads, side[1]), sides)))

    def ours(_: int) -> float:
        ground.settle(directory)
        verified = verify(Comparison(source, target), ["many"], Runtime(ground.engine("auto")))
        assert verified.status == "same", verified
        return verified.seconds

    bare(runs)
    return interleaved(runs, {"bare": bare, "ours": ours})


def _increments(
    warehouse: _Warehouse, source: ThriftMetastore, target: ThriftMetastore, root: ChangeRoot, dump: Path
) -> dict[str, list[float]]:
    """Seconds of increments with nothing new, the whole scanned or a part in each, and of those of one partition: its
    dump, and its load."""
    here, numbers = warehouse.directory, itertools.count()
    found: dict[str, list[float]] = {
        "idle increment": [],
        "idle, all tables scanned": [],
        "one change, dump": [],
        "one change, load": [],
    }

    def increment(*, paced: bool = True) -> tuple[float, float]:
        nonlocal dump
        out = here / f"increment-{next(numbers)}"

        def dumps() -> None:
            ground.captured(source, str(root.place), ["many"], ground.engine("auto"), paced=paced)
            ground.dumped(source, root, out, ["many"], since=str(dump))

        seconds = timed(dumps)
        dump = out
        return seconds, timed(lambda: warehouse.load(out, target, "many"))

    increment()
    for number in range(INCREMENTS):
        found["idle increment"].append(sum(increment()))
        found["idle, all tables scanned"].append(sum(increment(paced=False)))
        name, value = f"t{number}", f"new{number}"
        place = here / "source" / "warehouse" / "many.db" / name
        ground.add_partitions(source, "many", name, place, [value])
        ground.small_files(place / f"day={value}", 10_000_000 + number, 1)
        dumping, loading = increment()
        found["one change, dump"].append(dumping)
        found["one change, load"].append(loading)
    return found
