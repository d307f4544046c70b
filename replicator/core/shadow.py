"""Shadows: databases that a drill made, whose tables show the files of a replica. Pure.

They own nothing. What captures, replicates or removes whatever a metastore has must pass over them: their tables'
locations are another database's.
"""

from __future__ import annotations

from replicator.core.model import Database

DRILL = "replicator.drill"  # the stamp, of databases and tables: the drill's id
OF_POLICY = "replicator.drill.policy"  # of a database: whose drill


def is_shadow(database: Database | None) -> bool:
    return database is not None and DRILL in database.parameters
