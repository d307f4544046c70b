"""`Lab`: replication between two metastores, by the command line or by a policy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from command_line import Answer, command
from engines import local_runtime
from names import unique
from plain_tables import PlainDatabase

from cmroot.log.captured import segments
from replicator.core.connections import MetastoreConfig
from replicator.core.policy import Policy, parse_policy
from replicator.core.roles import Role, RoleMark
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.policies.direction import Sides
from replicator.policies.memory import Memory
from replicator.policies.roles import read_role, set_role
from replicator.policies.run import Remembering, SyncRun, sync_once
from replicator.policies.steps import SyncSettings

UNLEASED = ("slots", "holds", "dumps")
"""Directories of a root in which pins are written without its lease."""


class Lab:
    """A database `source`, its replica `target`, and a policy, all called `name`. Neither database exists yet. The
    policy covers the databases `<name>_*`, which `db` creates. `here`: a directory of the test, which contains the
    roots, the dumps and the target's warehouse."""

    def __init__(
        self, source: Running, target: Running, here: Path, *, warehouse: Path | None = None, **keys: Any
    ) -> None:
        """warehouse: where the target's data goes, if not into `here`. keys: of the policy."""
        self.name = unique("db")
        self.source_uri, self.target_uri = source.uri, target.uri
        self.here, self.cmroot = here, here / "cmroot"
        self.warehouse = warehouse or here / "target"
        self.target_cmroot = self.warehouse / ".cmroot"
        self.source = PlainDatabase(connect(source.uri), self.name, source.warehouse)
        self.target = PlainDatabase(connect(target.uri), self.name, self.warehouse)
        self.dumps = 0
        self.keys: dict[str, Any] = {
            "source": source.uri,
            "target": target.uri,
            "databases": f"{self.name}_.*",
            "cmroot": str(self.cmroot),
            "target_cmroot": str(self.target_cmroot),
            "dumps": str(here / "dumps"),
            "warehouse": str(self.warehouse),
            "engine": "local",
            **keys,
        }

    # ---- databases of a policy ------------------------------------------------------------------------------------

    def db(self, name: str = "a") -> PlainDatabase:
        """A database of the source, made when it is new."""
        found = PlainDatabase(self.source.metastore, f"{self.name}_{name}", self.here / "source")
        if not found.exists():
            found.create()
        return found

    def replica(self, name: str = "a") -> PlainDatabase:
        return PlainDatabase(self.target.metastore, f"{self.name}_{name}", self.warehouse)

    def are_same(self, *names: str) -> None:
        """Asserts that replicas of a policy show what their sources do."""
        for name in names or ("a",):
            assert_same(self.db(name), self.replica(name))

    @contextmanager
    def without_source(self) -> Iterator[None]:
        """The source's files, and its root, are elsewhere."""
        places = [self.source.home, self.cmroot]
        for place in places:
            os.rename(place, f"{place}-away")
        try:
            yield
        finally:
            for place in places:
                os.rename(f"{place}-away", place)

    # ---- the command line -----------------------------------------------------------------------------------------

    def capture(self, *more: str, source: str | None = None, cmroot: Path | None = None) -> Answer:
        return command(*self.capture_arguments(source=source, cmroot=cmroot), *more)

    def dump(self, *more: str, out: Path | None = None, **given: Any) -> Answer:
        """A dump into a new directory (see `last`), or into `out`."""
        if out is None:
            self.dumps += 1
        return command(*self.dump_arguments(out or self.last, **given), *more)

    def load(self, dump: Path | None = None, *more: str, target: str | None = None) -> Answer:
        return command(*self.load_arguments(dump or self.last, target=target), *more)

    @property
    def last(self) -> Path:
        """The newest dump."""
        return self.here / f"dump{self.dumps}"

    def capture_arguments(self, *, source: str | None = None, cmroot: Path | None = None) -> list[str]:
        return [
            "capture",
            "--source",
            source or self.source_uri,
            "--cmroot",
            str(cmroot or self.cmroot),
            "--db",
            self.name,
            "--engine",
            "local",
        ]

    def dump_arguments(
        self, out: Path, *, since: Path | str | None = None, source: str | None = None, cmroot: Path | None = None
    ) -> list[str]:
        begin = [] if since is None else ["--since", str(since)]
        rest = self.capture_arguments(source=source, cmroot=cmroot)[1:]
        return ["dump", *rest, "--out", str(out), *begin]

    def load_arguments(self, dump: Path, *, target: str | None = None) -> list[str]:
        return [
            "load",
            str(dump),
            "--target",
            target or self.target_uri,
            "--warehouse",
            str(self.warehouse),
            "--engine",
            "local",
        ]

    # ---- the two steps most tests begin and end with --------------------------------------------------------------

    def bootstrap(self) -> None:
        for answer in (self.dump(), self.load()):
            assert answer.code == 0, answer
        self.is_same()

    def catch_up(self) -> None:
        """The next incremental dump, loaded: afterwards both sides are equal and the roots are in order."""
        before = self.last
        dumped = self.dump(since=before)
        assert dumped.code == 0, dumped
        loaded = self.load()
        assert loaded.code == 0, loaded
        self.is_same()

    def is_same(self) -> None:
        """Asserts that `target` shows what `source` does, and that the roots are in order."""
        assert_same(self.source, self.target)
        self.roots_are_in_order(UNLEASED)

    def roots_are_in_order(self, unswept: Collection[str] = ()) -> None:
        """The log is continuous (or reading it raises), and nothing of a crash is left, but for pins half written in
        the directories `unswept`: an expiry takes those when they are a day old."""
        for segment in segments(str(self.cmroot)):
            segment.verify()
        for root in (self.cmroot, self.target_cmroot):
            assert sorted(path.name for path in (root / "incoming").iterdir()) == []
            left = [path for path in root.rglob(".aside-*") if path.parent not in {root / each for each in unswept}]
            assert not left
            assert not (root / "loads").exists() or not any((root / "loads").iterdir())
        assert [path.name for path in (self.cmroot / "log").iterdir() if "writing" in path.name] == []
        assert [path.name for path in self.target.home.rglob(".replicating-*")] == []

    # ---- a policy -------------------------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        return parse_policy(self.name, self.keys, MetastoreConfig)

    def sync(
        self,
        *,
        others: Sequence[Policy] = (),
        remembering: Remembering | None = None,
        clock: Callable[[], float] | None = None,
        **options: Any,
    ) -> SyncRun:
        sides = replace(self.sides(clock=clock or time.time), others=others)
        return sync_once(sides, SyncSettings(**options), remembering)

    def sides(self, **more: Any) -> Sides:
        """more: fields of the runtime."""
        return Sides(self.policy, self.source.metastore, self.target.metastore, local_runtime(**more))

    def turn(self, name: str = "a", replica: str | None = None) -> None:
        """The roles of both sides change, as a switchover would change them. replica: its name on the target, if
        another."""
        db, copy = f"{self.name}_{name}", f"{self.name}_{replica or name}"
        fenced, primary = read_role(self.source.metastore, db), read_role(self.target.metastore, copy)
        reverse = fenced.role is Role.REPLICA
        for side, own, mark, role in (
            (self.source.metastore, db, fenced, Role.PRIMARY if reverse else Role.REPLICA),
            (self.target.metastore, copy, primary, Role.REPLICA if reverse else Role.PRIMARY),
        ):
            epoch = mark.epoch + (2 if role is Role.PRIMARY else 1)
            set_role(side, own, RoleMark(role, epoch), expect=mark, settle=timedelta(0), force=True)

    @property
    def memory(self) -> Memory:
        return Remembering(self.policy).memory

    def config(self) -> Path:
        """The policy as a configuration file."""
        path = self.here / "replicator.toml"
        lines = [f"[policies.{self.name}]"]
        for key, value in self.keys.items():
            if isinstance(value, dict):
                value = "{" + ", ".join(f'"{one}" = "{other}"' for one, other in value.items()) + "}"
                lines.append(f"{key} = {value}")
            else:
                lines.append(f"{key} = {value!r}" if isinstance(value, list) else f'{key} = "{value}"')
        path.write_text("\n".join(lines) + "\n")
        return path

    @classmethod
    def beside(cls, other: Lab) -> Lab:
        """Another policy between the same metastores, with the same roots."""
        found = cls.__new__(cls)
        found.__dict__ |= {**other.__dict__, "name": unique("db")}
        found.source = PlainDatabase(other.source.metastore, found.name, other.source.home.parent)
        found.target = PlainDatabase(other.target.metastore, found.name, other.warehouse)
        found.keys = {**other.keys, "databases": f"{found.name}_.*"}
        return found


def assert_same(source: PlainDatabase, replica: PlainDatabase) -> None:
    """Names the objects that differ, with what each side shows."""
    wanted, shown = source.shown(), replica.shown()
    differing = [name for name in wanted | shown if shown.get(name) != wanted.get(name)]
    assert not differing, [(name, wanted.get(name), shown.get(name)) for name in differing]
