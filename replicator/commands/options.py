"""Options that several commands share, each declared once as an annotated type: its values, its description, and its
form on the command line. `replicator/core/option.py` defines the notation.

    @dataclass(frozen=True, kw_only=True)
    class DumpOptions(Options):
        source: Source = ""
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated

from replicator.core.not_replicated import FormatChoice
from replicator.core.option import Jobs, Moment, Rows, Where, arg, opt
from replicator.core.policy import GrantsChoice, Keeper

# ---- options of several commands ------------------------------------------------------------------------------------

PolicyName = Annotated[str, arg("The policy's name in the configuration.", "POLICY")]
ExplicitPolicy = Annotated[str, arg("The policy's name in the configuration.", "POLICY", explicit=True)]
Adoption = Annotated[
    bool,
    opt(
        "Adopt objects of the target with the replicas' names that replication did not create: "
        "equal files are kept, different ones are moved to the target's $cmroot."
    ),
]
DropLeft = Annotated[
    bool,
    opt("Drop out-of-scope replicas; their data is moved to the target's $cmroot.", "--drop-left", "--consent-drop"),
]
DeclaredEmpty = Annotated[
    Sequence[str],
    opt(
        "Declare a table (db.table) or partition (db.table/day=1) without a directory empty; "
        "repeatable. Otherwise its files remain on replicas.",
        metavar="OBJECT",
    ),
]
CommitJobs = Annotated[Jobs, opt("Maximum number of tables committed concurrently; fewer where more are not faster.")]
Note = Annotated[str, opt("Free-text comment.", metavar="TEXT")]
DryRun = Annotated[bool, opt("Print what would be done; change nothing.")]
Root = Annotated[str, opt("The change-management root.", metavar="PLACE")]
PathFilter = Annotated[str | None, opt("Only this path and paths below it.", metavar="PLACE")]
OptionalPolicy = Annotated[
    str | None,
    arg("The policy that provides options not given: metastores, roots, databases, patterns, locations.", "[POLICY]"),
]
Source = Annotated[
    Where,
    opt(
        "The source: thrift://host:port, several separated by commas for failover, or a name of "
        "the configuration file.",
        metavar="METASTORE",
    ),
]
SourceCatalog = Annotated[str | None, opt("The source's catalog (Hive 3 and newer).", metavar="NAME")]
SourceRoot = Annotated[str, opt("The source's change-management root.", metavar="PLACE")]
CapturedDatabases = Annotated[
    str | Sequence[str],
    opt(
        "Capture this database from now on, or those whose entire names match; repeatable. Default: the databases "
        "that the root captures already; for a new root, all.",
        metavar="REGEX",
    ),
]
SelectedDatabases = Annotated[
    str | Sequence[str],
    opt("A database of the source, or those whose entire names match; repeatable.", metavar="REGEX"),
]
ReplicaDatabases = Annotated[
    str | Sequence[str],
    opt("A database by its name on the target, or those whose entire names match; repeatable.", metavar="REGEX"),
]
EveryDatabase = Annotated[bool, opt("All databases of the source: --db '.*'.")]
AllDatabases = Annotated[bool, opt("Capture every present database of the metastore from now on.")]
ScanChoice = Annotated[bool, opt("Skip the scan for changes without an event (most of Spark's writes).")]
ScanTime = Annotated[
    timedelta | None,
    opt(
        "Time limit of that scan, such as 1s: of very many tables it scans some, and the next scan "
        "continues after them. New and dropped tables are always found. Default: a tenth of the time since the last "
        "scan, at least 0.1s and 100 tables."
    ),
]
DeepScan = Annotated[bool, opt("Also compare each partition, and all constraints, with the metastore.")]
KeeperChoice = Annotated[
    Keeper | None,
    opt(
        "Method of keeping bytes; auto: for each store the first that works of link, version, "
        "snapshot (HDFS), copy. native: the metastore's own change manager keeps the files it drops "
        "(HDFS; since Hive 3 of managed tables).",
        default="auto",
    ),
]
OutsideDirectories = Annotated[
    Sequence[str],
    opt(
        "Directory in which Iceberg tables may have data and delete files outside of their own locations, in addition "
        "to iceberg_outside of the metastore; repeatable. All others are not read, and such tables are not replicated.",
        metavar="DIR",
    ),
]
TargetCatalog = Annotated[str | None, opt("The target's catalog (Hive 3 and newer).", metavar="NAME")]
Target = Annotated[
    Where,
    opt(
        "The target: thrift://host:port, several separated by commas for failover, or a name of "
        "the configuration file.",
        metavar="METASTORE",
    ),
]
RowLimit = Annotated[Rows, opt("Maximum number of listed rows; all are counted.")]
OverwriteFile = Annotated[bool, opt("Replace an existing file.")]
LogPosition = Annotated[
    Moment | int | None,
    opt("An event id, @POSITION, a time (UTC), or a finished dump; default: the end of the captured log.", metavar="X"),
]
LeaseWait = Annotated[timedelta, opt("Time to wait for a lease that another run holds, such as a capture.")]
SandboxDirectory = Annotated[
    str | os.PathLike[str], opt("Directory of the warehouse, the database and the log.", "--dir")
]
ReplaceFile = Annotated[bool, opt("Replace the file.")]
Formats = Annotated[
    FormatChoice | None,
    opt(
        "as-they-are: include tables in formats whose metadata names files by absolute path. "
        "Correct only if both sides have the same paths.",
        default="supported",
    ),
]
GrantsOption = Annotated[
    GrantsChoice | None,
    opt("ignore: leave grants and roles of the metastore's own authorization as they are.", default="replicate"),
]
PrincipalNames = Annotated[
    Mapping[str, str] | Sequence[str],
    opt(
        "A user, group or role that has another name on the target, as user:A=B or user:A=group:B; repeatable.",
        "--principal",
        metavar="KIND:A=B",
    ),
]
KeyFile = Annotated[
    str | None,
    opt(
        "File of signing keys, one per line: the first key signs dumps; dumps that none of the "
        "keys has signed are refused. Default: key_file of [dumps]; without keys, dumps are "
        "neither signed nor checked.",
        metavar="FILE",
    ),
]
RunWait = Annotated[timedelta, opt("Time to wait for a current run.")]
DatabaseMetastore = Annotated[
    Where,
    opt(
        "The database's metastore: thrift://host:port, several separated by commas for failover, "
        "or a name of the configuration file.",
        metavar="METASTORE",
        envvar="PLACE",
    ),
]
Catalog = Annotated[str | None, opt("The metastore's catalog (Hive 3 and newer).", metavar="NAME")]
MetastoreName = Annotated[Where, opt("thrift://host:port, or a configured name.", metavar="METASTORE")]
ItemStoreUrl = Annotated[
    str | None,
    opt(
        "Store of the items: postgresql://user@host/db or sqlite:////path; default: an SQLite "
        "file in $cmroot, if that is a local directory.",
        metavar="URL",
    ),
]
TargetWarehouse = Annotated[
    str | None,
    opt("Parent directory of the target's databases; default: that of its default database.", metavar="PLACE"),
]
TargetRoot = Annotated[
    str | None,
    opt(
        "The target's change-management root, which keeps replaced files; default: .cmroot in the warehouse.",
        metavar="PLACE",
    ),
]
DatabaseNames = Annotated[
    Mapping[str, str] | Sequence[str], opt("Replicate source database A as B; repeatable.", metavar="A=B")
]
LocationMap = Annotated[
    Mapping[str, str] | Sequence[str],
    opt("Map paths below A at the source to B on the target; repeatable.", metavar="A=B"),
]
ExternalBase = Annotated[
    str | None,
    opt(
        "Directory for external data outside of its database's directory, in <database>.db; "
        "default: external in the warehouse.",
        metavar="PLACE",
    ),
]
PropertiesFile = Annotated[
    str | os.PathLike[str] | None,
    opt("Properties file of a Gobblin compliance job; options override it.", metavar="FILE"),
]
CertificateFile = Annotated[
    str | None,
    opt("Also write the certificate to this file: as text (*.txt), as a page (*.html), else as JSON.", metavar="FILE"),
]
Scratch = Annotated[
    str | None, opt("A directory that executors can read; default: the system's temporary directory.", metavar="DIR")
]
