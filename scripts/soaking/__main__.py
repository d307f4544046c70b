"""`scripts/soak_sync`: writers, `replicator sync --follow`, kills; in the end both sides must be the same."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.__main__ import DOCUMENT
from benchmarks.measure import Outcome, record
from msgspec.structs import replace
from plain_tables import PlainDatabase
from postgres import running_postgres

from cmroot.store.place import Place
from replicator.commands.demos.spark_sql import SparkSql
from replicator.commands.policies import lag
from replicator.compare.both_sides import Comparison
from replicator.compare.verify import verify
from replicator.core.connections import MetastoreConfig
from replicator.core.engine import AutoEngine, LocalEngine
from replicator.core.policy import parse_policy
from replicator.core.runtime import Runtime
from replicator.core.spark import SparkEngine
from replicator.errors import Error
from replicator.metastore.embedded.distributions import PYSPARK, VERSIONS
from replicator.metastore.thrift import ThriftMetastore, connect
from replicator.policies.run import Remembering
from soaking.comparing import differences
from soaking.grounds import ClusterGround, DiskGround
from soaking.mortals import Follower, Killer, Server
from soaking.watching import METADATA, BoundWatcher, Marks, Poller
from soaking.writers import PlainWriter, SqlWriter

DATABASES = ["soak_plain", "soak_sql"]
CATCH_UP = 180.0  # seconds that following has to be the same as the source, once nobody writes or kills
WANTED = 10.0  # seconds: the p99 of metadata at ten operations a second, without kills
SPARK = {"spark.hadoop.hive.metastore.failure.retries": "3", "spark.hadoop.hive.exec.dynamic.partition": "true"}


@dataclass
class Soaked:
    """What happened. `lags`: by kind of mark, seconds: count, p50, p95, p99, longest. `never_seen`: marks that were
    waiting in the end. `broken`: partitions that a reader saw before their file. `status`: same, or different.
    `blind`: differences that were made on the target in the end, and who did not see them. `bounds`: the lag's upper
    bound against the age of the oldest file without an event that the target lacked, in seconds; `too low` must be
    0."""

    status: str = "different"
    seconds: float = 0.0
    seed: int = 0
    rate: str = ""
    made: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    a_second: float = 0.0
    kills: dict[str, int] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    lags: dict[str, dict[str, float]] = field(default_factory=dict)
    never_seen: int = 0
    broken: list[str] = field(default_factory=list)
    caught_up_seconds: float = 0.0
    objects: int = 0
    files: int = 0
    differences: list[str] = field(default_factory=list)
    policy_ended_by_itself: bool = False
    blind: list[str] = field(default_factory=list)
    bounds: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        bad = self.never_seen or self.broken or self.policy_ended_by_itself or self.blind
        bad = bad or self.bounds.get("too low")
        return self.status == "same" and not bad


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak_sync", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="for how long is written (default: 600)")
    parser.add_argument("--rate", default="1-50", help="operations a second over thrift: N, or N-M, anew each 10 s")
    parser.add_argument("--kill-every", type=float, default=20, help="seconds between kills, on average; 0: none")
    parser.add_argument("--no-spark", action="store_true", help="without the writer that speaks Spark SQL")
    parser.add_argument("--hive", choices=list(VERSIONS), default=PYSPARK, help="the metastores' version")
    parser.add_argument("--postgres", action="store_true", help="the source's metastore keeps its data in PostgreSQL")
    parser.add_argument("--places", choices=["disk", "cluster"], default="disk", help="cluster: HDFS to S3, on Spark")
    parser.add_argument("--schedule", default="1s", help="of the policy")
    parser.add_argument("--seed", type=int, default=None, help="of all dice; default: another one each time")
    parser.add_argument("--directory", type=Path, help="where to work; kept then, else a fresh directory, removed")
    parser.add_argument(
        "--record", metavar="NAME", help="put the outcome into docs/performance.md: kills, steady, hive4 or cluster"
    )
    asked = parser.parse_args()
    seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(10_000)
    with tempfile.TemporaryDirectory(prefix="replicator-soak-") as scratch:
        soaked = Soak(asked, seed, asked.directory or Path(scratch)).run()
    print(json.dumps(soaked.__dict__, indent=2))
    if asked.record:
        given = f"scripts/soak_sync {' '.join(arg for arg in sys.argv[1:])}"
        record(DOCUMENT, "soak", asked.record, given.partition(" --record")[0], outcome_of(soaked))
    return 0 if soaked.passed else 1


class Soak:
    """One soak in a directory."""

    def __init__(self, asked: argparse.Namespace, seed: int, directory: Path) -> None:
        self._asked, self._here = asked, directory
        self._dice = random.Random(seed)
        self.soaked = Soaked(seed=seed, rate=asked.rate)
        self._ground: DiskGround | ClusterGround = DiskGround(directory)
        self._with_spark = not asked.no_spark and asked.hive == PYSPARK and asked.places == "disk"
        self._databases = DATABASES if self._with_spark else DATABASES[:1]

    def run(self) -> Soaked:
        with contextlib.ExitStack() as stack:
            settings = stack.enter_context(running_postgres()).jdbc() if self._asked.postgres else {}
            if self._asked.places == "cluster":
                self._ground = ClusterGround(self._here, stack, self._new_dice())
            sides = self._ground.metastore_settings
            source = Server("source", self._here / "source", self._asked.hive, settings | sides["source"])
            target = Server("target", self._here / "target", self._asked.hive, sides["target"])
            self._run(source, target)
        return self.soaked

    def _run(self, source: Server, target: Server) -> None:
        spark = None
        try:
            if self._with_spark:
                spark = SparkSql(source.running.uri, source.running.warehouse, SPARK)
            with connect(source.running.uri) as here, connect(target.running.uri) as there:
                self._soak(source, target, here, there, spark)
        finally:
            if spark is not None:
                spark.close()
            source.stop()
            target.stop()

    def _soak(
        self, source: Server, target: Server, here: ThriftMetastore, there: ThriftMetastore, spark: SparkSql | None
    ) -> None:
        keys = self._keys(source, target)
        marks, newer = Marks(), self._asked.hive.startswith("4")
        plain = PlainWriter(here, "soak_plain", self._ground.data, marks, self._rate(), self._new_dice(), newer=newer)
        writers: list[PlainWriter | SqlWriter] = [plain]
        if spark is not None:
            writers.append(SqlWriter(spark, "soak_sql", marks, 0.3, self._new_dice()))
        for writer in writers:
            writer.begin()
        follower = Follower(self._config(keys), "soak", self._asked.schedule, self._here / "sync.log")
        there_too = ThriftMetastore(target.running.uri, timeout=20, retries=0)
        poller = Poller(there_too, marks, self._ground.exists, "soak_plain", "soak_sql")
        killer = Killer(
            [source, target, follower, *self._ground.mortals], self._asked.kill_every or 1, self._new_dice()
        )
        watcher = self._bounds(source) if isinstance(self._ground, DiskGround) else None
        follower.start()
        try:
            self._follow(here, there, follower, killer, poller, [*writers, *([watcher] if watcher else [])])
        finally:
            follower.kill()
        if self.soaked.status == "same":
            self.soaked.blind = list(self._not_seen(here, there))
        self._tell(writers, killer, marks, poller, keys)
        if watcher is not None:
            self.soaked.bounds = {
                "samples": len(watcher.bounds),
                "too low": len(watcher.too_low),
                "unknown": watcher.unknown,
                "longest bound": max(watcher.bounds, default=0.0),
                "longest age": round(max(watcher.ages, default=0.0), 3),
            }

    def _bounds(self, source: Server) -> BoundWatcher:
        own = ThriftMetastore(source.running.uri, timeout=20)
        quiet = PlainDatabase(own, "soak_plain", Path(self._ground.data))
        config = str(self._here / "replicator.toml")
        watcher = BoundWatcher(quiet, self._here / "replica" / "soak_plain.db", lambda: lag("soak", config=config))
        watcher.begin()
        return watcher

    def _follow(
        self,
        here: ThriftMetastore,
        there: ThriftMetastore,
        follower: Follower,
        killer: Killer,
        poller: Poller,
        writers: Sequence[PlainWriter | SqlWriter | BoundWatcher],
    ) -> None:
        self._until_there(there)
        began = time.monotonic()
        for thread in (poller, *writers, *([killer] if self._asked.kill_every else [])):
            thread.start()
        ended = self._write(began, writers)
        for writer in writers:
            writer.end()
        if self._asked.kill_every:
            killer.end()
        self.soaked.seconds = round(ended - began, 1)
        self._catch_up(here, there)
        time.sleep(1)  # the poller looks ten times a second
        poller.end()
        self.soaked.policy_ended_by_itself = follower.ended()
        follower.stop()

    def _write(self, began: float, writers: Sequence[PlainWriter | SqlWriter | BoundWatcher]) -> float:
        """Waits while others write and kill; the time at which writing ended."""
        while time.monotonic() - began < self._asked.seconds and not any(writer.error for writer in writers):
            time.sleep(0.5)
        return time.monotonic()

    def _keys(self, source: Server, target: Server) -> dict[str, str]:
        return {"source": source.running.uri, "target": target.running.uri, "databases": "soak_.*", **self._ground.keys}

    def _config(self, keys: dict[str, str]) -> Path:
        config = self._here / "replicator.toml"
        config.write_text("\n".join(["[policies.soak]", *(f'{key} = "{value}"' for key, value in keys.items()), ""]))
        return config

    def _new_dice(self) -> random.Random:
        return random.Random(self._dice.random())

    def _rate(self) -> Callable[[float], float]:
        """Of the seconds since the beginning, operations a second: another one each ten seconds."""
        low, _, high = self._asked.rate.partition("-")
        rates = [self._dice.uniform(float(low), float(high or low)) for _ in range(1 + int(self._asked.seconds // 10))]
        return lambda seconds: rates[min(len(rates) - 1, int(seconds // 10))]

    def _until_there(self, there: ThriftMetastore) -> None:
        """Lag begins to count when the first bootstrap is over."""
        deadline = time.monotonic() + CATCH_UP
        while "soak_plain" not in there.database_names() or "marks" not in there.table_names("soak_plain"):
            if time.monotonic() > deadline:
                raise SystemExit(f"the policy did not begin; see {self._here / 'sync.log'}")
            time.sleep(0.2)

    def _catch_up(self, here: ThriftMetastore, there: ThriftMetastore) -> None:
        """Following alone must make both sides the same; no run is made by hand."""
        began = time.monotonic()
        databases = self._databases
        while True:
            try:
                found = verify(Comparison(here, there), databases, Runtime(local()))
                self.soaked.status, self.soaked.objects, self.soaked.files = found.status, found.objects, found.files
                self.soaked.differences = [str(each) for each in found.differences[:20]]
                self.soaked.differences += self._seen_by_others(here.uri, there.uri) if found.status == "same" else []
            except Error as error:
                self.soaked.differences = [f"{type(error).__name__}: {error}"]
            self.soaked.caught_up_seconds = round(time.monotonic() - began, 1)
            if self.soaked.differences:
                self.soaked.status = "different"
            if self.soaked.status == "same" or self.soaked.caught_up_seconds > CATCH_UP:
                return
            time.sleep(1)

    def _not_seen(self, here: ThriftMetastore, there: ThriftMetastore) -> Iterator[str]:
        """Makes differences on the target, which nobody mends any more; those that a comparison does not see."""
        comparison = Comparison(here, there)
        seers: dict[str, Callable[[], set[str]]] = {
            "verify": lambda: {str(each) for each in verify(comparison, self._databases, Runtime(local())).differences},
            "the soak": lambda: set(self._seen_by_others(here.uri, there.uri)),
        }
        for what, tamper in TAMPERING.items():
            before = {name: see() for name, see in seers.items()}
            tamper(there)
            yield from (f"{name}: {what}" for name, see in seers.items() if not see() - before[name])

    def _seen_by_others(self, source: str, target: str) -> list[str]:
        """Differences that no reader of the product sees, the first ones."""
        found = differences(source, target, self._databases, self._ground.walk, newer=self._asked.hive != PYSPARK)
        return [f"without the product: {each}"[:500] for each in itertools.islice(found, 20)]

    def _tell(
        self, writers: list[PlainWriter | SqlWriter], killer: Killer, marks: Marks, poller: Poller, keys: dict[str, str]
    ) -> None:
        soaked = self.soaked
        for writer in writers:
            soaked.made |= {f"{writer.name}: {name}": count for name, count in writer.made.most_common()}
            soaked.refused |= {f"{writer.name}: {name}": count for name, count in writer.refused.items()}
        soaked.a_second = round(sum(soaked.made.values()) / soaked.seconds, 1)
        soaked.kills = dict(killer.kills)
        history = Remembering(parse_policy("soak", keys, MetastoreConfig)).memory.runs().runs
        soaked.runs = dict(Counter(f"{run.status} {run.kind}".strip() for run in history))
        soaked.errors = dict(Counter(run.error.partition(":")[0] for run in history if run.error))
        soaked.lags = {kind: lags_of(lags) for kind, lags in marks.lags.items()}
        soaked.never_seen = sum(len(marks.waiting(kind)) for kind in marks.lags)
        soaked.broken = poller.broken[:20]


def _spoil(target: ThriftMetastore) -> None:
    home = Place(target.table("soak_plain", "days").location or "")
    file = home / min(name for name in home.find() if "/day-" in name)
    file.write_bytes(file.read_bytes()[::-1] + b"\n")


def _lose_partition(target: ThriftMetastore) -> None:
    target.drop_partitions("soak_plain", "days", [max(target.partition_names("soak_plain", "days"))])


def _note(target: ThriftMetastore) -> None:
    table = target.table("soak_plain", "marks")
    target.alter_table("soak_plain", "marks", replace(table, parameters={**table.parameters, "mark": "other"}))


TAMPERING = {"a file with other content": _spoil, "a partition less": _lose_partition, "another property": _note}


def local() -> AutoEngine:
    return AutoEngine(LocalEngine(2), SparkEngine("local[2]"), choice="local")


def lags_of(lags: list[float]) -> dict[str, float]:
    points = statistics.quantiles(lags, n=100, method="inclusive") if len(lags) > 1 else lags * 99
    found = {"p50": points[49], "p95": points[94], "p99": points[98], "longest": max(lags)}
    return {"count": len(lags), **{name: round(value, 2) for name, value in found.items()}}


def outcome_of(soaked: Soaked) -> Outcome:
    outcome = Outcome(["lag, commit to visible", "changes", "p50", "p95", "p99", "longest", "wanted"])
    for kind, lags in soaked.lags.items():
        wanted = f"p99 < {WANTED:.0f} s" if kind == METADATA and not soaked.kills else ""
        figures = [f"{lags[name]:.2f} s" for name in ("p50", "p95", "p99", "longest")]
        outcome.rows.append([kind, f"{lags['count']:,.0f}", *figures, wanted])

    def listed(counts: dict[str, int]) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"

    outcome.remarks += [
        f"{sum(soaked.made.values()):,} operations in {soaked.seconds:.0f} s ({soaked.a_second} a second, "
        f"seed {soaked.seed}); the source refused or lost {sum(soaked.refused.values()):,}.",
        f"Killed: {listed(soaked.kills)}. Runs: {listed(soaked.runs)}; failed with: {listed(soaked.errors)}.",
        f"In the end: {soaked.status} ({soaked.objects:,} objects, {soaked.files:,} files by checksum), "
        f"{soaked.caught_up_seconds:.0f} s after the last write; {soaked.never_seen} marks never seen, "
        f"{len(soaked.broken)} partitions shown before their files; differences that were made then and not seen: "
        f"{', '.join(soaked.blind) or 'none'}.",
    ]
    if bounds := soaked.bounds:
        outcome.remarks.append(
            f"The lag's upper bound, in {bounds['samples']:,.0f} measurements beside a writer without events: up to "
            f"{bounds['longest bound']:.0f} s; the oldest file that the target lacked was up to "
            f"{bounds['longest age']:.0f} s old, and older than the bound {bounds['too low']:.0f} times. "
            f"{bounds['unknown']:.0f} times there was none, as a side did not answer."
        )
    return outcome


if __name__ == "__main__":
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:+UseSerialGC")
    sys.exit(main())
