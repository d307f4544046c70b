"""A purge command that dies at a step of a table's own commits: `killed_purge.py STEP before|after|halfway ARGUMENTS`.
The step is a method of `IcebergLake` or, if STEP begins with `delta:`, of `DeltaLake`; an expiry of Iceberg that dies
halfway has committed, and deleted no file. `killed_purge.py STEP ID ARGUMENTS` dies nowhere: another writer adds two
rows before the step, one with this id."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from replicator.cli.main import main
from replicator.core.text import quoted_name
from replicator.lifecycle.purge.iceberg_purge import IcebergLake


def dying(step: str, when: str) -> Any:
    own = getattr(IcebergLake, step)

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        if when == "halfway":
            expiry = self._loaded().expireSnapshots().expireOlderThan(0)
            for each in arguments[0]:
                expiry = expiry.expireSnapshotId(each)
            expiry.cleanExpiredFiles(False).commit()
        found = own(self, *arguments, **named) if when == "after" else None
        os.kill(os.getpid(), signal.SIGKILL)
        return found

    return method


def meeting(step: str, id_: str) -> Any:
    own, met = getattr(IcebergLake, step), list[str]()

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        if not met:
            met.append(id_)
            rows = f"('{id_}', 'about-{id_[-4:]}', 0), ('person-of-the-writer', 'late', 1)"
            self._session.sql(f"INSERT INTO {quoted_name(*self._table_name)} VALUES {rows}")
        return own(self, *arguments, **named)

    return method


if __name__ == "__main__":
    name, moment = sys.argv[1:3]
    kills = moment in ("before", "after", "halfway")
    setattr(IcebergLake, name, dying(name, moment) if kills else meeting(name, moment))
    sys.argv[1:] = sys.argv[3:]
    main()
