"""Tables whose rows depend on transactions, on servers that have such: named everywhere, replicated nowhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hive_objects import FULL_ACID, INSERT_ONLY, hive_client
from policies import Replication
from replication_fixture import command

from replicator.metastore.embedded.running import Running

Hives = Callable[..., Running]
ACID = {"full": FULL_ACID, "inserts": INSERT_ONLY}


class Transactional(Replication):
    """A policy whose database has a plain table, and one of each kind that is not replicated."""

    def __init__(self, source: Running, target: Running, here: Path) -> None:
        super().__init__(source, target, here)
        self.hive = source
        self.database = self.db("a").name
        self.db("a").table("plain", {"first": "1"})
        with self.client() as client:
            for name, parameters in ACID.items():
                client.table(self.database, name, parameters)

    def client(self) -> Any:
        return hive_client(self.hive)

    def run(self, *words: str) -> tuple[int, dict[str, Any]]:
        answer = command("--config", str(self.config()), *words)
        return answer.code, answer.output

    def named(self, output: dict[str, Any]) -> dict[str, str]:
        return {each["object"].split(".")[1]: each["reason"] for each in output["not_replicated"]}


@pytest.fixture(params=["3.1", "4.2"])
def story(request: pytest.FixtureRequest, hives: Hives, tmp_path: Path) -> Iterator[Transactional]:
    yield Transactional(hives(request.param), hives(request.param, "target"), tmp_path)


def test_they_are_named_everywhere_and_the_rest_goes_on(story: Transactional) -> None:
    plan = str(story.here / "plan.json")
    for words in (["check"], ["plan", "--out", plan], ["sync"], ["verify"]):
        code, output = story.run(words[0], story.name, *words[1:])
        found = output["policies"][0] if "policies" in output else output
        assert code == 3, (words, output)
        assert set(story.named(found)) == set(ACID), (words, output)
        assert all("transaction" in reason for reason in story.named(found).values())
    assert story.target.table_names(story.replica("a").name) == ["plain"]
