"""replay: a long mixed notification log, recorded from a real metastore, is replayed on another one."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import ground
from benchmarks.measure import Outcome, interleaved, median, timed
from benchmarks.mixing import MixedWriter
from benchmarks.onebyone import OneByOne
from cmroot.root import ChangeRoot, create_or_open
from replicator.captures.dumps.layout import DumpReader
from replicator.compare.both_sides import Comparison
from replicator.compare.verify import verify
from replicator.core.model import NotificationEvent
from replicator.core.runtime import Runtime
from replicator.metastore.client import EVENT_BATCH
from replicator.metastore.events.notification_log import decode
from replicator.metastore.thrift import ThriftMetastore
from replicator.replay.apply.load import Loaded, load
from replicator.replay.apply.planning import LoadSettings, plan_load

EVENTS = {"full": 100_000, "small": 6_000}
TABLES = {"full": 200, "small": 30}
PORTION = {"full": 10_000, "small": 2_000}  # events between two captures
ONE_BY_ONE = 20_000  # events, at most
WANTED = 5


@dataclass
class _Recorded:
    """The log, and what taking it into `$cmroot` took, in seconds of all portions."""

    root: ChangeRoot
    base: Path
    dump: Path
    kinds: Counter[str] = field(default_factory=Counter)
    message_bytes: int = 0
    seconds: Counter[str] = field(default_factory=Counter)

    @property
    def events(self) -> int:
        return self.kinds.total()


def run(size: str, runs: int, directory: Path) -> Outcome:
    loads: list[Loaded] = []
    plans: list[float] = []
    with ground.metastore(directory, "source") as source, ground.metastore(directory, "target") as target:
        recorded = _record(source, directory, size)
        base, log = DumpReader(str(recorded.base)), DumpReader(str(recorded.dump))
        calls = 0

        def one_by_one(number: int) -> float:
            nonlocal calls
            yardstick = OneByOne(target, f"bare_{number}")
            yardstick.replay(base.records())
            yardstick.seconds, yardstick.calls = 0.0, 0
            ground.settle(directory)
            yardstick.replay(itertools.islice(log.records(), ONE_BY_ONE))
            yardstick.close()
            calls = yardstick.calls
            return yardstick.seconds

        def ours(number: int) -> float:
            warehouse = directory / f"load-{number}"
            options = LoadSettings(
                warehouse=str(warehouse),
                cmroot=str(directory / f"target-cmroot-{number}"),
                rename=[("mixed", f"mixed_{number}")],
            )
            load(str(recorded.base), target, options, Runtime(ground.engine()))
            ground.settle(directory)
            plans.append(timed(lambda: plan_load(log, target, options)))
            loads.append(load(str(recorded.dump), target, options, Runtime(ground.engine())))
            if number == 0:
                _prove(source, target, number)
            shutil.rmtree(warehouse)
            return loads[-1].seconds

        took = interleaved(runs, {"one by one": one_by_one, "ours": ours})
    return _outcome(recorded, loads, plans, took, calls)


def _record(source: ThriftMetastore, directory: Path, size: str) -> _Recorded:
    """Writers write a portion, which is fetched, decoded and captured while it is fresh; as in a policy that runs."""
    recorded = _Recorded(create_or_open(str(directory / "cmroot")), directory / "base", directory / "dump")
    writer = MixedWriter(source, "mixed")
    writer.begin(TABLES[size])
    engine = ground.engine()
    ground.captured(source, recorded.root.place, ["mixed"], engine)
    ground.dumped(source, recorded.root, recorded.base, ["mixed"])
    while recorded.events < EVENTS[size]:
        after = source.current_event_id()
        writer.write(PORTION[size])
        ground.settle(directory)
        _fetch_and_decode(source, after, recorded)
        _, captured = ground.captured(source, recorded.root.place, ["mixed"], engine)
        recorded.seconds["capture"] += captured.seconds
    writer.close()
    dumped = ground.dumped(source, recorded.root, recorded.dump, ["mixed"], since=str(recorded.base))
    recorded.seconds["dump"] = dumped.seconds
    return recorded


def _fetch_and_decode(source: ThriftMetastore, after: int, recorded: _Recorded) -> None:
    events: list[NotificationEvent] = []
    recorded.seconds["fetch"] += timed(lambda: events.extend(source.next_events(after, 2 * EVENT_BATCH)))
    recorded.seconds["decode"] += timed(lambda: [decode(event) for event in events])
    recorded.kinds.update(event.type for event in events)
    recorded.message_bytes += sum(len(event.message or "") for event in events)


def _prove(source: ThriftMetastore, target: ThriftMetastore, number: int) -> None:
    both = Comparison(source, target, [("mixed", f"mixed_{number}")], level="size")
    found = verify(both, ["mixed"], Runtime(ground.engine()))
    assert found.status == "same", found.differences[:5]


def _outcome(
    recorded: _Recorded, loads: list[Loaded], plans: list[float], took: dict[str, list[float]], calls: int
) -> Outcome:
    events = recorded.events
    yardstick, ours = calls / median(took["one by one"]), events / median(took["ours"])
    share = events / calls
    single = [share * a / b for a, b in zip(took["one by one"], took["ours"], strict=True)]
    commit, copy = (median([getattr(each, name) for each in loads]) for name in ("commit_seconds", "copy_seconds"))
    outcome = Outcome(["step", "seconds", "events/s", "times one by one", "wanted"])

    def row(name: str, seconds: float, *rest: str) -> None:
        outcome.rows.append([name, f"{seconds:.2f}", f"{events / seconds:,.0f}", *(rest or ("", ""))])

    row("fetch", recorded.seconds["fetch"])
    row("decode", recorded.seconds["decode"])
    row("capture: fetch, decode, fold, list and keep files, log", recorded.seconds["capture"])
    row("dump", recorded.seconds["dump"])
    row("plan and squash", median(plans))
    times = ours / yardstick
    spread = f"{times:.1f} ({min(single):.1f} to {max(single):.1f})"
    row("apply: the whole load, files too", median(took["ours"]), spread, f">= {WANTED}")
    row("of it, copying files", copy)
    row("of it, commit", commit)
    outcome.rows.append(
        [f"one call an event, {calls:,} of them", f"{median(took['one by one']):.2f}", f"{yardstick:,.0f}", "1.0", ""]
    )
    listed = ", ".join(f"{count:,} {kind}" for kind, count in recorded.kinds.most_common())
    last = loads[-1]
    outcome.remarks.append(
        f"The log: {events:,} events ({listed}), {recorded.message_bytes / events:,.0f} bytes of message on average. "
        f"{last.squashed:,} of {last.records:,} records were squashed, {last.objects_changed:,} objects changed and "
        f"{last.files_copied:,} files copied; one by one took {calls:,} calls, and copied nothing."
    )
    return outcome
