"""`load --preserve`: owner, mode, ACL, replication factor and extended attributes, from HDFS to HDFS."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hadoop import Cluster
from hdfs_path import HdfsPath
from lab import Lab
from plain_tables import PlainDatabase
from waiting import CEILING

from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

pytestmark = pytest.mark.hdfs
EVERY = ("owner", "mode", "acl", "replication", "xattr")


def asked(place: HdfsPath, operation: str, method: str = "GET", more: str = "") -> Any:
    url = f"{place.cluster.web}/webhdfs/v1{place.path}?op={operation}&user.name=root{more}"
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=CEILING) as answer:
        return json.loads(answer.read() or b"{}")


def about(place: HdfsPath) -> dict[str, Any]:
    """Told by the NameNode itself."""
    status = asked(place, "GETFILESTATUS")["FileStatus"]
    found = {name: status[name] for name in ("owner", "group", "permission", "replication")}
    found["acl"] = sorted(asked(place, "GETACLSTATUS")["AclStatus"]["entries"])
    found["xattr"] = asked(place, "GETXATTRS", more="&encoding=text")["XAttrs"]
    return found


def set_all(place: HdfsPath, acl: str) -> None:
    asked(place, "MODIFYACLENTRIES", "PUT", f"&aclspec={acl}")
    asked(place, "SETXATTR", "PUT", "&flag=CREATE&xattr.name=user.origin&xattr.value=lake")
    asked(place, "SETOWNER", "PUT", "&owner=alice&group=analysts")


@pytest.fixture(scope="module")
def there(on_hdfs: Callable[[str], Running]) -> Running:
    return on_hdfs("source")


@pytest.fixture
def story(there: Running, hdfs: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hdfs.conf))
    here = HdfsPath(hdfs, f"/{tmp_path.name}")
    found = Lab(there, there, here, warehouse=here / "replica")  # type: ignore[arg-type]
    found.source = PlainDatabase(connect(there.uri), found.name, here / "warehouse")
    found.source.create()
    found.source.partitioned("t", {"x": {"f": "1\tone\n", "plain": "2\ttwo\n"}})
    partition = found.source.home / "t" / "p=x"
    for place in (partition, partition / "f"):
        asked(place, "SETPERMISSION", "PUT", "&permission=1750" if place == partition else "&permission=640")
    asked(partition / "f", "SETREPLICATION", "PUT", "&replication=3")
    set_all(partition, "user:bob:r-x,default:user:bob:rw-,default:group:ops:r--")
    set_all(partition / "f", "user:bob:rw-,group:ops:r--")
    return found


def load(found: Lab, *names: str) -> HdfsPath:
    """The replica's partition."""
    renamed = ("--rename-db", f"{found.name}={found.name}_copy")
    answer = found.load(None, *renamed, *(word for name in names for word in ("--preserve", name)))
    assert answer.code == 0, answer
    return found.warehouse / f"{found.name}_copy.db" / "t" / "p=x"  # type: ignore[return-value]


def test_a_replica_gets_them_where_wanted(story: Lab) -> None:
    source = story.source.home / "t" / "p=x"
    assert story.dump().code == 0
    replica = load(story, *EVERY)
    for name in ("f", "plain"):
        assert about(replica / name) == about(source / name)
    assert about(replica) == about(source)
    assert about(replica / "f")["owner"] == "alice" and about(replica / "f")["replication"] == 3

    story.source.add("t", {"y": {"g": "3\tthree\n"}})
    story.source.write("t/p=x", {"f": "4\tfour\n"})  # a new file, of the directory's default ACL
    before = story.last
    assert story.dump(since=before).code == 0
    load(story, *EVERY)
    assert about(replica / "f") == about(source / "f") and about(replica) == about(source)


def test_each_is_for_itself_and_none_is_the_default(story: Lab) -> None:
    source = story.source.home / "t" / "p=x"
    assert story.dump().code == 0
    wanted, usual = about(source / "f"), about(load(story) / "f")
    assert usual["owner"] != "alice" and not usual["xattr"] and not usual["acl"] and usual["replication"] == 1
    story.source.write("t/p=x", {"f": "4\tfour\n"})
    asked(source / "f", "SETREPLICATION", "PUT", "&replication=2")
    assert story.dump(since=story.here / "dump1").code == 0
    found = about(load(story, "replication") / "f")
    assert found == usual | {"replication": 2} and found["replication"] != wanted["replication"]
