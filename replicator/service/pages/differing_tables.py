"""Which tables of a policy differ: from the comparisons of its runs, and of `verify` runs that the service began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from replicator.policies.memory import Compared
from replicator.service.children import answer_of
from replicator.service.run_history import ServiceRun, iso
from replicator.service.web.serving import Serving

NAMED = 5
"""Tables of a sentence."""

PARTS = ("--db", "--table", "--sample", "--level", "--include", "--exclude")
"""Options of a `verify` that does not compare all, or not by contents: that it found nothing says little."""

COMPARED = ("done", "differs")
"""States of a `verify` or `repair` that came to its end."""


@dataclass(frozen=True)
class Differences:
    """Tables that differed when they were compared last. names: the first of them, by name; count: all. at: when, ISO
    8601. run: the service's that found them; empty: a run of the policy has. repaired: when a repair ended since."""

    count: int
    names: tuple[str, ...]
    at: str
    run: str = ""
    repaired: str | None = None


def differ_text(found: Differences) -> str:
    """In words, with the first names."""
    names = ", ".join(found.names[:NAMED])
    more = found.count - min(len(found.names), NAMED)
    which = f": {names}" + (f" and {more} more" if more > 0 else "") if names else ""
    verb = "table differs" if found.count == 1 else "tables differ"
    since = "; a repair has ended since, and nothing was compared after it" if found.repaired else ""
    return f"{found.count:,} {verb} from the source{which}{since}"


def differences_of(serving: Serving, policies: Sequence[str]) -> dict[str, Differences]:
    """By policy; of those that differed. Asks the store once."""
    verifies = {
        each: [f"verify:{each}", *(name for name, job in serving.scheduled.items() if _verifies(job.arguments, each))]
        for each in policies
    }
    names = [name for some in verifies.values() for name in some] + [f"repair:{each}" for each in policies]
    ended = serving.store.newest_ad_hoc_runs(names, COMPARED)
    compared = serving.watch.compared
    found = {}
    for each in policies:
        runs = [ended[name] for name in verifies[each] if name in ended]
        by_runs = [_of_run(serving, run) for run in still_said(runs, compared.get(each))]
        merged = _merged([*by_runs, *([_of_compared(compared[each])] if each in compared else [])])
        if merged.count:
            found[each] = _repaired(merged, ended.get(f"repair:{each}"))
    return found


def still_said(verifies: Sequence[ServiceRun], compared: Compared | None) -> list[ServiceRun]:
    """Those that found differences of which nothing later says that they are gone: neither a whole `verify`, nor runs
    that have compared every table since."""
    since = max((run.ended or 0.0 for run in verifies if run.state == "done" and _is_whole(run)), default=0.0)
    if compared and compared.ended and compared.oldest is not None and not compared.never:
        since = max(since, _seconds(compared.ended) - compared.oldest)
    return [run for run in verifies if run.state == "differs" and (run.ended or 0.0) > since]


def _verifies(arguments: Sequence[str], policy: str) -> bool:
    return tuple(arguments[:2]) == ("verify", policy)


def _is_whole(run: ServiceRun) -> bool:
    return not any(each.startswith(PARTS) for each in run.arguments)


def _of_run(serving: Serving, run: ServiceRun) -> Differences:
    """What a `verify` answered; of one that another server ran only that something differs is known."""
    names = answer_of(serving.directory(run.id)).get("differing")
    differing = tuple(sorted(map(str, names))) if isinstance(names, list) else ()
    return Differences(max(len(differing), 1), differing, iso(run.ended) or "", run.id)


def _of_compared(compared: Compared) -> Differences:
    names = tuple(dict.fromkeys([*compared.open, *compared.differing]))
    return Differences(max(compared.open_count, len(names)), names, compared.ended)


def _merged(parts: Sequence[Differences]) -> Differences:
    """All of several, as at the newest."""
    some = [each for each in parts if each.count]
    if not some:
        return Differences(0, (), "")
    newest = max(some, key=lambda each: _seconds(each.at))
    names = tuple(sorted({name for each in some for name in each.names}))
    run = next((each.run for each in some if each.run), "")
    return Differences(max(len(names), *(each.count for each in some)), names, newest.at, run)


def _repaired(found: Differences, repair: ServiceRun | None) -> Differences:
    if repair is None or (repair.ended or 0.0) <= _seconds(found.at):
        return found
    return replace(found, repaired=iso(repair.ended))


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp() if at else 0.0
