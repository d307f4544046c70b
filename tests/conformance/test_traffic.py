"""Traffic with a real metastore, counted by a proxy before it: limits of connections and calls, for every client."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from counting_proxy import CountingProxy, counting
from waiting import CEILING, Clock, eventually

import replicator
from replicator.core.connections import MetastoreConfig
from replicator.errors import ConfigError, MetastoreUnreachable
from replicator.metastore import traffic
from replicator.metastore.connection import limit_metastores
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect
from replicator.metastore.traffic import Limit


def _all_at_once(proxy: CountingProxy, at_once: int, clients: int = 4, threads: int = 4, calls: int = 40) -> None:
    """Calls of several clients, of several threads each. None is answered before so many are under way."""
    opened = [connect(MetastoreConfig(proxy.uri, connect_timeout="1d")) for _ in range(clients)]
    proxy.stalled = True
    with ThreadPoolExecutor(clients * threads) as pool:
        answers = [pool.submit(opened[number % clients].database_names) for number in range(calls)]
        try:
            eventually(lambda: proxy.busy >= at_once)
        finally:
            proxy.stalled = False
        assert all(each.result() for each in answers)
    for each in opened:
        each.close()


def test_no_more_connections_than_configured(source_metastore: Running) -> None:
    with counting(source_metastore.uri) as proxy:
        _all_at_once(proxy, 4)
        eventually(lambda: proxy.open == 0)
        limit_metastores([(proxy.uri, Limit(connections=3))])
        proxy.forget()
        _all_at_once(proxy, 3)
        assert proxy.busiest == 3 and proxy.count()["get_all_databases"] == 40
    with counting(source_metastore.uri) as proxy:  # one client, so that no end overlaps a beginning
        limit_metastores([(proxy.uri, Limit(connections=3))])
        _all_at_once(proxy, 3, clients=1, threads=16)
        assert proxy.most == 3


def test_a_client_takes_the_idle_connection_of_another(source_metastore: Running) -> None:
    with counting(source_metastore.uri) as proxy:
        limit_metastores([(proxy.uri, Limit(connections=1))])
        first, second = connect(proxy.uri), connect(proxy.uri)
        for client in (first, second, first, second):
            assert client.database("default")
            eventually(lambda: proxy.open == 1)  # the proxy hears of an end a little later
        assert first.unknown_fields() == {}  # over the same one
        eventually(lambda: proxy.open == 1)
        forgotten = connect(proxy.uri)
        forgotten.database_names()
        del forgotten
        assert first.database_names()


class Seconds(Clock):
    """Those of the limits: they pass while somebody waits for a turn."""

    monotonic = Clock.__call__

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.advance(seconds)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    made = Seconds()
    monkeypatch.setattr(traffic, "time", made)
    return made


def test_calls_of_several_clients_wait_for_their_turns_together(source_metastore: Running, seconds: Seconds) -> None:
    begun = seconds()
    with counting(source_metastore.uri) as proxy:
        limit_metastores([(proxy.uri, Limit(calls_per_second=2))])
        _all_at_once(proxy, 1)
        assert len(proxy.calls) >= 40 and seconds() - begun >= (len(proxy.calls) - 1) / 2


def test_a_configuration_limits_what_its_commands_send(
    source_metastore: Running, tmp_path: Path, seconds: Seconds
) -> None:
    """Every call that arrives has waited for its turn."""
    begun = seconds()
    with counting(source_metastore.uri) as proxy:
        config = tmp_path / "replicator.toml"
        config.write_text(f'[metastores.here]\nuri = "{proxy.uri}"\nmax_connections = 1\nmax_calls_per_second = 4\n')
        with connect(source_metastore.uri) as plain:
            name = plain.database_names()[0]
        replicator.capture(source="here", cmroot=str(tmp_path / "cm"), db=name, config=config)
        assert proxy.busiest == 1
        assert len(proxy.calls) > 4 and seconds() - begun >= (len(proxy.calls) - 1) / 4


@pytest.mark.parametrize(
    ("text", "said"),
    [("max_connections = 0", "max_connections"), ("max_calls_per_second = -1", "max_calls_per_second")],
)
def test_a_limit_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    config = tmp_path / "replicator.toml"
    config.write_text(f'[metastores.here]\nuri = "thrift://a:1"\n{text}\n')
    with pytest.raises(ConfigError, match=said):
        replicator.capture(source="here", cmroot=str(tmp_path / "cm"), config=config)


def test_closing_ends_calls_under_way(source_metastore: Running) -> None:
    with counting(source_metastore.uri) as proxy:
        client = connect(proxy.uri)
        assert client.database_names()
        proxy.stalled = True
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.database_names)
            eventually(lambda: proxy.count()["get_all_databases"] == 2)
            client.close()
            with pytest.raises(MetastoreUnreachable):
                waiting.result(timeout=CEILING)
        proxy.stalled = False
        assert client.database_names()
