"""Traffic with a real metastore, counted by a proxy before it: limits of connections and calls, for every client."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from counting_proxy import CountingProxy, counting

import replicator
from replicator.errors import ConfigError, MetastoreUnreachable
from replicator.metastore.connection import limit_metastores
from replicator.metastore.embedded.running import Running
from replicator.metastore.parallel.traffic import Limit
from replicator.metastore.thrift import connect


def _all_at_once(uri: str, clients: int = 4, threads: int = 4, calls: int = 40) -> None:
    """Calls of several clients, of several threads each."""
    opened = [connect(uri) for _ in range(clients)]
    with ThreadPoolExecutor(clients * threads) as pool:
        assert all(pool.map(lambda number: opened[number % clients].database_names(), range(calls)))
    for each in opened:
        each.close()


def test_no_more_connections_than_configured(source_metastore: Running) -> None:
    with counting(source_metastore.uri, delay=0.02) as proxy:
        _all_at_once(proxy.uri)
        assert proxy.busiest > 3
        limit_metastores([(proxy.uri, Limit(connections=3))])
        proxy.forget()
        _all_at_once(proxy.uri)
        assert proxy.busiest == 3 and proxy.count()["get_all_databases"] == 40
    with counting(source_metastore.uri, delay=0.02) as proxy:  # one client, so that no end overlaps a beginning
        limit_metastores([(proxy.uri, Limit(connections=3))])
        _all_at_once(proxy.uri, clients=1, threads=16)
        assert proxy.most == 3


def test_a_client_takes_the_idle_connection_of_another(source_metastore: Running) -> None:
    with counting(source_metastore.uri) as proxy:
        limit_metastores([(proxy.uri, Limit(connections=1))])
        first, second = connect(proxy.uri), connect(proxy.uri)
        for client in (first, second, first, second):
            assert client.database("default")
        assert first.unknown_fields() == {}  # which takes a connection of its own
        assert proxy.most <= 2  # the proxy hears of an end a little later
        forgotten = connect(proxy.uri)
        forgotten.database_names()
        del forgotten
        assert first.database_names()


def test_calls_are_spread_over_the_seconds(source_metastore: Running) -> None:
    with counting(source_metastore.uri) as proxy:
        limit_metastores([(proxy.uri, Limit(calls_per_second=50))])
        begun = time.monotonic()
        _all_at_once(proxy.uri)
        times = sorted(at for at, _ in proxy.calls)
        assert len(times) >= 40
        assert all(at >= begun + k / 50 for k, at in enumerate(times))


def test_a_configuration_limits_what_its_commands_send(source_metastore: Running, tmp_path: Path) -> None:
    with counting(source_metastore.uri) as proxy:
        config = tmp_path / "replicator.toml"
        config.write_text(f'[metastores.here]\nuri = "{proxy.uri}"\nmax_connections = 1\nmax_calls_per_second = 40\n')
        with connect(source_metastore.uri) as plain:
            name = plain.database_names()[0]
        replicator.capture(source="here", cmroot=str(tmp_path / "cm"), db=name, config=config)
        times = [at for at, _ in proxy.calls]
        assert proxy.busiest == 1
        assert (len(times) - 1) / (times[-1] - times[0]) < 45


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
            _until(proxy, 2)
            client.close()
            with pytest.raises(MetastoreUnreachable):
                waiting.result(timeout=60)
        proxy.stalled = False
        assert client.database_names()


def _until(proxy: CountingProxy, calls: int) -> None:
    arrived = threading.Event()
    while proxy.count()["get_all_databases"] < calls:
        arrived.wait(0.01)
