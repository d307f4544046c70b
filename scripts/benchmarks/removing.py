"""remove: housekeeping and retention move many directories, of one file each, to `$cmroot`; against their files read,
hashed and renamed one after the other, and the directories removed."""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from datetime import date, timedelta
from pathlib import Path

import msgspec
import xxhash

from benchmarks import ground
from benchmarks.housekeeping import PROPERTIES
from benchmarks.measure import Outcome, interleaved, median, ratio, s, timed
from cmroot.root import ChangeRoot, create_or_open
from replicator.cli.main import run as command_line
from replicator.core.runtime import Runtime
from replicator.lifecycle.housekeeping import writing
from replicator.lifecycle.housekeeping.run import Housekeeping, RunOptions
from replicator.lifecycle.housekeeping.settings import THREE_DAYS, UNREFERENCED, LifecycleDefaults
from replicator.lifecycle.housekeeping.store import Item, ItemStore, store_url
from replicator.lifecycle.removal.removal import Limits
from replicator.metastore.thrift import ThriftMetastore

DIRECTORIES = {"full": 30_000, "small": 2_000}
OF_DATASET = 1_000  # versions, of which one stays
WANTED = 3.0
JOB = """
gobblin.retention : {{
    dataset : {{
      pattern="{data}/*"
      finder.class=gobblin.data.management.retention.profile.ManagedCleanableDatasetFinder
    }}
    selection : {{
      policy.class=gobblin.data.management.policy.NewestKSelectionPolicy
      newestK.versionsNotSelected=1
    }}
    version : {{
      finder.class=gobblin.data.management.version.finder.DateTimeDatasetVersionFinder
      globPattern="*"
      datetime.pattern="yyyy-MM-dd"
    }}
}}
"""


def run(size: str, runs: int, directory: Path) -> Outcome:
    count, data = DIRECTORIES[size], directory / "data"
    outcome = Outcome(["of", "directories", "rename one by one", "ours", "a second", "times", "wanted"])
    with ground.metastore(directory) as client:
        ground.create_database(client, "many")
        place = ground.create_table(client, "many", "t")
        table = client.table("many", "t")
        altered = msgspec.structs.replace(table, parameters={**table.parameters, **PROPERTIES})
        client.alter_table("many", "t", altered)

        def bare(number: int) -> float:
            _make(data, count)
            seconds = timed(lambda: _rename(list(_versions(data, count)), directory / "aside"))
            shutil.rmtree(directory / "aside")
            return seconds

        def retention(number: int) -> float:
            _make(data, count)
            job, root = directory / "job.conf", create_or_open(str(directory / f"retention-{number}"))
            job.write_text(JOB.format(data=data))
            given = ["retention", "run", str(job), "--cmroot", root.place, "--no-metastore"]
            seconds = timed(lambda: _succeeds(given))
            _moved(root, data, count, kept=count // min(count, OF_DATASET))
            return seconds

        def housekeeping(number: int) -> float:
            _make(data, count)
            root = create_or_open(str(directory / f"housekeeping-{number}"))
            with ExitStack() as stack:
                store = stack.enter_context(ItemStore(store_url(root.place, None)))
                store.prepare(root)
                with store.transaction() as work:
                    writing.put(work, list(_items(data, count)), THREE_DAYS)
                given = Runtime(ground.engine()), Limits()
                kept = stack.enter_context(_housekeeping(root, client, store, *given))
                seconds = timed(kept.run)
            _moved(root, data, count, kept=0)
            return seconds

        took = interleaved(runs, {"bare": bare, "retention": retention, "housekeeping": housekeeping})
    for name in ("retention", "housekeeping"):
        each = count / median(took[name])
        times = ratio(took[name], took["bare"])
        outcome.rows.append([name, f"{count:,}", s(took["bare"]), s(took[name]), f"{each:,.0f}", times, f"<= {WANTED}"])
    assert place.exists()
    return outcome


def _housekeeping(
    root: ChangeRoot, client: ThriftMetastore, store: ItemStore, runtime: Runtime, limits: Limits
) -> Housekeeping:
    options = RunOptions(LifecycleDefaults(), False, ["many"])
    return Housekeeping(root=root, metastore=client, runtime=runtime, limits=limits, store=store, options=options)


def _versions(data: Path, count: int) -> Iterator[Path]:
    first = date(2000, 1, 1)
    for number in range(count):
        day = first + timedelta(days=number % OF_DATASET)
        yield data / f"set{number // OF_DATASET:03d}" / day.isoformat()


def _make(data: Path, count: int) -> None:
    shutil.rmtree(data, ignore_errors=True)
    for number, place in enumerate(_versions(data, count)):
        place.mkdir(parents=True)
        ground.small_files(place, number, 1)
    ground.settle(data)


def _rename(places: list[Path], aside: Path) -> None:
    for number in range(256):
        (aside / f"{number:02x}").mkdir(parents=True)
    for place in places:
        for entry in os.scandir(place):
            with open(entry.path, "rb") as stream:
                checksum = xxhash.xxh3_128_hexdigest(stream.read())
            os.rename(entry.path, aside / checksum[:2] / checksum)
        place.rmdir()


def _items(data: Path, count: int) -> Iterator[Item]:
    now = int(time.time())
    for number, place in enumerate(_versions(data, count)):
        yield Item(
            lifecycle=UNREFERENCED,
            db="many",
            table="t",
            partition=f"day={number}",
            path=f"file:{place}",
            place=str(place),
            created=now - 5 * 86_400,
            modified=now,
            cleanup=now - 86_400,
            delay="P3D",
        )


def _succeeds(arguments: list[str]) -> None:
    with redirect_stdout(io.StringIO()) as said:
        code = command_line(arguments)
    assert code == 0, said.getvalue()


def _moved(root: ChangeRoot, data: Path, count: int, kept: int) -> None:
    """Each file is in `$cmroot`, or was to stay."""
    left = sum(1 for path in data.rglob("*") if path.is_file())
    found = sum(1 for path in Path(root.place, "files").rglob("*") if path.is_file())
    assert (left, found) == (kept, count - kept), (left, found)
    shutil.rmtree(root.place)
