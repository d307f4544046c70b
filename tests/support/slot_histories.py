"""Random histories of one source with two consumers: several writers change it; captures, dumps, loads and expiries of
everything that nobody needs run between them. Some are killed at a random step, meet a store of which a call fails, or
stand still while another command comes; running them again must be all it takes."""

from __future__ import annotations

import json
import os
import random
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from command_line import Answer, command
from faults import ERRORS, Ended, Fault, delayed, run_with
from lab import Lab
from plain_tables import PlainDatabase

from cmroot.keep.content import content_name
from cmroot.root import open_existing
from replicator.captures.manifest import open_manifest
from replicator.metastore.embedded.running import Running

CONSUMERS = ("near", "far")
HARMS = {None: 4, "killed": 2, "failed": 3, "delayed": 1}  # what happens first to how many of ten commands


class Writer:
    """One of those who change the source: tables of its own, and one that all share."""

    def __init__(self, name: str, database: PlainDatabase, chance: random.Random) -> None:
        self.name, self._database, self._chance = name, database, chance
        self._tables: dict[str, list[str]] = {}  # partition values
        self._number = 0

    def begin(self) -> None:
        self.make_table()

    def step(self) -> None:
        acts = (self._write, self._write, self._drop_partition, self.make_table, self._drop, self._rename)
        self._chance.choice(acts)()

    def _text(self) -> str:
        """Few different contents, so that one is often dropped here and used there."""
        return f"content {self._chance.randrange(6)}"

    def make_table(self) -> None:
        self._number += 1
        table = f"{self.name}{self._number}"
        values = ["1", "2"]
        self._database.partitioned(table, {value: {"f": self._text(), "g": self._text()} for value in values})
        self._tables[table] = values

    def _any(self) -> str:
        if not self._tables:
            self.make_table()
        return self._chance.choice(sorted(self._tables))

    def _write(self) -> None:
        table = self._any()
        if not self._tables[table] or self._chance.random() < 0.4:
            self._number += 1
            value = str(self._number)
            self._tables[table].append(value)
            self._database.add(table, {value: {"f": self._text()}})
        else:
            value = self._chance.choice(self._tables[table])
            self._database.write(f"{table}/p={value}", {self._chance.choice("fgh"): self._text()})

    def _drop_partition(self) -> None:
        table = self._any()
        if self._tables[table]:
            self._database.drop_partitions(table, [self._tables[table].pop()])

    def _drop(self) -> None:
        table = self._any()
        self._database.drop(table)
        del self._tables[table]

    def _rename(self) -> None:
        table = self._any()
        self._number += 1
        self._database.rename(table, new := f"{self.name}{self._number}")
        self._tables[new] = self._tables.pop(table)


class History:
    """One random history of one source with two consumers, each with a slot and a replica."""

    def __init__(self, source: Running, target: Running, here: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.fixture = Lab(source, target, here)
        self.fixture.source.create()
        self.writers = [Writer(name, self.fixture.source, self.chance) for name in ("a", "b", "c")]
        self.states: list[tuple[int, dict[str, Any]]] = []  # event, what the source showed then
        self.at = dict.fromkeys(CONSUMERS, -1)  # index of the state that a replica has
        self.dumps = 0
        self.harms: list[str | None] = []  # of the commands to come
        self.reached = dict.fromkeys(filter(None, HARMS), 0)  # how often

    def begin(self) -> None:
        for writer in self.writers:
            writer.begin()
        self.capture()
        for consumer in CONSUMERS:
            self.follow(consumer, first=True)

    def turn(self) -> None:
        """Some changes, then what runs in between; what is captured is a state to come back to."""
        self.event()  # what only a scan sees comes after the state before, by event too
        for _ in range(self.chance.randrange(1, 5)):
            self.chance.choice(self.writers).step()
            if self.chance.random() < 0.3:
                self.run(self.fixture.capture_arguments())
        self.event()  # each state has an event of its own
        self.capture()
        for work in self.chance.sample((self.expire, self.follow_one, self.nothing), 2):
            work()

    def event(self) -> None:
        """By a new table: a 2.3 server says nothing of an altered database."""
        before = self.fixture.source.metastore.current_event_id()
        self.writers[0].make_table()
        assert self.fixture.source.metastore.current_event_id() > before

    def capture(self) -> None:
        self.run(self.fixture.capture_arguments())
        event = self.fixture.source.metastore.current_event_id()
        self.states.append((event, self.fixture.source.shown()))

    def expire(self) -> None:
        self.run(self.expire_arguments())

    def expire_arguments(self) -> list[str]:
        return ["cm", "expire", "--cmroot", str(self.fixture.cmroot), "--older-than", "0s", "--engine", "local"]

    def nothing(self) -> None:
        pass

    def follow_one(self) -> None:
        """The near consumer comes often, the far one seldom."""
        self.follow("far" if self.chance.random() < 0.15 else "near")

    def follow(self, consumer: str, *, first: bool = False) -> None:
        """One step of a consumer: to some later state, by a dump from where its slot is."""
        later = range(self.at[consumer] + 1, len(self.states))
        if not later:
            return
        chosen = later[-1] if first else self.chance.choice(later)
        event, wanted = self.states[chosen]
        self.dumps += 1
        out = self.fixture.here / f"{consumer}{self.dumps}"
        dump = [*self.fixture.dump_arguments(out), "--slot", consumer, "--until", str(event), "--no-capture"]
        self.run(dump, done=out / "_finished_dump")
        replica = PlainDatabase(
            self.fixture.target.metastore, f"{self.fixture.name}_{consumer}", self.fixture.warehouse
        )
        loaded = self.run([*self.fixture.load_arguments(out), "--rename-db", f"{self.fixture.name}={replica.name}"])
        assert loaded.output.get("missing", []) == []
        assert replica.shown() == wanted, (consumer, event)
        self.at[consumer] = chosen

    def run(self, arguments: list[str], done: Path | None = None) -> Answer:
        """Runs a command; now and then something happens to it first, at a random step. When `done` is there
        afterwards, that came too late. Otherwise it runs again, and must succeed."""
        harm = self.next_harm()
        if harm == "failed":
            fault = Fault(self.chance.choice(ERRORS), "call", self.places(), self.chance.randrange(1, 40))
            self.note(harm, run_with(fault, arguments, must=False))
        elif harm == "delayed":
            fault = Fault("before", "call", self.places(), self.chance.randrange(1, 40))
            self.note(harm, delayed(fault, arguments, self.another_comes))
        elif harm == "killed":
            fault = Fault(self.chance.choice(("before", "after")), "any", "", self.chance.randrange(1, 40))
            self.note(harm, run_with(fault, arguments, must=False))
        if done is not None and done.exists():
            return Answer(0, {})
        answer = command(*arguments)
        assert answer.code == 0, (arguments, answer)
        return answer

    def next_harm(self) -> str | None:
        if not self.harms:
            self.harms = [harm for harm, often in HARMS.items() for _ in range(often)]
            self.chance.shuffle(self.harms)
        return self.harms.pop()

    def places(self) -> str:
        """The stores that fail: the root, the source's files, the dumps, the replicas' files and their root."""
        kept = f"{self.fixture.cmroot}/|{self.fixture.source.home}/"
        return f"{kept}|{self.fixture.here}/(near|far)|{self.fixture.warehouse}/"

    def another_comes(self) -> None:
        """While a command stands still another one captures, unless the lease is held."""
        assert (other := command(*self.fixture.capture_arguments())).code in (0, 7), other

    def note(self, harm: str, ended: Ended) -> None:
        """Counts what was reached. Who is not killed says in one JSON object how it ended."""
        self.reached[harm] += ended.reached
        if not ended.killed:
            assert json.loads(ended.out), ended

    # ---- the end --------------------------------------------------------------------------------------------------

    def every_slot_can_be_loaded(self) -> None:
        for consumer in CONSUMERS:
            while self.at[consumer] + 1 < len(self.states):
                self.follow(consumer)

    def without_slots_nothing_unneeded_is_kept(self) -> None:
        for consumer in CONSUMERS:
            assert command("cm", "slots", "drop", consumer, "--cmroot", str(self.fixture.cmroot)).code == 0
        self.expire()
        self.a_day_passes()
        assert command(*self.expire_arguments()).code == 0
        with open_manifest(open_existing(str(self.fixture.cmroot))) as manifest:
            needed = {
                content_name(row[6], row[3])
                for name in manifest.table_names(self.fixture.name)
                for row in manifest.table_files(self.fixture.name, name)
            }
        assert {path.name for path in (self.fixture.cmroot / "files").rglob("xxh3*")} == needed
        self.fixture.roots_are_in_order()

    def a_day_passes(self) -> None:
        """Only what is older is nobody's, of what is half written by those who take no lease."""
        ago = time.time() - timedelta(days=1, minutes=1).total_seconds()
        for path in self.fixture.cmroot.rglob(".aside-*"):
            os.utime(path, (ago, ago))
