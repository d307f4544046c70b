"""Assets and requests as people give them: on the command line and in Python, refused with the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

import replicator
from replicator.cli.main import run
from replicator.core.config import Config, parse_config
from replicator.core.model import Column
from replicator.errors import ConfigError, Error, ObjectNotFound, Refused, StoreUnreachable, TypeRefused, UsageError
from replicator.ingestion import request_directory
from replicator.ingestion.file_description import parts_of
from replicator.ingestion.ingestion_request import Asset, Claimed, Request
from replicator.ingestion.intake import Requester, parse_request, this_user
from replicator.ingestion.landing.landing_log import Work
from replicator.ingestion.landing.landing_schema import landing_table
from replicator.ingestion.landing.publishing import ForeignTable, landing_of

PAUL: dict[str, Any] = {"by": "paul", "groups": ["staff", "crm_producer"]}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    source = {"url": "jdbc:postgresql://crm:5432/crm"}
    tables = {"store": f"sqlite:///{tmp_path}/i.sqlite", "sources": {"crm": source, "other": source}}
    found = parse_config({"ingestion": tables}, "test")
    given = {"owner": "olga", "producers": "crm_producer", "sources": ["crm"]}
    replicator.asset_create("crm", config=found, by="olga", **given)
    replicator.asset_approve("crm", config=found, by="anna")
    return found


@pytest.mark.parametrize(
    ("given", "said", "hint"),
    [
        ({"table": "crm.public.orders"}, "is not a table of a source", "SOURCE:SCHEMA.TABLE"),
        ({"asset": "cmr"}, "asset 'cmr' does not exist", "did you mean crm?"),
        ({"by": "anna", "groups": ()}, "anna is neither the owner nor a producer", "ask its owner, olga"),
        ({"table": "other:public.orders"}, "asset crm has no source 'other'", "it has crm"),
        ({"mode": "append"}, "mode append requires a watermark", "a column whose values only grow"),
        ({"mode": "merge", "watermark": "id"}, "mode merge requires a key", "columns that identify a row"),
        ({"watermark": "id"}, "overwrite reads all rows", "append or merge"),
        ({"mode": "append", "watermark": "id", "key": "id"}, "mode append does not use a key", "merge does"),
        ({"mode": "append", "watermark": " "}, "a column has no name", "name a column"),
        ({"readers": 65}, "65 is not in the range", "--help"),
        ({"mode": "replace"}, "'replace' is not one of 'overwrite'", "--help"),
        ({"table": 'crm:public.or"ders'}, "its landing table cannot be named", "create a view"),
        ({"note": "\udcff"}, "its note is not valid text", "UTF-8"),
        ({"asset": "\udcff"}, "asset '\\udcff' does not exist", "`replicator asset ls`"),
        ({"key": ["a\0"], "mode": "merge"}, "its key is not valid text", "NUL"),
        ({"note": "x" * 1001}, "its note is too long", "1000"),
        ({"asset": "x" * 10_000_000}, "its asset is too long", "1000"),
        ({"table": f"crm:public.{'x' * 1001}"}, "its table is too long", "1000"),
        ({"split_column": "x" * 1001}, "its split is too long", "1000"),
        ({"key": ["x" * 1001], "mode": "merge"}, "its key is too long", "1000"),
        ({"key": ["x"] * 101, "mode": "merge"}, "the key has 101 columns", "100"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_request_that_cannot_be_is_refused_at_once(
    config: Config, given: dict[str, Any], said: str, hint: str
) -> None:
    asked = {"table": "crm:public.orders", "asset": "crm", **PAUL, **given}
    with pytest.raises(Error) as refused:
        replicator.ingest_request(config=config, **asked)
    assert said in refused.value.message and hint in refused.value.hint
    assert isinstance(refused.value, UsageError | ObjectNotFound | Refused)
    assert replicator.ingest_ls(config=config).jobs == [], "it is no failed job"
    assert replicator.ingest_ls(asset="\udcff", config=config).jobs == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "CRM"}, "invalid name"),
        ({"name": "c" * 65}, "invalid name"),
        ({"owner": " "}, "has no owner"),
        ({"sources": "cmr"}, "source 'cmr' is not configured"),
        ({"consumers": ["a", ""]}, "producer or consumer has no name"),
        ({"consumers": "people:a"}, "is not a valid consumer"),
        ({"owner": "o\0"}, "its owner is not valid text"),
        ({"classification": "personal"}, "would restore erased data subjects"),
        ({"classification": "personal", "erasure_column": "id"}, "column without ids"),
        ({"erasure_ids": "ids", "erasure_column": "id"}, "is not a column of ids"),
        ({"erasure_match": "trim"}, "match rules without ids"),
        ({"erasure_ids": "g.t:id", "erasure_column": "id", "erasure_match": ["exact", "trim"]}, "combines exact"),
        ({"retention": "long"}, "is not a duration"),
        ({"classification": "secret"}, "'secret' is not one of"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_asset_that_cannot_be_is_refused(config: Config, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        replicator.asset_create(config=config, **{"name": "hr", "owner": "olga", **given})
    assert [each.name for each in replicator.asset_ls(config=config).assets] == ["crm"]


def test_an_asset_is_changed_by_its_owner_and_approved_again(config: Config) -> None:
    create: Callable[..., Any] = replicator.asset_create
    given = {"config": config, "owner": "olga", "producers": "crm_producer", "sources": "crm"}
    assert create("crm", by="olga", **given).status == "unchanged"
    with pytest.raises(Refused, match="belongs to olga"):
        create("crm", **PAUL, **{**given, "owner": "paul"}, overwrite=True)
    with pytest.raises(Refused, match="with other values"):
        create("crm", by="olga", **given, note="of 2026")
    assert create("crm", by="olga", **given, note="of 2026", overwrite=True).status == "changed"
    with pytest.raises(Refused, match="not approved yet"):
        replicator.ingest_request("crm:public.orders", asset="crm", config=config, **PAUL)
    assert create("hr", config=config, owner="o", classification="personal", exemption="none left").status == "created"


def test_a_name_is_a_users_or_a_groups_unless_it_says_which() -> None:
    paul = Requester("paul", ("staff",))
    assert all(paul.is_one_of(["other", name]) for name in ("paul", "staff", "user:paul", "group:staff"))
    assert not paul.is_one_of(["group:paul", "user:staff", "other", ""])
    eve = Requester("proxy:eve", ("user:olga", "group:makers"))
    assert not eve.is_one_of(["user:olga", "group:makers", "olga", "makers"]) and eve.is_one_of(["group:user:olga"])
    assert Requester("user:olga").is_one_of(["user:user:olga"]) and not Requester("user:olga").is_one_of(["user:olga"])


@pytest.mark.parametrize(("maker", "approver"), [("olga", "proxy:olga"), ("proxy:olga", "olga")])
def test_nobody_approves_by_another_door_what_they_made(config: Config, maker: str, approver: str) -> None:
    replicator.asset_create("own", config=config, owner="olga", sources="crm", by=maker)
    with pytest.raises(Refused, match=f"was defined by {approver}"):
        replicator.asset_approve("own", config=config, by=approver)
    assert replicator.asset_approve("own", config=config, by="proxy:anna").asset.approved_by == "proxy:anna"


def test_a_table_of_lists_is_landed_over_by_no_other_request() -> None:
    asset, columns = Asset(name="sales", owner="o"), [Column("row_id", "string"), Column("parent_id", "string")]
    drop = Request("sales", "drop", "public", "Orders")
    work = Work(Claimed(1, 1, 1, "c", drop, "", {}), asset, *(Mock() for _ in range(6)))
    part, same = work.part("Items").request, Request("sales", "drop", "public", "orders__items")
    other = msgspec.structs.replace(same, source="crm")
    assert part.target == same.target == other.target

    def lands(one: Request, of: Request, columns: list[Column] = columns) -> bool:
        """Whether one's rows land where another's are."""
        there = Mock()
        there.table.return_value = landing_table(asset, of, columns, "file:/x")
        try:
            return landing_of(there, asset, one) is not None
        except ForeignTable as error:
            assert of.place in error.message and one.place in error.message
            return False

    assert all(lands(each, each) for each in (drop, part, same, other))
    assert not any(lands(*two) for two in ((same, part), (other, part), (part, other), (same, other), (other, same)))
    assert lands(part, same), "as an earlier release wrote it"
    assert not lands(part, same, [Column("id", "int")])


def test_two_lists_whose_tables_would_have_one_name_are_refused() -> None:
    def field(name: str, type_: Any) -> dict[str, Any]:
        return {"name": name, "type": type_}

    def listed(of: Any) -> dict[str, Any]:
        return {"type": "array", "elementType": of}

    def struct(*fields: Any) -> dict[str, Any]:
        return {"type": "struct", "fields": [*fields]}

    inner = field("B", listed("long"))
    for two in (
        [field("a", struct(inner)), field("a_b", listed("string"))],
        [field("a", listed(struct(inner))), field("a__b", listed("string"))],
    ):
        with pytest.raises(TypeRefused, match=r"^a\.B and a_+b would both land"):
            parts_of(struct(*two))
        assert len(parts_of(struct(two[0]))) > 1


def test_a_job_is_requested_shown_and_cancelled(config: Config) -> None:
    given: dict[str, Any] = {"asset": "crm", "config": config, **PAUL}
    first = replicator.ingest_request("crm:public.orders", **given)
    again = replicator.ingest_request("crm:public.orders", mode="merge", key=["id"], watermark="at", **given)
    assert (again.replaces, again.target, again.position) == (first.job, "crm_public.orders", 1)
    listed = replicator.ingest_ls(asset="crm", state="queued", config=config)
    assert [each.job for each in listed.jobs] == [again.job]
    assert [each.job for each in replicator.ingest_ls(before=again.job, config=config).jobs] == [first.job]
    with pytest.raises(Refused, match="neither its owner nor a producer"):
        replicator.ingest_cancel(again.job, config=config, by="anna")
    assert replicator.ingest_cancel(again.job, config=config, by="olga").status == "cancelled"
    shown = replicator.ingest_show(again.job, config=config).detail
    assert [each.state for each in shown.changes] == ["queued", "cancelled"] and shown.request.key == ("id",)
    assert shown.changes[-1].actor == "olga" and shown.job.approved_by == "anna"


def test_the_command_line_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("replicator.toml").write_text(
        '[service]\nstore = "sqlite:///s.sqlite"\n[ingestion.sources.crm]\nurl = "jdbc:postgresql://crm:5432/crm"\n'
    )

    def said(line: str, code: int = 0) -> str:
        assert run(line.split()) == code
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    user = this_user().user
    assert "not approved yet" in said(f"asset create crm --owner {user} --source crm --producer p")
    assert f"was defined by {user}" in said("asset approve crm", 6)
    assert f"another user than {user} must run `replicator asset approve crm`" in said(
        "ingest request crm:public.orders --asset crm", 6
    )
    replicator.asset_approve("crm", by="anna")
    assert "anna" in said("asset ls") and json.loads(said("asset show crm --json"))["approved_by"] == "anna"
    asked = json.loads(said("ingest request crm:public.orders --asset crm --mode append --watermark id --json"))
    assert (asked["status"], asked["job"], asked["replaces"]) == ("queued", 1, None)
    assert "replaces  job 1" in said("ingest request crm:public.orders --asset crm")
    assert "crm:public.orders" in said("ingest ls --source crm --state queued")
    assert "crm_public.orders" in said("ingest show 2") and json.loads(said("ingest show 1 --json"))["mode"] == "append"
    assert said("ingest cancel 2").startswith("cancelled")
    assert "job 9 does not exist" in said("ingest show 9", 1)


def test_what_somebody_wrote_says_no_field_that_is_unknown_and_not_who_asks() -> None:
    good = {"asset": "crm", "source": "crm", "schema": "public", "table": "orders", "split": {"readers": 4}}
    assert parse_request(good, "a.json").split.readers == 4
    for wrong, said, hint in (
        ({"requested_by": "olga"}, "field 'requested_by' is not permitted", "omit it"),
        ({"watermrk": "id"}, "unknown field 'watermrk'", "did you mean watermark?"),
        ({"split": {"reader": 4}}, "split: unknown field 'reader'", "did you mean readers?"),
        ({"mode": "all"}, "Invalid enum value 'all'", "docs/ingestion.md"),
        ({"table": 7}, "Expected `str`", "docs/ingestion.md"),
        ({"key": "id"}, "Expected `array`", "docs/ingestion.md"),
    ):
        with pytest.raises(UsageError) as refused:
            parse_request({**good, **wrong}, "a.json")
        assert said in refused.value.message and hint in refused.value.hint


def test_requests_in_a_directory_are_taken_once_for_their_owners_and_answered(config: Config, tmp_path: Path) -> None:
    user = this_user().user
    replicator.asset_create("own", config=config, owner=user, sources="crm", by="olga")
    replicator.asset_approve("own", config=config, by="anna")
    place = tmp_path / "requests"
    place.mkdir()
    good = {"asset": "own", "source": "crm", "schema": "public", "table": "orders"}
    (place / "a.json").write_text(json.dumps(good))
    (place / "b.toml").write_text('asset = "own"\nsource = "crm"\nschema = "public"\ntable = "log"\nmode = "append"\n')
    (place / "c.json").write_text(json.dumps({**good, "requested_by": "olga"}))
    (place / "d.json").write_text(json.dumps({**good, "asset": "crm"}))
    (place / "e.json").write_text("{")
    (place / "f.json").write_bytes(b"[]" + b" " * 70_000)
    (place / "g.json").symlink_to("/etc/passwd")
    (tmp_path / "h.json").write_text(json.dumps(good))
    (place / "h.json").hardlink_to(tmp_path / "h.json")
    (place / ".i.json").write_text(json.dumps(good))
    (place / "j.txt").write_text(json.dumps(good))
    (place / "k.json.answer.json").mkdir()
    (place / "k.json").write_text(json.dumps({**good, "table": "people"}))

    found = {one.name: one for one in replicator.ingest_take(directory=str(place), config=config).requests}
    assert {name: one.job for name, one in found.items() if one.job} == {"a.json": 1, "k.json": 2}
    for name, said in (
        ("b.toml", "mode append requires a watermark"),
        ("c.json", "'requested_by' is not permitted"),
        ("d.json", f"{user} is neither the owner nor a producer"),
        ("e.json", "cannot be read"),
        ("f.json", "larger than"),
        ("h.json", "other names"),
    ):
        assert said in found[name].error, name
        assert said in json.loads((place / f"{name}.answer.json").read_text())["error"]
    answer = json.loads((place / "a.json.answer.json").read_text())
    assert "crm" in answer.pop("unchecked"), "nobody answers there"
    assert answer == {"name": "a.json", "requested_by": user, "job": 1, "position": 1, "checked": False}
    left = {each.name for each in place.iterdir() if not each.name.endswith(".answer.json")}
    assert left == {"g.json", ".i.json", "j.txt", "taking", "taken"}
    assert len(list((place / "taken").iterdir())) == 8 and not list((place / "taking").iterdir())
    assert replicator.ingest_take(directory=str(place), config=config).requests == []


@pytest.mark.parametrize("field", [name for name in Request.__struct_fields__ if name != "requested_by"])
def test_a_request_that_no_program_can_keep_stands_in_no_others_way(config: Config, tmp_path: Path, field: str) -> None:
    user = this_user().user
    replicator.asset_create("own", config=config, owner=user, sources="crm", by="olga")
    replicator.asset_approve("own", config=config, by="anna")
    good = {"asset": "own", "source": "crm", "schema": "public", "table": "orders"}
    bad = ["\ud800"] if field == "key" else {"column": "\ud800"} if field == "split" else "\ud800"
    (tmp_path / "a.json").write_text(json.dumps({**good, "mode": "merge", "key": ["id"], field: bad}))
    (tmp_path / "b.json").write_text(json.dumps({**good, field: "\ud800"}))
    (tmp_path / "c.json").write_text(json.dumps(good))
    found = replicator.ingest_take(directory=str(tmp_path), config=config).requests
    assert [(one.name, one.job) for one in found] == [("a.json", None), ("b.json", None), ("c.json", 1)]
    assert found[0].error and "internal" not in found[0].error + found[1].error


def test_a_request_that_fails_for_no_known_reason_is_answered(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        asked = {"asset": "crm", "source": "crm", "schema": "public", "table": name}
        (tmp_path / f"{name}.json").write_text(json.dumps(asked))

    def fails(*given: Any) -> Any:
        if given[2].table == "a":
            raise AssertionError("never")
        raise Refused("not by you")

    monkeypatch.setattr(request_directory, "accept", fails)
    found = replicator.ingest_take(directory=str(tmp_path), config=config).requests
    assert [one.error for one in found] == ["internal error, request not accepted", "not by you"]
    assert "never" in caplog.text and not list((tmp_path / "taking").iterdir())
    assert "not accepted" in (tmp_path / "a.json.answer.json").read_text()

    (tmp_path / "c.json").write_text(json.dumps(asked))
    monkeypatch.setattr(request_directory, "accept", Mock(side_effect=StoreUnreachable("away")))
    with pytest.raises(StoreUnreachable):
        replicator.ingest_take(directory=str(tmp_path), config=config)
    assert len(list((tmp_path / "taking").iterdir())) == 1, "it waits for the store"


@pytest.mark.parametrize("step", ["rename", "accept", "replace", "last"])
def test_a_killed_run_leaves_requests_that_the_next_one_goes_on_with(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    user = this_user().user
    replicator.asset_create("own", config=config, owner=user, sources="crm", by="olga")
    replicator.asset_approve("own", config=config, by="anna")
    place = tmp_path / "requests"
    place.mkdir()
    for name in ("a", "b"):
        asked = {"asset": "own", "source": "crm", "schema": "public", "table": name}
        (place / f"{name}.json").write_text(json.dumps(asked))
    calls = 0

    def killed(original: Callable[..., Any], at: int) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            result = original(*arguments, **more)
            if calls == at:
                raise KeyboardInterrupt
            return result

        return call

    with monkeypatch.context() as patched:
        if step == "accept":
            patched.setattr(request_directory, "accept", killed(request_directory.accept, 1))
        else:
            name = "replace" if step == "replace" else "rename"
            patched.setattr(Path, name, killed(getattr(Path, name), 3 if step == "last" else 1))
        with pytest.raises(KeyboardInterrupt):
            replicator.ingest_take(directory=str(place), config=config)
    replicator.ingest_take(directory=str(place), config=config)
    jobs = replicator.ingest_ls(config=config).jobs
    assert sorted((one.source, one.state) for one in jobs) == [("crm:public.a", "queued"), ("crm:public.b", "queued")]
    assert sorted(each.name for each in place.glob("*.answer.json")) == ["a.json.answer.json", "b.json.answer.json"]
    assert len(list((place / "taken").iterdir())) == 2 and not list((place / "taking").glob("[!.]*"))


def test_a_directory_of_ours_that_others_may_write_in_is_refused(config: Config, tmp_path: Path) -> None:
    (tmp_path / "taking").mkdir()
    (tmp_path / "taking").chmod(0o777)
    with pytest.raises(Refused, match="other users may write"):
        replicator.ingest_take(directory=str(tmp_path), config=config)
    with pytest.raises(UsageError, match="is not a directory"):
        replicator.ingest_take(directory=str(tmp_path / "none"), config=config)
    with pytest.raises(UsageError, match="--directory or --database"):
        replicator.ingest_take(config=config)


def test_a_drop_zones_directory_and_description_are_looked_at_at_once(tmp_path: Path) -> None:
    sources = {"drop": {"path": str(tmp_path / "drop")}, "web": {"url": "jdbc:mysql://h/web"}}
    config = parse_config({"ingestion": {"store": f"sqlite:///{tmp_path}/i.sqlite", "sources": sources}}, "test")
    replicator.asset_create("crm", config=config, owner="olga", sources=["drop", "web"], by="olga")
    replicator.asset_approve("crm", config=config, by="anna")

    def ask(table: str = "drop:day.orders", **more: Any) -> Any:
        return replicator.ingest_request(table, asset="crm", config=config, by="olga", **more)

    def refused(said: str, **more: Any) -> None:
        with pytest.raises(UsageError, match=said):
            ask(**more)

    assert not (queued := ask()).checked and "does not exist at present" in queued.unchecked, (
        "it may not be mounted now"
    )
    assert "mysql" in ask("web:public.orders").unchecked
    place = tmp_path / "drop" / "day" / "orders"
    place.parent.mkdir(parents=True)
    refused("directory .*orders does not exist")
    place.mkdir()
    refused("has no _description.json")
    description = place / "_description.json"
    description.write_text('{"format": "csv", "columns": [{"name": "Id", "type": "bigint"}]}')
    refused("column ix, its key, does not exist", mode="merge", key="ix")
    refused("files are appended by day", mode="append")
    assert ask(mode="merge", key="ID").checked and ask().checked
    description.write_text('{"format": "csv"}')
    refused("csv requires `columns`")
    description.write_text('{"format": "parquet"}')
    assert "in its files" in ask(mode="merge", key="id").unchecked


def test_an_asset_has_what_its_class_gives_unless_it_says_so_itself(tmp_path: Path) -> None:
    personal = {"retention": "30d", "erasure_ids": "gdpr.gone:id", "erasure_column": "person", "erasure_match": ["nfc"]}
    tables = {"store": f"sqlite:///{tmp_path}/i.sqlite", "classes": {"personal": personal}}
    config = parse_config({"ingestion": {**tables, "landing": str(tmp_path / "landing")}}, "test")
    given: dict[str, Any] = {"owner": "olga", "classification": "personal", "by": "olga", "config": config}
    made = replicator.asset_create("hr", erasure_column="member", consumers="readers", **given)
    one = made.asset
    assert (one.retention, one.erasure_ids, one.erasure_column) == ("30d", "gdpr.gone:id", "member")
    by = dict.fromkeys(("retention", "erasure_ids", "erasure_match"), "class personal") | {"erasure_column": "asset"}
    assert made.given_by == by == replicator.asset_show("hr", config=config).given_by
    exempt = replicator.asset_create("old", exemption="nobody lives", **given)
    plain = replicator.asset_create("plain", erasure_column="id", erasure_match="exact", **given)
    assert plain.asset.erasure_match == ("exact",), "none of its class"
    assert (
        exempt.asset.erasure_ids is None
        and exempt.asset.erasure_match is None
        and exempt.given_by == {"retention": "class personal"}
    )
    assert replicator.asset_create("hr", erasure_column="member", consumers="readers", **given).status == "unchanged"

    first = replicator.asset_approve("hr", by="anna", config=config)
    assert "the first landing creates it" in first.not_made[0] and "rights of readers" in first.not_made[1]
    (tmp_path / "landing").mkdir()
    again = replicator.asset_approve("hr", by="anna", config=config)
    assert len(again.not_made) == 1 and (tmp_path / "landing" / "hr").is_dir()
    assert len(replicator.asset_approve("hr", by="anna", config=config).not_made) == 1

    with pytest.raises(ConfigError, match="retention: "):
        parse_config({"ingestion": {"classes": {"public": {"retention": "long"}}}}, "test")
    with pytest.raises(ConfigError, match="classes"):
        parse_config({"ingestion": {"classes": {"secret": {}}}}, "test")


def test_policies_replicate_what_the_classification_lets_them(tmp_path: Path) -> None:
    policy = {"cmroot": "/cm", "target_cmroot": "/dr", "dumps": "/dumps", "target": "thrift://dr:9083"}
    values: dict[str, Any] = {
        "ingestion": {
            "metastore": "thrift://one:9083,thrift://two",
            "store": f"sqlite:///{tmp_path}/i.sqlite",
            "sources": {"crm": {"url": "jdbc:mysql://crm/crm"}},
            "classes": {"confidential": {"policies": ["dr"]}, "personal": {"policies": []}},
        },
        "policies": {
            "dr": {"source": "thrift://TWO:9083", "databases": [".*"], **policy},
            "test": {"source": "thrift://two", "databases": ["hr_.*"], "exclude": ["secret.*"], **policy},
            "other": {"source": "thrift://away", "databases": [".*"], **policy},
        },
    }
    config = parse_config(values, "test")

    def ask(table: str, asset: str = "hr") -> str:
        return replicator.ingest_request(f"crm:public.{table}", asset=asset, by="olga", config=config).target

    given: dict[str, Any] = {"owner": "olga", "sources": ["crm"], "by": "olga", "config": config}
    made = replicator.asset_create("hr", classification="confidential", **given)
    assert made.policies == ("dr",) and made.to_dict()["policies"] == ["dr"]
    replicator.asset_create("crm", classification="personal", exemption="none lives", **given)
    assert replicator.asset_create("open", **given).policies is None
    for name in ("hr", "crm", "open"):
        replicator.asset_approve(name, by="anna", config=config)
    assert ask("Secrets") == "hr_public.secrets" and ask("people", "open")
    with pytest.raises(Refused, match=r"policy test would replicate hr_public\.people.* confidential") as refused:
        ask("people")
    assert "[policies.test]" in (refused.value.hint or "") and "[ingestion.classes.confidential]" in str(
        refused.value.hint
    )
    with pytest.raises(Refused, match="policy dr would replicate crm_public"):
        ask("people", "crm")
    assert len(replicator.ingest_ls(config=config).jobs) == 2

    values["ingestion"]["classes"]["confidential"]["policies"] = ["drr"]
    with pytest.raises(ConfigError, match=r"classes\.confidential\.policies: 'drr' is not a policy") as wrong:
        parse_config(values, "test")
    assert "did you mean dr?" in (wrong.value.hint or "")
    with pytest.raises(ConfigError, match="unknown key `replicating`"):
        parse_config({"ingestion": {"replicating": []}}, "test")


def test_tables_land_in_the_zone_for_it() -> None:
    stores = {"raw": {"uri": "thrift://a:1", "zone": "landing"}, "fine": {"uri": "thrift://b:1", "zone": "governed"}}
    parse_config({"metastores": stores, "ingestion": {"metastore": "raw"}}, "test")
    parse_config({"metastores": {"any": {"uri": "thrift://a:1"}}, "ingestion": {"metastore": "thrift://c:1"}}, "test")
    for other in ("fine", "thrift://c:1"):
        with pytest.raises(ConfigError, match="is not in zone landing"):
            parse_config({"metastores": stores, "ingestion": {"metastore": other}}, "test")


def test_the_store_is_in_the_directory_of_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    config = home / "replicator.toml"
    config.write_text('[ingestion.sources.crm]\nurl = "jdbc:postgresql://crm:5432/crm"\n')
    monkeypatch.chdir(elsewhere)
    with pytest.raises(ConfigError, match=r"service\.sqlite does not exist") as missing:
        replicator.asset_show("crm", config=config)
    assert "asset create" in str(missing.value.hint) and not list(home.glob("*.sqlite"))
    replicator.asset_create("crm", owner="olga", sources=["crm"], config=config, by="olga")
    monkeypatch.chdir(tmp_path)
    assert [each.name for each in replicator.asset_ls(config=config).assets] == ["crm"]
    assert (home / "service.sqlite").exists() and not (elsewhere / "service.sqlite").exists()
    (home / "service.sqlite").rename("service.sqlite")
    with pytest.raises(ConfigError) as moved:
        replicator.ingest_request("crm:public.t", asset="crm", config=config)
    assert str(tmp_path / "service.sqlite") in str(moved.value.hint)


def test_a_question_creates_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    config = home / "replicator.toml"
    config.write_text('[ingestion.sources.crm]\nurl = "jdbc:postgresql://crm:5432/crm"\n')
    monkeypatch.chdir(tmp_path)
    assert replicator.asset_ls(config=config).assets == []
    assert replicator.ingest_ls(config=config, asset="crm").jobs == []
    stats = replicator.ingest_stats(config=config)
    assert (stats.queue.states["queued"], stats.queue.assets, stats.landed.published) == (0, (), 0)
    assert [each.name for each in tmp_path.rglob("*")] == ["home", "replicator.toml"]
    empty = home / "service.sqlite"
    empty.touch()
    assert replicator.asset_ls(config=config).assets == [] and not empty.stat().st_size, "nor its tables"
    empty.unlink()
    elsewhere = parse_config({"ingestion": {"store": f"sqlite:///{tmp_path}/unmounted/i.sqlite"}}, "test")
    with pytest.raises(ConfigError, match="does not exist"):
        replicator.asset_ls(config=elsewhere)
    (tmp_path / "service.sqlite").touch()
    for question in (replicator.asset_ls, replicator.ingest_ls, replicator.ingest_stats):
        with pytest.raises(ConfigError, match="does not exist") as moved:
            question(config=config)
        assert "earlier versions used" in moved.value.hint


def test_one_user_tries_ingestion_alone_and_everything_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = '[ingestion.sources.crm]\nurl = "jdbc:postgresql://127.0.0.1:1/crm"\n'
    Path("replicator.toml").write_text(f"[ingestion]\nsingle_user = true\n{source}")

    def said(line: str, code: int = 0) -> str:
        assert run(line.split()) == code
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    asked = "ingest request crm:public.orders --asset crm"
    created = said("asset create crm --source crm")
    assert f"owner           {this_user().user}" in created, "its maker"
    assert "run `replicator asset approve crm`" in said(asked, 6)
    lines = [said("asset approve crm"), said(asked)]
    lines += map(said, ("asset ls", "asset show crm", "ingest ls", "ingest show 1", "ingest stats", "ingest cancel 1"))
    Path("requests").mkdir()
    lines.append(said("ingest take --directory requests"))
    for each in (created, *lines):
        assert each.startswith("single-user mode, for trying only"), each
    assert json.loads(said("asset ls --json"))["single_user"] is True

    Path("replicator.toml").write_text(source)
    assert "was approved in single-user mode" in said(asked, 6)
    assert "not approved yet" in said("asset show crm")
    assert json.loads(said("asset ls --json"))["assets"][0]["approved_by"] == ""
    assert "set [ingestion] single_user = true" in said("asset approve crm", 6)
    replicator.asset_approve("crm", by="anna")
    assert "single-user" not in said(asked) and json.loads(said("asset ls --json"))["single_user"] is False
