"""The plan of a run for one dataset: which versions are removed and why, and whose access changes. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from tempfile import TemporaryFile
from typing import Any

import msgspec

from cmroot.store.place import is_local, located, normal
from replicator.core.audit import Refusal, Removal
from replicator.core.formats import format_of
from replicator.core.grouping import batched
from replicator.core.model import DEFAULT_PARTITION, Table, partition_name, partition_spec
from replicator.core.named_files import ON_NODES, is_on_nodes
from replicator.core.not_replicated import Rows
from replicator.errors import ConfigError, Error
from replicator.lifecycle.removal.job import Removals
from replicator.lifecycle.retention.access import Access, access_policies, wanted_access
from replicator.lifecycle.retention.config_store import Settings
from replicator.lifecycle.retention.dataset_versions import (
    TIME,
    Listed,
    Pair,
    Version,
    checked_pattern,
    doubts,
    path_finder,
)
from replicator.lifecycle.retention.datasets import Dataset, FileDataset, HiveDataset
from replicator.lifecycle.retention.hocon_values import Fields, Origin, Scalar
from replicator.lifecycle.retention.job_configuration import RETENTIONS, VERSIONS, Unreadable
from replicator.lifecycle.retention.policies import Policy, retention_policy, selection_policy
from replicator.lifecycle.retention.table_states import KEPT, past_states
from replicator.metastore.client import Metastore, MetastoreReader, warehouse_of

PREFIX = "gobblin.retention"


class PlannedItem(msgspec.Struct, frozen=True, kw_only=True):
    """One planned action. `drops`: the partition is dropped from the metastore, too; `keeps_data`: only from there.
    `access`: to set, nothing is removed. `mtime`: the required modification time of the path. `replacement`: ("db",
    "table") whose partition of the same values replaces this one. `snapshot`: of an Iceberg table, to expire;
    the version of a Delta table, or the instant of a Hudi table."""

    dataset: str
    removal: Removal
    drops: bool = False
    keeps_data: bool = False
    access: Access | None = None
    mtime: float | None = None
    top: str = ""
    replacement: tuple[str, str] | None = None
    snapshot: int | None = None

    @property
    def moves_data(self) -> bool:
        """Returns True if files are removed."""
        return self.access is None and not self.keeps_data

    def as_json(self) -> dict[str, Any]:
        removal = self.removal
        act = "set" if self.access else "drop" if self.drops else "remove" if self.snapshot is None else "expire"
        return {
            "act": act,
            "dataset": self.dataset,
            "path": removal.path,
            "partition": removal.partition,
            "snapshot": self.snapshot,
            "files": removal.files,
            "bytes": removal.bytes,
            "keeps_data": self.keeps_data,
            "access": str(self.access) if self.access else "",
            "reason": removal.reason,
        }


@dataclass
class DatasetPlan:
    """The plan of a dataset. `versions`: number examined; `ignored`: number of names without a valid time; `doubts`:
    warnings that are equal for many datasets, and are reported once; `unnamed`: paths that are retained, as their names
    are not UTF-8; `stays`: which selected states of a table cannot end, and why."""

    name: str
    versions: int = 0
    ignored: int = 0
    items: list[PlannedItem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    stays: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Planner:
    """A planner of datasets. `job`: the keys that are read from the job file only. `now`: the timestamp for all
    evaluations. `begun`: (path, as `normal` writes it) -> its time before a killed run removed some of its files.
    `grace`: the duration of the longest write to a Delta table."""

    job: Settings
    now: datetime
    metastore: Metastore | None = None
    begun: Mapping[str, float] = field(default_factory=dict)
    grace: timedelta = timedelta(hours=2)

    def plan(self, dataset: Dataset) -> DatasetPlan:
        """Plans one dataset. Raises Error if its settings or listings are unavailable: then the dataset has no plan."""
        if isinstance(dataset, HiveDataset):
            return self._plan_table(dataset)
        return self._plan_files(dataset)

    # ---- files ----------------------------------------------------------------------------------------------------

    def _plan_files(self, dataset: FileDataset) -> DatasetPlan:
        plan = DatasetPlan(dataset.name)
        if dataset.settings.truth(f"{PREFIX}.dataset.is.blacklisted", default=False):
            plan.warnings.append(f"{dataset.name}: skipped, because {PREFIX}.dataset.is.blacklisted is true")
            return plan
        planned: set[str] = set()
        for pair, policy in pairs(dataset.settings, dataset.kind):
            listed = path_finder(pair)(dataset.path, self.now)
            self._tell(plan, listed, dataset.name)
            versions = self._newest_first(listed)
            chosen = policy.select(versions, listed.by, self.now)
            for number, why in chosen.items():
                version = versions[number]
                if version.path in planned:  # planned by another finder of the dataset
                    continue
                planned.add(version.path)
                removal = Removal(path=version.path, what="version", reason=why)
                plan.items.append(
                    PlannedItem(dataset=dataset.name, removal=removal, mtime=version.mtime, top=dataset.path)
                )
            self._plan_access(plan, pair, listed, versions, set(chosen), "")
        return plan

    def _plan_access(
        self, plan: DatasetPlan, pair: Pair, listed: Listed, versions: list[Version], gone: set[int], object: str
    ) -> None:
        policies, warnings = access_policies(pair)
        plan.warnings += warnings
        for number, (access, why) in wanted_access(policies, listed, versions, self.now).items():
            if number not in gone and versions[number].path:
                removal = Removal(path=versions[number].path, what="access", reason=why, object=object)
                plan.items.append(PlannedItem(dataset=plan.name, removal=removal, access=access))

    def _newest_first(self, listed: Listed) -> list[Version]:
        for number, each in enumerate(listed.versions):
            if each.mtime is not None and (then := self.begun.get(normal(each.path))) is not None:
                listed.versions[number] = replace(each, time=datetime.fromtimestamp(then, UTC))
        return listed.newest_first()

    def _tell(self, plan: DatasetPlan, listed: Listed, name: str) -> None:
        plan.versions += len(listed.versions)
        plan.ignored += listed.ignored
        plan.unnamed = list(dict.fromkeys([*plan.unnamed, *listed.unnamed]))  # several finders may report the same
        if not listed.versions:
            plan.warnings.append(f"{name}: the version finder found no versions")
        plan.doubts += listed.doubts
        plan.warnings += [f"{name}: kept, because its time cannot be read: {each}" for each in listed.why]
        if listed.ignored > len(listed.why):
            plan.warnings.append(f"{name}: and {listed.ignored - len(listed.why):,} more whose time cannot be read")

    # ---- tables ---------------------------------------------------------------------------------------------------

    def _plan_table(self, dataset: HiveDataset) -> DatasetPlan:
        plan, table = DatasetPlan(dataset.name), dataset.table
        prefix = self.job.text("hive.dataset.configPrefix") or PREFIX
        own = dataset.settings.below(prefix)
        if own is None:
            raise dataset.settings.missing(prefix)
        if own.truth("is.blacklisted", default=False):
            plan.warnings.append(f"{dataset.name}: skipped, because {prefix}.is.blacklisted is true")
            return plan
        if table.has_query:
            return plan
        if format_of(table).expires:
            plan.items += self._past_states(dataset, own, plan)
            return plan
        if not table.is_partitioned:
            raise ConfigError(f"{dataset.name} has no partitions", hint="exclude it with hive.dataset.blacklist")
        assert self.metastore
        pair = Pair(own, dataset.settings)
        listed = partition_finder(pair)(self.metastore, table)
        self._tell(plan, listed, dataset.name)
        policy = selection_policy(pair, own.text("selection.policy.class") or _BEFORE)
        versions = self._newest_first(listed)
        chosen = policy.select(versions, listed.by, self.now)
        reasons = {versions[number].partition: (why, versions[number].mtime) for number, why in chosen.items()}
        plan.items += self._partitions(dataset, reasons, _replacement(own, dataset))
        return plan

    def _past_states(self, dataset: HiveDataset, own: Settings, plan: DatasetPlan) -> Iterator[PlannedItem]:
        """Yields the planned expiries of a table's states. The policy selects among all of them; those that a branch or
        a tag names, and the present one, stay."""
        assert self.metastore
        states = past_states(self.metastore, dataset.table, self.now, self.grace)
        plan.versions += len(states.listed.versions)
        versions = self._newest_first(states.listed)
        policy = selection_policy(Pair(own, dataset.settings), own.text("selection.policy.class") or _BEFORE)
        selected = policy.select(versions, states.listed.by, self.now)
        chosen = {versions[number].name: why for number, why in selected.items() if versions[number].mark != KEPT}
        ending, plan.stays = states.ending(chosen)
        for name in ending:
            path, reason, same = dataset.table.location or "", chosen[name], tuple(states.same)
            removal = Removal(path=path, what=states.what, object=dataset.name, reason=reason, same=same)
            yield PlannedItem(dataset=dataset.name, removal=removal, keeps_data=True, snapshot=int(name))

    def _partitions(
        self, dataset: HiveDataset, reasons: dict[str, tuple[str, float | None]], replacement: tuple[str, str] | None
    ) -> Iterator[PlannedItem]:
        """Yields the planned drops of partitions with their locations, read in batches."""
        assert self.metastore
        table = dataset.table
        keeps = not self.job.truth(f"{PREFIX}.hive.shouldDeleteData", default=False)
        for batch in self.metastore.partitions(table.db, table.name, list(reasons)):
            for partition in batch:
                name = partition_name(table.partition_keys, partition.values)
                why, mtime = reasons[name]
                removal = Removal(
                    path=partition.location or "",
                    what="partition",
                    object=dataset.name,
                    partition=name,
                    reason=why,
                    drops=True,
                )
                yield PlannedItem(
                    dataset=dataset.name,
                    removal=removal,
                    drops=True,
                    keeps_data=keeps or not partition.location,
                    mtime=mtime,
                    top=table.location or "",
                    replacement=replacement,
                )


_BEFORE = "org.apache.gobblin.data.management.policy.SelectBeforeTimeBasedPolicy"


def _replacement(own: Settings, dataset: HiveDataset) -> tuple[str, str] | None:
    if not own.truth("hive.shouldReplacePartition", default=False):
        return None
    db, table = own.text("hive.replacementHiveDbName"), own.text("hive.replacementHiveTableName")
    if not db or not table:
        return None

    def filled(text: str) -> str:
        for token, value in (("TABLE", dataset.table.name), ("DB", dataset.table.db)):
            text = text.replace(f"$LOGICAL_{token}", value).replace(f"${token}", value)
        return text.lower()

    found = filled(db), filled(table)
    return None if found == (dataset.table.db.lower(), dataset.table.name.lower()) else found


def pairs(settings: Settings, kind: str = "glob") -> Iterator[tuple[Pair, Policy]]:
    """Yields version finders with their policies, by the first rule that applies: the alias, an older policy, the
    dataset's own, a list of several. Raises ConfigError if none applies."""
    alias = settings.below(f"{PREFIX}.versionAndPolicy.alias")
    own = settings.below(PREFIX)
    if alias is not None:
        yield Pair(alias), selection_policy(Pair(alias))
        return
    finder = settings.text(f"{PREFIX}.version.finder.class")
    if own is not None and finder and settings.text(f"{PREFIX}.retention.policy.class"):
        yield Pair(own, settings), retention_policy(settings)
        return
    if own is not None and finder:
        pair = Pair(own, settings)
        yield pair, selection_policy(pair)
        return
    parts = settings.objects(f"{PREFIX}.dataset.partitions")
    if parts:
        for each in parts:
            yield Pair(each), selection_policy(Pair(each))
        return
    if own is not None and kind in _FIXED:
        version, policy = _FIXED[kind]
        yield Pair(_with_finder(own, version), settings), retention_policy(settings, policy)
        return
    raise settings.missing(f"{PREFIX}.version.finder.class")


_FIXED = {
    "snapshot": ("WatermarkDatasetVersionFinder", "NewestKRetentionPolicy"),
    "tracking": ("DateTimeDatasetVersionFinder", "TimeBasedRetentionPolicy"),
    "modification": ("ModDateTimeDatasetVersionFinder", "TimeBasedRetentionPolicy"),
}
"""The older dataset finders, which imply a version finder and a policy."""
assert {policy for _, policy in _FIXED.values()} <= set(RETENTIONS)


def _with_finder(own: Settings, finder: str) -> Settings:
    origin = Origin("the dataset finder", 0)
    version = own.find("version")
    fields = dict(version.fields) if isinstance(version, Fields) else {}
    fields["finder"] = Fields({"class": Scalar(finder, True, origin)}, origin)
    return Settings(Fields({**own.fields.fields, "version": Fields(fields, origin)}, origin), own.name)


# ---- outcome ---------------------------------------------------------------------------------------------------------
# The report of a run of retention. Pure.


REPORTED = 1000  # refusals that a report lists; the audit record has all


@dataclass
class RetentionRun(Removals):
    """The report of a run, or of its plan (`planned`). `status`: done, incomplete (failures or refusals) or planned.
    `versions`: examined; `selected`: by a policy; `removed`: versions removed, with `files` and `bytes` moved to
    `$cmroot`; `dropped`: partitions; `expired`: past states of tables; `ignored`: names without a valid time.
    `refused`: the first ones of `refused_count`, and why; `failed`: what, and why. `databases`: those that the root
    captures; None: unknown, or it captures none. Versions of any database are moved to it, but its log has the history
    of these only."""

    status: str = "done"
    run: str = ""
    datasets: int = 0
    versions: int = 0
    selected: int = 0
    removed: int = 0
    dropped: int = 0
    expired: int = 0
    access: int = 0
    files: int = 0
    bytes: int = 0
    ignored: int = 0
    refused_count: int = 0
    refused: list[dict[str, str]] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    databases: list[str] | None = None
    seconds: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Returns True if nothing was refused or failed."""
        return not (self.refused_count or self.failed)

    def refuse(self, refusal: Refusal) -> None:
        self.refused_count += 1
        if len(self.refused) < REPORTED:
            removal = refusal.removal
            self.refused.append({"path": removal.path, "object": removal.name, "why": refusal.why})

    def fail(self, what: str, why: str) -> None:
        self.failed.append({"what": what, "why": why})


@dataclass
class RetentionPlan(RetentionRun, Rows):
    """The plan of a run. items: to remove, drop or set, unless they were passed to a callback."""

    listed = "items"
    columns = ("act", "dataset", "path", "partition", "snapshot", "files", "bytes", "keeps_data", "access", "reason")
    status: str = "planned"
    items: list[dict[str, Any]] = field(default_factory=list)


# ---- spool -----------------------------------------------------------------------------------------------------------
# A plan on disk: items as lines of JSON in a temporary file, written once and read repeatedly. Acts on its own file
# only. A plan of a million items requires no memory.


class Spool:
    """Items in insertion order, deleted when the process ends."""

    def __init__(self) -> None:
        self._file = TemporaryFile()  # noqa: SIM115  open as long as the plan is needed
        self.count = 0

    def add(self, item: PlannedItem) -> None:
        self._file.write(msgspec.json.encode(item) + b"\n")
        self.count += 1

    def __iter__(self) -> Iterator[PlannedItem]:
        """Yields the items from the first to the last; one reader at a time."""
        self._file.seek(0)
        for line in self._file:
            yield msgspec.json.decode(line, type=PlannedItem)
        self._file.seek(0, 2)

    def batches(self, size: int) -> Iterator[list[PlannedItem]]:
        return batched(self, size)

    def close(self) -> None:
        self._file.close()


# ---- partitions as versions ------------------------------------------------------------------------------------------


PartitionFinder = Callable[[MetastoreReader, Table], Listed]


def partition_finder(pair: Pair) -> PartitionFinder:
    """Returns a finder by a date in a partition's value (the default) or by directory time. Raises ConfigError."""
    kind = pair.class_of("version.finder.class", VERSIONS, "version finder") or "hive_date"
    if kind == "hive_modification":
        return _by_modification
    if kind != "hive_date":
        raise pair.own.wrong("version.finder.class", pair.own.find("version.finder.class"), "does not find partitions")
    key = (pair.text("hive.partition.key.name") or "datepartition").lower()
    pattern = pair.text("hive.partition.value.datetime.pattern") or "yyyy-MM-dd-HH"
    zone = pair.text("hive.partition.value.datetime.timezone")
    dates = checked_pattern(pair, "hive.partition.value.datetime.pattern", pattern, zone)

    def find(metastore: MetastoreReader, table: Table) -> Listed:
        listed = Listed(TIME, doubts=doubts(dates, zone is not None))
        if key not in [column.name.lower() for column in table.partition_keys]:
            raise Error(f"{table.db}.{table.name} has no partition key {key}", hint="set hive.partition.key.name")
        for name in metastore.partition_names(table.db, table.name):
            keys, values = partition_spec(name)
            value = dict(zip((each.lower() for each in keys), values, strict=True))[key]
            try:
                if value == DEFAULT_PARTITION:
                    raise Unreadable(f"{name} has no value")
                listed.versions.append(Version("", name, dates.read_start(value), partition=name))
            except Unreadable as error:
                listed.ignore(str(error))
        return listed

    return find


def _by_modification(metastore: MetastoreReader, table: Table) -> Listed:
    listed, homes = Listed(TIME), cache(lambda: (metastore.database(table.db).location, warehouse_of(metastore)))
    for batch in metastore.all_partitions(table.db, table.name):
        for partition in batch:
            name = partition_name(table.partition_keys, partition.values)
            if partition.location and is_local(partition.location) and is_on_nodes(partition.location, *homes()):
                listed.ignore(f"{name}: {ON_NODES}")
                continue
            found = located(partition.location).child() if partition.location else None
            if found is None or found.mtime is None:
                listed.ignore(f"{name} has no directory with a modification time")
                continue
            moment = datetime.fromtimestamp(found.mtime, UTC)
            listed.versions.append(Version(partition.location or "", name, moment, partition=name, mtime=found.mtime))
    return listed
