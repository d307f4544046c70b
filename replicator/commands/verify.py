"""`verify`: compare a target with its source, all of it, or some tables in each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from cmroot.root import open_existing
from replicator.commands.base import Where, names, pairs, renames, verb
from replicator.commands.of_policy import Selecting
from replicator.commands.ranges import Natural, Positive
from replicator.compare.both_sides import Comparison, Level
from replicator.compare.sampling import Budget, Sampled, memory_of, verify_sample
from replicator.compare.verify import Verified, refuse_itself
from replicator.compare.verify import verify as compare
from replicator.core.not_replicated import SUPPORTED, FormatChoice
from replicator.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(Selecting):
    """Arguments:

    source, target: their metastores: a thrift URI, several separated by commas, or a configured name.
    catalog, target_catalog: of both sides, on Hive 3 and newer; None: the server's default one.
    db: a database, or several, by their names at the source.
    rename_db: names of databases on the target by those at the source, as a mapping or "A=B" texts.
    map_location: prefixes of places on the target by those at the source, likewise.
    level: how far files are compared: "metadata" (not at all), "size" (by name and size), "crc" (by the CRCs
        that HDFS keeps; other files by content), "checksum" (by content).
    sample: compare only so many tables, those compared longest ago.
    sample_bytes: the same, with a limit of bytes to read; a table that is larger is read in shares, one a run.
    target_cmroot: for samples: the target's change-management root, which remembers when each table was compared.
    formats: "supported", or "as-they-are" for tables that name their files by whole paths, too; None: the policy's,
      else "supported".
    """

    needed: ClassVar = ("source", "target", "db")
    renamed: ClassVar = {"cmroot": "target_cmroot"}

    policy: str | None = field(default=None, kw_only=False)
    source: Where = ""
    target: Where = ""
    catalog: str | None = None
    target_catalog: str | None = None
    db: str | Sequence[str] = ()
    rename_db: Mapping[str, str] | Sequence[str] = ()
    map_location: Mapping[str, str] | Sequence[str] = ()
    level: Level = "checksum"
    sample: Positive | None = None
    sample_bytes: Natural | None = None
    target_cmroot: str | None = None
    formats: FormatChoice | None = None


@verb(VerifyOptions)
def verify(options: VerifyOptions) -> Verified | Sampled:
    """Compares every object and file of both sides, read again from both; with `sample` or `sample_bytes` those of some
    tables, and in the end of all, round and round. Changes nothing; may run again at any time.

        replicator.verify(source="thrift://a:9083", target="thrift://b:9083", db="sales")
        replicator.verify("west", level="size")
        replicator.verify(source="prod", target="dr", db="sales", sample=100, target_cmroot="/cm-of-dr")

    Raises UsageError for databases that would be compared with themselves, and for a sample without `target_cmroot`;
    ObjectNotFound for a database that the source does not have; LeaseHeld while another run samples there."""
    sampling = options.sample is not None or options.sample_bytes is not None
    if sampling and options.target_cmroot is None:
        raise UsageError("--sample needs a place to remember what was compared when", hint="give --target-cmroot")
    databases, rename, of = names(options.db), renames(options.rename_db), options.settings.metastore
    mappings, patterns = pairs(options.map_location, "--map-location"), options.patterns
    refuse_itself(of(options.source), of(options.target), databases, rename)
    with (
        options.runtime() as runtime,
        options.connected(options.source) as source,
        options.connected(options.target) as target,
    ):
        both = Comparison(source, target, rename, mappings, patterns, options.level, options.formats or SUPPORTED)
        if not sampling or options.target_cmroot is None:
            return compare(both, databases, runtime)
        budget, root = Budget(options.sample, options.sample_bytes), open_existing(options.target_cmroot)
        return verify_sample(both, databases, budget, memory_of(root.place), runtime)
