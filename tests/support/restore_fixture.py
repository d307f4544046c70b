"""One captured database that has changed since, and the restore command: what tests of restores begin and end with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xxhash
from command_line import Answer, command
from history_generator import state_of
from lab import Lab
from plain_tables import text_storage

from cmroot.keep.content import locate
from replicator.core.model import EXTERNAL, Table


class RestoreFixture:
    """A captured database, what it was `before` at event `event`, and what it is since. `outside`: of its directory."""

    def __init__(self, fixture: Lab) -> None:
        self.fixture, self.source = fixture, fixture.source
        self.outside = fixture.here / "outside"
        self.source.create()
        self.source.table("t", {"first": self.text("1"), "second": self.text("2")})
        self.source.table("dropped", {"file": self.text("dropped")})
        self.source.partitioned("parts", {"a": {"file": self.text("a")}, "b": {"file": self.text("b")}})
        self.outside.mkdir()
        (self.outside / "data").write_text(self.text("outside"))
        made = Table(
            db=fixture.name,
            name="ext",
            kind=EXTERNAL,
            parameters={"EXTERNAL": "TRUE"},
            storage=text_storage(self.outside),
        )
        self.source.metastore.create_table(made)
        self.source.function("f")
        self.capture()
        self.event, self.before = self.now()
        self.source.write("t", {"first": self.text("new"), "third": self.text("3")})
        self.source.drop("dropped")
        self.source.drop_partitions("parts", ["a"])
        self.source.table("later", {"file": self.text("later")})
        self.source.function("g")
        (self.outside / "data").unlink()
        (self.outside / "data").write_text(self.text("outside, other"))
        self.capture()
        self.latest, self.after = self.now()

    def text(self, word: str) -> str:
        """Content that no other test has: they share a metastore, whose `$cmroot` would have its bytes."""
        return f"{self.fixture.name}: {word}"

    def capture(self) -> None:
        assert self.fixture.capture().code == 0

    def now(self) -> tuple[int, dict[str, Any]]:
        return self.source.metastore.current_event_id(), self.state()

    def state(self, db: str | None = None, uri: str | None = None) -> dict[str, Any]:
        return state_of(uri or self.fixture.source_uri, db or self.fixture.name)

    @property
    def into(self) -> str:
        return f"{self.fixture.name}_restored_{self.event}"

    def kept(self, text: str) -> Path:
        """Where `$cmroot` keeps the bytes of a text."""
        data = self.text(text).encode()
        return Path(locate(str(self.fixture.cmroot), xxhash.xxh3_128_hexdigest(data), len(data)))

    def databases(self) -> list[str]:
        return [name for name in self.source.metastore.database_names() if name.startswith(self.fixture.name)]


# ---- bringing back ------------------------------------------------------------------------------------------------


def restore(fixture: Lab, to: object, *more: str, target: str | None = None) -> Answer:
    """Runs the command, for the story's database."""
    return command(*restore_arguments(fixture, to, *more, target=target))


def restore_arguments(fixture: Lab, to: object, *more: str, target: str | None = None) -> list[str]:
    return [
        "restore",
        "--cmroot",
        str(fixture.cmroot),
        "--db",
        fixture.name,
        "--to",
        str(to),
        "--target",
        target or fixture.source_uri,
        "--engine",
        "local",
        "--jobs",
        "1",
        *more,
    ]


def differences(found: dict[str, Any], wanted: dict[str, Any]) -> list[Any]:
    """What two states have otherwise: (object, wanted, found)."""
    return [(name, wanted.get(name), found.get(name)) for name in wanted | found if found.get(name) != wanted.get(name)]


def fails(answer: Answer, code: int, error: str, *named: object) -> None:
    """A refusal tells what happened to which thing, and what to do."""
    assert (answer.code, answer.error) == (code, error), answer.output
    for name in named:
        assert str(name) in answer.message, answer.message
    assert answer.output["hint"]
