"""`check`: verifies that a policy can run, before its first run or at any time. Reads both metastores and the policy's
locations; writes and removes small files in the directories that a run writes.

Each check is a finding, and a failed check is one, too: only defects of the program are raised. The other modules of
`checks` contain the checks and their evaluation.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

from cmroot.errors import Error
from cmroot.root import ChangeRoot
from cmroot.store.place import join
from replicator.core.connections import GatewayConfig, MetastoreConfig
from replicator.core.named_files import ON_NODES, is_on_nodes
from replicator.core.not_replicated import NotReplicated, Report, merged
from replicator.core.policy import Policy, same_metastore
from replicator.errors import FormatError
from replicator.metastore.client import MetastoreReader, warehouse_of
from replicator.metastore.events.notification_log import change_manager
from replicator.metastore.events.scope import Patterns, newest_event, read_reach
from replicator.metastore.thrift import ThriftMetastore
from replicator.policies.checks import Finding, Health, metastores, places, policy_health, worst
from replicator.policies.checks.metastores import judge_queues, of_gateway
from replicator.policies.checks.places import Probed, Room, reported
from replicator.policies.direction import Pair, former_replicas, runs_in_reverse, survey
from replicator.policies.drill_record import Drills
from replicator.policies.memory import History, Memory
from replicator.policies.status import Status, status
from replicator.replay.target import default_warehouse

SAMPLE = 200  # tables of a database whose locations are checked
RUNS = 20  # of the history, newest first
TIMEOUT = 60.0  # seconds for one answer, and one repeat: a check that hangs reports nothing
RETRIES = 1
NO_GATEWAY = GatewayConfig()

Connect = Callable[[MetastoreConfig], AbstractContextManager[MetastoreReader]]


def impatient(config: MetastoreConfig) -> ThriftMetastore:
    """Returns a client with a short timeout."""
    return ThriftMetastore(config, timeout=TIMEOUT, retries=RETRIES)


@dataclass(frozen=True)
class PolicyChecked(Report):
    """The result of a check. `status`: the worst of the findings. `backwards`: roles were exchanged, the target is the
    primary. `not_replicated`: tables that runs leave out, and further objects that the replicas report as missing."""

    policy: str
    status: Health
    backwards: bool = False
    findings: list[Finding] = field(default_factory=list)
    not_replicated: list[NotReplicated] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class _Direction:
    """The current direction, as `find_direction` determines it, but without creating a root. `pairs`: in this
    direction; `named`: as the policy names them."""

    source: MetastoreReader
    target: MetastoreReader
    cmroot: str
    pairs: Sequence[Pair]
    named: Sequence[Pair]
    backwards: bool


def check(
    policy: Policy,
    *,
    others: Sequence[Policy] = (),
    connect: Connect = impatient,
    clock: Callable[[], float] = clocks.time,
    room: Callable[[str], Room] = places.disk_room,
    gateway: GatewayConfig = NO_GATEWAY,
    single_user: bool = False,
) -> PolicyChecked:
    """Checks one policy. others: the file's policies, for overlaps; gateway: its requirements for clients; single_user:
    that of its ingestion. connect: returns a metastore for its configuration."""
    began = clocks.monotonic()
    run = _Check(policy, clock, room)
    direction = None
    with ExitStack() as stack:
        source = run.reach("source", policy.source_metastore, connect, stack)
        target = run.reach("target", policy.target_metastore, connect, stack)
        if source and target:
            direction = run.scope(source, target)
            run.sides(source, target)
        if direction:
            run.progress(direction)
        if source:
            run.overlaps(source, others, connect)
        run.runs()
        run.places(direction, target)
    run.findings += of_gateway(gateway, policy.source_metastore)
    if single_user:
        told = "[ingestion] single_user lets users approve assets that they created"
        run.findings.append(Finding("ingestion", "warning", told, "remove the key: it is for trying only"))
    status = worst(each.health for each in run.findings)
    backwards = direction is not None and direction.backwards
    seconds = round(clocks.monotonic() - began, 3)
    return PolicyChecked(policy.name, status, backwards, run.findings, run.not_replicated, seconds)


def _direction(
    policy: Policy, source: MetastoreReader, target: MetastoreReader, pairs: Sequence[Pair], *, first: bool
) -> _Direction:
    try:
        backwards = runs_in_reverse(pairs, first=first)
    except FormatError:  # reported as a finding of its own
        backwards = False
    if not backwards:
        return _Direction(source, target, policy.cmroot, pairs, pairs, backwards)
    return _Direction(target, source, policy.target_cmroot, [pair.swapped for pair in pairs], pairs, backwards)


class _Check:
    """The findings of one check, in order."""

    def __init__(self, policy: Policy, clock: Callable[[], float], room: Callable[[str], Room]) -> None:
        self.policy, self._clock, self._room = policy, clock, room
        self.findings: list[Finding] = []
        self.not_replicated: list[NotReplicated] = []

    def _look(self, name: str, look: Callable[[], Finding | Iterable[Finding]], failed: Health = "unknown") -> None:
        """Adds the findings of `look`; an error that it raises becomes a finding of this name."""
        try:
            found = look()
            self.findings += [found] if isinstance(found, Finding) else list(found)
        except (Error, OSError) as error:
            self.findings.append(Finding(name, failed, *reported(error)))

    def reach(self, side: str, config: MetastoreConfig, connect: Connect, stack: ExitStack) -> MetastoreReader | None:
        """Returns the metastore, or None, which is a critical finding."""
        before = len(self.findings)
        metastore = None
        try:
            metastore = stack.enter_context(connect(config))
            self.findings.append(metastores.answers(side, metastore, clocks.monotonic))
        except (Error, OSError) as error:
            self.findings.append(Finding(side, "critical", *reported(error)))
        return metastore if self.findings[before].health != "critical" else None

    def scope(self, source: MetastoreReader, target: MetastoreReader) -> _Direction | None:
        """Returns the policy's databases with the direction in which it runs."""
        try:
            root = policy_health.root_of(self.policy.target_cmroot)
            remembered = Memory(root, self.policy.name).read_scope() if root else None
        except (Error, OSError) as error:
            self.findings.append(Finding("scope", "warning", *reported(error)))
            remembered = None
        try:
            pairs = survey(self.policy, source, target, remembered)
        except (Error, OSError) as error:
            self.findings.append(Finding("databases", "unknown", *reported(error)))
            return None
        direction = _direction(self.policy, source, target, pairs, first=remembered is None)
        if not direction.backwards:  # in reverse, out-of-scope replicas are on the other side
            former = former_replicas(target, remembered, pairs)
            self._look("databases", lambda: policy_health.judge_databases(self.policy, pairs, former))
            self._look("partitions", lambda: policy_health.judge_filters(self.policy, source))
        self._look("roles", lambda: policy_health.judge_roles(pairs))
        return direction

    def sides(self, source: MetastoreReader, target: MetastoreReader) -> None:
        defaults = metastores.default_database
        self._look("versions", lambda: metastores.levels_fit(defaults(source), defaults(target)))
        self._look("sides", lambda: metastores.are_two(source, target))
        self._look("catalog", lambda: metastores.judge_catalog(self.policy.cmroot, source), "critical")
        self._look("catalog", lambda: metastores.judge_catalog(self.policy.target_cmroot, target), "critical")
        for side, metastore in (("source", source), ("target", target)):
            self._look(
                f"clock {side}",
                lambda side=side, metastore=metastore: metastores.judge_clock(  # type: ignore[misc]
                    side, newest_event(metastore), now=self._clock()
                ),
                "ok" if side == "target" else "unknown",  # a target need not keep a log
            )

    def progress(self, direction: _Direction) -> None:
        """Checks the log, the slot, and the lag, in the current direction of the policy."""
        self._look("log", lambda: metastores.log_is_on(direction.source, direction.source.database_names()))
        try:
            root = policy_health.root_of(direction.cmroot)
            cursor = policy_health.captured_event(root)
        except (Error, OSError) as error:
            self.findings.append(Finding("cmroot", "critical", *reported(error)))
            return
        root_id = root.id if root else None
        self._look("formats", lambda: self._formats(direction))
        self._look("not replicated", lambda: self._lacking(direction))
        if not direction.backwards:
            self._look("replicas", lambda: policy_health.judge_target(direction.pairs, direction.target, root_id))
        self._look("events", lambda: self._reach(direction.source, cursor))
        self._look("slot", lambda: policy_health.judge_slot(self.policy, root, direction.pairs))
        self._look("lag", lambda: policy_health.judge_lag(self.policy, list(self._lags(direction, root))))

    def _formats(self, direction: _Direction) -> list[Finding]:
        self.not_replicated, unseen = policy_health.find_left_out(
            self.policy, direction.pairs, direction.source, direction.target
        )
        return policy_health.judge_formats(self.not_replicated, unseen, direction.pairs, direction.target)

    def _lacking(self, direction: _Direction) -> Finding:
        said = policy_health.said_lacking(direction.pairs)
        left_out = {each.object for each in self.not_replicated}
        self.not_replicated = merged(said, self.not_replicated)
        rest = [each for each in said if each.object not in left_out]
        return policy_health.judge_lacking(rest, len(left_out))

    def runs(self) -> None:
        """Checks the policy's memory, which remains on the target's side when roles are exchanged."""
        try:
            root = policy_health.root_of(self.policy.target_cmroot)
            history = Memory(root, self.policy.name).runs(RUNS) if root else History([], [])
        except (Error, OSError) as error:
            self.findings.append(Finding("last run", "unknown", *reported(error)))
            return
        schedule = self.policy.schedule
        self._look("last run", lambda: policy_health.judge_runs(history, schedule=schedule, now=self._clock()))
        self._look("verified", lambda: policy_health.judge_verified(self.policy, history, now=self._clock()))
        if root:
            drills = Drills(Memory(root, self.policy.name))
            self._look("drill", lambda: policy_health.judge_drills(drills.read(RUNS)[0], now=self._clock()))
            self._look(
                "turn",
                lambda: policy_health.judge_role_change(Memory(root, self.policy.name).read_role_change()),
                "critical",
            )

    def _reach(self, source: MetastoreReader, cursor: int | None) -> Finding:
        reach = read_reach(source, cursor)
        return metastores.judge_reach(reach, now=self._clock(), schedule=self.policy.schedule)

    def _lags(self, direction: _Direction, root: ChangeRoot | None) -> Iterator[Status]:
        for pair in direction.pairs:
            if pair.position is not None and pair.matches:
                mine = root if root is not None and pair.made_from == root.id else None
                yield status(
                    direction.target,
                    pair.replica,
                    source=direction.source,
                    root=mine,
                    source_db=pair.name,
                    clock=self._clock,
                )

    def overlaps(self, source: MetastoreReader, others: Sequence[Policy], connect: Connect) -> None:
        beside = [other for other in others if same_metastore(other.target, self.policy.target)]
        existing: dict[str, list[str]] = {}
        for uri, config in {other.source_key: other.source_metastore for other in (*beside, self.policy)}.items():
            try:
                if uri == self.policy.source_key:
                    existing[uri] = source.database_names()
                    continue
                with connect(config) as metastore:
                    existing[uri] = metastore.database_names()
            except (Error, OSError):
                continue  # reported as unknown, for the policies that it concerns
        self._look("overlap", lambda: policy_health.judge_overlaps(self.policy, beside, existing))

    def places(self, direction: _Direction | None, target: MetastoreReader | None) -> None:
        written = dict(self._written(direction, target))
        probes: list[Probed] = []
        for key, place in written.items():
            root = key in ("cmroot", "target_cmroot")
            found, probed = places.judge_place(key, place, root=root, clock=self._clock)
            self.findings.append(found)
            probes += [probed] if probed else []
        self._look("clock stores", lambda: places.judge_store_clocks(probes))
        self._look("room", lambda: places.judge_room(written, self._room))
        if direction is not None:
            self._look(
                "keeper",
                lambda: places.judge_keepers(
                    direction.cmroot,
                    self._locations(direction),
                    self.policy.keeper,
                    lambda: change_manager(direction.source, [pair.name for pair in direction.pairs if pair.source]),
                ),
            )
        self._look("s3_events", lambda: judge_queues(self.policy.s3_events))

    def _written(self, direction: _Direction | None, target: MetastoreReader | None) -> Iterator[tuple[str, str]]:
        """Yields the locations that runs write to, by key; in reverse, the warehouse that data is copied back to."""
        policy, backwards = self.policy, direction is not None and direction.backwards
        yield from (("cmroot", policy.cmroot), ("target_cmroot", policy.target_cmroot))
        yield "dumps", join(policy.dumps, policy.name)
        receiver = direction.target if direction is not None else target
        if policy.warehouse and not backwards:
            yield "warehouse", policy.warehouse
        elif receiver is not None:
            try:
                yield "warehouse", default_warehouse(receiver)
            except Error as error:
                self.findings.append(Finding("write warehouse", "unknown", *reported(error)))
        if policy.external_base and not backwards:
            yield "external", policy.external_base
        for before, after in policy.map_location.items():
            yield f"map_location {before}", before if backwards else after

    def _locations(self, direction: _Direction) -> list[str]:
        """Returns the locations of the databases, and of some tables of each: more would take as long as a capture."""
        patterns = Patterns.parse(self.policy.include, self.policy.exclude)
        found, foreign = [], list[str]()
        for pair in direction.pairs:
            if pair.source is None or not pair.matches:
                continue
            names = [name for name in direction.source.table_names(pair.name) if patterns.match(name)][:SAMPLE]
            tables = [table for table in direction.source.tables(pair.name, names) if not table.is_view]
            homes = (pair.source.location, warehouse_of(direction.source))
            located = [(table.name, table.location) for table in tables if table.location]
            foreign += [f"{pair.name}.{name}" for name, place in located if is_on_nodes(place, *homes)]
            found += [place for _, place in located if not is_on_nodes(place, *homes)]
            found += [home for home in homes[:1] if home and not is_on_nodes(home, homes[1])]
        if foreign:
            hint = "captures do not read them: move their data to the filesystem of the warehouse"
            self.findings.append(Finding("locations", "warning", f"{', '.join(foreign[:SAMPLE])}: {ON_NODES}", hint))
        return found
