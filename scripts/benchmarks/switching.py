"""switch: a planned switchover and back while a writer writes: how long it cannot, and whether anything is lost."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import ground
from benchmarks.measure import Outcome, median
from replicator.core.connections import MetastoreConfig
from replicator.core.policy import parse_policy
from replicator.core.roles import Role
from replicator.core.runtime import Runtime
from replicator.metastore.thrift import ThriftMetastore
from replicator.policies.direction import Sides
from replicator.policies.role_changes.role_change import RoleChanged, StepReport
from replicator.policies.role_changes.switchover import SwitchoverSettings, switchover
from replicator.policies.roles import read_role
from replicator.policies.run import sync_once

TABLES = {"full": 500, "small": 20}  # beside the one that is written to
TURNS = {"full": 6, "small": 2}  # there and back, and so on
WRITES = 2.0  # seconds of writing before each turn


def run(size: str, runs: int, directory: Path) -> Outcome:
    """`runs` is not used: each turn is a run."""
    with ground.metastore(directory, "source") as source, ground.metastore(directory, "target") as target:
        ground.create_database(source, "west")
        for number in range(TABLES[size]):
            ground.create_table(source, "west", f"other_{number}")
        ground.create_table(source, "west", "t")
        sides = _sides(source, target, directory)
        sync_once(sides)
        writer = _Writer((source, target))
        turns = []
        with writer.at_work():
            for _ in range(TURNS[size]):
                time.sleep(WRITES)
                turns.append(switchover(sides, SwitchoverSettings(reported=writer.reported)))
                writer.move()
        sync_once(sides)
        lost = [writer.lost(side) for side in (source, target)]
    return _outcome(size, turns, writer, lost)


def _sides(source: ThriftMetastore, target: ThriftMetastore, directory: Path) -> Sides:
    keys = {
        "source": source.uri,
        "target": target.uri,
        "databases": "west",
        "cmroot": str(directory / "cmroot"),
        "target_cmroot": str(directory / "replica" / ".cmroot"),
        "dumps": str(directory / "dumps"),
        "warehouse": str(directory / "replica"),
    }
    return Sides(parse_policy("west", keys, MetastoreConfig), source, target, Runtime(ground.engine()))


@dataclass
class _Writer:
    """Adds partitions with a file each at the primary, one after the other, and does as it is reported by who turns
    roles. `gaps`: seconds from the last write at one side to the first at the other."""

    sides: tuple[ThriftMetastore, ThriftMetastore]
    gaps: list[float] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    _at: int = 0
    _last: float = 0.0
    _may: threading.Event = field(default_factory=threading.Event)
    _idle: threading.Event = field(default_factory=threading.Event)
    _over: bool = False

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=self._write)
        self._may.set()
        thread.start()
        try:
            yield
            time.sleep(WRITES)
        finally:
            self._over = True
            self._may.set()
            thread.join()

    def reported(self, step: StepReport) -> None:
        """At the fence: returns when nothing is being written any more, and looks for the new primary from then on."""
        if step.name != "fence":
            return
        self._idle.clear()
        self._may.clear()
        self._idle.wait()
        threading.Thread(target=self._look).start()

    def move(self) -> None:
        """Returns when it writes at the new primary."""
        self._may.wait()

    def _look(self) -> None:
        other = self.sides[1 - self._at]
        while read_role(other, "west").role is not Role.PRIMARY:
            time.sleep(0.02)
        self._at = 1 - self._at
        began = self._last
        self._add()
        self.gaps.append(self._last - began)
        self._may.set()

    def _write(self) -> None:
        while not self._over:
            if self._may.is_set():
                self._add()
            else:
                self._idle.set()
                self._may.wait()

    def _add(self) -> None:
        side, value = self.sides[self._at], f"{len(self.written):06d}"
        place = Path((side.table("west", "t").location or "").removeprefix("file:"))
        (place / f"day={value}").mkdir()
        ground.small_files(place / f"day={value}", len(self.written), 1)
        side.add_partitions("west", "t", [ground.partition(place, value)])
        self.written.append(value)
        self._last = time.perf_counter()

    def lost(self, side: ThriftMetastore) -> int:
        """Of what the primary had said it had, what a side has not: partitions, or their files."""
        place = Path((side.table("west", "t").location or "").removeprefix("file:"))
        names = set(side.partition_names("west", "t"))
        files = (place / f"day={value}" / f"part-{number:08d}.parquet" for number, value in enumerate(self.written))
        return sum(
            f"day={value}" not in names or not file.exists() for value, file in zip(self.written, files, strict=True)
        )


def _outcome(size: str, turns: list[RoleChanged], writer: _Writer, lost: list[int]) -> Outcome:
    outcome = Outcome(["turn", "no primary", "the writer waits", "the whole turn"])
    for number, (turn, gap) in enumerate(zip(turns, writer.gaps, strict=True)):
        assert turn.downtime_seconds is not None
        outcome.rows.append(
            [
                "there" if number % 2 == 0 else "back",
                f"{turn.downtime_seconds:.2f} s",
                f"{gap:.2f} s",
                f"{turn.seconds:.2f} s",
            ]
        )
    outcome.rows.append(
        [
            "median",
            f"{median([turn.downtime_seconds or 0.0 for turn in turns]):.2f} s",
            f"{median(writer.gaps):.2f} s",
            f"{median([turn.seconds for turn in turns]):.2f} s",
        ]
    )
    outcome.remarks.append(
        f"{TABLES[size] + 1} tables; {len(writer.written):,} partitions written meanwhile, of which in the end the "
        f"first side lacks {lost[0]} and the second {lost[1]}."
    )
    return outcome
