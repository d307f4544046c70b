"""A policy between the two metastores of a test module, with places of its own; see `fixture` for the databases."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from engines import local_runtime
from names import unique
from plain_tables import PlainDatabase

from replicator.core.connections.metastore_config import MetastoreConfig
from replicator.core.policy import Policy, parse_policy
from replicator.core.roles import Role, RoleMark
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.policies.direction import Sides
from replicator.policies.memory import Memory
from replicator.policies.roles import read_role, set_role
from replicator.policies.run import Remembering, SyncRun, sync_once
from replicator.policies.steps import SyncSettings


class Replication:
    """One policy, `name`; its databases are called `<name>_<something>` at the source. `here`: a directory of the
    test. Both sides have a warehouse of their own in it."""

    def __init__(self, source: Running, target: Running, here: Path, **keys: Any) -> None:
        self.name = unique("p")
        self.source_uri, self.target_uri, self.here = source.uri, target.uri, here
        self.source, self.target = connect(source.uri), connect(target.uri)
        self.keys: dict[str, Any] = {
            "source": source.uri,
            "target": target.uri,
            "databases": f"{self.name}_.*",
            "cmroot": str(here / "cmroot"),
            "target_cmroot": str(here / "target" / ".cmroot"),
            "dumps": str(here / "dumps"),
            "warehouse": str(here / "target"),
            "engine": "local",
            **keys,
        }

    @property
    def policy(self) -> Policy:
        return parse_policy(self.name, self.keys, MetastoreConfig)

    def db(self, name: str = "a") -> PlainDatabase:
        """A database of the source, made when it is new."""
        found = PlainDatabase(self.source, f"{self.name}_{name}", self.here / "source")
        if not found.exists():
            found.create()
        return found

    def replica(self, name: str = "a") -> PlainDatabase:
        return PlainDatabase(self.target, f"{self.name}_{name}", self.here / "target")

    @classmethod
    def beside(cls, other: Replication) -> Replication:
        """Another policy between the same metastores, with the same roots."""
        found = cls.__new__(cls)
        found.__dict__ |= {**other.__dict__, "name": unique("p")}
        found.keys = {**other.keys, "databases": f"{found.name}_.*"}
        return found

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
        return Sides(self.policy, self.source, self.target, local_runtime(**more))

    def turn(self, name: str = "a", replica: str | None = None) -> None:
        """The roles of both sides change, as a switchover would change them. replica: its name on the target, if
        another."""
        db, copy = f"{self.name}_{name}", f"{self.name}_{replica or name}"
        fenced, primary = read_role(self.source, db), read_role(self.target, copy)
        reverse = fenced.role is Role.REPLICA
        for side, own, mark, role in (
            (self.source, db, fenced, Role.PRIMARY if reverse else Role.REPLICA),
            (self.target, copy, primary, Role.REPLICA if reverse else Role.PRIMARY),
        ):
            epoch = mark.epoch + (2 if role is Role.PRIMARY else 1)
            set_role(side, own, RoleMark(role, epoch), expect=mark, settle=timedelta(0), force=True)

    @property
    def memory(self) -> Memory:
        return Remembering(self.policy).memory

    def is_same(self, *names: str) -> None:
        for name in names or ("a",):
            shown, wanted = self.replica(name).shown(), self.db(name).shown()
            differing = [key for key in wanted | shown if shown.get(key) != wanted.get(key)]
            assert not differing, [(key, wanted.get(key), shown.get(key)) for key in differing]

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
