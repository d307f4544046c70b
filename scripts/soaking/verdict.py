"""What is claimed of a service's day, and whether it holds: the day as its witnesses saw it. Pure but for its words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.measure import Outcome

from soaking.witness import Kill, Processes, Run, begun_meanwhile, gaps, lacking, overlapping, unexplained

MINUTE = 60.0
LATE = 75.0  # seconds that a run may be due and not queued: a lease, and a step
WAITS = 60.0  # seconds that a run may wait for its place
STEP = 5.0  # seconds that a step of the scheduler may have been at work when a job was paused
BLIND = 2.0  # seconds: the longest that nobody may have looked at the processes
WRITES = 0.2  # a second: the fewest
PAUSED, NEVER = "p00", "away"
"""A policy that is paused for a while; one whose target never answers."""

KINDS = (
    "run",
    "server that schedules",
    "store, stopped",
    "server that waits",
    "store, frozen",
    "server, stopped by SIGTERM",
)
"""Kinds of kills; each has to come."""


@dataclass
class Day:
    """What happened. `wrong`: claims that do not hold; empty: it passed. `leaderless`: seconds from each end of who
    scheduled to another that did. `paused`: from when till when a policy was."""

    seconds: float = 0.0
    seed: int = 0
    policies: int = 0
    period: float = 0.0
    runs: dict[str, int] = field(default_factory=dict)
    missed: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    kills: dict[str, int] = field(default_factory=dict)
    leaderless: list[float] = field(default_factory=list)
    paused: tuple[float, float] | None = None
    writes: int = 0
    processes: int = 0
    looks: int = 0
    blind: float = 0.0
    wrong: list[str] = field(default_factory=list)


def judge(
    day: Day,
    runs: Sequence[Run],
    kills: Sequence[Kill],
    processes: Processes,
    periods: Mapping[str, float],
    between: tuple[float, float],
) -> None:
    """Puts what does not hold into `day.wrong`. runs: as they were queued. periods: of the jobs, in seconds. between:
    when the service began, and was last seen at work."""
    day.runs, day.missed = dict(Counter(each.state for each in runs)), sum(each.missed for each in runs)
    day.reasons = dict(
        Counter(f"{each.state}: {short(each.message)}" for each in runs if each.ended and each.state != "done")
    )
    day.processes, day.looks = sum(map(len, processes.seen.values())), processes.looks
    day.blind = round(processes.blind, 2)
    day.wrong += [f"twice at once: {each}" for each in [*processes.twice, *overlapping(runs)]]
    day.wrong += [f"not as expected: {each}" for each in unexplained(runs, kills, NEVER, between[1] - WAITS)]
    for job, period in periods.items():
        patience = LATE + WAITS + (period == 1.0) * MINUTE
        found = gaps([each for each in runs if each.job == job], period, *between, patience)
        day.wrong += [f"not accounted for: {job}: {each}" for each in found]
    day.wrong += _lacks(day, runs)
    if day.paused:
        since, until = day.paused
        of_paused = [each for each in runs if each.job == PAUSED]
        day.wrong += begun_meanwhile(of_paused, since, until, STEP)


def _lacks(day: Day, runs: Sequence[Run]) -> list[str]:
    """What has to have happened, else the day proves nothing."""
    found = [f"never killed: {each}" for each in lacking(KINDS, day.kills)]
    if not any(each.state == "failed" and each.exit_code in (-9, 137) for each in runs):
        found.append("no run failed as it was killed")
    if not any(each.state == "failed" for each in runs if each.job == NEVER):
        found.append(f"{NEVER} did not fail")
    if day.writes < WRITES * day.seconds:
        found.append(f"only {day.writes} writes")
    if not day.processes or day.blind > BLIND:
        found.append(f"{day.looks} looks saw {day.processes} processes of runs; none for {day.blind} s")
    if any(each > MINUTE for each in day.leaderless):
        found.append(f"nobody scheduled for {max(day.leaderless)} s")
    if day.paused is None or day.paused[1] - day.paused[0] < day.period + STEP:
        found.append(f"{PAUSED} was not paused and resumed, or for less than its period")
    return found


def short(message: str) -> str:
    return message.partition(": ")[0][:60] if "took longer" not in message else message[:60]


def outcome_of(day: Day) -> Outcome:
    """A line for each claim; what does not hold is below."""
    outcome = Outcome(["claim", "found", "wanted", ""])

    def claim(what: str, found: str, wanted: str, holds: bool) -> None:
        outcome.rows.append([what, found, wanted, "met" if holds else "missed"])

    def none(of: str) -> bool:
        return not any(each.startswith(of) for each in day.wrong)

    kills, longest = listed(day.kills), max(day.leaderless, default=0.0)
    claim("kills", kills, "each kind", not lacking(KINDS, day.kills))
    claim("nobody schedules after a kill", f"at most {longest:.0f} s", f"at most {MINUTE:.0f} s", longest <= MINUTE)
    since, until = day.paused or (0.0, 0.0)
    claim("a paused policy begins no run", f"{until - since:.0f} s", f"more than {day.period:.0f} s", none(PAUSED))
    looks = f"{day.looks:,} looks at {day.processes:,} processes, none for at most {day.blind:.2f} s"
    claim("one run at once", looks, f"none for at most {BLIND:.0f} s", none("twice") and day.blind <= BLIND)
    runs = f"{sum(day.runs.values()):,} runs, which missed {day.missed:,} times"
    claim("every time of a schedule has a run", runs, "each once", none("not accounted for"))
    claim("every bad end has its reason", listed(day.reasons) or "none", "kills, and what is away", none("not as"))
    claim("replicas", f"{day.writes:,} changes", "the same in the end", none("not the same"))
    outcome.remarks.append(
        f"{day.policies} policies, {day.seconds:.0f} s, seed {day.seed}. Runs: {listed(day.runs)}. "
        f"What does not hold: {'; '.join(day.wrong) or 'nothing'}."
    )
    return outcome


def listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name.replace('|', ' ')}" for name, count in counts.items())
