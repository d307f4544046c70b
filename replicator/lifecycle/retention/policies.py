"""Policies: which versions of a dataset are selected, and the reason as a sentence with the bound. Pure.

"Selected" means: acted upon. Under `selection.policy.class`, and under the older policies of
`gobblin.retention.retention.policy.class`, selected versions are removed. Comparisons are strict: a version exactly as
old as the lookback is neither before nor after.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cmroot.store.place import split_authority
from replicator.core.text import Period
from replicator.errors import ConfigError
from replicator.lifecycle.retention.config_store import Settings
from replicator.lifecycle.retention.dataset_versions import NONE, TIME, Pair, Version
from replicator.lifecycle.retention.hocon_values import Scalar
from replicator.lifecycle.retention.job_configuration import RETENTIONS, SELECTIONS, fixed, known, parse_lookback

MOST = 1_000_000  # maximum of versions that a newest-K policy may retain or select

Chosen = dict[int, str]
"""Number of the version, newest first -> why it is selected."""


@dataclass(frozen=True)
class Policy:
    """A selection policy. `needs`: the required sort key of versions: TIME, "order" (any) or "" (none required)."""

    needs: str
    choose: Callable[[Sequence[Version], datetime], Chosen]

    def select(self, versions: Sequence[Version], by: str, now: datetime) -> Chosen:
        """Selects versions, sorted newest first. Raises ConfigError if the policy cannot evaluate such versions."""
        if (self.needs == TIME and by != TIME) or (self.needs == "order" and by == NONE):
            raise ConfigError(
                "the policy needs versions with a time, but the version finder provides none",
                hint="choose a version finder that reads times, or another policy",
            )
        return self.choose(versions, now)


def selection_policy(pair: Pair, name: str | None = None) -> Policy:
    """Returns the policy named by `selection.policy.class`; without one, nothing is selected. `name`: another class,
    for the same settings. Raises ConfigError, with file and line, for invalid settings."""
    key = "selection.policy.class"
    text = name if name is not None else pair.own.text(key)
    if text is None:
        return Policy("", lambda versions, now: {})
    match known(text, SELECTIONS, "selection policy", pair.own.origin(key)):
        case "before":
            back = pair.lookback("selection.timeBased.lookbackTime")
            return Policy(TIME, lambda versions, now: before(versions, back, now))
        case "after":
            back = pair.lookback("selection.timeBased.lookbackTime")
            return Policy(TIME, lambda versions, now: _between(versions, None, back, now))
        case "between":
            least, most = (_optional(pair, f"selection.timeBased.{end}LookbackTime") for end in ("min", "max"))
            return Policy(TIME, lambda versions, now: _between(versions, least, most, now))
        case "newest":
            return _newest(pair)
        case "combine":
            return _combined(pair)
        case "hidden":
            prefixes = pair.own.texts("selection.hiddenFilter.hiddenFilePrefix") or [".", "_"]
            return Policy("", lambda versions, now: _unhidden(versions, prefixes))
        case "all":
            return Policy(
                "", lambda versions, now: dict.fromkeys(range(len(versions)), "SelectAllPolicy selects everything")
            )
        case _:
            return Policy("", lambda versions, now: {})


def before(versions: Sequence[Version], back: Period, now: datetime) -> Chosen:
    found = {}
    for number, each in enumerate(versions):
        assert each.time
        bound = back.after(each.time)
        if bound < now:
            found[number] = f"{reported(each.time)} + {back.text} = {reported(bound)} is before {reported(now)}"
    return found


def _between(versions: Sequence[Version], least: Period | None, most: Period | None, now: datetime) -> Chosen:
    """Selects versions older than `least` (None: not in the future) and younger than `most` (None: since 1970)."""
    found = {}
    for number, each in enumerate(versions):
        assert each.time
        end = most.after(each.time) if most else None
        if (end > now if end else each.time > _EPOCH) and (least.after(each.time) if least else each.time) < now:
            younger = (
                f"{reported(each.time)} + {most.text} is after {reported(now)}" if most else f"{reported(each.time)}"
            )
            found[number] = younger + (f", and + {least.text} is before it" if least else " is in the past")
    return found


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _optional(pair: Pair, key: str) -> Period | None:
    """Returns a bound that may be missing; zero is no bound."""
    text = pair.own.text(key)
    if text is None or re.fullmatch(r"0[ymdhYMDH]|PT0S", text):
        return None
    return pair.lookback(key)


def _newest(pair: Pair) -> Policy:
    taken = _count(pair, "selection.newestK.versionsSelected")
    left = _count(pair, "selection.newestK.versionsNotSelected")
    if (taken is None) == (left is None):
        state = "neither" if taken is None else "both"
        raise ConfigError(
            f"{pair.own.name}: sets {state} of selection.newestK.versionsSelected and versionsNotSelected",
            hint="write versionsNotSelected = K to keep the newest K",
        )
    if left is not None:
        return Policy("order", lambda versions, now: beyond(versions, left))
    return Policy("order", lambda versions, now: _first(versions, taken or 0))


def _count(pair: Pair, key: str) -> int | None:
    found = pair.own.number(key)
    if found is not None and not 1 <= found <= MOST:
        raise pair.own.wrong(key, pair.own.find(key), f"is {found}, not between 1 and {MOST:,}")
    return found


def beyond(versions: Sequence[Version], left: int) -> Chosen:
    return {
        number: f"number {number + 1} of {len(versions)}, newest first; the newest {left} are kept"
        for number in range(left, len(versions))
    }


def _first(versions: Sequence[Version], taken: int) -> Chosen:
    return {
        number: f"number {number + 1} of {len(versions)}, newest first; the newest {taken} are selected"
        for number in range(min(taken, len(versions)))
    }


def _combined(pair: Pair) -> Policy:
    key = "selection.combine.policy.classes"
    names = pair.own.texts(key)
    if not names:
        raise pair.own.wrong(key, pair.own.find(key), "names no policy to combine")
    return combine(
        [selection_policy(pair, name) for name in names],
        pair.own.required("selection.combine.operation"),
        pair.own.name,
    )


def combine(policies: Sequence[Policy], operation: str, where: str) -> Policy:
    """Combines policies. UNION: versions that any policy selects; INTERSECT: versions that all select."""
    if operation.upper() not in ("UNION", "INTERSECT"):
        raise ConfigError(f"{where}: {operation!r} is not an operation", hint="write UNION or INTERSECT")
    needs = TIME if any(each.needs == TIME for each in policies) else "order" if any(p.needs for p in policies) else ""

    def choose(versions: Sequence[Version], now: datetime) -> Chosen:
        found = [each.choose(versions, now) for each in policies]
        wanted = (
            set(found[0]).union(*found[1:]) if operation.upper() == "UNION" else set(found[0]).intersection(*found[1:])
        )
        joined = {number: [each[number] for each in found if number in each] for number in sorted(wanted)}
        return {number: "; and ".join(reasons) for number, reasons in joined.items()}

    return Policy(needs, choose)


def _unhidden(versions: Sequence[Version], prefixes: Sequence[str]) -> Chosen:
    found = {}
    for number, each in enumerate(versions):
        names = split_authority(each.path)[1].split("/")
        if not any(name.startswith(prefix) for name in names for prefix in prefixes):
            found[number] = f"no name of its path begins with {' or '.join(prefixes)}"
    return found


def reported(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


# ---- older policies --------------------------------------------------------------------------------------------------


def retention_policy(whole: Settings, name: str | None = None) -> Policy:
    """Returns an older policy, whose selection is removed, too. Raises ConfigError."""
    key = "gobblin.retention.retention.policy.class"
    text = name if name is not None else whole.required(key)
    match known(text, RETENTIONS, "retention policy", whole.origin(key)):
        case "time":
            back = _legacy_duration(whole)
            return Policy(TIME, lambda versions, now: before(versions, back, now))
        case "newest":
            keys = ("gobblin.retention.versions.retained", "gobblin.retention.newestK.versions.retained")
            left = whole.number(*keys)
            if left is None:
                raise whole.missing(keys[1])
            if not 1 <= left <= MOST:
                raise whole.wrong(keys[1], whole.find(*keys), f"is {left}, not between 1 and {MOST:,}")
            return Policy("order", lambda versions, now: beyond(versions, left))
        case "combine":
            return _legacy_combined(whole)
        case "all":
            return Policy("", lambda versions, now: dict.fromkeys(range(len(versions)), "DeleteAllRetentionPolicy"))
        case "predicate":
            return _predicate(whole)
        case _:
            return Policy("", lambda versions, now: {})


def _legacy_duration(whole: Settings) -> Period:
    keys = ("gobblin.retention.timebased.duration", "gobblin.retention.minutes.retained")
    text, minutes = whole.text(keys[0]), whole.number(keys[1])
    try:
        if text is not None:
            return fixed(parse_lookback(text))
        if minutes is None:
            raise whole.missing(keys[0])
        if minutes <= 0:
            raise ValueError(f"{minutes} minutes are not a positive period, so everything would be older")
        return Period(f"{minutes} minutes", seconds=minutes * 60)
    except ValueError as error:
        raise whole.wrong(keys[0], whole.find(*keys), f"is not a valid duration: {error}") from error


def _legacy_combined(whole: Settings) -> Policy:
    prefix = "gobblin.retention.combine."
    names = whole.texts(f"{prefix}retention.policy.classes") or []
    listed = whole.below("gobblin.retention.combine.retention.policy.class")
    names += [value.text for _, value in listed.leaves() if isinstance(value, Scalar)] if listed else []
    if not names:
        raise whole.missing(f"{prefix}retention.policy.classes")
    operation = whole.required(f"{prefix}retention.policy.delete.sets.combine.operation")
    return combine([retention_policy(whole, name) for name in names], operation, whole.name)


def _predicate(whole: Settings) -> Policy:
    """Returns the only predicate that Gobblin shipped: paths that match the pattern are retained."""
    key, pattern = (
        "org.apache.gobblin.retention.retention.policy.predicate.class",
        "gobblin.retention.retention.whitelist.pattern",
    )
    if whole.required(key).rpartition(".")[2] != "WhitelistPredicate":
        raise whole.wrong(key, whole.find(key), "is not a known predicate; only WhitelistPredicate is")
    try:
        wanted = re.compile(whole.required(pattern))
    except re.error as error:
        raise whole.wrong(pattern, whole.find(pattern), f"is not a valid regular expression: {error}") from error
    why = f"{wanted.pattern} is not found in its path"
    return Policy("", lambda versions, now: {n: why for n, each in enumerate(versions) if not wanted.search(each.path)})
