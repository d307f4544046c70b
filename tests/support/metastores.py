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
MOST_DATABASES = 100
"""Jobs that remove read every table of a metastore: databases of earlier tests cost each of them time."""


def borrow(pool: Pool, name: str, **options: Any) -> Running:
    """A metastore with the events and databases of earlier tests; one with too many begins anew, at the same address.

    It is this worker's alone: tests make damaged tables, and jobs that remove name every table that they cannot read.
    """
    name = f"{name}-{WORKER}"
    running = pool.metastore(name, env=os.environ, **options)
    with connect(running.uri) as client:
        if len(client.database_names()) <= MOST_DATABASES:
            return running
    embedded.stop(running.directory)
    shutil.rmtree(running.directory / "metastore_db")
    shutil.rmtree(running.directory / "warehouse")
    return pool.metastore(name, env=os.environ, **options)
