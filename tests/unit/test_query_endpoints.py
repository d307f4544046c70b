"""Parts of the service's queries: cursors, names of roots, time limits, series, and their texts on pages."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from waiting import CEILING

from replicator.core.config import Config, parse_config
from replicator.errors import ObjectNotFound, UsageError
from replicator.service.api_tokens import NOBODY, Identity
from replicator.service.series import LagSample, RootSample, lag_peaks, lag_samples, record_lag, record_root, thin
from replicator.service.series import root_samples as samples_of_root
from replicator.service.store import ServiceStore
from replicator.service.web.catalogue import ENDPOINTS
from replicator.service.web.endpoint import FARTHEST, cursor_to, digest, read_cursor, root_for, roots_of
from replicator.service.web.router import limit_of, parameters_of
from replicator.service.web.serving import OF_ONE, Askers, Late, run_command

DOCS = Path(__file__).parents[2] / "docs"


@given(st.integers(0, FARTHEST) | st.text(min_size=1), st.text())
def test_a_cursor_leads_where_its_page_ended(at: int | str, asked: str) -> None:
    assert read_cursor(cursor_to(at, digest(asked, {})), digest(asked, {}), type(at)) == at


@given(st.text(min_size=1))
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_cursor(text, digest("q", {}))


@pytest.mark.parametrize("cursor", [cursor_to(5, "other"), cursor_to(-1, "q"), cursor_to("x", "q")])
def test_a_cursor_of_another_query_is_refused(cursor: str) -> None:
    with pytest.raises(UsageError, match="another query"):
        read_cursor(cursor, "q")


def config() -> Config:
    policy = {"source": "thrift://a:1", "target": "thrift://b:1", "databases": ".*", "dumps": "/d", "warehouse": "/w"}
    west = {**policy, "cmroot": "/shared", "target_cmroot": "/of-west"}
    east = {**policy, "cmroot": "/shared/", "target_cmroot": "/of-east", "target": "thrift://c:1"}
    job = {"command": ["cm", "expire", "--cmroot=/of-job"], "every": "1d"}
    tables = {"policies": {"west": west, "east": east}, "service": {"jobs": {"sweep": job}}}
    return parse_config({**tables, "defaults": {"cmroot": "/mine"}}, "test")


def test_roots_are_those_of_the_configuration_and_a_token_sees_what_is_its_alone() -> None:
    names = {each.name: each for each in roots_of(config())}
    assert names["policies/west/cmroot"].policies == names["policies/east/cmroot"].policies == ("east", "west")
    assert names["jobs/sweep/cmroot"].place == "/of-job"
    assert root_for(config(), NOBODY, None).place == "/mine"
    west = Identity("w", "viewer", ("west",))
    assert root_for(config(), west, "policies/west/target_cmroot").place == "/of-west"
    for name in ("policies/west/cmroot", "policies/east/target_cmroot", "jobs/sweep/cmroot", None, "/of-west"):
        with pytest.raises(HTTPException) as caught:
            root_for(config(), west, name)
        assert caught.value.status_code == 403, name
    for path in ("/mine", "/etc", "policies/west/../../etc", ""):
        with pytest.raises(ObjectNotFound, match="no configured root"):
            root_for(config(), NOBODY, path)


def test_a_query_that_hangs_is_answered_at_its_documented_limit() -> None:
    limits = {each.path: limit_of(each) for each in ENDPOINTS if not each.process}
    assert limits == {each.path: each.seconds for each in ENDPOINTS if not each.process}
    assert limits["policies/{policy}/lag"] == 15 and "A query has 15 seconds" in (DOCS / "service.md").read_text()


def test_what_hangs_keeps_nobody_else_waiting() -> None:
    stuck = threading.Event()

    async def ask() -> None:
        askers = Askers()
        hung = [askers.ask("sick", 1, stuck.wait) for _ in range(OF_ONE + 1)]
        outcomes, answer = await asyncio.gather(
            asyncio.gather(*hung, return_exceptions=True), askers.ask("well", CEILING, lambda: "here")
        )
        assert answer == "here"
        assert sorted(each.begun for each in outcomes if isinstance(each, Late)) == [False] + [True] * OF_ONE
        stuck.set()
        assert await askers.ask("sick", CEILING, lambda: "well again") == "well again"

    asyncio.run(ask())


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(Late) as caught:
        run_command(["cm", "ls", f"--cmroot={tmp_path}"], 0.05)  # less than its start takes
    assert caught.value.begun
    code, said = run_command(["cm", "ls", f"--cmroot={tmp_path}"], CEILING)
    assert code == 1 and said["error"] == "FormatError" and said["hint"]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_lag_before_yesterday_is_the_worst_of_each_quarter(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/s.sqlite" if kind == "sqlite" else request.getfixturevalue("postgres").database()
    with ServiceStore(url) as store:
        store.prepare()
        now = (store.now() // 900) * 900
        for number in range(8):
            for ago in (60.0, 3 * 86_400.0):
                seconds = None if number == 1 else float(number % 5)
                record_lag(store, LagSample("p", now - ago + number, "behind", 1, 0.0, 1, None, False, "", seconds))
        record_root(store, RootSample("/r", now - 40 * 86_400.0, 1, 1, 0, ""))
        record_root(store, RootSample("/r", now, 2, 2, 0, ""))
        record_root(store, RootSample("/r", now, 2, 2, 0, ""))  # may run twice
        for _ in range(2):
            thin(store, 30 * 86_400.0)
            found = lag_samples(store, "p", since=0, after=0, limit=100)
            assert [each.seconds_bound for each in found if each.at < now - 86_400] == [4.0]
            assert len([each for each in found if each.at >= now - 86_400]) == 8
            today = {"since": now - 86_400}
            fine = [(now - 60.0 + number, None if number == 1 else float(number % 5)) for number in range(8)]
            assert lag_peaks(store, "p", parts=100, **today) == fine
            coarse = [(at - now + 60.0, seconds) for at, seconds in lag_peaks(store, "p", parts=2, **today)]
            assert coarse[0][1] is None and max(each or 0.0 for _, each in coarse) == 4.0 and coarse[-1][0] == 7.0
            assert len(coarse) <= 3 and not lag_peaks(store, "none", parts=2, **today)
        assert [each.entries for each in samples_of_root(store, "/r", since=0, after=0, limit=9)] == [2]


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: each.path)
def test_an_endpoint_is_described(endpoint: object) -> None:
    (found,) = [each for each in ENDPOINTS if each is endpoint]
    assert all(each.says for each in parameters_of(found)), found.path
    assert found.answer.__doc__ and not found.answer.__doc__.startswith(f"{found.answer.__name__}(")
    said = (DOCS / "service.md").read_text()
    written = (
        found.path.replace("{policy}", "P")
        .replace("{table}", "DB.T")
        .replace("{job}", "J")
        .replace("{purge}", "ID")
        .replace("{asset}", "A")
    )
    assert re.search(rf"(`|GET ){re.escape(written)}[`?]", said), written
