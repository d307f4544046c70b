"""Gobblin's class names as configurations write them, and their names here. Pure.

A name is accepted with its package, `org.apache.gobblin.data.management...` or the older `gobblin.data.management...`,
or alone. Classes of other packages are user code, which cannot be run here.
"""

from __future__ import annotations

import difflib
import re

from replicator.errors import ConfigError
from replicator.lifecycle.retention.config.hocon.hocon_values import Origin

_CLASS = re.compile(r"(?:(?:org\.apache\.)?gobblin\.data\.management(?:\.[a-z]+)*\.)?([A-Za-z]\w*)")

FINDERS = {
    "ManagedCleanableDatasetFinder": "glob",
    "GlobCleanableDatasetFinder": "glob",
    "ProxyableDatasetProfile": "glob",
    "ConfigBasedCleanabledDatasetFinder": "paths",  # Gobblin's own spelling
    "ConfigBasedCleanableDatasetFinder": "paths",
    "ModificationTimeDatasetProfile": "modification",
    "SnapshotDatasetProfile": "snapshot",
    "TrackingDatasetProfile": "tracking",
    "CleanableHiveDatasetFinder": "hive",
}
VERSIONS = {
    "GlobModTimeDatasetVersionFinder": "modification",
    "DateTimeDatasetVersionFinder": "datetime",
    "LookbackDateTimeDatasetVersionFinder": "lookback",
    "ModDateTimeDatasetVersionFinder": "root_modification",
    "FileLevelTimestampVersionFinder": "files",
    "SingleVersionFinder": "single",
    "UnixTimestampVersionFinder": "unix",
    "WatermarkDatasetVersionFinder": "watermark",
    "DatePartitionHiveVersionFinder": "hive_date",
    "HdfsModifiedTimeHiveVersionFinder": "hive_modification",
}
SELECTIONS = {
    "SelectBeforeTimeBasedPolicy": "before",
    "SelectAfterTimeBasedPolicy": "after",
    "SelectBetweenTimeBasedPolicy": "between",
    "NewestKSelectionPolicy": "newest",
    "CombineSelectionPolicy": "combine",
    "HiddenFilterSelectionPolicy": "hidden",
    "SelectAllPolicy": "all",
    "SelectNothingPolicy": "nothing",
}
RETENTIONS = {
    "TimeBasedRetentionPolicy": "time",
    "TimeBased": "time",
    "NewestKRetentionPolicy": "newest",
    "NewestK": "newest",
    "CombineRetentionPolicy": "combine",
    "DeleteAllRetentionPolicy": "all",
    "DeleteNothingRetentionPolicy": "nothing",
    "PredicateRetentionPolicy": "predicate",
}
NOT_HERE = {
    "ManagedIcebergCleanableDatasetFinder": "an Iceberg table expires its own snapshots: use its procedures",
    "TimeBasedDatasetStoreDatasetFinder": "Gobblin's job state is cleaned by Gobblin",
    "TimestampedDatasetStateStoreVersionFinder": "Gobblin's job state is cleaned by Gobblin",
    "RawDatasetRetentionPolicy": "raw versions beside refined ones: give the raw dataset a policy of its own",
    "Avro2OrcStaleDatasetCleaner": "the conversion's own cleaner: use a glob dataset over its directories",
}


def known(text: str, table: dict[str, str], what: str, origin: Origin | None) -> str:
    """Returns the name of a class here. Raises ConfigError, with file and line, for one that is not in the table."""
    where = f"{origin}: " if origin else ""
    match = _CLASS.fullmatch(text.strip())
    name = match[1] if match else ""
    if name in table:
        return table[name]
    if name in NOT_HERE:
        raise ConfigError(f"{where}{name} does not run here", hint=NOT_HERE[name])
    near = difflib.get_close_matches(text.rpartition(".")[2], table, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(table)}"
    raise ConfigError(f"{where}{text!r} is no {what} that is known here", hint=hint)
