"""A purge of a table on S3 that answers 503 to 15 % of all requests, killed between its steps. Spark
and the metastore see the server's own directories, everything else asks the server; boto3 looks, past the proxy.
`scripts/purge_s3 --kills` does it with Hadoop's own client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from busy_bucket import busy_bucket
from metastores import MetastoreFactory
from purge_kills import ERASED, LEFT, ids_in
from purges import DESCRIPTOR, Warehouse
from s3_path import S3Path
from stores import s3a_as_directories
from versity import ON_VERSITYGW, Versity

from cmroot.keep import recycle
from cmroot.root import create_or_open
from replicator.lifecycle.purge.backup_actions import restore_backup
from replicator.lifecycle.purge.options import BackupRestoreSettings, PurgeOptions, RetainOptions
from replicator.lifecycle.purge.rewrite import rewrite_task
from replicator.lifecycle.purge.state import RunDirectory, Unit

pytestmark = [*ON_VERSITYGW]


class Killed(BaseException):
    """Nothing of the product catches it."""


@pytest.fixture
def here(versitygw: Versity, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Path]:
    with busy_bucket(versitygw, monkeypatch) as bucket:
        yield bucket


@pytest.mark.long
def test_a_purge_that_dies_leaves_no_row_and_no_staging(
    here: S3Path,
    versitygw: Versity,
    metastore_factory: MetastoreFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mounted = s3a_as_directories(versitygw.directory / "objects", [f"s3a://{here.bucket}"])
    warehouse = Warehouse(metastore_factory("source", settings=mounted), tmp_path)
    hadoop = warehouse.session.sparkContext._jsc.hadoopConfiguration()
    for key, value in mounted.items():
        hadoop.set(key, value)
    db, home = here.bucket.replace("-", "_"), here / "lake"
    warehouse.sql(
        f"CREATE DATABASE {db}",
        f"CREATE EXTERNAL TABLE {db}.t (id BIGINT, v STRING) PARTITIONED BY (k INT) ROW FORMAT DELIMITED FIELDS"
        f" TERMINATED BY ',' STORED AS TEXTFILE LOCATION '{home}' TBLPROPERTIES ({DESCRIPTOR})",
    )
    for odd, name in ((0, "a"), (1, "b")):
        for k in (0, 1):
            lines = (f"{id},member-{id}\n" for id in range(k, 200, 2) if id // 10 % 2 == odd)
            (home / f"k={k}" / name).write_text("".join(lines))
    warehouse.sql(*(f"ALTER TABLE {db}.t ADD PARTITION (k={k})" for k in (0, 1)))
    root = create_or_open(str(here / "cm"))

    def rows() -> Counter[int]:
        found: Counter[int] = Counter()
        for batch in warehouse.metastore.all_partitions(db, "t"):
            for each in batch:
                place = S3Path(here.client, here.bucket, str(each.location).removeprefix(f"s3a://{here.bucket}"))
                for file in place.rglob("*"):
                    found.update(ids_in(file.read_bytes()))
        return found

    def dies(target: Any, name: str, work: Callable[[], Any], when: Callable[..., bool] = lambda *_: True) -> None:
        whole = getattr(target, name)

        def until(*given: Any, **named: Any) -> Any:
            given = tuple(list(each) if isinstance(each, Iterator) else each for each in given)
            if when(*given):
                raise Killed
            return whole(*given, **named)

        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(target, name, until)
            work()

    def purge() -> Any:
        return warehouse.purge(root, warehouse.ids, db)

    def retain() -> Any:
        at_once = timedelta(0)
        return warehouse.retain(root, RetainOptions(versions=0, days=at_once, readers=at_once))

    def swapped(_: RunDirectory, units: Any) -> bool:
        return any(isinstance(each, Unit) and each.state == "SWAPPED" for each in units)

    try:
        dies(rewrite_task, "_replace", purge)
        assert rows() == LEFT + Counter(ERASED)
        dies(RunDirectory, "write_units", purge, swapped)
        assert rows() == LEFT
        done = purge()
        assert (done.status, done.resumed, done.gaps) == ("done", True, []), done
        at_home = [each.read_bytes() for k in (0, 1) for each in (home / f"k={k}").rglob("*")]
        assert len(at_home) == 4 and not [body for body in at_home if ERASED & set(ids_in(body))]
        warehouse.sql(*(f"ALTER TABLE {db}.t {what} PARTITION (k=0)" for what in ("DROP", "ADD")))
        assert rows() == LEFT, "the location is the same, and a partition that is added again shows what it has"
        dies(recycle, "remove_source", retain)
        removed = count(1)
        dies(recycle, "remove_source", retain, lambda *_: next(removed) > 1)  # a backup with one of its two files
        back = restore_backup(warehouse.metastore, root, BackupRestoreSettings(f"{db}.t", "k=0"))
        assert (back.status, back.from_cmroot) == ("restored", 1), back
        assert rows() == LEFT + Counter(ERASED)
        restore_backup(warehouse.metastore, root, BackupRestoreSettings(f"{db}.t", "k=0", undo=True))
        assert rows() == LEFT
        removed = count(1)
        dies(recycle, "remove_source", retain, lambda *_: next(removed) > 1)
        kept = retain()
        assert (kept.status, kept.refused, kept.adopted) == ("done", [], []), kept
        asked = PurgeOptions(warehouse.ids, db, "privacy.column")
        certificate = warehouse.certify(root, asked, expedited=True)
        assert certificate.status == "certified", certificate.holding
        assert rows() == LEFT
        left = {each.key: each.read_bytes() for each in here.rglob("*")}
        assert not [key for key, body in left.items() if ERASED & set(ids_in(body))]
        assert not [key for key in left if "_purge-" in key]
    finally:
        warehouse.close()
