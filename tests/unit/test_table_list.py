"""The list of tables: a page at a time of a hundred thousand, and what is known of each."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import msgspec
import pytest
from in_process import InProcess

from cmroot.root import create_or_open
from replicator.captures.manifest import manifest_path, opened
from replicator.compare.sampling import TableMemory, VerifiedTables, read_memory, write_memory
from replicator.core.model import Table
from replicator.core.not_replicated import SOURCE_GRANTS, NotReplicated
from replicator.policies.lag import DatabaseLag, Lag, TableLag
from replicator.policies.memory import Compared, Memory
from replicator.replay.server_rules import NO_GRANTS
from replicator.service.measuring import MeasuredLag
from replicator.service.pages.rendering import safe_place
from replicator.service.web.endpoint import cursor_to, digest

MANY = 100_000
COVERED = 1_795_000_000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> InProcess:
    """A policy with many tables, some of which are behind, differ, or are not replicated; and one of another host."""
    here = tmp_path_factory.mktemp("tables")
    keys = {"source": "thrift://127.0.0.1:1", "target": "thrift://127.0.0.1:2", "dumps": "/d"}
    policies = {
        name: {**keys, "databases": "d", "exclude": "tmp_.*", "cmroot": f"{here}/{name}", "target_cmroot": f"{here}/t"}
        for name in ("west", "east")
    }
    server = InProcess(here, {"policies": policies})
    target = create_or_open(str(here / "t"))
    with opened(manifest_path(create_or_open(str(here / "west")))) as manifest:
        names = [f"t{number:06}" for number in range(MANY)] + ["ice", "tmp_x"]
        body = msgspec.json.encode(Table(db="d", name="x"))
        rows = [(number, name, body) for number, name in enumerate(names, 1)]
        manifest._db.executemany(
            "INSERT INTO tables (id, db, name, location, body, since, named, touched, listed)"
            " VALUES (?, 'd', ?, '', ?, 1, 1, 1, 1)",
            rows,
        )
        manifest._db.execute("INSERT INTO formats VALUES (?, 'iceberg')", (MANY + 1,))
        manifest._db.executemany(
            "INSERT INTO files (table_id, partition_id, path, size) VALUES (?, 0, 'f', ?)",
            [(number, 1024) for number in range(1, 1001)] + [(MANY + 1, 1024 * 1000)],
        )
        manifest.commit()
    memory = Memory(target, "west")
    tables = {"t000001": TableMemory(COVERED - 600.0, "same"), "t000003": TableMemory(COVERED - 60.0, "different")}
    write_memory(str(memory.place / "verified"), "d", VerifiedTables(tables))
    server.serving.watch.keep("west", measured())
    return server


def measured(
    *,
    lacking: Iterable[NotReplicated] = (),
    waiting: Iterable[TableLag] = (),
    status: str = "behind",
    compared: Compared | None = None,
    **more: Any,
) -> MeasuredLag:
    lag = Lag("west", databases=[DatabaseLag("d", "d", status, 1, 1, covered_until=COVERED)], **more)
    lag.tables = [TableLag("d.t000002", 3, 900.0, oldest=COVERED - 900.0), *waiting]
    some = [NotReplicated("d.ice", "an Iceberg table"), NotReplicated("d.t000004", "unreadable", "p=1")]
    lag.not_replicated = [*some, *lacking]
    usual = Compared(open=("d.t000003",), open_count=1, never=7, ended="2026-11-01T00:00:00+00:00")
    return MeasuredLag(time.time(), lag, "", compared or usual)


def rows(server: InProcess, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.get(f"/api/v1/tables?{query}").json()["tables"]
    return found


def test_of_many_tables_a_page_is_shown_and_the_next_one_follows(world: InProcess) -> None:
    first = world.get("/api/v1/tables?limit=100&policy=west").json()
    assert [len(first["tables"]), first["tables"][0]["table"]] == [100, "d.ice"] and len(first["next"]) < 200
    second = world.get(f"/api/v1/tables?limit=100&policy=west&cursor={first['next']}").json()
    assert second["tables"][0]["table"] == "d.t000099" and not set(map(str, first["tables"])) & set(
        map(str, second["tables"])
    )
    page = world.get("/tables")
    assert page.text.count('<tr><th scope="row">') == 50 and len(page.text) < 100_000
    assert "cursor=" in page.text and "no capture has run on this host" not in page.text.split("<table>")[1]


def test_tables_are_found_by_name_state_and_format(world: InProcess) -> None:
    states = {each["table"]: each["state"] for each in rows(world, "search=t00000")}
    assert states == {
        **{f"d.t00000{number}": "in sync" for number in (0, 1, *range(5, 10))},
        "d.t000002": "behind",
        "d.t000003": "differs",
        "d.t000004": "partly replicated",
    }
    assert [each["table"] for each in rows(world, "state=differs")] == ["d.t000003"]
    assert [each["reason"] for each in rows(world, "state=not+replicated")] == ["an Iceberg table"]
    assert [each["table"] for each in rows(world, "format=iceberg")] == ["d.ice"]
    assert rows(world, "search=tmp_") == [], "out of the policy"
    assert world.get("/api/v1/tables?state=well").status_code == 422


def test_what_is_not_known_is_shown_as_unknown(world: InProcess) -> None:
    behind, alike = rows(world, "search=t000002")[0], rows(world, "search=t000001")[0]
    assert behind["replicated_until"] < alike["replicated_until"] and behind["verified"] is None
    assert alike["verified"] and alike["bytes"] == 1024 and alike["changed"] is None
    answer = world.get("/api/v1/tables?limit=1").json()
    assert list(answer["unknown"]) == ["east"], "no capture of this host has recorded its tables"
    try:
        world.serving.watch.keep("west", measured(unreachable={"target": "refused"}))
        away = rows(world, "search=t00000&policy=west")
        known = ("d.t000003", "d.t000004")  # the known difference and the known reason
        assert {each["state"] for each in away if each["table"] not in known} == {"unknown"}
        assert all(each["replicated_until"] is None for each in away if each["state"] == "unknown")
        assert "no answer from target" in world.get("/api/v1/tables/totals?policy=west").json()["totals"][0]["error"]
    finally:
        world.serving.watch.keep("west", measured())


def test_totals_name_what_is_not_replicated_with_its_share(world: InProcess) -> None:
    east, west = world.get("/api/v1/tables/totals").json()["totals"]
    assert (east["tables"], east["bytes"]) == (None, None) and east["error"]
    assert (west["tables"], west["bytes"], west["never"]) == (MANY + 1, 1024 * 2000, 7)
    ice, part = west["not_replicated"]
    assert (ice["objects"], ice["bytes"], ice["unsized"], ice["share"]) == (1, 1024 * 1000, 0, 0.5)
    assert (part["unsized"], part["share"]) == (1, None), "the size of the partition is not known"
    page = world.get("/tables/totals").text
    assert "(50.0%)" in page and "1 object, 1 of unknown size" in page and "not known" in page


def test_a_tables_page_begins_with_its_state(world: InProcess) -> None:
    page = world.get("/tables/d.t000003?policy=west").text
    assert "differs</span>" in page and "1.0 KiB in 1 file" in page and "Until when it is replicated is not" in page
    assert "No policy has this table now" in world.get("/tables/d.gone?policy=west").text
    assert 'href="/tables/d.gone' in world.get("/tables?search=d.gone").text, "a dropped table's timeline"


# ---- what nobody has looked at ---------------------------------------------------------------------------------------


@contextmanager
def kept(server: InProcess, found: MeasuredLag) -> Iterator[None]:
    server.serving.watch.keep("west", found)
    try:
        yield
    finally:
        server.serving.watch.keep("west", measured())


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"lacking": [NotReplicated("d", "12 more objects are not replicated", unknown=True)]}, "12 more objects"),
        ({"lacking": [NotReplicated("d", "its property cannot be read")]}, "cannot be read"),
        ({"at_least": True}, "lower bound"),
        ({"unexamined": 5}, "5 events"),
        ({"waiting": [TableLag(f"d.u{number}", 1) for number in range(1000)]}, "1,000 listed tables"),
        ({"status": "loading"}, "has not ended"),
        ({"compared": Compared(open=("d.t000003",), open_count=9, ended="2027-01-01T00:00:00+00:00")}, "8 differing"),
    ],
)
def test_no_table_is_in_sync_for_which_more_may_wait(more: dict[str, Any], why: str, world: InProcess) -> None:
    with kept(world, measured(**more)):
        found = {each["table"]: each for each in rows(world, "policy=west&search=t00000")}
        same = found["d.t000001"]
        assert (same["state"], same["replicated_until"]) == ("unknown", None) and why in same["reason"]
        assert [found[f"d.t00000{number}"]["state"] for number in (2, 3)] == ["behind", "differs"]
        assert not rows(world, "policy=west&state=in+sync&limit=3")
        assert why in world.get("/tables?policy=west&search=t000001").text


def test_a_table_without_its_grants_is_replicated_in_part(world: InProcess) -> None:
    lacking = [NotReplicated("d", f"{SOURCE_GRANTS}refused"), NotReplicated("d.t000001", f"{NO_GRANTS}Ranger")]
    with kept(world, measured(lacking=lacking)):
        found = {each["table"]: each["state"] for each in rows(world, "policy=west&search=t00000")}
    assert (found["d.t000001"], found["d.t000005"]) == ("partly replicated", "in sync"), found


def test_the_tables_that_differ_are_as_many_as_are_counted(world: InProcess) -> None:
    place = str(Memory(create_or_open(world.serving.config.policies["west"].target_cmroot), "west").place / "verified")
    before = read_memory(place, "d")[0]
    tables = {f"t00000{number}": TableMemory(COVERED - 60.0, "different") for number in (3, 5, 6)}
    compared = Compared(open=("d.t000003",), open_count=3, ended="2026-11-01T00:00:00+00:00")
    try:
        write_memory(place, "d", VerifiedTables({**before.tables, **tables}))
        with kept(world, measured(compared=compared)):
            found = [each["table"] for each in rows(world, "policy=west&state=differs")]
            assert found == ["d.t000003", "d.t000005", "d.t000006"]
            assert "3 tables differ" in world.get("/policies").text
            assert rows(world, "policy=west&search=t000001")[0]["state"] == "in sync"
        away = measured(compared=compared, unreachable={"target": "refused"})
        with kept(world, away):
            assert len(rows(world, "policy=west&state=differs")) == 3, "they are known also while a side is away"
    finally:
        write_memory(place, "d", before)


def test_a_table_that_differs_is_not_replicated_until_a_time(world: InProcess) -> None:
    found = {each["table"]: each["replicated_until"] for each in rows(world, "policy=west&search=t00000")}
    assert found["d.t000003"] is found["d.t000004"] is None, "differs, and partly replicated"
    assert found["d.t000001"] and found["d.t000002"]


# ---- several manifests -----------------------------------------------------------------------------------------------


def made(here: Path, roots: Mapping[str, str], *, open_to_all: bool = True, **more: Any) -> InProcess:
    """A server with these policies, by name, each with a root of `here`. more: keys of some of them."""
    keys = {"source": "thrift://127.0.0.1:1", "target": "thrift://127.0.0.1:2", "dumps": "/d", "databases": ".*"}
    places = {name: {"cmroot": f"{here}/{root}", "target_cmroot": f"{here}/target"} for name, root in roots.items()}
    for name, each in more.items():
        places[name] |= each
    return InProcess(here, {"policies": {name: keys | each for name, each in places.items()}}, open_to_all=open_to_all)


def record(here: Path, root: str, names: Iterable[tuple[str, str]], position: int = 1, size: int = 1) -> Path:
    """Records tables in the manifest of a root, in place of former ones."""
    path = manifest_path(create_or_open(f"{here}/{root}"))
    with opened(path) as manifest:
        manifest._db.execute("DELETE FROM tables")
        manifest._db.execute("DELETE FROM files")
        for number, (db, name) in enumerate(names, 1):
            row = (number, db, name, msgspec.json.encode(Table(db=db, name=name)))
            manifest._db.execute(
                "INSERT INTO tables (id, db, name, location, body, since, named, touched, listed)"
                " VALUES (?, ?, ?, '', ?, 1, 1, 1, 1)",
                row,
            )
            manifest._db.execute(
                "INSERT INTO files (table_id, partition_id, path, size) VALUES (?, 0, 'f', ?)", (number, size)
            )
        manifest.advance(position, 1, 1)
        manifest.commit()
    return path


def spoil(path: Path, how: str) -> None:
    """Damages a manifest: the whole file, the pages after its first rows, or what one row contains."""
    with closing(sqlite3.connect(path)) as db:
        if how == "a row":
            db.execute("UPDATE tables SET body = '{' WHERE name = 't0001'")
            db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if how != "a row":
        data = bytearray(path.read_bytes())
        begin = 0 if how == "the file" else 4096 * 8
        data[begin:] = b"\xff" * (len(data) - begin)
        path.write_bytes(data)


@pytest.mark.parametrize("how", ["the file", "its pages", "a row"])
def test_a_damaged_manifest_hides_no_other_policys_tables(how: str, tmp_path: Path) -> None:
    server = made(tmp_path, {"bad": "bad", "good": "good"}, bad={"databases": "d"})
    record(tmp_path, "good", [("d", f"t{number:04}") for number in range(500)])
    spoil(record(tmp_path, "bad", [("d", f"t{number:04}") for number in range(500)]), how)
    answer = server.get("/api/v1/tables?limit=1000").json()
    assert sum(each["policy"] == "good" for each in answer["tables"]) == 500
    assert list(answer["unknown"]) == ["bad"] and "manifest.sqlite" in answer["unknown"]["bad"]
    first = server.get("/tables?format=json").json()["found"]["found"]
    assert [len(first["tables"]), bool(first["next"])] == [50, True]
    assert "Not all tables of" in server.get("/tables").text
    detail = server.get("/tables/d.t0001").text
    assert "Whether bad has this table is not known" in detail and ">good</a>" in detail
    for each in ("/tables/totals", "/tables/totals?format=json", "/tables?format=json&search=t0001"):
        assert server.get(each).status_code == 200
    good = server.get("/api/v1/tables?table=e.t1").json()
    assert good["unknown"] == {}, "no table of that name can be of the policy"


def test_one_table_is_read_only_from_policies_that_select_it(tmp_path: Path) -> None:
    server = made(tmp_path, {"bad": "bad", "good": "good"}, bad={"exclude": "t.*"})
    record(tmp_path, "good", [("d", "t1"), ("d", "t2")])
    spoil(record(tmp_path, "bad", [("d", "t1")]), "the file")
    answer = server.get("/api/v1/tables?table=D.T1").json()
    assert [each["table"] for each in answer["tables"]] == ["d.t1"] and answer["unknown"] == {}
    assert server.get("/api/v1/tables?table=d.t1&state=behind").json()["tables"] == []


def test_totals_are_counted_once_for_a_position(tmp_path: Path) -> None:
    server = made(tmp_path, {"a": "a", "b": "a"}, b={"exclude": "t2"})

    def counted() -> list[list[int]]:
        found = server.get("/api/v1/tables/totals").json()["totals"]
        return [[each["tables"], each["bytes"]] for each in found]

    record(tmp_path, "a", [("d", "t1"), ("d", "t2")], position=3)
    assert counted() == [[2, 2], [1, 1]]
    record(tmp_path, "a", [("d", "t1"), ("d", "t2")], position=3, size=7)
    assert counted() == [[2, 2], [1, 1]], "at one position the contents are the same: they are not read again"
    record(tmp_path, "a", [("d", "t1"), ("d", "t2")], position=4, size=7)
    assert counted() == [[2, 14], [1, 7]]


# ---- a table's page --------------------------------------------------------------------------------------------------


def test_policies_with_one_root_have_pages_of_their_own(tmp_path: Path) -> None:
    server = made(tmp_path, {"a": "one", "b": "one", "c": "other"}, a={"exclude": "t"}, c={"databases": "x"})
    record(tmp_path, "one", [("d", "s"), ("d", "t"), ("e", "s")])
    token = {policy: server.token(policy, "viewer", policy) for policy in "abc"}
    page = server.get("/tables/d.s?policy=b").text
    assert ">b</a>: " in page and ">a</a>: " not in page, "the row of the page's policy"
    for path in ("/tables/d.t?policy=b", "/tables/d.t"):
        answer = server.get(path, headers=token["b"])
        assert answer.status_code == 200 and ">b</a>: " in answer.text
        assert "a $cmroot of several policies" in answer.text and "No $cmroot is configured" not in answer.text
        assert server.get(f"{path}{'&' if '?' in path else '?'}format=json", headers=token["b"]).status_code == 200
    assert server.get("/tables/d.t?policy=a", headers=token["b"]).status_code == 403
    assert server.get("/tables/d.t?policy=none").status_code == 404
    assert server.get(f"/tables/d.t?root={tmp_path}/one", headers=token["c"]).status_code == 404
    assert server.get("/tables/d.t?format=json").json()["owner"] == "b", "a leaves the table out"


NAMES = [
    ("d", "a"),
    ("d", "a b"),
    ("d", "a/b"),
    ("d", "a/b/restore"),
    ("d", "a.b"),
    ("d", "../c"),
    ("d", "q?x=1#y%2F&z"),
    ("d", '"quoted"'),
    ("d", "ü" * 128),
    ("d", "\u8868" * 256),
    ("e.f", "g"),
    ("e", "f.g"),
    ("h/i", "j"),
    ("h i", "j k"),
]


def test_pages_reach_tables_with_any_name_once(tmp_path: Path) -> None:
    server = made(tmp_path, {"a": "one", "b": "one"})
    record(tmp_path, "one", NAMES)
    found, cursor = [], ""
    while cursor is not None:
        answer = server.get("/api/v1/tables", params={"limit": 3} | ({"cursor": cursor} if cursor else {}))
        assert answer.status_code == 200, answer.text
        found += [(each["db"], each["table"], each["policy"]) for each in answer.json()["tables"]]
        cursor = answer.json()["next"]
    assert found == [(db, f"{db}.{name}", policy) for db, name in sorted(NAMES) for policy in "ab"]
    forged = cursor_to("d.a west", digest("tables", {}))
    assert server.get("/api/v1/tables", params={"cursor": forged}).status_code == 400


def test_each_tables_link_opens_its_page(tmp_path: Path) -> None:
    server = made(tmp_path, {"a": "one"})
    record(tmp_path, "one", NAMES)
    links = re.findall(r'<th scope="row"><a href="([^"]*)"', server.get("/tables").text)
    assert len(links) == len(NAMES)
    for link, (db, name) in zip(map(unescape, links), sorted(NAMES), strict=True):
        answer = server.get(link)
        assert answer.status_code == 200 and ">a</a>: " in answer.text, link
        data = server.get(unescape(re.findall(r'href="([^"]*format=json)"', answer.text)[0])).json()
        assert data["table"] == f"{db}.{name}"
        assert (db, data["table"]) in [(each["db"], each["table"]) for each in data["states"]]
        timeline = f"/api/v1/tables/{quote(f'{db}.{name}', safe='')}/timeline?root=policies/a/cmroot"
        assert server.get(timeline).status_code == 200, timeline


def test_signing_in_leads_back_to_the_page_of_a_table(tmp_path: Path) -> None:
    server = made(tmp_path, {"a": "one"}, open_to_all=False)
    for db, name in NAMES:
        sign_in = server.get(f"/tables/{quote(f'{db}.{name}', safe='')}?kind=run").headers["location"]
        (place,) = parse_qs(urlsplit(sign_in).query)["next"]
        assert safe_place(place) == place and unquote(place) == f"/tables/{db}.{name}?kind=run"
        assert server.get(sign_in).status_code == 200
