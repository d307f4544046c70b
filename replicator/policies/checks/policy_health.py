"""Checks of a policy's health: its databases, the roles of both sides, its slot, its lag, and its last runs; the
results of its verification and its last drill; and objects that runs leave out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from cmroot.log.captured import segments
from cmroot.pins import Pins, find_slot, read_pins
from cmroot.root import FORMAT, ChangeRoot, open_existing
from cmroot.store.place import as_written
from replicator.captures.unlistable import REFUSED
from replicator.core.formats import format_of, is_transactional
from replicator.core.grouping import batched
from replicator.core.not_replicated import AS_THEY_ARE, PROPERTY, NotReplicated, from_property, merged
from replicator.core.policy import Policy, overlaps, same_metastore
from replicator.core.roles import Role, RoleMark
from replicator.core.text import bound_text, count_text, duration_text
from replicator.errors import FormatError, ObjectNotFound
from replicator.metastore.client import MetastoreReader
from replicator.metastore.events.scope import Patterns
from replicator.metastore.transactions import why_without
from replicator.policies.checks import Figure, Finding, Health
from replicator.policies.direction import Pair
from replicator.policies.drill_record import Drill
from replicator.policies.memory import AHEAD, History, RoleChange
from replicator.policies.status import Status

PERIODS_WARNING, PERIODS_CRITICAL = 2, 4  # schedules without a run that succeeded
NEAR = 0.75  # share of `max_lag` from which lag is a warning


# The scope


def judge_databases(policy: Policy, pairs: Sequence[Pair], renamed: Sequence[Pair] = ()) -> list[Finding]:
    """Checks the policy's databases. renamed: replicas under former names of `rename_db`."""
    names = [pair.name for pair in pairs if pair.source is not None and pair.matches]
    if not names:
        return [
            Finding(
                "databases",
                "critical",
                f"no database of the source matches {', '.join(policy.databases)}",
                "patterns match entire database names",
            )
        ]
    found = [Finding("databases", "ok", _listed(names), figures=(Figure("databases", len(names)),))]
    missing = sorted(set(policy.rename_db) - set(names))
    if missing:
        hint = "fix `rename_db`, or remove the line"
        found.append(Finding("rename_db", "warning", f"not at the source: {_listed(missing)}", hint))
    left = [pair.name for pair in pairs if not pair.matches or pair.source is None]
    left += [f"{pair.name} as {pair.replica}" for pair in renamed]
    if left:
        text = f"replicated before, but no longer in the policy or no longer at the source: {_listed(left)}"
        hint = "a plan shows what the next run would drop; it drops only with consent"
        found.append(Finding("scope", "warning", text, hint))
    return found


def judge_filters(policy: Policy, source: MetastoreReader) -> list[Finding]:
    """Checks that each partition filter uses keys that its table has."""
    found = []
    for name, wanted in policy.partitions.items():
        db, _, table = name.partition(".")
        try:
            keys = [key.name for key in source.table(db, table).partition_keys]
        except ObjectNotFound:
            found.append(Finding(f"partitions {name}", "warning", "the source has no such table", "fix its name"))
            continue
        unknown = wanted.unknown_keys(keys)
        if unknown:
            text = f"not a partition key: {', '.join(unknown)}; the table has {', '.join(keys) or 'none'}"
            found.append(Finding(f"partitions {name}", "critical", text, "a filter may use only partition keys"))
    return found


def judge_target(pairs: Sequence[Pair], target: MetastoreReader, root_id: str | None) -> list[Finding]:
    """Checks that the target's databases of the replicas' names are this policy's. root_id: of the source's
    `$cmroot`."""
    foreign, strange = [], []
    for pair in pairs:
        if pair.target is None or not pair.matches:
            continue
        if pair.made_from is not None and pair.made_from != root_id:
            foreign.append(f"{pair.replica} (from {pair.made_from})")
        elif pair.made_from is None and target.table_names(pair.replica):
            strange.append(pair.replica)
    found = []
    if foreign:
        found.append(
            Finding(
                "replicas",
                "critical",
                f"created from another cmroot: {_listed(foreign)}",
                "name the cmroot that they were created from, or drop them at the target",
            )
        )
    if strange:
        found.append(
            Finding(
                "replicas",
                "warning",
                f"not created by replication, and not empty: {_listed(strange)}",
                "`sync --adopt` adopts them: equal files are kept, others are moved to target_cmroot; without it the "
                "run is refused. If this is not intended, give the replicas other names with `rename_db`",
            )
        )
    return found or [
        Finding("replicas", "ok", "the target's databases of these names belong to this policy, or do not exist")
    ]


def judge_overlaps(policy: Policy, others: Iterable[Policy], existing: dict[str, list[str]]) -> list[Finding]:
    """Checks for overlaps. existing: databases by source URI. Policies whose source does not answer are unknown."""
    beside = [other for other in others if other.name != policy.name and same_metastore(policy.target, other.target)]
    found = [
        Finding(
            "overlap",
            "unknown",
            f"policy {other.name}: its source {other.source} does not answer",
            "check that policy, too",
        )
        for other in beside
        if other.source_key not in existing
    ]
    for other in beside:
        for overlap in overlaps([policy, other], existing):
            hint = "give them other `databases`, or another name on the target with `rename_db`"
            found.append(Finding("overlap", "critical", str(overlap), hint))
    return found or [Finding("overlap", "ok", "no other policy writes these databases")]


# Roles


def judge_roles(pairs: Sequence[Pair]) -> list[Finding]:
    found = []
    for pair in pairs:
        try:
            here, there = pair.source_mark, pair.target_mark
        except FormatError as error:
            found.append(Finding(f"role {pair.name}", "critical", error.message, error.hint))
            continue
        health, text, hint = judge_marks(here, there)
        if health != "ok":
            found.append(Finding(f"role {pair.name}", health, text, hint))
    if found:
        return found
    reported = sorted({judge_marks(pair.source_mark, pair.target_mark)[1] for pair in pairs})
    return [Finding("roles", "ok", "; ".join(reported) or "no database")]


def judge_marks(here: RoleMark, there: RoleMark) -> tuple[Health, str, str]:
    """Returns (health, text, hint) for the roles of one database at source and target."""
    text = f"source {here}, target {there}"
    match here.role, there.role:
        case Role.PRIMARY, Role.PRIMARY:
            return "critical", f"two primaries: {text}", "stop writing to one; failback makes it a replica"
        case Role.REPLICA, Role.PRIMARY:
            return "ok", f"reverse direction: {text}", ""
        case Role.FENCED, Role.PRIMARY:
            return "warning", f"failed over: {text}", "failback makes the old source a replica"
        case Role.NONE, Role.PRIMARY:
            return "critical", f"the target is a primary: {text}", "swap source and target, or `replicator role set`"
        case _, Role.FENCED:
            return "critical", f"the target is fenced: {text}", "finish the switchover or failback by running it again"
        case Role.FENCED, _:
            return "critical", f"no side is the primary: {text}", "finish the switchover by running it again"
        case Role.REPLICA, _:
            hint = "replicate from the primary, or set the roles with `replicator role set`"
            return "critical", f"the source is a replica: {text}", hint
    if here.epoch < there.epoch:
        return "critical", f"the target has a later epoch: {text}", "the side with the higher epoch is valid"
    if here.role is Role.NONE and there.role is Role.NONE:
        return "ok", "no roles yet: the first run sets them", ""
    return "ok", text, ""


# The slot


def root_of(place: str) -> ChangeRoot | None:
    """Returns the root, or None if it does not exist yet. Raises FormatError for one that cannot be read."""
    return open_existing(place) if (as_written(place) / FORMAT).exists() else None


def captured_event(root: ChangeRoot | None) -> int | None:
    """Returns the id of the last event in the captured log; None if nothing was captured."""
    log = segments(root.place) if root is not None else []
    event = log[-1].metadata.get("event") if log else None
    return event if isinstance(event, int) else None


def judge_slot(policy: Policy, root: ChangeRoot | None, pairs: Sequence[Pair]) -> list[Finding]:
    if root is None:
        return [Finding("slot", "ok", "the cmroot does not exist yet: the first run creates it and the slot")]
    pins: Pins = read_pins(root.place)
    found = []
    if pins.damaged:
        found.append(
            Finding(
                "pins",
                "critical",
                f"damaged: {_listed(pins.damaged)}",
                "nothing expires until they are restored from a copy of the root, or dropped by name",
            )
        )
    if any(place.rpartition("/")[2] == policy.slot and "/slots/" in place for place in pins.damaged):
        return found
    slot = find_slot(root.place, policy.slot)
    replicated = any(pair.position is not None for pair in pairs)
    if slot is None and replicated:
        found.append(
            Finding(
                "slot",
                "warning",
                f"slot {policy.slot} does not exist: files that the target needs next may expire",
                "the next run creates it, with a bootstrap that copies only differences",
            )
        )
    elif slot is None:
        found.append(Finding("slot", "ok", f"{policy.slot} does not exist yet: the first run creates it"))
    elif slot.given_up:
        text = f"{slot.name} was invalidated at {slot.given_up}: files that it needed may have been deleted"
        hint = f"`replicator cm slots drop {slot.name}`, then run the policy: it bootstraps, copying only differences"
        found.append(Finding("slot", "critical", text, hint))
    elif slot.awaits:
        found.append(Finding("slot", "ok", f"{slot.name} awaits {slot.awaits}"))
    else:
        found.append(Finding("slot", "ok", f"{slot.name} at event {slot.event}, confirmed {slot.confirmed}"))
    return found


# Lag and runs


def judge_lag(policy: Policy, reports: Sequence[Status]) -> Finding:
    """Checks the largest lag of the databases, by its upper bound; those that were not replicated yet have none."""
    behind = [report for report in reports if report.lag_seconds is not None]
    if not behind:
        return Finding("lag", "ok", "nothing is replicated yet: the first run bootstraps")
    most = max(behind, key=_bound)
    lag, limit = _bound(most), policy.max_lag.total_seconds() if policy.max_lag else None
    uncovered = [report.db for report in behind if report.lag_seconds_bound is None]
    figures = (
        Figure("lag", lag, "s", limit and limit * NEAR, limit),
        Figure("lag_events", max(report.lag_events or 0 for report in behind)),
    )
    if uncovered and (limit is None or lag <= limit):
        text = f"no complete scan covers {_listed(uncovered)}: changes without an event are not counted"
        return Finding("lag", "unknown", text, "run the policy without --no-scan", figures)
    text = f"at most {bound_text(lag)}, {count_text(most.lag_events or 0, 'event')} ({most.db})"
    if limit is not None and lag > limit:
        hint = "check whether runs fail or take too long"
        return Finding("lag", "critical", f"{text}; max_lag is {duration_text(limit)}", hint, figures)
    if limit is not None and policy.schedule.total_seconds() > limit:
        text = f"max_lag is {duration_text(limit)}, but a run begins only every "
        text += duration_text(policy.schedule.total_seconds())
        return Finding("lag", "warning", text, "run more often, or allow more lag", figures)
    if limit is not None and lag > limit * NEAR:
        return Finding("lag", "warning", f"{text}; max_lag is {duration_text(limit)}", "run the policy soon", figures)
    return Finding("lag", "ok", text, figures=figures)


def _bound(report: Status) -> float:
    return report.lag_seconds or 0.0 if report.lag_seconds_bound is None else report.lag_seconds_bound


def judge_runs(history: History, *, schedule: timedelta, now: float) -> Finding:
    """Checks that runs take place and succeed."""
    if history.damaged:
        text = f"damaged records: {_listed(history.damaged)}"
        return Finding("last run", "warning", text, "remove them: only these entries of the history are lost")
    ended = [run for run in history.runs if run.status != "running"]
    if not ended:
        return Finding("last run", "ok", "the first run is in progress" if history.runs else "none yet")
    period, success = schedule.total_seconds(), history.last_done
    hint = "run `replicator sync` manually and read its output"
    last = ended[0]
    failed = "" if last.status == "done" else f"; the last {last.status}: {last.error or 'no error was recorded'}"
    if success is None:
        return Finding("last run", "critical", f"none of {len(history.runs)} runs succeeded{failed}", hint)
    done = success.ended or success.started
    if _seconds(done) > now + AHEAD:
        text = f"the only success is of {done}, in the future{failed}"
        return Finding("last run", "warning", text, "check the clocks of the hosts that run the policy")
    age = max(0.0, now - _seconds(done))
    figure = Figure("since_success", age, "s", period * PERIODS_WARNING, period * PERIODS_CRITICAL)
    late: Health = "warning" if age > period * PERIODS_WARNING or failed else "ok"
    health: Health = "critical" if age > period * PERIODS_CRITICAL else late
    text = f"succeeded {duration_text(age)} ago, the schedule is {duration_text(period)}{failed}"
    return Finding("last run", health, text, "" if health == "ok" else hint, (figure,))


def judge_role_change(change: RoleChange | None) -> list[Finding]:
    """Reports a role change that is not completed."""
    if change is None or change.ended:
        return []
    waits = change.waiting[0].name if change.waiting else "its end"
    text = f"{change.verb} began at {change.started} and waits at {waits}"
    return [Finding("turn", "critical", text, f"run `replicator {change.verb}` again: it continues where it stopped")]


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


# ---- proofs of the replicas ------------------------------------------------------------------------------------------


NAMED = 10  # tables reported by name
PERIODS = 4  # schedules without a comparison before a warning
AT_LEAST = timedelta(hours=1)  # comparing one large table takes longer than some schedules


def judge_verified(policy: Policy, history: History, *, now: float) -> list[Finding]:
    """Evaluates the newest verification, with ages as of now: the wait of a table at the end of the last comparison
    plus the time since. Warns if comparisons have stopped."""
    if policy.verify is None:
        return []
    run, found = next(((run, run.compared) for run in history.runs if run.compared), (None, None))
    if run is None or found is None:
        return [Finding("verified", "ok", "nothing yet")]
    age = max(0.0, now - datetime.fromisoformat(found.ended or run.ended or run.started).timestamp())
    waits = found.oldest + age if found.oldest is not None else None
    limit = max(AT_LEAST, policy.schedule * PERIODS).total_seconds()
    figures = (
        Figure("different", found.open_count, critical=0),
        Figure("never_verified", found.never),
        Figure("longest_unverified", waits or 0.0, "s"),
        Figure("since_verified", age, "s", limit),
    )
    if found.open_count:
        names = ", ".join(found.open) if found.open_count <= NAMED else f"{count_text(found.open_count, 'table')}"
        text = f"differs from the source, and not because of the lag: {names}"
        hint = "first find out what wrote to it; then `replicator repair` copies the differences"
        return [Finding("verified", "critical", text, hint, figures)]
    text = f"no difference; {found.never} of {found.tables} never compared"
    text += f", the longest unverified for {duration_text(waits)}" if waits is not None else ""
    if age > limit:
        hint = "check whether `replicator sync --follow` still runs, and see `replicator history`"
        text = f"nothing has been compared for {duration_text(age)}; before that {text}"
        return [Finding("verified", "warning", text, hint, figures)]
    return [Finding("verified", "ok", text, "", figures)]


def judge_drills(drills: Sequence[Drill], *, now: float) -> list[Finding]:
    """Evaluates the drills. `drills`: newest first. Their required frequency is up to the operator."""
    ended = [drill for drill in drills if drill.status != "running"]
    if not ended:
        return []
    last, good = ended[0], next((drill for drill in ended if drill.status == "done"), None)
    reported, figures = "no drill succeeded", tuple[Figure, ...]()
    if good is not None:
        age = max(0.0, now - datetime.fromisoformat(good.ended or good.started).timestamp())
        first = good.first_answer_seconds
        reported = f"the last successful drill was {duration_text(age)} ago"
        reported += f", its first answer after {duration_text(first)}" if first is not None else ", no query was run"
        figures = (Figure("since_drill", age, "s"), Figure("first_answer", first or 0.0, "s"))
    if last.status != "done":
        hint = f"`replicator drill {last.policy} --list` shows it; run it again"
        why = last.error or "a query failed or its count differed"
        text = f"the drill of {last.started[:16]} {last.status}: {why}; {reported}"
        return [Finding("drill", "warning", text, hint, figures)]
    if last.kept and not last.torn_down:
        reported += f"; its shadows are kept: {', '.join(last.databases.values())}"
    return [Finding("drill", "ok", reported, "", figures)]


# ---- missing objects -------------------------------------------------------------------------------------------------
# Objects that the last load of a replica reported as not replicated.


def said_lacking(pairs: Iterable[Pair]) -> list[NotReplicated]:
    """Reads them from the properties of a policy's replicas, which are available already."""
    return merged(
        *(
            from_property(each.target.parameters.get(PROPERTY), each.name)
            for each in pairs
            if each.target and each.matches
        )
    )


def judge_lacking(said: Sequence[NotReplicated], left_out: int = 0) -> Finding:
    """Evaluates missing objects. `said`: without tables in unsupported formats, which have a finding of their own;
    `left_out`: their number."""
    figures = (Figure("lacking", len(said)),)
    if not said:
        whole = f"all replicas are complete but for {count_text(left_out, 'table')} in other formats"
        return Finding("not replicated", "ok", whole if left_out else "all replicas are complete", figures=figures)
    shown = "; ".join(map(str, said[:NAMED])) + (f" and {len(said) - NAMED} more" if len(said) > NAMED else "")
    hint = "make missing data available (or declare it empty: capture with --empty), fix names, then run again"
    return Finding("not replicated", "warning", f"as of the last load: {shown}", hint, figures)


# ---- unsupported -----------------------------------------------------------------------------------------------------
# Tables in formats that runs leave out, and replicas of such tables made by an earlier release.


LOOKED_AT = 20_000  # tables of a policy: some 10 s, while the user waits
BATCH = 500


def find_left_out(
    policy: Policy, pairs: Iterable[Pair], source: MetastoreReader, target: MetastoreReader
) -> tuple[list[NotReplicated], int]:
    """Returns tables that runs leave out, as far as metastores tell, and how many were not checked."""
    if policy.formats == AS_THEY_ARE:
        return [], 0
    without = why_without(source, target)
    patterns, found, looked, names_left = Patterns.parse(policy.include, policy.exclude), [], 0, 0
    for pair in pairs:
        if pair.source is None or not pair.matches:
            continue
        names = [name for name in source.table_names(pair.name) if patterns.match(name)]
        here = names[: LOOKED_AT - looked]
        looked, names_left = looked + len(here), names_left + len(names) - len(here)
        for some in batched(here, BATCH):
            refused: dict[str, str] = {}
            for table in source.tables(pair.name, some, refused):
                if reason := (is_transactional(table) and without) or format_of(table).why_left_out(table):
                    found.append(NotReplicated(f"{table.db}.{table.name}", reason))
            found += [NotReplicated(f"{pair.name}.{name}", f"{REFUSED}: {said}") for name, said in refused.items()]
    return found, names_left


def judge_formats(
    left_out: Sequence[NotReplicated], unseen: int, pairs: Iterable[Pair], target: MetastoreReader
) -> list[Finding]:
    """Evaluates tables in unsupported formats. `unseen`: tables that were not checked."""
    more, figures = f"; {unseen} tables were not checked" if unseen else "", (Figure("not_replicated", len(left_out)),)
    if not left_out:
        return [Finding("formats", "ok", f"every table can be replicated{more}", figures=figures)]
    hint = "exclude them, so that runs are complete without them, and copy them with their own tools"
    shown = f"not replicated: {_listed_objects([*map(str, left_out)])}{more}"
    findings, made = [Finding("formats", "warning", shown, hint, figures)], list[str]()
    for pair in pairs:
        names = [each.object.partition(".")[2] for each in left_out if each.object.startswith(f"{pair.name}.")]
        tables = target.tables(pair.replica, names) if names and pair.target is not None else []
        made += [f"{table.db}.{table.name}" for table in tables]
    if made:
        hint = "drop them on the target without their data (no PURGE, which would delete the source's files)"
        text = f"tables that are not replicas, created by an earlier release or otherwise: {_listed_objects(made)}"
        findings.append(Finding("formats", "critical", text, hint))
    return findings


def _listed_objects(names: Sequence[str]) -> str:
    return "; ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
