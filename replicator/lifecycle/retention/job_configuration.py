"""The configuration of a retention job: its file, and the notation of values, as in Gobblin. Reads only.

A job file is the input of a run in addition to the config store: `.conf` and `.json` files are HOCON; all others are
Java properties. A directory is taken for a config store, without a job file.
A class name is accepted with its package, `org.apache.gobblin.data.management...` or the older
`gobblin.data.management...`, or alone; classes of other packages are user code, which cannot be run here. Joda patterns
(`yyyy/MM/dd/HH`) read names; invalid ones are reported, as a version without a time is retained forever.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cmroot.store.place import as_written, is_local, name_of
from replicator.core.text import Period, decode_properties, parse_period, property_entries
from replicator.errors import ConfigError
from replicator.lifecycle.retention.config_store import STORE, ConfigStore, Settings, is_directory
from replicator.lifecycle.retention.hocon_parser import parse
from replicator.lifecycle.retention.hocon_values import Fields, Origin, Raw, Scalar, merge, merge_fields, resolve

# ---- job file --------------------------------------------------------------------------------------------------------


STORE_URI = "gobblin.config.management.store.uri"
RUNTIME = "gobblin.config.runtime."


@dataclass(frozen=True)
class JobFile:
    """The input of a run. `settings`: the job file's keys, overridden by those set for the run; `store`: None without
    one; `warnings`: keys without effect or with a different effect."""

    place: str
    settings: Settings
    store: ConfigStore | None
    warnings: list[str] = field(default_factory=list)


def read_job(
    place: str, *, given: Mapping[str, str] | None = None, environment: Mapping[str, str | None] | None = None
) -> JobFile:
    """Reads a job file, or accepts a store's directory. `given` keys override the file's. `environment`: values for
    `${NAME}`; None for a variable that exists and may not be read. Raises ConfigError with the file and line."""
    given = dict(given or {})
    fields = _fields(given, "--set")
    if _is_store(place):
        given = {STORE_URI: place, **given}
        fields = _fields(given, place)
    else:
        fields = merge_fields(fields, _read(place))
    variables = {**(environment or {}), **_runtime(fields)}
    settings = Settings(resolve(fields, variables), place)
    uri = settings.text(STORE_URI)
    version = settings.text("gobblin.config.management.store.version")
    store = ConfigStore.open(_beside(uri, place), version=version, variables=variables) if uri else None
    return JobFile(place, settings, store)


def _is_store(place: str) -> bool:
    return is_directory(place) or (not is_local(place) and is_directory(f"{place}/{STORE}"))


def _beside(uri: str, place: str) -> str:
    """Resolves the relative path of a store against the job file's directory."""
    if ":" in uri or uri.startswith("/") or not is_local(place):
        return uri
    return str(Path(place).resolve().parent / uri)


def _read(place: str) -> Fields:
    name = name_of(place)
    try:
        data = as_written(place).read_bytes(follow=True)
    except FileNotFoundError:
        raise ConfigError(
            f"{place}: the file does not exist", hint="name a job file, or a config store's directory"
        ) from None
    if not name.endswith((".conf", ".json", ".hocon")):
        return _as_fields(_properties(data, name), name)
    try:
        return parse(data.decode("utf-8"), name)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place}: not UTF-8: {error}", hint="save the file as UTF-8") from error


def _properties(data: bytes, name: str) -> Iterator[tuple[str, str, Origin]]:
    try:
        for key, value, line in property_entries(decode_properties(data)):
            yield key, value, Origin(name, line)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}", hint="it is read as Java properties") from error


def _fields(values: Mapping[str, str], name: str) -> Fields:
    return _as_fields(((key, value, Origin(name, 0)) for key, value in values.items()), name)


def _as_fields(properties: Iterator[tuple[str, str, Origin]], name: str) -> Fields:
    """Builds nested fields. If a key is a value and a prefix of others, the others win, as in the Typesafe library."""
    found: Raw = Fields({}, Origin(name, 0))
    entries = sorted(properties, key=lambda entry: len(entry[0].split(".")))
    for key, value, origin in entries:
        one: Raw = Scalar(value, True, origin)
        for part in reversed(key.split(".")):
            one = Fields({part: one}, origin)
        found = merge(one, found)
    assert isinstance(found, Fields)
    return found


def _runtime(fields: Fields) -> dict[str, str]:
    """Returns the values of `gobblin.config.runtime.x`, which are `${x}` in the store."""
    return {
        ".".join(path)[len(RUNTIME) :]: value.text
        for path, value in _scalars(fields, ())
        if ".".join(path).startswith(RUNTIME)
    }


def _scalars(fields: Fields, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Scalar]]:
    for key, value in fields.fields.items():
        if isinstance(value, Fields):
            yield from _scalars(value, (*path, key))
        elif isinstance(value, Scalar):
            yield (*path, key), value


# ---- class names -----------------------------------------------------------------------------------------------------


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
    "RawDatasetRetentionPolicy": "raw versions next to refined ones: give the raw dataset a policy of its own",
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
        raise ConfigError(f"{where}{name} is not supported", hint=NOT_HERE[name])
    near = difflib.get_close_matches(text.rpartition(".")[2], table, 1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(table)}"
    raise ConfigError(f"{where}{text!r} is not a known {what}", hint=hint)


# ---- dates and lookbacks ---------------------------------------------------------------------------------------------


DEFAULT_ZONE = "America/Los_Angeles"
"""The zone if none is set: Gobblin's default, which existing stores rely on."""

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_TOKEN = re.compile(r"([a-zA-Z])\1*|'((?:[^']|'')*)'|[^a-zA-Z']+")
_NUMBERS = {
    "y": "year",
    "Y": "year",
    "u": "year",
    "M": "month",
    "d": "day",
    "H": "hour",
    "h": "hour12",
    "m": "minute",
    "s": "second",
    "S": "fraction",
    "D": "yearday",
}


class Unreadable(ValueError):
    """A text that does not match the pattern; the message contains the reason."""


@dataclass(frozen=True)
class DatePattern:
    """A `pattern` in a zone. `width`: number of characters of a name that it matches. `warning`: of an ambiguity."""

    pattern: str
    zone: tzinfo
    zone_name: str
    width: int
    _regex: re.Pattern[str]
    _format: Callable[[datetime], str]
    warning: str = ""

    def read_end(self, name: str) -> datetime:
        """Parses the last characters of a name as a time. Raises Unreadable."""
        if len(name) < self.width:
            raise Unreadable(f"{name!r} is shorter than {self.pattern}")
        text = name[-self.width :]
        if text[0].isdigit() and name[: -self.width][-1:].isdigit():
            raise Unreadable(f"{name!r} has more digits before {text!r}")
        return self.read(text)

    def read_start(self, text: str) -> datetime:
        """Parses the first characters of a partition's value as a time. Raises Unreadable."""
        text = text.strip()
        if len(text) < self.width:
            raise Unreadable(f"{text!r} is shorter than {self.pattern}")
        return self.read(text[: self.width])

    def read(self, text: str) -> datetime:
        match = self._regex.fullmatch(text)
        if match is None:
            raise Unreadable(f"{text!r} does not match {self.pattern}")
        return _moment(match.groupdict(), text, self.zone)

    def write(self, moment: datetime) -> str:
        return self._format(moment.astimezone(self.zone))


def date_pattern(pattern: str, zone_name: str) -> DatePattern:
    """Compiles a pattern. Raises ValueError, with a message for the user, for an unknown pattern letter or zone."""
    try:
        zone = UTC if zone_name in ("UTC", "GMT", "Z") else ZoneInfo(zone_name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"{zone_name!r} is not a time zone: write one such as Europe/Berlin or UTC") from error
    if not pattern:
        raise ValueError("the pattern is empty")
    tokens = _tokens(pattern)
    names = [name.removesuffix("name") for name, _, _ in tokens]
    if "year" not in names or ("month" not in names and ("day" in names)) or ("yearday" in names and "day" in names):
        raise ValueError(f"{pattern!r} does not specify a day of a year")
    if len(set(filter(None, names))) != len(list(filter(None, names))):
        raise ValueError(f"{pattern!r} specifies a field twice")
    regex, width = "", 0
    for number, (name, text, size) in enumerate(tokens):
        after = tokens[number + 1][0] if number + 1 < len(tokens) else ""
        regex += _part(name, text, size, adjacent=bool(after) and after != "half")
        width += 2 if name == "half" else size
    warning = ""
    if "hour12" in names and "half" not in names:
        warning = f"{pattern}: hh is the 12-hour clock, so only the hours 01 to 11 can be read; HH is the 24-hour one"
    return DatePattern(pattern, zone, zone_name, width, re.compile(regex, re.ASCII), _writer(tokens), warning)


def _tokens(pattern: str) -> list[tuple[str, str, int]]:
    """Returns (name of the field, or "" for literal text; the text; characters)."""
    found: list[tuple[str, str, int]] = []
    at = 0
    for match in _TOKEN.finditer(pattern):
        if match.start() != at:
            raise ValueError(f"{pattern!r}: a quote is not closed")
        at = match.end()
        text = match[0]
        if match[1] is None:
            literal = (match[2].replace("''", "'") or "'") if match[2] is not None else text
            found.append(("", literal, len(literal)))
        elif match[1] == "M" and len(text) == 3:
            found.append(("monthname", text, 3))
        elif match[1] == "a":
            found.append(("half", text, 2))
        elif match[1] in _NUMBERS and not (match[1] == "M" and len(text) > 3):
            found.append((_NUMBERS[match[1]], text, len(text)))
        else:
            raise ValueError(
                f"{pattern!r}: {text} is not supported; supported are yyyy MM MMM dd HH mm ss SSS DDD hh a"
            )
    if at != len(pattern):
        raise ValueError(f"{pattern!r}: a quote is not closed")
    return found


def _part(name: str, text: str, size: int, *, adjacent: bool) -> str:
    match name:
        case "":
            return re.escape(text)
        case "monthname":
            return f"(?P<monthname>(?i:{'|'.join(_MONTHS)}))"
        case "half":
            return "(?P<half>(?i:AM|PM))"
        case "year":
            return rf"(?P<year>\d{{{size}}})" if adjacent or size == 2 else r"(?P<year>\d{4})"
        case "fraction":
            return rf"(?P<fraction>\d{{{size}}})"
        case _:
            most = max(size, 3 if name == "yearday" else 2)
            return rf"(?P<{name}>\d{{{size if adjacent else 1},{size if adjacent else most}}})"


def _moment(found: dict[str, str], text: str, zone: tzinfo) -> datetime:
    year = int(found["year"])
    if len(found["year"]) == 2:  # from 50 years before to 49 after Joda's pivot, which is 30 years before now
        pivot = datetime.now(UTC).year - 30
        year += (pivot - 50 - year + 99) // 100 * 100
    hour = int(found.get("hour", 0))
    if "hour12" in found:
        hour = int(found["hour12"])
        if not 1 <= hour <= 12:
            raise Unreadable(f"{text!r}: there is no hour {hour:02d} on the 12-hour clock that hh means; HH reads it")
        if "half" in found:
            hour = hour % 12 + (12 if found["half"].upper() == "PM" else 0)
        elif hour == 12:
            raise Unreadable(f"{text!r}: 12 on the 12-hour clock may be noon or midnight; HH reads it")
    month = _MONTHS.index(found["monthname"].title()) + 1 if "monthname" in found else int(found.get("month", 1))
    fraction = int(found.get("fraction", "0").ljust(6, "0")[:6])
    try:
        if "yearday" in found:
            dated = datetime.strptime(f"{year:04d} {int(found['yearday']):03d}", "%Y %j")
            month, day = dated.month, dated.day
        else:
            day = int(found.get("day", 1))
        moment = datetime(
            year, month, day, hour, int(found.get("minute", 0)), int(found.get("second", 0)), fraction, zone
        )
    except ValueError as error:
        raise Unreadable(f"{text!r}: {error}") from None
    if moment.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != moment.replace(tzinfo=None):
        raise Unreadable(f"{text!r}: the clocks of {zone} skip this hour")
    return moment


def _writer(tokens: list[tuple[str, str, int]]) -> Callable[[datetime], str]:
    def one(name: str, text: str, size: int, moment: datetime) -> str:
        values = {
            "year": moment.year % 100 if size == 2 else moment.year,
            "month": moment.month,
            "day": moment.day,
            "hour": moment.hour,
            "hour12": moment.hour % 12 or 12,
            "minute": moment.minute,
            "second": moment.second,
            "yearday": moment.timetuple().tm_yday,
        }
        match name:
            case "":
                return text
            case "monthname":
                return _MONTHS[moment.month - 1]
            case "half":
                return "AM" if moment.hour < 12 else "PM"
            case "fraction":
                return f"{moment.microsecond:06d}".ljust(size, "0")[:size]
            case _:
                return f"{values[name]:0{size}d}"

    return lambda moment: "".join(one(*token, moment) for token in tokens)


# ---- lookback --------------------------------------------------------------------------------------------------------
# Periods as policies write them: `7d`, `1y2M`, or ISO 8601 (`P30D`). Pure.


_SHORT = re.compile(r"(?:(\d+)y)?(?:(\d+)M)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?", re.ASCII)
_LONGEST = 10_000 * 12  # months: what a date can hold


def parse_lookback(text: str) -> Period:
    """Parses `<n>y<n>M<n>d<n>h`, in this order, also with `D`, `H` and `Y`; or ISO 8601 in capitals (`P7D`, `PT90M`).
    Raises ValueError, with a message for the user, for anything else, including zero, empty and negative periods: each
    would select everything."""
    found = parse_period(text) if text.startswith("P") and text.isupper() else _short(text)
    if min(found.months, found.days, found.seconds) < 0 or not (found.months or found.days or found.seconds):
        raise ValueError(f"{text!r} is not a positive period, so everything would be older")
    if found.months > _LONGEST or found.days > _LONGEST * 31 or found.seconds > _LONGEST * 31 * 86400:
        raise ValueError(f"{text!r} is longer than the supported maximum")
    return found


def _short(text: str) -> Period:
    spelled = text.replace("Y", "y").replace("D", "d").replace("H", "h")
    match = _SHORT.fullmatch(spelled) if spelled else None
    if match is None:
        raise ValueError(f"{text!r} is not a lookback such as 7d, 12h, 3M or 1y6M")
    if match[5]:
        raise ValueError(
            f"{text!r}: m means minutes in some releases and months in others: write PT{match[5]}M or {match[5]}M"
        )
    years, months, days, hours = (int(group or 0) for group in match.groups()[:4])
    return Period(text, years * 12 + months, days, hours * 3600)


def fixed(lookback: Period) -> Period:
    """Converts months and years to their length from 1970-01-01 on, as the older policies do: P2M is 59 days."""
    start = datetime(1970, 1, 1, tzinfo=UTC)
    length = Period("", lookback.months).after(start) - start
    return Period(lookback.text, 0, 0, int(length.total_seconds()) + lookback.days * 86400 + lookback.seconds)
