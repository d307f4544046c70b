"""The older retention policies, named by `gobblin.retention.retention.policy.class`: selected versions are removed.
Pure."""

from __future__ import annotations

import re

from replicator.core.text import Period
from replicator.lifecycle.retention.config.class_names import RETENTIONS, known
from replicator.lifecycle.retention.config.config_store import Settings
from replicator.lifecycle.retention.config.datetimes import fixed, parse_lookback
from replicator.lifecycle.retention.config.hocon.hocon_values import Scalar
from replicator.lifecycle.retention.dataset_versions import TIME
from replicator.lifecycle.retention.selection_policies import MOST, Policy, before, beyond, combine


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
            raise ValueError(f"{minutes} minutes are no time at all, and everything would be older")
        return Period(f"{minutes} minutes", seconds=minutes * 60)
    except ValueError as error:
        raise whole.wrong(keys[0], whole.find(*keys), f"is no duration: {error}") from error


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
        raise whole.wrong(key, whole.find(key), "is no predicate that is known here; WhitelistPredicate is")
    try:
        wanted = re.compile(whole.required(pattern))
    except re.error as error:
        raise whole.wrong(pattern, whole.find(pattern), f"is no regular expression: {error}") from error
    why = f"{wanted.pattern} is not found in its path"
    return Policy("", lambda versions, now: {n: why for n, each in enumerate(versions) if not wanted.search(each.path)})
