"""A purge command that dies at a step of a table's own commits: `killed_purge.py STEP before|after|halfway ARGUMENTS`.
The step is a method of `IcebergLake` or, if STEP begins with `delta:` or `hudi:`, of `DeltaLake` or `HudiLake`; an
expiry of Iceberg that dies halfway has committed, and deleted no file. `killed_purge.py STEP ID ARGUMENTS` dies
nowhere: another writer adds two rows before the step, one with this id."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from replicator.cli.main import main
from replicator.core.text import quoted_name
from replicator.lifecycle.purge.delta_purge import DeltaLake
from replicator.lifecycle.purge.hudi_purge import HudiLake
from replicator.lifecycle.purge.iceberg_purge import IcebergLake


def dying(lake: type, step: str, when: str) -> Any:
    own = getattr(lake, step)

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


def meeting(lake: type, step: str, id_: str) -> Any:
    own, met = getattr(lake, step), list[str]()

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        if not met:
            met.append(id_)
            rows = [(id_, f"about-{id_[-4:]}", 0), ("person-of-the-writer", "late", 1)]
            frame = self._session.createDataFrame(rows, "who STRING, note STRING, n BIGINT")
            if lake is IcebergLake:
                frame.writeTo(quoted_name(*self._table_name)).append()
            elif lake is HudiLake:
                frame.createOrReplaceTempView("late")
                name = quoted_name(*self._actions._table_name)
                self._session.sql(f"insert into {name} select who, note, n, 'p1' from late").collect()
            else:
                with self._actions._configured():
                    frame.write.format("delta").mode("append").save(self._actions._path)
        return own(self, *arguments, **named)

    return method


if __name__ == "__main__":
    name, moment = sys.argv[1:3]
    format, _, name = name.rpartition(":")
    lake: type = {"delta": DeltaLake, "hudi": HudiLake, "": IcebergLake}[format]
    kills = moment in ("before", "after", "halfway")
    setattr(lake, name, dying(lake, name, moment) if kills else meeting(lake, name, moment))
    sys.argv[1:] = sys.argv[3:]
    main()
