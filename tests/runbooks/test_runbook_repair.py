"""docs/runbooks/repair-a-replica.md, command by command; and the runner of runbooks itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from names import unique
from plain_tables import PlainDatabase
from runbooks import play, steps

import replicator
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)


def test_the_runbook_repairs_a_replica_that_somebody_wrote_to(
    source_metastore: Running, target_metastore: Running, tmp_path: Path
) -> None:
    name = unique("sales")
    places = {name: tmp_path / name for name in ("cmroot", "target_cmroot", "dump")}
    with connect(source_metastore.uri) as here, connect(target_metastore.uri) as there:
        source = PlainDatabase(here, name, source_metastore.warehouse)
        target = PlainDatabase(there, name, target_metastore.warehouse)
        source.create()
        source.table("orders", {"f1": "one" * 100, "f2": "two" * 100})
        source.partitioned("days", {"a": {"x": "a" * 10}, "b": {"x": "b" * 20}})
        source.table("untouched", {"f": "as it was"})
        replicator.dump(source=here.uri, cmroot=str(places["cmroot"]), out=str(places["dump"]), db=name)
        replicator.load(str(places["dump"]), target=there.uri, target_cmroot=str(places["target_cmroot"]))
        (target.home / "orders/f1").write_text("0ne" * 100)  # somebody's job wrote to the wrong cluster
        target.add("days", {"z": {"x": "by mistake"}})
        target.alter("orders", owner_note="mine")
        target.table("scratch", {"f": "somebody's own"})

        values = {"source": here.uri, "target": there.uri, "db": name, "dir": tmp_path, **places}
        played = play("repair-a-replica", values)

        assert len(played) > 6
        assert target.shown() == source.shown()


PAGE = """# A page

```console
$ replicator show {dir}/nosuch
error: {dir}/nosuch: neither a dump...
...
$ echo $?
1
```

```sh
ignored
```

```console
$ replicator \\
    --version
replicator   ...
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path / "page.md"


def test_a_page_is_read_as_its_commands_with_their_output(page: Path) -> None:
    assert [(step.line, step.command, step.output) for step in steps(page)] == [
        (4, "replicator show {dir}/nosuch", ("error: {dir}/nosuch: neither a dump...", "...")),
        (7, "echo $?", ("1",)),
        (16, "replicator --version", ("replicator   ...",)),
    ]


def test_a_page_that_says_what_happens_passes(page: Path, tmp_path: Path) -> None:
    happened: list[str] = []
    play(page, {"dir": tmp_path}, before={2: lambda: happened.append("before the third")})
    assert happened == ["before the third"]


@pytest.mark.parametrize(
    ("old", "new", "reported"),
    [
        ("neither a dump", "a dump", "should print"),
        ("$ echo $?\n1", "$ echo $?\n0", "ended with 1 instead of 0"),
        ("$ echo $?\n1\n", "", "ended with 1 instead of 0"),
        ("replicator   ...", "replicator 9...", "page.md:16"),
        ("replicator show", "rm", "only replicator can be run"),
        ("{dir}/nosuch\n", "{place}/nosuch\n", "nobody gave a value for {place}"),
    ],
)
def test_a_page_that_says_something_else_fails(page: Path, tmp_path: Path, old: str, new: str, reported: str) -> None:
    page.write_text(PAGE.replace(old, new, 1))
    with pytest.raises(AssertionError) as raised:
        play(page, {"dir": tmp_path})
    assert reported in str(raised.value)
