"""Materialized views: their definition, under another name of their database, and their rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Answer, command
from hive_metastore import ttypes
from hive_objects import hive_client
from lab import Lab

from replicator.core.formats.transactional_table import OF_VIEW
from replicator.core.model import Database
from replicator.core.not_replicated import PROPERTY, from_property
from replicator.metastore.embedded.running import Running
from replicator.policies.run import SyncRun
from replicator.replay.server_rules import LACKS


class Renamed:
    """A policy from `source` to `target` that renames the database `db` to `renamed`; it has a table `t`."""

    def __init__(self, source: Running, target: Running, here: Path) -> None:
        self.source, self.target = source, target
        self.pair = Lab(source, target, here)
        self.db, self.renamed = f"{self.pair.name}_a", f"{self.pair.name}_renamed"
        self.pair.keys["rename_db"] = {self.db: self.renamed}
        self.pair.db("a").table("t", {"first": "1"}, kind="EXTERNAL_TABLE")


@pytest.fixture(params=["3.1", "4.2"])
def two(request: pytest.FixtureRequest, hives: Callable[..., Running], tmp_path: Path) -> Renamed:
    return Renamed(hives(request.param), hives(request.param, "target"), tmp_path)


def test_what_they_are_made_of_is_renamed(two: Renamed) -> None:
    with hive_client(two.source) as client:
        client.materialized_view(two.db, "mv", "t")
    assert two.pair.sync().not_replicated == []
    with hive_client(two.target) as client:
        found = client.get(two.renamed, "mv")
    made = found.creationMetadata
    assert found.viewOriginalText == f"select a from {two.renamed}.t"
    assert (made.dbName, set(made.tablesUsed)) == (two.renamed, {f"{two.renamed}.t"})
    assert [each.table.dbName for each in made.sourceTables or ()] in ([], [two.renamed])


@pytest.mark.parametrize("hive", ["3.1", "4.2"])
def test_those_without_creation_metadata_arrive(hives: Callable[..., Running], hive: str, tmp_path: Path) -> None:
    """Those of Hive 2.3, which stores none."""
    two = Renamed(hives("2.3"), hives(hive, "target"), tmp_path)
    text = f"select a from {two.db}.t"
    with hive_client(two.source) as client:
        client.table(two.db, "mv", kind="MATERIALIZED_VIEW", viewOriginalText=text, viewExpandedText=text)
    assert two.pair.sync().not_replicated == []
    with hive_client(two.target) as client:
        found = client.get(two.renamed, "mv")
    assert (found.tableType, found.viewOriginalText) == ("MATERIALIZED_VIEW", f"select a from {two.renamed}.t")


def test_one_is_made_after_what_it_reads(two: Renamed) -> None:
    """A server refuses a materialized view over what it does not have yet."""
    reads = {"view": "t", **{f"mv{4 - n}": f"mv{5 - n}" if n else "view" for n in range(4)}}
    with hive_client(two.source) as client:
        for name, read in reads.items():
            (client.view if name == "view" else client.materialized_view)(two.db, name, read)
    assert two.pair.sync().not_replicated == []
    assert set(two.pair.target.metastore.table_names(two.renamed)) == {"t", *reads}
    with hive_client(two.target) as client:
        for name, read in reads.items():
            if name != "view":
                assert set(client.get(two.renamed, name).creationMetadata.tablesUsed) == {f"{two.renamed}.{read}"}

    with hive_client(two.source) as client:  # all at once, the table that they read, too
        for name in [*reversed(reads), "t"]:
            client.drop(two.db, name)
    assert two.pair.sync().not_replicated == []
    assert two.pair.target.metastore.table_names(two.renamed) == []


def test_what_a_server_does_not_store_is_named_as_long_as_it_is_so(
    hives: Callable[..., Running], tmp_path: Path
) -> None:
    """Of views and of tables: by every run, and by the replica itself."""
    source = hives("3.1")
    pair = Lab(source, hives("2.3"), tmp_path)
    db, reasons = f"{pair.name}_a", {rule.what: rule.reason for rule in LACKS}
    pair.db("a").table("t", {"first": "1"}, kind="EXTERNAL_TABLE")
    pair.db("a").table("owned", {"first": "1"}, kind="EXTERNAL_TABLE", owner_type="ROLE")
    with hive_client(source) as client:
        client.materialized_view(db, "mv", "t")
    view = (f"{db}.mv", reasons["creation metadata of a materialized view"])
    owned = (f"{db}.owned", reasons["owner of a table that is a role or a group"])
    assert _named(pair.sync()) == [view, owned]
    assert _named(pair.sync()) == [view, owned]  # nothing new
    pair.db("a").table("later", {"first": "1"}, kind="EXTERNAL_TABLE")
    assert _named(pair.sync()) == _said(pair.target.metastore.database(db)) == [view, owned]
    with hive_client(source) as client:
        table = client.get(db, "owned")
        table.ownerType = ttypes.PrincipalType.USER
        client.alter(db, "owned", table)
    assert _named(pair.sync()) == _said(pair.target.metastore.database(db)) == [view]
    with hive_client(source) as client:
        client.drop(db, "mv")
    assert _named(pair.sync()) == _said(pair.target.metastore.database(db)) == []


def _named(run: SyncRun) -> list[tuple[str, str]]:
    return [(each.object, each.reason) for each in run.not_replicated]


def _said(database: Database) -> list[tuple[str, str]]:
    """By the replica itself."""
    return [(each.object, each.reason) for each in from_property(database.parameters.get(PROPERTY), database.name)]


class Filled:
    """A policy between servers of one version of Hive; its database has the table `t` and the view `mv` with rows."""

    def __init__(self, hives: Callable[..., Running], hive: str, here: Path) -> None:
        self.source = hives(hive)
        self.pair = Lab(self.source, hives(hive, "target"), here)
        self.pair.db("a").table("t", {"first": "1"}, kind="EXTERNAL_TABLE")
        self.db = f"{self.pair.name}_a"
        with hive_client(self.source) as client:
            client.materialized_view(self.db, "mv", "t")
        self.write("000000_0", "rows\n")

    def write(self, name: str, text: str) -> None:
        """A file as a rebuild writes one: into the location that the server gave the view."""
        with hive_client(self.source) as client:
            home = Path(client.get(self.db, "mv").sd.location.removeprefix("file:"))
        home.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)

    def rows(self) -> dict[str, str]:
        """By file, of the replica."""
        location = self.pair.target.metastore.table(self.db, "mv").location
        assert location
        return {each.name: each.read_text() for each in Path(location.removeprefix("file:")).iterdir()}

    def verified(self) -> Answer:
        sides = ("--source", self.source.uri, "--target", self.pair.target_uri)
        return command("verify", *sides, "--db", self.db, "--engine", "local")


@pytest.fixture(params=["3.1", "4.0", "4.2"])
def filled(request: pytest.FixtureRequest, hives: Callable[..., Running], tmp_path: Path) -> Filled:
    return Filled(hives, request.param, tmp_path)


def test_their_rows_are_replicated_like_those_of_a_managed_table(filled: Filled) -> None:
    assert filled.pair.sync().not_replicated == []
    assert filled.rows() == {"000000_0": "rows\n"}
    assert filled.verified().code == 0, filled.verified()

    filled.write("000001_0", "later\n")  # a rebuild, of which no event tells
    assert filled.verified().code == 4
    assert filled.pair.sync().not_replicated == []
    assert filled.rows() == {"000000_0": "rows\n", "000001_0": "later\n"}
    assert filled.verified().code == 0, filled.verified()

    replica = Path(str(filled.pair.target.metastore.table(filled.db, "mv").location).removeprefix("file:"))
    with hive_client(filled.source) as client:
        client.drop(filled.db, "mv")
    assert filled.pair.sync().not_replicated == []
    assert not replica.exists()


def test_transactional_ones_are_named(filled: Filled) -> None:
    assert filled.pair.sync().not_replicated == []
    with hive_client(filled.source) as client:
        view = client.get(filled.db, "mv")
        view.tableName, view.sd.location = "rows", None
        view.creationMetadata.tblName = "rows"
        view.parameters["transactional"] = "true"
        client.create(view)
    named = [(f"{filled.db}.rows", OF_VIEW)]
    assert _named(filled.pair.sync()) == _named(filled.pair.sync()) == named
    verified = filled.verified()
    assert verified.code == 3, verified
    assert [each["object"] for each in verified.output["not_replicated"]] == [f"{filled.db}.rows"]
