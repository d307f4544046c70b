"""What runs add to the counters, and how metrics are shown."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from filesystems import hanging_below
from prometheus_client.parser import text_string_to_metric_families
from waiting import CEILING, eventually

from cmroot.pins import Hold, Slot, create_slot, hold
from cmroot.root import create_or_open
from replicator.core.config import parse_config
from replicator.core.roles import Role, RoleMark
from replicator.policies.lag import DatabaseLag, Lag, TableLag
from replicator.policies.memory import Compared
from replicator.service.jobs import Every, Job
from replicator.service.measuring import STALE, Apart, LagWatch, MeasuredLag, sample_root
from replicator.service.metric_families import of_counts, of_policies, of_roots, text_of, verified_age
from replicator.service.runs import Ended
from replicator.service.schema import Sample, counts, counts_of, remember, samples
from replicator.service.store import ServiceStore
from replicator.service.web.serving import AT_ONCE, Askers, Late

SYNCED = {"files_copied": 3, "bytes_copied": 70, "files_from_source": 2, "files_from_cmroot": 1}


def values(text: bytes) -> dict[str, float]:
    return {
        f"{one.name}{sorted(one.labels.items())}": one.value
        for family in text_string_to_metric_families(text.decode())
        for one in family.samples
    }


def test_each_run_is_counted_once_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    url, job = f"sqlite:///{tmp_path}/s.sqlite", Job("west", ("sync", "west"), Every(60), "west")
    for _ in range(2):  # as after a restart
        with ServiceStore(url) as store:
            store.prepare()
            epoch = store.lead("a", 3600)
            run, _ = store.enqueue(job, 1.0, by="schedule")
            assert epoch and store.begin(run, "a", epoch)
            for _ in range(2):
                store.end(run, Ended("done", 0, said=SYNCED))
            queued, _ = store.enqueue(job, 2.0, by="me")
            store.cancel(queued, "me")
            store.cancel(queued, "me")
            failed, _ = store.enqueue(job, 3.0, by="me")
            assert store.begin(failed, "a", epoch)
            store.end(failed, Ended("failed", 75, error="StoreUnreachable"))
            store.forget(-1)
    with ServiceStore(url) as store, store.transaction() as connection:
        found = values(text_of(of_counts(counts(connection))))
    of = "('kind', 'sync')"
    assert found[f"replicator_runs_total[{of}, ('outcome', 'done'), ('policy', 'west')]"] == 2
    assert found[f"replicator_runs_total[{of}, ('outcome', 'cancelled'), ('policy', 'west')]"] == 2
    assert found[f"replicator_run_failures_total[('error', 'StoreUnreachable'), {of}, ('policy', 'west')]"] == 2
    assert found["replicator_bytes_copied_total[('policy', 'west')]"] == 140
    assert found["replicator_files_copied_total[('from', 'source'), ('policy', 'west')]"] == 4
    assert found[f"replicator_run_seconds_count[{of}, ('policy', 'west')]"] == 4
    assert found[f"replicator_run_seconds_bucket[{of}, ('le', '3600.0'), ('policy', 'west')]"] == 4
    assert found[f"replicator_run_seconds_bucket[{of}, ('le', '+Inf'), ('policy', 'west')]"] == 4


def test_housekeeping_counts_as_beekeeper_does_but_a_rehearsal_does_not() -> None:
    said = {"files": 2, "bytes": 9, "tables_dropped": 1, "partitions_dropped": 4, "warnings": []}
    counted = {name: value for name, _, value in counts_of(("housekeeping", "run"), "", "done", 3.0, "", said)}
    assert counted["beekeeper_s3_bytes_deleted"] == counted["replicator_removed_bytes"] == 9
    assert counted["beekeeper_hive_partition_metadata_deleted"] == 4
    assert counted["beekeeper_path_cleanup_job_seconds_sum"] == 3.0
    rehearsed = {name for name, _, _ in counts_of(("housekeeping", "run", "--dry-run"), "", "done", 3.0, "", said)}
    assert rehearsed == {"replicator_runs", "replicator_run_seconds_bucket", "replicator_run_seconds_sum"}


@pytest.mark.parametrize("said", [{}, {"bytes_copied": "many", "files_from_source": True, "files": None}])
def test_an_answer_that_is_none_counts_nothing(said: dict[str, object]) -> None:
    assert [name for name, _, _ in counts_of(("sync", "w"), "w", "lost", None, "", said)] == [
        "replicator_runs",
        "replicator_run_failures",
    ]


def test_the_ten_tables_with_the_longest_lag_are_named(policy: object) -> None:
    lag = Lag("west", status="late", events=5, seconds=99.0, headroom_seconds=7.0)
    lag.tables = [TableLag(f"d.t{n}", seconds=99.0 - n) for n in range(50)]
    mark = RoleMark(Role.PRIMARY, 2)
    lag.databases = [DatabaseLag(f"d{n}", "r", "behind", events=1, seconds=float(n), bytes=2) for n in range(30)]
    lag.databases.append(
        DatabaseLag("other", "r", "behind", events=1, seconds=99.0, bytes=2, source_mark=mark, target_mark=mark)
    )
    compared = Compared(ended="2026-01-01T00:00:00+00:00", oldest=100.0, never=2, open_count=1)
    now = 1767225600.0 + 50
    text = text_of(of_policies({"west": policy}, {"west": MeasuredLag(now, lag)}, {"west": compared}, now))  # type: ignore[dict-item]
    found = values(text)
    assert sum(name.startswith("replicator_table_lag_seconds") for name in found) == 10
    assert found["replicator_table_lag_seconds[('policy', 'west'), ('table', 'd.t0')]"] == 99.0
    assert found["replicator_policy_status[('policy', 'west'), ('status', 'late')]"] == 1
    assert found["replicator_verified_age_seconds[('policy', 'west')]"] == 150.0
    assert found["replicator_differences[('policy', 'west')]"] == 1
    assert found["replicator_event_headroom_seconds[('policy', 'west')]"] == 7
    assert found["replicator_two_primaries[('policy', 'west')]"] == 1
    databases = {name: value for name, value in found.items() if name.startswith("replicator_database_lag")}
    assert len(databases) == 3 * 21
    assert databases["replicator_database_lag_seconds[('database', 'd29'), ('policy', 'west')]"] == 29.0
    rest = "[('database', 'other'), ('policy', 'west')]"
    assert databases[f"replicator_database_lag_seconds{rest}"] == 99.0, "one of them is called so"
    assert databases[f"replicator_database_lag_events{rest}"] == 11.0
    assert databases[f"replicator_database_lag_bytes{rest}"] == 22.0
    assert (verified_age(compared, now + 60) or 0) == 210.0, "it ages by itself"
    unknown = values(text_of(of_policies({"west": policy}, {}, {}, now)))  # type: ignore[dict-item]
    assert unknown["replicator_policy_status[('policy', 'west'), ('status', 'unknown')]"] == 1


@pytest.fixture
def policy() -> object:
    keys = {
        "source": "thrift://a:1",
        "target": "thrift://b:1",
        "databases": ["d"],
        "max_lag": "10m",
        "verify": {"objects": 1},
    }
    keys |= {"cmroot": "/cm", "target_cmroot": "/tcm", "dumps": "/dumps"}
    return parse_config({"policies": {"west": keys}}, "test").policies["west"]


def test_a_root_is_measured_from_a_part_of_it(tmp_path: Path) -> None:
    root = create_or_open(str(tmp_path / "cm"))
    for number in range(64):
        directory = Path(root.files) / f"{number:02x}"
        directory.mkdir(parents=True)
        for each in range(3):
            (directory / f"xxh3_128-{number:02x}{each:030x}-10").write_bytes(b"x" * 10)
    create_slot(root.place, Slot("west", 1, 1, "2026-01-02T00:00:00+00:00", "", "us"))
    hold(root.place, Hold("audit", 1, 1, "2026-01-01T00:00:00+00:00", "why"))
    whole, part = sample_root(root.place), sample_root(root.place, entries=20)
    assert (whole.files, whole.exact, whole.consumer) == (192, True, "hold audit")
    assert (part.files, part.exact) == (192, False)
    text = text_of(of_roots({root.place: (5.0, whole)}, (whole.oldest or 0.0) + 60))
    assert f'replicator_cmroot_oldest_pin_seconds{{consumer="hold audit",root="{root.place}"}} 60.0' in text.decode()


def test_a_sample_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    with ServiceStore(f"sqlite:///{tmp_path}/s.sqlite") as store:
        store.prepare()
        with store.transaction() as connection:
            remember(connection, Sample("root", "/cm", 1.0, {"bytes": 1}))
            remember(connection, Sample("root", "/cm", 2.0, {"bytes": 2}))
            assert samples(connection, "root") == {"/cm": Sample("root", "/cm", 2.0, {"bytes": 2})}
            assert samples(connection, "compared") == {}


def test_what_gets_no_thread_is_begun_when_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    apart, done = Apart(1, 60.0), threading.Event()

    async def ask(askers: Askers) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
            assert not apart.begin("west", done.set) and apart.wait("west", CEILING)
            for _ in range(2 * AT_ONCE):
                with pytest.raises(Late):
                    await askers.ask("west", CEILING, done.set)
        assert await askers.ask("west", CEILING, lambda: 7) == 7

    asyncio.run(ask(Askers()))
    assert apart.begin("west", done.set) and apart.wait("west", CEILING) and done.is_set()


def test_a_root_that_hangs_keeps_only_its_own_policy_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"source": "thrift://127.0.0.1:9", "target": "thrift://127.0.0.1:10", "databases": ["d"]}
    policies = {
        name: {**keys, **{key: str(tmp_path / name / key) for key in ("cmroot", "target_cmroot", "dumps")}}
        for name in ("hung", "well")
    }
    mounted = hanging_below(monkeypatch, tmp_path / "hung" / "target_cmroot")
    config = parse_config({"policies": policies, "service": {"logs": str(tmp_path)}}, "test")
    watch = LagWatch(lambda: config, threading.Event())

    def looked() -> bool:
        watch.step()
        return "well" in watch.found and "service.logs" in watch.disks

    eventually(looked)
    assert list(watch.found["well"].lag.unreachable) == ["source", "target"] and "hung" not in watch.found  # type: ignore[union-attr]
    watch.stale_after = 0.0
    hung = watch.found["hung"]
    assert hung.stale and hung.lag is None and "not measured for" in hung.error
    watch._due.clear()
    watch.step()
    assert sum(each.name == "apart hung" for each in threading.enumerate()) == 1, "it is not begun again"
    watch.stale_after = STALE
    mounted.set()
    eventually(lambda: "hung" in watch.found)
    assert not watch.found["hung"].stale


def test_nobody_knows_a_queue_of_ingestion_that_is_not_counted(tmp_path: Path) -> None:
    sources = {"crm": {"url": "jdbc:mysql://crm/crm"}}
    away = parse_config({"ingestion": {"store": f"sqlite:///{tmp_path}/no/i.sqlite", "sources": sources}}, "test")
    without, configs = parse_config({}, "test"), [away]
    watch = LagWatch(lambda: configs[-1], threading.Event(), stale_after=60.0)
    assert watch.queue is None and watch.queue_trouble == "", "it is asked just now"
    watch._count(away)
    assert watch.queue is None and "i.sqlite" in watch.queue_trouble
    configs.append(without)
    assert watch.queue_trouble == "", "no store is configured any more"
    configs.append(parse_config({"ingestion": {"store": f"sqlite:///{tmp_path}/i.sqlite", "sources": sources}}, "test"))
    watch._count(configs[-1])
    assert watch.queue is not None and watch.queue_trouble == ""
    watch.stale_after = -1.0  # it has hung for longer
    assert watch.queue is None and "its store responds slowly, or hangs" in watch.queue_trouble
