"""HDFS with Kerberos, block tokens, and calls and blocks that are encrypted: replicated as a user with a ticket."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import Answer, command
from hadoop import Cluster, write_settings
from hdfs_path import HdfsPath
from kerberos import Kdc
from lab import Lab
from plain_tables import PlainDatabase
from secure_hdfs import HOME, hdfs_of_alice, metastore_of
from waiting import pause

from cmroot.errors import Error, StoreIdentityRefused, StoreNotAuthenticated
from cmroot.store.hdfs_checksums import ask
from cmroot.store.place import Place
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

pytestmark = [pytest.mark.hdfs, pytest.mark.kerberos]


@pytest.fixture(scope="module")
def secure(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with hdfs_of_alice(kdc, tmp_path_factory.mktemp("secure")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def metastore(secure: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with metastore_of(secure, tmp_path_factory.mktemp("metastore")) as running:
        yield running


@pytest.fixture
def story(secure: Cluster, metastore: Running, tmp_path: Path) -> Lab:
    """From HDFS to HDFS."""
    here = HdfsPath(secure, f"{HOME}/{tmp_path.name}")
    found = Lab(metastore, metastore, tmp_path, warehouse=here / "replica")  # type: ignore[arg-type]
    found.source = PlainDatabase(connect(metastore.uri), found.name, here / "warehouse")
    found.target = PlainDatabase(connect(metastore.uri), f"{found.name}_copy", here / "replica")
    return found


def placed(story: Lab) -> tuple[str, ...]:
    """The replica beside its source; its root is local: the client waits half a second at the end of each file."""
    return "--rename-db", f"{story.name}={story.name}_copy", "--target-cmroot", str(story.here / "there")


def on_spark(*arguments: str) -> None:
    """A command whose executors read and write HDFS, in a process of its own: its Spark is one with Kerberos."""
    done = subprocess.run(
        [Path(sys.executable).with_name("replicator"), *arguments, "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def verify(story: Lab, *more: str) -> Answer:
    return command(
        "verify",
        *("--source", story.source_uri, "--target", story.target_uri, "--db", story.name),
        *placed(story),
        *more,
    )


def test_a_user_with_a_ticket_replicates(story: Lab) -> None:
    """The keeper is a snapshot: the NameNode's HTTP server is asked with a ticket, too."""
    source = story.source
    source.create()
    source.table("plain", {"f": "1\tone\n", "large": "3\t" + "x" * 3_000_000})
    source.partitioned("parts", {"x": {"f": "1\tx\n"}})
    for answer in (story.dump("--keeper", "snapshot"), story.load(None, *placed(story))):
        assert answer.code == 0 and not answer.output.get("warnings"), answer
    same = verify(story, "--level", "crc", "--engine", "local")
    assert (same.code, same.output["files"], same.output["files_read"]) == (0, 3, 0), same

    source.write("plain", {"f": "1\tanother\n"})
    source.add("parts", {"z": {"f": "3\tz\n"}})
    dumped, wanted = story.dump("--keeper", "snapshot", since=story.last), source.shown()
    source.drop_partitions("parts", ["x", "z"])
    assert dumped.code == 0 and not dumped.output.get("warnings"), dumped
    on_spark(*story.load_arguments(story.last), *placed(story), "--engine", "spark", "--master", "local[1]")
    assert not list((story.cmroot / "files").rglob("*")), "a snapshot keeps them"
    assert story.target.shown() == wanted


@pytest.fixture
def asked(secure: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Answer | Error]]:
    """How the client and the NameNode's HTTP server are answered, by a client that has nothing of former ones."""

    def ask_both(**env: str) -> list[Answer | Error]:
        conf = tmp_path / uuid.uuid4().hex
        conf.symlink_to(secure.conf)
        for name, value in {**env, "HADOOP_CONF_DIR": str(conf)}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(Error) as told:
            ask(f"{secure.url}{HOME}", "GETFILESTATUS")
        return [command("cm", "check", "--cmroot", f"{secure.url}{HOME}/none"), told.value]

    return ask_both


@pytest.mark.parametrize("case", ["no ticket", "an old ticket", "no kdc"])
def test_who_cannot_prove_an_identity_now_is_told_why(
    asked: Callable[..., list[Answer | Error]], kdc: Kdc, tmp_path: Path, case: str
) -> None:
    if case == "no kdc":
        elsewhere = tmp_path / "krb5.conf"
        elsewhere.write_text(kdc.conf.read_text().replace(f":{kdc.port}", ":9"))
        first, second = asked(KRB5CCNAME=kdc.tickets("carol"), KRB5_CONFIG=str(elsewhere))
    elif case == "no ticket":
        first, second = asked(KRB5CCNAME=f"FILE:{tmp_path}/none")
    else:
        cache = kdc.tickets("dave", "-l", "1s")
        pause(2, "the ticket's end")
        first, second = asked(KRB5CCNAME=cache)
    said = {"no kdc": "KDC", "no ticket": "No Kerberos credentials", "an old ticket": "xpired"}[case]
    assert isinstance(first, Answer) and isinstance(second, StoreNotAuthenticated)
    assert (first.code, first.error) == (75, "StoreNotAuthenticated") and said in first.message, first
    assert ("krb5.conf" if case == "no kdc" else "kinit") in first.output["hint"] and first.output[
        "hint"
    ] == second.hint


def test_who_is_of_a_realm_that_nobody_trusts_is_refused(
    asked: Callable[..., list[Answer | Error]], kdc: Kdc, tmp_path: Path
) -> None:
    other = Kdc(tmp_path / "other", "ELSEWHERE.COM")
    other.start()
    try:
        tickets = other.tickets("bob")
        first, second = asked(KRB5CCNAME=tickets, KRB5_CONFIG=str(other.conf))
    finally:
        other.stop()
    assert isinstance(first, Answer) and isinstance(second, StoreIdentityRefused)
    assert (first.code, first.error) == (2, "StoreIdentityRefused") and "ELSEWHERE.COM" in first.message, first
    assert "realm" in first.output["hint"]


def test_a_configuration_without_kerberos_is_told_as_a_cause(
    secure: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(tmp_path / "core-site.xml", {"dfs.client.failover.max.attempts": "1"})
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    answer = command("cm", "check", "--cmroot", f"{secure.url}{HOME}/none")
    assert (answer.code, answer.error) == (75, "StorageUnreachable") and "Kerberos" in answer.message, answer


def test_a_keytab_is_as_good_as_a_ticket(
    secure: Cluster, kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", str(kdc.keytab("alice")))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/fresh")
    (tmp_path / "conf").symlink_to(secure.conf)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "conf"))
    place = Place(f"{secure.url}{HOME}/{tmp_path.name}/file")
    place.write_bytes(b"by keytab")
    assert ask(place.text, "GETFILESTATUS")["FileStatus"]["owner"] == "alice"
