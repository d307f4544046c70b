"""The metastores of the run's pool, as a worker borrows them; and the type of the fixture that starts others."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from hmsclient import HMSClient
from names import MINE, WORKER
from pool import Pool
from thrift.Thrift import TException

from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.running import Running

MetastoreFactory = Callable[..., Running]
REFUSES_AT_ONCE = {"hive.hmshandler.retry.attempts": "1", "hive.hmshandler.retry.interval": "250ms"}
"""Settings of a server that does not repeat a call which its database has refused, as the others do for seconds. By
the interval, the product knows that calls side by side may be lost, and makes them one after the other."""


def borrow(pool: Pool, name: str, **options: Any) -> Running:
    """A metastore of this worker alone, with the events of earlier tests: tests make damaged tables, and jobs that
    remove name every table that they cannot read."""
    return pool.metastore(f"{name}-{WORKER}", env=os.environ, **options)


@contextmanager
def shared(pool: Pool) -> Iterator[Callable[..., Running]]:
    """`start(name, **options)`: a metastore that all workers of a run share, one for each name. At the end, the
    databases of this worker are dropped from those that it started or borrowed."""
    used: dict[str, Running] = {}

    def start(name: str, **options: Any) -> Running:
        used[name] = pool.metastore(name, env=os.environ, **options)
        return used[name]

    yield start
    for running in used.values():
        drop_databases(running)


def emptied(running: Running) -> None:
    """Drops all databases of a worker's metastore. If one cannot be dropped, deletes the metastore's data: the next
    module starts it empty, at the same address."""
    if drop_databases(running, re.compile(r"(?!default$)")):
        embedded.stop(running.directory)
        for data in ("metastore_db", "warehouse"):
            shutil.rmtree(running.directory / data)


def drop_databases(running: Running, wanted: re.Pattern[str] = MINE) -> list[str]:
    """Drops the databases that match, and keeps their files. Returns those that could not be dropped. Loads read every
    table of their target, captures the grants of every table, and removal jobs every table of their metastore, so
    databases of earlier tests cost time."""
    at = urlsplit(running.uri)
    left = []
    with HMSClient(host=at.hostname, port=at.port) as client:
        for name in filter(wanted.match, client.get_all_databases()):
            try:
                client.drop_database(name, False, True)
            except TException:
                left.append(name)
    return left
