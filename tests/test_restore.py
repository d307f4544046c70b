"""Restore: time travel for plain tables. What comes back is compared with what a walk of the tests' own saw then."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from past import Past, state_of
from story import Answer, Story, command

from replicator.metastore.embedded import Running

SEED = 20260301
STEPS, EVENTS = 40, 20


def restore(story: Story, to: object, *more: str, target: str | None = None) -> Answer:
    return command(
        "restore", "--cmroot", str(story.cmroot), "--db", story.db, "--to", str(to), "--target",
        target or story.source_uri, "--engine", "local", "--jobs", "1", *more,
    )  # fmt: skip


@pytest.fixture
def story(source_metastore: Running, target_metastore: Running, tmp_path: Path) -> Story:
    """A source with two tables, captured."""
    return Story(source_metastore, target_metastore, tmp_path)


def test_every_state_of_a_history_comes_back_as_it_was(story: Story) -> None:
    def capture() -> None:
        answer = story.capture()
        assert answer.code == 0, answer

    past = Past(story.source, story.source_uri, story.here / "outside", capture, SEED)
    past.run(STEPS)
    chosen = random.Random(SEED).sample(sorted(past.states), EVENTS)
    for event in chosen:
        answer = restore(story, event)
        assert answer.code == 0, answer
        found = state_of(story.source_uri, f"{story.db}_restored_{event}")
        wanted = past.states[event]
        names = [name for name in wanted | found if found.get(name) != wanted.get(name)]
        assert not names, (event, [(name, wanted.get(name), found.get(name)) for name in names])
