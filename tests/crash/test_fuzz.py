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
from fuzzing import damage, forge, mutated, mutated_text
from hostile import World, world
from plain_tables import PlainDatabase
from story import Answer, Story, command

import replicator.errors
from cmroot.errors import Error
from cmroot.keep.intercept import Intercept
from cmroot.keep.journal import Owner, Source
from replicator.gateways.drops import Counts, Drops
from replicator.metastore.embedded.running import Running

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
TEXT = "1\x01one\n2\x01two\n"
ERRORS = set(replicator.errors.__all__) | {"PinError", "UnknownPlace", "Superseded", "ConfigError"}


@pytest.fixture
def story(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Story:
    """A bootstrap dump of tables, partitions, a view's worth of metadata and a function; nothing is loaded."""
    story = Story(source_metastore, target_metastore, tmp_path)
    story.source.create()
    story.source.table("t", {"first": TEXT, "second": "3\x01three\n"})
    story.source.partitioned("parts", {"a": {"file": "1\x01a\n"}, "b": {"file": "1\x01b\n"}})
    story.source.function("f")
    assert story.dump("--slot", "consumer").code == 0
    victim = story.warehouse / "victim"
    victim.mkdir(parents=True)
    (victim / "theirs").write_text("not ours")
    return story


class Fuzz:
    """Loads of changed dumps into databases of their own, with the world around under watch."""

    def __init__(self, story: Story) -> None:
        self.story, self.random = story, random.Random(SEED)
        self.replicas = 0
        self.dump = story.here / "changed"

    def around(self, own: Path) -> World:
        """All that no load of a database at `own` may change."""
        story, root = self.story, self.story.target_cmroot
        busy = [root / name for name in ("files", "incoming", "lease", "loads", "copying")]
        loaded = self.dump / "_finished_load"
        pins = [story.cmroot / name for name in ("slots", "lease")]
        return world(
            story.warehouse,
            story.here,
            story.source.home,
            but=[own, story.warehouse / "external", loaded, *busy, *pins],
        )

    def new_replica(self) -> PlainDatabase:
        self.replicas += 1
        return PlainDatabase(self.story.target.metastore, f"{self.story.db}_{self.replicas}", self.story.warehouse)

    def load(self, into: PlainDatabase | None = None) -> tuple[Answer, PlainDatabase]:
        story, replica = self.story, into or self.new_replica()
        name = replica.name
        databases = set(story.target.metastore.database_names())
        before = self.around(replica.home)
        answer = story.load(self.dump, "--rename-db", f"{story.db}={name}")
        assert set(story.target.metastore.database_names()) <= databases | {name}
        after = self.around(replica.home)
        new_roots = {path for path in after.keys() - before.keys() if Path(path).is_relative_to(story.target_cmroot)}
        assert {path: value for path, value in after.items() if path not in new_roots} == before, answer.said
        return answer, replica

    @contextlib.contextmanager
    def changed(self) -> Iterator[Path]:
        shutil.copytree(self.story.last, self.dump, ignore=shutil.ignore_patterns("_finished_load"))
        yield self.dump
        shutil.rmtree(self.dump)


def is_refused(answer: Answer) -> bool:
    """By an error of ours that names what is wrong and says what to do; false when it went through."""
    if answer.code in (0, 3):
        return False
    assert answer.error in ERRORS and "internal error" not in answer.message, answer.said
    assert answer.message, answer.said
    return True


def test_a_dump_with_other_bytes_is_refused_or_loads_exactly(story: Story) -> None:
    fuzz, refused = Fuzz(story), 0
    for number in range(EXAMPLES * 2):
        with fuzz.changed() as dump:
            name = damage(dump, fuzz.random)
            answer, replica = fuzz.load()
            if is_refused(answer):
                refused += 1
                assert str(dump) in answer.message and not replica.exists(), (number, name, answer.said)
            else:
                assert replica.shown() == story.source.shown(), (number, name)
    assert refused > EXAMPLES  # most bytes matter


def test_a_dump_that_was_forged_with_care_changes_nothing_outside(story: Story) -> None:
    fuzz, refused = Fuzz(story), 0
    for number in range(EXAMPLES):
        with fuzz.changed() as dump:
            name = forge(dump, fuzz.random)
            answer, _ = fuzz.load()
            try:
                refused += is_refused(answer)
            except AssertionError as error:
                raise AssertionError(f"example {number} of seed {SEED}: {name}: {error}") from error
    assert refused


def test_an_increment_that_was_forged_with_care_changes_nothing_outside(story: Story) -> None:
    first = story.last
    story.source.write("t", {"third": TEXT, "second": "3\x01other\n"})
    story.source.rename("t", "renamed")
    story.source.drop_partitions("parts", ["b"])
    story.source.add("parts", {"c": {"file": "1\x01c\n"}})
    story.source.alter_partition("parts", "a", note="altered")
    story.source.table("new", {"file": TEXT})
    assert story.dump(since=first).code == 0
    fuzz = Fuzz(story)
    for number in range(EXAMPLES // 3):
        replica = fuzz.new_replica()
        assert story.load(first, "--rename-db", f"{story.db}={replica.name}").code == 0
        with fuzz.changed() as dump:
            name = forge(dump, fuzz.random)
            answer, _ = fuzz.load(replica)
            try:
                is_refused(answer)
            except AssertionError as error:
                raise AssertionError(f"example {number} of seed {SEED}: {name}: {error}") from error


def test_a_log_with_other_bytes_is_refused_or_read_exactly(story: Story) -> None:
    choice = random.Random(SEED)
    kept = story.here / "kept"
    shutil.copytree(story.cmroot, kept, symlinks=True)
    fuzz = Fuzz(story)
    for number in range(EXAMPLES):
        segment = next((story.cmroot / "log").iterdir())
        name = damage(segment, choice)
        (story.cmroot / "manifest.sqlite").unlink(missing_ok=True)
        before = world(story.cmroot / "files", story.cmroot / "slots", story.cmroot / "holds")
        expired = command("cm", "expire", "--cmroot", str(story.cmroot), "--older-than", "0s", "--engine", "local")
        assert is_refused(expired) or expired.said.get("removed", 0) == 0, (number, name, expired.said)
        dumped = story.dump("--no-capture", out=fuzz.dump)
        after = world(story.cmroot / "files", story.cmroot / "slots", story.cmroot / "holds")
        lost = {path for path in before if after.get(path) != before[path]}
        assert not lost, (number, name)
        if not is_refused(dumped):
            answer, replica = fuzz.load()
            assert answer.code == 0 and replica.shown() == story.source.shown(), (number, name, answer.said)
        shutil.rmtree(fuzz.dump, ignore_errors=True)
        shutil.rmtree(story.cmroot)
        shutil.copytree(kept, story.cmroot, symlinks=True)


def test_a_log_that_was_forged_with_care_changes_nothing_outside(story: Story) -> None:
    choice = random.Random(SEED)
    kept = story.here / "kept"
    shutil.copytree(story.cmroot, kept, symlinks=True)
    fuzz = Fuzz(story)
    for _ in range(EXAMPLES):
        segment = next((story.cmroot / "log").iterdir())
        forge(segment, choice, "_segment.json")
        (story.cmroot / "manifest.sqlite").unlink(missing_ok=True)
        outside = world(story.warehouse, story.here, story.source.home, but=[story.cmroot, fuzz.dump])
        dumped = story.dump("--no-capture", out=fuzz.dump)
        assert world(story.warehouse, story.here, story.source.home, but=[story.cmroot, fuzz.dump]) == outside
        if not is_refused(dumped):
            answer, _ = fuzz.load()
            is_refused(answer)
        shutil.rmtree(fuzz.dump, ignore_errors=True)
        shutil.rmtree(story.cmroot)
        shutil.copytree(kept, story.cmroot, symlinks=True)


def test_a_pin_with_other_bytes_stops_what_it_may_have_protected(story: Story) -> None:
    choice = random.Random(SEED)
    root = str(story.cmroot)
    assert command("cm", "hold", "audit", "--cmroot", root).code == 0
    story.source.drop("t")
    assert story.capture().code == 0
    for number in range(EXAMPLES * 2):
        pins = [path for kind in ("slots", "holds", "dumps") for path in (story.cmroot / kind).iterdir()]
        pin = choice.choice(sorted(pins))
        good = pin.read_bytes()
        pin.write_bytes(mutated(good, choice))
        before = world(story.cmroot / "files")
        answer = command("cm", "expire", "--cmroot", root, "--older-than", "0s", "--engine", "local")
        if is_refused(answer):
            assert str(pin) in answer.message, (number, answer.said)
        assert world(story.cmroot / "files") == before, (number, pin, answer.said)
        listed = command("cm", "slots", "--cmroot", root)
        assert listed.code == 0 or is_refused(listed)
        pin.write_bytes(good)


@pytest.mark.parametrize("state", ["taking", "sent", "done"])
def test_a_taking_with_other_bytes_moves_nothing_outside_and_loses_nothing(story: Story, state: str) -> None:
    """A gateway was killed in a drop, and somebody has changed what it wrote down; then it starts again."""
    choice, source, root = random.Random(SEED), story.source, str(story.cmroot)
    texts = set(contents(source.home))
    intercept = begun(story, state)
    if state != "taking":
        source.metastore.drop_table(story.db, "t")
    kept = {place: story.here / f"kept-{place.name}" for place in (story.cmroot, source.home)}
    for place, copy in kept.items():
        shutil.copytree(place, copy, symlinks=True)
    victim = story.warehouse / "victim"
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
        outside = world(story.warehouse, story.here, source.home.parent, but=kept.keys())
        drops = Drops(source.metastore, root, Counts())
        try:
            drops.recover()
            drops.settle_undecided()
        except Error as error:
            assert str(intercept) in str(error), about
        assert world(story.warehouse, story.here, source.home.parent, but=kept.keys()) == outside, about
        left = set(contents(source.home)) | set(contents(story.cmroot / "files")) | set(contents(intercept))
        assert texts <= left, about
        for place, copy in kept.items():
            shutil.rmtree(place)
            shutil.copytree(copy, place, symlinks=True)


def begun(story: Story, state: str) -> Path:
    """The directory of a taking of table `t` that nobody has finished."""
    place = f"file:{story.source.home / 't'}"
    intercept = Intercept.begin(
        str(story.cmroot),
        before_event=story.source.metastore.current_event_id(),
        call="drop_table",
        db=story.db,
        table="t",
        sources=[Source(place, "t")],
        owners=[Owner("t", "", place)],
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
