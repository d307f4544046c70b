"""The housekeeping settings of a table's owner: TBLPROPERTIES as a value.

Names and meanings are Beekeeper's, so tables work unchanged. Invalid properties affect one lifecycle of one table:
nothing of it is removed, and the operator is warned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from replicator.core.formats import format_of
from replicator.core.grouping import batched
from replicator.core.model import Table
from replicator.core.roles import is_shadow
from replicator.core.text import Period, parse_period
from replicator.errors import ObjectNotFound, UsageError
from replicator.metastore.client import MetastoreReader

_TABLES = 500  # fetched at once

UNREFERENCED, EXPIRED = "UNREFERENCED", "EXPIRED"
"""Lifecycles: data that a table or partition no longer uses; tables and partitions that have expired."""

REMOVE_UNREFERENCED = "beekeeper.remove.unreferenced.data"
UNREFERENCED_PERIOD = "beekeeper.unreferenced.data.retention.period"
EVENTS = "beekeeper.hive.event.whitelist"
REMOVE_EXPIRED = "beekeeper.remove.expired.data"
EXPIRED_PERIOD = "beekeeper.expired.data.retention.period"
DROP_TABLES = "beekeeper.expired.data.table.deletion.enabled"

ALTER_PARTITION, ALTER_TABLE, DROP_PARTITION, DROP_TABLE = (
    "alter_partition",
    "alter_table",
    "drop_partition",
    "drop_table",
)
THREE_DAYS, THIRTY_DAYS = parse_period("P3D"), parse_period("P30D")
DEFAULT_EVENTS = frozenset({ALTER_PARTITION, ALTER_TABLE})


def outside_with_settings(metastore: MetastoreReader, captured: Collection[str]) -> list[str]:
    """Returns databases, other than the captured ones, with a table that sets a lifecycle, sorted. Reads in batches, in
    each database up to the first such table."""
    return sorted(db for db in metastore.database_names() if db not in captured and _has_settings(metastore, db))


def _has_settings(metastore: MetastoreReader, db: str) -> bool:
    with suppress(ObjectNotFound):  # dropped since
        if is_shadow(metastore.database(db)):
            return False
        names = metastore.table_names(db)
        for some in batched(names, _TABLES):
            for table in metastore.tables(db, some):
                if any(
                    table.parameters.get(key, "").lower() == "true" for key in (REMOVE_UNREFERENCED, REMOVE_EXPIRED)
                ):
                    return True
    return False


@dataclass(frozen=True)
class LifecycleDefaults:
    """The settings of tables without their own. allow_immediate: zero and negative periods are allowed."""

    unreferenced: Period = THREE_DAYS
    expired: Period = THIRTY_DAYS
    allow_immediate: bool = False

    def as_text(self) -> str:
        return " ".join((self.unreferenced.text, self.expired.text, str(self.allow_immediate)))

    @classmethod
    def given(cls, unreferenced: str, expired: str, allow_immediate: bool) -> LifecycleDefaults:
        """Parses periods as users write them. Raises UsageError, which names the option."""
        periods = []
        for text, option in ((unreferenced, "--default-unreferenced"), (expired, "--default-expired")):
            try:
                periods.append(parse_period(text))
            except ValueError as error:
                raise UsageError(
                    f"{option}: {error}", hint="correct the option, or [housekeeping] of the configuration"
                ) from error
            if not periods[-1].is_positive and not allow_immediate:
                raise UsageError(
                    f"{option}: {text!r} leaves no time before removal", hint="--allow-immediate permits it"
                )
        return cls(periods[0], periods[1], allow_immediate)

    @classmethod
    def from_text(cls, text: str) -> LifecycleDefaults:
        unreferenced, expired, immediate = text.split()
        return cls(parse_period(unreferenced), parse_period(expired), immediate == str(True))


@dataclass(frozen=True)
class LifecycleSettings:
    """The settings of a table. unreferenced, expired: the retention of such data; None: it is not removed. events:
    changes after which old locations are scheduled. drops_table: an expired table is dropped itself, not only its
    partitions. problems: by lifecycle, why its properties are invalid."""

    unreferenced: Period | None = None
    events: frozenset[str] = DEFAULT_EVENTS
    expired: Period | None = None
    drops_table: bool = False
    problems: Mapping[str, str] = field(default_factory=dict)

    def period(self, lifecycle: str) -> Period | None:
        return self.unreferenced if lifecycle == UNREFERENCED else self.expired


NOTHING = LifecycleSettings()


def read_settings(table: Table | None, defaults: LifecycleDefaults) -> LifecycleSettings:
    """Reads a table's settings; never raises. Views have none, nor have tables whose files are listed in metadata of
    their own (Iceberg)."""
    if table is None or table.has_query or not any(key.startswith("beekeeper.") for key in table.parameters):
        return NOTHING
    given = table.parameters
    problems: dict[str, str] = {}
    found: dict[str, Period | None] = {}
    for lifecycle, switch, key, default in (
        (UNREFERENCED, REMOVE_UNREFERENCED, UNREFERENCED_PERIOD, defaults.unreferenced),
        (EXPIRED, REMOVE_EXPIRED, EXPIRED_PERIOD, defaults.expired),
    ):
        try:
            wanted = _switch(given, switch)
            if wanted and (why := _why_not(table, lifecycle)):
                raise ValueError(f"{switch}: {why}")
            found[lifecycle] = _period(given, key, default, defaults) if wanted else None
        except ValueError as error:
            problems[lifecycle] = str(error)
    drops = False
    if EXPIRED not in problems:
        try:
            drops = _switch(given, DROP_TABLES)
        except ValueError as error:
            problems[EXPIRED] = str(error)
            found[EXPIRED] = None
    return LifecycleSettings(found.get(UNREFERENCED), _events(given), found.get(EXPIRED), drops, problems)


def _why_not(table: Table, lifecycle: str) -> str:
    """Returns why a table's format forbids a kind of removal."""
    format = format_of(table)
    if lifecycle == UNREFERENCED:
        return format.no_housekeeping or format.no_unreferenced
    return format.no_housekeeping or (format.no_expired_partitions if table.is_partitioned else "")


def _switch(given: Mapping[str, str], key: str) -> bool:
    text = given.get(key, "false").strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"{key}: {given[key]!r} is neither true nor false")
    return text == "true"


def _period(given: Mapping[str, str], key: str, default: Period, defaults: LifecycleDefaults) -> Period:
    if key not in given:
        return default
    try:
        period = parse_period(given[key])
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    if not period.is_positive and not defaults.allow_immediate:
        raise ValueError(f"{key}: {given[key]!r} leaves no time before removal (--allow-immediate permits it)")
    return period


def _events(given: Mapping[str, str]) -> frozenset[str]:
    """Returns the listed events, which replace the default; unknown names are ignored, an empty list selects none."""
    if EVENTS not in given:
        return DEFAULT_EVENTS
    return frozenset(name.strip().lower() for name in given[EVENTS].split(","))
