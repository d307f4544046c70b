"""The ingestion store in PostgreSQL, with controllers that claim at once; and a drop zone, whose users ask by SQL."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import psycopg
import pytest
from landing_figures import counted_landed, counted_queue, said
from postgres import Postgres

import replicator
from replicator.core import database
from replicator.core.config import parse_config
from replicator.errors import Error, StoreUnreachable, UsageError
from replicator.ingestion import request_directory
from replicator.ingestion.ingestion_request import STEPS, Asset, Claimed, Request
from replicator.ingestion.job_store import IngestionStore


@pytest.fixture
def server(postgres: Postgres) -> Postgres:
    return postgres


def test_controllers_that_claim_at_once_share_no_job_and_exceed_no_share(server: Postgres) -> None:
    url = server.database()
    with IngestionStore(url) as store:
        store.prepare()
        for name in ("crm", "shop"):
            store.put_asset(Asset(name=name, owner="olga", created_by="olga"))
        asked = [Request(asset=("crm", "shop")[n % 2], source="s", schema="public", table=f"t{n}") for n in range(16)]
        jobs = [store.submit(each).job for each in asked]

        def work(own: IngestionStore, one: Claimed) -> None:
            for step in STEPS:
                own.renew(one, 60.0)
                if step == "publish":
                    own.published(one, 7, {"rows": 1})
                else:
                    own.step_done(one, step, {"columns": ["\x01", "ü"]})
            own.done(one)

        def control(name: str) -> list[int]:
            done = []
            with IngestionStore(url) as own:
                while (one := own.claim(name, 60.0, 3, 0.5)) or any(each.state != "done" for each in own.jobs()):
                    held = Counter(each.asset for each in own.jobs() if each.holder)
                    assert max(held.values(), default=0) <= 1
                    if one:
                        work(own, one)
                        done.append(one.job)
            return done

        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(control, ("c1", "c2", "c3")))
        assert sorted(each for some in found for each in some) == jobs
        numbers = [each.id for each in store.begin_logging(1000)]
        assert numbers == sorted(numbers) and len(numbers) == 16 * (2 + len(STEPS) + 1)
        landed = store.landed(60.0 * 60)
        assert said(landed) == counted_landed(store, landed.since) and landed.published == 16
        assert said(store.queue()) == counted_queue(store, store.now())


def test_a_controller_that_is_stopped_in_a_transaction_keeps_nobody_waiting(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "IDLE", 4.0)  # more than a busy machine needs between two statements
    url = server.database()
    with IngestionStore(url) as stopped, IngestionStore(url) as other:
        stopped.prepare()
        stopped.put_asset(Asset(name="crm", owner="olga", created_by="olga"))
        stopped.submit(Request(asset="crm", source="s", schema="public", table="t"))
        with pytest.raises(StoreUnreachable, match="idle-in-transaction"), stopped.together():
            assert stopped.claim("stopped", 60.0, 3, 1.0)
            claimed = other.claim("other", 60.0, 3, 1.0)  # which waits for the one above
            stopped.jobs()
        assert claimed and claimed.holder == "other"


FORMER_FUNCTIONS = """CREATE FUNCTION replicator.request_ingestion(
    asset text, schema_name text, table_name text, mode text DEFAULT 'overwrite', watermark text DEFAULT NULL,
    key text[] DEFAULT '{}', split_column text DEFAULT NULL, readers integer DEFAULT NULL,
    format text DEFAULT 'parquet', schema_policy text DEFAULT 'fail', note text DEFAULT ''
) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'; CREATE FUNCTION replicator.request_ingestion(
    asset text, schema_name text, table_name text, mode text, watermark text, key text[], split_column text,
    readers integer, format text, schema_policy text, note text, late text, max_loss double precision DEFAULT NULL
) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'"""


def test_users_of_a_database_ask_by_a_function_that_its_rights_guard(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    zone = server.database()
    host = server.jdbc()["javax.jdo.option.ConnectionURL"].rpartition("/")[0]
    jdbc = f"{host}{urlsplit(zone).path}"

    def as_user(user: str) -> psycopg.Connection[Any]:
        return psycopg.connect(zone.replace("postgres@", f"{user}@"), autocommit=True)

    source = {"url": f"{jdbc}?currentSchema=x", "user": "loader"}
    config = parse_config(
        {"ingestion": {"store": server.database(), "sources": {"crm": source, "web": {"url": "jdbc:mysql://h/web"}}}},
        "t",
    )
    replicator.asset_create("crm", owner="olga", producers="makers", sources="crm", by="olga", config=config)
    replicator.asset_approve("crm", by="anna", config=config)
    with as_user("postgres") as admin:
        for role in ("makers", "loader LOGIN", "paul LOGIN IN ROLE makers", "peter LOGIN", "eve LOGIN"):
            admin.execute(f"CREATE ROLE {role}")  # type: ignore[call-overload]
        admin.execute("CREATE TABLE orders (id int); CREATE TABLE x (at int, a int, b int)")
        with pytest.raises(Error, match="does not exist"):
            replicator.ingest_take(database="crm", config=config)
        admin.execute(f"ALTER DATABASE {urlsplit(zone).path[1:]} OWNER TO eve")  # type: ignore[call-overload]
        with as_user("eve") as eve:
            eve.execute("CREATE SCHEMA replicator; CREATE TABLE replicator.request (state text DEFAULT 'hers')")
        with pytest.raises(psycopg.errors.RaiseException, match="of eve exists already"):
            admin.execute(replicator.ingest_drop_zone().sql)
        admin.execute("ROLLBACK; ALTER SCHEMA replicator OWNER TO postgres")
        with pytest.raises(psycopg.errors.RaiseException, match=r"replicator\.request, of eve"):
            admin.execute(replicator.ingest_drop_zone().sql)
        admin.execute("ROLLBACK")
        assert admin.execute("SELECT to_regproc('replicator.request_ingestion')").fetchone() == (None,)
        assert not admin.execute("SELECT FROM pg_roles WHERE rolname LIKE 'replicator\\_%'").fetchall()
        admin.execute("DROP SCHEMA replicator CASCADE")
        for _ in range(2):
            admin.execute(replicator.ingest_drop_zone().sql)
        admin.execute("DROP FUNCTION replicator.request_ingestion; " + FORMER_FUNCTIONS)
        admin.execute(replicator.ingest_drop_zone().sql)  # replaces the functions of earlier releases
        admin.execute("GRANT replicator_producer TO makers, peter; GRANT replicator_taker TO loader")
    with as_user("eve") as eve, pytest.raises(psycopg.errors.InsufficientPrivilege):
        eve.execute("SELECT replicator.request_ingestion('crm', 'public', 'orders')")
    with as_user("paul") as paul, as_user("peter") as peter:
        ask = "SELECT replicator.request_ingestion('crm', 'public', 'orders')"
        assert paul.execute(ask).fetchone() == (1,)
        paul.execute("SET ROLE makers")
        paul.execute("SELECT replicator.request_ingestion('crm', 'public', 'log', mode => 'append')")
        paul.execute("SELECT replicator.request_ingestion('crm', 'public', 'x', 'merge', 'at', '{a,b}', 'a', 4, 'orc')")
        peter.execute(ask)
        with pytest.raises(psycopg.errors.CheckViolation):
            paul.execute("SELECT replicator.request_ingestion(repeat('ab c', 20000), 'public', 'orders')")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            peter.execute("UPDATE replicator.request SET requested_by = 'paul'")
        found = replicator.ingest_take(database="crm", config=config).requests
        assert [(one.name, one.requested_by, one.job) for one in found] == [
            ("1", "paul", 1),
            ("2", "paul", None),
            ("3", "paul", 2),
            ("4", "peter", None),
        ]
        said = paul.execute("SELECT state, job, answer FROM replicator.my_requests ORDER BY id").fetchall()
        assert said[0][2] == "position 1", "its source was asked"
        assert [row[:2] for row in said] == [("queued", 1), ("refused", None), ("queued", 2)]
        assert said[1][2].startswith("crm:public.log: mode append requires a watermark (")
        assert peter.execute("SELECT count(*) FROM replicator.my_requests").fetchone() == (1,)
    request = replicator.ingest_show(2, config=config).detail.request
    assert (request.key, request.split.readers, request.format, request.requested_by) == (("a", "b"), 4, "orc", "paul")
    assert replicator.ingest_take(database="crm", config=config).requests == []
    with as_user("paul") as paul:
        late = "mode => 'append', watermark => 'at', key => '{a}', late => '10m'"
        more = """more => '{"columns": ["a", "b"], "where": "a > 1", "masks": {"b": "null"}, "unique": ["a"]}'"""
        wrong = ("""more => '{"requested_by": "olga"}'""", "more => '[1]'", """more => '{"colums": []}'""")
        wrong += ("""more => '{"readers": 1e5000}'""",)  # which Python's parser of JSON refuses to convert
        for given in (late, "max_loss => 0.75", more, *wrong):
            paul.execute(f"SELECT replicator.request_ingestion('crm', 'public', 'x', {given})")  # type: ignore[call-overload]
    taken = replicator.ingest_take(database="crm", config=config).requests
    told = ["field 'requested_by' is not permitted", "unknown field 'more'", "unknown field 'colums'", "cannot be read"]
    assert [text in (one.error or "") for one, text in zip(taken[3:], told, strict=True)] == [True] * 4, taken
    asked = [replicator.ingest_show(one.job, config=config).detail.request for one in taken[:3]]
    assert [(one.late, one.max_loss) for one in asked] == [("10m", None), (None, 0.75), (None, None)]
    chosen = asked[-1]
    assert (chosen.columns, chosen.where, chosen.masks, chosen.unique) == (("a", "b"), "a > 1", {"b": "null"}, ("a",))

    with as_user("postgres") as admin:  # its answer was lost: its key leads to the same job
        admin.execute("UPDATE replicator.request SET state = 'new', job = NULL WHERE id = 3")
    assert [one.job for one in replicator.ingest_take(database="crm", config=config).requests] == [2]
    with as_user("postgres") as admin:
        admin.execute("UPDATE replicator.request SET state = 'new', job = NULL, key = gen_random_uuid() WHERE id = 3")
        with monkeypatch.context() as patched:
            patched.setattr(request_directory, "accept", Mock(side_effect=AssertionError))
            (one,) = replicator.ingest_take(database="crm", config=config).requests
        assert one.error == "internal error, request not accepted", "it would be the first for ever"
        admin.execute("ALTER TABLE replicator.request DROP CONSTRAINT request_short")  # as in earlier releases
        long = "'{}', jsonb_build_object('asset', repeat('x', 99999), 'schema', 's', 'table', 't')"
        admin.execute(f"INSERT INTO replicator.request (requested_by, groups, request) VALUES ('paul', {long})")
        admin.execute(replicator.ingest_drop_zone().sql)
    (one,) = replicator.ingest_take(database="crm", config=config).requests
    assert "its asset is too long" in one.error
    with pytest.raises(UsageError, match="not a PostgreSQL"):
        replicator.ingest_take(database="web", config=config)
    away = {"url": "jdbc:postgresql://127.0.0.1:1/crm"}
    gone = parse_config({"ingestion": {"store": config.ingestion.store, "sources": {"crm": away}}}, "t")
    with pytest.raises(StoreUnreachable, match="source crm: "):
        replicator.ingest_take(database="crm", config=gone)


def test_a_table_or_a_column_that_a_source_does_not_have_is_refused_at_once(server: Postgres) -> None:
    zone = server.database()
    jdbc = f"{server.jdbc()['javax.jdo.option.ConnectionURL'].rpartition('/')[0]}{urlsplit(zone).path}"
    store = server.database()

    def configured(**source: str) -> Any:
        return parse_config({"ingestion": {"store": store, "sources": {"crm": {"url": jdbc, **source}}}}, "t")

    config = configured(user="postgres")
    given = {"owner": "olga", "sources": "crm", "by": "olga", "config": config}
    replicator.asset_create("crm", **given)
    replicator.asset_create("hr", classification="personal", erasure_ids="g.gone:id", erasure_column="person", **given)
    for name in ("crm", "hr"):
        replicator.asset_approve(name, by="anna", config=config)
    with psycopg.connect(zone, autocommit=True) as admin:
        admin.execute('CREATE TABLE orders (id int, "Changed" int, gone int, a int, "A" int)')
        admin.execute("ALTER TABLE orders DROP COLUMN gone; CREATE VIEW recent AS SELECT id FROM orders")

    def ask(table: str = "public.orders", asset: str = "crm", config: Any = config, **more: Any) -> Any:
        return replicator.ingest_request(f"crm:{table}", asset=asset, config=config, by="olga", **more)

    merge: dict[str, Any] = {"mode": "merge", "key": "id"}
    for told, hint, asked in (
        ("table public.order does not exist", "did you mean orders", {"table": "public.order"}),
        ("table sales.orders does not exist", "0 tables", {"table": "sales.orders"}),
        ("column idd, its key, does not exist", "did you mean id", {**merge, "key": "idd"}),
        ("column gone, its watermark, does not exist", "it has id, Changed", {"mode": "append", "watermark": "gone"}),
        ("column xmin, its split column, does not exist", "it has", {"split_column": "xmin"}),
        ("column person, its erasure column, does not exist", "it has", {"asset": "hr"}),
        (
            "column id, its key, does not exist",
            "it has",
            {"table": "public.orders", **merge, "key": ["id", 'id"; DROP TABLE x']},
        ),
    ):
        with pytest.raises(UsageError) as refused:
            ask(**asked)
        assert hint in refused.value.hint, refused.value.hint
        assert told in refused.value.message or "DROP" in refused.value.message
    assert replicator.ingest_ls(config=config).jobs == []
    for asked in ({}, {**merge, "watermark": "changed"}, {"table": "public.recent"}, {**merge, "key": "A"}):
        done = ask(**asked)
        assert (done.checked, done.unchecked) == (True, "")

    nobody = ask(config=configured(user="nobody"))
    assert (nobody.status, nobody.checked) == ("queued", False) and "nobody" in nobody.unchecked
    away = ask(config=configured(url="jdbc:postgresql://127.0.0.1:1/crm", password="env:NOT_THERE"))
    assert not away.checked and "NOT_THERE" in away.unchecked
