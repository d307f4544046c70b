"""The table feature x store: each feature run between places on real servers, and looked at there.

Run by `scripts/stores` (all pairs, writes docs/stores.md) and by a test (some of them).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import msgspec
from command_line import Answer, command
from engines import local_engine
from faults import Fault, run_with
from hadoop import Cluster
from hdfs_path import HdfsPath
from lab import Lab
from plain_tables import PlainDatabase, remove_tree
from s3_path import S3Path
from stores import s3a_as_directories
from versity import Versity

import replicator
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

DISK, HDFS, S3 = "disk", "HDFS", "S3"
PAIRS = tuple(itertools.product((DISK, HDFS, S3), repeat=2))
YES = "yes"
BEGIN, END = "<!-- written by scripts/stores -->", "<!-- to here -->"


class Stores:
    """A directory, an HDFS and an S3 server; metastores that know all three."""

    def __init__(self, here: Path, hdfs: Cluster, s3: Versity, start: Callable[[str, dict[str, str]], Running]) -> None:
        """start: a metastore, of its name and settings."""
        self._here, self._hdfs = here, hdfs
        os.environ |= s3.environment | {"HADOOP_CONF_DIR": str(hdfs.conf)}
        self._bucket = f"stores-{uuid.uuid4().hex[:8]}"
        self._client = boto3.session.Session().client("s3")  # the default one remembers another server's keys
        self._client.create_bucket(Bucket=self._bucket)
        mounts = here / "mounts"
        mounts.mkdir(parents=True)
        settings = s3a_as_directories(mounts, [f"s3a://{self._bucket}"])
        self.source, self.target = start("source", settings), start("target", settings)

    def place(self, store: str) -> Any:
        """An empty one."""
        name = uuid.uuid4().hex[:8]
        if store == DISK:
            (made := self._here / name).mkdir()
            return made
        return HdfsPath(self._hdfs, f"/{name}") if store == HDFS else S3Path(self._client, self._bucket, f"/{name}")

    @contextlib.contextmanager
    def pair(self, source: str, target: str) -> Iterator[Lab]:
        """A database with its `$cmroot` and dumps in one place, its replica in another."""
        here = self.place(source)
        found = Lab(self.source, self.target, here, warehouse=self.place(target) / "replica")
        with connect(self.source.uri) as client:
            found.source = PlainDatabase(client, found.name, here / "warehouse")
            found.source.create()
            found.source.table("plain", {"f": f"1\t{found.name}\n", "g": f"2\t{found.name}\n"})
            parts = {"x": {"f": f"3\t{found.name}\n"}, "é ü%20": {"f": f"4\t{found.name}\n"}}
            found.source.partitioned("parts", parts)
            yield found


@dataclass(frozen=True)
class StoreFeature:
    """`run`: of a pair whose source has two tables; raises AssertionError where the feature does not do its work.
    `one`: it concerns one store, not a source and a target."""

    name: str
    run: Callable[[Lab], None]
    one: bool = False


def succeeds(*answers: Answer) -> None:
    for answer in answers:
        assert answer.code == 0, f"exit {answer.code}: {answer.message or answer.output}"


def sides(found: Lab) -> tuple[str, ...]:
    return "--source", found.source_uri, "--target", found.target_uri, "--db", found.name, "--engine", "local"


def change(found: Lab) -> None:
    found.source.write("plain", {"f": f"5\t{found.name}\n"})
    found.source.add("parts", {"z": {"f": f"6\t{found.name}\n"}})
    found.source.drop_partitions("parts", ["x"])
    if not any(isinstance(each, S3Path) for each in (found.here, found.warehouse)):  # whose server moves no objects
        found.source.rename("plain", "plainer")


def kept(root: Any) -> set[bytes]:
    return {each.read_bytes() for each in (root / "files").rglob("*") if each.is_file()}


def bootstrap(found: Lab) -> None:
    found.bootstrap()


def increments(found: Lab) -> None:
    found.bootstrap()
    change(found)
    found.catch_up()


def from_root(found: Lab) -> None:
    found.bootstrap()
    change(found)
    succeeds(found.dump(since=found.last))
    wanted = found.source.shown()
    for name in found.source.metastore.table_names(found.name):
        found.source.drop(name)
    succeeds(found.load())
    assert found.target.shown() == wanted
    found.catch_up()


def killed_loads(found: Lab) -> None:
    found.bootstrap()
    change(found)
    succeeds(found.dump(since=found.last))
    for moment in ("before", "after"):
        assert run_with(Fault(moment, "thrift", "alter database"), found.load_arguments(found.last)).killed
        if not isinstance(found.target_cmroot, Path):  # there the kernel frees it
            remove_tree(found.target_cmroot / "lease")  # as when its time is over
    succeeds(found.load())
    found.is_same()


def verified(found: Lab) -> None:
    found.bootstrap()
    for level in ("metadata", "size", "crc", "checksum"):
        succeeds(command("verify", *sides(found), "--level", level))
    found.target.write("plain", {"f": f"1\t{found.name[::-1]}\n"})
    for level in ("crc", "checksum"):
        answer = command("verify", *sides(found), "--level", level)
        assert answer.code == 4 and len(answer.output["differences"]) == 1, answer


def repaired(found: Lab) -> None:
    found.bootstrap()
    found.target.write("plain", {"f": "spoiled"})
    (found.target.home / "plain" / "g").unlink()
    found.target.drop_partitions("parts", ["x"])
    succeeds(
        command("repair", *sides(found), "--cmroot", str(found.cmroot), "--target-cmroot", str(found.target_cmroot))
    )
    found.is_same()
    assert b"spoiled" in kept(found.target_cmroot)


def snapshots(found: Lab) -> None:
    """Readers of the old version go on reading it."""
    succeeds(found.dump())
    published(found)
    before = found.target.metastore.table(found.name, "plain").location
    found.source.write("plain", {"f": f"5\t{found.name}\n"})
    succeeds(found.dump(since=found.last))
    published(found)
    succeeds(command("verify", *sides(found)))
    assert found.target.metastore.table(found.name, "plain").location != before


def published(found: Lab) -> None:
    engine = local_engine()
    warehouse, target = str(found.warehouse), found.target_uri
    done = replicator.load(str(found.last), target=target, warehouse=warehouse, publish="snapshot", engine=engine)
    engine.stop()
    assert done.status == "loaded", done


def synced(found: Lab) -> None:
    config = Path(tempfile.mkdtemp()) / "replicator.toml"
    keys = {
        "source": found.source_uri, "target": found.target_uri, "databases": found.name, "cmroot": str(found.cmroot),
        "target_cmroot": str(found.target_cmroot), "dumps": f"{found.here}/dumps", "warehouse": str(found.warehouse),
    }  # fmt: skip
    config.write_text("\n".join(["[policies.p]", *(f'{key} = "{value}"' for key, value in keys.items()), ""]))
    sync = ("--config", str(config), "sync", "p", "--engine", "local")
    succeeds(command(*sync))
    change(found)
    succeeds(command(*sync))
    found.is_same()
    succeeds(command(*sync))


def restored(found: Lab) -> None:
    succeeds(found.capture())
    event, wanted = found.source.metastore.current_event_id(), found.source.shown()
    change(found)
    succeeds(found.capture())
    into, home = f"{found.name}_then", found.warehouse
    where = ("--into", into, "--warehouse", str(home), "--target-cmroot", str(found.target_cmroot))
    point = ("--cmroot", str(found.cmroot), "--db", found.name, "--to", str(event), "--target", found.source_uri)
    succeeds(command("restore", *point, *where, "--engine", "local"))
    assert PlainDatabase(found.source.metastore, into, home).shown() == wanted


def expired(found: Lab) -> None:
    succeeds(found.capture())
    change(found)
    succeeds(found.capture())
    gone = f"3\t{found.name}\n".encode()
    assert gone in kept(found.cmroot)
    expire = ("cm", "expire", "--cmroot", str(found.cmroot), "--engine", "local", "--older-than")
    succeeds(command(*expire, "1d"))
    assert gone in kept(found.cmroot)
    succeeds(command(*expire, "0s"), command("cm", "check", "--cmroot", str(found.cmroot), "--engine", "local"))
    assert gone not in kept(found.cmroot)


def housekept(found: Lab) -> None:
    """A directory that a table left for another."""
    succeeds(found.capture())
    properties = {"beekeeper.remove.unreferenced.data": "true", "beekeeper.unreferenced.data.retention.period": "PT0S"}
    found.source.alter("plain", **properties)
    old = found.source.home / "plain"
    found.source.write("elsewhere", {"f": "new"})
    table = found.source.metastore.table(found.name, "plain")
    storage = msgspec.structs.replace(table.storage, location=str(found.source.home / "elsewhere"))
    found.source.metastore.alter_table(found.name, "plain", msgspec.structs.replace(table, storage=storage))
    run = ("housekeeping", "run", "--metastore", found.source_uri, "--cmroot", str(found.cmroot), "--db", found.name)
    store = f"sqlite:///{tempfile.mkdtemp()}/items"
    done = command(*run, "--engine", "local", "--store", store, "--allow-immediate")
    succeeds(done)
    assert not old.exists() and (found.source.home / "elsewhere" / "f").exists(), done
    assert f"1\t{found.name}\n".encode() in kept(found.cmroot)


FEATURES = (
    StoreFeature("bootstrap, dump and load", bootstrap),
    StoreFeature("changes: files, partitions, drops", increments),
    StoreFeature("files that the source dropped, from `$cmroot`", from_root),
    StoreFeature("a load that is killed, and run again", killed_loads),
    StoreFeature("`verify`: all levels, and a spoiled file is seen", verified),
    StoreFeature("`repair`", repaired),
    StoreFeature('snapshots: `publish = "snapshot"` of a policy', snapshots),
    StoreFeature("`sync` of a policy", synced),
    StoreFeature("`restore` to an event", restored, one=True),
    StoreFeature("`cm expire` and `cm check`", expired, one=True),
    StoreFeature("`housekeeping run`", housekept, one=True),
)


def observe(stores: Stores, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str, str], str]:
    """What came of each feature, by its name and both stores: YES, or what failed."""
    found = {}
    for source, target in pairs:
        for feature in FEATURES:
            if feature.one and source != target:
                continue
            with stores.pair(source, target) as pair:
                try:
                    feature.run(pair)
                    outcome = YES
                except AssertionError as error:
                    outcome = f"failed: {str(error)[:500]}"
            found[feature.name, source, target] = outcome
    return found


def as_table(found: Mapping[tuple[str, str, str], str]) -> str:
    """Markdown, between its marks. A cell is a source's store and what came of all targets'."""
    stores = (DISK, HDFS, S3)
    rows = [["feature", *(f"from {store}" for store in stores)], ["---"] * 4]
    rows += [[feature.name, *(_cell(found, feature, store) for store in stores)] for feature in FEATURES]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{BEGIN}\n\n{table}\n\n{END}"


def _cell(found: Mapping[tuple[str, str, str], str], feature: StoreFeature, source: str) -> str:
    if feature.one:
        return found[feature.name, source, source].partition(":")[0]
    by: dict[str, list[str]] = {}
    for target in (DISK, HDFS, S3):
        by.setdefault(found[feature.name, source, target].partition(":")[0], []).append(target)
    if len(by) == 1:
        return next(iter(by))
    return "; ".join(f"{outcome} to {', '.join(targets)}" for outcome, targets in by.items())


def expected(page: str, feature: StoreFeature, source: str, target: str) -> str:
    """What the page's table says."""
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {feature.name} |")]
    cell = row.strip("| ").split(" | ")[1 + (DISK, HDFS, S3).index(source)]
    for each in cell.split("; "):
        outcome, _, targets = each.partition(" to ")
        if not targets or target in targets.split(", "):
            return outcome
    raise AssertionError(f"{cell}: says nothing of {target}")


def with_table(page: str, table: str) -> str:
    head, _, rest = page.partition(BEGIN)
    return head + table + rest.partition(END)[2]
