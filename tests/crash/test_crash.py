"""Killed at any point, and run again: the end is the same as if nothing had happened, and nothing is left lying about.

Runs are children that are killed (SIGKILL) at a given step (`faults`), or at a random moment. Each row of the crash
table in docs/design.md has its steps here; `scripts/soak_crash` kills at every step there is.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from command_line import command
from crash_story import Crashing, crashing, keep, run_again
from faults import Fault, run_with, standing

from replicator.metastore.embedded.running import Running

__all__ = ["crashing", "keep"]

SEED = 20260301
KILLS = 20


# ---- at a given step ----------------------------------------------------------------------------------------------

CAPTURE = [
    Fault("before", "rename", r"/cmroot/lease$"),
    Fault("after", "mkdir", r"-writing$"),
    Fault("after", "link", r"/cmroot/files/", 3),  # kept, and no log names it yet
    Fault("after", "rename", r"-writing/records-"),
    Fault("before", "rename", r"-writing/_segment\.json"),
    Fault("after", "rename", r"-writing/_segment\.json"),  # whole, but not under the name that readers look for
    Fault("before", "commit", "manifest"),  # the segment counts, the manifest does not know it
    Fault("after", "commit", "manifest"),
]
DUMP = [
    Fault("after", "rename", r"/dump\d+/_metadata/records-"),  # between two parts
    Fault("before", "rename", r"/_dumpmetadata$"),
    Fault("after", "rename", r"/_dumpmetadata$"),
    Fault("before", "rename", r"/_finished_dump$"),
    Fault("after", "rename", r"/_finished_dump$"),
]
LOAD = [
    Fault("before", "thrift", "alter database"),
    Fault("after", "thrift", "alter database"),  # the database says that a load has begun
    Fault("after", "symlink", r"/incoming/recycle-.*\.origin"),
    Fault("after", "rename", r"/incoming/recycle-"),  # data of a dropped table is nowhere but in incoming/
    Fault("after", "link", r"/\.cmroot/files/"),
    Fault("before", "thrift", "drop table"),  # its data is recycled
    Fault("after", "thrift", "drop table"),
    Fault("before", "thrift", r"alter table .*\.renamed"),
    Fault("after", "thrift", r"alter table .*\.renamed"),  # renamed, and nothing else of it done
    Fault("after", "thrift", r"alter table .*\.stage"),  # has the name of a table that was dropped
    Fault("after", "thrift", r"alter table .*\.(left|right)"),  # of a swap: the first is aside
    Fault("after", "thrift", r"alter table .*\.(left|right)", 2),
    Fault("after", "thrift", r"alter table .*(left|right).*swap"),
    Fault("before", "thrift", "drop 1 partition"),
    Fault("after", "thrift", "drop 1 partition"),
    Fault("after", "rename", r"/loads/.*\.anew$"),  # prepared: the table that began again is cleared
    Fault("before", "rename", r"\.db/.*/added\d+$"),  # a file is whole, under its passing name
    Fault("after", "rename", r"\.db/.*/added\d+$"),
    Fault("after", "link", r"/\.cmroot/files/", 5),  # what is replaced is kept
    Fault("before", "thrift", "create table"),  # all is copied, nothing is committed
    Fault("after", "thrift", "create table"),
    Fault("before", "thrift", "add 1 partition"),
    Fault("after", "thrift", "add 1 partition"),
    Fault("before", "thrift", "alter . partition"),
    Fault("after", "thrift", "create function"),
    Fault("before", "thrift", "alter database", 2),  # all is committed, and no checkpoint says so
    Fault("after", "thrift", "alter database", 2),
    Fault("before", "rename", r"/_finished_load/"),  # the checkpoint says so, and nobody is reported
    Fault("after", "rename", r"/_finished_load/"),
]
WHOLE = [
    Fault("after", "rename", r"/\.cmroot/lease$"),
    Fault("before", "thrift", "create database"),
    Fault("after", "thrift", "create database"),
    Fault("after", "rename", r"/loads/", 2),
    Fault("after", "rename", r"\.db/parts/p="),
    Fault("before", "thrift", "create table"),
    Fault("after", "thrift", "create table", 2),
    Fault("after", "thrift", r"alter table"),
    Fault("before", "thrift", "add . partitions"),
    Fault("after", "thrift", "add . partitions"),
    Fault("before", "thrift", "alter database"),
    Fault("after", "thrift", "alter database"),
]


def sampled(faults: list[Fault]) -> list[Any]:
    """Every second one; the others are `long`, as those of `long.toml`, and `scripts/soak_crash` kills at each."""
    return [pytest.param(each, marks=[pytest.mark.long] * (number % 2)) for number, each in enumerate(faults)]


@pytest.mark.parametrize("fault", sampled([*CAPTURE, *DUMP]), ids=str)
def test_a_dump_that_was_killed_is_run_again(crashing: Crashing, fault: Fault) -> None:
    arguments = crashing.next_dump()
    run_with(fault, arguments)
    crashing.finish_dump(arguments)
    crashing.finish_load(crashing.fixture.load_arguments(crashing.fixture.last))


@pytest.mark.parametrize("fault", sampled(LOAD), ids=str)
def test_a_load_that_was_killed_is_run_again(crashing: Crashing, fault: Fault) -> None:
    run_again(crashing.next_dump())
    arguments = crashing.fixture.load_arguments(crashing.fixture.last)
    run_with(fault, arguments)
    crashing.finish_load(arguments)
    assert run_again(arguments).output["status"] == "already loaded"


@pytest.mark.parametrize("fault", sampled(WHOLE), ids=str)
def test_a_first_load_that_was_killed_is_run_again(crashing: Crashing, fault: Fault) -> None:
    replica, arguments = crashing.fresh_replica()
    run_with(fault, arguments)
    run_again(arguments)
    assert replica.shown() == crashing.fixture.source.shown()
    crashing.fixture.roots_are_in_order()


@pytest.mark.parametrize(
    "fault",
    sampled(
        [
            Fault("after", "thrift", "drop table"),
            Fault("after", "thrift", r"alter table .*\.renamed"),
            Fault("after", "thrift", r"alter table .*\.stage"),
            Fault("after", "thrift", r"alter table .*\.(left|right)"),
            Fault("after", "rename", r"\.db/.*/added\d+$"),
            Fault("before", "thrift", "alter database", 2),
            Fault("before", "rename", r"\.db/.*/added\d+$"),  # a part copy of a file that the newer dump does not name
        ]
    ),
    ids=str,
)
def test_after_a_killed_load_a_newer_dump_will_do_too(crashing: Crashing, fault: Fault) -> None:
    """Whoever runs every few minutes does not come back to the last dump: the next begins where the target is."""
    fixture = crashing.fixture
    loaded = fixture.last
    run_again(crashing.next_dump())
    run_with(fault, fixture.load_arguments(fixture.last))
    crashing.source.change()
    assert fixture.dump(since=loaded).code == 0
    crashing.finish_load(fixture.load_arguments(fixture.last))


# ---- at any moment ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_runs_killed_at_random_moments_lose_nothing(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    """Dumps and loads, bootstrap and incremental in turns, each killed and run again until it succeeds."""
    chance = random.Random(SEED)
    crashing = Crashing.begin(source_metastore, target_metastore, tmp_path, tables=24, partitions=60)
    fixture = crashing.fixture
    lasts = {"dump": 1.0, "load": 1.0}  # seconds of a whole run, as last seen
    kills = 0

    def until_done(kind: str, arguments: list[str]) -> None:
        nonlocal kills
        for moment in (chance.uniform(0, lasts[kind]), chance.uniform(0, lasts[kind]), None):
            ended = run_with(None, arguments, kill_after=moment)
            kills += ended.killed
            if not ended.killed:
                assert ended.code == 0, ended
                lasts[kind] = ended.seconds
                return
            if kind == "dump" and (fixture.last / "_finished_dump").exists():
                return

    for number in itertools.count():
        arguments = crashing.next_dump()
        if number % 3 == 2:
            arguments = fixture.dump_arguments(fixture.last)  # a bootstrap, onto the target that is there
        until_done("dump", arguments)
        until_done("load", fixture.load_arguments(fixture.last))
        fixture.is_same()
        if kills >= KILLS:
            break
        assert number < 10 * KILLS


# ---- side by side -------------------------------------------------------------------------------------------------


def test_two_loaders_of_one_target_exclude_each_other(crashing: Crashing) -> None:
    run_again(crashing.next_dump())
    arguments = crashing.fixture.load_arguments(crashing.fixture.last)
    with standing(Fault("before", "thrift", "create table"), arguments):
        answer = command(*arguments)
    assert (answer.code, answer.error) == (7, "LeaseHeld")
    crashing.finish_load(arguments)


def test_two_captures_of_one_cmroot_exclude_each_other(crashing: Crashing) -> None:
    arguments = crashing.next_dump()
    capture = crashing.fixture.capture_arguments()
    with standing(Fault("before", "rename", r"_segment\.json"), capture):
        for other in (capture, arguments):
            answer = command(*other)
            assert (answer.code, answer.error) == (7, "LeaseHeld")
    run_again(arguments)
    crashing.finish_load(crashing.fixture.load_arguments(crashing.fixture.last))
