"""The steps of a policy's run, one method each: capture, decide, dump, load, confirm. Runs and plans combine them.

Every step may run twice; the caller holds the policy's lease. The steps wait for the leases of the roots, which other
policies, captures and expiries take for seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import msgspec

from cmroot.lease import acquire, patiently
from cmroot.log.captured import Segment, segments
from cmroot.pins import Slot, confirm_slot, create_slot, drop_slot, find_slot, iso, unpin_dump
from replicator.captures.capture import CaptureSettings, capture
from replicator.captures.dumps.dump import BOOTSTRAP, Dumped, DumpSettings, write_dump
from replicator.captures.dumps.layout import INCREMENTAL, DumpReader, Keys, Point, read_keys
from replicator.captures.dumps.rows import SCOPE, covers, reached
from replicator.captures.dumps.rows import scope_of as layout_scope
from replicator.captures.dumps.selection import Selection, point_at, resolve_until
from replicator.captures.manifest import read_records
from replicator.captures.recording import Captured
from replicator.captures.unlistable import of_server, sight_at
from replicator.compare.repair import REPAIR
from replicator.core.config import Brake
from replicator.core.formats.outside import How, why_outside
from replicator.core.formats.transactional_table import NO_TRANSACTIONS
from replicator.core.not_replicated import (
    AS_THEY_ARE,
    NAMES_SOURCE,
    NOT_TAKEN,
    PROPERTY,
    NotReplicated,
    from_property,
    with_property,
)
from replicator.core.policy import METADATA
from replicator.core.roles import Role, mark_of, may_load_into
from replicator.core.runtime import Runtime
from replicator.errors import BootstrapNeeded, Error, ObjectNotFound
from replicator.metastore.client import Metastore
from replicator.policies.direction import Direction, Pair
from replicator.policies.memory import RememberedScope
from replicator.policies.roles import epochs_to_dump, establish
from replicator.policies.sync_plan import DumpBatch, PolicyDumps, RunWork, decide, new_dump_id
from replicator.replay.apply.load import Loaded, load
from replicator.replay.apply.planning import LoadSettings
from replicator.replay.apply.staging import CLAIM
from replicator.replay.replica import LAST_ID, LOADING, POSITION, SOURCE, Mark
from replicator.replay.retired import RetiredSwept, Stays, has_retired, sweep_retired
from replicator.replay.server_rules import NO_VIEW, STANDING
from replicator.replay.target import ByDifference

NO_WAIT = timedelta(0)
CHECKPOINT = frozenset({LAST_ID, POSITION, SOURCE, LOADING, PROPERTY, SCOPE, CLAIM})
"""Properties of a database that describe its state as a replica."""


@dataclass(frozen=True)
class SyncSettings:
    """The consents and options of a run.

    adopt: tables and databases of the target that replication did not create become replicas; equal data is retained,
    differing data is moved to the target's `$cmroot`. drop_left: so are replicas that left the policy. draining: the
    source is fenced, and the caller, which fenced it, fetches its last changes. scan, paced, compare, deep, empty: as
    in a capture. brake: removal limit, as in a load. patience: how long to wait for a root's lease."""

    adopt: bool = False
    drop_left: bool = False
    draining: bool = False
    scan: bool = True
    paced: bool = False
    compare: bool = True
    deep: bool = False
    empty: Sequence[str] = ()
    brake: Brake | None = None
    patience: timedelta = timedelta(seconds=60)


SYNC = SyncSettings()
"""A run without any consent."""


class Steps:
    """One run of a policy with a direction. `warnings`: for the operator; `lacking`: objects missing in replicas that
    this run does not change."""

    def __init__(self, direction: Direction, options: SyncSettings, runtime: Runtime) -> None:
        self.direction, self.options, self.runtime = direction, options, runtime
        self.policy = direction.policy
        self.dumps = PolicyDumps(direction.policy.dumps, direction.policy.name)
        self.warnings: list[str] = []
        self.lacking: list[NotReplicated] = []

    # ---- before ---------------------------------------------------------------------------------------------------

    def roles(self) -> dict[str, int]:
        """Returns the epochs of the source's databases; those without a role become primary. Raises Refused if roles
        forbid the direction."""
        pairs = [pair for pair in self.direction.matching if not pair.is_anothers(self.direction.root.id)]
        if self.options.draining:
            return epochs_to_dump(self.direction.source, [pair.name for pair in pairs if pair.source], draining=True)
        settled = all(
            pair.source is not None
            and pair.source_mark.role is Role.PRIMARY
            and pair.target_mark.role in (Role.REPLICA, Role.NONE)
            and pair.target_mark.epoch <= pair.source_mark.epoch
            for pair in pairs
        )
        if settled:
            return {pair.name: pair.source_mark.epoch for pair in pairs}
        names = [(pair.name, pair.replica) for pair in pairs]
        return establish(
            self.direction.source, self.direction.target, names, settle=NO_WAIT
        )  # the policy's lease excludes others

    def forget_checkpoints(self) -> None:
        """Removes the checkpoint of a primary that was a replica. When it becomes a replica again, that checkpoint must
        not be taken for its state, as its own writers have changed it since."""
        for pair in self.direction.matching:
            if pair.source is None or not pair.source.parameters.keys() & CHECKPOINT or self.options.draining:
                continue
            here = self.direction.source.database(pair.name)
            if mark_of(here.parameters, pair.name).role is Role.PRIMARY:
                kept = {key: value for key, value in here.parameters.items() if key not in CHECKPOINT}
                self.direction.source.alter_database(pair.name, msgspec.structs.replace(here, parameters=kept))

    def capture(self) -> Captured:
        """Captures the source. If events were lost, compares everything that is captured."""
        there = [pair.name for pair in self.direction.matching if pair.source is not None]
        if not there and not segments(self.direction.root.place):
            raise ObjectNotFound(
                f"policy {self.policy.name}: no database of {self.direction.source.uri} matches "
                f"{', '.join(self.policy.databases)}",
                hint="patterns match entire database names; see `databases` in docs/policies.md",
            )

        chosen = CaptureSettings(
            there,
            scan=self.options.scan,
            paced=self.options.paced,
            compare=self.options.compare,
            deep=self.options.deep,
            constraints=self.options.draining or self._begins(),
            grants=self.policy.grants == "replicate",
            repair=True,
            keeper=self.policy.keeper,
            s3_events=self.direction.s3_events,
            empty=self.options.empty,
        )
        captured = patiently(
            lambda: capture(self.direction.source, self.direction.root, chosen, self.runtime), self.options.patience
        )
        self.warnings += captured.warnings
        return captured

    def _begins(self) -> bool:
        """Returns True if a replica has no checkpoint of this direction: its source was a replica, and loads may have
        set constraints there without an event."""
        return any(pair.source is not None and pair.position is None for pair in self.direction.matching)

    def left_out(self, captured: Captured) -> list[NotReplicated]:
        """Returns the policy's objects that no run replicates: tables in unsupported formats, objects of the server."""
        names, patterns = {pair.name for pair in self.direction.matching}, self.direction.patterns
        found = of_server(captured.not_replicated, self.direction.source, names)
        how = How(self.direction.map_locations, self.policy.publish == "snapshot", self.policy.external == METADATA)
        formats = dict(captured.formats)
        for name, outside in captured.outside.items():
            formats[name] = why_outside(formats.get(name, ""), outside, how)
        if captured.transactional and not self.direction.target.keeps_transactions():
            formats |= dict.fromkeys(captured.transactional, NO_TRANSACTIONS)
        for name, reason in formats.items() if self.policy.formats != AS_THEY_ARE else ():
            db, _, table = name.partition(".")
            if reason and db in names and patterns.match(table):
                found.append(NotReplicated(name, reason))
        return found

    def concerning(self, things: Iterable[NotReplicated]) -> list[NotReplicated]:
        """Returns those objects, of all that a capture could not read, that the policy selects."""
        selection = Selection(tuple(pair.name for pair in self.direction.matching), self.direction.patterns)
        found = []
        for each in things:
            db, _, table = each.object.partition(".")
            if selection.holds_partition((db, table), each.partition):
                found.append(each)
        return found

    def decide(self, remembered: RememberedScope | None) -> RunWork:
        """Decides what to dump. Log ranges without records of a batch's databases make no dump."""
        log = segments(self.direction.root.place)
        end = resolve_until(log, None).position
        work = decide(
            self.direction.pairs,
            root_id=self.direction.root.id,
            first=log[0].first,
            end=end,
            remembered=remembered.databases if remembered else {},
            rescoped=remembered is not None and remembered.terms != self.direction.scope("").terms,
            narrower=self._narrower(),
        )
        batches = []
        for batch in work.batches:
            if batch.begin is None or self._loading(batch) or concerned(log, batch.begin, set(batch.databases)):
                batches.append(batch)
            else:
                work.passed.append(batch)
        return replace(work, batches=batches)

    def _narrower(self) -> set[str]:
        """Returns databases whose replicas reached their checkpoints with less than the policy replicates, because a
        dump of some tables was loaded there."""
        scope = layout_scope((), self.direction.patterns)
        return {
            pair.name
            for pair in self.direction.matching
            if pair.target and not covers(pair.target.parameters.get(SCOPE), reached(scope, pair.name))
        }

    def _loading(self, batch: DumpBatch) -> bool:
        return any(pair.loading for pair in self.direction.pairs if pair.name in batch.databases)

    # ---- dump and load --------------------------------------------------------------------------------------------

    def dump(self, batch: DumpBatch, epochs: dict[str, int], *, slot: str = "") -> Dumped:
        """Writes a batch's dump into a directory of its own."""
        root, id = self.direction.root, new_dump_id(self.runtime.clock)
        log = segments(root.place)
        begin = None if batch.begin is None else _point(log, batch.begin)
        out = self.dumps.place_of(resolve_until(log, None).event, id)

        chosen = DumpSettings(
            self.direction.source.uri,
            batch.databases,
            self.direction.patterns,
            since=begin,
            slot="" if batch.bootstrap else slot,
            id=id,
            empty=True,
            epochs=epochs,
            formats=self.policy.formats,
            keys=self.keys,
        )
        return patiently(lambda: write_dump(root, out, chosen, self.runtime), self.options.patience)

    def load(self, place: str) -> Loaded:
        """Loads one dump of the policy, then removes its pin in the source's root, which is no longer required."""
        options = self.load_options(DumpReader(place))
        loaded = patiently(lambda: load(place, self.direction.target, options, self.runtime), self.options.patience)
        unpin_dump(self.direction.root.place, DumpReader(place).metadata.id)
        self.warnings += loaded.warnings
        return loaded

    @property
    def keys(self) -> Keys | None:
        """Returns the keys that sign the policy's dumps, and verify a killed run's dump in a shared directory."""
        return read_keys(self.policy.key_file) if self.policy.key_file else None

    def load_options(self, reader: DumpReader) -> LoadSettings:
        """Returns the options of a load. A bootstrap keeps existing data that is equal. Objects that replication did
        not create are overwritten only with consent, or if a role change made this side a replica."""
        bootstrap, names = reader.metadata.kind != INCREMENTAL, reader.metadata.scope.databases
        turned = all(pair.target is None or pair.turned for pair in self.direction.pairs if pair.name in names)
        return LoadSettings(
            warehouse=self.direction.warehouse,
            cmroot=self.direction.target_root.place,
            rename=self.direction.renames(names),
            map_locations=self.direction.map_locations,
            external=self.direction.external,
            overwrite=bootstrap and (self.options.adopt or turned),
            source_root=self.direction.root.place,
            by_difference=ByDifference(drop_extra=turned) if bootstrap else None,
            shared_external=self.policy.external == METADATA,
            publish=self.policy.publish,
            keys=self.keys,
            as_they_are=self.policy.formats == AS_THEY_ARE,
            preserve=self.policy.preserve,
            brake=self.options.brake,
            grants=self.policy.grants == "replicate",
            principals=self.direction.principals,
        )

    def sweep_retired(self) -> list[NotReplicated]:
        """Moves directories replaced by snapshots to the target's `$cmroot` after the policy's delay; in reverse also
        those replaced on the policy's own target before it was the primary. Returns what must be retained."""
        direction, stays = self.direction, Stays()
        sides = [
            (direction.target_root.place, direction.target),
            *([(direction.root.place, direction.source)] if direction.reverse else []),
        ]
        for root, side in sides:

            def once(root: str = root, side: Metastore = side) -> RetiredSwept:
                with acquire(root, "sweep retired directories") as lease:
                    delay = self.policy.publish_delay
                    return sweep_retired(root, side, delay, now=self.runtime.clock, check=lease.check)

            if has_retired(root):
                swept = patiently(once, self.options.patience)
                self.warnings += stays.add_held(swept.held, swept.whose, direction.root.id)
        return stays.not_replicated({pair.name: pair.replica for pair in direction.pairs})

    def finish_interrupted(self) -> list[Loaded]:
        """Finishes loads that a killed run began, with their own dumps: nothing is copied twice. If that fails, the run
        writes a new dump from the checkpoint, which contains the same and more."""
        done = []
        for id in dict.fromkeys(
            pair.loading for pair in self.direction.matching if pair.made_from == self.direction.root.id
        ):
            place = self.dumps.find(id) if id and not id.startswith(REPAIR) else None
            if place is None:
                continue
            try:
                done.append(self.load(place))
            except Error as error:
                if error.transient:
                    raise
                self.warnings.append(f"the load of {place} was interrupted and cannot be completed: {error}")
        return done

    def advance(self, work: RunWork, end: Point) -> None:
        """Moves the checkpoints of databases without records up to `end`, so that status and lag distinguish them from
        databases that are behind. Objects missing there remain in `lacking`. Refuses what a load would refuse."""
        idle = {*work.current, *(name for batch in work.passed for name in batch.databases)}
        for pair in self.direction.pairs:
            if pair.name in idle and pair.target is not None:
                said = from_property(pair.target.parameters.get(PROPERTY), pair.name)
                stays = (*STANDING, NO_VIEW, NOT_TAKEN, NAMES_SOURCE)
                self.lacking += [each for each in said if each.reason.startswith(stays)]
        chosen = {name: batch.begin for batch in work.passed for name in batch.databases}
        if not chosen:
            return

        def once() -> None:
            with acquire(self.direction.target_root.place, "move checkpoints") as lease:
                for pair in self.direction.pairs:
                    if pair.name in chosen and pair.target is not None:
                        lease.check()
                        self._advance(pair, chosen[pair.name], end)

        patiently(once, self.options.patience)

    def _advance(self, pair: Pair, begin: int | None, end: Point) -> None:
        there = self.direction.target.database(pair.replica)
        label = f"database {pair.replica} of the target"
        may_load_into(label, mark_of(there.parameters, label))
        if there.parameters.get(POSITION) == str(begin) and not there.parameters.get(LOADING):
            mark = Mark(end.event, end.position, self.direction.root.id).parameters()
            lacking = [each for each in from_property(there.parameters.get(PROPERTY), pair.name) if not each.unknown]
            seen = sight_at(segments(self.direction.root.place), end.position).unseen
            lacking += self.concerning(each.reported() for each in seen if each.db == pair.name)
            parameters = with_property(there.parameters | mark, lacking)
            moved = msgspec.structs.replace(there, parameters=parameters)
            self.direction.target.alter_database(pair.replica, moved)

    # ---- the slot -------------------------------------------------------------------------------------------------

    def protect(self, work: RunWork) -> None:
        """Ensures, before a dump, that the policy's slot exists and is not beyond the begin of any batch."""
        root, name = self.direction.root.place, self.policy.slot
        log = segments(root)
        begins = [batch.begin for batch in work.batches if batch.begin is not None]
        needs = _point(log, min(begins)) if begins else resolve_until(log, None)
        slot = find_slot(root, name)
        if slot is not None and slot.given_up:
            self.warnings.append(f"slot {name} was invalidated at {slot.given_up}: it lagged too far behind")
            drop_slot(root, name)
            slot = None
        if slot is None:
            now = iso(self.runtime.clock())
            awaits = "" if begins else BOOTSTRAP
            create_slot(root, Slot(name, needs.position, needs.event, created=now, confirmed=now, awaits=awaits))
        elif slot.position > needs.position and begins:
            self.warnings.append(
                f"the target is at position {needs.position}, its slot was at {slot.position}: it was moved back"
            )
            confirm_slot(root, name, needs.position, needs.event, now=self.runtime.clock, back=True)

    def confirm(self, position: int) -> None:
        """Confirms the slot after the loads: each database of the policy is at this position, or unchanged up to it."""
        root, name = self.direction.root.place, self.policy.slot
        slot = find_slot(root, name)
        if slot is not None and slot.given_up:
            return  # the next run that dumps creates a new one
        if slot is not None and slot.position >= position and not slot.awaits:
            return
        point = _point(segments(root), position)
        if slot is None:
            now = iso(self.runtime.clock())
            create_slot(root, Slot(name, point.position, point.event, created=now, confirmed=now))
        else:
            confirm_slot(root, name, position, point.event, now=self.runtime.clock, back=True)


def concerned(log: list[Segment], after: int, databases: set[str]) -> bool:
    """Returns True if a record after the position concerns one of these databases."""
    for segment in log:
        if segment.last > after:
            for record in read_records(segment, after):
                if record.change.databases & databases:
                    return True
    return False


def _point(log: list[Segment], position: int) -> Point:
    point = point_at(log, position)
    if point is None:
        raise BootstrapNeeded(f"the captured log no longer has position {position}", hint="run again: it bootstraps")
    return point
