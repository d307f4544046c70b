"""How many requests an S3 store is asked, counted by a proxy before it."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from engines import local_engine
from names import unique
from plain_tables import text_storage
from s3_proxy import Proxy, counting
from stores import s3_server

import replicator
from cmroot import pins
from cmroot.errors import KeepError, PinError, StorageUnreachable
from cmroot.keep.content import Kept, locate
from cmroot.keep.remote_files import keep_and_check, keep_object
from cmroot.lease import acquire
from cmroot.root import create_or_open
from cmroot.store import objects, remote
from cmroot.store.buckets import Listings, list_root
from cmroot.store.checksum import checksum_at
from cmroot.store.listing import Listing, list_tree
from cmroot.store.place import Place
from cmroot.store.remote import FsspecStore
from replicator.core.model import EXTERNAL, Column, Database, Partition, Table
from replicator.lifecycle.purge.state import RunDirectory
from replicator.lifecycle.removal.removal import LegalHold, add_hold
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.replay.apply import copying
from replicator.replay.apply.copying import Placing, place_file
from replicator.replay.apply.origins import Roots, Wanted
from replicator.replay.apply.staging import AskingFence, Attempt

BUCKET, DB = "s3a://counted", unique("requests")
PARTITIONS = int(os.environ.get("REPLICATOR_TEST_PARTITIONS", "100"))


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with s3_server() as filesystem, counting(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        filesystem.mkdir("counted")
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        yield proxy


def together(places: list[str]) -> list[Listing | None]:
    listings = Listings(places)
    return [listings.of(index) for index in range(len(places))]


def write(*keys: str) -> None:
    filesystem: Any = Place(BUCKET).store.filesystem
    filesystem.pipe({f"counted/{key}": key.encode() for key in keys})


@pytest.mark.parametrize("seed", range(4))
def test_listings_together_are_those_alone(proxy: Proxy, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places side by side, in each other, twice, that are one file or nothing, a Delta table, names that sort around
    the slash, in pages of few objects."""
    monkeypatch.setattr("cmroot.store.buckets.PAGE", random.Random(seed).choice([2, 7, 1000]))
    chance = random.Random(seed)
    top = f"random-{seed}"
    names = ["p=1", "p=1-x", "p=1.y", "p=10", "p=2", "p=ä", "p=\U0001f600", "p=~", "p= 3", "empty", "_delta_log", "q"]
    keys = {f"{top}/{'/'.join(chance.sample(names, chance.randint(1, 3)))}/f{chance.randint(0, 5)}" for _ in range(120)}
    keys |= {f"{top}/one-file", f"{top}/p=1/.hidden", f"{top}/p=2/_temporary/f"}
    write(*sorted(keys))
    places = [f"{BUCKET}/{top}/{name}" for name in [*names, "one-file", "nothing"]]
    places += [f"{BUCKET}/{top}/p=1/q", f"{BUCKET}/{top}/p=10/", f"s3://counted/{top}/p=10"]
    chance.shuffle(places)
    assert together(places) == [list_tree(place) for place in places]


@pytest.mark.long
def test_places_far_apart_cost_one_request_each_and_those_in_a_row_one_for_a_thousand(proxy: Proxy) -> None:
    write(*(f"far/{place:03d}/{file:02d}" for place in range(100) for file in range(30)))
    proxy.taken()
    for step, most in ((1, 4), (50, 3)):
        places = [f"{BUCKET}/far/{place:03d}" for place in range(0, 100, step)]
        assert [len(each.files) for each in together(places) if each] == [30] * (100 // step)
        assert proxy.taken()["LIST"] <= most


def test_an_object_that_arrives_with_other_bytes_is_not_written(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    store, place = Place(BUCKET).store, f"{BUCKET}/spoiled"
    assert isinstance(store, FsspecStore)
    monkeypatch.setattr(proxy, "spoils", lambda path, body: body.replace(b"good", b"evil"))
    with pytest.raises(OSError, match=r"(?i)digest|md5"):
        store.create_checked(place, b"good")
    assert not Place(place).exists()
    monkeypatch.undo()
    assert store.create_checked(place, b"good")
    assert not store.create_checked(place, b"other")
    assert Place(place).read_bytes() == b"good"


def test_what_was_written_without_an_answer_is_ones_own(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each conditional request takes effect, and its first answer is lost: the second is refused by the first."""
    lost: set[str] = set()

    def once(kind: str, path: str) -> bool:
        new = kind == "PUT" and path not in lost
        lost.add(path)
        return new

    monkeypatch.setattr(proxy, "loses", once)
    root, began = create_or_open(f"{BUCKET}/unanswered").place, "2026-01-01T00:00:00+00:00"
    with acquire(root, "write", renew=False) as lease:
        lease.publish("published", b"1")
    month = pins.Hold("month", 0, 0, began)
    pins.hold(root, month)
    add_hold(root, LegalHold(name="case", pattern="shop.*", reason="a court", by="me", created=began))
    run = RunDirectory(root, "1-a")
    run.write_files([{}])
    assert (Place(run.place) / "files").list() == ["00000000.parquet"]
    assert {"lease", "holds", "legal"} <= {part for path in lost for part in path.split("/")}
    with pytest.raises(PinError, match="already exists"):  # of the same bytes, by another call
        pins.hold(root, month)


def test_what_a_store_heeds_is_found_out(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Place(BUCKET).store
    assert isinstance(store, FsspecStore)
    for strict in (True, False):
        monkeypatch.setattr(proxy, "strict", strict)
        remote._HEEDED.clear()
        proxy.taken()
        assert store.heeds(f"{BUCKET}/probe") == (strict, strict)
        assert proxy.taken() == {"PUT": 2, "COPY": 1, "DELETE": 2}
        assert [name for name in Place(BUCKET).list() if name.startswith("probe")] == []
    remote._HEEDED.clear()


def test_an_answer_that_breaks_off_goes_on_where_it_did(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random.Random(1).randbytes(3_000_000)
    place = Place(f"{BUCKET}/broken")
    place.write_bytes(data)
    breaks = iter([700_000, 1, 1_000_000])
    monkeypatch.setattr(proxy, "cuts", lambda path, body: min(len(body), next(breaks, len(body))))
    proxy.taken()
    with place.open_stream() as stream:
        assert stream.read() + b"".join(iter(lambda: stream.read(1 << 16), b"")) == data
    assert proxy.taken() == {"GET": 4}


def test_an_object_that_is_replaced_while_it_is_read_is_gone(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(f"{BUCKET}/replaced")
    place.write_bytes(bytes(3_000_000))
    monkeypatch.setattr(proxy, "cuts", lambda path, body: min(len(body), 700_000))
    with place.open_stream() as stream:
        stream.read(10)
        place.write_bytes(bytes(2_999_999) + b"1")
        with pytest.raises(FileNotFoundError, match="was deleted or replaced"):
            while stream.read(1 << 16):
                pass


@pytest.mark.parametrize(
    ("header", "error", "said"),
    [("range", StorageUnreachable, "returned 3000000"), ("if-match", FileNotFoundError, "was deleted or replaced")],
)
def test_a_store_that_answers_more_or_other_than_it_is_asked_for_is_not_believed(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, header: str, error: type[Exception], said: str
) -> None:
    place = Place(f"{BUCKET}/believed-{header}")
    place.write_bytes(bytes(3_000_000))
    monkeypatch.setattr(proxy, "strips", frozenset({header}))
    monkeypatch.setattr(proxy, "cuts", lambda path, body: min(len(body), 700_000))
    with place.open_stream() as stream:
        stream.read(10)
        if header == "if-match":
            place.write_bytes(bytes(2_999_999) + b"1")
        with pytest.raises(error, match=said):
            while stream.read(1 << 16):
                pass


def test_of_an_object_that_became_far_larger_no_more_is_read_than_tells_it(proxy: Proxy, tmp_path: Path) -> None:
    source, target = f"{BUCKET}/larger", f"{BUCKET}/larger-copy"
    Place(source).write_bytes(bytes(10))
    checksum, size = checksum_at(source)
    Place(source).write_bytes(bytes(3_000_000))
    roots = Roots(str(tmp_path / "source"), str(tmp_path / "target"))
    how = Placing(roots, Attempt(roots.target, "attempt", AskingFence("", "note")), frozenset())
    placed = place_file(Wanted(source, target, size, None, checksum, 1), how)
    assert placed.origin == "missing" and "holds other bytes (11 bytes" in placed.reason
    assert not Place(target).exists()


def test_a_replaced_object_keeps_class_metadata_and_tags_and_one_without_costs_little(
    proxy: Proxy, tmp_path: Path
) -> None:
    source, root = f"{BUCKET}/replacing/source", f"{BUCKET}/replacing-root"
    create_or_open(root)
    roots = Roots(str(tmp_path / "source"), root)
    how = Placing(roots, Attempt(root, "attempt", AskingFence("", "note")), frozenset())
    filesystem = FsspecStore(BUCKET).filesystem
    special: dict[str, Any] = {
        "StorageClass": "STANDARD_IA",
        "Metadata": {"team": "risk"},
        "Tagging": "cost=lake&a=%2B",
    }

    def place(name: str, data: bytes) -> dict[str, int]:
        Place(source).write_bytes(data)
        checksum, size = checksum_at(source)
        wanted = Wanted(source, f"{BUCKET}/replacing/{name}", size, None, checksum, 1)
        proxy.taken()
        placed, requests = place_file(wanted, how), proxy.taken()
        assert (placed.origin, placed.lacking) == ("source", "")
        assert Place(wanted.target).read_bytes() == data
        return requests

    place("any", b"tries the store")
    new = place("plain", b"new")
    filesystem.call_s3("put_object", Bucket="counted", Key="replacing/own", Body=b"old", **special)
    old, _ = checksum_at(f"{BUCKET}/replacing/own")
    place("own", b"other")
    assert new == {"HEAD": 1, "GET": 1, "PUT": 1}
    assert Place(locate(root, old, 3)).read_bytes() == b"old"

    found = filesystem.call_s3("head_object", Bucket="counted", Key="replacing/own")
    tags = filesystem.call_s3("get_object_tagging", Bucket="counted", Key="replacing/own")["TagSet"]
    assert (found["StorageClass"], found["Metadata"]) == ("STANDARD_IA", {"team": "risk"})
    assert sorted((each["Key"], each["Value"]) for each in tags) == [("a", "+"), ("cost", "lake")]
    assert Place(f"{BUCKET}/replacing").list() == ["any", "own", "plain", "source"]


@pytest.mark.parametrize("whole", [objects.WHOLE_COPY, 0], ids=["one request", "parts"])
def test_a_copy_of_an_object_with_the_encryption_of_s3_gets_that_of_its_bucket(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    monkeypatch.setattr(objects, "WHOLE_COPY", whole)
    filesystem, bucket = FsspecStore(BUCKET).filesystem, unique("encrypted").replace("_", "-")
    filesystem.mkdir(bucket)
    filesystem.call_s3("put_object", Bucket=bucket, Key="old", Body=b"old", ServerSideEncryption="AES256")
    usual = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "key-of-the-bucket"}
    rules = {"Rules": [{"ApplyServerSideEncryptionByDefault": usual}]}
    filesystem.call_s3("put_bucket_encryption", Bucket=bucket, ServerSideEncryptionConfiguration=rules)
    old = objects.original(filesystem, f"{bucket}/old", stored=True)
    assert objects.copy(filesystem, old, f"{bucket}/carried")
    assert not objects.copy_like(filesystem, f"{bucket}/old", f"{bucket}/replaced", f"{bucket}/old")
    for key in ("carried", "replaced"):
        found = filesystem.call_s3("head_object", Bucket=bucket, Key=key)
        assert (found["ServerSideEncryption"], found["SSEKMSKeyId"]) == ("aws:kms", "key-of-the-bucket")


@pytest.fixture
def replacing(proxy: Proxy, tmp_path: Path) -> tuple[Wanted, Placing]:
    """An object with tags, and the one that replaces it."""
    top = f"{BUCKET}/{unique('between')}"
    source, target, root = f"{top}/source", f"{top}/own", create_or_open(f"{top}-root").place
    Place(source).write_bytes(b"new")
    key = target.removeprefix(f"{BUCKET}/")
    call = FsspecStore(BUCKET).filesystem.call_s3
    call("put_object", Bucket="counted", Key=key, Body=b"old", Tagging="cost=lake")
    checksum, size = checksum_at(source)
    how = Placing(Roots(str(tmp_path / "source"), root), Attempt(root, "attempt", AskingFence("", "note")), frozenset())
    return Wanted(source, target, size, None, checksum, 1), how


def test_an_object_put_between_keeping_and_replacing_is_not_lost(
    replacing: tuple[Wanted, Placing], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, how = replacing

    def keep(root: str, path: str) -> Kept:
        kept = keep_and_check(root, path)
        Place(path).write_bytes(b"of another writer")
        return kept

    monkeypatch.setattr(copying, "keep_and_check", keep)
    with pytest.raises(KeepError, match="changed"):
        place_file(wanted, how)
    assert Place(wanted.target).read_bytes() == b"of another writer"
    assert Place(wanted.target).parent.list() == ["own", "source"]


def test_an_object_that_another_attempt_takes_away_is_no_missing_file(
    replacing: tuple[Wanted, Placing], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, how = replacing

    def keep(root: str, path: str) -> Kept:
        kept = keep_and_check(root, path)
        Place(path).remove()
        return kept

    monkeypatch.setattr(copying, "keep_and_check", keep)
    assert place_file(wanted, how).origin == "source"
    assert Place(wanted.target).read_bytes() == b"new"
    assert Place(wanted.target).parent.list() == ["own", "source"]


def test_an_object_is_kept_by_the_server_as_it_was_read(proxy: Proxy) -> None:
    """Three requests, and one try of the store's conditions in a process."""
    write("kept/a", "kept/b")
    root = f"{BUCKET}/root"
    first = keep_object(root, f"{BUCKET}/kept/a")
    proxy.taken()
    kept = keep_object(root, f"{BUCKET}/kept/b")
    assert proxy.taken() == {"GET": 1, "HEAD": 1, "COPY": 1}
    assert [Place(locate(root, each.checksum, each.size)).read_bytes() for each in (first, kept)] == [
        b"kept/a",
        b"kept/b",
    ]
    assert Place(f"{root}/incoming").find() == []


@dataclass
class Warehouse:
    """A table `t` of 1,000 partitions of one file each, on the counted bucket."""

    source: Running
    target: Running
    work: Path


@pytest.fixture(scope="module")
def warehouse(proxy: Proxy, on_s3a: Callable[[str], Running], tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    sides = on_s3a("source"), on_s3a("target")
    home = f"{BUCKET}/{DB}.db"
    table = Table(
        db=DB,
        name="t",
        kind=EXTERNAL,
        storage=text_storage(f"{home}/t"),
        partition_keys=(Column("p", "int"),),
        parameters={"EXTERNAL": "TRUE"},
    )
    with connect(sides[0].uri) as client:
        client.create_database(Database(name=DB, location=home))
        client.create_table(table)
        parts = [Partition(values=(str(p),), storage=text_storage(f"{home}/t/p={p}")) for p in range(PARTITIONS)]
        client.add_partitions(DB, "t", parts)
    write(*(f"{DB}.db/t/p={p}/part-0" for p in range(PARTITIONS)))
    return Warehouse(*sides, tmp_path_factory.mktemp("work"))


def test_what_a_capture_a_load_and_an_idle_capture_ask(
    proxy: Proxy, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notes and leases beside the target are asked for by time: as many as a slow machine takes, and one a file."""
    by_time: Counter[str] = Counter()

    def looked(kind: str, path: str) -> bool:
        by_time[kind] += "replica/.cmroot/" in unquote(path)
        return False

    engine = local_engine()
    root = create_or_open(str(warehouse.work / "cmroot"))

    def capture() -> Counter[str]:
        proxy.taken()
        replicator.capture(source=warehouse.source.uri, cmroot=root.place, db=DB, engine=engine)
        return proxy.taken()

    first = capture()
    idle = capture()
    out = str(warehouse.work / "dump")
    replicator.dump(source=warehouse.source.uri, cmroot=root.place, db=DB, out=out, capture_first=False, engine=engine)
    proxy.taken()
    monkeypatch.setattr(proxy, "fails", looked)
    loaded = replicator.load(out, target=warehouse.target.uri, warehouse=f"{BUCKET}/replica", engine=engine)
    copied = proxy.taken()
    monkeypatch.undo()
    proxy.taken()
    verified = replicator.verify(source=warehouse.source.uri, target=warehouse.target.uri, db=DB, engine=engine)
    compared = proxy.taken()
    print(f"{PARTITIONS} files: capture {first}, idle {idle}, load {copied}, verify {compared}")
    assert (loaded.files_copied, verified.status) == (PARTITIONS, "same")
    few = 10 + PARTITIONS // 100  # listings, notes, leases
    assert first.total() <= PARTITIONS + few
    assert idle.total() <= 10
    assert (copied - by_time).total() <= 3 * PARTITIONS + 2 * few
    assert by_time["HEAD"] <= PARTITIONS + few and by_time["PUT"] <= 2 * few
    assert compared.total() <= 2.2 * PARTITIONS + few


def test_the_directory_of_a_partitioned_table_costs_a_request_for_a_thousand_partitions(proxy: Proxy) -> None:
    write(*(f"root/p={number:03d}/{file}" for number in range(50) for file in range(30)))
    write("root/_SUCCESS", "root/_spark_metadata/0", "root/_temporary/0/part")
    proxy.taken()
    listing = list_root(f"{BUCKET}/root")
    assert listing and [each.path_relative for each in listing.files] == ["_SUCCESS", "_spark_metadata/0"]
    assert proxy.taken()["LIST"] == 2  # one more for the log of a streaming sink
