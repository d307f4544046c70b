"""Any byte of a dump, a segment, a pin or a gateway's taking may be another one: it is refused by name, or what is
loaded is exactly what was dumped; and never anything outside changes. `scripts/fuzz` runs more, with other seeds."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Answer, command
from fuzzing import damage, forge, mutated, mutated_text
from hostile import World, world
from lab import Lab
from plain_tables import PlainDatabase

import replicator.errors
from cmroot.errors import Error
from cmroot.keep.intercept import Intercept
from cmroot.keep.journal import DropCall, InterceptSource, Owner
from replicator.captures.gateways.drops import Counts, Drops

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
TEXT = "1\x01one\n2\x01two\n"
ERRORS = set(replicator.errors.__all__) | {"PinError", "UnknownPlace", "Superseded", "ConfigError"}


@pytest.fixture
def fixture(fixture: Lab) -> Lab:
    """A bootstrap dump of tables, partitions, a view's worth of metadata and a function; nothing is loaded."""
    fixture.source.table("t", {"first": TEXT, "second": "3\x01three\n"})
    fixture.source.partitioned("parts", {"a": {"file": "1\x01a\n"}, "b": {"file": "1\x01b\n"}})
    fixture.source.function("f")
    assert fixture.dump("--slot", "consumer").code == 0
    victim = fixture.warehouse / "victim"
    victim.mkdir(parents=True)
    (victim / "theirs").write_text("not ours")
    return fixture


class Fuzz:
    """Loads of changed dumps into databases of their own, with the world around under watch."""

    def __init__(self, fixture: Lab) -> None:
        self.fixture, self.random = fixture, random.Random(SEED)
        self.replicas = 0
        self.dump = fixture.here / "changed"

    def around(self, own: Path) -> World:
        """All that no load of a database at `own` may change."""
        fixture, root = self.fixture, self.fixture.target_cmroot
        busy = [root / name for name in ("files", "incoming", "lease", "loads", "copying")]
        loaded = self.dump / "_finished_load"
        pins = [fixture.cmroot / name for name in ("slots", "lease")]
        return world(
            fixture.warehouse,
            fixture.here,
            fixture.source.home,
            but=[own, fixture.warehouse / "external", loaded, *busy, *pins],
        )

    def new_replica(self) -> PlainDatabase:
        self.replicas += 1
        return PlainDatabase(
            self.fixture.target.metastore, f"{self.fixture.name}_{self.replicas}", self.fixture.warehouse
        )

    def load(self, into: PlainDatabase | None = None) -> tuple[Answer, PlainDatabase]:
        fixture, replica = self.fixture, into or self.new_replica()
        name = replica.name
        databases = set(fixture.target.metastore.database_names())
        before = self.around(replica.home)
        answer = fixture.load(self.dump, "--rename-db", f"{fixture.name}={name}")
        assert set(fixture.target.metastore.database_names()) <= databases | {name}
        after = self.around(replica.home)
        new_roots = {path for path in after.keys() - before.keys() if Path(path).is_relative_to(fixture.target_cmroot)}
        assert {path: value for path, value in after.items() if path not in new_roots} == before, answer.output
        return answer, replica

    @contextlib.contextmanager
    def changed(self) -> Iterator[Path]:
        shutil.copytree(self.fixture.last, self.dump, ignore=shutil.ignore_patterns("_finished_load"))
        yield self.dump
        shutil.rmtree(self.dump)


def is_refused(answer: Answer) -> bool:
    """By an error of ours that names what is wrong and says what to do; false when it went through."""
    if answer.code in (0, 3):
        return False
    assert answer.error in ERRORS and "internal error" not in answer.message, answer.output
    assert answer.message, answer.output
    return True


def test_a_dump_with_other_bytes_is_refused_or_loads_exactly(fixture: Lab) -> None:
    fuzz, refused = Fuzz(fixture), 0
    for number in range(EXAMPLES * 2):
        with fuzz.changed() as dump:
            name = damage(dump, fuzz.random)
            answer, replica = fuzz.load()
            if is_refused(answer):
                refused += 1
                assert str(dump) in answer.message and not replica.exists(), (number, name, answer.output)
            else:
                assert replica.shown() == fixture.source.shown(), (number, name)
    assert refused > EXAMPLES  # most bytes matter


def test_a_dump_that_was_forged_with_care_changes_nothing_outside(fixture: Lab) -> None:
    fuzz, refused = Fuzz(fixture), 0
    for number in range(EXAMPLES):
        with fuzz.changed() as dump:
            name = forge(dump, fuzz.random)
            answer, _ = fuzz.load()
            try:
                refused += is_refused(answer)
            except AssertionError as error:
                raise AssertionError(f"example {number} of seed {SEED}: {name}: {error}") from error
    assert refused


def test_an_increment_that_was_forged_with_care_changes_nothing_outside(fixture: Lab) -> None:
    first = fixture.last
    fixture.source.write("t", {"third": TEXT, "second": "3\x01other\n"})
    fixture.source.rename("t", "renamed")
    fixture.source.drop_partitions("parts", ["b"])
    fixture.source.add("parts", {"c": {"file": "1\x01c\n"}})
    fixture.source.alter_partition("parts", "a", note="altered")
    fixture.source.table("new", {"file": TEXT})
    assert fixture.dump(since=first).code == 0
    fuzz = Fuzz(fixture)
    for number in range(EXAMPLES // 3):
        replica = fuzz.new_replica()
        assert fixture.load(first, "--rename-db", f"{fixture.name}={replica.name}").code == 0
        with fuzz.changed() as dump:
            name = forge(dump, fuzz.random)
            answer, _ = fuzz.load(replica)
            try:
                is_refused(answer)
            except AssertionError as error:
                raise AssertionError(f"example {number} of seed {SEED}: {name}: {error}") from error


def test_a_log_with_other_bytes_is_refused_or_read_exactly(fixture: Lab) -> None:
    choice = random.Random(SEED)
    kept = fixture.here / "kept"
    shutil.copytree(fixture.cmroot, kept, symlinks=True)
    fuzz = Fuzz(fixture)
    for number in range(EXAMPLES):
        segment = next((fixture.cmroot / "log").iterdir())
        name = damage(segment, choice)
        (fixture.cmroot / "manifest.sqlite").unlink(missing_ok=True)
        before = world(fixture.cmroot / "files", fixture.cmroot / "slots", fixture.cmroot / "holds")
        expired = command("cm", "expire", "--cmroot", str(fixture.cmroot), "--older-than", "0s", "--engine", "local")
        assert is_refused(expired) or expired.output.get("removed", 0) == 0, (number, name, expired.output)
        dumped = fixture.dump("--no-capture", out=fuzz.dump)
        after = world(fixture.cmroot / "files", fixture.cmroot / "slots", fixture.cmroot / "holds")
        lost = {path for path in before if after.get(path) != before[path]}
        assert not lost, (number, name)
        if not is_refused(dumped):
            answer, replica = fuzz.load()
            assert answer.code == 0 and replica.shown() == fixture.source.shown(), (number, name, answer.output)
        shutil.rmtree(fuzz.dump, ignore_errors=True)
        shutil.rmtree(fixture.cmroot)
        shutil.copytree(kept, fixture.cmroot, symlinks=True)


def test_a_log_that_was_forged_with_care_changes_nothing_outside(fixture: Lab) -> None:
    choice = random.Random(SEED)
    kept = fixture.here / "kept"
    shutil.copytree(fixture.cmroot, kept, symlinks=True)
    fuzz = Fuzz(fixture)
    for _ in range(EXAMPLES):
        segment = next((fixture.cmroot / "log").iterdir())
        forge(segment, choice, "_segment.json")
        (fixture.cmroot / "manifest.sqlite").unlink(missing_ok=True)
        outside = world(fixture.warehouse, fixture.here, fixture.source.home, but=[fixture.cmroot, fuzz.dump])
        dumped = fixture.dump("--no-capture", out=fuzz.dump)
        assert world(fixture.warehouse, fixture.here, fixture.source.home, but=[fixture.cmroot, fuzz.dump]) == outside
        if not is_refused(dumped):
            answer, _ = fuzz.load()
            is_refused(answer)
        shutil.rmtree(fuzz.dump, ignore_errors=True)
        shutil.rmtree(fixture.cmroot)
        shutil.copytree(kept, fixture.cmroot, symlinks=True)


def test_a_pin_with_other_bytes_stops_what_it_may_have_protected(fixture: Lab) -> None:
    choice = random.Random(SEED)
    root = str(fixture.cmroot)
    assert command("cm", "hold", "audit", "--cmroot", root).code == 0
    fixture.source.drop("t")
    assert fixture.capture().code == 0
    for number in range(EXAMPLES * 2):
        pins = [path for kind in ("slots", "holds", "dumps") for path in (fixture.cmroot / kind).iterdir()]
        pin = choice.choice(sorted(pins))
        good = pin.read_bytes()
        pin.write_bytes(mutated(good, choice))
        before = world(fixture.cmroot / "files")
        answer = command("cm", "expire", "--cmroot", root, "--older-than", "0s", "--engine", "local")
        if is_refused(answer):
            assert str(pin) in answer.message, (number, answer.output)
        assert world(fixture.cmroot / "files") == before, (number, pin, answer.output)
        listed = command("cm", "slots", "--cmroot", root)
        assert listed.code == 0 or is_refused(listed)
        pin.write_bytes(good)


@pytest.mark.parametrize("state", ["taking", "sent", "done"])
def test_a_taking_with_other_bytes_moves_nothing_outside_and_loses_nothing(fixture: Lab, state: str) -> None:
    """A gateway was killed in a drop, and somebody has changed what it wrote down; then it starts again."""
    choice, source, root = random.Random(SEED), fixture.source, str(fixture.cmroot)
    texts = set(contents(source.home))
    intercept = begun(fixture, state)
    if state != "taking":
        source.metastore.drop_table(fixture.name, "t")
    kept = {place: fixture.here / f"kept-{place.name}" for place in (fixture.cmroot, source.home)}
    for place, copy in kept.items():
        shutil.copytree(place, copy, symlinks=True)
    victim = fixture.warehouse / "victim"
    ways = [
        f"file:{victim}",
        f"file:{victim}/new",
        f"file:{source.home}/../../new",
        os.path.relpath(victim, intercept),
        "/x",
    ]

    def redirected(data: bytes, choice: random.Random) -> bytes:
        journal = json.loads(data)
        part, name = choice.choice((("sources", "place"), ("sources", "entry"), ("owners", "location")))
        journal[part][0][name] = choice.choice(ways)
        if choice.random() < 0.3:
            journal["about"] = {"emptied": [choice.choice(ways)]}
        return json.dumps(journal | {"state": choice.choice(("taking", "sent", "done"))}).encode()

    for number in range(EXAMPLES * 2):
        path = choice.choice(sorted(path for path in intercept.iterdir() if path.is_file()))
        change = choice.choice((redirected, mutated_text, mutated)) if path.suffix == ".json" else mutated
        path.write_bytes(change(path.read_bytes(), choice))
        about = f"example {number} of seed {SEED}: {path.name}: {path.read_bytes()[:1000]!r}"
        outside = world(fixture.warehouse, fixture.here, source.home.parent, but=kept.keys())
        drops = Drops(source.metastore, root, Counts())
        try:
            drops.recover()
            drops.settle_undecided()
        except Error as error:
            assert str(intercept) in str(error), about
        assert world(fixture.warehouse, fixture.here, source.home.parent, but=kept.keys()) == outside, about
        left = set(contents(source.home)) | set(contents(fixture.cmroot / "files")) | set(contents(intercept))
        assert texts <= left, about
        for place, copy in kept.items():
            shutil.rmtree(place)
            shutil.copytree(copy, place, symlinks=True)


def begun(fixture: Lab, state: str) -> Path:
    """The directory of an intercept of table `t` that nobody has finished."""
    place = f"file:{fixture.source.home / 't'}"
    intercept = Intercept.begin(
        str(fixture.cmroot),
        DropCall(
            before_event=fixture.source.metastore.current_event_id(), call="drop_table", db=fixture.name, table="t"
        ),
        [InterceptSource(place, "t")],
        [Owner("t", "", place)],
    )
    intercept.protect()
    if state != "taking":
        intercept.sent()
    if state == "done":
        intercept._save(state="done", events={"t": intercept.journal.before_event})
    intercept._store_lock.close()
    return Path(intercept.place)


def contents(top: Path) -> list[bytes]:
    return [path.read_bytes() for path in top.rglob("*") if path.is_file() and not path.is_symlink()]
