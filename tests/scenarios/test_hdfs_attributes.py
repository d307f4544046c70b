"""`load --preserve`: owner, mode, ACL, replication factor and extended attributes, from HDFS to HDFS."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hadoop import Cluster, write_settings
from hdfs_path import HdfsPath
from lab import Lab
from plain_tables import PlainDatabase
from waiting import CEILING

from cmroot.root import create_or_open
from cmroot.store import hdfs_checksums, objects
from cmroot.store.place import Place, give_rights, inherit, make_inheriting
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.replay.apply.transfer import CloneTask, run_clone_task

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


def test_a_webhdfs_that_hangs_is_waited_for_once(
    hdfs: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = HdfsPath(hdfs, f"/{tmp_path.name}")
    here.mkdir(parents=True)
    (here / "f").write_text("one")
    monkeypatch.setattr(hdfs_checksums, "PATIENCE", 0.5)
    monkeypatch.setattr(hdfs_checksums, "_silent", {})
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        web = f"127.0.0.1:{hanging.getsockname()[1]}"
        write_settings(tmp_path / "core-site.xml", {"dfs.namenode.http-address": web})
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        lacking = [give_rights(str(here / "f"), str(here / "f"), EVERY) for _ in range(3)]
        assert all(each.startswith("xattr (") for each in lacking) and "has not answered before" in lacking[2], lacking
        hanging.settimeout(CEILING)
        hanging.accept()[0].close()
        hanging.setblocking(False)
        with pytest.raises(BlockingIOError):
            hanging.accept()


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


def calls_before_its_name(place: HdfsPath, begin: int) -> list[str]:
    """Commands of the NameNode's calls about a file before its name, created for its owner alone. Afterwards its rights
    are not changed. begin: the first line of the NameNode's log."""
    lines = place.cluster.audit.read_text().splitlines()[begin:]
    said = [dict(part.split("=", 1) for part in line.split("\t") if "=" in part) for line in lines]
    (named,) = (i for i, each in enumerate(said) if each["dst"] == place.path and each["cmd"].startswith("rename"))
    about_it = [each for each in said[:named] if each["src"] == said[named]["src"]]
    assert (about_it[0]["cmd"], about_it[0]["perm"].rpartition(":")[2]) == ("create", "rw-------")
    later = [each["cmd"] for each in said[named:] if each["src"] in (place.path, said[named]["src"])]
    assert not [each for each in later if each.startswith("set")]
    return [each["cmd"] for each in about_it]


def test_a_carried_file_has_its_rights_before_its_name(story: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one above 5 GiB."""
    monkeypatch.setattr(objects, "WHOLE_COPY", 0)
    source, new = story.source.home / "t" / "p=x", story.here / "new"
    root = create_or_open(str(story.here / "root")).place
    begin = len(source.cluster.audit.read_text().splitlines())
    for _ in range(2):
        assert not run_clone_task(CloneTask(root, [(str(source), str(new))]))
    for name in ("f", "plain"):
        assert about(new / name) == about(source / name) | {"xattr": []}
    assert about(new) == about(source) | {"xattr": []}
    found = calls_before_its_name(new / "plain", begin)
    assert [each for each in found if each.startswith("set")] == ["setOwner", "setAcl"]  # with the mode


@pytest.mark.parametrize("names", [("mode",), ("acl",)])
def test_a_new_copy_is_open_to_no_more_users_than_its_source(story: Lab, names: tuple[str, ...]) -> None:
    source = story.source.home / "t" / "p=x" / "f"
    asked(source, "SETPERMISSION", "PUT", "&permission=600")
    assert story.dump().code == 0
    begin = len(source.cluster.audit.read_text().splitlines())
    new = load(story, *names) / "f"
    assert calls_before_its_name(new, begin)[0] == "create" and about(new)["permission"] == about(source)["permission"]


def test_a_new_directory_is_open_to_no_more_users_than_its_table(story: Lab) -> None:
    """With an ACL, the group's bits of a mode are its mask."""
    table = story.source.home / "t"
    asked(table, "SETPERMISSION", "PUT", "&permission=700")
    asked(table, "MODIFYACLENTRIES", "PUT", "&aclspec=user:bob:rwx")
    assert about(table)["permission"] == "770"
    make_inheriting(str(table / "p=new" / "q=1"), str(table))
    assert [about(table / each)["permission"] for each in ("p=new", "p=new/q=1")] == ["700", "700"]
    asked(table / "p=new", "SETPERMISSION", "PUT", "&permission=755")
    assert not inherit(str(table / "p=new"), str(table)) and about(table / "p=new")["permission"] == "700"
    asked(table, "MODIFYACLENTRIES", "PUT", "&aclspec=default:user:bob:rwx")
    make_inheriting(str(table / "p=other" / "q=1"), str(table))
    assert {"user:bob:rwx", "group::---"} <= set(about(table / "p=other" / "q=1")["acl"])
    assert about(table / "p=other")["permission"] == "770"


def test_what_a_load_replaces_keeps_its_own(story: Lab) -> None:
    assert story.dump().code == 0
    replica = load(story)
    table = HdfsPath(replica.cluster, replica.path.rpartition("/")[0])
    for place, mode in ((table, "750"), (replica, "1770"), (replica / "f", "640")):
        asked(place, "SETPERMISSION", "PUT", f"&permission={mode}")
        set_all(place, "user:bob:r-x")
    asked(replica / "f", "SETREPLICATION", "PUT", "&replication=2")
    before = {place.path: about(place) | {"xattr": []} for place in (replica, replica / "f")}
    story.source.write("t/p=x", {"f": "4\tfour\n"})
    story.source.add("t", {"y": {"g": "3\tthree\n"}})
    last = story.last
    assert story.dump(since=last).code == 0
    begin = len(replica.cluster.audit.read_text().splitlines())
    load(story)
    assert {"setAcl", "setOwner", "setReplication"} <= set(calls_before_its_name(replica / "f", begin))
    assert Place(str(replica / "f")).read_bytes() == b"4\tfour\n"
    after = {place.path: about(place) for place in (replica, replica / "f")}
    assert {path: each | {"xattr": []} for path, each in after.items()} == before
    assert not after[(replica / "f").path]["xattr"], "loads carry none"
    new = about(table / "p=y")
    assert (new["permission"], new["group"]) == ("750", "analysts")

    story.source.drop_partitions("t", ["x"])
    story.source.add("t", {"x": {"f": "5\tfive\n"}})
    last = story.last
    assert story.dump(since=last).code == 0
    load(story)
    assert about(replica) | {"xattr": []} == before[replica.path]
