"""The metastores of the run's pool, as a worker borrows them; and the type of the fixture that starts others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

from names import WORKER
from pool import Pool

from replicator.metastore.embedded import running as embedded
from replicator.metastore.embedded.running import Running
from replicator.metastore.thrift import connect

MetastoreFactory = Callable[..., Running]
MOST_DATABASES = 40
"""Jobs that remove read every table of a metastore: databases of earlier tests cost each of their runs time."""


def borrow(pool: Pool, name: str, *, few: bool, **options: Any) -> Running:
    """A metastore with the events and databases of earlier tests. few: one of its own kind, which begins anew, at the
    same address, when it has MOST_DATABASES.

    It is this worker's alone: tests make damaged tables, and jobs that remove name every table that they cannot read.
    """
    name = f"{name}-{'few-' if few else ''}{WORKER}"
    running = pool.metastore(name, env=os.environ, **options)
    if few:
        with connect(running.uri) as client:
            full = len(client.database_names()) > MOST_DATABASES
        if full:
            embedded.stop(running.directory)
            shutil.rmtree(running.directory / "metastore_db")
            shutil.rmtree(running.directory / "warehouse")
            return pool.metastore(name, env=os.environ, **options)
    return running
