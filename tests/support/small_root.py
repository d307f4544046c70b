"""A root with a small log, for tests of expiry: contents are called by a letter, each position is its own segment."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from waiting import eventually

from cmroot.expire.expire import Expired, ExpiryPlan, expire, plan_expiry
from cmroot.keep.content import content_name
from cmroot.lease import Lease
from cmroot.log.captured import FILES, SegmentWriter, segments
from cmroot.pins import Slot, iso
from cmroot.store.place import Place, join
from cmroot.store.retained_entries import list_entries
from replicator.core.engine import LocalEngine

ENGINE = LocalEngine(2)
HOUR = 3600.0
NOW = 2_000_000_000.0  # far behind no file of these tests: ages of entries are those of the real clock
NOTHING, WEEK = timedelta(0), timedelta(days=7)


def content(name: str) -> bytes:
    return f"the bytes of {name}".encode()


def checksum(name: str) -> str:
    return xxhash.xxh3_128_hexdigest(content(name))


class SmallRoot:
    """A root with a small log: contents are called by a word, and every position is a segment of its own."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.position = segments(root)[-1].last if segments(root) else 0

    def keep(self, *names: str) -> None:
        for name in names:
            Place(self.path(name)).write_bytes(content(name))

    def path(self, name: str) -> str:
        return join(self.root, "files", checksum(name)[:2], content_name(checksum(name), len(content(name))))

    def capture(self, *, add: str = "", release: str = "", at: float = NOW, lease: Lease | None = None) -> None:
        """One record: `add` begins references to the words in it, `release` ends `word@position`s."""
        self.position += 1
        rows = [{"op": "add", **self._named(name)} for name in add.split()]
        for one in release.split():
            name, _, since = one.partition("@")
            rows.append({"op": "release", "since": int(since), **self._named(name)})
        with SegmentWriter(self.root, self.position, lease=lease) as writer:
            table = pa.Table.from_pylist(rows, schema=FILES)
            at_position = pa.array([self.position] * len(rows), pa.int64())
            writer.append_files(table.set_column(0, FILES.field("position"), at_position))
            writer.finish(self.position, time=at, event=self.position)

    def _named(self, name: str) -> dict[str, object]:
        return {"checksum": checksum(name), "size": len(content(name)), "path": name, "kept": True}

    def filed_ns(self, name: str) -> int:
        """When an entry was filed, by the store's clock."""
        entries = list_entries(self.root, checksum(name)[:2]).entries
        (found,) = entries.filter(pc.equal(entries["checksum"], checksum(name)))["changed_ns"].to_pylist()
        return int(found)

    def after(self, *names: str) -> float:
        """A moment after entries were filed and before now, by the store's clock; waits for its next tick, which is a
        second on some."""
        filed = max(self.filed_ns(name) for name in names)

        def next_tick() -> int | None:
            self.keep("p")
            return ticked if (ticked := self.filed_ns("p")) > filed else None

        return (eventually(next_tick) + filed) / 2e9

    def there(self) -> set[str]:
        found = (Place(self.root) / "files").find()
        names = {self.path(name).rpartition("/")[2]: name for name in "abcdefghijklmnop"}
        return {names.get(path.rpartition("/")[2], path) for path in found}

    def plan(self, older_than: timedelta = NOTHING, now: float = NOW, **more: object) -> ExpiryPlan:
        return plan_expiry(self.root, older_than=older_than, now=lambda: now, engine=ENGINE, **more)  # type: ignore[arg-type]

    def expire(self, older_than: timedelta = NOTHING, now: float = NOW, **more: object) -> Expired:
        return expire(self.root, self.plan(older_than, now, **more), now=lambda: now)

    def reasons(self, **more: object) -> dict[str, str]:
        words = {checksum(name): name for name in "abcdefghijklmnop"}
        with self.plan(**more) as plan:  # type: ignore[arg-type]
            return {words[row["checksum"]]: row["reason"] for batch in plan.rows() for row in batch.to_pylist()}

    def expiring(self) -> list[str]:
        return (Place(self.root) / "expiring").list()


def slot(name: str, position: int, confirmed: float = NOW) -> Slot:
    return Slot(name, position, position, iso(confirmed), iso(confirmed))


def history(ground: SmallRoot) -> None:
    """a and b at 1; b ends at 2, c comes; c ends at 4; d is of no record."""
    ground.keep("a", "b", "c", "d")
    ground.capture(add="a b")
    ground.capture(add="c", release="b@1")
    ground.capture()
    ground.capture(release="c@2")
