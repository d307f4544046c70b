"""Expiry of past states of tables: snapshots of Iceberg tables, by Iceberg in Spark; instants of Hudi tables, by Hudi's
cleaner; versions of Delta tables. Acts. Versions of Delta end in steps:

    checkpoint  of the first version that stays, by Delta in Spark
    vacuum      `VACUUM ... USING INVENTORY` of the files that only earlier versions need, by name; so files of writers
                that have not committed stay. Delta keeps those that are younger than the table's retention
    end         files of the log of earlier versions, from the first one on. Delta's own cleanup removes by the times of
                files and by the newest checkpoint, which another writer may move: no version that it is given

A killed run is completed by the next one: as long as the log has an earlier version, the policy selects it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import groupby
from typing import Any, BinaryIO

from cmroot.errors import Error, FormatError, LeaseHeld
from cmroot.store import delta, iceberg
from cmroot.store.listing import FileState
from cmroot.store.place import Place, join, located, normal
from replicator.core.audit import AuditLog
from replicator.core.cluster import is_of_spark, spark_failed
from replicator.core.engine import AutoEngine
from replicator.core.formats import format_of, pointer_of
from replicator.core.formats.delta_table import DELTA
from replicator.core.formats.hudi_table import HUDI
from replicator.core.model import Table
from replicator.core.spark import hive_settings
from replicator.lifecycle.purge.delta_search import location_of, shown_by, state_of
from replicator.lifecycle.purge.lake_search import Unsearchable
from replicator.lifecycle.removal.delta_actions import DeltaActions, why_no_delta
from replicator.lifecycle.removal.hudi_actions import HudiActions, other_names, why_no_hudi
from replicator.lifecycle.removal.iceberg_actions import IcebergActions, why_no_iceberg
from replicator.lifecycle.removal.live import LiveLocations, shared
from replicator.lifecycle.retention.datasets import explained
from replicator.lifecycle.retention.hudi_instants import Instants
from replicator.lifecycle.retention.plan import PlannedItem
from replicator.lifecycle.retention.table_states import RETENTION, files_before, past_states, place_of, states_of
from replicator.metastore.client import Metastore, warehouse_of


@dataclass
class Expired:
    """The result of an expiry. failed: why snapshots were not expired."""

    count: int = 0
    failed: list[tuple[PlannedItem, str]] = field(default_factory=list)


@dataclass
class Expirer:
    """The expiry of planned states. check: raises LeaseHeld. grace: see `table_states`."""

    metastore: Metastore
    live: LiveLocations
    engines: AutoEngine
    audit: AuditLog
    check: Callable[[], None]
    clock: Callable[[], float]
    grace: timedelta

    @cached_property
    def _session(self) -> Any:
        config, warehouse = self.metastore.config, warehouse_of(self.metastore) or "/tmp"
        return self.engines.session(hive_settings(config, warehouse, self.engines.settings))

    def expire(self, items: Sequence[PlannedItem]) -> Expired:
        """Expires the states of each table: snapshots by one commit. One that a branch or tag names since, and a commit
        that meets another writer's, fail, and change nothing. May run twice."""
        done = Expired()
        for name, of_table in groupby(items, lambda item: item.removal.object):
            group, (db, _, table) = list(of_table), name.partition(".")
            states = {item.snapshot for item in group if item.snapshot is not None}
            what = group[0].removal.what
            selected = {"change": "expire", f"{what}s": sorted(states)}
            self.audit.changed(name, f"{len(states):,} {what}s are selected", what=what, detail=selected, begins=True)
            if why := self._end(db, table, states):
                done.failed += [(item, why) for item in group]
                continue
            done.count += len(group)
            for item in group:
                about = {"change": "expired", what: item.snapshot}
                path, reason = item.removal.path, item.removal.reason
                self.audit.changed(name, reason, what=what, path=path, detail=about)
        return done

    def _end(self, db: str, table: str, states: Collection[int]) -> str:
        """Ends states of a table. Returns why it did not."""
        self.live.refresh()
        try:
            about = self.metastore.table(db, table)
            if format_of(about) is DELTA:
                return why_no_delta(self._session) or self._end_versions(about, max(states) + 1)
            if format_of(about) is HUDI:
                return why_no_hudi(self._session) or self._end_instants(about, str(max(states)))
            if why := self._why_not(about, states) or why_no_iceberg(self._session):
                return why
            self.check()
            IcebergActions(self._session, db, table).expire(states)
        except LeaseHeld:
            raise
        except (Unsearchable, Error, OSError) as error:
            return explained(error)
        except Exception as error:
            if not is_of_spark(error):
                raise
            return spark_failed(error).message
        return ""

    def _why_not(self, table: Table, snapshots: Collection[int]) -> str:
        """Returns why snapshots of a table may not expire: their files are data of another table, or unknown."""
        return shared(self.live, f"{table.db}.{table.name}", _files(pointer_of(table), snapshots))

    def _end_instants(self, table: Table, last: str) -> str:
        """Ends the instants of a Hudi table up to one, by a plan of its cleaner that removes no other file. Returns why
        not; a plan that a killed run has left is executed first."""
        location = place_of(self.metastore, table)
        actions, found = HudiActions(self._session, table, location), Instants(location)
        actions.keep_version(found.version)
        if found.cleans:
            self.check()
            actions.run_cleans()
            found = Instants(location)
        same = other_names(self.metastore, table, location)
        if why := states_of(found, same).why_not(int(last)):
            return why
        first = found.after(found.after(last))
        files = {join(location, each) for each in found.ending(first)}
        if why := shared(self.live, f"{table.db}.{table.name}", files, same):
            return why
        self.check()
        if plan := actions.plan_clean(sum(each >= first for each in found.writes)):
            if other := found.unplanned(plan, first):
                actions.drop_clean(plan)
                return f"Hudi planned to end other instants, {other}: another write was completed, run again"
            self.check()
            actions.run_cleans()
        if left := [path for path in files if located(path).exists()]:
            return f"Hudi's cleaner left {len(left):,} files: {min(left)}"
        if staying := found.staying(last):
            until = max(staying.values())
            return f"{len(staying):,} files of file groups that were replaced later stay until the instant {until} ends"
        return ""

    def _end_versions(self, table: Table, first: int) -> str:
        """Ends the versions of a Delta table before one. Returns why not; then all are still in the log."""
        now = datetime.fromtimestamp(self.clock(), UTC)
        name = f"{table.db}.{table.name}"
        if why := past_states(self.metastore, table, now, self.grace).why_not(first - 1):
            return why
        location = location_of(table)
        files = unneeded(location, first)
        if why := shared(self.live, name, files):
            return why
        if other := shown_by(self.metastore, name, files):
            return f"{other} shows files of its past versions, as a shallow clone does"
        actions = DeltaActions(self._session, location)
        self.check()
        log = Place(join(location, delta.LOG))
        if first not in delta.checkpoints(log.list()):
            actions.checkpoint(first)
            if first not in delta.checkpoints(log.list()):
                return f"Delta wrote no checkpoint of version {first}: see the log of Spark"
        self.check()
        given = [(path, each.size, each.mtime_ns // 1_000_000) for path, each in sorted(files.items())]
        actions.vacuum(given, aged=True, logged=False)
        if left := [path for path in files if located(path).exists()]:
            return f"VACUUM left {len(left):,} files, as of the table's {RETENTION}: run again later; {min(left)}"
        self.check()
        for each in files_before(log, first):
            (log / each).remove()
        return ""


def unneeded(location: str, first: int) -> dict[str, FileState]:
    """Returns the files below the location of a Delta table that its log names, and no version from this one on needs,
    by path. Raises Unsearchable, FormatError, OSError."""
    present, files = state_of(location)
    top = f"{join(location, delta.LOG)}/"
    log = {path[len(top) :]: delta.version_of(path[len(top) :]) for path in files if path.startswith(top)}

    def opened(name: str) -> BinaryIO:
        return located(top + name).open_stream()

    state = delta.last_state(
        [name for name, version in log.items() if version is not None and version <= first], opened
    )
    if state.version != first:
        raise FormatError(f"{location}: version {first} is not in the log", hint="run it again")
    settings = dict(present.metadata.get("configuration") or {})
    has_feed = settings.get("delta.enableChangeDataFeed", "").lower() == "true"
    of_first = ("add", "remove", "cdc") if has_feed else ("add", "cdc")  # a feed shows rows of removed files
    named, needed = set[str](), {path for add in state.adds for path in delta.paths({"add": add})}
    for name, version in log.items():
        commit = delta.commit_version(f"{delta.LOG}/{name}")
        if commit is None and version is not None and version > first:
            continue
        with opened(name) as stream:
            for action in delta.actions(f"{delta.LOG}/{name}", stream):
                if version is None or version <= first:
                    named.update(delta.paths(action))
                if commit is not None and commit >= first:
                    needed.update(delta.paths(action) if commit > first else delta.paths(action, of_first))

    def places(paths: Iterable[str]) -> set[str]:
        return {normal(path if delta.is_whole(path) else join(location, path)) for path in paths}

    return {path: files[path] for path in places(named) - places(needed) if path in files}


def _files(pointer: str, snapshots: Collection[int]) -> Iterator[str]:
    """Yields all files that manifests of some snapshots have entries about."""
    manifests = dict[str, None]()
    for each in iceberg.read_metadata(pointer, _read(pointer)).get("snapshots") or ():
        if each["snapshot-id"] in snapshots:
            manifests |= dict.fromkeys(each.get("manifests") or ())
            if place := each.get("manifest-list"):
                manifests |= dict.fromkeys(found.path for found in iceberg.references(place, _read(place)))
    for place in manifests:
        for entry in iceberg.entries(place, _read(place)):
            yield entry["data_file"]["file_path"]


def _read(place: str) -> bytes:
    with located(place).open_stream() as stream:
        return stream.read()
