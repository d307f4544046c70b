"""The declaration of options, each once: a field of a class of options has its values, its description, and its form on
the command line. `replicator/cli/options.py` makes click's options of it, `verb` Python's `help()`.

    @dataclass(frozen=True, kw_only=True)
    class DumpOptions(Options):
        out: Annotated[str, opt("The dump's directory, new or empty.", metavar="PLACE")]

The values are checked for every caller, with the messages of the command line.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from datetime import timedelta
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from replicator.core.connections import MetastoreConfig
from replicator.core.moments import absolute_moment, parse_moment, parse_time
from replicator.core.not_replicated import FormatChoice
from replicator.core.policy import GrantsChoice, Keeper
from replicator.core.text import LEAST_RATE
from replicator.errors import UsageError

OWN: Any = object()
"""A default of the command line that is the field's own."""


@dataclass(frozen=True)
class Option:
    """The form of a field on the command line, in docs/cli.md and in Python's `help()`.

    help: its description. flags: of the command line; none: `--name`, or `--no-name` if the field is True by default.
    default: of the command line, if it is not the field's. required: None: if the field has no default. multiple:
    False: given once, although the field takes several values. envvar: the end of its variable's name, if it is not the
    field's name. exists: a file that must exist. positional: an argument. python_only: not on the command line.
    explicit: a policy that must be given, even if only one is configured.
    """

    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    default: Any = OWN
    required: bool | None = None
    multiple: bool = True
    envvar: str | None = None
    exists: bool = False
    positional: bool = False
    python_only: bool = False
    explicit: bool = False


def opt(help: str, *flags: str, **form: Any) -> Option:
    """Declares an option of the command line."""
    return Option(help, flags, **form)


def arg(help: str, metavar: str | None = None, **form: Any) -> Option:
    """Declares an argument of the command line."""
    return Option(help, (), metavar, positional=True, **form)


def python_only(help: str) -> Option:
    """Declares a field that only Python's functions have."""
    return Option(help, python_only=True)


@dataclass(frozen=True)
class Declared:
    """A field of a class of options. values: the members of its type, without None; default: MISSING if it has none."""

    name: str
    option: Option
    values: tuple[Any, ...]
    default: Any


def declared_fields(kind: type[Any]) -> tuple[Declared, ...]:
    """Returns the fields of a class of options: those of the class itself first, then those of its bases."""
    return _declared_fields(cast(Hashable, kind))


@functools.cache
def _declared_fields(kind: Any) -> tuple[Declared, ...]:
    hints, fields = get_type_hints(kind, include_extras=True), {each.name: each for each in dataclasses.fields(kind)}
    order = dict.fromkeys(name for one in kind.__mro__ for name in inspect.get_annotations(one))
    return tuple(_declared(fields[name], hints[name]) for name in order if name in fields)


def _declared(field: dataclasses.Field[Any], hint: Any) -> Declared:
    option = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Option)), Option(""))
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return Declared(field.name, option, tuple(each for each in members(hint) if each is not NoneType), default)


def members(hint: Any) -> tuple[Any, ...]:
    """Returns the members of a union, or the type itself; without its declaration as an option."""
    if get_origin(hint) is Annotated:
        kind, *extras = get_args(hint)
        kept = tuple(each for each in extras if not isinstance(each, Option))
        if len(kept) < len(extras):
            return members(Annotated[(kind, *kept)] if kept else kind)
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


# ---- values ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Between:
    """Numbers; both ends included; None: no end."""

    least: float
    most: float | None = None

    def __str__(self) -> str:
        return f"x>={self.least}" if self.most is None else f"{self.least}<=x<={self.most}"

    def complaint(self, value: Any, kind: type) -> str:
        """Returns what is wrong with a value, or ""."""
        if not isinstance(value, int | float) or (kind is int and not isinstance(value, int)):
            return f"{value!r} is not a valid {'integer' if kind is int else 'float'} range."
        fits = self.least <= value and (self.most is None or value <= self.most)
        return "" if fits else f"{kind(value)} is not in the range {self}."


@dataclass(frozen=True)
class ByteCount(Between):
    """A number of bytes; on the command line `10GiB`, too."""


@dataclass(frozen=True)
class ByteRate(Between):
    """A number of bytes a second; on the command line `50MB/s`, too."""


@dataclass(frozen=True)
class Back:
    """A moment: an event id, `@POSITION`, a time, or a duration back from now, which `settled` resolves. timed: only a
    time."""

    timed: bool = False

    def complaint(self, value: Any, kind: type) -> str:
        if not isinstance(value, str):
            return f"{value!r} is not a time such as 2026-03-01T12:00:00Z or -1d"
        try:
            if self.timed:
                parse_time(value, "")
            elif value.startswith("@"):
                parse_moment(value, "")
            absolute_moment(value, time.time())
        except UsageError as error:
            return error.message.strip()
        return ""


Natural = Annotated[int, Between(0)]
Positive = Annotated[int, Between(1)]
Jobs = Annotated[int, Between(1, 64)]
Port = Annotated[int, Between(1, 65535)]
Rows = Annotated[int, Between(0, 1_000_000)]
Bytes = Annotated[int, ByteCount(0)]
Bandwidth = Annotated[int, ByteRate(LEAST_RATE)]
Share = Annotated[float, Between(0, 1)]
Moment = Annotated[str, Back()]
Time = Annotated[str, Back(timed=True)]


def settled(options: Any) -> dict[str, str]:
    """Returns the fields that are durations back from now, as times."""
    moments, now = [each.name for each in _restricted_fields(options) if {Moment, Time} & {*each.values}], time.time()
    given = {name: getattr(options, name) for name in moments}
    return {name: absolute_moment(text, now) for name, text in given.items() if isinstance(text, str)}


def check(options: Any) -> None:
    """Raises UsageError for a field whose annotation is a range, a choice (`Literal`), several of them, a duration or a
    moment, and whose value is none of these."""
    for field in _restricted_fields(options):
        value = getattr(options, field.name)
        complaint = "" if value is None else _complaint(value, field.values)
        if complaint:
            option = f"--{field.name.replace('_', '-')}"
            raise UsageError(f"Invalid value for '{option}': {complaint}", hint="see the command's --help")


def _restricted_fields(options: Any) -> tuple[Declared, ...]:
    """Returns the fields of options whose types restrict their values."""
    return _restricted(cast(Hashable, type(options)))


@functools.cache
def _restricted(kind: Any) -> tuple[Declared, ...]:
    return tuple(each for each in declared_fields(kind) if any(map(_restricts, each.values)))


def _restricts(hint: Any) -> bool:
    of_restricted = get_origin(hint) is Sequence and any(map(_restricts, get_args(hint)))
    return get_origin(hint) in (Annotated, Literal) or hint is timedelta or of_restricted


def _complaint(value: Any, kinds: Sequence[Any]) -> str:
    """Returns what is wrong with a value; "" if one of the types takes it."""
    complaint = ""
    for each in kinds:
        if get_origin(each) is Literal:
            choices = ", ".join(map(repr, get_args(each)))
            found = "" if value in get_args(each) else f"{value!r} is not one of {choices}."
        elif get_origin(each) is Annotated:
            kind, values = get_args(each)
            found = values.complaint(value, kind)
        elif get_origin(each) is Sequence:
            items = [value] if isinstance(value, str) else value
            found = next((wrong for item in items if (wrong := _complaint(item, members(get_args(each)[0])))), "")
        elif each is timedelta:
            fits = isinstance(value, timedelta) and value >= timedelta(0)
            found = "" if fits else f"{str(value)!r} is not a duration such as 10s, 5m or 1h"
        elif isinstance(each, type) and isinstance(value, each):
            return ""
        else:
            continue
        if not found:
            return ""
        complaint = complaint or found
    return complaint


# ---- options of several commands ------------------------------------------------------------------------------------

Where = str | MetastoreConfig
"""A metastore: its name in the configuration, its URI, or a value of its own."""

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
        "repeatable. Otherwise its files stay on replicas.",
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
        "continues after them. New and dropped tables are always found. Default: all."
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
