"""Transactional tables for ten minutes: Hive writes two tables in each transaction, rolls some back and compacts;
`replicator sync --follow` is killed at random; Hive reads the replica.

Exit 1 if a reader meets an error or a state that the source never had, or if both sides differ at the end."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from acid_tables import COMPACTING, AcidLab
from hive_sql import HiveSql, Refused

from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.running import Running

BOTH = "from (select {0} as id, 'n{0}' as name) q insert into table {{db}}.t select id, name"
UNPAIRED = "select t.id, u.id from {db}.t full outer join {db}.u on t.id = u.id where t.id is null or u.id is null"
SHOWN = 20  # faults that are printed


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/soak_acid", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--kill-every", type=float, default=20.0, help="seconds between kills, on average")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-acid-")))
        source = stack.enter_context(_metastore(place / "source", COMPACTING))
        target = stack.enter_context(_metastore(place / "target", {}))
        hives = [stack.enter_context(HiveSql(each.uri, Path(each.warehouse))) for each in (source, target)]
        lab = AcidLab(source, target, hives[0], hives[1], place).of_policy()
        lab.make("t")
        lab.make("u")
        lab.run(BOTH.format(0) + " insert into table {db}.u select id, name")
        assert lab.sync().status == "synced"
        result = Soak(lab, random.Random(asked.seed)).run(asked.seconds, asked.kill_every)
    print(json.dumps(result, indent=1))
    sys.exit(1 if result["faults"] or not result["same"] else 0)


@contextmanager
def _metastore(directory: Path, settings: dict[str, str]) -> Iterator[Running]:
    try:
        yield embedded.start(directory, hive="3.1", host="0.0.0.0", settings=settings, env=os.environ)
    finally:
        embedded.stop(directory)


class Soak:
    def __init__(self, lab: AcidLab, chance: random.Random) -> None:
        self._lab, self._chance = lab, chance
        self._end = threading.Event()
        self._written = self._reads = self._kills = self._compactions = 0
        self._faults: list[str] = []

    def run(self, seconds: int, kill_every: float) -> dict[str, object]:
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in (self._write, self._read)]
        for thread in threads:
            thread.start()
        self._follow(time.monotonic() + seconds, kill_every)
        self._end.set()
        for thread in threads:
            thread.join()
        statuses = [self._lab.sync().status for _ in range(2)]
        same = all(self._lab.shown(name) == self._lab.rows(name) for name in ("t", "u"))
        verified = self._lab.verified()
        return {
            "transactions": self._written,
            "compactions": self._compactions,
            "kills": self._kills,
            "reads": self._reads,
            "faults": self._faults[:SHOWN],
            "last runs": statuses,
            "same": same and verified.code == 0,
        }

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._faults.append(f"{work.__name__}: {error!r}"[:500])

    def _write(self) -> None:
        while not self._end.is_set():
            number = self._written + 1
            self._lab.run(BOTH.format(number) + " insert into table {db}.u select id, name")
            self._written = number
            if number % 4 == 0:
                self._lab.run(f"update {{db}}.t set name = 'changed' where id = {self._chance.randrange(number)}")
            if number % 6 == 0:
                self._lab.rolled_back(BOTH.format(-1))
            if number % 10 == 0:
                kind = self._chance.choice(["minor", "major"])
                self._lab.run(f'alter table {{db}}.{self._chance.choice("tu")} compact "{kind}"')
                self._compactions += 1

    def _read(self) -> None:
        while not self._end.is_set():
            try:
                for name in ("t", "u"):
                    ids = self._lab.ids(name)
                    if ids != list(range(len(ids))):
                        self._faults.append(f"{name} shows {ids}"[:500])
                if unpaired := self._lab.run_there(UNPAIRED):
                    self._faults.append(f"in one table only: {unpaired}"[:500])
            except Refused as error:
                self._faults.append(f"read: {error}"[:500])
            self._reads += 1

    def _follow(self, end: float, kill_every: float) -> None:
        command = [sys.executable, "-m", "replicator", "--config", str(self._lab.config()), "sync", self._lab.name]
        while time.monotonic() < end:
            process = subprocess.Popen(
                [*command, "--follow", "--interval", "1s"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                process.wait(min(self._chance.expovariate(1 / kill_every), max(0.1, end - time.monotonic())))
                self._faults.append(f"sync ended with {process.returncode}")
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self._kills += 1


if __name__ == "__main__":
    main()
