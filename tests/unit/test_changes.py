"""Kinds of change: the facts that they tell, and the modules that have to know them apart."""

from __future__ import annotations

import ast
import typing
from pathlib import Path

import pytest

from replicator.core.model import Database, Function, Partition, Statistics, Storage, Table, WriteIds
from replicator.metastore.events import record as kinds
from replicator.metastore.events.record import Change
from replicator.metastore.events.scope import changes_in_scope

ROOT = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").exists())
KINDS = {kind.__name__ for kind in typing.get_args(Change)}
DISPATCH = {
    "replicator/captures/apply.py",
    "replicator/captures/capture.py",
    "replicator/captures/manifest.py",
    "replicator/captures/dumps/selection.py",
    "replicator/captures/gateways/targets.py",
    "replicator/lifecycle/housekeeping/decide.py",
    "replicator/lifecycle/removal/live.py",
    "replicator/replay/squash.py",
}
"""Modules that do something else for each kind, or for some; all others ask for facts."""

DB, T = Database(name="d"), Table(db="d", name="t", storage=Storage())
X, Y = Partition(values=("x",)), Partition(values=("y",))
EXAMPLES: list[tuple[Change, typing.Any]] = [
    # touched, touched_db, tables, databases, partition_names, rename
    (kinds.CreateDatabase(database=DB), (None, "d", (), {"d"}, (), None)),
    (kinds.AlterDatabase(database=DB), (None, "d", (), {"d"}, (), None)),
    (kinds.DropDatabase(db="d"), (None, "d", (), {"d"}, (), None)),
    (kinds.CreateTable(table=T), (("d", "t"), "d", (("d", "t"),), {"d"}, (), None)),
    (kinds.AlterTable(db="d", name="t", table=T), (("d", "t"), "d", (("d", "t"),), {"d"}, (), None)),
    (
        kinds.AlterTable(db="c", name="s", table=T),
        (("d", "t"), "d", (("d", "t"), ("c", "s")), {"c", "d"}, (), (("c", "s"), ("d", "t"))),
    ),
    (kinds.DropTable(db="d", name="t"), (("d", "t"), "d", (("d", "t"),), {"d"}, (), None)),
    (
        kinds.AddPartitions(db="d", table="t", keys=("p",), partitions=(X, Y)),
        (("d", "t"), "d", (("d", "t"),), {"d"}, ("p=x", "p=y"), None),
    ),
    (
        kinds.AlterPartition(db="d", table="t", before="p=x", name="p=x", partition=X),
        (("d", "t"), "d", (("d", "t"),), {"d"}, ("p=x",), None),
    ),
    (
        kinds.AlterPartition(db="d", table="t", before="p=x", name="p=y", partition=Y),
        (("d", "t"), "d", (("d", "t"),), {"d"}, ("p=x", "p=y"), (("d", "t", "p=x"), ("d", "t", "p=y"))),
    ),
    (kinds.DropPartitions(db="d", table="t", names=("p=x",)), (("d", "t"), "d", (("d", "t"),), {"d"}, ("p=x",), None)),
    (kinds.ChangeFiles(db="d", table="t", partition="p=x"), (("d", "t"), "d", (("d", "t"),), {"d"}, ("p=x",), None)),
    (kinds.ChangeFiles(db="d", table="t"), (("d", "t"), "d", (("d", "t"),), {"d"}, (), None)),
    (kinds.AlterIndex(db="d", table="t", name="i"), (("d", "t"), "d", (("d", "t"),), {"d"}, (), None)),
    (kinds.CreateFunction(function=Function(db="d", name="f", class_name="F")), (None, "d", (), {"d"}, (), None)),
    (kinds.DropFunction(db="d", name="f"), (None, "d", (), {"d"}, (), None)),
    (
        kinds.SetStatistics(
            db="d", table="t", statistics=(Statistics(db="d", table="t", partition="p=x", columns=()),)
        ),
        (("d", "t"), "d", (("d", "t"),), {"d"}, (), None),
    ),
    (kinds.SetConstraints(db="d", table="t"), (("d", "t"), "d", (("d", "t"),), {"d"}, (), None)),
    (kinds.SetGrants(db="d", table="t", grants={"p=x": ()}), (("d", "t"), "d", (("d", "t"),), {"d"}, (), None)),
    (kinds.SetGrants(db="d", grants={"": ()}), (None, "d", (), {"d"}, (), None)),
    (kinds.SetWriteIds(db="d", table="t", ids=WriteIds(3)), (("d", "t"), "d", (("d", "t"),), {"d"}, (), None)),
    (kinds.SetRoles(db="d"), (None, "d", (), {"d"}, (), None)),
    (kinds.UnknownEvent(type="NEW", db="d", table="t"), (None, "d", (), {"d"}, (), None)),
    (kinds.EventsRead(), (None, None, (), set(), (), None)),
    (kinds.EventsLost(after=3, next=6), (None, None, (), set(), (), None)),
]


def test_every_kind_is_among_the_examples() -> None:
    assert {type(change).__name__ for change, _ in EXAMPLES} == KINDS


@pytest.mark.parametrize(("change", "facts"), EXAMPLES, ids=lambda each: type(each).__name__)
def test_a_change_tells_what_it_is_about(change: Change, facts: typing.Any) -> None:
    names = ("touched", "touched_db", "tables", "databases", "partition_names", "rename")
    assert tuple(getattr(change, name) for name in names) == facts


def test_markers_losses_and_unread_events_say_so() -> None:
    assert [type(change) for change, _ in EXAMPLES if change.is_marker] == [kinds.EventsRead]
    assert [(list(change.lost), change.is_repaired) for change, _ in EXAMPLES if change.lost] == [([4, 5], False)]
    assert kinds.EventsLost(after=3, next=6, repaired=True).is_repaired
    assert [change.unread for change, _ in EXAMPLES if change.unread is not None] == ["NEW"]


@pytest.mark.parametrize(
    ("databases", "found"),
    [
        ({"d"}, [kinds.AlterTable(db="c", name="s", table=T)]),
        ({"c"}, [kinds.DropTable(db="c", name="s")]),
        ({"c", "d"}, [kinds.AlterTable(db="c", name="s", table=T)]),
        ({"e"}, []),
    ],
)
def test_a_rename_out_of_the_scope_is_a_drop(databases: set[str], found: list[Change]) -> None:
    assert list(changes_in_scope(kinds.AlterTable(db="c", name="s", table=T), databases)) == found


# ---- who has to know the kinds --------------------------------------------------------------------------------------


def kinds_distinguished(path: Path) -> set[str]:
    """Kinds that a module matches on, or asks for with isinstance."""

    def name(node: ast.AST) -> str:
        return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""

    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.MatchClass):
            found.add(name(node.cls))
        elif isinstance(node, ast.Call) and name(node.func) == "isinstance":
            found |= {name(each) for each in ast.walk(node.args[1])}
    return found & KINDS


def test_only_these_modules_tell_the_kinds_of_change_apart() -> None:
    modules = sorted((ROOT / "replicator").rglob("*.py"))
    assert {str(path.relative_to(ROOT)) for path in modules if kinds_distinguished(path)} == DISPATCH


def test_the_design_page_names_them() -> None:
    page = (ROOT / "docs/design.md").read_text().partition("A new kind of event")[2]
    assert all(f"`{path.removeprefix('replicator/').removesuffix('.py')}`" in page for path in DISPATCH)
