"""The ingestion store: one job of a source at a time, each asset its share, and every job done once whoever dies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from hypothesis import given, settings
from hypothesis import strategies as st
from ingestion_stores import claim, claimed, clock, opened, request
from landing_figures import counted_landed, counted_queue, said
from waiting import Clock

from replicator.errors import Fenced, ObjectNotFound, Refused, UsageError
from replicator.ingestion.ingestion_request import STEPS, Asset, Claimed, Failure, JobFilter
from replicator.ingestion.job_queries import Candidate, most, pick
from replicator.ingestion.job_store import IngestionStore
from replicator.ingestion.schema import REVISIONS, job, metadata

__all__ = ["clock"]

DAY = 86_400.0


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[IngestionStore]:
    with opened(f"sqlite:///{tmp_path}/i.sqlite", clock) as made:
        yield made


def work(store: IngestionStore, one: Claimed) -> None:
    for step in STEPS[STEPS.index(one.step) if one.step else 0 :]:
        if step == "publish":
            store.published(one, 7, {})
        else:
            store.step_done(one, step, {"rows": 3} if step == "copy" else {})
    store.done(one)


def test_a_job_goes_through_its_steps_and_each_change_is_a_row(store: IngestionStore) -> None:
    submitted = store.submit(request())
    assert (submitted.state, submitted.position, submitted.replaces) == ("queued", 1, None)
    first = claimed(store)
    assert (first.step, first.attempt, first.request) == ("", 1, request())
    work(store, first)
    job = store.job(submitted.job)
    assert (job.state, job.rows, job.event_id, job.target) == ("done", 3, 7, "crm_public.orders")
    assert store.last_facts(request()) == {"rows": 3, "job": 1} and store.last_facts(request("other")) == {}
    changes = store.changes_after(0, 100)
    assert [each.state for each in changes] == ["queued", *["running"] * 5, *["published"] * 4, "done"]
    assert changes[-1].approver == "anna" and changes[-1].requester == "paul" and changes[-1].rows == 3
    assert store.changes_after(changes[3].id, 2) == changes[4:6]


def test_a_request_takes_the_place_of_one_that_waits_or_has_failed(store: IngestionStore, clock: Clock) -> None:
    first, other = store.submit(request()), store.submit(request("customers"))
    second = store.submit(request())
    assert (second.replaces, second.position) == (first.job, 1), "it keeps its place, or who asks often waits for ever"
    assert other.position == 2 and store.job(first.job).state == "superseded"
    store.fail(claimed(store), Failure("user", "no such column"))
    assert store.job(second.job).state == "failed_user"
    clock.now += 2 * DAY
    assert claimed(store).job == other.job and claim(store) is None, "it waits for another request"
    assert store.submit(request()).replaces == second.job


def test_while_a_job_runs_one_follows_it(store: IngestionStore) -> None:
    store.submit(request())
    running = claimed(store)
    follow_ups = [store.submit(request()) for _ in range(3)]
    assert [each.replaces for each in follow_ups] == [None, follow_ups[0].job, follow_ups[1].job]
    assert claim(store) is None, "two jobs of one source would land in the same table at once"
    work(store, running)
    again = claimed(store)
    assert again.job == follow_ups[2].job and again.fence > running.fence
    store.submit(request())
    store.fail(again, Failure("component", "gone"))
    assert store.job(again.job).state == "superseded", "its follow-up is tried instead"
    assert claimed(store).job == again.job + 1


def test_a_job_that_may_be_published_is_not_replaced_by_the_one_that_follows_it(
    store: IngestionStore, clock: Clock
) -> None:
    """Two of its controllers went away at the one call that publishes: its rows may be there."""
    job = store.submit(request()).job
    first = claimed(store)
    for step in STEPS[: STEPS.index("publish")]:
        store.step_done(first, step, {"location": "/l/v-1-1"} if step == "settle" else {})
    store.submit(request())
    for number in range(4):
        clock.now += 61
        again = claimed(store, f"c{number}")
        assert (again.job, again.step) == (job, "publish")
    assert store.kept(job) is None, "whether its copies were published is not known"
    work(store, again)
    assert store.kept(job) == {"/l/v-1-1"} and store.job(job).state == "done"


@pytest.mark.parametrize("follows", [False, True], ids=["asked later", "asked before"])
def test_a_job_that_may_have_dropped_its_table_ends_before_another_one_begins(
    store: IngestionStore, clock: Clock, follows: bool
) -> None:
    """The other one would land only what the source still has."""
    asked = msgspec.structs.replace(request(), mode="append", watermark="id", schema_policy="recreate")
    job = store.submit(asked).job
    one = claimed(store)
    for step in STEPS[: STEPS.index("publish")]:
        store.step_done(one, step, {})
    if follows:
        store.submit(asked)
    for _ in range(3):
        store.fail(one, Failure("component", "the metastore is down"))
        assert store.expire(timedelta(0), 1) == []
        assert claim(store) is None, "it waits like any job that failed"
        following = store.submit(asked)
        one = claimed(store)
        assert (one.job, one.step, claim(store)) == (job, "publish", None)
    work(store, one)
    assert store.job(job).state == "done" and claimed(store).job == following.job


def test_the_kind_of_a_failure_says_when_a_job_is_tried_again(store: IngestionStore, clock: Clock) -> None:
    job = store.submit(request()).job
    begun, waits = clock.now, []
    for kind in ("component", "lock", "component", "component", "component", "component"):
        store.fail(claimed(store), Failure(kind, "jdbc://paul:secret@crm is away\0", "all of it"))
        shown = store.job(job)
        waits.append((shown.due or 0) - clock.now)
        assert shown.state == "failed" and claim(store) is None and "secret" not in shown.error_text
        clock.now = shown.due or 0
    assert waits == [60, 300, 240, 960, 3600, 3600]
    store.fail(claimed(store), Failure("type", "column price: 1e400 fits no DOUBLE"))
    assert (store.job(job).state, store.job(job).due) == ("failed_type", None)
    assert store.expire(timedelta(seconds=clock.now - begun), 100) == [job]
    assert store.job(job).state == "expired" and store.job(job).error_text.startswith("column price")
    other = store.submit(request("other")).job
    for kind in ("component", "lock", "component"):
        assert store.expire(timedelta(days=7), 2) == []
        store.fail(claimed(store), Failure(kind, "away"))
        clock.now += DAY
    assert store.expire(timedelta(days=7), 2) == [other], "attempts at a lock are not counted"


def test_what_is_published_is_tried_until_all_is_done_and_never_undone(store: IngestionStore, clock: Clock) -> None:
    job = store.submit(request()).job
    one = claimed(store)
    for step in STEPS[: STEPS.index("publish")]:
        store.step_done(one, step, {})
    assert store.cancel(job, "paul").state == "running"
    store.published(one, 7, {"rows": 1})
    for _ in range(10):
        store.fail(one, Failure("user", "no such role"))
        assert store.job(job).state == "published" and store.expire(timedelta(0), 1) == []
        with pytest.raises(Refused, match="published"):
            store.cancel(job, "paul")
        following = store.submit(request())
        clock.now += 3600
        one = claimed(store)
        assert (one.job, one.step, claim(store)) == (job, "constrain", None)
    work(store, one)
    assert store.job(job).state == "done" and claimed(store).job == following.job


def test_a_job_whose_holder_is_gone_goes_on_at_its_step(store: IngestionStore, clock: Clock) -> None:
    store.submit(request())
    late = claimed(store, "c1")
    store.step_done(late, "describe", {"columns": 3})
    clock.now += 61
    store.renew(late, 60)
    clock.now += 61
    taken = claimed(store, "c2")
    assert (taken.job, taken.step, taken.attempt, taken.facts) == (late.job, "copy", 2, {"columns": 3})
    for write in (
        lambda: store.renew(late, 60),
        lambda: store.step_done(late, "copy", {}),
        lambda: store.published(late, 8, {}),
        lambda: store.done(late),
        lambda: store.fail(late, Failure("user", "no")),
    ):
        with pytest.raises(Fenced, match="held by c2"):
            write()
    clock.now += 61
    assert claim(store, "c3") is None, "a job that ends its controllers waits"
    assert store.job(late.job).error_text.startswith("2 controllers stopped responding")
    clock.now += 240
    work(store, claimed(store, "c3"))
    assert store.job(late.job).state == "done"


def test_a_job_that_is_given_back_goes_on_at_its_step_and_has_not_failed(store: IngestionStore) -> None:
    store.submit(request())
    one = claimed(store)
    store.step_done(one, "describe", {})
    store.release(one)
    following = store.submit(request())
    again = claimed(store, "c2")
    assert (again.job, again.step, again.attempt) == (one.job, "copy", 2)
    store.release(again)
    assert store.cancel(one.job, "paul").state == "cancelled" and claimed(store).job == following.job


def test_the_log_gets_the_same_batch_until_it_has_it(store: IngestionStore) -> None:
    for number in range(5):
        store.submit(request(f"t{number}"))
    batch = store.begin_logging(3)
    assert [each.job for each in batch] == [1, 2, 3] and store.begin_logging(3) == batch
    store.submit(request("t0"))
    assert store.begin_logging(9) == batch == store.begin_logging(1), "whatever else could be in it"
    store.end_logging(batch[-1].id)
    assert [each.state for each in store.begin_logging(9)] == ["queued", "queued", "superseded", "queued"]
    store.end_logging(7)
    store.end_logging(3)
    assert store.begin_logging(9) == []


def test_a_job_is_cancelled_at_once_or_with_its_holders_next_word(store: IngestionStore, clock: Clock) -> None:
    queued, running, lost = (store.submit(request(f"t{number}")).job for number in range(3))
    assert store.cancel(queued, "olga").state == "cancelled" == store.cancel(queued, "paul").state
    one, other = claimed(store), claimed(store)
    assert store.cancel(running, "olga").cancelled_by == "olga"
    with pytest.raises(Fenced, match="cancelled by olga"):
        store.renew(one, 60)
    with pytest.raises(Fenced, match="cancelled now"):
        store.step_done(one, "describe", {})
    assert (other.job, store.cancel(lost, "olga").state) == (lost, "running")
    clock.now += 61
    assert claim(store) is None and store.job(lost).state == "cancelled"
    with pytest.raises(ObjectNotFound, match="job 99 does not exist"):
        store.cancel(99, "olga")


def at_publish(store: IngestionStore, table: str = "orders") -> Claimed:
    store.submit(request(table))
    one = claimed(store)
    for step in STEPS[: STEPS.index("publish")]:
        store.step_done(one, step, {})
    return one


def test_a_job_that_may_be_published_is_cancelled_only_when_somebody_has_looked(
    store: IngestionStore, clock: Clock
) -> None:
    one = at_publish(store)
    clock.now += 61
    assert store.cancel(one.job, "paul").state == "running" == store.cancel(one.job, "olga").state
    store.renew(one, 60)  # it was slow
    store.fail(one, Failure("user", "nobody may alter it"))
    assert (store.job(one.job).state, store.job(one.job).cancelled_by) == ("failed", "paul"), "another one looks"
    assert claim(store) is None
    assert store.cancel(one.job, "olga").cancelled_by == "paul"
    store.release(claimed(store))
    again = claimed(store)
    assert (again.job, again.step, again.cancelled) == (one.job, "publish", True), "at once"
    store.published(again, 7, {})
    assert (store.job(one.job).state, store.job(one.job).cancelled_by) == ("published", "")
    store.fail(again, Failure("component", "away"))
    clock.now += 61
    assert not claimed(store).cancelled

    two = at_publish(store, "other")
    store.fail(two, Failure("user", "nobody may alter it"))
    assert store.cancel(two.job, "paul").state == "running"
    store.unpublished(claimed(store))
    assert store.job(two.job).state == "cancelled" and store.kept(two.job) is None, (
        "whoever wakes up late finds its copies"
    )


def test_a_repeated_request_makes_one_job_and_two_sources_share_no_table(store: IngestionStore) -> None:
    first = store.submit(request(), key="file:1")
    assert store.submit(request(), key="file:1").job == first.job
    with pytest.raises(Refused, match=r"db:public\.orders already lands in crm_public\.orders"):
        store.submit(request("Orders"))
    with pytest.raises(ObjectNotFound) as error:
        store.submit(request(asset="cmr"))
    assert "did you mean crm?" in error.value.hint
    for name in ('or"ders', "o" * 129, ""):
        with pytest.raises(UsageError, match="cannot be named"):
            store.submit(request(name))


def test_an_asset_is_approved_by_somebody_else_and_again_when_it_is_changed(store: IngestionStore) -> None:
    asset = store.asset("crm")
    assert asset.approved_by == "anna" and store.put_asset(asset) == asset
    changed = Asset(name="crm", owner="olga", producers=("paul", "peter"), created_by="paul")
    with pytest.raises(Refused, match="already exists"):
        store.put_asset(changed, overwrite=False)
    assert store.put_asset(changed).approved_by == ""
    with pytest.raises(Refused, match="defined by paul"):
        store.approve_asset("crm", "paul")
    assert store.approve_asset("crm", "anna").approved_by == "anna" == store.approve_asset("crm", "olga").approved_by
    assert [each.name for each in store.assets()] == ["crm", "shop", "web"]


def test_jobs_are_listed_newest_first_page_by_page(store: IngestionStore) -> None:
    jobs = [store.submit(request(f"t{number}", "shop" if number % 2 else "crm")).job for number in range(6)]
    page = store.jobs(JobFilter(asset="crm"), limit=2)
    assert [each.job for each in page] == [jobs[4], jobs[2]]
    assert [each.job for each in store.jobs(JobFilter(asset="crm"), before=page[-1].job)] == [jobs[0]]
    assert [each.job for each in store.jobs(JobFilter(target="SHOP_public.t1", source="db", requester="paul"))] == [2]
    assert store.jobs(JobFilter(states=("done",))) == [] == store.jobs(JobFilter(source="d"))


def _live(store: IngestionStore, clock: Clock, chance: random.Random) -> None:
    """Some days: requests, and jobs that end, fail before and after they are published, or stay at work."""
    for number in range(120):
        clock.now += chance.expovariate(1 / 1500)
        submitted = store.submit(request(f"t{number % 15}", chance.choice(("crm", "shop", "web"))))
        if chance.random() < 0.1:
            store.cancel(submitted.job, "paul")
        while chance.random() < 0.6 and (one := claim(store, slots=40)):
            clock.now += chance.expovariate(1 / 600)
            end = chance.random()
            if one.step == "" and end < 0.7:
                for step in STEPS[: STEPS.index("publish")]:
                    store.step_done(one, step, {"rows": number, "bytes": 10**12} if step == "copy" else {})
                store.published(one, None, {})
            if end < 0.3 or 0.7 <= end < 0.9:
                store.fail(one, Failure(chance.choice(("component", "lock", "user", "type")), "no"))
            elif end < 0.6:
                store.done(one)


def test_figures_are_those_that_are_counted_from_the_changes(store: IngestionStore, clock: Clock) -> None:
    chance = random.Random(15)
    assert said(store.landed(DAY)) == counted_landed(store, clock.now - DAY)
    with store.together():  # one transaction: a hundred times as quick
        _live(store, clock, chance)
    store.expire(timedelta(hours=20), 100)
    queue, landed, all_ = store.queue(), store.landed(DAY), store.landed(30 * DAY)
    assert said(queue) == counted_queue(store, clock.now)
    assert said(landed) == counted_landed(store, clock.now - DAY)
    assert said(all_) == counted_landed(store, clock.now - 30 * DAY)
    assert all_.published > landed.published > 9 and len(all_.ended) == 4 and len(all_.days) > 2
    assert queue.waits_seconds and len(queue.failing) > 1 and queue.at_work and queue.waiting


def test_a_repeated_request_waits_since_the_first_one(store: IngestionStore, clock: Clock) -> None:
    """Without a controller, asked for each hour: it is not the newest request alone that waits."""
    began = clock.now
    for _ in range(24):
        store.submit(request())
        clock.now += 3600
    assert store.queue().waits_seconds == clock.now - began == DAY
    one = claimed(store)
    store.submit(request())
    clock.now += 50
    store.fail(one, Failure("component", "gone"))
    one = claimed(store)
    for step in STEPS[: STEPS.index("publish")]:
        store.step_done(one, step, {})
    store.published(one, 7, {})
    assert store.landed(30 * DAY).p50 == DAY + 50, "also of one that failed, while the next one waited already"


def test_a_request_that_waits_for_another_one_begins_anew(store: IngestionStore, clock: Clock) -> None:
    store.submit(request())
    store.fail(claimed(store), Failure("user", "no such column"))
    clock.now += DAY
    store.submit(request())
    clock.now += 5
    assert store.queue().waits_seconds == 5
    store.fail(claimed(store), Failure("component", "gone"))
    clock.now += 90
    store.submit(request())
    assert store.queue().waits_seconds == 30, "it was due, and had no slot"


def test_who_follows_a_job_at_work_waits_for_no_slot(store: IngestionStore, clock: Clock) -> None:
    store.submit(request())
    one = claimed(store)
    store.submit(request())
    clock.now += 9100
    (crm,) = store.queue().assets
    assert (crm.at_work, crm.waiting, crm.waits_seconds, crm.later) == (1, 0, None, 1)
    work(store, one)
    assert store.queue().waiting == 1


def test_only_a_job_that_has_begun_to_publish_may_have_published(store: IngestionStore, clock: Clock) -> None:
    """What waits, fails or copies has changed no table: who watches it need not look away."""
    store.submit(request())
    work(store, first := claimed(store))

    def may() -> bool:
        return store.may_have_published("crm_public.orders", first.job)

    store.submit(request())
    assert not may()
    store.fail(claimed(store), Failure("component", "the source is down"))
    clock.now += 61
    one = claimed(store)
    for step in STEPS[: STEPS.index("publish")]:
        assert not may()
        store.step_done(one, step, {})
    assert may()
    store.submit(request())
    store.fail(one, Failure("component", "the metastore is down"))
    assert store.job(one.job).state == "superseded" and may(), "nobody knows whether it was published"
    work(store, last := claimed(store))
    assert may() and not store.may_have_published("crm_public.orders", last.job)


def test_a_mark_is_set_only_while_no_job_changes_its_table(store: IngestionStore, clock: Clock) -> None:
    """In the metastore first, and not at all if that fails."""
    store.submit(request())
    work(store, first := claimed(store))
    calls = list[str | None]()

    def write() -> None:
        calls.append(store.last_facts(request()).get("watermark"))

    def away() -> None:
        raise ConnectionError("away")

    store.set_mark(first.job, {"watermark": "one"}, "paul", "corrected", write)
    with pytest.raises(ConnectionError):
        store.set_mark(first.job, {"watermark": "two"}, "paul", "corrected", away)
    assert (calls, store.last_facts(request())["watermark"]) == ([None], "one")
    store.submit(request())
    store.set_mark(first.job, {"watermark": "two"}, "paul", "corrected", write)
    one = claimed(store)
    for step in ("", *STEPS[: STEPS.index("publish")]):
        if step:
            store.step_done(one, step, {})
        with pytest.raises(Refused, match=f"job {one.job} is landing"):
            store.set_mark(first.job, {"watermark": "three"}, "paul", "corrected", write)
    store.fail(one, Failure("component", "the metastore is down"))
    with pytest.raises(Refused, match="or may have published it"):
        store.set_mark(first.job, {"watermark": "three"}, "paul", "corrected", write)
    assert (calls, store.last_facts(request())["watermark"]) == ([None, "one"], "two")


def test_a_store_of_an_earlier_release_keeps_its_jobs(tmp_path: Path, clock: Clock) -> None:
    with opened(f"sqlite:///{tmp_path}/old.sqlite", clock) as store:
        store.submit(request())
        with store.transaction() as connection:
            connection.exec_driver_sql("ALTER TABLE ingestion_job DROP COLUMN waits_since")
            connection.exec_driver_sql("UPDATE ingestion_revision SET version_num = '0002'")
        clock.now += 60
        store.prepare()
        store.submit(request())
        assert store.queue().waits_seconds == 60


def test_migrations_make_exactly_the_tables_of_the_schema(store: IngestionStore) -> None:
    with store.transaction() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "version_table": REVISIONS})
        assert compare_metadata(context, metadata) == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 9), st.floats(0.01, 1), st.randoms())
def test_no_schedule_exceeds_an_assets_share_and_no_job_waits_for_ever(
    assets: list[int], slots: int, share: float, chance: random.Random
) -> None:
    """Jobs arrive, end and lose their holders in any order; as long as those at work end, all are worked on."""
    coming = [Candidate(number, number, f"a{asset}") for number, asset in enumerate(assets)]
    waiting: list[Candidate] = []
    at_work: list[Candidate] = []
    rounds = 0
    while coming or waiting or at_work:
        rounds += 1
        assert rounds <= 2 * len(assets) + 1
        arrived = chance.randint(0 if waiting or at_work else 1, len(coming)) if coming else 0
        waiting, coming = waiting + coming[:arrived], coming[arrived:]
        lost = {one.job for one in at_work if chance.random() < 0.2}
        counted = Counter(one.asset for one in at_work)
        held = [Candidate(one.job, one.place, one.asset, held=True) for one in at_work if one.job in lost]
        while chosen := pick(waiting + held, counted, slots, share):
            if chosen.held:
                held.remove(chosen)
                continue
            earlier = [one for one in waiting if one.place < chosen.place]
            assert all(counted[one.asset] >= most(slots, share) for one in earlier)
            waiting.remove(chosen)
            at_work.append(chosen)
            counted[chosen.asset] += 1
            assert sum(counted.values()) <= slots and max(counted.values()) <= max(1, int(slots * share + 1e-9))
        assert not held, "slots whose holder is gone are taken over"
        assert at_work, "something runs while something waits"
        ends = chance.sample(at_work, chance.randint(1, len(at_work)))
        at_work = [one for one in at_work if one not in ends]


def test_every_job_is_done_once_whoever_is_killed(store: IngestionStore, clock: Clock) -> None:
    with store.together():  # without waiting for the disk
        _play(store, clock, random.Random(1))


def _play(store: IngestionStore, clock: Clock, chance: random.Random) -> None:
    jobs = [store.submit(request(f"t{each}", chance.choice(["crm", "shop", "web"]))).job for each in range(12)]
    working: list[Claimed] = []
    zombies: list[Claimed] = []
    published: Counter[int] = Counter()
    while any(each.state != "done" for each in store.jobs(limit=100)):
        clock.now += chance.choice((0, 0, 10, 70, 500))
        for one in list(working):
            if chance.random() < 0.15:
                working.remove(one)  # killed; it may wake up later, and write
                zombies.append(one)
                continue
            try:
                _go_on(store, one, published, working, chance)
            except Fenced:
                working.remove(one)
        for one in [each for each in zombies if store.job(each.job).attempt > each.attempt]:
            zombies.remove(one)
            with pytest.raises(Fenced):
                store.published(one, 9, {})
        if new := claim(store, f"c{chance.randint(1, 2)}"):
            working.append(new)
            held = Counter(each.asset for each in store.jobs(limit=100) if each.holder)
            assert max(held.values()) <= 2 and held.total() <= 4
    assert published == Counter(jobs)
    ends = Counter(each.job for each in store.changes_after(0, 10_000) if each.state == "done")
    assert ends == Counter(jobs)


def _go_on(
    store: IngestionStore, one: Claimed, published: Counter[int], working: list[Claimed], chance: random.Random
) -> None:
    """A holder does the next step, or fails."""
    step = store.job(one.job).step or STEPS[0]
    if chance.random() < 0.1:
        store.fail(one, Failure("component", "away"))
        working.remove(one)
    elif step == "publish":
        store.published(one, 7, {})
        published[one.job] += 1
    elif step == STEPS[-1]:
        store.done(one)
        working.remove(one)
    elif chance.random() < 0.1:
        store.release(one)
        working.remove(one)
    else:
        store.step_done(one, step, {})


def test_a_queue_ten_times_as_long_costs_at_most_ten_times_as_much(store: IngestionStore) -> None:
    """Counted in SQLite's own steps, which no busy machine changes. `scripts/bench ingest-jobs` has the seconds."""
    for number in range(50):
        store.put_asset(Asset(name=f"a{number:02}", owner="olga", created_by="olga"))
        store.submit(request("t", f"a{number:02}"))
    _multiply(store, 6)
    requested, chosen = steps(store, lambda: store.submit(request("u"))), steps(store, lambda: claimed(store))
    _multiply(store, 10)
    assert len(store.jobs(limit=10_000)) > 3000
    queued = sum(each.state == "queued" for each in store.jobs(limit=10_000))
    assert steps(store, lambda: store.submit(request("v"))) <= 11 * requested
    assert store.submit(request("w")).position == queued + 2
    assert steps(store, lambda: claimed(store)) <= 11 * chosen


def _multiply(store: IngestionStore, times: int) -> None:
    """Queues all jobs that wait again, with other identities, before those that are there."""
    own = ("id", "identity", "slot", "place")
    names = ", ".join(column.name for column in job.columns if column.name not in own)
    with store.transaction() as connection:
        connection.exec_driver_sql(
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {times - 1}) "
            f"INSERT INTO ingestion_job ({names}, identity, slot, place) "
            f"SELECT {names}, identity || '.{times}.' || i, slot || '.{times}.' || i, "
            f"id - 1000000 * {times} * i FROM ingestion_job, n WHERE state = 'queued'"
        )


def steps(store: IngestionStore, work: Callable[[], object]) -> int:
    """Of SQLite's machine, in hundreds."""
    taken = 0

    def count() -> None:
        nonlocal taken
        taken += 1

    with store.together(), store.transaction() as connection:
        raw = connection.connection.driver_connection
        raw.set_progress_handler(count, 100)
        try:
            work()
        finally:
            raw.set_progress_handler(None, 0)
    return taken
